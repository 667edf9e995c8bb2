//! Masks that depend only on the positions of queries and keys, for every size of the free axes.
//!
//! The nodes of a mask are evaluated on formulas instead of numbers. There are two main kinds of formula. In a formula
//! of the first kind, an element is a sum of indices and sizes. In a formula of the second kind, an element is one of
//! two numbers, and the distance of its row from its column selects the number. Sizes are symbols, so a formula is
//! valid for all sizes. The formula of a constant is derived from all of its elements. If this module has no rule for a
//! node, the node has no formula, and its mask stays a tensor.

use super::array::{Array, Kind};
use super::find::{Action, Site, Term};
use super::forms::Axes;
use super::masks::CAUSAL;
use super::node::Node;
use super::ops::{binary, unary};
use super::shapes::permutation;
use super::size::Size;
use super::value::place;

/// Maximum depth of the nodes that compute a mask.
const DEPTH: usize = 64;

/// An interval of distances. A distance is the position of a key minus the position of a query. The interval includes
/// both ends; an open end is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Band {
    /// The smallest distance.
    pub low: Option<Size>,
    /// The largest distance.
    pub high: Option<Size>,
}

impl Band {
    /// Returns the intersection of two bands; `None` if the order of their ends is unknown.
    fn and(&self, other: &Band) -> Option<Band> {
        fn end(a: Option<&Size>, b: Option<&Size>, most: bool) -> Option<Option<Size>> {
            let (Some(a), Some(b)) = (a, b) else { return Some(a.or(b).cloned()) };
            let first = a.minus(b)?.known()? > 0;
            Some(Some(if first == most { a.clone() } else { b.clone() }))
        }
        Some(Band {
            low: end(self.low.as_ref(), other.low.as_ref(), true)?,
            high: end(self.high.as_ref(), other.high.as_ref(), false)?,
        })
    }

    /// Returns the band of all distances outside this band; `None` if these distances do not form a single band.
    fn others(&self) -> Option<Band> {
        let one = Size::from(1);
        match (&self.low, &self.high) {
            (Some(low), None) => Some(Band { low: None, high: Some(low.minus(&one)?) }),
            (None, Some(high)) => Some(Band { low: Some(high.plus(&one)?), high: None }),
            _ => None,
        }
    }

    /// Returns the band with `by` added to both ends.
    fn moved(&self, by: &Size) -> Option<Band> {
        let end = |end: &Option<Size>| match end {
            Some(end) => Some(Some(end.plus(by)?)),
            None => Some(None),
        };
        Some(Band { low: end(&self.low)?, high: end(&self.high)? })
    }

    /// Returns `true` if every query has a key within the band.
    fn reaches_all(&self, axes: &Axes) -> bool {
        let more = axes.keys.minus(&axes.queries);
        let ends = |low: &Size| more.as_ref().and_then(|more| more.minus(low)).is_some_and(|n| n.is_count());
        self.high.as_ref().is_none_or(Size::is_count) && self.low.as_ref().is_none_or(ends)
    }
}

/// A formula for the elements of a tensor.
#[derive(Clone, Debug)]
enum Formula {
    /// The same number in every element.
    Number(f64),
    /// The sum of `rest` and the product of each index and its step. If `absolute` is set, the absolute value of this
    /// sum.
    Place { steps: Vec<i64>, rest: Size, absolute: bool },
    /// One number inside a band of the last two axes, and another number outside.
    Band { band: Band, inside: f64, outside: f64 },
}

/// Returns the step and `rest` if the sum has the form `step · (column − row) + rest`. `steps` contains the step of
/// each index.
fn distance(steps: &[i64], rest: Size) -> Option<(i64, Size)> {
    let (outer, [row, column]) = steps.split_last_chunk::<2>()?;
    (outer.iter().all(|&step| step == 0) && *row == -column && column.abs() == 1).then_some((*column, rest))
}

