//! Tests of the readings of a board over a span.

use super::tree::{self, OWN, Tree};
use crate::load::Load;
use crate::monitor::Monitor;
use crate::rails::Power;
use crate::sources::{Slow, Sources};
use crate::tally::{FEWEST_READINGS, Facts, Readings, Tally};
use crate::throttle::Sign;
use elsa_core::telemetry::record::{Cell, Phase, Throttling};
use std::time::{Duration, Instant};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn close(a: Option<f64>, b: f64) {
    assert!(a.is_some_and(|a| (a - b).abs() <= 1e-9 * b.abs()), "{a:?}, not {b}");
}

#[test]
fn energy_is_power_over_time_less_what_the_idle_board_takes() {
    let start = Instant::now();
    let mut tally = Tally::new(start);
    // 2000 mW and 2040 mW alternate, the higher for three times as long.
    for tick in 0..20 {
        tally.power(start + ms(40 * tick + 10), Power { milliwatts: 2000.0, fresh: true });
        tally.power(start + ms(40 * tick + 40), Power { milliwatts: 2040.0, fresh: true });
    }
    let facts = Facts { idle_mw: Some(1500.0), step_mw: None, ..Facts::default() };
    // The last 200 ms have no reading, so the mean power is assumed for them.
    let (readings, _) = tally.readings(start + ms(1000), 50, facts);
    assert_eq!(readings.power_readings, 40);
    close(readings.power_mw, 2030.0);
    close(readings.energy_mj, 2030.0 / 50.0);
    close(readings.energy_net_mj, 530.0 / 50.0);
    close(readings.power_quantum_mw, 40.0);
    // If the step of the chip is known, it is the resolution.
    let (readings, _) = tally.readings(start + ms(1000), 50, Facts { step_mw: Some(76.0), ..facts });
    close(readings.power_quantum_mw, 76.0);
    // An unknown idle power is not subtracted, and without calls there is no energy per call.
    let (readings, _) = tally.readings(start + ms(1000), 50, Facts::default());
    assert_eq!((readings.energy_net_mj, readings.idle_power_mw), (None, None));
    let (readings, _) = tally.readings(start + ms(1000), 0, facts);
    assert_eq!((readings.energy_mj, readings.energy_net_mj), (None, None));
}

#[test]
fn few_readings_make_no_energy() {
    let start = Instant::now();
    let of = |fresh: u32| {
        let mut tally = Tally::new(start);
        for tick in 0..100 {
            tally.power(start + ms(10 * tick), Power { milliwatts: 2000.0, fresh: tick < u64::from(fresh) });
        }
        tally.readings(start + ms(1000), 10, Facts { idle_mw: Some(1.0), ..Facts::default() }).0
    };
    let few = of(FEWEST_READINGS - 1);
    assert_eq!((few.energy_mj, few.energy_net_mj, few.power_readings), (None, None, 19));
    close(few.power_mw, 2000.0);
    close(of(FEWEST_READINGS).energy_mj, 200.0);
}

#[test]
fn throttling_is_denied_by_those_who_can() {
    let told = |tree: &Tree, between: &dyn Fn(&Tree)| {
        let mut sources = Sources::find(&tree.root(), OWN);
        let now = Instant::now();
        let mut tally = Tally::new(now);
        tally.slow(&sources.slow(), true);
        between(tree);
        tally.slow(&sources.slow(), false);
        tally.readings(now + ms(10), 1, Facts::default()).0.throttled
    };
    let quiet: &dyn Fn(&Tree) = &|_| {};
    assert_eq!(told(&tree::orin(), quiet), Throttling::NotSeen);
    assert_eq!(told(&tree::xavier(), quiet), Throttling::NotSeen);
    assert_eq!(told(&tree::pc(), quiet), Throttling::NotSeen);
    // A TX2 counts no events, and one of its cores is below its highest clock: held down, or idle.
    assert_eq!(told(&tree::tx2(), quiet), Throttling::Unknown);
    assert_eq!(told(&tree::nano(), quiet), Throttling::Unknown, "neither counters nor cooling devices");
    let tx2 = tree::tx2();
    tx2.core(0, true, [2_035_200; 3]);
    assert_eq!(told(&tx2, quiet), Throttling::NotSeen);
    // A source that cannot be read does not rule out throttling.
    for file in ["sys/class/hwmon/hwmon3/oc2_event_cnt", "sys/class/hwmon/hwmon3/oc3_event_cnt"] {
        let orin = tree::orin();
        orin.core(0, true, [345_600, 345_600, 2_035_200]);
        assert_eq!(told(&orin, &|tree| tree.put(file, "")), Throttling::Unknown, "{file}");
    }
    let denied = |tree: &Tree| tree.put("sys/class/thermal/cooling_device1/cur_state", "");
    assert_eq!(told(&tx2, &denied), Throttling::Unknown);
    tx2.put("sys/class/thermal/cooling_device1/cur_state", "0\n");
    let changes: [(Tree, &str, &str); 5] = [
        (tx2, "sys/class/thermal/cooling_device2/cur_state", "2\n"),
        (tree::orin(), "sys/class/hwmon/hwmon3/oc3_event_cnt", "3\n"),
        (tree::orin(), "sys/class/hwmon/hwmon1/curr1_max_alarm", "1\n"),
        (tree::xavier(), "sys/class/hwmon/hwmon4/oc1_irq_cnt", "1\n"),
        (tree::pc(), "sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count", "13\n"),
    ];
    for (tree, file, value) in &changes {
        assert_eq!(told(tree, &|tree| tree.put(file, value)), Throttling::Seen, "{file}");
    }
}

