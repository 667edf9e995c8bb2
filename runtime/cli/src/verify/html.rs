//! Cases and curves as one page that needs nothing but itself: no script, no font and no picture from elsewhere.
//!
//! The pictures are those of ELSA's figures 6 and 7: a histogram of errors over rows, here with that of the bounds beside it,
//! and a map of `|δP|` over queries and keys. The template escapes every text, and colours come from the style sheet, so
//! that they follow the reader's choice of light or dark.

use super::case::{Case, Metric, Verdict};
use super::depth::{self, Step};
use super::extract::HeatMap;
use super::print::metrics;
use super::verdict::Summary;
use crate::chart::{Chart, SIZE, SPACE, Scale, Tick};
use crate::error::Error;
use askama::Template;
use std::fmt::Write;

/// Bins of a histogram in each factor of ten.
const BINS: f64 = 4.0;

/// Shades of a map.
const SHADES: usize = 16;

/// A bar of a histogram.
#[derive(Debug, PartialEq)]
struct Bar {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
    /// The number of its colour.
    color: usize,
    /// What it says when it is pointed at.
    tip: String,
}

/// Cells of a map that have the same shade.
#[derive(Debug, PartialEq)]
struct Shade {
    /// How much of the colour shows, from 0 to 1.
    share: f64,
    path: String,
}

/// A picture of rectangles.
#[derive(Debug)]
struct Picture {
    title: String,
    x_name: String,
    y_name: String,
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    bars: Vec<Bar>,
    shades: Vec<Shade>,
    /// Left, top, right and bottom of the rectangles.
    frame: [f64; 4],
    /// Names of the colours.
    legend: Vec<(usize, String)>,
}

/// What the template has of a case.
struct Shown<'a> {
    case: &'a Case,
    good: bool,
    /// Names of the metrics with their four numbers.
    metrics: Vec<(&'static str, [String; 4])>,
    /// Names of the bounds, what they allow, how much is used, how often they are violated.
    bounds: Vec<[String; 4]>,
    pictures: Vec<Picture>,
}

/// The page of cases.
#[derive(Template)]
#[template(path = "verify.html")]
struct Page<'a> {
    summary: String,
    good: bool,
    version: &'static str,
    cases: Vec<Shown<'a>>,
    width: f64,
    height: f64,
}

/// The page of curves.
#[derive(Template)]
#[template(path = "depth.html")]
struct Depth<'a> {
    version: &'static str,
    charts: Vec<Chart>,
    grown: Vec<String>,
    explained: &'static str,
    steps: &'a [Step],
    width: f64,
    height: f64,
}

