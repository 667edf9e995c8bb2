//! Runs streams in control groups. Linux kills a process that exceeds its group's limit, instead of refusing memory.
//! Therefore a budget beyond the limit is refused before any allocation, and a run within the limit stays within it.
#![cfg(target_os = "linux")]

use crate::common::{Desk, noise, said, wait_for};
use std::path::{Path, PathBuf};
use std::process::Output;

/// A control group, of version 1 or 2, with a memory limit.
struct Group {
    path: PathBuf,
    /// Name of the file that contains the group's peak memory.
    peak: &'static str,
}

impl Group {
    /// Creates a group in `folder` with a limit of `limit` bytes.
    fn new(folder: &Path, name: &str, limit: usize) -> Group {
        let path = folder.join(format!("elsa-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let old = path.join("memory.limit_in_bytes").exists();
        let (most, peak) = match old {
            true => ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            false => ("memory.max", "memory.peak"),
        };
        let group = Group { path, peak };
        std::fs::write(group.path.join(most), limit.to_string()).unwrap();
        group
    }

    /// Runs the tool in the group.
    fn call(&self, desk: &Desk, line: &str) -> Output {
        let join = format!("echo $$ > {}/cgroup.procs", self.path.display());
        desk.start(&join, line).wait_with_output().unwrap()
    }

    /// Returns the group's peak memory, or `None` if the kernel does not report it.
    fn peak(&self) -> Option<usize> {
        std::fs::read_to_string(self.path.join(self.peak)).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_for("the end of the group", || std::fs::remove_dir(&self.path).is_ok());
    }
}

#[test]
#[ignore = "needs a folder in which it may make control groups: cargo xtask test --only host"]
fn budgets_are_those_of_the_control_group() {
    let folder = std::env::var_os("ELSA_TEST_GROUPS").map(PathBuf::from);
    let folder = folder.expect("ELSA_TEST_GROUPS names no folder; run cargo xtask test --only host");
    let desk = Desk::new();
    let rows = 40_000;
    desk.f32("q.npy", &[1, 1, rows, 64], &noise(1, rows * 64));
    desk.f32("k.npy", &[1, 1, 600, 64], &noise(2, 600 * 64));
    let line = "run --q @q.npy --k @k.npy --v @k.npy --threads 2";
    desk.ok(&format!("{line} --out @y0.npy"));
    let streamed = format!("{line} --out @y.npy --host-budget 48MiB");
    let budget = 48 << 20;

    // If the limit is below the budget, the error names the limit, and the tensors of the run are not allocated. The
    // limit is as low as half the budget, because pages of the program are charged to the group that first read them.
    let group = Group::new(&folder, "less", budget / 2);
    let output = group.call(&desk, &streamed);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{:?}: {text}", output.status);
    assert!(text.contains("--host-budget: 50331648 bytes; allowed: at most "), "{text}");
    assert!(!desk.path("y.npy").exists());
    if let Some(peak) = group.peak() {
        assert!(peak < 8 << 20, "{peak}");
    }
    drop(group);

    // If the limit equals the budget, the run yields the complete output within the limit.
    let limit = budget;
    let group = Group::new(&folder, "more", limit);
    let output = group.call(&desk, &format!("{streamed} --json"));
    assert_eq!(output.status.code(), Some(0), "{:?}: {}", output.status, said(&output));
    assert!(std::fs::read(desk.path("y.npy")).unwrap() == std::fs::read(desk.path("y0.npy")).unwrap());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let peak = report["peak_rss_bytes"].as_u64().unwrap() as usize;
    assert!(peak <= budget && peak > budget / 2, "{peak}: {report}");
    if let Some(peak) = group.peak() {
        assert!(peak <= limit && peak > budget / 2, "{peak} of {limit}");
    }
}
