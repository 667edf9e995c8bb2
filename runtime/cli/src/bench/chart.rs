//! Charts of latencies, ratios and the readings of the board.

use super::method::ELSA;
use crate::picture::{Axis, Picture, Point, Quantity, Raw, chart};
use elsa_core::telemetry::record::{Cell, Trace};

/// Name of the curve that is drawn in the faint colour.
const NOISE: &str = "noise";

/// Returns the parts of a cell's shape that follow its sizes, or `plain` if there are none.
fn form(cell: &Cell) -> String {
    cell.shape.splitn(6, ',').nth(5).map_or_else(|| "plain".to_owned(), str::to_owned)
}

/// Adds a point to the curve `name`. A second measurement at the same `x` belongs to another curve, because a line
/// between two measurements of the same thing would mean nothing.
fn add(curves: &mut Vec<Raw>, mut name: String, point: Point) {
    while let Some(at) = curves.iter().position(|curve| curve.name == name) {
        if curves[at].points.iter().all(|known| known.x != point.x) {
            curves[at].points.push(point);
            return;
        }
        name += ", again";
    }
    curves.push(Raw { faint: name.starts_with(NOISE), name, points: vec![point] });
}

/// Draws latencies and ratios against the number of keys. Each group of cells has two charts: one of latencies and one
/// of ratios. The cells of a group differ only in the number of keys, the method, the workload, and the parts of the
/// shape that follow its sizes. A line joins only cells of one workload.
#[must_use]
pub fn of_cells(cells: &[Cell]) -> Vec<Picture> {
    let measured = || cells.iter().filter(|cell| cell.samples > 0);
    let family = |cell: &Cell| {
        let Cell { dtype, batch, heads, kv_heads, d, .. } = cell;
        // One query with many keys is decoding; equal numbers of queries and keys are encoding.
        let decodes = if cell.queries == 1 && cell.n > 1 { ", one query" } else { "" };
        let shared = if kv_heads == heads { String::new() } else { format!(" in {kv_heads} groups") };
        format!("{dtype}, batch {batch}, heads {heads}{shared}, d {d}{decodes}")
    };
    let mut families: Vec<String> = Vec::new();
    for cell in measured() {
        let family = family(cell);
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let mut charts = Vec::new();
    for of in families {
        let (mut latencies, mut ratios, mut of_noise) = (Vec::new(), Vec::new(), Vec::new());
        for cell in measured().filter(|cell| family(cell) == of) {
            let n = cell.n as f64;
            let curve = [Some(form(cell)), cell.workload.as_deref().map(str::to_owned)];
            let curve = curve.into_iter().flatten().collect::<Vec<_>>().join(" ");
            let name = format!("{} {curve}", cell.method);
            let tip = format!("{}: {:.4} ms, percentile(99%) {:.4} ms", cell.shape, cell.p50_ms, cell.p99_ms);
            add(&mut latencies, name, Point::new(n, cell.p50_ms, tip));
            if let (Some(ratio), true) = (cell.speedup_vs_math, cell.method == ELSA) {
                let band = cell.ratio_low.zip(cell.ratio_high);
                let tip = format!("{}: {ratio:.3}", cell.shape);
                add(&mut ratios, curve, Point { x: n, y: ratio, band, tip });
                if let Some(noise) = cell.noise.filter(|_| form(cell) == "plain") {
                    let tip = format!("{:.1} %", noise * 100.0);
                    let band = Some(((1.0 - noise).max(0.0), 1.0 + noise));
                    add(&mut of_noise, NOISE.to_owned(), Point { x: n, y: 1.0, band, tip });
                }
            }
        }
        let keys = Axis::log("keys");
        charts.extend(chart(format!("Median latency: {of}"), [keys, Axis::log("ms")], latencies, true));
        ratios.append(&mut of_noise);
        charts.extend(chart(format!("math / elsa: {of}"), [keys, Axis::linear("ratio")], ratios, true));
    }
    charts
}

/// Draws power, temperature, clocks and the load of other processes against time.
#[must_use]
pub fn of_traces(traces: &[Trace]) -> Vec<Picture> {
    /// Function that reads one quantity of a trace.
    type Of = fn(&Trace) -> Option<f64>;
    /// Title, unit and curves of a picture.
    type Drawn<'a> = (&'static str, &'static str, &'a [(&'static str, Of)]);
    let pictures: [Drawn<'_>; 4] = [
        ("Power", "W", &[("board", |trace| trace.power_mw.map(|mw| mw / 1e3))]),
        ("Temperature", "°C", &[("hottest zone", |trace| trace.temp_c)]),
        (
            "Clocks",
            "MHz",
            &[
                ("CPU", |trace| trace.cpu_mhz),
                ("GPU", |trace| trace.gpu_mhz),
                ("memory", |trace| trace.emc_mhz),
            ],
        ),
        ("Load of others", "cores", &[("others", |trace| trace.load)]),
    ];
    let raw = |curves: &[(&'static str, Of)]| -> Vec<Raw> {
        let of = |(name, of): &(&'static str, Of)| {
            let point = |t: &Trace| Some(Point::new(t.t_s, of(t)?, String::new()));
            Raw::new(*name, traces.iter().filter_map(point))
        };
        curves.iter().map(of).collect()
    };
    let time = Axis::linear("time").of(Quantity::Seconds);
    let of = |(title, unit, curves): Drawn<'_>| {
        chart(title.to_owned(), [time, Axis::linear(unit)], raw(curves), false)
    };
    pictures.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Dot;
    use elsa_core::telemetry::record::text;

    fn cell(n: u64, ms: f64) -> Cell {
        Cell {
            shape: text(&format!("1,1,{n},{n},64")),
            n,
            queries: n,
            method: text(ELSA),
            samples: 3,
            p50_ms: ms,
            speedup_vs_math: Some(1.5),
            ratio_low: Some(1.4),
            ratio_high: Some(1.6),
            noise: Some(0.02),
            ..Cell::default()
        }
    }

    #[test]
    fn curves_lie_where_their_numbers_are() {
        let charts = of_cells(&[cell(400, 0.4), cell(100, 0.1), cell(900, f64::NAN), cell(200, 0.2)]);
        assert_eq!(charts.len(), 2);
        let latency = &charts[0].curves[0];
        assert_eq!((latency.name.as_str(), latency.dots.len()), ("elsa plain", 3));
        let [left, top, right, bottom] = charts[0].area;
        let inside = |dot: &Dot| (left..=right).contains(&dot.x) && (top..=bottom).contains(&dot.y);
        assert!(latency.dots.iter().all(inside), "{latency:?}");
        // Equal factors in tokens and latency are equal steps on the axes, to the right and upwards.
        let [a, b, c] = &latency.dots[..] else { panic!("three") };
        assert!(((b.x - a.x) - (c.x - b.x)).abs() < 0.3 && ((a.y - b.y) - (b.y - c.y)).abs() < 0.3);
        assert!(a.x < b.x && a.y > b.y);
        assert!(charts[1].curves.iter().any(|curve| curve.name == "noise" && curve.band.ends_with('Z')));
        assert!(charts.iter().all(|chart| chart.x_ticks.len() >= 3 && chart.y_ticks.len() >= 3));
        // A single point draws no curve, and neither does a refused cell.
        assert_eq!(of_cells(&[cell(100, 0.1)]), []);
        assert_eq!(of_cells(&[cell(100, 0.1), Cell { samples: 0, ..cell(200, 0.2) }]), []);
        assert_eq!(of_cells(&[cell(100, 0.0), cell(200, -1.0)]).len(), 1);
    }

    #[test]
    fn lines_join_only_measurements_of_one_workload() {
        let of = |workload: &str, n| Cell { workload: Some(text(workload)), ..cell(n, 0.1) };
        let charts = of_cells(&[of("a", 100), of("b", 200), of("a", 300), of("a", 100)]);
        let curves: Vec<_> = charts[0].curves.iter().map(|c| (c.name.as_str(), c.dots.len())).collect();
        assert_eq!(curves, [("elsa plain a", 2), ("elsa plain b", 1), ("elsa plain a, again", 1)]);
        assert_eq!(charts[0].curves.iter().filter(|curve| curve.line.contains('L')).count(), 1);
    }

    #[test]
    fn traces_become_pictures_of_what_is_known() {
        let trace = |t_s, power_mw, temp_c| Trace { t_s, power_mw, temp_c, ..Trace::default() };
        let charts = of_traces(&[
            trace(0.0, Some(4000.0), None),
            trace(1.0, Some(5000.0), Some(40.0)),
            trace(2.0, Some(f64::INFINITY), Some(41.0)),
        ]);
        let titles: Vec<&str> = charts.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(titles, ["Power", "Temperature"]);
        let labels: Vec<&str> = charts[0].y_ticks.iter().map(|tick| tick.label.as_str()).collect();
        assert!(labels.contains(&"4") && labels.contains(&"5"), "{labels:?}");
        assert_eq!(of_traces(&[]), []);
    }
}
