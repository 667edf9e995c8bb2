//! Measures the memory that is still available to this process.
//!
//! Linux reserves addresses freely, and provides pages only on first use. When no pages are left, or a control group
//! has reached its limit, Linux kills a process instead of refusing memory. The program then cannot handle an error.
//! Therefore a plan queries the available memory first, and a run touches all its memory before it computes anything.
//!
//! **The naive way** reads the machine's free memory. **Why the code differs.**
//!
//! 1. *Memory that holds pages of files counts as free* (`MemAvailable`), because the system drops these pages on
//!    demand.
//! 2. *A control group and every group above it may have limits*, in version 2 (`memory.max`) or version 1
//!    (`memory.limit_in_bytes`). Inactive file pages that a group has read count as available.
//! 3. *A process has limits of its own* on its address space and its data (`ulimit -v`, `ulimit -d`). Beyond these
//!    limits the system refuses memory.
//! 4. *A file that is missing or has an unknown format imposes no limit.* Arithmetic saturates instead of wrapping.

use std::fs::File;
use std::io::Read;

/// Largest number of bytes read from a system file.
const LONGEST: u64 = 1 << 20;

/// Kind of limit on the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// The available memory of the machine.
    Machine,
    /// The limit of the process's control group (cgroup), or of a group above it.
    ControlGroup,
    /// The process's limit on its address space (`RLIMIT_AS`).
    AddressSpace,
    /// The process's limit on its data (`RLIMIT_DATA`).
    Data,
}

impl MemoryLimit {
    /// Returns the name of the limit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MemoryLimit::Machine => "MemAvailable of the machine",
            MemoryLimit::ControlGroup => "the memory limit of a control group",
            MemoryLimit::AddressSpace => "the limit on the address space (ulimit -v)",
            MemoryLimit::Data => "the limit on data (ulimit -d)",
        }
    }
}

/// The memory that is still available to this process, and the tightest limit on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Number of available bytes.
    pub bytes: u64,
    /// The limit that leaves the least memory. It determines `bytes`.
    pub limit: MemoryLimit,
}

/// Returns the memory that is still available to this process. The machine, the control groups of the process and the
/// limits of the process each leave an amount of memory. The result is the smallest of these amounts. Returns `None` if
/// the system reports none of these amounts. Systems other than Linux report none of them.
#[must_use]
pub fn available_memory() -> Option<AvailableMemory> {
    available_by(|path| {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// Returns the memory that is available to the process. `read` returns the text of the system file with a given path.
fn available_by(read: impl Fn(&str) -> Option<String>) -> Option<AvailableMemory> {
    let machine = read("/proc/meminfo").and_then(|text| machine(&text));
    let groups = read("/proc/self/cgroup").zip(read("/proc/self/mountinfo"));
    let groups = groups.map_or(Vec::new(), |(groups, mounts)| folders(&groups, &mounts));
    let group = groups.iter().filter_map(|group| group.room(&read)).min();
    let own = read("/proc/self/limits").zip(read("/proc/self/status"));
    let own = |limit: &str, used: &str| {
        let (limits, status) = own.as_ref()?;
        Some(soft_limit(limits, limit)?.saturating_sub(kilobytes(status, used)?))
    };
    [
        (machine, MemoryLimit::Machine),
        (group, MemoryLimit::ControlGroup),
        (own("Max address space", "VmSize"), MemoryLimit::AddressSpace),
        (own("Max data size", "VmData"), MemoryLimit::Data),
    ]
    .into_iter()
    .filter_map(|(bytes, limit)| Some(AvailableMemory { bytes: bytes?, limit }))
    .min_by_key(|found| found.bytes)
}

/// Returns the available memory of a machine in bytes, from the text of its `/proc/meminfo`. Kernels before 3.14 do not
/// report the available memory. For these kernels, the result is the sum of free pages and file pages.
fn machine(meminfo: &str) -> Option<u64> {
    let of = |name| kilobytes(meminfo, name);
    let old = || Some(of("MemFree")?.saturating_add(of("Buffers")?).saturating_add(of("Cached")?));
    of("MemAvailable").or_else(old)
}

/// Returns the number in the line `name:  N kB` of a text, converted to bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_whitespace();
    let (number, unit) = (words.next()?.parse::<u64>().ok()?, words.next()?);
    (unit == "kB").then(|| number.saturating_mul(1024))
}

/// Returns the soft limit in the line `name  SOFT  HARD  bytes` of `/proc/self/limits`; `None` if the limit is
/// `unlimited`.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The folder of a control group that may limit memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    path: String,
    /// Version of control groups: 1 or 2.
    version: u8,
}

impl Group {
    /// Returns the number of bytes that are still available to the group; `None` if the group has no limit.
    fn room(&self, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
        let (most, used, inactive) = match self.version {
            1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            _ => ("memory.max", "memory.current", "inactive_file"),
        };
        let file = |name: &str| read(&format!("{}/{name}", self.path));
        let number = |name| file(name)?.trim().parse::<u64>().ok();
        let (most, used) = (number(most)?, number(used)?);
        let stat = file("memory.stat").unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse().ok());
        Some(most.saturating_sub(used.saturating_sub(inactive.unwrap_or(0))))
    }
}