/// Returns the band in which `step · distance + rest` is at most zero.
fn at_most_zero(step: i64, rest: &Size) -> Option<Band> {
    Some(if step > 0 {
        Band { low: None, high: Some(Size::from(0).minus(rest)?) }
    } else {
        Band { low: Some(rest.clone()), high: None }
    })
}

/// Derives a formula from all elements of a constant; `None` if no formula describes them.
fn constant(array: &Array) -> Option<Formula> {
    let first = *array.data.first()?;
    if array.data.iter().all(|x| *x == first) {
        return Some(Formula::Number(first));
    }
    let wide: Vec<usize> = (0..array.shape.len()).filter(|&axis| array.shape[axis] != 1).collect();
    if let [axis] = wide[..] {
        let step = array.data[1] - first;
        let is_range = array.data.iter().enumerate().all(|(i, &x)| x == first + i as f64 * step);
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 1e9).then_some(x as i64);
        let mut steps = vec![0; array.shape.len()];
        steps[axis] = whole(step).filter(|_| is_range)?;
        return Some(Formula::Place { steps, rest: Size::from(whole(first)?), absolute: false });
    }
    let [outer @ .., rows, columns] = &array.shape[..] else { return None };
    if outer.iter().any(|&n| n != 1) || *rows < 2 || *columns < 2 {
        return None;
    }
    // The element at each distance; index 0 is the distance of the first column from the last row.
    let mut each = vec![None::<f64>; rows + columns - 1];
    for (at, &x) in array.data.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        if *each[column + rows - 1 - row].get_or_insert(x) != x {
            return None;
        }
    }
    let turns: Vec<usize> = (1..each.len()).filter(|&at| each[at] != each[at - 1]).collect();
    let distance = |at: usize| Size::count(at)?.minus(&Size::count(rows - 1)?);
    let outside = each[0]?;
    let (band, inside) = match turns[..] {
        [low] => (Band { low: Some(distance(low)?), high: None }, each[low]?),
        [low, end] if each[end] == each[0] => {
            (Band { low: Some(distance(low)?), high: Some(distance(end - 1)?) }, each[low]?)
        }
        _ => return None,
    };
    Some(Formula::Band { band, inside, outside })
}

/// Converts a formula from the axes `from` to the axes `to`: by broadcasting, or by inserting or removing axes of size
/// 1.
fn carried(formula: Formula, from: &[Size], to: &[Size], broadcast: bool) -> Option<Formula> {
    match formula {
        Formula::Number(x) => Some(Formula::Number(x)),
        Formula::Place { steps, rest, absolute } => {
            let wide = |shape: &[Size]| (0..shape.len()).filter(|&at| !shape[at].is(1)).collect::<Vec<_>>();
            let mut new = vec![0; to.len()];
            if broadcast {
                let lead = to.len().checked_sub(from.len())?;
                for (at, &step) in
                    steps.iter().enumerate().filter(|(at, step)| **step != 0 && !from[*at].is(1))
                {
                    (from[at] == to[lead + at]).then_some(())?;
                    new[lead + at] = step;
                }
            } else {
                let (a, b) = (wide(from), wide(to));
                (a.len() == b.len()).then_some(())?;
                for (a, b) in a.into_iter().zip(b) {
                    (from[a] == to[b]).then_some(())?;
                    new[b] = steps[a];
                }
            }
            Some(Formula::Place { steps: new, rest, absolute })
        }
        band => {
            let (_, last) = from.split_last_chunk::<2>()?;
            let (_, new) = to.split_last_chunk::<2>()?;
            let same = |(a, b): (&Size, &Size)| a == b || a.is_cut_of(b);
            last.iter().zip(new).all(same).then_some(band)
        }
    }
}

/// Applies `each` to the numbers of a formula.
fn mapped(formula: Formula, each: impl Fn(f64) -> Option<f64>) -> Option<Formula> {
    let number = |x: f64| each(x).filter(|x| !x.is_nan());
    match formula {
        Formula::Number(x) => Some(Formula::Number(number(x)?)),
        Formula::Band { band, inside, outside } => {
            Some(Formula::Band { band, inside: number(inside)?, outside: number(outside)? })
        }
        Formula::Place { .. } => None,
    }
}

