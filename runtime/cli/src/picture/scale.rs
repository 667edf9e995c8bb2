//! Axes: positions of numbers, marks at round numbers, and labels with units.

use super::parts::{Tick, WIDTH};
use super::text::{ABOVE, BELOW, width};

/// Minimum distance between two labels of a horizontal axis.
const GAP: f64 = 8.0;
/// Maximum number of marks of a horizontal axis.
const COLUMNS: usize = 6;
/// Maximum number of marks of a vertical axis.
const ROWS: usize = 8;
/// Minimum number of marks, if that many labels fit.
const FEWEST: usize = 3;
/// Size from which plain numbers have a suffix such as K or M.
const LARGE: f64 = 1e5;
/// Size from which plain numbers have an exponent.
const HUGE: f64 = 1e15;
/// Ratio of the ends of a logarithmic axis up to which marks at equal steps are spread over the axis.
const NARROW: f64 = 10.0;
/// Strides of marks on a logarithmic axis: every mark, every second one, and so on.
const STRIDES: [i32; 16] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 40, 60, 100, 200];

/// The numbers of an axis. Labels of seconds and bytes have the largest unit in which the number is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Plain numbers. Large ones have a suffix, such as `100K` or `25M`.
    Number,
    /// Seconds, shown as h, s, ms or us.
    Seconds,
    /// Bytes, shown as TiB, GiB, MiB, KiB or B.
    Bytes,
}

/// Factors for more marks between two powers of ten, first for close marks.
const FACTORS: [&[f64]; 2] = [&[1.0, 2.0, 5.0], &[1.0, 3.0]];

impl Quantity {
    /// Returns the units from the largest to the smallest: size and name.
    fn units(self) -> &'static [(f64, &'static str)] {
        match self {
            Quantity::Number => &[(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, "")],
            Quantity::Seconds => &[(3600.0, " h"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us")],
            Quantity::Bytes => &[
                (1_125_899_906_842_624.0, " PiB"),
                (1_099_511_627_776.0, " TiB"),
                (1_073_741_824.0, " GiB"),
                (1_048_576.0, " MiB"),
                (1024.0, " KiB"),
                (1.0, " B"),
            ],
        }
    }

    /// Returns the unit of a number: size and name.
    fn unit(self, x: f64) -> (f64, &'static str) {
        // A number that rounding has put just below a unit belongs to this unit.
        let size = x.abs() * (1.0 + 1e-9);
        if self == Quantity::Number && !(LARGE..HUGE).contains(&size) {
            return (1.0, "");
        }
        let units = self.units();
        units.iter().find(|(unit, _)| size >= *unit).or(units.last()).copied().unwrap_or((1.0, ""))
    }

    /// Formats a number with few characters, in a unit.
    fn label_in(self, x: f64, (size, name): (f64, &str)) -> String {
        if x == 0.0 {
            return "0".to_owned();
        }
        let number =
            if self == Quantity::Number { short(x / size) } else { Quantity::Number.label(x / size) };
        number + name
    }

    /// Formats a number with few characters, in the unit that belongs to it.
    #[must_use]
    pub fn label(self, x: f64) -> String {
        self.label_in(x, self.unit(x))
    }

    /// Returns the mark number `index` of a logarithmic axis: a power of ten of the unit, or a power of two for bytes.
    fn mark(self, index: i32) -> f64 {
        match self {
            Quantity::Bytes => 2f64.powi(index),
            // 1 h follows 100 s.
            Quantity::Seconds if index > 2 => 3600.0 * 10f64.powi(index - 3),
            _ => 10f64.powi(index),
        }
    }

    /// Returns the factors for more marks between two marks of a logarithmic axis.
    fn factors(self) -> &'static [&'static [f64]] {
        match self {
            Quantity::Bytes => &[],
            Quantity::Number | Quantity::Seconds => &FACTORS,
        }
    }
}

