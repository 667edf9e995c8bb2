//! Curves as SVG: scales, ticks and paths. Points that are not finite are skipped.

use askama::Template;

/// Width and height of a picture in SVG units. On a small screen, a unit is a pixel.
pub const SIZE: (f64, f64) = (344.0, 230.0);
/// Number of curve colours. The last colour is faint.
pub const COLORS: usize = 8;
/// Widths of the margins for labels: left, top, right and bottom.
pub const SPACE: (f64, f64, f64, f64) = (46.0, 10.0, 10.0, 34.0);

/// A mark of an axis.
#[derive(Debug, PartialEq)]
pub struct Tick {
    /// Position along the axis, in SVG units.
    pub at: f64,
    /// Number at the mark.
    pub label: String,
}

/// A measured point.
#[derive(Debug, PartialEq)]
pub struct Dot {
    /// Distance from the left edge of the picture.
    pub x: f64,
    /// Distance from the top edge of the picture.
    pub y: f64,
    /// Tooltip.
    pub tip: String,
}

/// A curve.
#[derive(Debug, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Index of the colour.
    pub color: usize,
    /// SVG path of the line.
    pub line: String,
    /// SVG path of the area between low and high values; empty if the points have no low and high values.
    pub band: String,
    /// Marked points of the curve.
    pub dots: Vec<Dot>,
}

/// A picture.
#[derive(Debug, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Label of the x axis.
    pub x_name: &'static str,
    /// Label of the y axis.
    pub y_name: &'static str,
    /// Marks of the x axis.
    pub x_ticks: Vec<Tick>,
    /// Marks of the y axis.
    pub y_ticks: Vec<Tick>,
    /// The curves.
    pub curves: Vec<Curve>,
    /// Left, top, right and bottom edges of the area that the curves fill.
    pub frame: [f64; 4],
}

/// Mapping of numbers to positions.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    begin: f64,
    end: f64,
}

impl Scale {
    /// Creates a scale that shows all finite numbers, with positions from `begin` to `end`. `None` if there are no
    /// finite numbers, or if the scale is logarithmic and a number is not positive.
    #[must_use]
    pub fn of(numbers: impl Iterator<Item = f64>, logarithmic: bool, begin: f64, end: f64) -> Option<Scale> {
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

    /// Returns the position of a number.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let of = |x: f64| if self.logarithmic { x.ln() } else { x };
        let share = (of(x) - of(self.low)) / (of(self.high) - of(self.low));
        ((self.begin + share * (self.end - self.begin)) * 10.0).round() / 10.0
    }

    /// Returns at least three and at most `most + 1` marks at round numbers. `most` is at least six.
    #[must_use]
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        let tick = |x: f64| Tick { at: self.at(x), label: short(x) };
        if self.logarithmic {
            // Marks are at 1, 2 and 5 times powers of ten, or at fewer multiples if these are too many. If no choice
            // has three marks or if the last choice has too many, marks are at equal steps.
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            for steps in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
                let all: Vec<f64> = decades
                    .clone()
                    .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
                    .filter(|x| (self.low..=self.high).contains(x))
                    .collect();
                if (3..=most).contains(&all.len()) {
                    return all.into_iter().map(tick).collect();
                }
            }
        }
        let raw = (self.high - self.low) / most as f64;
        let power = 10f64.powf(raw.log10().floor());
        // A step is at most twice the previous one, so the range has more than `most / 2` steps.
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|x| x * power);
        let step = steps.into_iter().find(|step| *step >= raw).unwrap_or(raw);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        (first..=last).take(most + 1).map(|i| tick(i as f64 * step)).collect()
    }
}

/// Formats a number with few characters: three digits below a thousandth, and three decimals or three digits otherwise.
fn short(x: f64) -> String {
    let trimmed = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let decimals = match x.abs() {
        0.0 => return "0".to_owned(),
        size if size < 1e-3 => {
            let text = format!("{x:.2e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            return format!("{}e{exponent}", trimmed(digits));
        }
        size if size >= 1e5 => return format!("{x:e}"),
        size if size < 1e-2 => 5,
        size if size < 1e-1 => 4,
        _ => 3,
    };
    trimmed(&format!("{x:.decimals$}"))
}

/// A point of a curve, in the units of the axes.
#[derive(Debug)]
pub struct Point {
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis.
    pub y: f64,
    /// Low and high values on the y axis, if the point has them.
    pub band: Option<(f64, f64)>,
    /// Tooltip.
    pub tip: String,
}

impl Point {
    /// Creates a point without a band.
    #[must_use]
    pub fn new(x: f64, y: f64, tip: String) -> Point {
        Point { x, y, band: None, tip }
    }
}

/// A curve to be drawn, in the units of the axes.
#[derive(Debug)]
pub struct Raw {
    /// Name in the legend.
    pub name: String,
    /// Points in any order.
    pub points: Vec<Point>,
    /// `true` if the curve has the last colour, which is faint.
    pub faint: bool,
}

impl Raw {
    /// Creates a curve that is not faint.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = Point>) -> Raw {
        Raw { name: name.into(), points: points.into_iter().collect(), faint: false }
    }
}