/// Returns the band in which a formula is nonzero. The formula must have two numbers, exactly one of them zero.
fn truth(formula: &Formula) -> Option<Band> {
    match formula {
        Formula::Band { band, inside, outside } if *inside != 0.0 && *outside == 0.0 => Some(band.clone()),
        Formula::Band { band, inside, outside } if *inside == 0.0 && *outside != 0.0 => band.others(),
        _ => None,
    }
}

/// Returns a formula as a sum of indices and sizes: the steps of the indices, `rest`, and whether the absolute value of
/// the sum is taken.
fn sum(formula: Formula, rank: usize) -> Option<(Vec<i64>, Size, bool)> {
    match formula {
        Formula::Place { steps, rest, absolute } => Some((steps, rest, absolute)),
        Formula::Number(x) if x.fract() == 0.0 && x.abs() < 1e9 => {
            Some((vec![0; rank], Size::from(x as i64), false))
        }
        _ => None,
    }
}

/// Returns the formula of `a op b`. Both tensors have `rank` axes. `integers` states whether their elements are
/// integers.
fn combined(op: &str, integers: bool, a: Formula, b: Formula, rank: usize) -> Option<Formula> {
    match (a, b) {
        (a @ (Formula::Band { .. } | Formula::Number(_)), Formula::Number(y)) => {
            mapped(a, |x| binary(op, integers, x, y))
        }
        (Formula::Number(x), b @ Formula::Band { .. }) => mapped(b, |y| binary(op, integers, x, y)),
        (a @ Formula::Band { .. }, b @ Formula::Band { .. }) => {
            let inside = match (op, &a, &b) {
                ("And", ..) => 1.0,
                (
                    "Mul",
                    Formula::Band { inside: x, outside: 0.0, .. },
                    Formula::Band { inside: y, outside: 0.0, .. },
                ) => x * y,
                _ => return None,
            };
            Some(Formula::Band { band: truth(&a)?.and(&truth(&b)?)?, inside, outside: 0.0 })
        }
        (a, b) => {
            let ((a, x, a_absolute), (b, y, b_absolute)) = (sum(a, rank)?, sum(b, rank)?);
            if b_absolute {
                return None;
            }
            let less: Vec<i64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
            match op {
                "Add" if !a_absolute => {
                    let steps = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                    Some(Formula::Place { steps, rest: x.plus(&y)?, absolute: false })
                }
                "Sub" if !a_absolute => {
                    Some(Formula::Place { steps: less, rest: x.minus(&y)?, absolute: false })
                }
                "Mul" if !a_absolute && b.iter().all(|&step| step == 0) => {
                    let by = y.known()?;
                    let steps = a.iter().map(|a| a.checked_mul(by)).collect::<Option<_>>()?;
                    Some(Formula::Place { steps, rest: x.times(&y)?, absolute: false })
                }
                "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" => {
                    // Each comparison is `a ≤ b` or `a ≤ b − 1`, or the opposite of one of these.
                    let opposite = op.starts_with("Greater");
                    let strict = (op == "Less") || op == "GreaterOrEqual";
                    let bound = if strict { y.minus(&Size::from(1))? } else { y };
                    let band = if a_absolute {
                        b.iter().all(|&step| step == 0).then_some(())?;
                        let (step, rest) = distance(&a, x)?;
                        let below = at_most_zero(step, &rest.minus(&bound)?)?;
                        let above = at_most_zero(-step, &Size::from(0).minus(&rest)?.minus(&bound)?)?;
                        below.and(&above)?
                    } else {
                        let (step, rest) = distance(&less, x.minus(&bound)?)?;
                        at_most_zero(step, &rest)?
                    };
                    let number = |x: bool| f64::from(u8::from(x));
                    Some(Formula::Band { band, inside: number(!opposite), outside: number(opposite) })
                }
                _ => None,
            }
        }
    }
}

