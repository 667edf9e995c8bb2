//! Sizes as polynomials over the free axes of a model.
//!
//! A free axis is a symbol. Sums, differences and products are polynomials in a normal form. Two sizes with the same
//! normal form are therefore equal for all sizes of the axes. A result that is not a polynomial becomes an opaque
//! factor, which equals only itself.

use std::collections::HashMap;
use std::fmt;

/// A factor in a term of a polynomial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Factor {
    /// A free axis.
    Axis(String),
    /// Result of an operation on sizes that is not a polynomial.
    Of(Operation, Vec<Size>),
}

/// Operation whose result is not a polynomial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Operation {
    /// The size to which several axes broadcast: each of them is 1 or has this size.
    Joint,
    /// A quotient, rounded down.
    Quotient,
    /// The smaller of two sizes.
    Least,
    /// The larger of two sizes.
    Most,
}

/// The size of an axis, or any other integer from which sizes of axes are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size {
    /// The terms of the polynomial in sorted order, each with its factors and its nonzero integer coefficient.
    terms: Vec<(Vec<Factor>, i64)>,
}

impl From<i64> for Size {
    fn from(n: i64) -> Size {
        Size { terms: if n == 0 { vec![] } else { vec![(vec![], n)] } }
    }
}

impl Size {
    /// Creates the size of a free axis.
    #[must_use]
    pub fn axis(name: &str) -> Size {
        Size::factor(Factor::Axis(name.to_owned()))
    }

    /// Creates a constant size; `None` if it exceeds 63 bits.
    #[must_use]
    pub fn count(n: usize) -> Option<Size> {
        Some(Size::from(i64::try_from(n).ok()?))
    }

    fn factor(factor: Factor) -> Size {
        Size { terms: vec![(vec![factor], 1)] }
    }

    /// Returns the size as a number, if it depends on no free axis.
    #[must_use]
    pub fn known(&self) -> Option<i64> {
        match &self.terms[..] {
            [] => Some(0),
            [(factors, n)] if factors.is_empty() => Some(*n),
            _ => None,
        }
    }

    /// Returns `true` if the size is `n` for all sizes of the free axes.
    #[must_use]
    pub fn is(&self, n: i64) -> bool {
        self.known() == Some(n)
    }

