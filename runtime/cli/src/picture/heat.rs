//! Heat maps of queries and keys.

use super::parts::{BOTTOM, Picture, Shade, TOP, Tick};
use super::text::width;
use elsa_core::drift::larger;
use std::fmt::Write;

/// Number of shades in a map.
const SHADES: usize = 16;

/// Maximum number of rows in a map, and maximum number of columns.
const CELLS: usize = 48;

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
        let (rows, columns) = (self.cells.len(), self.cells.first()?.len());
        let [queries, keys] = self.of;
        let mut picture = Picture::new(title, [x_name, y_name], marks(queries, TOP, BOTTOM));
        // The label of the last key is centred at the right edge of the area.
        picture.area[2] -= width(&keys.to_string(), false) / 2.0;
        let [left, top, right, bottom] = picture.area;
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
        let shades = shades.map(|(shade, path)| Shade { share: share(shade), path });
        picture.shades = shades.collect();
        picture.x_ticks = marks(keys, left, right);
        picture.legend = vec![(0, legend)];
        Some(picture)
    }
}

/// Returns marks at the begin, in the middle and at the end of an axis that counts to `count`.
fn marks(count: usize, begin: f64, end: f64) -> Vec<Tick> {
    let at = |n: usize| begin + (end - begin) * n as f64 / count.max(1) as f64;
    let mut marks: Vec<Tick> = [0, count / 2, count].map(|n| Tick { at: at(n), label: n.to_string() }).into();
    marks.dedup();
    marks
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
        let [left, top, _, bottom] = picture.area;
        let place = format!("M{left:.1} {:.1}h", f64::midpoint(top, bottom));
        assert!(picture.shades[1].path.starts_with(&place), "{:?}", picture.shades[1]);
        let none = HeatMap::default();
        assert!(none.picture("P".into(), ["keys", "queries"], String::new(), |x| x).is_none());
    }
}
