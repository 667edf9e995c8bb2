//! Finds the folder in which tests on this machine can create control groups that limit memory.

use std::path::{Path, PathBuf};

/// Mount points of memory control groups, version 1 and version 2.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// Returns the folder in which memory control groups can be created.
///
/// # Errors
/// Returns the reason if there is no such folder.
pub fn folder() -> Result<PathBuf, String> {
    let tried = MOUNTS.map(|mount| (mount, limits(Path::new(mount))));
    if let Some((mount, _)) = tried.iter().find(|(_, found)| found.is_ok()) {
        return Ok(PathBuf::from(mount));
    }
    let why = tried.into_iter().filter_map(|(mount, found)| Some(format!("{mount}: {}", found.err()?)));
    Err(why.collect::<Vec<_>>().join(", "))
}

/// Checks that a control group can be created in `folder`, and that control groups in this folder limit memory.
fn limits(folder: &Path) -> Result<(), String> {
    let group = folder.join(format!("elsa-probe-{}", std::process::id()));
    std::fs::create_dir(&group).map_err(|e| e.to_string())?;
    let limited = ["memory.limit_in_bytes", "memory.max"].iter().any(|name| group.join(name).exists());
    std::fs::remove_dir(&group).map_err(|e| e.to_string())?;
    if limited { Ok(()) } else { Err("its groups do not limit memory".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_folder_limits_nothing() {
        let here = std::env::temp_dir();
        assert_eq!(limits(&here), Err("its groups do not limit memory".into()));
        assert!(limits(&here.join("there/is/none")).is_err());
    }
}
