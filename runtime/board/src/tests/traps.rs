//! Compares the results of this crate with the results of a program that trusts all files. Both read the misleading
//! files of each board.

use super::tree::{self, OWN, Tree};
use crate::clocks;
use crate::describe::{Description, describe};
use crate::rails::{self, Meter, Place};
use crate::sources::Sources;
use crate::throttle::Throttle;
use crate::zones;
use elsa_core::telemetry::record::Start;
use std::time::{Duration, Instant};

fn described(tree: &Tree) -> Description {
    describe(&tree.root())
}

/// Finds the temperature of the hottest zone as a program that trusts every file does.
fn naive_hottest(tree: &Tree) -> f64 {
    let root = tree.root();
    let names = root.entries("sys/devices/virtual/thermal");
    let all = names.iter().map(|name| tree.number(&format!("sys/devices/virtual/thermal/{name}/temp")) / 1e3);
    all.fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn a_power_chip_that_says_100_degrees_is_no_zone() {
    for (tree, name, celsius) in [(tree::tx2(), "GPU-therm", 44.0), (tree::nano(), "AO-therm", 39.0)] {
        let found = described(&tree);
        let (zones, _) = zones::find(&tree.root());
        let (place, hottest) = zones::hottest(&zones).unwrap();
        assert_eq!((zones[place].name.as_str(), hottest), (name, celsius));
        assert_eq!(found.zones_left_out, ["PMIC-Die"]);
        assert!(found.zones.iter().all(|zone| zone.name != "PMIC-Die"));
        assert_eq!(naive_hottest(&tree), 100.0);
    }
    // On a Xavier, PMIC-Die reports 50 °C, which no range of plausible temperatures excludes.
    let tree = tree::xavier();
    let (zones, left_out) = zones::find(&tree.root());
    assert_eq!(zones::hottest(&zones).unwrap().1, 35.0);
    assert_eq!((left_out, naive_hottest(&tree)), (vec!["PMIC-Die".to_owned()], 50.0));
}

#[test]
fn a_sensor_that_is_off_has_no_temperature() {
    let tree = tree::orin();
    let found = described(&tree);
    let off = found.zones.iter().find(|zone| zone.name == "cv0-thermal").unwrap();
    assert_eq!(off.temp_c, None);
    assert_eq!(tree.number("sys/class/thermal/thermal_zone1/temp"), -256_000.0);
    // A sensor that is off would spoil the lowest temperature and the mean with −256 °C, and the highest with 256 °C.
    tree.put("sys/class/thermal/thermal_zone1/temp", "256000\n");
    let (zones, _) = zones::find(&tree.root());
    let (place, celsius) = zones::hottest(&zones).unwrap();
    assert_eq!(
        (zones[place].name.as_str(), celsius, zones[place].passive_c),
        ("tj-thermal", 46.5, Some(95.0))
    );
    assert_eq!(naive_hottest(&tree), 256.0);
}

#[test]
fn every_core_that_is_on_counts_and_no_other() {
    let tree = tree::tx2();
    let found = described(&tree);
    assert_eq!(found.cores_off, ["cpu1", "cpu2"]);
    let names: Vec<&str> = found.cores.iter().map(|core| core.name.as_str()).collect();
    assert_eq!(names, ["cpu0", "cpu3", "cpu4", "cpu5"]);
    let slow = Sources::find(&tree.root(), OWN).slow();
    assert_eq!((slow.slowest, slow.fastest, slow.on), (Some(345.6), Some(2035.2), 4));
    // Including offline cores would change the slowest clock. Reading only the first core would hide the fastest clock.
    assert_eq!(tree.number("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq"), 115_200.0);
    assert_eq!(tree.number("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"), 345_600.0);
}

#[test]
fn a_core_that_goes_off_is_seen() {
    let tree = tree::xavier();
    let mut sources = Sources::find(&tree.root(), OWN);
    assert_eq!(sources.slow().on, 8);
    tree.put("sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq", "");
    assert_eq!(sources.slow().on, 7);
}

#[test]
fn gpus_are_found_by_their_name_in_the_device_tree() {
    let found = [tree::tx2(), tree::nano(), tree::xavier(), tree::orin(), tree::pc()]
        .map(|tree| described(&tree).gpu.map(|gpu| (gpu.name, gpu.mhz.unwrap())));
    let expected = [("gp10b", 1122.0), ("gpu", 921.6), ("gv11b", 1377.0), ("gpu", 1020.0)];
    for (found, (name, mhz)) in found.iter().zip(expected) {
        assert_eq!(*found, Some((name.to_owned(), mhz)));
    }
    assert_eq!(found[4], None);
    // The first device with a clock is not the GPU, and the GPU's folder has similar names on a Nano and an Orin.
    assert_eq!(tree::tx2().root().entries("sys/class/devfreq")[0], "15340000.vic");
    assert_eq!(described(&tree::tx2()).gpu_load, Some(0.42));
}

#[test]
fn the_memory_clock_is_found_where_each_board_has_it() {
    let emc = |tree: &Tree| described(tree).emc.and_then(|emc| emc.mhz);
    assert_eq!(
        [tree::tx2(), tree::nano(), tree::xavier()].map(|tree| emc(&tree)),
        [Some(1866.0), Some(1600.0), Some(2133.0)]
    );
    assert!(!tree::nano().root().path("sys/kernel/debug/bpmp").exists());
    // The power mode limits the memory clock below the chip's maximum.
    let tree = tree::tx2();
    tree.put("sys/kernel/nvpmodel_emc_cap/emc_iso_cap", "1331200000\n");
    assert_eq!(described(&tree).emc.unwrap().max_mhz, Some(1331.2));
}

#[test]
fn closed_files_are_no_zeros_and_say_why() {
    let tree = tree::orin();
    let found = described(&tree);
    assert_eq!(found.emc, None);
    let note = found.notes.iter().find(|note| note.starts_with("memory clock")).unwrap();
    assert!(
        note.contains("/sys/kernel/debug/bpmp/debug/clk/emc/rate") && note.ends_with("readable as root"),
        "{note}"
    );
    assert!(!note.contains(tree.folder().to_str().unwrap()), "{note}");
    assert_eq!(Sources::find(&tree.root(), OWN).slow().emc, None);
    // A program that reads an unreadable file as 0 would report a clock of 0.
    assert_eq!(tree.root().number("sys/kernel/debug/bpmp/debug/clk/emc/rate").unwrap_or(0), 0);
    // A PC has no such clock, and no note mentions it.
    assert!(described(&tree::pc()).notes.iter().all(|note| !note.contains("memory")));
}

#[test]
fn the_total_counts_nothing_twice() {
    // Only the input rail counts. The rails that it feeds, the rails of the carrier, and the folder's other spelling do
    // not count.
    let tree = tree::tx2();
    let found = described(&tree);
    assert_eq!(found.total, ["VDD_IN"]);
    let counted: f64 = found.rails.iter().filter(|rail| rail.total).filter_map(|rail| rail.power_mw).sum();
    let naive: f64 = found.rails.iter().filter_map(|rail| rail.power_mw).sum();
    assert_eq!((counted, naive), (1649.0, 153.0 + 306.0 + 1649.0 + 306.0 + 173.0 + 3046.0 + 500.0 + 107.0));
    assert_eq!(found.rails.iter().filter(|rail| rail.name == "VDD_IN").count(), 1);
    let carrier: Vec<&str> = found
        .rails
        .iter()
        .filter(|rail| rail.place == Place::Carrier)
        .map(|rail| rail.name.as_str())
        .collect();
    assert_eq!(carrier, ["VDD_MUX", "VDD_5V0_IO_SYS", "VDD_1V8_IO"]);
    // Each spelling is found alone.
    for spelling in ["iio:device1", "iio_device"] {
        let tree = tree::tx2();
        tree.remove("sys/bus/i2c/devices/0-0041/iio:device1");
        let folder = tree.folder().join("sys/bus/i2c/devices/0-0041");
        std::fs::rename(folder.join("iio_device"), folder.join(spelling)).unwrap();
        assert_eq!(described(&tree).total, ["VDD_IN"], "{spelling}");
    }
    // No rail counts towards the total if the module's chips are missing.
    let tree = tree::tx2();
    for chip in ["0-0040", "0-0041"] {
        tree.remove(&format!("sys/bus/i2c/devices/{chip}/name"));
    }
    assert!(Meter::find(&tree.root()).is_none() && !described(&tree).rails.is_empty());
}

#[test]
fn without_an_input_the_total_is_the_sum_of_the_module() {
    let tree = tree::xavier();
    let found = described(&tree);
    assert_eq!(found.total, ["GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"]);
    let now = Instant::now();
    let power = Meter::find(&tree.root()).unwrap().read(now).unwrap().milliwatts;
    let expected = 19.136 * (100.0 + 40.0 + 80.0 + 0.0 + 16.0 + 100.0);
    assert!((power - expected).abs() < 1e-6, "{power}");
    // The seventh channel would count the currents a second time.
    let sums = 2.0 * 0.040 * 9000.0;
    assert!(found.rails.iter().all(|rail| !rail.name.contains("sum")) && sums > 100.0);
    // A channel that is not connected is not a rail, either.
    let orin = described(&tree::orin());
    let names: Vec<&str> = orin.rails.iter().map(|rail| rail.name.as_str()).collect();
    assert_eq!(names, ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC", "VDDQ_VDD2_1V8AO"]);
    assert_eq!(orin.total, ["VDD_IN"]);
}

#[test]
fn parts_are_rails_of_the_module_below_its_input() {
    let parts = [tree::tx2(), tree::nano(), tree::xavier(), tree::orin(), tree::pc()].map(|tree| {
        let sources = Sources::find(&tree.root(), OWN);
        sources.parts.map(|rail| rail.map_or(String::new(), |rail| rail.name))
    });
    let expected = [
        ["VDD_SYS_GPU", "VDD_SYS_CPU"],
        ["POM_5V_GPU", "POM_5V_CPU"],
        ["", ""],
        ["VDD_CPU_GPU_CV", ""],
        ["", ""],
    ];
    assert_eq!(parts, expected);
    let tree = tree::tx2();
    assert_eq!(Sources::find(&tree.root(), OWN).slow().parts, [Some(153.0), Some(306.0)]);
}

#[test]
fn power_moves_in_steps_of_the_chip() {
    // A step is 4 mA (40 µV across 10 mΩ) at 19.064 V, plus 8 mV at 86 mA.
    let step = Meter::find(&tree::tx2().root()).unwrap().step().unwrap();
    assert!((step - (19.064 * 4.0 + 0.086 * 8.0)).abs() < 1e-9, "{step}");
    // A step is 8 mA (40 µV across 5 mΩ) at 4.984 V, plus 8 mV at 1856 mA.
    let step = Meter::find(&tree::orin().root()).unwrap().step().unwrap();
    assert!((step - (4.984 * 8.0 + 1.856 * 8.0)).abs() < 1e-9, "{step}");
    let tree = tree::tx2();
    tree.remove("sys/bus/i2c/devices/0-0041/of_node/channel@0/ti,shunt-resistor-mohm");
    assert_eq!(Meter::find(&tree.root()).unwrap().step(), None);
}

#[test]
fn repeated_readings_are_no_readings() {
    let tree = tree::tx2();
    let mut meter = Meter::find(&tree.root()).unwrap();
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut fresh = 0;
    for tick in 0..100 {
        // Every tenth reading is a new conversion.
        tree.put(
            "sys/bus/i2c/devices/0-0041/iio_device/in_power0_input",
            format!("{}\n", 1600 + tick / 10 % 2),
        );
        fresh += u32::from(meter.read(at(20 * tick)).unwrap().fresh);
    }
    assert_eq!(fresh, 10, "of 100 reads");
    // If the chip reports its conversion time, a value that is read after that time is new even if it equals the
    // previous value.
    let mut meter = Meter::find(&tree::orin().root()).unwrap();
    let fresh: u32 = (0..100).map(|tick| u32::from(meter.read(at(20 * tick)).unwrap().fresh)).sum();
    assert_eq!(fresh, 50, "every 30 ms, looked at every 20 ms");
}

#[test]
fn energy_counters_wrap_and_overlap() {
    let tree = tree::pc();
    let mut meter = Meter::find(&tree.root()).unwrap();
    assert_eq!(meter.names(), ["package-0", "dram"]);
    let start = Instant::now();
    assert_eq!(meter.read(start), None);
    let set = |folder: &str, uj: u64| {
        tree.put(&format!("sys/class/powercap/{folder}/energy_uj"), format!("{uj}\n"))
    };
    for folder in ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl-mmio:0"] {
        set(folder, 171_150);
    }
    set("intel-rapl:0:1", 262_143_100_000);
    // The package used 328850 µJ before its counter wrapped and 171150 µJ afterwards. The memory used 100000 µJ. The
    // sum is 600 mJ in 0.1 s.
    let power = meter.read(start + Duration::from_millis(100)).unwrap();
    assert!((power.milliwatts - 6000.0).abs() < 1e-6 && power.fresh, "{power:?}");
    let naive = 171_150.0 - 262_143_000_000.0 + 100_000.0;
    assert!(naive < 0.0);
    let power = meter.read(start + Duration::from_millis(200)).unwrap();
    assert_eq!((power.milliwatts, power.fresh), (0.0, false));
    // If a read fails, the time and the energy until the next successful read are not counted.
    tree.put("sys/class/powercap/intel-rapl:0/energy_uj", "");
    assert_eq!(meter.read(start + Duration::from_millis(300)), None);
    set("intel-rapl:0", 271_150);
    assert_eq!(meter.read(start + Duration::from_millis(400)), None);
    set("intel-rapl:0", 371_150);
    let power = meter.read(start + Duration::from_millis(500)).unwrap();
    assert!((power.milliwatts - 1000.0).abs() < 1e-6, "{power:?}");
    // Only root can read the counters.
    for folder in ["intel-rapl:0", "intel-rapl:0:1"] {
        tree.remove(&format!("sys/class/powercap/{folder}/energy_uj"));
        tree.link(&format!("sys/class/powercap/{folder}/energy_uj"), "energy_uj");
    }
    assert!(Meter::find(&tree.root()).is_none());
    let notes = described(&tree).notes;
    assert!(
        notes.iter().any(|note| note.starts_with("power: /sys/class/powercap/intel-rapl:0/energy_uj")),
        "{notes:?}"
    );
}

#[test]
fn a_counter_of_events_that_wraps_has_counted() {
    let tree = tree::orin();
    let mut throttle = Throttle::find(&tree.root());
    assert_eq!(throttle.look().events, 0, "what was before is not of the cell");
    assert_eq!(throttle.look().events, 0);
    let file = "sys/class/hwmon/hwmon3/oc3_event_cnt";
    let before = tree.number(file);
    tree.put(file, "1\n");
    assert_eq!(throttle.look().events, 2);
    assert!(tree.number(file) < before, "a program that asks whether it grew sees nothing");
    // Some drivers print the counter as a signed number.
    tree.put(file, "-1\n");
    assert_eq!(throttle.look().events, u64::from(u32::MAX) - 1);
    tree.put(file, "0\n");
    assert_eq!(throttle.look().events, 1);
    // A counter that once cannot be read loses no events.
    tree.put(file, "");
    assert_eq!(throttle.look().events, 0);
    tree.put(file, "5\n");
    assert_eq!(throttle.look().events, 5);
}

#[test]
fn fans_slow_nothing_down() {
    let tree = tree::tx2();
    let mut throttle = Throttle::find(&tree.root());
    assert!(!throttle.look().held && throttle.cools() && !throttle.counts());
    assert_eq!(tree.number("sys/class/thermal/cooling_device0/cur_state"), 3.0, "a fan is at work");
    tree.put("sys/class/thermal/cooling_device1/cur_state", "1\n");
    assert!(throttle.look().held);
    let mut throttle = Throttle::find(&tree::pc().root());
    assert!(!throttle.look().held && throttle.counts());
}

#[test]
fn alarms_and_older_names_of_counters_are_found() {
    let tree = tree::xavier();
    let mut throttle = Throttle::find(&tree.root());
    let sign = throttle.look();
    assert!(sign.counted && sign.events == 0 && !sign.alarm && !sign.held);
    tree.put("sys/class/hwmon/hwmon4/oc3_irq_cnt", "9\n");
    tree.put("sys/class/hwmon/hwmon2/curr1_crit_alarm", "1\n");
    let sign = throttle.look();
    assert_eq!((sign.events, sign.alarm), (2, true));
}

#[test]
fn fixed_clocks_are_told_by_their_limits() {
    let told = [tree::tx2(), tree::nano(), tree::xavier(), tree::orin(), tree::pc()]
        .map(|tree| described(&tree).jetson_clocks);
    assert_eq!(told, [Some(false), Some(true), Some(true), Some(true), None]);
    // One clock that is not fixed makes the result `Some(false)`.
    let moves = [
        ("sys/devices/system/cpu/cpu2/cpufreq/scaling_min_freq", "0102000\n"),
        ("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "0102000\n"),
        ("sys/class/devfreq/57000000.gpu/min_freq", "76800000\n"),
        ("sys/kernel/debug/clk/override.emc/clk_rate", "204000000\n"),
    ];
    for (file, value) in moves {
        let tree = tree::nano();
        tree.put(file, value);
        assert_eq!(described(&tree).jetson_clocks, Some(false), "{file}");
    }
    // A limit that cannot be read makes the result unknown.
    let tree = tree::nano();
    tree.remove("sys/devices/system/cpu/cpu2/cpufreq/scaling_min_freq");
    assert_eq!(described(&tree).jetson_clocks, None);
    assert_eq!(clocks::fixed([]), None);
}

#[test]
fn boards_are_described() {
    let of = |tree: &Tree| {
        let found = described(tree);
        let mode = found.power_mode.map(|mode| mode.to_string()).unwrap_or_default();
        (found.board.unwrap_or_default(), found.target, found.l4t.unwrap_or_default(), found.jetpack, mode)
    };
    let tx2 = of(&tree::tx2());
    assert_eq!(
        tx2,
        ("quill".into(), Some("jetson-tx2"), "32.7.1".into(), Some("4.6.1"), "3 MAXP_ARM".into())
    );
    let orin = of(&tree::orin());
    let model = "NVIDIA Jetson Orin Nano Developer Kit";
    assert_eq!(
        orin,
        (model.into(), Some("jetson-orin"), "36.4.3".into(), Some("6.2"), "2 MAXN_SUPER".into())
    );
    assert_eq!(of(&tree::xavier()).1, Some("jetson-xavier"));
    assert_eq!(of(&tree::nano()).4, "0 MAXN");
    assert_eq!(of(&tree::pc()), (String::new(), None, String::new(), None, String::new()));

    let mut start = Start::default();
    described(&tree::tx2()).fill(&mut start);
    assert_eq!(start.nvpmodel.as_deref(), Some("3 MAXP_ARM"));
    assert_eq!((start.jetson_clocks, start.governor.as_deref()), (Some(false), Some("schedutil")));
    assert!(!start.emulated);
    let tree = tree::tx2();
    tree.link("proc/thread-self/exe", "/usr/bin/qemu-aarch64-static");
    assert!(described(&tree).emulated);
}

#[test]
fn an_empty_machine_is_described_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let root = crate::Root::new(folder.path());
    let found = describe(&root);
    let notes = found.notes.clone();
    assert_eq!(found, Description { notes, ..Description::default() });
    let mut sources = Sources::find(&root, OWN);
    assert_eq!(sources.slow(), Default::default());
    assert_eq!(sources.power(Instant::now()), None);
    assert!(rails::find(&root).is_empty());
}