/// The name of an axis, its numbers, and the kind of its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Name at the end of the axis. For plain numbers, it is their unit.
    pub name: &'static str,
    /// The numbers.
    pub quantity: Quantity,
    /// `true` if equal ratios of numbers have equal distances.
    pub logarithmic: bool,
}

impl Axis {
    /// Creates an axis with plain numbers, on which equal differences have equal distances.
    #[must_use]
    pub const fn linear(name: &'static str) -> Axis {
        Axis { name, quantity: Quantity::Number, logarithmic: false }
    }

    /// Creates an axis with plain numbers, on which equal ratios have equal distances.
    #[must_use]
    pub const fn log(name: &'static str) -> Axis {
        Axis { name, quantity: Quantity::Number, logarithmic: true }
    }

    /// Sets the quantity of the numbers.
    #[must_use]
    pub const fn of(self, quantity: Quantity) -> Axis {
        Axis { quantity, ..self }
    }
}

/// Mapping of numbers to positions.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    begin: f64,
    end: f64,
}

impl Scale {
    /// Creates a scale that shows all finite numbers, with positions from `begin` to `end`. On a vertical axis, which
    /// points upwards, `begin` is greater than `end`. `None` if there are no finite numbers, or if the scale is
    /// logarithmic and a number is not positive.
    #[must_use]
    pub fn of(axis: Axis, numbers: impl Iterator<Item = f64>, begin: f64, end: f64) -> Option<Scale> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for x in numbers.filter(|x| x.is_finite()) {
            (low, high) = (low.min(x), high.max(x));
        }
        if low > high || (axis.logarithmic && low <= 0.0) {
            return None;
        }
        if axis.logarithmic {
            (low, high) = if low == high { (low / 1.5, high * 1.5) } else { (low / 1.05, high * 1.05) };
        } else {
            // Labels have few digits, so a range is at least a fiftieth of its numbers.
            let size = low.abs().max(high.abs());
            let margin =
                if low == high { size.max(1.0) * 0.1 } else { ((high - low) * 0.05).max(size * 0.01) };
            (low, high) = (low - margin, high + margin);
        }
        Some(Scale { axis, low, high, begin, end })
    }

    /// Returns the position of a number.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        let of = |x: f64| if self.axis.logarithmic { x.ln() } else { x };
        let share = (of(x) - of(self.low)) / (of(self.high) - of(self.low));
        ((self.begin + share * (self.end - self.begin)) * 10.0).round() / 10.0
    }

    /// Returns marks at round numbers, whose labels neither overlap nor leave the picture. There are at least three,
    /// unless three labels are too wide.
    #[must_use]
    pub fn ticks(&self) -> Vec<Tick> {
        let most = if self.is_vertical() { ROWS } else { COLUMNS };
        let sets: Vec<Vec<Tick>> = self
            .choices(most)
            .into_iter()
            .map(|numbers| self.inside(&numbers))
            .filter(|ticks| ticks.len() <= most && self.are_apart(ticks))
            .collect();
        let enough = sets.iter().find(|ticks| ticks.len() >= FEWEST);
        enough.or_else(|| sets.iter().rev().max_by_key(|ticks| ticks.len())).cloned().unwrap_or_default()
    }

    /// Returns the unit of the greatest number of the axis: size and name.
    fn unit(&self) -> (f64, &'static str) {
        self.axis.quantity.unit(self.low.abs().max(self.high.abs()))
    }

    /// Formats a number of the axis. All numbers have the same unit if equal differences have equal distances.
    fn label(&self, x: f64) -> String {
        let Axis { quantity, logarithmic, .. } = self.axis;
        quantity.label_in(x, if logarithmic { quantity.unit(x) } else { self.unit() })
    }

    fn is_vertical(&self) -> bool {
        self.begin > self.end
    }

    /// Returns choices of round numbers for the marks, the best first.
    fn choices(&self, most: usize) -> Vec<Vec<f64>> {
        let mut choices = Vec::new();
        if self.axis.logarithmic {
            let several = self.axis.quantity.factors().iter().map(|factors| self.powers(1, factors));
            choices.extend(several);
            choices.extend(STRIDES.map(|stride| self.powers(stride, &[1.0])));
        }
        if !self.axis.logarithmic || self.high <= NARROW * self.low {
            choices.extend((2..=most).rev().map(|count| self.equal(count)));
        }
        choices
    }

    /// Returns the products of `factors` with every mark whose index is a multiple of `stride`.
    fn powers(&self, stride: i32, factors: &[f64]) -> Vec<f64> {
        let log = |x: f64| if self.axis.quantity == Quantity::Bytes { x.log2() } else { x.log10() };
        // Marks of hours have greater indices than their logarithms.
        let (first, last) = (log(self.low).floor() as i32 - 1, log(self.high).ceil() as i32 + 1);
        let indices = (first..=last).filter(|index| index.rem_euclid(stride) == 0);
        indices
            .map(|index| (self.axis.quantity.mark(index), self.axis.quantity.mark(index + 1)))
            .flat_map(|(mark, next)| {
                factors.iter().map(move |factor| factor * mark).filter(move |x| *x < next)
            })
            .filter(|x| (self.low..=self.high).contains(x))
            .collect()
    }

    /// Returns about `count` numbers at equal steps, which are round numbers of the unit of the greatest number.
    fn equal(&self, count: usize) -> Vec<f64> {
        let (unit, _) = self.unit();
        let (low, high) = (self.low / unit, self.high / unit);
        let raw = (high - low) / count as f64;
        let power = 10f64.powf(raw.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|x| x * power);
        let step = steps.into_iter().find(|step| *step >= raw).unwrap_or(raw);
        let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
        (first..=last).take(count + 1).map(|i| i as f64 * step * unit).collect()
    }

    /// Makes marks of the numbers whose labels are inside the picture.
    fn inside(&self, numbers: &[f64]) -> Vec<Tick> {
        let tick = |x: &f64| Tick { at: self.at(*x), label: self.label(*x) };
        let fits = |tick: &Tick| {
            let half = width(&tick.label, false) / 2.0;
            self.is_vertical() || (tick.at >= half && tick.at + half <= WIDTH)
        };
        numbers.iter().map(tick).filter(fits).collect()
    }

    /// Returns `true` if all labels are different and no two of them overlap.
    fn are_apart(&self, ticks: &[Tick]) -> bool {
        ticks.windows(2).all(|pair| {
            let (a, b) = (&pair[0], &pair[1]);
            let room = if self.is_vertical() {
                ABOVE + BELOW
            } else {
                (width(&a.label, false) + width(&b.label, false)) / 2.0 + GAP
            };
            a.label != b.label && (b.at - a.at).abs() >= room
        })
    }
}