/// Returns the formula of a tensor. Returns `None` if the elements are computed from positions, but their type is too
/// narrow to represent positions exactly.
fn formula(site: &Site<'_>, name: &str, depth: usize) -> Option<Formula> {
    // Types of 16 bits may round positions.
    let wide = [1, 6, 7, 11].contains(&site.symbols.kind(name)?.0);
    followed(site, name, depth).filter(|found| wide || !matches!(found, Formula::Place { .. }))
}

/// Returns the formula of a tensor of any type, from its elements or from the node that produces it.
fn followed(site: &Site<'_>, name: &str, depth: usize) -> Option<Formula> {
    let shape = site.symbols.shape(name)?;
    if site.symbols.is_fixed(name) {
        if let Some(found) = site.worlds.first()?.array(name).as_ref().and_then(constant) {
            return Some(found);
        }
    } else if let Some([rest]) = site.symbols.sizes(name).as_deref() {
        return Some(Formula::Place { steps: vec![0; shape.len()], rest: rest.clone(), absolute: false });
    }
    let node = &site.graph.nodes[*site.graph.producer.get(name).filter(|_| depth < DEPTH)?];
    if !node.domain.is_empty() {
        return None;
    }
    let inner = |i: usize| formula(site, node.input(i)?, depth + 1);
    let axes = |i: usize| site.symbols.shape(node.input(i)?);
    let spread = |i: usize| carried(inner(i)?, axes(i)?, shape, true);
    match (node.op.as_str(), node.inputs.len()) {
        ("Range", 3) => {
            let [start, step] = [0, 2].map(|i| site.symbols.sizes(node.input(i)?)?.first().cloned());
            Some(Formula::Place { steps: vec![step?.known()?], rest: start?, absolute: false })
        }
        // All elements of the output are equal.
        ("ConstantOfShape", 1) => Some(Formula::Number(*site.worlds.first()?.array(name)?.data.first()?)),
        ("Identity", 1) => inner(0),
        ("Cast", 1) => {
            let kind = site.symbols.kind(name)?;
            match inner(0)? {
                found @ Formula::Place { .. } => Some(found),
                found => mapped(found, |x| Some(if kind.is_float() { x } else { kind.rounded(x) })),
            }
        }
        ("Reshape" | "Unsqueeze" | "Squeeze" | "Flatten", _) => carried(inner(0)?, axes(0)?, shape, false),
        ("Expand", 2) => spread(0),
        ("Transpose", 1) => turned(inner(0)?, &permutation(node, shape.len())?),
        ("Slice", 3..=5) => sliced(site, node, inner(0)?, axes(0)?),
        ("Trilu", 1 | 2) => {
            let by = match node.input(1) {
                Some(by) => site.symbols.sizes(by)?.first()?.clone(),
                None => Size::from(0),
            };
            let upper = node.int("upper").unwrap_or(1) != 0;
            let kept =
                if upper { Band { low: Some(by), high: None } } else { Band { low: None, high: Some(by) } };
            let (band, inside) = match inner(0)? {
                Formula::Number(x) => (kept, x),
                found @ Formula::Band { inside, outside, .. } => {
                    (truth(&found)?.and(&kept)?, if outside == 0.0 { inside } else { outside })
                }
                Formula::Place { .. } => return None,
            };
            (shape.len() >= 2).then_some(Formula::Band { band, inside, outside: 0.0 })
        }
        ("Where", 3) => {
            let band = truth(&spread(0)?)?;
            match (spread(1)?, spread(2)?) {
                (Formula::Number(inside), Formula::Number(outside)) => {
                    Some(Formula::Band { band, inside, outside })
                }
                (Formula::Band { band: other, inside, outside }, Formula::Number(x)) if x == outside => {
                    Some(Formula::Band { band: band.and(&other)?, inside, outside })
                }
                _ => None,
            }
        }
        ("Neg", 1) => match inner(0)? {
            found @ Formula::Place { .. } => combined("Sub", true, Formula::Number(0.0), found, shape.len()),
            found => mapped(found, |x| Some(-x)),
        },
        ("Abs", 1) => match inner(0)? {
            Formula::Place { steps, rest, .. } => Some(Formula::Place { steps, rest, absolute: true }),
            found => mapped(found, |x| Some(x.abs())),
        },
        (op, 1) => mapped(inner(0)?, |x| unary(op, x)),
        (op, 2) => {
            let kind = site.symbols.kind(node.input(0)?)?;
            let integers = !kind.is_float() && kind != Kind::BOOL;
            combined(op, integers, spread(0)?, spread(1)?, shape.len())
        }
        _ => None,
    }
}