/// Returns the folders of a process's control groups and of all groups above them. `groups` and `mounts` are the texts
/// of its `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn folders(groups: &str, mounts: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // The fields of a line are `hierarchy:controllers:path`.
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = match (number, controllers) {
            ("0", "") => 2,
            _ if controllers.split(',').any(|name| name == "memory") => 1,
            _ => continue,
        };
        let Some((root, point)) = mounts.lines().find_map(|line| mount(line, version)) else { continue };
        // The mounted folder of the hierarchy may be the group or a folder above it. A group outside the mounted folder
        // has no files here; its path may contain `..`. In that case the mounted folder itself is used. It is above
        // that group or next to it.
        let below = match root.as_str() {
            "/" => Some(path),
            root => path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
        };
        let parts: Vec<&str> = below.unwrap_or_default().split('/').filter(|part| !part.is_empty()).collect();
        let depth = if parts.contains(&"..") { 0 } else { parts.len() };
        for depth in (0..=depth).rev() {
            let folders = parts.iter().take(depth).flat_map(|part| ["/", part]);
            let path = std::iter::once(point.trim_end_matches('/')).chain(folders).collect();
            found.push(Group { path, version });
        }
    }
    found
}

/// Returns the mounted folder and the mount point in a line of `/proc/self/mountinfo`. Returns `None` if the line does
/// not mount control groups, if its control groups have another version, or if they do not count memory.
fn mount(line: &str, version: u8) -> Option<(String, String)> {
    // The fields of a line are `number parent device ROOT POINT options [field]... - TYPE source OPTIONS`.
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
    let counts = match version {
        1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
        _ => kind == "cgroup2",
    };
    counts.then(|| (unescaped(root), unescaped(point)))
}

