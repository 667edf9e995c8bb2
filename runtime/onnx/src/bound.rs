//! Bounds on scores that follow from normalisation, so that a Clip which no score reaches counts as nothing.
//!
//! ```text
//! LayerNormalization over d channels:  ‖row‖ ≤ √d · max |γ| + ‖β‖
//! MatMul(x, W), W constant:            |element| ≤ ‖row of x‖ · max ‖column of W‖
//! MatMul(q, kᵀ) over c channels:       |score| ≤ c · max |q| · max |k|
//! scores − their largest:              |difference| ≤ largest score − smallest score ≤ 2 · max |score|
//! ```
//!
//! Changes of layout keep the bound of an element, a constant factor multiplies it, and a constant bias adds to it. The
//! bounds hold in exact arithmetic; `MARGIN` covers the rounding of f32.

use super::array::{Array, Kind, count};
use super::find::{LONGEST, Site};
use super::node::Node;
use super::size::Size;

/// Factor by which the limit of a Clip must exceed the bound of its scores.
const MARGIN: f64 = 2.0;

impl Site<'_> {
    /// Returns the scores that `clip` leaves unchanged for every input of the model.
    ///
    /// # Errors
    /// Returns why some score may reach a limit.
    pub fn unclipped<'n>(&self, clip: &'n Node) -> Result<&'n str, String> {
        let [low, high] = self.limits(clip);
        let low = low.ok_or("its lower limit is computed")?;
        let high = high.ok_or("its upper limit is computed")?;
        let scores = clip.input(0).ok_or("it has no input")?;
        let most = self.largest_score(scores, 0).ok_or("no bound of its scores follows from the model")?;
        let reached = MARGIN * most;
        if low < -reached && reached < high {
            return Ok(scores);
        }
        Err(format!("it clips at {low} and {high}, and its scores can reach {most:.0}"))
    }

    /// Returns the lower and the upper limit of a Clip; `None` for a limit that is computed.
    fn limits(&self, clip: &Node) -> [Option<f64>; 2] {
        let limit = |i: usize, name: &str, default: f64| match (clip.input(i), clip.float(name)) {
            (Some(input), _) => self.scalar(input),
            (None, Some(x)) => Some(f64::from(x)),
            (None, None) => Some(default),
        };
        [limit(1, "min", f64::NEG_INFINITY), limit(2, "max", f64::INFINITY)]
    }

    /// Returns a bound on the magnitude of scores.
    fn largest_score(&self, name: &str, depth: usize) -> Option<f64> {
        let (_, node) = self.producer(name).filter(|_| depth < LONGEST)?;
        if self.moves(node) {
            return self.largest_score(node.input(0)?, depth + 1);
        }
        if let Some((inner, factor)) = self.scaled(node) {
            return Some(self.largest_score(inner, depth + 1)? * factor.abs());
        }
        if let Some(scores) = self.lessened(node) {
            return self.spread(scores, depth + 1);
        }
        if let (true, [Some(low), Some(high)]) = (node.is("Clip"), self.limits(node)) {
            // Around 0, a Clip brings scores closer to 0.
            return (low <= 0.0 && 0.0 <= high).then(|| self.largest_score(node.input(0)?, depth + 1))?;
        }
        let (queries, keys) = (node.input(0)?, node.input(1)?);
        // The margin covers sums in f32, and not sums in f16.
        let wide = self.symbols.kind(name).is_some_and(|kind| kind == Kind::F32);
        if !node.is("MatMul") || !wide {
            return None;
        }
        Some(self.channels(queries)? * self.largest(queries, 0)? * self.largest(keys, 0)?)
    }

    /// Returns a bound on the difference of the largest and the smallest of some scores.
    fn spread(&self, name: &str, depth: usize) -> Option<f64> {
        let (_, node) = self.producer(name).filter(|_| depth < LONGEST)?;
        // Scores that a Clip changes come closer to each other. Differences from the largest are between 0 and the
        // negative spread, also if each part of the scores has its own largest.
        if self.moves(node) || node.is("Clip") || self.lessened(node).is_some() {
            return self.spread(node.input(0)?, depth + 1);
        }
        Some(2.0 * self.largest_score(name, depth)?)
    }

    /// Returns a bound on the magnitude of the elements of a tensor.
    fn largest(&self, name: &str, depth: usize) -> Option<f64> {
        if let Some(data) = self.constant(name) {
            return Some(peak(&data));
        }
        let (_, node) = self.producer(name).filter(|_| depth < LONGEST)?;
        if self.moves(node) {
            return self.largest(node.input(0)?, depth + 1);
        }
        if let Some((inner, factor)) = self.scaled(node) {
            return Some(self.largest(inner, depth + 1)? * factor.abs());
        }
        if node.is("LayerNormalization") {
            return self.norm(name, depth);
        }
        let (a, b) = (node.input(0)?, node.input(1)?);
        if node.is("Add") {
            let (x, bias) = if self.constant(a).is_some() { (b, a) } else { (a, b) };
            self.constant(bias)?;
            return Some(self.largest(x, depth + 1)? + self.largest(bias, depth + 1)?);
        }
        if !node.is("MatMul") {
            return None;
        }
        let weights = self.constant(b)?;
        let [_, columns] = weights.shape[..] else { return None };
        let mut squares = vec![0.0; columns];
        for row in weights.data.chunks_exact(columns.max(1)) {
            for (sum, x) in squares.iter_mut().zip(row) {
                *sum += x * x;
            }
        }
        Some(self.norm(a, depth + 1)? * squares.into_iter().fold(0.0, f64::max).sqrt())
    }

    /// Returns a bound on the Euclidean norm of the rows of a tensor.
    fn norm(&self, name: &str, depth: usize) -> Option<f64> {
        let channels = self.channels(name)?;
        let (_, node) = self.producer(name)?;
        if !node.is("LayerNormalization") {
            return Some(self.largest(name, depth)? * channels.sqrt());
        }
        let rank = self.symbols.shape(name)?.len();
        let axis = node.int("axis").unwrap_or(-1);
        if axis != -1 && usize::try_from(axis).ok()? + 1 != rank {
            return None;
        }
        let gain = peak(&self.constant(node.input(1)?)?);
        let bias: f64 = match node.input(2) {
            Some(bias) => self.constant(bias)?.data.iter().map(|x| x * x).sum(),
            None => 0.0,
        };
        Some(channels.sqrt() * gain + bias.sqrt())
    }

    /// Returns the size of the last axis of a tensor, if no free axis determines it.
    fn channels(&self, name: &str) -> Option<f64> {
        self.symbols.shape(name)?.last().and_then(Size::known).map(|n| n as f64)
    }

    /// Returns a tensor that depends only on constants, if its elements are finite.
    fn constant(&self, name: &str) -> Option<Array> {
        let world = self.worlds.first().filter(|_| self.symbols.is_fixed(name))?;
        count(world.shape(name)?, world.limits().elements)?;
        let array = world.array(name)?;
        array.data.iter().all(|x| x.is_finite()).then_some(array)
    }
}

/// Returns the largest magnitude of an element.
fn peak(array: &Array) -> f64 {
    array.data.iter().fold(0.0, |most, x| f64::max(most, x.abs()))
}