/// Returns the formula of a tensor after its axes have been permuted.
fn turned(formula: Formula, order: &[usize]) -> Option<Formula> {
    match formula {
        Formula::Number(x) => Some(Formula::Number(x)),
        Formula::Place { steps, rest, absolute } => {
            let steps = order.iter().map(|&axis| steps[axis]).collect();
            Some(Formula::Place { steps, rest, absolute })
        }
        Formula::Band { band, inside, outside } => {
            let rank = order.len();
            let back = |end: Option<Size>| match end {
                Some(end) => Some(Some(Size::from(0).minus(&end)?)),
                None => Some(None),
            };
            let band = match order.split_last_chunk::<2>()?.1 {
                [a, b] if (*a, *b) == (rank - 2, rank - 1) => band,
                [a, b] if (*a, *b) == (rank - 1, rank - 2) => {
                    Band { low: back(band.high)?, high: back(band.low)? }
                }
                _ => return None,
            };
            Some(Formula::Band { band, inside, outside })
        }
    }
}

/// Returns the formula of the output of `node`, which is a `Slice` of a tensor with `formula` and `shape`.
fn sliced(site: &Site<'_>, node: &Node, mut formula: Formula, shape: &[Size]) -> Option<Formula> {
    let rank = shape.len();
    let sizes = |i: usize| site.symbols.sizes(node.input(i)?);
    let starts = sizes(1)?;
    let axes: Vec<i64> = match node.input(3) {
        Some(_) => sizes(3)?.iter().map(Size::known).collect::<Option<_>>()?,
        None => (0..).take(starts.len()).collect(),
    };
    if node.input(4).is_some() && !sizes(4)?.iter().all(|step| step.is(1)) || axes.len() != starts.len() {
        return None;
    }
    for (start, axis) in starts.iter().zip(axes) {
        let axis = place(axis, rank)?;
        let start = match start.known() {
            Some(n) if n < 0 => start.plus(&shape[axis])?,
            _ => start.clone(),
        };
        // Neither end needs a clamp: a slice that begins after the last element is empty.
        start.is_count().then_some(())?;
        formula = match formula {
            Formula::Number(x) => Formula::Number(x),
            Formula::Place { steps, rest, absolute } => {
                let rest = rest.plus(&start.times(&Size::from(steps[axis]))?)?;
                Formula::Place { steps, rest, absolute }
            }
            Formula::Band { band, inside, outside } => {
                let band = match rank - axis {
                    1 => band.moved(&Size::from(0).minus(&start)?)?,
                    2 => band.moved(&start)?,
                    _ => band,
                };
                Formula::Band { band, inside, outside }
            }
        };
    }
    Some(formula)
}

/// A term that keeps the scores in a band and masks all others.
#[derive(Clone, Debug)]
pub struct MaskBand {
    /// The band whose scores are kept.
    pub band: Band,
    /// `true` if masked scores become `−∞`, so a row without a key in the band is NaN.
    pub void: bool,
}