/// Unescapes a path of `mountinfo`, which encodes blank, tab, line feed and backslash as a backslash and an octal
/// number.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (code, character)| path.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:        8000 kB\nMemFree:          100 kB\nMemAvailable:    5000 kB\n\
        Buffers:           20 kB\nCached:          3000 kB\n";
    const MOUNTS: &str = "25 30 0:23 / /proc rw - proc proc rw\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    /// Returns the available memory of a process on a system that has the system files `files`.
    fn of(files: &[(&str, &str)]) -> Option<AvailableMemory> {
        available_by(|path| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files of the system")]
    fn this_machine_has_memory() {
        if cfg!(target_os = "linux") {
            let found = available_memory().unwrap();
            assert!(found.bytes > 1 << 20 && found.bytes < 1 << 50, "{found:?}");
            assert!(!found.limit.name().is_empty());
        }
    }

    #[test]
    fn the_machine_says_what_is_left() {
        assert_eq!(machine(MEMINFO), Some(5000 << 10));
        let old = MEMINFO.replace("MemAvailable:    5000 kB\n", "");
        assert_eq!(machine(&old), Some(3120 << 10));
        let found = of(&[("/proc/meminfo", MEMINFO)]);
        assert_eq!(found, Some(AvailableMemory { bytes: 5000 << 10, limit: MemoryLimit::Machine }));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_least_of_all_groups_counts() {
        let base = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/mountinfo", MOUNTS),
            ("/proc/self/cgroup", "4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/x/y\n"),
        ];
        let with = |files: &[(&'static str, &'static str)]| {
            let all: Vec<_> = base.iter().chain(files).copied().collect();
            let found = of(&all).unwrap();
            (found.bytes, found.limit)
        };
        let group = MemoryLimit::ControlGroup;
        let v1 = "/sys/fs/cgroup/memory/a/memory.limit_in_bytes";
        let used = "/sys/fs/cgroup/memory/a/memory.usage_in_bytes";
        assert_eq!(with(&[(v1, "70000\n"), (used, "20000\n")]), (50_000, group));
        let stat = ("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 5000\n");
        assert_eq!(with(&[(v1, "70000\n"), (used, "20000\n"), stat]), (55_000, group));
        // A group may use more memory than its limit, or have more file pages than memory in use.
        assert_eq!(with(&[(v1, "70000\n"), (used, "90000\n")]), (0, group));
        assert_eq!(with(&[(v1, "70000\n"), (used, "1000\n"), stat]), (70_000, group));
        let unlimited = with(&[(v1, "9223372036854771712\n"), (used, "20000\n")]);
        assert_eq!(unlimited, (5000 << 10, MemoryLimit::Machine));
        // In version 2, both the process's group and the group at the mount point may have a limit.
        let (own_max, own_now) =
            ("/sys/fs/cgroup/unified/x/y/memory.max", "/sys/fs/cgroup/unified/x/y/memory.current");
        let (top_max, top_now) =
            ("/sys/fs/cgroup/unified/memory.max", "/sys/fs/cgroup/unified/memory.current");
        let both = [(own_max, "max\n"), (own_now, "7\n"), (top_max, "4096\n"), (top_now, "96\n")];
        assert_eq!(with(&both), (4000, group));
        let both = [(own_max, "3000\n"), (own_now, "7\n"), (top_max, "4096\n"), (top_now, "96\n")];
        assert_eq!(with(&both), (2993, group));
    }

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let paths = |groups: &str, mounts: &str| -> Vec<String> {
            folders(groups, mounts).into_iter().map(|group| group.path).collect()
        };
        let memory = "/sys/fs/cgroup/memory";
        assert_eq!(
            paths("4:memory:/a/b\n", MOUNTS),
            [format!("{memory}/a/b"), format!("{memory}/a"), memory.to_owned()]
        );
        // In a container, the mounted folder is the container's own group.
        let inner = "9 8 0:1 /docker/f /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(paths("0::/docker/f/x\n", inner), ["/sys/fs/cgroup/x", "/sys/fs/cgroup"]);
        assert_eq!(paths("0::/docker/fx\n", inner), ["/sys/fs/cgroup"]);
        assert_eq!(paths("0::/../../other\n", inner), ["/sys/fs/cgroup"]);
        let blank = "9 8 0:1 / /with\\040blank rw - cgroup2 cgroup rw\n";
        assert_eq!(paths("0::/\n", blank), ["/with blank"]);
        assert_eq!(paths("5:cpu:/a\n", MOUNTS), Vec::<String>::new());
    }

    #[test]
    fn a_process_has_limits_of_its_own() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max data size             unlimited            unlimited            bytes     \n\
            Max address space         9000000              unlimited            bytes     \n";
        let status = "Name:\telsa\nVmPeak:\t  5000 kB\nVmSize:\t  4000 kB\nVmData:\t  300 kB\n";
        let files = [
            ("/proc/meminfo", "MemAvailable: 99999999 kB\n"),
            ("/proc/self/limits", limits),
            ("/proc/self/status", status),
        ];
        let left = 9_000_000 - (4000 << 10);
        assert_eq!(of(&files), Some(AvailableMemory { bytes: left, limit: MemoryLimit::AddressSpace }));
        let data = limits.replace("data size             unlimited", "data size             307201");
        let files = [files[0], ("/proc/self/limits", &data), files[2]];
        assert_eq!(of(&files), Some(AvailableMemory { bytes: 1, limit: MemoryLimit::Data }));
    }

    #[test]
    fn damaged_files_limit_nothing() {
        let texts = [
            "",
            "\0\0",
            "MemAvailable:",
            "MemAvailable: -5 kB",
            "MemAvailable: 5 MB",
            "0::",
            ":::",
            "4:memory",
        ];
        for text in texts {
            assert_eq!(machine(text), None, "{text:?}");
            assert_eq!(folders(text, text), [], "{text:?}");
            assert_eq!(soft_limit(text, "Max address space"), None);
        }
        assert_eq!(machine("MemAvailable: 18446744073709551615 kB"), Some(u64::MAX));
        assert_eq!(machine("MemAvailable: 99999999999999999999 kB"), None);
        for line in ["", " - ", "a b c - cgroup2", "1 2 3 / - cgroup2 x y", "1 2 3 / /p rw - ext4 x memory"] {
            assert_eq!(mount(line, 2), None, "{line:?}");
            assert_eq!(mount(line, 1), None, "{line:?}");
        }
        let group = Group { path: "/g".to_owned(), version: 2 };
        for text in ["", "max", "-1", "1e9", "12 34"] {
            assert_eq!(group.room(|_| Some(text.to_owned())), None, "{text:?}");
        }
    }
}
