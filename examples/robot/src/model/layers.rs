//! The layers around attention: linear maps, layer normalisation, GELU, softmax. Rows are tokens. Everything is
//! computed in f32, row by row and without allocation.

/// A linear map `y = x W + b`.
pub(super) struct Linear {
    /// The matrix `W`, `[inputs, outputs]`: transposed relative to PyTorch, so that the inner loop runs along the
    /// outputs.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Linear {
    /// Creates the map from `weight` `[outputs, inputs]`, as PyTorch stores it, and `bias` `[outputs]`.
    pub fn new(weight: &[f32], bias: Vec<f32>) -> Linear {
        let outputs = bias.len();
        let inputs = weight.len() / outputs.max(1);
        let transposed = (0..inputs * outputs).map(|i| weight[i % outputs * inputs + i / outputs]).collect();
        Linear { weight: transposed, bias }
    }

    /// Applies the map to the rows of `x`, `[rows, inputs]`, and writes the results to `y`, `[rows, outputs]`.
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        let outputs = self.bias.len();
        let inputs = self.weight.len() / outputs;
        for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
            y.copy_from_slice(&self.bias);
            for (x, weight) in x.iter().zip(self.weight.chunks_exact(outputs)) {
                for (y, weight) in y.iter_mut().zip(weight) {
                    *y += x * weight;
                }
            }
        }
    }
}

/// Layer normalisation over a row: `(x - mean) / sqrt(variance + epsilon) * weight + bias`.
pub(super) struct Norm {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    pub epsilon: f32,
}

impl Norm {
    /// Normalises the rows of `x` into `y`, both `[rows, width]`.
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        let width = self.weight.len();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let mean = x.iter().sum::<f32>() / width as f32;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / width as f32;
            let factor = 1.0 / (variance + self.epsilon).sqrt();
            for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(&self.weight).zip(&self.bias) {
                *y = (x - mean) * factor * weight + bias;
            }
        }
    }
}

/// Applies the exact GELU, `x (1 + erf(x / sqrt 2)) / 2`, in place.
pub(super) fn gelu(x: &mut [f32]) {
    for x in x {
        *x *= 0.5 * (1.0 + libm::erff(*x * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// Adds `y` to `x`, element by element.
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Returns element `at` of the softmax of `x`.
pub(super) fn softmax_at(x: &[f32], at: usize) -> f32 {
    1.0 / x.iter().map(|y| libm::expf(y - x[at])).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_map_is_the_one_of_its_matrix() {
        let linear = Linear::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![10.0, 20.0]);
        let mut y = [0.0; 4];
        linear.apply(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &mut y);
        assert_eq!(y, [11.0, 24.0, 16.0, 35.0]);
    }

    #[test]
    fn a_row_is_normalised() {
        let norm = Norm { weight: vec![2.0; 4], bias: vec![1.0; 4], epsilon: 0.0 };
        let mut y = [0.0; 4];
        norm.apply(&[3.0, 5.0, 3.0, 5.0], &mut y);
        assert_eq!(y, [-1.0, 3.0, -1.0, 3.0]);
    }

    #[test]
    fn gelu_and_softmax_are_those_of_their_formulas() {
        // Values of x * Phi(x), from tables of the normal distribution.
        let mut x = [0.0, 1.0, -1.0, 3.0];
        gelu(&mut x);
        for (x, wanted) in x.iter().zip([0.0, 0.841_344_7, -0.158_655_3, 2.995_950_3]) {
            assert!((x - wanted).abs() < 1e-6, "{x} {wanted}");
        }
        assert!((softmax_at(&[0.0, 3f32.ln()], 1) - 0.75).abs() < 1e-6);
        assert_eq!(softmax_at(&[-1000.0, 1000.0], 1), 1.0);
    }
}
