//! Energy of a call, by rail, without the energy of the idle board, by two methods.
//!
//! The first method is the tool's: its monitor integrates the total power during the loop. For the second method, the
//! program on the board reads the rails itself, before the loop (step `idle`) and during it:
//!
//! ```text
//! energy of a call = (mean power in the loop − mean power when idle) · time / calls
//! ```
//!
//! The program begins to read before the loop and ends after it. The loop takes the last `t_s` seconds. The first
//! and the last tenth of this time are left out. The methods agree if their totals differ by at most 10 %.

use super::archive::Archive;
use super::section::Section;
use std::collections::{BTreeMap, BTreeSet};

/// Steps whose energy is measured, each with the file of its rails.
const STEPS: [&str; 3] = ["energy-cpu", "energy-gpu", "soak"];
/// Part of the loop's time that is left out at each end.
const EDGE: f64 = 0.1;
/// Relative difference up to which the methods agree.
const AGREE: f64 = 0.1;

/// Readings of a step: seconds and value, by path.
type Readings = BTreeMap<String, Vec<(f64, f64)>>;

/// Parses lines of seconds, path and value, separated by tabs.
fn readings(text: &str) -> Readings {
    let mut readings = Readings::new();
    for line in text.lines() {
        let mut parts = line.split('\t');
        let (Some(at), Some(path), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if let (Ok(at), Ok(value)) = (at.parse(), value.parse()) {
            readings.entry(path.to_owned()).or_default().push((at, value));
        }
    }
    readings
}

/// Returns the mean power in mW of each rail, by the path of its first file, of the readings from `from` to `to`.
fn powers(readings: &Readings, [from, to]: [f64; 2]) -> BTreeMap<String, f64> {
    let within = |path: &str| -> Vec<(f64, f64)> {
        let all = readings.get(path).into_iter().flatten().copied();
        all.filter(|(at, _)| (from..=to).contains(at)).collect()
    };
    let mean = |values: &[(f64, f64)]| values.iter().map(|(_, x)| x).sum::<f64>() / values.len() as f64;
    let power = |path: &String| {
        let values = within(path);
        let (first, last) = (values.first()?, values.last()?);
        if path.contains("/in_power") {
            Some(mean(&values))
        } else if path.ends_with("/energy_uj") {
            // A counter that has wrapped gives no power.
            (last.1 > first.1 && last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0) / 1e3)
        } else {
            let (folder, channel) = path.rsplit_once("/in")?;
            // The seventh channel of a chip is the sum of the others.
            let channel = channel.strip_suffix("_input").filter(|channel| *channel != "7")?;
            let current = within(&format!("{folder}/curr{channel}_input"));
            (!current.is_empty()).then(|| mean(&values) * mean(&current) / 1e3)
        }
    };
    readings.keys().filter_map(|path| Some((path.clone(), power(path)?))).collect()
}

/// Returns the name of the rail whose power a path contains, from the raw files of the sensors.
fn name(sensors: &BTreeMap<&str, &str>, path: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or_default();
    let digits: String = file.chars().filter(char::is_ascii_digit).collect();
    let files = [
        format!("{folder}/rail_name_{digits}"),
        format!("{folder}/in{digits}_label"),
        format!("{folder}/name"),
    ];
    let found = files.iter().find_map(|file| sensors.get(file.as_str()));
    found.map_or_else(|| path.to_owned(), |name| name.trim().to_owned())
}

