//! Bounds the errors of all columns of a delta rule's state by an ellipsoid, which represents their directions.
//!
//! A token multiplies every column by one matrix, `A = (I − β k kᵀ) diag(a)`. Apart from applying the gates, this
//! matrix only shortens the component of the column along the key. A norm cannot represent this: with norms alone, an
//! error of the first token would never become smaller. Let the error of column `c`, divided by the column's scale
//! `σ_c`, be in `E(P) = {x : |y · x|² ≤ yᵀ P y for every y}`. Then
//!
//! ```text
//! a token                P ← A P Aᵀ
//! an error l k           E(P) + E(l² k kᵀ) ⊆ E((1 + b/a) P + (1 + a/b) l² k kᵀ)      a² = tr P,  b² = l² |k|²
//! an error of length l   the same with l² I,                                         b² = l² d_k
//! an output              |q · e_c| ≤ σ_c √(qᵀ P q)
//! ```
//!
//! The sum of two ellipsoids is contained in the ellipsoid above for any `a, b > 0`, because
//! `2 s t ≤ (b/a) s² + (a/b) t²`. The chosen `a` and `b` give the smallest trace.

/// The ellipsoid `E(unit · P)`.
pub(super) struct Shape<'a> {
    /// The matrix `P`, `[d_k, d_k]`, symmetric.
    matrix: &'a mut [f64],
    unit: f64,
    /// The product `P k`, `[d_k]`.
    product: &'a mut [f64],
}

/// Largest error of `P` from f64 arithmetic, relative to the trace of `P`.
const LOST: f64 = 1e-9;

impl<'a> Shape<'a> {
    /// Returns the number of f64 values of scratch that a shape needs for keys of `rows` dims.
    pub fn len(rows: usize) -> Option<usize> {
        rows.checked_mul(rows)?.checked_add(rows)
    }

