//! Curves as SVG: scales, ticks and paths. What is no number is left out.

use super::args::ELSA;
use elsa_core::telemetry::record::{Cell, Trace};

/// Size of a picture in its own units, which are the pixels of a small screen.
pub const SIZE: (f64, f64) = (344.0, 230.0);
/// Colours of curves.
pub const COLORS: usize = 8;
/// The curve that has the last colour, which is the faint one.
const NOISE: &str = "noise";
/// Space for labels: left, top, right and bottom of the curves.
const SPACE: (f64, f64, f64, f64) = (46.0, 10.0, 10.0, 34.0);

/// A mark of an axis.
#[derive(Debug, PartialEq)]
pub struct Tick {
    /// Where it is, along the axis.
    pub at: f64,
    /// Its number.
    pub label: String,
}

/// A point that was measured.
#[derive(Debug, PartialEq)]
pub struct Dot {
    /// From the left.
    pub x: f64,
    /// From above.
    pub y: f64,
    /// What it says when it is pointed at.
    pub tip: String,
}

/// A curve.
#[derive(Debug, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// The number of its colour.
    pub color: usize,
    /// The line.
    pub line: String,
    /// The area between low and high values; empty without.
    pub band: String,
    /// Its points.
    pub dots: Vec<Dot>,
}

/// A picture.
#[derive(Debug, PartialEq)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What the axes are.
    pub x_name: &'static str,
    /// What the other axis is.
    pub y_name: &'static str,
    /// Marks of the axes.
    pub x_ticks: Vec<Tick>,
    /// Marks of the other axis.
    pub y_ticks: Vec<Tick>,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Left, top, right and bottom of the curves.
    pub frame: [f64; 4],
}

/// How numbers become places.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    begin: f64,
    end: f64,
}

impl Scale {
    /// From the numbers that it has to hold. None without two different ones, and where one is not positive on a
    /// logarithmic scale.
    fn of(numbers: impl Iterator<Item = f64>, logarithmic: bool, begin: f64, end: f64) -> Option<Scale> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for x in numbers.filter(|x| x.is_finite()) {
            (low, high) = (low.min(x), high.max(x));
        }
        if low > high || (logarithmic && low <= 0.0) {
            return None;
        }
        if logarithmic {
            (low, high) = if low == high { (low / 1.5, high * 1.5) } else { (low / 1.05, high * 1.05) };
        } else {
            let margin = if low == high { low.abs().max(1.0) * 0.1 } else { (high - low) * 0.05 };
            (low, high) = (low - margin, high + margin);
        }
        Some(Scale { low, high, logarithmic, begin, end })
    }

    fn at(&self, x: f64) -> f64 {
        let of = |x: f64| if self.logarithmic { x.ln() } else { x };
        let share = (of(x) - of(self.low)) / (of(self.high) - of(self.low));
        ((self.begin + share * (self.end - self.begin)) * 10.0).round() / 10.0
    }

    /// At most `most` marks at round numbers.
    fn ticks(&self, most: usize) -> Vec<Tick> {
        let tick = |x: f64| Tick { at: self.at(x), label: short(x) };
        if self.logarithmic {
            // 1, 2 and 5, or powers of ten, or a few of them.
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            for steps in [&[1.0, 2.0, 5.0][..], &[1.0]] {
                let all: Vec<f64> = decades
                    .clone()
                    .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
                    .filter(|x| (self.low..=self.high).contains(x))
                    .collect();
                if all.len() <= most {
                    return all.into_iter().map(tick).collect();
                }
            }
        }
        let raw = (self.high - self.low) / most as f64;
        let power = 10f64.powf(raw.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|x| x * power).find(|step| *step >= raw).unwrap_or(raw);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        (first..=last).take(most + 1).map(|i| tick(i as f64 * step)).collect()
    }
}

