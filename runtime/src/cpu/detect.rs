//! Detects the properties of the processor of this machine.

use elsa_core::profile::DeviceProfile;
use std::fs;

/// Returns the profile of this machine for an engine with `threads` threads. Properties that the system does not report
/// keep their values in [`DeviceProfile::modest`].
pub fn profile(threads: usize) -> DeviceProfile {
    let mut profile = DeviceProfile { cores: threads, ..DeviceProfile::modest() };
    for index in 0..8 {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size")) else {
            continue;
        };
        let Some(bytes) = size_in_bytes(size.trim()) else { continue };
        match (level.trim(), kind.trim()) {
            ("1", "Data" | "Unified") => profile.l1d = bytes,
            ("2", "Data" | "Unified") => profile.l2 = bytes,
            ("3", "Data" | "Unified") => profile.l3 = bytes,
            _ => {}
        }
    }
    if let Some(khz) = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
        .ok()
        .and_then(|s| s.trim().parse::<u32>().ok())
    {
        profile.cpu_mhz = khz / 1000;
    }
    profile
}

/// Parses a cache size such as `32K`, `2M` or `4096` and returns it in bytes.
fn size_in_bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits.parse::<usize>().ok()?.checked_mul(unit).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches() {
        assert_eq!(size_in_bytes("32K"), Some(32 << 10));
        assert_eq!(size_in_bytes("2M"), Some(2 << 20));
        assert_eq!(size_in_bytes("4096"), Some(4096));
        for bad in ["", "K", "-1K", "0K", "12G!", "99999999999999999999K"] {
            assert_eq!(size_in_bytes(bad), None, "{bad}");
        }
    }
}
