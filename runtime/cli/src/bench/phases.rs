//! Rows of programs as a text table of 80 columns, for `elsa bench --exec` and `elsa listen`.

use elsa_core::telemetry::record::Phase;

/// Name of the row of the whole run.
pub const WHOLE: &str = "whole run";

/// The two lines of column names.
pub const HEADER: &str = "\
phase                  s    CPU s        W         J J without    °C    °C    °C
                                      mean                idle first  last   max";

/// Formats a number with `digits` digits after the point; `-` if it is unknown.
fn shown(x: Option<f64>, digits: usize) -> String {
    x.filter(|x| x.is_finite()).map_or_else(|| "-".to_owned(), |x| format!("{x:.digits$}"))
}

/// Formats the row of a phase. The lines below it contain the end of the program, the other readings of the board, and
/// the reasons why the row is not clean.
#[must_use]
pub fn row(phase: &Phase) -> String {
    let thousandth = |x: Option<f64>, digits: usize| shown(x.map(|x| x / 1e3), digits);
    let mut row = format!(
        "{:<15} {:>8.2} {:>8} {:>8} {:>9} {:>9} {:>5} {:>5} {:>5}",
        phase.phase.as_deref().unwrap_or(WHOLE),
        phase.seconds,
        shown(phase.cpu_s, 2),
        thousandth(phase.power_mw, 3),
        thousandth(phase.energy_mj, 3),
        thousandth(phase.energy_net_mj, 3),
        shown(phase.temp_first_c, 1),
        shown(phase.temp_last_c, 1),
        shown(phase.temp_c, 1)
    );
    for line in [ended(phase), rails(phase), board(phase)].into_iter().flatten() {
        row += &format!("\n      {line}");
    }
    for mark in &phase.marks {
        row += &format!("\n      marked: {mark}");
    }
    row
}

/// Describes how the program ended, with its CPU times and its peak memory; `None` for a phase.
fn ended(phase: &Phase) -> Option<String> {
    let how = match (phase.exit_status, phase.signal) {
        (Some(status), _) => format!("exit status {status}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => return None,
    };
    let peak = shown(phase.peak_bytes.map(|bytes| bytes as f64 / 1e6), 1);
    let (user, system) = (shown(phase.user_s, 2), shown(phase.system_s, 2));
    Some(format!("{}: {how}; CPU {user} s user, {system} s system; peak memory {peak} MB", phase.program))
}

/// Describes the rails; `None` if the board reports none besides the total.
fn rails(phase: &Phase) -> Option<String> {
    let rails: Vec<String> = phase
        .rails
        .iter()
        .map(|rail| {
            let net = rail.energy_net_mj.map_or_else(String::new, |mj| format!(" ({:.3} J net)", mj / 1e3));
            format!("{} {:.3} W, {:.3} J{net}", rail.name, rail.power_mw / 1e3, rail.energy_mj / 1e3)
        })
        .collect();
    (!rails.is_empty()).then(|| rails.join("; "))
}

/// Describes clocks, throttling and the load of other processes; `None` if the machine reports nothing of them.
fn board(phase: &Phase) -> Option<String> {
    let mut facts = Vec::new();
    let mut fact = |value: Option<f64>, digits: usize, unit: &str| {
        facts.extend(value.map(|value| format!("{value:.digits$} {unit}")));
    };
    fact(phase.cpu_mhz, 0, "MHz CPU");
    fact(phase.gpu_mhz, 0, "MHz GPU");
    fact(phase.emc_mhz, 0, "MHz memory");
    fact(phase.gpu_load.map(|load| load * 100.0), 0, "% GPU load");
    fact(phase.load, 2, "cores by others");
    if facts.is_empty() {
        return None;
    }
    facts.push(format!("throttling {}", phase.throttled));
    Some(facts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::telemetry::record::{RailEnergy, text};

    #[test]
    fn a_row_fits_its_columns_and_tells_the_rest_below() {
        assert!(HEADER.lines().all(|line| line.chars().count() == 80), "{HEADER}");
        let mut phase = Phase {
            program: text("sh"),
            phase: Some(text("warm up")),
            seconds: 12.5,
            cpu_s: Some(1.25),
            power_mw: Some(4984.0),
            energy_mj: Some(62_300.0),
            energy_net_mj: Some(1000.0),
            temp_first_c: Some(41.0),
            temp_last_c: Some(44.5),
            temp_c: Some(45.5),
            cpu_mhz: Some(2035.2),
            gpu_load: Some(0.42),
            load: Some(0.05),
            ..Phase::default()
        };
        let line = row(&phase).lines().next().unwrap().to_owned();
        let expected = "warm up            12.50     1.25    4.984    62.300     1.000  41.0  44.5  45.5";
        assert_eq!((line.as_str(), line.chars().count()), (expected, 80));
        let rail = RailEnergy {
            name: text("VDD_SYS_GPU"),
            power_mw: 500.0,
            energy_mj: 6250.0,
            energy_net_mj: Some(-1.0),
        };
        phase.rails.push(rail).unwrap();
        phase.marks.push(text("another load; wait")).unwrap();
        let words = row(&phase);
        for part in [
            "\n      VDD_SYS_GPU 0.500 W, 6.250 J (-0.001 J net)\n",
            "\n      2035 MHz CPU, 42 % GPU load, 0.05 cores by others, throttling cannot be told\n",
            "\n      marked: another load; wait",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        let whole = Phase {
            phase: None,
            exit_status: Some(3),
            user_s: Some(1.0),
            system_s: Some(0.25),
            peak_bytes: Some(5_300_000),
            ..phase
        };
        let words = row(&whole);
        let ended = "sh: exit status 3; CPU 1.00 s user, 0.25 s system; peak memory 5.3 MB";
        assert!(words.starts_with(WHOLE) && words.contains(ended), "{words}");
        let words = row(&Phase { exit_status: None, signal: Some(9), ..whole });
        assert!(words.contains("sh: ended by signal 9; "), "{words}");
        // Values that the machine does not report are dashes, and there are no lines below.
        let nothing = row(&Phase { seconds: 1.0, ..Phase::default() });
        assert_eq!(nothing.split_whitespace().filter(|word| *word == "-").count(), 7, "{nothing}");
        assert_eq!(nothing.lines().count(), 1);
    }
}
