//! Tests every scan at every length: compares scans of an exact, non-commutative monoid with a fold, compares scans of
//! softmax states with f64, and counts the merges along each path.

use elsa_core::argument::ArgumentError;
use elsa_core::monoid::Monoid;
use elsa_core::scan::{
    BlockSize, Scan, ScanForm, Scratched, Slots, blelloch, ceil_log2, elsa_depth, kogge_stone, two_level,
};
use elsa_core::state::State;
use elsa_oracle::random::seeded;

/// 2 × 2 matrices modulo a prime: associative and exact, but most pairs do not commute.
#[derive(Clone, Debug, PartialEq)]
struct Matrix([u64; 4]);

const PRIME: u64 = 2_147_483_647;

impl Monoid for Matrix {
    fn identity() -> Matrix {
        Matrix([1, 0, 0, 1])
    }
    fn combine(&self, later: &Matrix) -> Matrix {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, later.0);
        Matrix([
            (a * e + b * g) % PRIME,
            (a * f + b * h) % PRIME,
            (c * e + d * g) % PRIME,
            (c * f + d * h) % PRIME,
        ])
    }
}

fn matrices(n: usize) -> Vec<Matrix> {
    let mut random = seeded(n as u64);
    (0..n).map(|_| Matrix([0; 4].map(|_: u64| random.bits() % PRIME))).collect()
}

/// Applies one form of a scan; `None` if the scan does not support the form. A reduction returns a list of one element.
fn apply<M: Monoid>(scan: Scan, form: ScanForm, mut items: Vec<M>) -> Option<Vec<M>> {
    let mut scratch = vec![M::identity(); scan.scratch_len(form, items.len())];
    let result = match form {
        ScanForm::Reduction => return Some(vec![scan.reduce(&mut items, &mut scratch).unwrap()]),
        ScanForm::Inclusive => scan.inclusive(&mut items, &mut scratch),
        ScanForm::Exclusive => scan.exclusive(&mut items),
    };
    match result {
        Ok(()) => Some(items),
        Err(e) => {
            assert_eq!(e, ArgumentError::Form { scan: scan.name(), form: form.name() });
            None
        }
    }
}

fn wanted(form: ScanForm, items: &[Matrix]) -> Vec<Matrix> {
    let mut prefixes = vec![Matrix::identity()];
    for x in items {
        prefixes.push(prefixes[prefixes.len() - 1].combine(x));
    }
    match form {
        ScanForm::Reduction => vec![prefixes[items.len()].clone()],
        ScanForm::Inclusive => prefixes[1..].to_vec(),
        ScanForm::Exclusive => prefixes[..items.len()].to_vec(),
    }
}

const FORMS: usize = 8 + 7 + 2;

fn lengths() -> impl Iterator<Item = usize> {
    (0..=600).chain([1023, 1024, 1025, 4095, 4096, 4097, 10_000, 65_535, 65_536, 65_537])
}

#[test]
fn every_scan_is_the_fold() {
    let (a, b) = (matrices(2)[0].clone(), matrices(2)[1].clone());
    assert_ne!(a.combine(&b), b.combine(&a), "the test monoid must not commute");
    for n in lengths() {
        let items = matrices(n);
        let mut forms = 0;
        for form in ScanForm::ALL {
            let want = wanted(form, &items);
            for scan in Scan::ALL {
                let got = apply(scan, form, items.clone());
                assert_eq!(got.is_some(), scan.depth(form, n).is_some(), "{} {}", scan.name(), form.name());
                if let Some(got) = got {
                    assert!(got == want, "{} {} over {n}", scan.name(), form.name());
                    forms += 1;
                }
            }
        }
        assert_eq!(forms, FORMS);
    }
}

/// Number of merges on the longest path to a value: `merges` counts all merges, and `without_identity` only those of
/// two values that are not the identity.
#[derive(Clone, Debug, PartialEq)]
struct Path {
    identity: bool,
    merges: usize,
    without_identity: usize,
}

