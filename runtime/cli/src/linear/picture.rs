//! Charts of time against tokens, in one self-contained picture that also lists the crossovers between forms.

use super::table::{Family, Row};
use crate::error::Error;
use crate::picture::{Axis, Picture, Point, Raw, chart, sheet};
use elsa_core::linear::Form;

/// Draws the curves of the forms.
fn curves(family: &Family) -> Option<Picture> {
    let point = |row: &Row| {
        let tip = format!("{} tokens: {:.1} ns, {:.4} ms a call", row.tokens, row.ns_per_token, row.p50_ms);
        Point::new(row.tokens as f64, row.ns_per_token, tip)
    };
    let curves = Form::ALL
        .into_iter()
        .map(|form| Raw::new(form.name(), family.rows.iter().filter(|row| row.form == form).map(point)));
    chart(family.title.clone(), [Axis::log("tokens"), Axis::log("ns")], curves.collect(), true)
}

/// Returns the picture: a chart for each of `families` that was measured for at least two numbers of tokens.
///
/// # Errors
/// Never fails, because it writes to memory.
pub fn page(families: &[Family]) -> Result<String, Error> {
    let crossovers = |family: &Family| family.crossovers().iter().map(ToString::to_string).collect();
    let drawn = families.iter().filter_map(|family| Some((curves(family)?, crossovers(family))));
    let drawn: Vec<(Picture, Vec<String>)> = drawn.collect();
    let page = sheet("elsa linear bench: nanoseconds per token and head", &drawn);
    page.map_err(|e| Error::Print(std::io::Error::other(e)))
}