/// A number in few letters.
fn short(x: f64) -> String {
    let text = format!("{x:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "0" | "-0" if x != 0.0 => format!("{x:.0e}"),
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// A point before it has a scale.
struct Point {
    x: f64,
    y: f64,
    /// Low and high values.
    band: Option<(f64, f64)>,
    tip: String,
}

/// A curve before it has a scale.
struct Raw {
    name: String,
    points: Vec<Point>,
}

/// The picture of some curves; none where no curve has two points.
fn chart(
    title: String,
    (x_name, y_name): (&'static str, &'static str),
    (x_log, y_log): (bool, bool),
    mut raw: Vec<Raw>,
    dots: bool,
) -> Option<Chart> {
    for curve in &mut raw {
        curve.points.retain(|point| point.x.is_finite() && point.y.is_finite());
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    raw.retain(|curve| !curve.points.is_empty());
    if !raw.iter().any(|curve| curve.points.len() > 1) {
        return None;
    }
    let (left, top) = (SPACE.0, SPACE.1);
    let (right, bottom) = (SIZE.0 - SPACE.2, SIZE.1 - SPACE.3);
    let points = || raw.iter().flat_map(|curve| &curve.points);
    let x = Scale::of(points().map(|point| point.x), x_log, left, right)?;
    let all =
        points().flat_map(|Point { y, band, .. }| [*y, band.map_or(*y, |b| b.0), band.map_or(*y, |b| b.1)]);
    let y = Scale::of(all, y_log, bottom, top)?;
    let path = |places: &mut dyn Iterator<Item = (f64, f64)>| {
        let words: Vec<String> = places
            .enumerate()
            .map(|(i, (a, b))| format!("{}{} {}", if i == 0 { "M" } else { "L" }, x.at(a), y.at(b)))
            .collect();
        words.join("")
    };
    let curves = raw
        .iter()
        .enumerate()
        .map(|(place, curve)| {
            let banded = || curve.points.iter().filter_map(|point| Some((point.x, point.band?)));
            let band = if banded().count() > 1 {
                let above = banded().map(|(x, band)| (x, band.1));
                let below: Vec<_> = banded().map(|(x, band)| (x, band.0)).collect();
                path(&mut above.chain(below.into_iter().rev())) + "Z"
            } else {
                String::new()
            };
            Curve {
                name: curve.name.clone(),
                color: if curve.name == NOISE { COLORS - 1 } else { place % (COLORS - 1) },
                line: path(&mut curve.points.iter().map(|point| (point.x, point.y))),
                band,
                dots: curve
                    .points
                    .iter()
                    .filter(|_| dots)
                    .map(|point| Dot { x: x.at(point.x), y: y.at(point.y), tip: point.tip.clone() })
                    .collect(),
            }
        })
        .collect();
    let (x_ticks, y_ticks) = (x.ticks(6), y.ticks(8));
    Some(Chart { title, x_name, y_name, x_ticks, y_ticks, curves, frame: [left, top, right, bottom] })
}

/// What a shape says beside its sizes; `plain` of one that says nothing.
fn form(cell: &Cell) -> String {
    cell.shape.splitn(6, ',').nth(5).map_or_else(|| "plain".to_owned(), str::to_owned)
}

/// Adds a point to the curve `name`.
fn add(curves: &mut Vec<Raw>, name: String, point: Point) {
    match curves.iter_mut().find(|curve| curve.name == name) {
        Some(curve) => curve.points.push(point),
        None => curves.push(Raw { name, points: vec![point] }),
    }
}

/// Latencies and ratios against the number of keys: a picture of each for all cells that differ in nothing but that,
/// their method and what the shape says beside its sizes.
#[must_use]
pub fn of_cells(cells: &[Cell]) -> Vec<Chart> {
    let measured = || cells.iter().filter(|cell| cell.samples > 0);
    let family = |cell: &Cell| {
        let Cell { dtype, batch, heads, kv_heads, d, .. } = cell;
        // One query decodes; as many as keys encode.
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
            let name = format!("{} {}", cell.method, form(cell));
            let tip = format!("{}: {:.4} ms, percentile(99%) {:.4} ms", cell.shape, cell.p50_ms, cell.p99_ms);
            add(&mut latencies, name, Point { x: n, y: cell.p50_ms, band: None, tip });
            if let (Some(ratio), true) = (cell.speedup_vs_math, cell.method == ELSA) {
                let band = cell.ratio_low.zip(cell.ratio_high);
                let tip = format!("{}: {ratio:.3}", cell.shape);
                add(&mut ratios, form(cell), Point { x: n, y: ratio, band, tip });
                if let Some(noise) = cell.noise.filter(|_| form(cell) == "plain") {
                    let tip = format!("{:.1} %", noise * 100.0);
                    let band = Some(((1.0 - noise).max(0.0), 1.0 + noise));
                    add(&mut of_noise, NOISE.to_owned(), Point { x: n, y: 1.0, band, tip });
                }
            }
        }
        charts.extend(chart(format!("Median latency: {of}"), ("keys", "ms"), (true, true), latencies, true));
        ratios.append(&mut of_noise);
        charts.extend(chart(format!("math / elsa: {of}"), ("keys", "ratio"), (true, false), ratios, true));
    }
    charts
}

/// Power, temperature, clocks and the load of others against time.
#[must_use]
pub fn of_traces(traces: &[Trace]) -> Vec<Chart> {
    /// What a trace has of a quantity.
    type Of = fn(&Trace) -> Option<f64>;
    /// Title, unit and curves of a picture.
    type Picture<'a> = (&'static str, &'static str, &'a [(&'static str, Of)]);
    let pictures: [Picture<'_>; 4] = [
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
        let of = |(name, of): &(&'static str, Of)| Raw {
            name: (*name).to_owned(),
            points: traces
                .iter()
                .filter_map(|t| Some(Point { x: t.t_s, y: of(t)?, band: None, tip: String::new() }))
                .collect(),
        };
        curves.iter().map(of).collect()
    };
    let of = |(title, unit, curves): Picture<'_>| {
        chart(title.to_owned(), ("s", unit), (false, false), raw(curves), false)
    };
    pictures.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let [left, top, right, bottom] = charts[0].frame;
        let inside = |dot: &Dot| (left..=right).contains(&dot.x) && (top..=bottom).contains(&dot.y);
        assert!(latency.dots.iter().all(inside), "{latency:?}");
        // Equal factors are equal steps, from the left and from below.
        let [a, b, c] = &latency.dots[..] else { panic!("three") };
        assert!(((b.x - a.x) - (c.x - b.x)).abs() < 0.3 && ((a.y - b.y) - (b.y - c.y)).abs() < 0.3);
        assert!(a.x < b.x && a.y > b.y);
        assert!(charts[1].curves.iter().any(|curve| curve.name == "noise" && curve.band.ends_with('Z')));
        assert!(charts.iter().all(|chart| chart.x_ticks.len() >= 2 && chart.y_ticks.len() >= 2));
        // One point is no curve, and a refused cell is none.
        assert_eq!(of_cells(&[cell(100, 0.1)]), []);
        assert_eq!(of_cells(&[cell(100, 0.1), Cell { samples: 0, ..cell(200, 0.2) }]), []);
        assert_eq!(of_cells(&[cell(100, 0.0), cell(200, -1.0)]).len(), 1);
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

    #[test]
    fn marks_are_few_and_round() {
        for (low, high) in [(0.01, 30.0), (64.0, 900.0), (1e-9, 1e9), (3.0, 3.0), (0.99, 1.01)] {
            for logarithmic in [false, true] {
                let scale = Scale::of([low, high].into_iter(), logarithmic, 0.0, 100.0).unwrap();
                let ticks = scale.ticks(7);
                assert!(ticks.len() <= 8, "{low} {high} {ticks:?}");
                assert!(ticks.iter().all(|tick| (0.0..=100.0).contains(&tick.at)), "{ticks:?}");
            }
        }
        assert_eq!([1.0, 0.5, 0.05, 200.0, 1e-6].map(short), ["1", "0.5", "0.05", "200", "1e-6"]);
        assert!(Scale::of([0.0, 1.0].into_iter(), true, 0.0, 1.0).is_none());
        assert!(Scale::of([f64::NAN].into_iter(), false, 0.0, 1.0).is_none());
    }
}