    /// Returns the name of the free axis, if the size is a single free axis.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.terms[..] {
            [(factors, 1)] => match &factors[..] {
                [Factor::Axis(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    fn collect(terms: impl IntoIterator<Item = (Vec<Factor>, i64)>) -> Option<Size> {
        let mut all: Vec<(Vec<Factor>, i64)> = terms.into_iter().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut terms: Vec<(Vec<Factor>, i64)> = Vec::new();
        for (factors, n) in all {
            match terms.last_mut().filter(|last| last.0 == factors) {
                Some(last) => last.1 = last.1.checked_add(n)?,
                None => terms.push((factors, n)),
            }
        }
        terms.retain(|(_, n)| *n != 0);
        (terms.len() <= LONGEST).then_some(Size { terms })
    }

    /// Adds two sizes; `None` on overflow of 64 bits, or if there are too many terms.
    #[must_use]
    pub fn plus(&self, other: &Size) -> Option<Size> {
        Size::collect(self.terms.iter().chain(&other.terms).cloned())
    }

    /// Subtracts a size; `None` on overflow of 64 bits, or if there are too many terms.
    #[must_use]
    pub fn minus(&self, other: &Size) -> Option<Size> {
        self.plus(&other.times(&Size::from(-1))?)
    }

    /// Multiplies two sizes; `None` on overflow of 64 bits, or if there are too many terms.
    #[must_use]
    pub fn times(&self, other: &Size) -> Option<Size> {
        let mut all = Vec::new();
        for (a, n) in &self.terms {
            for (b, m) in &other.terms {
                let mut factors = [a.as_slice(), b].concat();
                factors.sort();
                all.push((factors, n.checked_mul(*m)?));
            }
        }
        Size::collect(all)
    }

    /// Multiplies all `sizes`; `None` in the cases of [`Size::times`].
    #[must_use]
    pub fn product<'a>(sizes: impl IntoIterator<Item = &'a Size>) -> Option<Size> {
        sizes.into_iter().try_fold(Size::from(1), |product, size| product.times(size))
    }

    /// Returns the quotient of `self` and `by`, if the division leaves no remainder for any sizes of the free axes.
    fn exactly(&self, by: &Size) -> Option<Size> {
        if self == by {
            return Some(Size::from(1));
        }
        let [(divisor, m)] = &by.terms[..] else { return None };
        let divided = self.terms.iter().map(|(factors, n)| {
            let mut factors = factors.clone();
            for factor in divisor {
                factors.remove(factors.iter().position(|other| other == factor)?);
            }
            (n % m == 0).then_some((factors, n / m))
        });
        Size::collect(divided.collect::<Option<Vec<_>>>()?)
    }

    /// Returns the quotient of `self` and `by`, rounded down; `None` for a division by zero.
    #[must_use]
    pub fn over(&self, by: &Size) -> Option<Size> {
        if by.is(0) {
            return None;
        }
        if let (Some(a), Some(b)) = (self.known(), by.known()) {
            return Some(Size::from(a.checked_div_euclid(b)?));
        }
        self.exactly(by)
            .or_else(|| Some(Size::factor(Factor::Of(Operation::Quotient, vec![self.clone(), by.clone()]))))
    }

    /// Returns the quotient of `self` and `by`, rounded up.
    #[must_use]
    pub fn over_up(&self, by: &Size) -> Option<Size> {
        self.plus(by)?.minus(&Size::from(1))?.over(by)
    }

    fn extreme(&self, other: &Size, operation: Operation) -> Size {
        let ordered = self.minus(other).and_then(|difference| difference.known()).map(|n| n <= 0);
        match (ordered, operation) {
            (Some(true), Operation::Least) | (Some(false), Operation::Most) => self.clone(),
            (Some(_), _) => other.clone(),
            (None, _) => {
                let mut pair = vec![self.clone(), other.clone()];
                pair.sort();
                Size::factor(Factor::Of(operation, pair))
            }
        }
    }

    /// Returns the smaller of two sizes.
    #[must_use]
    pub fn least(&self, other: &Size) -> Size {
        // A count is never negative, so zero is the smaller size.
        if self.is(0) && other.is_count() || other.is(0) && self.is_count() {
            return Size::from(0);
        }
        self.extreme(other, Operation::Least)
    }

    /// Returns the larger of two sizes.
    #[must_use]
    pub fn most(&self, other: &Size) -> Size {
        match (self.is(0) && other.is_count(), other.is(0) && self.is_count()) {
            (true, _) => other.clone(),
            (_, true) => self.clone(),
            _ => self.extreme(other, Operation::Most),
        }
    }

    /// Returns `true` if the size is known never to be negative, because it contains no subtraction.
    #[must_use]
    pub fn is_count(&self) -> bool {
        let counts = |factor: &Factor| match factor {
            Factor::Axis(_) => true,
            Factor::Of(Operation::Most, parts) => parts.iter().any(Size::is_count),
            Factor::Of(_, parts) => parts.iter().all(Size::is_count),
        };
        self.terms.iter().all(|(factors, n)| *n > 0 && factors.iter().all(counts))
    }

    /// Returns `true` if `self` is the smaller of `whole` and a constant of at least 2. A slice of a constant has a
    /// size of this form. Wherever this slice broadcasts with an axis of size `whole`, the size of the slice equals
    /// `whole`.
    #[must_use]
    pub fn is_cut_of(&self, whole: &Size) -> bool {
        match &self.terms[..] {
            [(factors, 1)] => match &factors[..] {
                [Factor::Of(Operation::Least, parts)] => {
                    parts.contains(whole) && parts.iter().any(|part| part.known().is_some_and(|n| n >= 2))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the size to which two axes broadcast; `None` if they cannot broadcast.
    #[must_use]
    pub fn joint(&self, other: &Size) -> Option<Size> {
        if self == other || other.is(1) || other.is_cut_of(self) {
            return Some(self.clone());
        }
        if self.is(1) || self.is_cut_of(other) {
            return Some(other.clone());
        }
        match (self.known(), other.known()) {
            (Some(_), Some(_)) => return None,
            (Some(n), None) | (None, Some(n)) => return Some(Size::from(n)),
            (None, None) => {}
        }
        let mut all: Vec<Size> = [self, other].into_iter().flat_map(|size| size.joined().to_vec()).collect();
        all.sort();
        all.dedup();
        Some(Size::factor(Factor::Of(Operation::Joint, all)))
    }

    /// If this is a joint size, returns the sizes that broadcast together. Otherwise returns only the size itself.
    #[must_use]
    pub fn joined(&self) -> &[Size] {
        match &self.terms[..] {
            [(factors, 1)] => match &factors[..] {
                [Factor::Of(Operation::Joint, all)] => all,
                _ => std::slice::from_ref(self),
            },
            _ => std::slice::from_ref(self),
        }
    }

    /// Returns `true` if the size contains no minimum or maximum of two sizes. One formula is then valid for all sizes
    /// of the free axes.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.terms.iter().flat_map(|(factors, _)| factors).all(|factor| match factor {
            Factor::Axis(_) => true,
            Factor::Of(Operation::Least | Operation::Most, _) => false,
            Factor::Of(_, parts) => parts.iter().all(Size::is_plain),
        })
    }

    /// Returns `true` if the size contains the free axis `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.terms.iter().flat_map(|(factors, _)| factors).any(|factor| match factor {
            Factor::Axis(axis) => axis == name,
            Factor::Of(_, parts) => parts.iter().any(|part| part.has(name)),
        })
    }