/// Returns the band of keys that a term keeps, if this band depends only on positions. The term must cover the rows and
/// columns of all scores, and must be equal for all batches and heads.
pub fn mask_band(site: &Site<'_>, term: &Term, axes: &Axes) -> Option<MaskBand> {
    let shape = site.symbols.shape(&term.name)?;
    let (outer, [rows, columns]) = shape.split_last_chunk::<2>()?;
    let whole = |size: &Size, of: &Size| size == of || size.is_cut_of(of);
    if !outer.iter().all(|n| n.is(1)) || !whole(rows, &axes.queries) || !whole(columns, &axes.keys) {
        return None;
    }
    let found = formula(site, &term.name, 0)?;
    let (found, fill) = match term.action {
        Action::Choose { keeps, fill } => {
            (mapped(found, |x| Some(f64::from(u8::from((x != 0.0) == keeps))))?, fill)
        }
        Action::Add | Action::Subtract => {
            let found = if term.action == Action::Add { found } else { mapped(found, |x| Some(-x))? };
            let Formula::Band { inside, outside, .. } = found else { return None };
            let fill = inside.min(outside);
            if inside.max(outside) != 0.0 || fill > CAUSAL {
                return None;
            }
            (mapped(found, |x| Some(f64::from(u8::from(x == 0.0))))?, fill)
        }
    };
    Some(MaskBand { band: truth(&found)?, void: fill == f64::NEG_INFINITY })
}

/// Attributes of the operator that keep the scores in a band and mask all others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Diagonal {
    /// `true` if no query attends a key after its own position.
    pub causal: bool,
    /// `true` if the last query has the position of the last key.
    pub last: bool,
    /// Number of keys before the position of a query, and number of keys after it, that the query attends; `None` means
    /// unlimited.
    pub window: [Option<i64>; 2],
}

impl Diagonal {
    /// Returns the attributes that keep `band`; `None` if no attributes keep exactly this band.
    fn of(band: &Band, axes: &Axes) -> Option<Diagonal> {
        let count = |n: i64| (0..1 << 31).contains(&n).then_some(n);
        let left = |from: &Size| match &band.low {
            Some(low) => Some(Some(count(from.minus(low)?.known()?)?)),
            None => Some(None),
        };
        let zero = Size::from(0);
        let last = axes.keys.minus(&axes.queries)?;
        match &band.high {
            Some(high) if *high == zero => {
                Some(Diagonal { causal: true, last: false, window: [left(&zero)?, None] })
            }
            Some(high) if *high == last => {
                Some(Diagonal { causal: true, last: true, window: [left(&last)?, None] })
            }
            high => {
                let right = match high {
                    Some(high) => Some(count(high.known()?)?),
                    None => None,
                };
                Some(Diagonal { causal: false, last: false, window: [left(&zero)?, right] })
            }
        }
    }
}

/// Returns attributes that express as many of the `terms` as possible. Also returns, for each term, whether these
/// attributes express it. The entry of a term without a band is `None`. `causal` is `true` if the attention is causal
/// even without the terms.
pub fn diagonal(terms: &[Option<MaskBand>], causal: bool, axes: &Axes) -> (Diagonal, Vec<bool>) {
    let mut band = Band { low: None, high: causal.then(|| Size::from(0)) };
    let mut found = Diagonal { causal, ..Diagonal::default() };
    let mut used = vec![false; terms.len()];
    let mut void = true;
    for (at, term) in terms.iter().enumerate() {
        let Some(term) = term else { continue };
        let both = band.and(&term.band).filter(|both| {
            // If the fill of any term is finite, the band must contain a key of each row. For a row without a key, a
            // finite fill yields equal weights, but the operator yields zeros. A term without a band is assumed to keep
            // the first key of each row, but a window may exclude this key.
            let alone = both.low.is_none() || terms.iter().all(Option::is_some);
            void && term.void || both.reaches_all(axes) && alone
        });
        if let Some(both) = both
            && let Some(diagonal) = Diagonal::of(&both, axes)
        {
            (band, found, used[at]) = (both, diagonal, true);
            void &= term.void;
        }
    }
    // A term that is not expressed becomes a further mask.
    let left = (0..terms.len()).any(|at| terms[at].is_some() && !used[at]);
    if left && !void && band.low.is_some() {
        return (Diagonal { causal, ..Diagonal::default() }, vec![false; terms.len()]);
    }
    (found, used)
}
