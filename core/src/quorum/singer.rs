//! Constructs planar difference sets by Singer's method: `q + 1` numbers modulo `q² + q + 1` for every prime power `q`.
//!
//! The points of the projective plane over GF(q) are the powers `α^i`, `0 ≤ i < q² + q + 1`, of an element that
//! generates GF(q³) over GF(q). The exponents of the points on a line form a difference set. The points on a line are
//! the zeros of a linear form, and the values of a linear form at `α^i` satisfy the recurrence given by the minimal
//! polynomial of `α`. The set is therefore
//!
//! ```text
//! { i : s_i = 0 }    with    s_0 = s_1 = 0, s_2 = 1, s_{i+3} = a s_{i+2} + b s_{i+1} + d s_i    over GF(q)
//! ```
//!
//! for coefficients whose polynomial has such a root `α`, which is the case for about one in three irreducible
//! polynomials. The coefficients are tried in order until the zeros of the sequence pass the check of
//! [`InterestSet`](super::InterestSet), so no arithmetic in GF(q³) is needed.

use heapless::Vec;

/// Largest number of members of an interest set, for the prime power 32.
pub const MAX_MEMBERS: usize = 33;

/// GF(q) for `q = p^k`. Its elements are polynomials over GF(p) of degree below `k`, stored as integers whose base-`p`
/// digits are the coefficients.
#[derive(Clone, Copy)]
struct Field {
    p: usize,
    k: usize,
    /// `x^k` as a polynomial of lower degree: the coefficients of `1`, `x`, `x²`, …
    reduced: [usize; 5],
}

impl Field {
    /// Returns the field of `q` elements; `None` if `q` is not a prime power of at most 32.
    fn new(q: usize) -> Option<Field> {
        let (p, k, reduced) = match q {
            2 | 3 | 5 | 7 | 11 | 13 | 17 | 19 | 23 | 29 | 31 => (q, 1, [0; 5]),
            4 => (2, 2, [1, 1, 0, 0, 0]),
            8 => (2, 3, [1, 1, 0, 0, 0]),
            16 => (2, 4, [1, 1, 0, 0, 0]),
            32 => (2, 5, [1, 0, 1, 0, 0]),
            9 => (3, 2, [2, 0, 0, 0, 0]),
            27 => (3, 3, [2, 1, 0, 0, 0]),
            25 => (5, 2, [3, 0, 0, 0, 0]),
            _ => return None,
        };
        Some(Field { p, k, reduced })
    }

    fn digits(&self, mut a: usize) -> [usize; 5] {
        let mut digits = [0; 5];
        for digit in &mut digits[..self.k] {
            *digit = a % self.p;
            a /= self.p;
        }
        digits
    }

    fn number(&self, digits: &[usize; 5]) -> usize {
        digits[..self.k].iter().rev().fold(0, |a, digit| a * self.p + digit)
    }

    fn plus(&self, a: usize, b: usize) -> usize {
        let (a, b) = (self.digits(a), self.digits(b));
        self.number(&core::array::from_fn(|i| (a[i] + b[i]) % self.p))
    }

    /// Returns the product of two elements, by Horner's rule in `x`.
    fn times(&self, a: usize, b: usize) -> usize {
        if self.k == 1 {
            return a * b % self.p;
        }
        let (a, b) = (self.digits(a), self.digits(b));
        let mut sum = [0; 5];
        for &factor in b[..self.k].iter().rev() {
            let top = sum[self.k - 1];
            for i in (0..self.k).rev() {
                let shifted = if i == 0 { 0 } else { sum[i - 1] };
                sum[i] = (shifted + top * self.reduced[i] + factor * a[i]) % self.p;
            }
        }
        self.number(&sum)
    }
}

/// Iterates over candidate sets modulo `q² + q + 1`, each of `q + 1` numbers; empty if `q` is not a prime power of at
/// most 32.
pub(super) fn members(q: usize) -> impl Iterator<Item = Vec<usize, MAX_MEMBERS>> {
    let polynomials = move |field: Field| {
        let coefficients = (1..q).flat_map(move |d| (0..q).flat_map(move |b| (0..q).map(move |a| [a, b, d])));
        coefficients.filter_map(move |abd| zeros(&field, abd, q * q + q + 1, q + 1))
    };
    Field::new(q).into_iter().flat_map(polynomials)
}

/// Returns the indices of the zeros among the first `chunks` terms of the sequence with coefficients `a`, `b` and `d`;
/// `None` if their number is not `count`.
fn zeros(
    field: &Field,
    [a, b, d]: [usize; 3],
    chunks: usize,
    count: usize,
) -> Option<Vec<usize, MAX_MEMBERS>> {
    let mut members = Vec::new();
    let mut s = [0, 0, 1];
    for i in 0..chunks {
        if s[0] == 0 {
            members.push(i).ok()?;
        }
        let next = field.plus(field.times(a, s[2]), field.plus(field.times(b, s[1]), field.times(d, s[0])));
        s = [s[1], s[2], next];
    }
    (members.len() == count).then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every nonzero element has an inverse and that multiplication distributes over addition. This shows
    /// that the polynomials in the table are irreducible.
    #[test]
    fn fields_are_fields() {
        for q in [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32] {
            let field = Field::new(q).unwrap();
            for a in 1..q {
                let mut seen = [false; 32];
                for b in 0..q {
                    let product = field.times(a, b);
                    assert!(!seen[product], "{q}: {a} times {b}");
                    seen[product] = true;
                    assert_eq!(product, field.times(b, a));
                    let sum = field.plus(b, 1);
                    assert_eq!(field.times(a, sum), field.plus(product, a));
                }
            }
        }
        assert!([0, 1, 6, 10, 12, 33, 37].iter().all(|q| Field::new(*q).is_none()));
    }
}