/// Draws curves; `None` if all points have the same `x`. `x_log` and `y_log` make the scales of the x axis and the y
/// axis logarithmic. `dots` marks each point with a dot.
#[must_use]
pub fn chart(
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
    let first = raw.first()?.points.first()?.x;
    if raw.iter().flat_map(|curve| &curve.points).all(|point| point.x == first) {
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
                color: if curve.faint { COLORS - 1 } else { place % (COLORS - 1) },
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

/// Name of a curve, with its position in the legend below a chart.
struct Named {
    x: f64,
    y: f64,
    color: usize,
    name: String,
}

/// A chart with its position on the page.
struct Placed {
    x: f64,
    y: f64,
    chart: Chart,
    legend: Vec<Named>,
    /// Lines of notes below the legend, each with its distance from the top of the page.
    notes: Vec<(f64, String)>,
}

/// Height of the title above a chart. The legend and the notes are below the chart, and each of their lines is `LINE`
/// high.
const ABOVE: f64 = 24.0;
const LINE: f64 = 15.0;
/// Number of curve names per line of the legend. Each curve name is `NAME` wide.
const NAMES: usize = 3;
const NAME: f64 = 115.0;
/// Number of charts per line.
const COLUMNS: usize = 2;
/// Space around charts.
const GAP: f64 = 16.0;

/// Variables of the template.
#[derive(Template)]
#[template(path = "charts.svg", escape = "html")]
struct Page<'a> {
    label: &'a str,
    charts: Vec<Placed>,
    width: f64,
    height: f64,
}

/// Returns one SVG picture of several charts, each with its notes below it. `label` is the text alternative of the
/// picture.
///
/// # Errors
/// Returns an error if the template fails. The page is rendered in memory, so no I/O can fail.
pub fn page(label: &str, drawn: Vec<(Chart, Vec<String>)>) -> Result<String, askama::Error> {
    let names = |chart: &Chart| chart.curves.len().div_ceil(NAMES);
    let lines = drawn.iter().map(|(chart, notes)| names(chart) + notes.len()).max().unwrap_or(0);
    let (wide, high) = (SIZE.0 + GAP, ABOVE + SIZE.1 + LINE * (lines + 1) as f64 + GAP);
    let (columns, rows) = (drawn.len().clamp(1, COLUMNS), drawn.len().div_ceil(COLUMNS).max(1));
    let below = |line: usize| SIZE.1 + LINE * (line + 1) as f64;
    let placed = |(at, (chart, notes)): (usize, (Chart, Vec<String>))| Placed {
        x: GAP + (at % COLUMNS) as f64 * wide,
        y: GAP + (at / COLUMNS) as f64 * high + ABOVE,
        legend: chart
            .curves
            .iter()
            .enumerate()
            .map(|(at, curve)| Named {
                x: (at % NAMES) as f64 * NAME,
                y: below(at / NAMES),
                color: curve.color,
                name: curve.name.clone(),
            })
            .collect(),
        notes: notes.iter().enumerate().map(|(at, note)| (below(names(&chart) + at), note.clone())).collect(),
        chart,
    };
    let page = Page {
        label,
        width: GAP + columns as f64 * wide,
        height: GAP + rows as f64 * high,
        charts: drawn.into_iter().enumerate().map(placed).collect(),
    };
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_few_and_round() {
        let mut ranges =
            vec![(0.01, 30.0), (64.0, 900.0), (1e-9, 1e9), (3.0, 3.0), (0.99, 1.01), (2.0, 200.0)];
        ranges.extend((1..200).map(|n| (7.0, 7.0 * 1.05f64.powi(n))));
        for (low, high) in ranges {
            for (logarithmic, most) in [(false, 6), (false, 8), (true, 6), (true, 8)] {
                let scale = Scale::of([low, high].into_iter(), logarithmic, 0.0, 100.0).unwrap();
                let ticks = scale.ticks(most);
                assert!((3..=most + 1).contains(&ticks.len()), "{low} {high} {ticks:?}");
                assert!(ticks.iter().all(|tick| (0.0..=100.0).contains(&tick.at)), "{ticks:?}");
                let mut labels: Vec<&str> = ticks.iter().map(|tick| tick.label.as_str()).collect();
                labels.dedup();
                assert_eq!(labels.len(), ticks.len(), "{ticks:?}");
            }
        }
        assert_eq!([1.0, 0.5, 0.05, 200.0, 1e-6, 1e6].map(short), ["1", "0.5", "0.05", "200", "1e-6", "1e6"]);
        assert_eq!([0.0025, 1.25e-4, -0.0, 0.125].map(short), ["0.0025", "1.25e-4", "0", "0.125"]);
        assert!(Scale::of([0.0, 1.0].into_iter(), true, 0.0, 1.0).is_none());
        assert!(Scale::of([f64::NAN].into_iter(), false, 0.0, 1.0).is_none());
    }
}