    /// Adds to `into` the joint sizes within this size. Each joint size is added as the list of sizes that broadcast
    /// together.
    pub fn joints<'a>(&'a self, into: &mut Vec<&'a [Size]>) {
        for factor in self.terms.iter().flat_map(|(factors, _)| factors) {
            if let Factor::Of(operation, parts) = factor {
                if *operation == Operation::Joint {
                    into.push(parts);
                }
                parts.iter().for_each(|part| part.joints(into));
            }
        }
    }

    /// Replaces free axes by the sizes in `ties`.
    #[must_use]
    pub fn with(&self, ties: &HashMap<String, Size>) -> Option<Size> {
        let mut sum = Size::default();
        for (factors, n) in &self.terms {
            let mut product = Size::from(*n);
            for factor in factors {
                let size = match factor {
                    Factor::Axis(name) => ties.get(name).cloned().unwrap_or_else(|| Size::axis(name)),
                    Factor::Of(operation, parts) => {
                        let mut parts = parts.iter().map(|part| part.with(ties));
                        let first = parts.next()??;
                        parts.try_fold(first, |all, part| match operation {
                            Operation::Joint => all.joint(&part?),
                            Operation::Quotient => all.over(&part?),
                            Operation::Least => Some(all.least(&part?)),
                            Operation::Most => Some(all.most(&part?)),
                        })?
                    }
                };
                product = product.times(&size)?;
            }
            sum = sum.plus(&product)?;
        }
        Some(sum)
    }

    /// Evaluates the size, given the sizes of the free axes.
    #[must_use]
    pub fn at(&self, sizes: &HashMap<String, usize>) -> Option<i64> {
        let mut sum = 0i64;
        for (factors, n) in &self.terms {
            let mut product = *n;
            for factor in factors {
                let x = match factor {
                    Factor::Axis(name) => i64::try_from(*sizes.get(name)?).ok()?,
                    Factor::Of(operation, parts) => {
                        let parts: Vec<i64> =
                            parts.iter().map(|part| part.at(sizes)).collect::<Option<_>>()?;
                        match operation {
                            Operation::Joint => *parts.iter().find(|&&n| n != 1).unwrap_or(&1),
                            Operation::Quotient => parts.first()?.checked_div_euclid(*parts.get(1)?)?,
                            Operation::Least => *parts.iter().min()?,
                            Operation::Most => *parts.iter().max()?,
                        }
                    }
                };
                product = product.checked_mul(x)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }
}

/// Maximum number of terms in a size.
const LONGEST: usize = 64;

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        for (i, (factors, n)) in self.terms.iter().rev().enumerate() {
            let sign = match (i, *n < 0) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            f.write_str(sign)?;
            let mut parts: Vec<String> = Vec::new();
            if n.unsigned_abs() != 1 || factors.is_empty() {
                parts.push(n.unsigned_abs().to_string());
            }
            for factor in factors {
                parts.push(match factor {
                    Factor::Axis(name) => name.clone(),
                    Factor::Of(operation, sizes) => {
                        let sizes: Vec<String> = sizes.iter().map(Size::to_string).collect();
                        match operation {
                            Operation::Joint => format!("({})", sizes.join(" or 1, ")),
                            Operation::Quotient => format!("({})", sizes.join(")/(")),
                            Operation::Least => format!("min({})", sizes.join(", ")),
                            Operation::Most => format!("max({})", sizes.join(", ")),
                        }
                    }
                });
            }
            f.write_str(&parts.join("*"))?;
        }
        Ok(())
    }
}

/// Formats a shape for a message.
#[must_use]
pub fn shown(shape: &[Size]) -> String {
    let axes: Vec<String> = shape.iter().map(Size::to_string).collect();
    format!("[{}]", axes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_one_spelling_and_the_value_of_its_formula() {
        let (n, m, one) = (Size::axis("n"), Size::axis("m"), Size::from(1));
        let sizes: HashMap<String, usize> = [("n".into(), 7), ("m".into(), 12)].into();
        let a = n.plus(&one).unwrap().times(&n.minus(&one).unwrap()).unwrap();
        let b = n.times(&n).unwrap().minus(&one).unwrap();
        assert_eq!((&a, a.at(&sizes)), (&b, Some(48)));
        assert_ne!(n, m);
        assert_eq!(n.times(&m).unwrap().over(&m), Some(n.clone()));
        // A rounded quotient equals only itself: 2 · (n / 2) + 1 is n for odd n only.
        let two = Size::from(2);
        let odd = n.over(&two).unwrap().times(&two).unwrap().plus(&one).unwrap();
        assert_eq!((odd.at(&sizes), odd == n), (Some(7), false));
        let cut = n.least(&Size::from(100));
        assert_eq!((cut.at(&sizes), cut == n, cut.is_plain()), (Some(7), false, false));
        assert_eq!(n.least(&Size::from(0)), Size::from(0));
        assert_eq!(n.joint(&Size::from(1)), Some(n.clone()));
        assert_eq!(n.joint(&m).unwrap().at(&[("n".into(), 1), ("m".into(), 5)].into()), Some(5));
        assert_eq!(n.joint(&cut), Some(n.clone()));
        assert_eq!(Size::from(3).joint(&Size::from(4)), None);
        assert_eq!(Size::from(i64::MAX).plus(&one), None);
    }
}
