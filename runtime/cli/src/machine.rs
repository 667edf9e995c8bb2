//! Properties of the processor, as reported by the operating system. Missing values are `None`.

use serde::Serialize;
use std::fs;
use std::path::Path;

/// A processor cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level: 1, 2 or 3.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in the notation of the system, such as `32K`.
    pub size: String,
}

/// Returns the first line of a file, unless it is empty.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end_matches('\0').lines().next()?.trim();
    (!text.is_empty()).then(|| text.to_string())
}

/// Returns the name of the processor; on ARM, the names of its kinds of cores.
#[must_use]
pub fn cpu_model() -> Option<String> {
    model_of(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn model_of(cpuinfo: &str) -> Option<String> {
    let values = |key: &str| -> Vec<&str> {
        let entries = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        entries.filter(|(k, _)| k.trim() == key).map(|(_, v)| v.trim()).collect()
    };
    if let Some(name) = values("model name").first() {
        return Some((*name).to_string());
    }
    // ARM reports the numbers of implementers and parts. A board may have two kinds of cores.
    let mut names: Vec<String> = Vec::new();
    for (implementer, part) in values("CPU implementer").into_iter().zip(values("CPU part")) {
        let name = match (implementer, part) {
            ("0x41", "0xd03") => "Cortex-A53".to_string(),
            ("0x41", "0xd07") => "Cortex-A57".to_string(),
            ("0x41", "0xd08") => "Cortex-A72".to_string(),
            ("0x41", "0xd42") => "Cortex-A78AE".to_string(),
            ("0x4e", "0x003") => "Denver 2".to_string(),
            ("0x4e", "0x004") => "Carmel".to_string(),
            _ => format!("implementer {implementer} part {part}"),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| names.join(" + "))
}

/// Returns the number of cores that this process may use, or one if the system does not report it.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads the caches of the first core.
#[must_use]
pub fn caches() -> Vec<Cache> {
    let mut caches = Vec::new();
    for index in 0..8 {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |name: &str| line(Path::new(&folder).join(name));
        if let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
            && let Ok(level) = level.parse()
        {
            caches.push(Cache { level, kind, size });
        }
    }
    caches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named() {
        assert_eq!(
            model_of("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n").as_deref(),
            Some("Some CPU @ 2 GHz")
        );
        let tx2 = "processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd07\n\nprocessor : 1\n\
                   CPU implementer\t: 0x4e\nCPU part\t: 0x003\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd07\n";
        assert_eq!(model_of(tx2).as_deref(), Some("Cortex-A57 + Denver 2"));
        assert_eq!(model_of(""), None);
    }
}