#[test]
fn what_happened_before_a_stretch_is_not_of_it() {
    let now = Instant::now();
    let sign = Sign { events: 7, alarm: true, counted: true, ..Sign::default() };
    let before = Slow { sign, ..Slow::default() };
    let mut tally = Tally::new(now);
    tally.slow(&before, true);
    let facts = Facts::default();
    assert_eq!(tally.readings(now, 1, facts).0.throttled, Throttling::NotSeen);
    tally.slow(&before, false);
    let (readings, _) = tally.readings(now, 1, facts);
    assert_eq!((readings.throttled, readings.throttle_events), (Throttling::Seen, 7));
}

#[test]
fn clocks_have_means_extremes_and_changes() {
    let now = Instant::now();
    let mut tally = Tally::new(now);
    for (slowest, fastest, limit, on) in
        [(500.0, 2000.0, 2035.0, 4), (1000.0, 1990.0, 2035.0, 4), (600.0, 1200.0, 1200.0, 3)]
    {
        let [slowest, fastest, limit] = [slowest, fastest, limit].map(Some);
        let slow =
            Slow { slowest, fastest, limit, on, hottest: Some((on, 40.0 + on as f64)), ..Slow::default() };
        tally.slow(&slow, false);
    }
    let (readings, zone) = tally.readings(now + ms(1), 1, Facts::default());
    close(readings.cpu_mhz, 700.0);
    assert_eq!(readings.cpu_range_mhz, Some((1200.0, 2000.0)));
    assert_eq!(readings.cpu_limits_mhz, Some((2035.0, 1200.0)));
    // A clock of 1990 after 2000 does not count as a change.
    assert_eq!((readings.clock_changes, readings.cores_on), (1, (3, 4)));
    assert_eq!((zone, readings.temp_c), (Some(4), Some(44.0)));
    assert_eq!((readings.gpu_mhz, readings.emc_range_mhz), (None, None));
}

