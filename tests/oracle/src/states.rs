//! Compares the output, log-sum-exp and states of a call with the definition.

use crate::cases::Buffers;
use crate::naive::Answer;

impl Answer {
    /// Compares output, log-sum-exp and states in `got` with the exact values, as [`Answer::check`] does for outputs.
    /// In the state of every row, `W / S` must be the output and `m + log S` the log-sum-exp. The state of a row
    /// without keys is `(−∞, 0, 0)`; a poisoned row has NaN in `S` and `W`.
    ///
    /// # Errors
    /// Returns a description of the element that differs.
    pub fn check_all(&self, got: &Buffers, additions: usize) -> Result<f64, String> {
        let share = self.check(&got.output, Some(&got.lse), additions)?;
        let rows = self.lse.len();
        if got.m.len() != rows || got.s.len() != rows || got.w.len() != rows * self.dim() {
            return Err("a buffer of the states has the wrong length".into());
        }
        for at in 0..rows {
            self.check_state(at, got, additions).map_err(|e| format!("state of row {at}: {e}"))?;
        }
        Ok(share)
    }

    fn check_state(&self, at: usize, got: &Buffers, additions: usize) -> Result<(), String> {
        let (m, s) = (got.m[at], got.s[at]);
        let w = &got.w[at * self.dim()..(at + 1) * self.dim()];
        if self.lse[at] == f64::NEG_INFINITY {
            let empty = m == f32::NEG_INFINITY && s == 0.0 && w.iter().all(|w| *w == 0.0);
            return if empty { Ok(()) } else { Err(format!("({m}, {s}, {w:?}) of no key")) };
        }
        if self.lse[at].is_nan() {
            let poisoned = s.is_nan() && w.iter().all(|w| w.is_nan());
            return if poisoned { Ok(()) } else { Err(format!("sums {s}, {w:?} of a poisoned row")) };
        }
        // `m + ln S` is the returned log-sum-exp, except for the roundings of `m`, `S` and the log-sum-exp to f32.
        let lse = f64::from(m) + f64::from(s).ln();
        let returned = f64::from(got.lse[at]);
        // The comparison also fails if one of them is NaN.
        let near = (lse - returned).abs() <= 4e-7 + 2e-7 * lse.abs();
        if !near {
            return Err(format!("log-sum-exp {lse}, returned was {returned}"));
        }
        for (x, w) in w.iter().enumerate() {
            let (quotient, y) = (f64::from(*w) / f64::from(s), self.y[self.index(at, x)]);
            let allowed = self.tolerance(at, x, additions) + 1e-6 * y.abs();
            let same = quotient == y || (quotient.is_nan() && y.is_nan());
            let near = (quotient - y).abs() <= allowed;
            if !same && !near {
                return Err(format!("quotient {quotient} in column {x}, answer {y}, allowed ±{allowed:e}"));
            }
        }
        Ok(())
    }
}
