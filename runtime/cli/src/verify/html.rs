//! Renders cases as one self-contained page, without external scripts, fonts or images.
//!
//! The plots follow ELSA's figures 6 and 7: a histogram of errors and bounds over rows, and a map of `|δP|` over
//! queries and keys. The template escapes every text. Colours come from the style sheet, so they follow the reader's
//! choice of light or dark.

use super::case::{Case, Metric};
use super::print::metrics;
use super::verdict::Summary;
use crate::error::Error;
use crate::picture::{Axis, BOTTOM, Bar, HeatMap, Picture, Scale, TOP};
use crate::verdict::Verdict;
use askama::Template;

/// Number of histogram bins per factor of ten.
const BINS: f64 = 4.0;

/// Values that the template shows for a case.
struct Shown<'a> {
    case: &'a Case,
    good: bool,
    /// For each metric: its name, its median, its 95th and 99th percentiles, and its total.
    metrics: Vec<(&'static str, [String; 4])>,
    /// For each bound: its name, its value, the largest ratio of an error to the bound, and the number of violations.
    bounds: Vec<[String; 4]>,
    pictures: Vec<Picture>,
}

/// Values that the template shows on the page.
#[derive(Template)]
#[template(path = "verify.html")]
struct Page<'a> {
    summary: String,
    good: bool,
    version: &'static str,
    cases: Vec<Shown<'a>>,
}

/// Renders the page for `cases`.
///
/// # Errors
/// Returns [`Error::Print`] if the template cannot be rendered. The page is written to memory, so no I/O can fail.
pub fn page(summary: &Summary, cases: &[Case]) -> Result<String, Error> {
    let page = Page {
        summary: summary.to_string(),
        good: summary.verdict == Verdict::Pass,
        version: env!("CARGO_PKG_VERSION"),
        cases: cases.iter().map(shown).collect(),
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

/// Draws a histogram of rows by error and by bound; returns `None` if no row has an error.
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
    // The axis of counts is logarithmic and begins at half a row.
    let most = counts.iter().flat_map(|counts| counts.values()).copied().max().unwrap_or(1) as f64;
    let y = Scale::of(Axis::log("rows"), [0.5, most].into_iter(), BOTTOM, TOP)?;
    let y_ticks = y.ticks().into_iter().filter(|tick| !tick.label.contains('.')).collect();
    let title = "Error and bound of each row".to_owned();
    let mut picture = Picture::new(title, ["of max Σ p |v|", "rows"], y_ticks);
    let [left, _, right, bottom] = picture.area;
    let edge = |bin: i64| 10f64.powf(bin as f64 / BINS);
    let edges = counts.iter().flat_map(|counts| counts.keys()).flat_map(|bin| [edge(*bin), edge(bin + 1)]);
    let x = Scale::of(Axis::log("of max Σ p |v|"), edges, left, right)?;
    for (color, counts) in counts.iter().enumerate() {
        for (bin, count) in counts {
            let (from, to, height) = (x.at(edge(*bin)), x.at(edge(bin + 1)), y.at(*count as f64));
            picture.bars.push(Bar {
                x: from,
                y: height,
                width: to - from - 0.5,
                height: bottom - height,
                color,
                tip: format!("{count} rows from {:.1e} to {:.1e}", edge(*bin), edge(bin + 1)),
            });
        }
    }
    picture.x_ticks = x.ticks();
    picture.legend = vec![(0, "max |dY|, measured".to_owned()), (1, "worst-case bound".to_owned())];
    Some(picture)
}

/// Draws the heat map of `|δP|`.
fn map(heat: &HeatMap) -> Option<Picture> {
    let most = heat.most();
    let title = format!("|dP| of the first head, at most {most:.1e}");
    let legend = format!("{most:.1e}, and less where it fades; the greatest of each cell");
    heat.picture(title, ["keys", "queries"], legend, |x| x / most)
}

#[cfg(test)]
mod tests {
    use super::super::case::tests::case;
    use super::*;
    use crate::picture::faults;

    #[test]
    fn bars_lie_where_their_numbers_are() {
        let rows = [[1e-7, 1e-5], [1.1e-7, 1e-5], [3e-7, 1e-5], [0.0, f64::INFINITY], [f64::NAN, 1e-4]];
        let picture = histogram(&rows).unwrap();
        let of = |color| picture.bars.iter().filter(move |bar| bar.color == color).collect::<Vec<_>>();
        assert_eq!((of(0).len(), of(1).len()), (2, 2));
        let [left, top, right, bottom] = picture.area;
        for bar in &picture.bars {
            assert!(bar.x >= left && bar.x + bar.width <= right && bar.y >= top, "{bar:?}");
            assert!((bar.y + bar.height - bottom).abs() < 1e-9, "{bar:?}");
        }
        // A bar for two rows is higher than a bar for one, and the bounds are to the right of the errors.
        assert!(of(0)[0].height > of(0)[1].height && of(1)[0].x > of(0)[1].x);
        assert!(histogram(&[[0.0, 0.0]]).is_none() && histogram(&[]).is_none());
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
        assert_eq!(faults(&page), [""; 0]);
        for words in ["PASS: the case passes", "<svg", "Jensen-Shannon", "as printed", "because of"] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
