//! An SVG file of several pictures, which needs no other file.

use super::parts::{Label, Picture, WIDTH};
use super::text::{ABOVE, BELOW, LINE, width, wrap};
use askama::Template;

/// Number of pictures per row.
const COLUMNS: usize = 2;
/// Space around pictures.
const GAP: f64 = 16.0;
/// Width of the colour of a legend's entry, with the space behind it.
const KEY: f64 = 20.0;

/// The colour of a legend's entry, at its place.
struct ColorKey {
    x: f64,
    y: f64,
    color: usize,
}

/// A picture's place in the file, and everything around the picture. Places are relative to `x` and `y`.
struct Placed {
    x: f64,
    y: f64,
    /// Top edge of the picture.
    top: f64,
    title: Vec<Label>,
    keys: Vec<ColorKey>,
    /// Names of the legend, then the notes.
    labels: Vec<Label>,
    /// Height of the title, the picture, the legend and the notes.
    height: f64,
}

/// Returns the lines of `texts`, each divided to fit `room`, from `x` on. The first line begins at `top`. Also returns
/// the bottom edge of the last line.
fn lines<'a>(
    texts: impl IntoIterator<Item = &'a str>,
    bold: bool,
    (x, room): (f64, f64),
    top: f64,
) -> (Vec<Label>, f64) {
    let texts = texts.into_iter().flat_map(|text| wrap(text, bold, room));
    let label = |(line, text): (usize, String)| Label {
        x,
        y: top + ABOVE + LINE * line as f64,
        anchor: "start",
        text,
    };
    let labels: Vec<Label> = texts.enumerate().map(label).collect();
    let bottom = labels.last().map_or(top, |last| last.y + BELOW);
    (labels, bottom)
}

/// Places `picture`, with its title above and its legend and `notes` below. The title has the height `title_height`.
fn placed(picture: &Picture, notes: &[String], title_height: f64) -> Placed {
    let (title, _) = lines([picture.title.as_str()], true, (0.0, WIDTH), 0.0);
    let mut bottom = title_height + picture.height();
    let (mut keys, mut labels) = (Vec::new(), Vec::new());
    // The next entry of the legend begins at `x`, or on a new line if the current line has no room for it.
    let (mut x, mut top) = (0.0, bottom);
    for (color, name) in &picture.legend {
        let wide = KEY + width(name, false);
        if x > 0.0 && x + wide > WIDTH {
            (x, top) = (0.0, bottom);
        }
        let (names, end) = lines([name.as_str()], false, (x + KEY, WIDTH - x - KEY), top);
        keys.push(ColorKey { x, y: top + ABOVE / 2.0, color: *color });
        labels.extend(names);
        bottom = end.max(top + ABOVE + BELOW) + (LINE - ABOVE - BELOW);
        x += wide + GAP;
    }
    let (notes, end) = lines(notes.iter().map(String::as_str), false, (0.0, WIDTH), bottom);
    labels.extend(notes);
    Placed { x: 0.0, y: 0.0, top: title_height, title, keys, labels, height: end }
}

/// Variables of the template.
#[derive(Template)]
#[template(path = "sheet.svg", escape = "html")]
struct Sheet<'a> {
    label: &'a str,
    pictures: Vec<(&'a Picture, Placed)>,
    width: f64,
    height: f64,
}

/// Returns one SVG file of several pictures, each with its title above it, and its legend and its notes below it.
/// `label` is the text alternative of the file.
///
/// # Errors
/// Returns an error if the template fails. The file is rendered in memory, so no I/O can fail.
pub fn sheet(label: &str, drawn: &[(Picture, Vec<String>)]) -> Result<String, askama::Error> {
    let mut pictures = Vec::new();
    let (mut top, mut right) = (GAP, GAP);
    for row in drawn.chunks(COLUMNS) {
        let title = |(picture, _): &(Picture, Vec<String>)| {
            lines([picture.title.as_str()], true, (0.0, WIDTH), 0.0).1
        };
        // The pictures of a row begin at the same height.
        let title_height = row.iter().map(title).fold(0.0, f64::max);
        let mut bottom = top;
        for (column, (picture, notes)) in row.iter().enumerate() {
            let mut placed = placed(picture, notes, title_height);
            (placed.x, placed.y) = (GAP + column as f64 * (WIDTH + GAP), top);
            bottom = bottom.max(top + placed.height);
            right = right.max(placed.x + WIDTH + GAP);
            pictures.push((picture, placed));
        }
        top = bottom + GAP;
    }
    Sheet { label, pictures, width: right, height: top.ceil() }.render()
}
