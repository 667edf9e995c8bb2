//! Tests of the disturbances that invalidate a cell, and of the messages about them.

use super::tree::{self, OWN};
use crate::describe::{Description, describe};
use crate::gate::{Limits, judge, quiet};
use crate::inclusion::{Inclusion, inclusions};
use crate::load::{Busy, Others};
use crate::monitor::Monitor;
use crate::release::PowerMode;
use crate::tally::Readings;
use elsa_core::telemetry::record::Throttling;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn jetson() -> Description {
    let power_mode = Some(PowerMode { id: 3, name: None });
    Description { l4t: Some("32.7.1".into()), power_mode, ..Description::default() }
}

fn texts(machine: &Description, cell: &Readings, gpu: bool) -> Vec<String> {
    judge(machine, cell, gpu, &Limits::default()).iter().map(|mark| mark.to_string()).collect()
}

#[test]
fn each_reason_has_its_own_mark_and_cure() {
    let others = |load, stolen| Some(Others { load, stolen, error: 0.03 });
    let busiest = Some(Busy { pid: 77, name: "cc1".into(), load: 0.8 });
    let cell = Readings { cores_on: (4, 4), ..Readings::default() };
    let cases: [(Readings, &str); 10] = [
        (
            Readings { others: others(0.9, 0.0), busiest, ..cell.clone() },
            "others take 0.90 cores, most by cc1 (77); close cc1",
        ),
        (
            Readings { others: others(0.5, 0.0), ..cell.clone() },
            "others take 0.50 cores; close other programs",
        ),
        (
            Readings { others: others(0.0, 0.2), ..cell.clone() },
            "the hypervisor takes 0.20 cores; run while its host is idle",
        ),
        (
            Readings { throttled: Throttling::Seen, throttle_events: 5, ..cell.clone() },
            "the board slowed itself down 5 times; let it cool, and check its supply",
        ),
        (
            Readings {
                temp_c: Some(94.0),
                temp_zone: Some("tj".into()),
                passive_c: Some(95.0),
                ..cell.clone()
            },
            "tj is at 94 °C, above 93; let it cool",
        ),
        (
            Readings { temp_c: Some(91.0), temp_zone: Some("tj".into()), ..cell.clone() },
            "tj is at 91 °C, above 90; let it cool",
        ),
        (
            Readings { cpu_limits_mhz: Some((2035.2, 1200.0)), ..cell.clone() },
            "the CPU's highest clock went from 2035 to 1200 MHz; sudo nvpmodel -m 3",
        ),
        (Readings { cores_on: (2, 4), ..cell.clone() }, "of 4 cores, 2 stayed on; sudo nvpmodel -m 3"),
        (
            Readings { cpu_range_mhz: Some((345.6, 2035.2)), ..cell.clone() },
            "the CPU's clock moved between 346 and 2035 MHz; sudo jetson_clocks",
        ),
        (
            Readings { emc_range_mhz: Some((800.0, 1866.0)), ..cell.clone() },
            "the memory's clock moved between 800 and 1866 MHz; sudo jetson_clocks",
        ),
    ];
    for (cell, expected) in &cases {
        assert_eq!(texts(&jetson(), cell, false), [*expected]);
    }
    let gpu = Readings { gpu_range_mhz: Some((114.0, 1300.0)), ..cell };
    assert_eq!(
        texts(&jetson(), &gpu, true),
        ["the GPU's clock moved between 114 and 1300 MHz; sudo jetson_clocks"]
    );
    assert!(texts(&jetson(), &gpu, false).is_empty(), "the GPU did not compute");
    let pc = texts(&Description::default(), &gpu, true);
    assert_eq!(pc, ["the GPU's clock moved between 114 and 1300 MHz; set the governor performance"]);
}