/// Formats a number with few characters: three digits below a thousandth, and three decimals or three digits otherwise.
fn short(x: f64) -> String {
    let trimmed = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    let decimals = match x.abs() {
        size if !(1e-3..HUGE).contains(&size) => {
            let text = format!("{x:.2e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            return format!("{}e{exponent}", trimmed(digits));
        }
        size if size < 1e-2 => 5,
        size if size < 1e-1 => 4,
        _ => 3,
    };
    trimmed(&format!("{x:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Axes of both directions: first a vertical one, then a horizontal one.
    const ENDS: [(f64, f64); 2] = [(206.0, 20.0), (60.0, 326.0)];

    #[test]
    fn marks_are_few_and_round() {
        let mut ranges =
            vec![(0.01, 30.0), (64.0, 900.0), (1e-9, 1e9), (3.0, 3.0), (0.99, 1.01), (2.0, 200.0)];
        ranges.extend((1..200).map(|n| (7.0, 7.0 * 1.05f64.powi(n))));
        for (low, high) in ranges {
            for (axis, (begin, end)) in
                [Axis::linear(""), Axis::log("")].into_iter().flat_map(|axis| ENDS.map(|ends| (axis, ends)))
            {
                let scale = Scale::of(axis, [low, high].into_iter(), begin, end).unwrap();
                let ticks = scale.ticks();
                assert!((3..=8).contains(&ticks.len()), "{low} {high} {axis:?} {ticks:?}");
                let inside = |tick: &Tick| (begin.min(end)..=begin.max(end)).contains(&tick.at);
                assert!(ticks.iter().all(inside), "{ticks:?}");
                assert!(scale.are_apart(&ticks), "{ticks:?}");
            }
        }
        let label = |x| Quantity::Number.label(x);
        assert_eq!([1.0, 0.5, 0.05, 200.0, 1e-6].map(label), ["1", "0.5", "0.05", "200", "1e-6"]);
        assert_eq!([0.0025, 1.25e-4, -0.0, 0.125].map(label), ["0.0025", "1.25e-4", "0", "0.125"]);
        assert_eq!([65536.0, 1e5, 2.5e6, 1e10, 1e15].map(label), ["65536", "100K", "2.5M", "10G", "1e15"]);
        assert!(Scale::of(Axis::log(""), [0.0, 1.0].into_iter(), 0.0, 1.0).is_none());
        assert!(Scale::of(Axis::linear(""), [f64::NAN].into_iter(), 0.0, 1.0).is_none());
    }

    #[test]
    fn marks_of_wide_ranges_are_spread_over_the_axis() {
        for quantity in [Quantity::Number, Quantity::Seconds, Quantity::Bytes] {
            for decades in 2..40 {
                for (begin, end) in ENDS {
                    let numbers = [1.7e-5, 1.7e-5 * 10f64.powi(decades)];
                    let axis = Axis::log("").of(quantity);
                    let ticks = Scale::of(axis, numbers.into_iter(), begin, end).unwrap().ticks();
                    assert!(ticks.len() >= 2, "{quantity:?} {decades}: {ticks:?}");
                    // Neither end of the axis is without a mark for more than half of its length.
                    let share = |tick: &Tick| (tick.at - begin) / (end - begin);
                    let shares: Vec<f64> = ticks.iter().map(share).collect();
                    assert!(shares[0] <= 0.51 && shares[shares.len() - 1] >= 0.49, "{decades}: {ticks:?}");
                }
            }
        }
    }

    #[test]
    fn seconds_and_bytes_have_units() {
        let seconds = |x| Quantity::Seconds.label(x);
        assert_eq!([0.0, 2e-6, 0.05, 100.0, 3600.0].map(seconds), ["0", "2 us", "50 ms", "100 s", "1 h"]);
        assert_eq!(seconds(5e9 * 3600.0), "5G h");
        let bytes = |x| Quantity::Bytes.label(x);
        assert_eq!([512.0, 65536.0, 3e10].map(bytes), ["512 B", "64 KiB", "27.94 GiB"]);
        let labels = |axis: Axis, low: f64, high: f64| -> Vec<String> {
            let ticks = Scale::of(axis, [low, high].into_iter(), 206.0, 20.0).unwrap().ticks();
            ticks.into_iter().map(|tick| tick.label).collect()
        };
        assert_eq!(
            labels(Axis::log("").of(Quantity::Seconds), 0.5, 4e5),
            ["1 s", "10 s", "100 s", "1 h", "10 h", "100 h"]
        );
        assert_eq!(labels(Axis::log("").of(Quantity::Bytes), 1e6, 3e10)[..2], ["1 MiB", "4 MiB"]);
        assert_eq!(
            labels(Axis::linear("").of(Quantity::Seconds), 0.0, 7200.0),
            ["0", "0.5 h", "1 h", "1.5 h", "2 h"]
        );
    }
}
