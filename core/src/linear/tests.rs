//! Checks the laws of the affine maps `(A, b)`.

extern crate std;

use super::law::{Affine, AffineSlots, Transition, settled};
use crate::random::Random;
use crate::scan::{Scan, ScanForm, Slots};
use std::{vec, vec::Vec};

const ALL: [Transition; 3] = [Transition::Scalar, Transition::Diagonal, Transition::Dense];

/// Sets `element` to the map of one token. `gates` has one factor per row, a single factor, or none. Without `beta`
/// the map is `(diag(a), k vᵀ)`. With `beta` it is `((I − β k kᵀ) diag(a), β k vᵀ)`, which requires a dense `A`.
fn token(law: &Affine, element: &mut [f32], gates: &[f32], beta: Option<f32>, key: &[f32], value: &[f32]) {
    let (a, b) = element.split_at_mut(law.transition_len());
    let gate = |x: usize| match gates {
        [] => 1.0,
        [one] => *one,
        each => each[x],
    };
    let rate = beta.unwrap_or(1.0);
    for (row, k) in b.chunks_exact_mut(law.columns).zip(key) {
        let k = rate * k;
        row.iter_mut().zip(value).for_each(|(b, v)| *b = settled(k * v));
    }
    match law.transition {
        Transition::Scalar => a[0] = gate(0),
        Transition::Diagonal => a.iter_mut().enumerate().for_each(|(x, a)| *a = gate(x)),
        Transition::Dense => {
            let rate = beta.unwrap_or(0.0);
            for (y, row) in a.chunks_exact_mut(law.rows).enumerate() {
                let k = rate * key[y];
                for (x, a) in row.iter_mut().enumerate() {
                    let one = f32::from(u8::from(x == y));
                    let gate = gate(x);
                    *a = if gate == 0.0 { 0.0 } else { (one - k * key[x]) * gate };
                }
            }
        }
    }
}

/// Returns the affine maps of `n` random tokens.
fn tokens(law: &Affine, n: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random::new(seed);
    (0..n)
        .map(|_| {
            let mut element = vec![f32::NAN; law.element_len()];
            let key: Vec<f32> = (0..law.rows).map(|_| 0.5 * random.normal()).collect();
            let value: Vec<f32> = (0..law.columns).map(|_| random.normal()).collect();
            let gates: Vec<f32> = match law.transition {
                Transition::Scalar => vec![random.unit() as f32],
                _ => (0..law.rows).map(|_| random.unit() as f32).collect(),
            };
            let beta = (law.transition == Transition::Dense).then(|| random.unit() as f32);
            token(law, &mut element, &gates, beta, &key, &value);
            element
        })
        .collect()
}

fn combined(law: &Affine, before: &[f32], at: &[f32]) -> Vec<f32> {
    let (mut at, mut spare) = (at.to_vec(), vec![f32::NAN; law.spare_len()]);
    law.combine(before, &mut at, &mut spare);
    at
}

/// Applies the map in `element` to a fixed state and returns the result.
fn applied(law: &Affine, element: &[f32]) -> Vec<f32> {
    let state: Vec<f32> = (0..law.rows * law.columns).map(|i| (i % 7) as f32 - 2.5).collect();
    let (mut element, mut spare) = (element.to_vec(), vec![f32::NAN; law.spare_len()]);
    law.apply(&mut element, &state, &mut spare);
    element.split_off(law.transition_len())
}

fn near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5)
}

#[test]
fn identity_and_associativity() {
    for transition in ALL {
        for rows in [1, 2, 5] {
            let law = Affine { transition, rows, columns: 3 };
            let x = tokens(&law, 9, rows as u64);
            let mut e = vec![f32::NAN; law.element_len()];
            law.identity(&mut e);
            for run in x.windows(3) {
                let [a, b, c] = run else { unreachable!() };
                for same in [combined(&law, &e, a), combined(&law, a, &e)] {
                    assert_eq!(applied(&law, &same), applied(&law, a), "{transition:?}");
                }
                let left = combined(&law, &combined(&law, a, b), c);
                let right = combined(&law, a, &combined(&law, b, c));
                assert!(near(&applied(&law, &left), &applied(&law, &right)), "{transition:?}");
                // The operation is composition, with the earlier map first, and does not commute.
                let mut after = b.clone();
                let mut spare = vec![0.0; law.spare_len()];
                law.apply(&mut after, &applied(&law, a), &mut spare);
                assert!(near(&after[law.transition_len()..], &applied(&law, &combined(&law, a, b))));
                assert!(!near(&applied(&law, &combined(&law, b, a)), &applied(&law, &combined(&law, a, b))));
            }
        }
    }
}