impl Path {
    const INPUT: Path = Path { identity: false, merges: 0, without_identity: 0 };
}

impl Monoid for Path {
    fn identity() -> Path {
        Path { identity: true, ..Path::INPUT }
    }
    fn combine(&self, later: &Path) -> Path {
        let longest = self.without_identity.max(later.without_identity);
        Path {
            identity: self.identity && later.identity,
            merges: 1 + self.merges.max(later.merges),
            without_identity: longest + usize::from(!self.identity && !later.identity),
        }
    }
}

#[test]
fn depth_is_what_was_executed() {
    for n in lengths() {
        let mut forms = 0;
        for form in ScanForm::ALL {
            for scan in Scan::ALL {
                let Some(depth) = scan.depth(form, n) else { continue };
                let outputs = apply(scan, form, vec![Path::INPUT; n]).unwrap();
                let merges = outputs.iter().map(|p| p.merges).max().unwrap_or(0);
                let rounding = outputs.iter().map(|p| p.without_identity).max().unwrap_or(0);
                let name = format!("{} {} over {n}", scan.name(), form.name());
                assert_eq!(merges, depth, "{name}");
                assert_eq!(rounding, depth - scan.identity_merges(form, n), "{name}, without the identity");
                forms += 1;
            }
        }
        assert_eq!(forms, FORMS);
    }
}

#[test]
fn the_published_depth_is_never_exceeded_and_where_it_is_loose() {
    for block in BlockSize::ALL {
        let b = block.size();
        for n in lengths().filter(|n| *n > 0) {
            let scan = Scan::TwoLevel(block);
            let published = elsa_depth(n, b);
            for form in [ScanForm::Reduction, ScanForm::Inclusive] {
                assert!(scan.depth(form, n).unwrap() + 3 <= published, "{} over {n}", scan.name());
            }
            let executed = scan.depth(ScanForm::Inclusive, n).unwrap();
            if n > b && n.div_ceil(b).is_power_of_two() {
                assert_eq!(executed + 3, published, "{} over {n}", scan.name());
            }
            // Read literally, the published formula has a negative inter-block term if there is only one block.
            let (log_n, log_b) = (ceil_log2(n) as i64, ceil_log2(b) as i64);
            let literal = log_b + 2 * (log_n - log_b) + 3;
            assert_eq!(literal < executed as i64, n <= b && log_n < log_b - 3, "literal, {n} of {b}");
            let simplified = 2 * ceil_log2(n) + 3;
            assert_eq!(published > simplified, n < b && log_b > 2 * log_n, "simplified, {n} of {b}");
        }
    }
    // For blocks of 128, the formula needs no exception above 8 elements.
    assert_eq!(elsa_depth(8, 128), 2 * 3 + 3 + 1);
    assert_eq!(elsa_depth(9, 128), 2 * 4 + 3 - 1);
}

#[test]
fn other_block_sizes_and_short_scratch() {
    for block in [0, 1, 2, 3, 5, 100] {
        for n in 0..=40 {
            let items = matrices(n);
            let mut got = items.clone();
            let mut scratch = vec![Matrix::identity(); two_level::scratch_len(n, block)];
            two_level::inclusive(&mut Scratched::new(&mut got, &mut scratch), block).unwrap();
            assert_eq!(got, wanted(ScanForm::Inclusive, &items));
            let mut paths = vec![Path::INPUT; n];
            let mut scratch = vec![Path::INPUT; scratch.len()];
            two_level::inclusive(&mut Scratched::new(&mut paths, &mut scratch), block).unwrap();
            let merges = paths.iter().map(|p| p.merges).max().unwrap_or(0);
            assert_eq!(merges, two_level::inclusive_depth(n, block), "{n} in blocks of {block}");
            assert!(merges <= elsa_depth(n, block));
        }
    }
    let items = matrices(200);
    for scan in Scan::ALL {
        let needed = scan.scratch_len(ScanForm::Inclusive, 200);
        if needed > 0 {
            let mut same = items.clone();
            let mut short = vec![Matrix::identity(); needed - 1];
            let error = Err(ArgumentError::Short { argument: "scratch", found: needed - 1, needed });
            assert_eq!(scan.inclusive(&mut same, &mut short), error);
            assert_eq!(scan.reduce(&mut same, &mut short).map(|_| ()), error);
            assert_eq!(same, items, "nothing is changed when refused");
        }
    }
}

