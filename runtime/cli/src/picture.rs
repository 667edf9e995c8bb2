//! Pictures made of rectangles, as SVG: bar charts, and heat maps of queries and keys.

use crate::chart::{SIZE, SPACE, Tick};
use elsa_core::drift::larger;
use std::fmt::Write;

/// Number of shades in a map.
const SHADES: usize = 16;

/// Maximum number of rows in a map, and maximum number of columns.
const CELLS: usize = 48;

/// Left, top, right and bottom edges of the area that a picture fills.
pub const FRAME: [f64; 4] = [SPACE.0, SPACE.1, SIZE.0 - SPACE.2, SIZE.1 - SPACE.3];

/// A bar.
#[derive(Debug, PartialEq)]
pub struct Bar {
    /// Distance from the left edge of the picture.
    pub x: f64,
    /// Distance from the top edge of the picture.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Index of the colour.
    pub color: usize,
    /// Tooltip.
    pub tip: String,
}

/// Cells of a map that have the same shade.
#[derive(Debug, PartialEq)]
pub struct Shade {
    /// Opacity of the colour, from 0 to 1.
    pub share: f64,
    /// SVG path that draws the cells.
    pub path: String,
}

/// A picture of rectangles.
#[derive(Debug)]
pub struct Picture {
    /// Title.
    pub title: String,
    /// Label of the x axis.
    pub x_name: String,
    /// Label of the y axis.
    pub y_name: String,
    /// Marks of the x axis.
    pub x_ticks: Vec<Tick>,
    /// Marks of the y axis.
    pub y_ticks: Vec<Tick>,
    /// Bars, which are drawn as separate rectangles.
    pub bars: Vec<Bar>,
    /// Cells of a map, grouped by shade.
    pub shades: Vec<Shade>,
    /// Left, top, right and bottom edges of the area that the rectangles fill.
    pub frame: [f64; 4],
    /// Entries of the legend: the index of a colour, and the name that belongs to the colour.
    pub legend: Vec<(usize, String)>,
}

/// A map of one head. Each pair of a query and a key has a number. A cell of the map covers several pairs, and shows
/// the maximum of their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// Number of queries and number of keys that the map covers.
    pub of: [usize; 2],
    /// Rows of cells, starting with the first query. If queries are sampled, there is one row for each sampled query.
    pub cells: Vec<Vec<f64>>,
}

impl HeatMap {
    /// Creates a map of zeros.
    #[must_use]
    pub fn new(queries: usize, keys: usize) -> HeatMap {
        HeatMap { of: [queries, keys], cells: vec![vec![0.0; keys.min(CELLS)]; queries.min(CELLS)] }
    }

    /// Merges `row` into the row of cells that covers `query`. `row` contains one number for each column of cells.
    pub fn absorb(&mut self, query: usize, row: &[f64]) {
        let at = query * self.cells.len() / self.of[0].max(1);
        for (cell, x) in self.cells.get_mut(at).into_iter().flatten().zip(row) {
            *cell = larger(*cell, *x);
        }
    }

    /// Returns the maximum of all cells, ignoring NaNs.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.cells.iter().flatten().copied().fold(0.0, f64::max)
    }

    /// Draws the map; `None` if it has no cells. `share` maps the number of a nonzero cell to its opacity, from 0 to 1.
    #[must_use]
    pub fn picture(
        &self,
        title: String,
        [x_name, y_name]: [&str; 2],
        legend: String,
        share: impl Fn(f64) -> f64,
    ) -> Option<Picture> {
        // The margin at the right leaves room for the label of the last key.
        let [left, top, right, bottom] = [FRAME[0], FRAME[1], FRAME[2] - 10.0, FRAME[3]];
        let (rows, columns) = (self.cells.len(), self.cells.first()?.len());
        let [queries, keys] = self.of;
        let (width, height) = ((right - left) / columns as f64, (bottom - top) / rows as f64);
        let mut paths = vec![String::new(); SHADES];
        for (i, row) in self.cells.iter().enumerate() {
            for (j, x) in row.iter().enumerate().filter(|(_, x)| **x > 0.0) {
                let shade = ((share(*x) * SHADES as f64).ceil() as usize).clamp(1, SHADES);
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
            title,
            x_name: x_name.to_owned(),
            y_name: y_name.to_owned(),
            x_ticks: ticks(keys, left, right),
            y_ticks: ticks(queries, top, bottom),
            bars: Vec::new(),
            shades,
            frame: [left, top, right, bottom],
            legend: vec![(0, legend)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_shows_the_greatest_most() {
        let cells = vec![vec![0.0, 1e-8], vec![2e-8, f64::NAN]];
        let map = HeatMap { of: [10, 20], cells };
        let picture = map.picture("P".into(), ["keys", "queries"], String::new(), |x| x / 2e-8).unwrap();
        let shades: Vec<f64> = picture.shades.iter().map(|shade| shade.share).collect();
        assert_eq!(shades, [0.5, 1.0]);
        // The cell with the greatest number is at the left edge, halfway down.
        let [left, top, _, bottom] = picture.frame;
        let place = format!("M{left:.1} {:.1}h", f64::midpoint(top, bottom));
        assert!(picture.shades[1].path.starts_with(&place), "{:?}", picture.shades[1]);
        let none = HeatMap::default();
        assert!(none.picture("P".into(), ["keys", "queries"], String::new(), |x| x).is_none());
    }
}
