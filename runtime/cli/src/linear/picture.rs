//! Time against tokens as one picture that needs nothing but itself, with the crossovers of forms.

use super::table::{Crossover, Family};
use crate::chart::{Chart, Point, Raw, SIZE, chart};
use crate::error::Error;
use askama::Template;
use elsa_core::linear::Form;

/// The curves of the forms.
fn curves(family: &Family) -> Option<Chart> {
    let curves = Form::ALL.into_iter().map(|form| Raw {
        name: form.name().to_owned(),
        faint: false,
        points: family
            .rows
            .iter()
            .filter(|row| row.form == form)
            .map(|row| Point {
                x: row.tokens as f64,
                y: row.ns_per_token,
                band: None,
                tip: format!(
                    "{} tokens: {:.1} ns, {:.4} ms a call",
                    row.tokens, row.ns_per_token, row.p50_ms
                ),
            })
            .collect(),
    });
    chart(family.title.clone(), ("tokens", "ns"), (true, true), curves.collect(), true)
}

/// A curve's name with its place below a chart.
struct Named {
    x: f64,
    y: f64,
    color: usize,
    name: String,
}

/// A chart with its place.
struct Placed {
    x: f64,
    y: f64,
    chart: Chart,
    legend: Vec<Named>,
    /// Lines below the legend.
    notes: Vec<(f64, String)>,
}

/// Space above a chart for its title, and below it for its legend and its crossovers.
const ABOVE: f64 = 24.0;
const LINE: f64 = 15.0;
/// Names of curves beside each other, and the width of each.
const NAMES: usize = 3;
const NAME: f64 = 115.0;
/// Charts beside each other.
const COLUMNS: usize = 2;
/// Space around charts.
const GAP: f64 = 16.0;

/// What the template has.
#[derive(Template)]
#[template(path = "linear.svg", escape = "html")]
struct Page {
    charts: Vec<Placed>,
    width: f64,
    height: f64,
}

/// The picture: a chart for each of `families` of which two lengths were measured.
///
/// # Errors
/// None: memory takes every page.
pub fn page(families: &[Family]) -> Result<String, Error> {
    let drawn: Vec<(Chart, Vec<Crossover>)> =
        families.iter().filter_map(|family| Some((curves(family)?, family.crossovers()))).collect();
    let names = |chart: &Chart| chart.curves.len().div_ceil(NAMES);
    let lines = drawn.iter().map(|(chart, notes)| names(chart) + notes.len()).max().unwrap_or(0);
    let (wide, high) = (SIZE.0 + GAP, ABOVE + SIZE.1 + LINE * (lines + 1) as f64 + GAP);
    let (columns, rows) = (drawn.len().clamp(1, COLUMNS), drawn.len().div_ceil(COLUMNS).max(1));
    let below = |line: usize| SIZE.1 + LINE * (line + 1) as f64;
    let placed = |(at, (chart, notes)): (usize, (Chart, Vec<Crossover>))| Placed {
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
        notes: notes
            .iter()
            .enumerate()
            .map(|(at, note)| (below(names(&chart) + at), note.to_string()))
            .collect(),
        chart,
    };
    let page = Page {
        width: GAP + columns as f64 * wide,
        height: GAP + rows as f64 * high,
        charts: drawn.into_iter().enumerate().map(placed).collect(),
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}