/// Lists the energies.
pub fn section(day: &Archive) -> Section {
    let mut section = Section::new("Energy");
    section.head = vec!["step", "rail", "idle mW", "loop mW", "mJ a call"];
    let text = day.text("sensors.tsv");
    let sensors: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    let idle = powers(&readings(&day.text("idle.rails.tsv")), [f64::MIN, f64::MAX]);
    let total: BTreeSet<String> = {
        let info = day.first("info");
        let names = info["machine"]["total"].as_array().into_iter().flatten();
        names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    for step in STEPS {
        let lines = day.lines(step);
        let of = |what: &str| lines.iter().find(|line| line["what"] == what);
        let (Some(whole), Some(cell)) = (of("soaked"), of("bench")) else { continue };
        let (Some(seconds), Some(calls)) = (whole["t_s"].as_f64(), whole["calls"].as_f64()) else { continue };
        let readings = readings(&day.text(&format!("{step}.rails.tsv")));
        let end = readings.values().flatten().map(|(at, _)| *at).fold(f64::MIN, f64::max);
        let within = [end - seconds * (1.0 - EDGE), end - seconds * EDGE];
        let (mut sum, mut counted) = (0.0, false);
        for (path, busy) in powers(&readings, within) {
            let Some(idle) = idle.get(&path) else { continue };
            let (rail, millijoules) = (name(&sensors, &path), (busy - idle) * seconds / calls.max(1.0));
            if total.contains(&rail) {
                (sum, counted) = (sum + millijoules, true);
            }
            let numbers = [format!("{idle:.0}"), format!("{busy:.0}"), format!("{millijoules:.3}")];
            section.rows.push([step.to_owned(), rail].into_iter().chain(numbers).collect());
        }
        section.words.push(match (cell["energy_net_mj"].as_f64(), counted) {
            (Some(monitor), true) => verdict(step, monitor, sum),
            (Some(monitor), false) => format!("{step}: {monitor:.3} mJ a call by the tool alone."),
            (None, true) => format!("{step}: {sum:.3} mJ a call by the readings of the program alone."),
            (None, false) => format!("{step}: the energy is unknown, because no total power was read."),
        });
    }
    section
}

/// Says whether the two methods agree: that of the tool, and that of the program on the board.
fn verdict(step: &str, tool: f64, program: f64) -> String {
    let difference = (tool - program).abs() / tool.abs().max(program.abs()).max(f64::MIN_POSITIVE);
    let words = if difference <= AGREE { "agree" } else { "do not agree" };
    format!(
        "{step}: {tool:.3} mJ a call by the tool, {program:.3} mJ by the readings of the program; they {words} \
         within 10 % (difference {:.0} %).",
        difference * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_three_kinds_of_files() {
        let text = "0.0\t/b/iio:device0/in_power0_input\t1000\n1.0\t/b/iio:device0/in_power0_input\t2000\n\
                    0.0\t/c/hwmon/hwmon1/in1_input\t5000\n0.0\t/c/hwmon/hwmon1/curr1_input\t200\n\
                    0.0\t/c/hwmon/hwmon1/in7_input\t5000\n0.0\t/c/hwmon/hwmon1/curr7_input\t900\n\
                    0.0\t/p/intel-rapl:0/energy_uj\t1000000\n2.0\t/p/intel-rapl:0/energy_uj\t7000000\n\
                    cut\n1.0\t/b/iio:device0/in_power0_input\tx\n";
        let found = powers(&readings(text), [f64::MIN, f64::MAX]);
        let found: Vec<(&str, f64)> = found.iter().map(|(path, mw)| (path.as_str(), *mw)).collect();
        assert_eq!(
            found,
            [
                ("/b/iio:device0/in_power0_input", 1500.0),
                ("/c/hwmon/hwmon1/in1_input", 1000.0),
                ("/p/intel-rapl:0/energy_uj", 3000.0)
            ]
        );
        let first = powers(&readings(text), [-1.0, 0.5]);
        assert_eq!(first.get("/b/iio:device0/in_power0_input"), Some(&1000.0));
    }

    #[test]
    fn rails_have_the_names_of_the_board() {
        let sensors = [("/c/rail_name_2", "VDD_IN"), ("/h/in1_label", "CPU "), ("/p/name", "package-0")];
        let sensors: BTreeMap<&str, &str> = sensors.into_iter().collect();
        let of = |path| name(&sensors, path);
        assert_eq!(
            [of("/c/in_power2_input"), of("/h/in1_input"), of("/p/energy_uj")],
            ["VDD_IN", "CPU", "package-0"]
        );
        assert_eq!(of("/x/in_power0_input"), "/x/in_power0_input");
    }

    #[test]
    fn methods_agree_within_a_tenth() {
        assert!(verdict("soak", 10.0, 9.1).contains("they agree within"));
        assert!(verdict("soak", 10.0, 8.9).contains("they do not agree within"));
        assert!(verdict("soak", 0.0, 0.0).contains("they agree within"));
    }
}
