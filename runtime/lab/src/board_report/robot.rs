//! Rates, deadlines, and the soak.

use super::archive::{Archive, word};
use super::section::Section;
use elsa_cli::picture::{Axis, Point, Quantity, Raw, chart};
use serde_json::Value;

/// Steps that run a loop at a fixed rate.
const LOOPS: [&str; 6] = ["rate-30", "rate-60", "rate-100", "energy-cpu", "energy-gpu", "soak"];
/// The longest loop, whose readings are drawn over time.
const SOAK: &str = "soak";
/// A line of a chart: its name, and the field of a stretch that it shows.
type Line = (&'static str, &'static str);
/// Charts of the soak: title, unit and lines.
const CHARTS: [(&str, &str, &[Line]); 4] = [
    ("Latency", "ms", &[("median", "p50_ms"), ("percentile(99%)", "p99_ms")]),
    ("Temperature", "°C", &[("hottest zone", "temp_c")]),
    ("Clocks", "MHz", &[("CPU", "cpu_mhz"), ("GPU", "gpu_mhz")]),
    ("Power", "mW", &[("board", "power_mw")]),
];

/// Lists the loops, and draws the soak.
pub fn sections(day: &Archive) -> [Section; 2] {
    let mut loops = Section::new("At a fixed rate");
    loops.head = vec![
        "step",
        "shape",
        "back end",
        "Hz",
        "calls",
        "missed",
        "p50 ms",
        "p99 ms",
        "max ms",
        "drift",
        "°C",
        "mW",
        "throttled",
    ];
    let mut histogram = Section::new("Latencies of the soak");
    histogram.head = vec!["to ms", "calls"];
    for step in LOOPS {
        let lines = day.lines(step);
        let of = |what: &str| lines.iter().find(|line| line["what"] == what);
        let (Some(whole), Some(cell)) = (of("soaked"), of("bench")) else { continue };
        let number = |key: &str, digits: usize| shown(&whole[key], digits);
        let texts = [step.to_owned(), word(whole, "shape"), word(cell, "backend")];
        let numbers = [
            number("rate_hz", 0),
            number("calls", 0),
            number("missed", 0),
            number("p50_ms", 3),
            number("p99_ms", 3),
            number("max_ms", 3),
            number("drift", 3),
            number("temp_c", 1),
            number("power_mw", 0),
            word(cell, "throttled"),
        ];
        loops.rows.push(texts.into_iter().chain(numbers).collect());
        if step == SOAK {
            let bins = whole["histogram"].as_array().into_iter().flatten();
            histogram.rows.extend(bins.map(|bin| vec![shown(&bin[0], 4), shown(&bin[1], 0)]));
        }
    }
    let stretches = day.lines(SOAK).into_iter().filter(|line| line["what"] == "soak").collect::<Vec<_>>();
    histogram.charts = CHARTS
        .iter()
        .filter_map(|(title, unit, curves)| {
            let point = |line: &Value, key: &str| {
                Some(Point::new(line["t_s"].as_f64()?, line[key].as_f64()?, String::new()))
            };
            let raw = |(name, key): &(&str, &str)| {
                Raw::new(*name, stretches.iter().filter_map(|line| point(line, key)))
            };
            let axes = [Axis::linear("time").of(Quantity::Seconds), Axis::linear(unit)];
            chart((*title).to_owned(), axes, curves.iter().map(raw).collect(), false)
        })
        .collect();
    [loops, histogram]
}

/// Formats a number; empty for anything else.
fn shown(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(String::new, |x| format!("{x:.digits$}"))
}