#[test]
fn what_is_within_the_limits_or_unknown_is_clean() {
    let clean = Readings {
        others: Some(Others { load: 0.12, stolen: 0.12, error: 0.03 }),
        throttled: Throttling::Unknown,
        temp_c: Some(92.9),
        passive_c: Some(95.0),
        cpu_limits_mhz: Some((2035.2, 2035.2)),
        cpu_range_mhz: Some((1990.0, 2035.2)),
        gpu_range_mhz: Some((0.0, 0.0)),
        ..Readings::default()
    };
    assert!(texts(&jetson(), &clean, true).is_empty());
    assert!(texts(&jetson(), &Readings::default(), true).is_empty());
    // The time is so short that whole ticks prove nothing.
    let short =
        Readings { others: Some(Others { load: 2.9, stolen: 0.0, error: 3.0 }), ..Readings::default() };
    assert!(texts(&jetson(), &short, true).is_empty());
}

#[test]
fn a_machine_is_waited_for_until_it_is_quiet() {
    let tree = tree::pc();
    let monitor =
        Monitor::with_periods(&tree.root(), OWN, Duration::from_millis(5), Duration::from_millis(5));
    let limits = Limits { look: Duration::from_millis(10), ..Limits::default() };
    let machine = describe(&tree.root());
    assert_eq!(quiet(&monitor, &machine, &limits, Duration::ZERO), Ok(()));
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut ticks = 1000;
            while busy.load(Ordering::Relaxed) {
                ticks += 10_000;
                tree.times(4, [ticks, 100, 0], 500);
                tree.process(77, "make", ticks);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // A check may fall between two changes of the files and find no load, so it is repeated.
        let disturbed = |_| quiet(&monitor, &machine, &limits, Duration::ZERO).err();
        let mark = (0..1000).filter_map(disturbed).flatten().find(|mark| mark.process.is_some());
        assert_eq!(mark.and_then(|mark| mark.process), Some((77, "make".into())));
        busy.store(false, Ordering::Relaxed);
        assert_eq!(quiet(&monitor, &machine, &limits, Duration::from_secs(60)), Ok(()));
    });
}

#[test]
fn the_total_is_compared_with_its_parts() {
    let of =
        |total, gpu, cpu| Readings { power_mw: Some(total), parts_mw: [gpu, cpu], ..Readings::default() };
    let idle = of(1600.0, Some(150.0), Some(300.0));
    let found = inclusions(&idle, &of(7600.0, Some(5150.0), Some(500.0)));
    assert_eq!(found, [Inclusion { part: "GPU", total_mw: 6000.0, part_mw: 5000.0 }]);
    assert!(found[0].holds() && found[0].to_string().ends_with("the total holds it"), "{}", found[0]);
    let found = inclusions(&idle, &of(2600.0, Some(5150.0), Some(1500.0)));
    assert_eq!(found.iter().map(Inclusion::holds).collect::<Vec<_>>(), [false, false]);
    assert!(found[0].to_string().contains("does not hold it"), "{}", found[0]);
    assert!(inclusions(&idle, &of(1700.0, Some(200.0), None)).is_empty());
    assert!(inclusions(&Readings::default(), &of(7600.0, Some(5150.0), None)).is_empty());
}

#[test]
fn the_largest_rise_is_the_finding() {
    let tree = tree::tx2();
    let hour = Duration::from_secs(3600);
    let monitor = Monitor::with_periods(&tree.root(), OWN, hour, hour);
    let cell = |total: u32, gpu: u32| {
        tree.put("sys/bus/i2c/devices/0-0041/iio_device/in_power0_input", format!("{total}\n"));
        tree.put("sys/bus/i2c/devices/0-0040/iio:device0/in_power0_input", format!("{gpu}\n"));
        let _ = monitor.close(monitor.open(), 1);
        monitor.findings()
    };
    assert!(cell(9000, 6000).is_empty(), "nothing is known of the idle board");
    assert!(cell(1649, 153).is_empty());
    let _ = monitor.idle(Duration::ZERO);
    assert!(cell(1700, 200).is_empty(), "too little to show anything");
    let found = cell(4649, 1153);
    // The number of samples in a mean differs from run to run, and so do the last digits of the mean.
    let near = |x: f64, y: f64| (x - y).abs() < 1e-6;
    assert!(
        matches!(&found[..], [Inclusion { part: "GPU", total_mw, part_mw }]
            if near(*total_mw, 3000.0) && near(*part_mw, 1000.0)),
        "{found:?}"
    );
    assert_eq!(cell(2649, 1053), found, "a smaller rise shows less");
    assert!(!cell(4649, 6153)[0].holds());
}