#[test]
fn cleared_rows_select() {
    for transition in ALL {
        let law = Affine { transition, rows: 3, columns: 2 };
        let mut x = tokens(&law, 4, 4);
        let beta = (transition == Transition::Dense).then_some(0.5);
        let gates = if transition == Transition::Scalar { vec![0.0] } else { vec![0.0; 3] };
        token(&law, &mut x[2], &gates, beta, &[0.3, 0.4, 0.5], &[1.0, 2.0]);
        x[0].fill(f32::NAN);
        let whole = x.iter().skip(1).fold(x[0].clone(), |run, next| combined(&law, &run, next));
        let clean = combined(&law, &x[2], &x[3]);
        let b = law.transition_len();
        assert!(near(&whole[b..], &clean[b..]), "{transition:?} {whole:?}");
        // Without the gate of zero, the result is NaN.
        let poisoned = combined(&law, &combined(&law, &x[0], &x[1]), &x[3]);
        assert!(poisoned[b..].iter().all(|x| x.is_nan()));
    }
    // A gate may clear a single row of a diagonal `A`.
    let law = Affine { transition: Transition::Diagonal, rows: 2, columns: 1 };
    let (mut at, before) = (vec![0.0; 4], [1.0, 1.0, f32::NAN, f32::NAN]);
    token(&law, &mut at, &[0.0, 1.0], None, &[1.0, 1.0], &[5.0]);
    let run = combined(&law, &before, &at);
    assert!(run[2] == 5.0 && run[3].is_nan());
}

/// Slots that also store, for each slot, the number of executions of `combine` on the longest path to it.
struct Counted<'a> {
    slots: AffineSlots<'a>,
    depth: Vec<usize>,
}

impl Slots for Counted<'_> {
    fn len(&self) -> usize {
        self.slots.len()
    }
    fn scratch(&self) -> usize {
        self.slots.scratch()
    }
    fn identity(&mut self, at: usize) {
        self.slots.identity(at);
        self.depth[at] = 0;
    }
    fn combine(&mut self, before: usize, at: usize) {
        self.slots.combine(before, at);
        self.depth[at] = 1 + self.depth[before].max(self.depth[at]);
    }
    fn copy(&mut self, from: usize, to: usize) {
        self.slots.copy(from, to);
        self.depth[to] = self.depth[from];
    }
    fn swap(&mut self, a: usize, b: usize) {
        self.slots.swap(a, b);
        self.depth.swap(a, b);
    }
}

#[test]
fn every_schedule_scans_elements_at_its_depth() {
    for transition in ALL {
        let law = Affine { transition, rows: 4, columns: 2 };
        for scan in Scan::ALL {
            for n in [5usize, 13, 1, 2, 8, 70].into_iter().take(if cfg!(elsa_sanitized) { 2 } else { 6 }) {
                let x = tokens(&law, n, 6);
                let mut before = vec![0.0; law.element_len()];
                law.identity(&mut before);
                let prefixes: Vec<Vec<f32>> = x
                    .iter()
                    .scan(before, |run, next| {
                        *run = combined(&law, run, next);
                        Some(run.clone())
                    })
                    .collect();
                for form in ScanForm::ALL {
                    let scratch = scan.scratch_len(form, n);
                    let mut workspace = vec![0.0; AffineSlots::workspace_len(&law, n, scratch)];
                    let short = workspace.len() - law.element_len() * (1 + scratch);
                    assert!(AffineSlots::new(law, n, &mut workspace[..short]).is_none());
                    let mut slots = AffineSlots::new(law, n, &mut workspace).unwrap();
                    x.iter().enumerate().for_each(|(i, x)| slots.element(i).copy_from_slice(x));
                    let mut slots = Counted { slots, depth: vec![0; n + scratch] };
                    let places: Vec<(usize, Option<usize>)> = match form {
                        ScanForm::Reduction => {
                            vec![(scan.reduce_slots(&mut slots).unwrap().unwrap(), Some(n - 1))]
                        }
                        ScanForm::Inclusive => match scan.inclusive_slots(&mut slots) {
                            Ok(()) => (0..n).map(|i| (i, Some(i))).collect(),
                            Err(_) => continue,
                        },
                        ScanForm::Exclusive => match scan.exclusive_slots(&mut slots) {
                            Ok(()) => (0..n).map(|i| (i, i.checked_sub(1))).collect(),
                            Err(_) => continue,
                        },
                    };
                    let deepest = places.iter().map(|(place, _)| slots.depth[*place]).max();
                    assert_eq!(deepest, scan.depth(form, n), "{} {}", scan.name(), form.name());
                    for (place, prefix) in places {
                        let found = applied(&law, slots.slots.element(place));
                        let mut e = vec![0.0; law.element_len()];
                        law.identity(&mut e);
                        let expected = applied(&law, prefix.map_or(&e, |i| &prefixes[i]));
                        assert!(near(&found, &expected), "{transition:?} {} {n}", scan.name());
                    }
                }
            }
        }
    }
}