#[test]
fn a_board_is_watched_while_it_computes() {
    let tree = tree::orin();
    let monitor = Monitor::with_periods(&tree.root(), OWN, ms(1), ms(2));
    let idle = monitor.idle(ms(10));
    close(idle.power_mw, 4.984 * 1856.0);
    let span = monitor.open();
    let current = "sys/bus/i2c/devices/1-0040/hwmon/hwmon1/curr1_input";
    // A reading counts only if it differs from the last, so the monitor must see each value before the next is written.
    for tick in 0..30 {
        let milliamperes = 2856 + tick % 2;
        tree.put(current, format!("{milliamperes}\n"));
        let expected = Some(4.984 * f64::from(milliamperes));
        let start = Instant::now();
        while monitor.latest().and_then(|point| point.power_mw) != expected {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody watches");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    tree.put("sys/class/hwmon/hwmon3/oc3_event_cnt", "0000000004\n");
    tree.put("sys/class/thermal/thermal_zone2/temp", "61500\n");
    tree.process(77, "cc1 (plus)", 900);
    tree.process(78, "sh", 10);
    tree.times(2, [4000, 100, 0], 700);
    let readings = monitor.close(span, 10);

    assert!(readings.power_readings >= FEWEST_READINGS, "{readings:?}");
    let mw = readings.power_mw.unwrap();
    assert!((4.984 * 1856.0..=4.984 * 2857.0).contains(&mw), "{mw}");
    close(readings.energy_mj, mw * readings.seconds / 10.0);
    close(readings.energy_net_mj, (mw - idle.power_mw.unwrap()) * readings.seconds / 10.0);
    assert_eq!((readings.throttled, readings.throttle_events), (Throttling::Seen, 5));
    assert_eq!((readings.temp_c, readings.temp_zone.as_deref()), (Some(61.5), Some("tj-thermal")));
    // The cores were busy for 3000 more ticks; the process itself used 200 of them.
    close(readings.others.map(|others| others.load), 28.0 / readings.seconds);
    assert_eq!((readings.process_s, readings.temps_c), (Some(2.0), Some((46.5, 61.5))));
    let busiest = readings.busiest.clone().unwrap();
    assert_eq!((busiest.pid, busiest.name.as_str()), (77, "cc1 (plus)"));

    let mut cell = Cell::default();
    readings.fill(&mut cell);
    assert_eq!((cell.temp_zone.as_deref(), cell.throttled), (Some("tj-thermal"), Throttling::Seen));
    assert_eq!((cell.cpu_mhz, cell.gpu_mhz, cell.emc_mhz), (Some(1728.0), Some(1020.0), None));
    assert_eq!((cell.energy_mj, cell.power_mw), (readings.energy_mj, readings.power_mw));
    assert_eq!((cell.energy_net_mj, cell.idle_power_mw), (readings.energy_net_mj, idle.power_mw));
    assert_eq!(
        (cell.power_readings, cell.power_quantum_mw),
        (readings.power_readings, readings.power_quantum_mw)
    );

    let mut phase = Phase::default();
    readings.fill_phase(&mut phase, &monitor.rails());
    assert_eq!((phase.begin_s, phase.seconds, phase.cpu_s), (readings.begin_s, readings.seconds, Some(2.0)));
    assert!(phase.begin_s >= idle.begin_s + idle.seconds, "{phase:?}, {idle:?}");
    assert_eq!((phase.energy_mj, phase.energy_net_mj), (readings.energy_mj, readings.energy_net_mj));
    assert_eq!((phase.temp_first_c, phase.temp_last_c, phase.temp_c), (Some(46.5), Some(61.5), Some(61.5)));
    assert_eq!((phase.load, phase.throttle_events), (readings.others.map(|others| others.load), 5));
    assert!(phase.rails.is_empty(), "rails are read only around a program");

    let trace = monitor.trace(f64::NEG_INFINITY, 0.0);
    assert!(trace.len() >= 5 && trace.windows(2).all(|pair| pair[0].t_s < pair[1].t_s));
    assert!(trace.iter().all(|point| point.cpu_mhz == Some(1728.0) && point.power_mw.is_some()));
    // A second span contains nothing of the first.
    let span = monitor.open();
    let again = monitor.close(span, 0);
    assert_eq!((again.throttled, again.busiest), (Throttling::NotSeen, None));
}

#[test]
fn the_rails_of_a_program_are_those_of_the_module() {
    let (tx2, xavier) = (tree::tx2(), tree::xavier());
    // The input rail of a TX2 is the total; a Xavier has none, and its total is the sum of its rails.
    let names = |tree: &Tree| Monitor::of_tree(&tree.root(), OWN).rails();
    assert_eq!(names(&tx2), ["VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_4V0_WIFI", "VDD_SYS_CPU", "VDD_SYS_DDR"]);
    assert_eq!(names(&xavier), ["GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"]);
    assert!(names(&tree::pc()).is_empty());

    let monitor = Monitor::of_tree(&tx2.root(), OWN);
    let _ = monitor.idle(ms(1));
    tx2.put("sys/bus/i2c/devices/0-0041/iio_device/in_power2_input", "1173\n");
    let span = monitor.open();
    let readings = monitor.close(span, 1);
    let mut phase = Phase::default();
    readings.fill_phase(&mut phase, &monitor.rails());
    assert_eq!(phase.rails.len(), 5);
    for (rail, (mw, net)) in
        phase.rails.iter().zip([(153.0, 0.0), (306.0, 0.0), (0.0, 0.0), (306.0, 0.0), (1173.0, 1000.0)])
    {
        close(Some(rail.power_mw), mw);
        close(Some(rail.energy_mj), mw * phase.seconds);
        let found = rail.energy_net_mj.unwrap() / phase.seconds;
        assert!((found - net).abs() < 1e-6, "{rail:?}");
    }
    // The energies of a Xavier's rails add up to the total.
    let monitor = Monitor::of_tree(&xavier.root(), OWN);
    let span = monitor.open();
    let readings = monitor.close(span, 1);
    assert!(readings.idle_rails_mw.is_empty());
    let total = readings.rails_mw.iter().copied().sum::<Option<f64>>().unwrap();
    close(readings.power_mw, total);
    let mut phase = Phase::default();
    readings.fill_phase(&mut phase, &monitor.rails());
    assert!(phase.rails.len() == 6 && phase.rails.iter().all(|rail| rail.energy_net_mj.is_none()));
}

#[test]
fn stretches_may_overlap() {
    let tree = tree::xavier();
    let hour = Duration::from_secs(3600);
    let monitor = Monitor::with_periods(&tree.root(), OWN, hour, hour);
    let count = |events: u32| tree.put("sys/class/hwmon/hwmon4/oc3_irq_cnt", format!("{events}\n"));
    let whole = monitor.open();
    count(8);
    let first = monitor.open();
    count(10);
    let second = monitor.open();
    count(13);
    let events = [first, second, whole].map(|span| monitor.close(span, 1).throttle_events);
    assert_eq!(events, [5, 3, 6]);
}

#[test]
fn a_machine_that_tells_nothing_has_no_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let monitor = Monitor::with_periods(&crate::Root::new(folder.path()), OWN, ms(1), ms(1));
    let span = monitor.open();
    let readings = monitor.close(span, 5);
    assert!(readings.seconds > 0.0);
    let Readings { begin_s, seconds, .. } = readings;
    assert_eq!(readings, Readings { begin_s, seconds, ..Readings::default() });
    assert_eq!(readings.throttled, Throttling::Unknown);
}

#[test]
fn processes_that_come_and_go_are_compared() {
    let tree = tree::pc();
    tree.process(1, "init", 5000);
    let load = Load::find(&tree.root(), OWN).unwrap();
    let before = load.processes();
    assert_eq!((before.get(&1), before.get(&OWN)), (Some(&5000), None));
    assert_eq!(load.busiest(&before, ms(1000)), None);
    tree.process(1, "init", 5001);
    tree.process(900, "new", 30);
    tree.put("proc/901/stat", "901 (broken");
    tree.put("proc/uptime", "1 2\n");
    let busiest = load.busiest(&before, ms(1000)).unwrap();
    assert_eq!((busiest.pid, busiest.name.as_str(), busiest.load), (900, "new", 0.3));
}

#[test]
fn hostile_files_make_no_hostile_numbers() {
    let long = "9".repeat(2000);
    let contents: [&[u8]; 11] = [
        b"",
        b"\n",
        b"-1\n",
        b"9223372036854775807\n",
        b"-9223372036854775808\n",
        b"18446744073709551616\n",
        b"NaN\n",
        b"1e400",
        b"\xff\xfe\0\0",
        b"cpu  9223372036854775807 9223372036854775807 9223372036854775807 9223372036854775807\n",
        long.as_bytes(),
    ];
    for make in [tree::tx2, tree::orin, tree::pc] {
        let tree = make();
        let files = files(tree.folder());
        assert!(files.len() > 40);
        let mut sources = Sources::find(&tree.root(), OWN);
        let start = Instant::now();
        let mut tally = Tally::new(start);
        for (n, contents) in (1..).zip(contents) {
            for file in &files {
                tree::overwrite(file, contents);
            }
            // Reads the files that are already open, and then the files that a new start opens.
            let now = start + ms(n);
            let found = crate::describe(&tree.root());
            let mut again = Sources::find(&tree.root(), OWN);
            for sources in [&mut sources, &mut again] {
                if let Some(power) = sources.power(now) {
                    tally.power(now, power);
                }
                tally.slow(&sources.slow(), false);
            }
            let (readings, _) = tally.readings(now, 1, Facts { cores: 2, ..Facts::default() });
            let numbers =
                [readings.power_mw, readings.energy_mj, readings.cpu_mhz, readings.gpu_mhz, readings.emc_mhz];
            assert!(numbers.iter().flatten().all(|x| x.is_finite()), "{readings:?}");
            assert!(readings.temp_c.is_none_or(|x| (-40.0..=125.0).contains(&x)), "{readings:?}");
            let _ = crate::judge(&found, &readings, true, &crate::Limits::default());
            let load = Load::find(&tree.root(), OWN);
            let _ = load.map(|load| load.busiest(&load.processes(), ms(1)));
        }
    }
}

/// Lists all files in a folder and its subfolders, without following links.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .flat_map(|entry| match entry.file_type().unwrap() {
            kind if kind.is_dir() => files(&entry.path()),
            kind if kind.is_file() => vec![entry.path()],
            _ => Vec::new(),
        })
        .collect()
}