    /// Creates the shape of a zero error. `scratch` has [`Shape::len`] values, or none for an unused shape.
    pub fn new(scratch: &'a mut [f64], rows: usize) -> Shape<'a> {
        scratch.fill(0.0);
        let (matrix, product) = scratch.split_at_mut(scratch.len().min(rows * rows));
        Shape { matrix, unit: 1.0, product }
    }

    fn rows(&self) -> usize {
        self.product.len()
    }

    fn diagonal(&mut self) -> impl Iterator<Item = &mut f64> {
        let step = self.rows() + 1;
        self.matrix.iter_mut().step_by(step)
    }

    /// Returns `√ tr P`, an upper bound of the length of every error in the shape.
    pub fn length(&mut self) -> f64 {
        let unit = self.unit;
        libm::sqrt(unit * self.diagonal().map(|p| *p).sum::<f64>())
    }

    /// Sets the shape to a ball that contains all errors up to the length `length`.
    pub fn set(&mut self, length: f64) {
        self.matrix.fill(0.0);
        self.unit = 1.0;
        self.diagonal().for_each(|p| *p = length * length);
    }

    /// Transforms the shape by a token whose gates are `gates`. `most` is the largest gate.
    pub fn pass(&mut self, gates: &[f64], most: f64, key: &[f64], beta: f64) {
        let d = self.rows();
        if most == 0.0 {
            self.set(0.0);
            return;
        }
        if gates.iter().any(|a| *a != gates[0]) {
            for (row, a) in self.matrix.chunks_exact_mut(d).zip(gates) {
                for (p, b) in row.iter_mut().zip(gates) {
                    *p = if a * b == 0.0 { 0.0 } else { *p * (a * b) };
                }
            }
        } else {
            self.unit *= most * most;
        }
        for (to, row) in self.product.iter_mut().zip(self.matrix.chunks_exact(d)) {
            *to = row.iter().zip(key).map(|(p, k)| p * k).sum();
        }
        let along: f64 = self.product.iter().zip(key).map(|(w, k)| w * k).sum();
        // A P Aᵀ = P − k gᵀ − g kᵀ  with  g = β w − β² (k · w) k / 2.
        let half = beta * beta * along / 2.0;
        self.product.iter_mut().zip(key).for_each(|(w, k)| *w = beta * *w - half * k);
        for ((row, k), g) in self.matrix.chunks_exact_mut(d).zip(key).zip(&*self.product) {
            for ((p, l), h) in row.iter_mut().zip(key).zip(&*self.product) {
                *p -= k * h + g * l;
            }
        }
        if !(1e-60..1e60).contains(&self.unit) {
            let unit = self.unit;
            self.matrix.iter_mut().for_each(|p| *p *= unit);
            self.unit = 1.0;
        }
    }

    /// Enlarges the shape for an error whose matrix has the trace `b²`, and returns the factor by which to multiply
    /// that matrix before it is added.
    fn grow(&mut self, b: f64) -> f64 {
        let a = self.length();
        if a == 0.0 || a < b * 1e-30 {
            self.matrix.fill(0.0);
            self.unit = 1.0;
            // The dropped matrix is smaller than the margin that is added for roundings.
            return 1.0 + LOST;
        }
        self.unit *= 1.0 + b / a;
        (1.0 + a / b) / self.unit
    }

    /// Adds an error along `key`, of at most `size` times the length of `key`. `squares` is the squared length.
    pub fn add_along(&mut self, key: &[f64], squares: f64, size: f64) {
        let b = size * libm::sqrt(squares);
        if b == 0.0 {
            return;
        }
        let factor = self.grow(b) * size * size;
        let d = self.rows();
        for (row, k) in self.matrix.chunks_exact_mut(d).zip(key) {
            let k = factor * k;
            row.iter_mut().zip(key).for_each(|(p, l)| *p += k * l);
        }
    }

    /// Adds an error of length at most `size`, in any direction.
    pub fn add(&mut self, size: f64) {
        if size == 0.0 {
            return;
        }
        let factor = self.grow(size * libm::sqrt(self.rows() as f64)) * size * size;
        self.diagonal().for_each(|p| *p += factor);
    }

    /// Returns the largest scalar product of `query` and any error in the shape. `squares` is the squared length of
    /// `query`.
    pub fn along(&self, query: &[f64], squares: f64) -> f64 {
        let d = self.rows();
        let (mut sum, mut trace) = (0.0, 0.0);
        for (x, (row, q)) in self.matrix.chunks_exact(d).zip(query).enumerate() {
            sum += q * row.iter().zip(query).map(|(p, q)| p * q).sum::<f64>();
            trace += row[x];
        }
        libm::sqrt(self.unit * (sum + LOST * trace * squares))
    }

    /// Returns the largest value of element `x` among the errors in the shape.
    pub fn of_row(&self, x: usize) -> f64 {
        let d = self.rows();
        let trace: f64 = self.matrix.iter().step_by(d + 1).sum();
        libm::sqrt(self.unit * (self.matrix[x * (d + 1)] + LOST * trace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: usize = 4;

    /// The errors that were added, as vectors. Their signs do not matter, and every later token transforms them.
    struct Added {
        vectors: [[f64; D]; 80],
        len: usize,
    }

    /// Checks in several directions that `E(P)` reaches at least as far as the sum of the errors. The signs of the
    /// errors are chosen so that all of them add up in that direction. Returns the largest ratio of the reach to the
    /// sum.
    fn reaches(shape: &Shape<'_>, added: &Added, seed: usize) -> f64 {
        let mut most = 0.0f64;
        for n in 0..8 {
            let query: [f64; D] = core::array::from_fn(|x| libm::sin((seed * 31 + n * 7 + x * 3) as f64));
            let squares = query.iter().map(|q| q * q).sum();
            let dot = |v: &[f64; D]| libm::fabs(v.iter().zip(&query).map(|(v, q)| v * q).sum());
            let aligned: f64 = added.vectors[..added.len].iter().map(dot).sum();
            let reached = shape.along(&query, squares);
            assert!(aligned <= reached * (1.0 + 1e-9), "{aligned} {reached}");
            most = most.max(reached / aligned);
        }
        for x in 0..D {
            let aligned: f64 = added.vectors[..added.len].iter().map(|v| libm::fabs(v[x])).sum();
            assert!(aligned <= shape.of_row(x) * (1.0 + 1e-9));
        }
        most
    }

    #[test]
    #[cfg_attr(miri, ignore = "many sums, and nothing unsafe")]
    fn holds_all_errors_that_were_added() {
        let mut scratch = [0.0; D * D + D];
        for per_dim in [false, true] {
            let mut shape = Shape::new(&mut scratch, D);
            let mut added = Added { vectors: [[0.0; D]; 80], len: 0 };
            for t in 0..40 {
                let key: [f64; D] = core::array::from_fn(|x| libm::cos((t * 5 + x * x) as f64) * 0.6);
                let beta = 0.9 + libm::sin(t as f64);
                let gates: [f64; D] =
                    core::array::from_fn(|x| if per_dim { 1.0 - 0.1 * x as f64 } else { 0.95 });
                shape.pass(&gates, gates[0], &key, beta);
                for v in &mut added.vectors[..added.len] {
                    v.iter_mut().zip(&gates).for_each(|(v, a)| *v *= a);
                    let along: f64 = v.iter().zip(&key).map(|(v, k)| v * k).sum();
                    v.iter_mut().zip(&key).for_each(|(v, k)| *v -= beta * along * k);
                }
                let (size, length) = (1.0 / (1.0 + t as f64), 0.01);
                shape.add_along(&key, key.iter().map(|k| k * k).sum(), size);
                added.vectors[added.len] = key.map(|k| size * k);
                shape.add(length);
                added.vectors[added.len + 1] =
                    core::array::from_fn(|x| if x == t % D { length } else { 0.0 });
                added.len += 2;
                // The ellipsoid may exceed the errors that it contains, but only by a limited factor.
                assert!(reaches(&shape, &added, t) < 100.0);
            }
            // A token whose gates are all zero clears every error.
            shape.pass(&[0.0; D], 0.0, &[1.0; D], 1.0);
            assert_eq!(shape.length(), 0.0);
        }
    }
}