/// Consecutive square matrices modulo a prime, followed by scratch that is marked as unwritten. The size of a matrix is
/// known only at run time.
struct Workspace {
    numbers: Vec<u64>,
    side: usize,
    elements: usize,
    /// Number of calls of `combine`.
    merges: usize,
}

impl Workspace {
    fn new(side: usize, elements: usize, scratch: usize) -> Workspace {
        let mut random = seeded(elements as u64);
        let size = side * side;
        let mut numbers = vec![u64::MAX; (elements + scratch) * size];
        numbers[..elements * size].fill_with(|| random.bits() % PRIME);
        Workspace { numbers, side, elements, merges: 0 }
    }

    fn at(&self, at: usize) -> &[u64] {
        &self.numbers[at * self.side * self.side..(at + 1) * self.side * self.side]
    }

    fn set(&mut self, at: usize, numbers: &[u64]) {
        let size = numbers.len();
        self.numbers[at * size..(at + 1) * size].copy_from_slice(numbers);
    }

    fn product(&self, a: &[u64], b: &[u64]) -> Vec<u64> {
        let n = self.side;
        let element = |i: usize| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n] % PRIME).sum::<u64>();
        (0..n * n).map(|i| element(i) % PRIME).collect()
    }
}

impl Slots for Workspace {
    fn len(&self) -> usize {
        self.elements
    }
    fn scratch(&self) -> usize {
        self.numbers.len() / (self.side * self.side) - self.elements
    }
    fn identity(&mut self, at: usize) {
        let n = self.side;
        let one: Vec<u64> = (0..n * n).map(|i| u64::from(i / n == i % n)).collect();
        self.set(at, &one);
    }
    fn combine(&mut self, before: usize, at: usize) {
        assert_ne!(before, at);
        self.merges += 1;
        let product = self.product(self.at(before), self.at(at));
        self.set(at, &product);
    }
    fn copy(&mut self, from: usize, to: usize) {
        let element = self.at(from).to_vec();
        self.set(to, &element);
    }
    fn swap(&mut self, a: usize, b: usize) {
        let (one, other) = (self.at(a).to_vec(), self.at(b).to_vec());
        self.set(a, &other);
        self.set(b, &one);
    }
}

/// Checks scans of elements whose size is known only at run time, in a workspace with exactly the required scratch.
#[test]
fn every_scan_over_slots_is_the_fold() {
    for (side, n) in (1..4).flat_map(|side| [0, 1, 2, 3, 63, 64, 65, 200, 257].map(|n| (side, n))) {
        let items = Workspace::new(side, n, 0);
        let mut one = Workspace::new(side, 0, 1);
        one.identity(0);
        let mut prefixes = vec![one.at(0).to_vec()];
        for i in 0..n {
            prefixes.push(items.product(&prefixes[i], items.at(i)));
        }
        for scan in Scan::ALL {
            let of = |form| Workspace::new(side, n, scan.scratch_len(form, n));
            let name = format!("{} over {n} of {side}", scan.name());
            let mut slots = of(ScanForm::Reduction);
            let total = scan.reduce_slots(&mut slots).unwrap();
            assert_eq!(total.is_some(), n > 0, "{name}");
            assert_eq!(total.map_or(&prefixes[0][..], |at| slots.at(at)), prefixes[n], "{name}");
            assert!(slots.merges + 1 >= n, "{name}");
            for (form, first) in [(ScanForm::Inclusive, 1), (ScanForm::Exclusive, 0)] {
                let mut slots = of(form);
                let result = match form {
                    ScanForm::Inclusive => scan.inclusive_slots(&mut slots),
                    _ => scan.exclusive_slots(&mut slots),
                };
                assert_eq!(result.is_ok(), scan.depth(form, n).is_some(), "{name}");
                if result.is_ok() {
                    assert!((0..n).all(|i| slots.at(i) == prefixes[first + i]), "{} {name}", form.name());
                }
            }
        }
    }
}