/// The page of `cases`.
///
/// # Errors
/// None: memory takes every page.
pub fn page(summary: &Summary, cases: &[Case]) -> Result<String, Error> {
    let page = Page {
        summary: summary.to_string(),
        good: summary.verdict == Verdict::Pass,
        version: env!("CARGO_PKG_VERSION"),
        cases: cases.iter().map(shown).collect(),
        width: SIZE.0,
        height: SIZE.1,
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

/// The page of the curves of `steps`.
///
/// # Errors
/// None: memory takes every page.
pub fn depth(steps: &[Step]) -> Result<String, Error> {
    let page = Depth {
        version: env!("CARGO_PKG_VERSION"),
        charts: depth::charts(steps),
        grown: depth::grown(steps),
        explained: depth::EXPLAINED,
        steps,
        width: SIZE.0,
        height: SIZE.1,
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

fn shown(case: &Case) -> Shown<'_> {
    let number = |x: f64| if x.is_finite() { format!("{x:.2e}") } else { "–".to_owned() };
    let four = |m: Metric| [m.median, m.p95, m.p99, m.total].map(number);
    let mut bounds = vec![[
        "rigorous, worst case".to_owned(),
        format!("{} Σ p |v|", number(case.bound_over_terms)),
        number(case.bound_used),
        format!("{} of {} components", case.beyond, case.components),
    ]];
    if let Some(printed) = case.printed {
        bounds.push([
            "ELSA theorem 1 as printed".to_owned(),
            format!("{} |Y|", number(printed.bound)),
            number(printed.used),
            format!("{} of {} rows", printed.rows_beyond, case.rows),
        ]);
    }
    let named = |(name, metric): (&'static str, Option<Metric>)| Some((name, four(metric?)));
    Shown {
        case,
        good: case.verdict == Verdict::Pass,
        metrics: metrics(case).into_iter().filter_map(named).collect(),
        bounds,
        pictures: [histogram(&case.pictures.rows), case.pictures.heat.as_ref().and_then(map)]
            .into_iter()
            .flatten()
            .collect(),
    }
}

/// Where pictures lie in their frame.
const FRAME: [f64; 4] = [SPACE.0, SPACE.1, SIZE.0 - SPACE.2, SIZE.1 - SPACE.3];

/// How many rows have which error and which bound. None without a row that has an error.
fn histogram(rows: &[[f64; 2]]) -> Option<Picture> {
    let bin = |x: f64| (x.log10() * BINS).floor() as i64;
    let counted = |kind: usize| {
        let mut counts = std::collections::BTreeMap::<i64, usize>::new();
        for x in rows.iter().map(|row| row[kind]).filter(|x| *x > 0.0 && x.is_finite()) {
            *counts.entry(bin(x)).or_default() += 1;
        }
        counts
    };
    let counts = [counted(0), counted(1)];
    let [left, top, right, bottom] = FRAME;
    let edge = |bin: i64| 10f64.powf(bin as f64 / BINS);
    let edges = counts.iter().flat_map(|counts| counts.keys()).flat_map(|bin| [edge(*bin), edge(bin + 1)]);
    let x = Scale::of(edges, true, left, right)?;
    // A logarithmic scale, from half a row on.
    let most = counts.iter().flat_map(|counts| counts.values()).copied().max().unwrap_or(1) as f64;
    let y = Scale::of([0.5, most].into_iter(), true, bottom, top)?;
    let mut bars = Vec::new();
    for (color, counts) in counts.iter().enumerate() {
        for (bin, count) in counts {
            let (from, to, height) = (x.at(edge(*bin)), x.at(edge(bin + 1)), y.at(*count as f64));
            bars.push(Bar {
                x: from,
                y: height,
                width: to - from - 0.5,
                height: bottom - height,
                color,
                tip: format!("{count} rows from {:.1e} to {:.1e}", edge(*bin), edge(bin + 1)),
            });
        }
    }
    Some(Picture {
        title: "Error and bound of each row".to_owned(),
        x_name: "of max Σ p |v|".to_owned(),
        y_name: "rows".to_owned(),
        x_ticks: x.ticks(7),
        y_ticks: y.ticks(8).into_iter().filter(|tick| !tick.label.starts_with("0.")).collect(),
        bars,
        shades: Vec::new(),
        frame: FRAME,
        legend: vec![(0, "max |dY|, measured".to_owned()), (1, "worst-case bound".to_owned())],
    })
}

/// The map of `|δP|`: the more of its colour a cell shows, the nearer it is to the greatest.
fn map(heat: &HeatMap) -> Option<Picture> {
    // Room for the last number of keys.
    let [left, top, right, bottom] = [FRAME[0], FRAME[1], FRAME[2] - 10.0, FRAME[3]];
    let (rows, columns) = (heat.cells.len(), heat.cells.first()?.len());
    let most = heat.most();
    let [queries, keys] = heat.of;
    let (width, height) = ((right - left) / columns as f64, (bottom - top) / rows as f64);
    let mut paths = vec![String::new(); SHADES];
    for (i, row) in heat.cells.iter().enumerate() {
        for (j, x) in row.iter().enumerate().filter(|(_, x)| **x > 0.0) {
            let shade = ((x / most * SHADES as f64).ceil() as usize).clamp(1, SHADES);
            let (left, top) = (left + j as f64 * width, top + i as f64 * height);
            let _ = write!(paths[shade - 1], "M{left:.1} {top:.1}h{width:.2}v{height:.2}h-{width:.2}z");
        }
    }
    let share = |shade: usize| (shade + 1) as f64 / SHADES as f64;
    let shades = paths.into_iter().enumerate().filter(|(_, path)| !path.is_empty());
    let shades = shades.map(|(shade, path)| Shade { share: share(shade), path }).collect();
    let ticks = |count: usize, begin: f64, end: f64| {
        [0, count / 2, count]
            .map(|n| Tick {
                at: begin + (end - begin) * n as f64 / count.max(1) as f64,
                label: n.to_string(),
            })
            .into()
    };
    Some(Picture {
        title: format!("|dP| of the first head, at most {most:.1e}"),
        x_name: "keys".to_owned(),
        y_name: "queries".to_owned(),
        x_ticks: ticks(keys, left, right),
        y_ticks: ticks(queries, top, bottom),
        bars: Vec::new(),
        shades,
        frame: [left, top, right, bottom],
        legend: vec![(0, format!("{most:.1e}, and less where it fades; the greatest of each cell"))],
    })
}

#[cfg(test)]
mod tests {
    use super::super::case::tests::case;
    use super::*;

    #[test]
    fn bars_lie_where_their_numbers_are() {
        let rows = [[1e-7, 1e-5], [1.1e-7, 1e-5], [3e-7, 1e-5], [0.0, f64::INFINITY], [f64::NAN, 1e-4]];
        let picture = histogram(&rows).unwrap();
        let of = |color| picture.bars.iter().filter(move |bar| bar.color == color).collect::<Vec<_>>();
        assert_eq!((of(0).len(), of(1).len()), (2, 2));
        let [left, top, right, bottom] = picture.frame;
        for bar in &picture.bars {
            assert!(bar.x >= left && bar.x + bar.width <= right && bar.y >= top, "{bar:?}");
            assert!((bar.y + bar.height - bottom).abs() < 1e-9, "{bar:?}");
        }
        // Two rows are higher than one, and a bound lies to the right of the errors.
        assert!(of(0)[0].height > of(0)[1].height && of(1)[0].x > of(0)[1].x);
        assert!(histogram(&[[0.0, 0.0]]).is_none() && histogram(&[]).is_none());
    }

    #[test]
    fn the_map_shows_the_greatest_most() {
        let cells = vec![vec![0.0, 1e-8], vec![2e-8, f64::NAN]];
        let picture = map(&HeatMap { of: [10, 20], cells }).unwrap();
        let shades: Vec<f64> = picture.shades.iter().map(|shade| shade.share).collect();
        assert_eq!(shades, [0.5, 1.0]);
        // The greatest lies at the left, half way down.
        let [left, top, _, bottom] = picture.frame;
        let place = format!("M{left:.1} {:.1}h", f64::midpoint(top, bottom));
        assert!(picture.shades[1].path.starts_with(&place), "{:?}", picture.shades[1]);
        assert!(map(&HeatMap::default()).is_none());
    }

    #[test]
    fn a_page_has_its_verdicts_and_fetches_nothing() {
        let mut hostile = case();
        hostile.subject = "<script>alert('x')</script>.npy".into();
        hostile.why = format!("because of {}", hostile.subject);
        hostile.pictures.heat = Some(HeatMap { of: [2, 2], cells: vec![vec![1e-8; 2]; 2] });
        let summary = Summary::of(&[("given".into(), Verdict::Pass)]);
        let page = page(&summary, &[hostile]).unwrap();
        assert!(!page.contains("<script"), "{page}");
        for fetch in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(fetch), "{fetch}");
        }
        for words in ["PASS: 1 of 1 cases pass", "<svg", "Jensen-Shannon", "as printed", "because of"] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
