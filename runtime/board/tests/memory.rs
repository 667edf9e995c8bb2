//! Checks that the thread that watches a board allocates nothing, because its allocations would count as those of the
//! measured call. Also checks that the memory of the process does not grow with the length of the watch.
#![allow(clippy::unwrap_used)]

use elsa_board::{Monitor, Root};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Files of a board, one for each kind that the monitor reads.
const FILES: [(&str, &str); 21] = [
    ("etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n"),
    ("proc/stat", "cpu  10 0 10 90 0 0 0 0 0 0\ncpu0 10 0 10 90 0 0 0 0 0 0\n"),
    ("proc/7/stat", "7 (elsa) R 1 1 1 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 5\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/curr1_input", "1856\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/in1_input", "4984\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/in1_label", "VDD_IN\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/curr2_input", "100\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/in2_input", "4984\n"),
    ("sys/bus/i2c/devices/1-0040/hwmon/hwmon1/in2_label", "VDD_CPU_GPU_CV\n"),
    ("sys/bus/i2c/devices/1-0040/name", "ina3221\n"),
    ("sys/class/devfreq/17000000.gpu/cur_freq", "1020000000\n"),
    ("sys/class/devfreq/17000000.gpu/device/load", "500\n"),
    ("sys/class/devfreq/17000000.gpu/device/of_node/name", "gpu\0"),
    ("sys/class/hwmon/hwmon3/name", "soctherm_oc\n"),
    ("sys/class/hwmon/hwmon3/oc1_event_cnt", "1\n"),
    ("sys/class/thermal/cooling_device0/cur_state", "0\n"),
    ("sys/class/thermal/cooling_device0/type", "cpufreq-cpu0\n"),
    ("sys/class/thermal/thermal_zone0/temp", "46000\n"),
    ("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n"),
    ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1728000\n"),
    ("sys/kernel/debug/bpmp/debug/clk/emc/rate", "2133000000\n"),
];

/// Returns the resident memory of this process, with the resolution of a page.
fn resident() -> i64 {
    let sums = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = sums.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<i64>().unwrap() * 1024
}

#[test]
fn watching_allocates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (file, contents) in FILES {
        let path: &Path = &folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    let period = Duration::from_micros(200);
    let monitor = Monitor::with_periods(&Root::new(folder.path()), 7, period, period);
    let span = monitor.open();
    // Waits until the thread has taken `many` points, without allocating anything itself.
    let points = |many: usize| {
        let time = || monitor.latest().map(|point| point.t_s);
        let start = Instant::now();
        for _ in 0..many {
            let before = time();
            while time() == before {
                assert!(start.elapsed() < Duration::from_secs(60), "nobody watches");
                std::thread::sleep(period);
            }
        }
    };
    // The thread allocates only at its start, before its first points.
    points(5);
    let counted = INSTRUMENTED_SYSTEM.stats();
    points(50);
    let change = INSTRUMENTED_SYSTEM.stats() - counted;
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");

    // Neither the stored points nor the allocations grow with the run.
    let before = (resident(), INSTRUMENTED_SYSTEM.stats());
    points(500);
    for _ in 0..1000 {
        let _ = monitor.close(monitor.open(), 1);
        assert!(monitor.trace(f64::INFINITY, 1.0).is_empty());
    }
    let grown = resident() - before.0;
    assert!(grown < 64 << 10, "{grown} bytes");
    let change = INSTRUMENTED_SYSTEM.stats() - before.1;
    let kept = change.bytes_allocated - change.bytes_deallocated;
    let per_call = (change.bytes_allocated / 1000, change.allocations / 1000);
    assert!(kept < 4096 && per_call.0 < 1024 && per_call.1 < 8, "{change:?}");

    let readings = monitor.close(span, 1);
    assert_eq!(
        (readings.temp_c, readings.cpu_mhz, readings.gpu_mhz),
        (Some(46.0), Some(1728.0), Some(1020.0))
    );
    assert!(readings.power_mw.is_some() && readings.parts_mw[0].is_some() && readings.emc_mhz.is_some());
}