/// Checks that the merges of one step do not depend on each other: any order of execution gives the same result.
#[test]
fn merges_of_a_step_are_independent() {
    for n in [2, 7, 64, 100] {
        let items = matrices(n);
        let want = wanted(ScanForm::Inclusive, &items);
        let (mut a, mut b) = (items.clone(), items.clone());
        for step in 0..kogge_stone::steps(n) {
            // In a step, all reads precede all writes.
            let before = a.clone();
            for m in 0..n {
                if let Some((earlier, at)) = kogge_stone::merge(n, step, m) {
                    a[at] = before[earlier].combine(&before[at]);
                }
            }
        }
        for step in 0..blelloch::steps(n) {
            let nodes: Vec<_> = (0..n).map_while(|m| blelloch::node(n, step, m)).collect();
            for node in nodes.iter().rev() {
                b[node.last] = b[node.mid].combine(&b[node.last]);
            }
        }
        assert_eq!(a, want);
        assert_eq!(b[n - 1], want[n - 1]);
    }
}

/// Compares prefixes of states with sums in f64. The state of a single key contains `2^(s − m)`, with one rounding of
/// the exponential and one of its argument. Every merge rounds once, so the number of merges on a path bounds the
/// error.
#[test]
fn scans_of_states_are_prefix_softmax() {
    const U: f64 = 5.960_464_477_539_063e-8;
    type S = State<[f32; 2]>;
    let mut checked = 0;
    for n in [1, 2, 3, 63, 64, 65, 129, 300, 577] {
        let mut random = seeded(n as u64);
        let keys: Vec<(f32, [f32; 2])> =
            (0..n).map(|_| (20.0 * random.normal(), [random.normal(), random.normal()])).collect();
        let states: Vec<S> = keys.iter().map(|(s, v)| S::of(*s, v)).collect();
        for scan in Scan::ALL {
            let Some(got) = apply(scan, ScanForm::Inclusive, states.clone()) else { continue };
            let depth = scan.depth(ScanForm::Inclusive, n).unwrap() as f64;
            for (i, mut state) in got.into_iter().enumerate() {
                let max = keys[..=i].iter().map(|k| f64::from(k.0)).fold(f64::NEG_INFINITY, f64::max);
                let weights = || keys[..=i].iter().map(|k| ((f64::from(k.0) - max).exp2(), k.1));
                let sum: f64 = weights().map(|w| w.0).sum();
                let lse = (max + sum.log2()) * std::f64::consts::LN_2;
                let error = (2.0 * depth + 8.0) * U;
                let found = f64::from(state.log_sum_exp());
                assert!((found - lse).abs() <= error + 2.0 * U * lse.abs(), "{} {n} {i}", scan.name());
                state.finish();
                for x in 0..2 {
                    let y: f64 = weights().map(|(w, v)| w * f64::from(v[x])).sum::<f64>() / sum;
                    let spread: f64 = weights().map(|(w, v)| w * f64::from(v[x]).abs()).sum::<f64>() / sum;
                    let off = (f64::from(state.w[x]) - y).abs();
                    assert!(off <= 2.0 * error * spread, "{} {n} {i}: {off:e}", scan.name());
                }
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 7 * (1 + 2 + 3 + 63 + 64 + 65 + 129 + 300 + 577));
}
