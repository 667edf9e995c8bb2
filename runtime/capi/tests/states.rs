//! Merges and finishes states of parts of the keys with the C functions, and compares the results with the softmax of
//! the same scores in f64. The states have references up to 10^9 and beyond, parts without keys, and poisoned parts.
//! Also checks how the C functions treat their arrays: rows keep their places, an output may be an input, and any other
//! overlap is refused.

#![allow(clippy::unwrap_used)]

use elsa::{ELSA_STATUS_ARGUMENT, ELSA_STATUS_OK, elsa_last_error, elsa_status};
use elsa::{elsa_states_finish, elsa_states_in, elsa_states_merge, elsa_states_out};
use elsa_core::monoid::Monoid;
use elsa_core::random::Random;
use elsa_core::state::{NaturalState, State};
use std::f64::consts::LN_2;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Number of elements of a value.
const DIM: usize = 3;
/// Unit roundoff of f32.
const U: f64 = 5.960_464_477_539_063e-8;

/// A key: its score in base-2 units, as a kernel computes it, and its value.
type Key = (f32, [f32; DIM]);

/// State of one row, in natural-log units, in arrays that the C functions read and write.
#[derive(Clone, Debug)]
struct Row {
    m: [f32; 1],
    s: [f32; 1],
    w: [f32; DIM],
}

impl Row {
    fn of(keys: &[Key]) -> Row {
        let mut state = State::<[f32; DIM]>::identity();
        for (score, value) in keys {
            state.absorb(*score, |i| value[i]);
        }
        let natural = NaturalState::of(state.m, state.s, 1.0, false);
        Row { m: [natural.m], s: [natural.s], w: state.w.map(|w| natural.w(w)) }
    }

    fn read(&self) -> elsa_states_in {
        elsa_states_in { m: self.m.as_ptr(), s: self.s.as_ptr(), w: self.w.as_ptr() }
    }

    fn write(&mut self) -> elsa_states_out {
        elsa_states_out { m: self.m.as_mut_ptr(), s: self.s.as_mut_ptr(), w: self.w.as_mut_ptr() }
    }

    fn bits(&self) -> Vec<u32> {
        self.m.iter().chain(&self.s).chain(&self.w).map(|x| x.to_bits()).collect()
    }
}

/// Merges two states: with `in_place` into the memory of the earlier one, otherwise into separate memory full of NaN.
fn merged(earlier: &Row, later: &Row, in_place: bool) -> Row {
    let nan = Row { m: [f32::NAN], s: [f32::NAN], w: [f32::NAN; DIM] };
    let mut out = if in_place { earlier.clone() } else { nan };
    let to = out.write();
    let from = if in_place { out.read() } else { earlier.read() };
    // SAFETY: the arrays have one row and live until the call has returned (*read*, *write*).
    let status = unsafe { elsa_states_merge(1, DIM, &from, &later.read(), &to) };
    assert_eq!(status, ELSA_STATUS_OK);
    out
}

/// Returns the output and the log-sum-exp of a row.
fn finished(row: &Row) -> ([f32; DIM], f32) {
    let (mut out, mut lse) = ([f32::NAN; DIM], f32::NAN);
    // SAFETY: the arrays have one row and live until the call has returned (*read*, *write*).
    let status = unsafe { elsa_states_finish(1, DIM, &row.read(), out.as_mut_ptr(), &mut lse) };
    assert_eq!(status, ELSA_STATUS_OK);
    (out, lse)
}

/// Panics unless `row` is the state of `keys`, within the error bound that `tests/tests/crossing/laws.rs` derives for a
/// state. The computation of the output adds two roundings to this bound, and each merge adds one.
fn check(row: &Row, keys: &[Key], merges: usize) {
    let (out, lse) = finished(row);
    let keys: Vec<&Key> = keys.iter().filter(|k| k.0 != f32::NEG_INFINITY).collect();
    if keys.is_empty() {
        assert_eq!((row.m, row.s, row.w), ([f32::NEG_INFINITY], [0.0], [0.0; DIM]));
        assert_eq!((out, lse), ([0.0; DIM], f32::NEG_INFINITY));
        return;
    }
    if keys.iter().any(|k| k.0.is_nan()) {
        assert!(out.iter().all(|x| x.is_nan()) && lse.is_nan(), "{row:?} {out:?} {lse}");
        return;
    }
    let max = keys.iter().map(|k| f64::from(k.0)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = keys.iter().map(|k| (f64::from(k.0) - max).exp2()).collect();
    let sum: f64 = weights.iter().sum();
    let error = (100.0 * LN_2 + keys.len() as f64 + merges as f64 + 8.0) * U;
    let floor = 2f64.powi(-70);
    for x in 0..DIM {
        let (mut y, mut spread, mut mass) = (0.0, 0.0, 0.0);
        for (weight, (_, value)) in weights.iter().zip(&keys) {
            let value = f64::from(value[x]);
            y += weight * value / sum;
            spread += weight * value.abs() / sum;
            mass += value.abs();
        }
        let allowed = 2.0 * error * spread + floor * mass;
        assert!((f64::from(out[x]) - y).abs() <= allowed, "{row:?}: column {x} is {}, not {y}", out[x]);
    }
    // The reference and S together represent the sum of all weights, so log S must equal the logarithm of this sum
    // minus the reference.
    let (m, s) = (f64::from(row.m[0]), f64::from(row.s[0]));
    let left = max.mul_add(LN_2, -m) + max * 2.319_046_813_846_3e-17 + sum.ln();
    let spacing = f64::from(row.m[0].abs().next_up() - row.m[0].abs());
    let coarse = if m.abs() < 2f64.powi(30) { 0.0 } else { spacing };
    assert!((s.ln() - left).abs() <= error + coarse, "{row:?}: log S is {}, not {left}", s.ln());
    let want = max * LN_2 + sum.ln();
    assert!((f64::from(lse) - want).abs() <= error + 2.0 * spacing, "{row:?}: {lse}, not {want}");
}

#[test]
fn states_of_parts_merge_at_any_magnitude() {
    let mut random = Random::new(11);
    let (mut large, mut mixed) = (0, 0);
    for case in 0..20_000 {
        let magnitude = 10f64.powf(10.0 * (0.5 + 0.5 * f64::from(random.signed())));
        let centre = if random.below(4) == 0 { -magnitude } else { magnitude };
        let spacing = f64::from((centre as f32).abs().next_up() - (centre as f32).abs());
        let spread = [0.5, 4.0, 30.0, 3.0 * spacing, 0.01 * magnitude][random.below(5)];
        let poisoned = random.below(20) == 0;
        let parts: Vec<Vec<Key>> = (0..2 + random.below(4))
            .map(|_| {
                let n = [0, 1, 1 + random.below(3), 1 + random.below(40)][random.below(4)];
                (0..n)
                    .map(|_| {
                        let score = match random.below(40) {
                            0 => f32::NEG_INFINITY,
                            1 if poisoned => f32::NAN,
                            _ => (centre + spread * f64::from(random.signed())) as f32,
                        };
                        (score, [(); DIM].map(|()| random.signed()))
                    })
                    .collect()
            })
            .collect();
        let all: Vec<Key> = parts.concat();
        let rows: Vec<Row> = parts.iter().map(|keys| Row::of(keys)).collect();
        for (row, keys) in rows.iter().zip(&parts) {
            check(row, keys, 0);
        }
        let forwards = rows.iter().skip(1).fold(rows[0].clone(), |sum, row| {
            let (own, in_place) = (merged(&sum, row, false), merged(&sum, row, true));
            assert_eq!(own.bits(), in_place.bits(), "case {case}");
            own
        });
        check(&forwards, &all, rows.len());
        // Merges in the other order: from the last part to the first.
        let last = rows.len() - 1;
        let backwards =
            rows[..last].iter().rev().fold(rows[last].clone(), |sum, row| merged(row, &sum, false));
        check(&backwards, &all, rows.len());
        let scores = rows.iter().filter(|row| row.s[0] > 0.0).map(|row| row.m[0]);
        let (low, high) = scores.fold((f32::MAX, f32::MIN), |(a, b), m| (a.min(m), b.max(m)));
        large += usize::from(high > 1.2e7 || high < -1.2e7 && high > f32::MIN);
        mixed += usize::from(low.abs() > 1.2e7 && low < high && high - low < 12.0);
    }
    assert!(large > 4000 && mixed > 50, "{large} {mixed}");
}

/// The W of a state with no key is ignored and does not reach the result.
#[test]
fn garbage_beside_no_key_stays_outside() {
    let row = Row::of(&[(2.5e7, [0.3, -0.7, 11.0]), (2.5e7 + 4.0, [1.0, 2.0, 3.0])]);
    for w in [f32::NAN, 3e38, f32::INFINITY] {
        let none = Row { m: [f32::NEG_INFINITY], s: [0.0], w: [w; DIM] };
        assert_eq!(merged(&none, &row, false).bits(), row.bits());
        assert_eq!(merged(&row, &none, false).bits(), row.bits());
        for in_place in [false, true] {
            check(&merged(&none, &none, in_place), &[], 1);
        }
    }
}

/// Returns the message of a call that refused its arguments; `None` if the call succeeded.
fn refusal(status: elsa_status) -> Option<String> {
    // SAFETY: the string belongs to the library and lives until the thread's next call.
    let message = || unsafe { CStr::from_ptr(elsa_last_error()) }.to_str().unwrap().to_owned();
    (status != ELSA_STATUS_OK).then(|| {
        assert_eq!(status, ELSA_STATUS_ARGUMENT);
        message()
    })
}

/// Number of rows in the calls below. All arrays of a call are in one [`Memory`]; each is given by the index of its
/// first element.
const ROWS: usize = 2;
/// Number of elements of `m`, `s` and `w` together.
const STATE: usize = ROWS * (2 + DIM);

struct Memory([f32; 3 * STATE]);

fn read(memory: *mut f32, [m, s, w]: [usize; 3]) -> elsa_states_in {
    elsa_states_in { m: memory.wrapping_add(m), s: memory.wrapping_add(s), w: memory.wrapping_add(w) }
}

fn write(memory: *mut f32, [m, s, w]: [usize; 3]) -> elsa_states_out {
    elsa_states_out { m: memory.wrapping_add(m), s: memory.wrapping_add(s), w: memory.wrapping_add(w) }
}

impl Memory {
    /// Creates memory in which both the earlier and the later states have keys.
    fn new() -> Memory {
        Memory(std::array::from_fn(|i| 1.0 + i as f32 / 8.0))
    }

    fn merge(&mut self, earlier: [usize; 3], later: [usize; 3], merged: [usize; 3]) -> Option<String> {
        let memory = self.0.as_mut_ptr();
        let (a, b, to) = (read(memory, earlier), read(memory, later), write(memory, merged));
        // SAFETY: the arrays are inside the memory, which nothing else uses (*read*, *write*).
        refusal(unsafe { elsa_states_merge(ROWS, DIM, &a, &b, &to) })
    }

    fn finish(&mut self, dim: usize, states: [usize; 3], out: usize, lse: Option<usize>) -> Option<String> {
        let at = self.0.as_mut_ptr();
        let from = read(at, states);
        let lse = lse.map_or(null_mut(), |lse| at.wrapping_add(lse));
        // SAFETY: the arrays are inside the memory, which nothing else uses (*read*, *write*).
        refusal(unsafe { elsa_states_finish(ROWS, dim, &from, at.wrapping_add(out), lse) })
    }

    fn row(&self, [m, s, w]: [usize; 3], row: usize) -> Row {
        let x = &self.0;
        Row { m: [x[m + row]], s: [x[s + row]], w: std::array::from_fn(|i| x[w + row * DIM + i]) }
    }
}

/// Returns the indices at which `m`, `s` and `w` begin, for states that are stored without gaps from index `at` on.
fn dense(at: usize) -> [usize; 3] {
    [at, at + ROWS, at + 2 * ROWS]
}

const EARLIER: usize = 0;
const LATER: usize = STATE;
const MERGED: usize = 2 * STATE;

#[test]
fn rows_keep_their_places_and_an_output_may_be_an_input() {
    let before = Memory::new();
    let side = |at, row| before.row(dense(at), row);
    let mixed = [EARLIER, LATER + ROWS, EARLIER + 2 * ROWS];
    for to in [dense(MERGED), dense(EARLIER), dense(LATER), mixed] {
        let mut memory = Memory::new();
        assert_eq!(memory.merge(dense(EARLIER), dense(LATER), to), None);
        for row in 0..ROWS {
            let want = merged(&side(EARLIER, row), &side(LATER, row), false);
            assert_eq!(memory.row(to, row).bits(), want.bits(), "{to:?}, row {row}");
        }
    }
    for (out, lse) in [(MERGED, Some(LATER)), (MERGED, None), (EARLIER + 2 * ROWS, Some(LATER))] {
        let mut memory = Memory::new();
        assert_eq!(memory.finish(DIM, dense(EARLIER), out, lse), None);
        for row in 0..ROWS {
            let (want, want_lse) = finished(&side(EARLIER, row));
            assert_eq!(memory.0[out + row * DIM..][..DIM], want, "row {row}");
            assert!(lse.is_none_or(|lse| memory.0[lse + row] == want_lse), "row {row}");
        }
    }
}

#[test]
fn arrays_that_overlap_are_refused() {
    let [m, s, w] = dense(MERGED);
    for (to, want) in [
        ([EARLIER + 1, s, w], "merged.m: overlaps earlier.m"),
        ([EARLIER + ROWS, s, w], "merged.m: overlaps earlier.s"),
        ([m, LATER + 1, w], "merged.s: overlaps later.m"),
        ([m, s, LATER - 1], "merged.w: overlaps earlier.w"),
        ([m, s, EARLIER + 2 * ROWS + 1], "merged.w: overlaps earlier.w"),
        ([m, m, w], "merged.m: overlaps merged.s"),
        ([m, s, m + 1], "merged.m: overlaps merged.w"),
        ([m, w + ROWS * DIM - 1, w], "merged.s: overlaps merged.w"),
    ] {
        let refused = Memory::new().merge(dense(EARLIER), dense(LATER), to).unwrap();
        assert!(refused.starts_with(want), "{to:?}: {refused}");
    }
    let values = EARLIER + 2 * ROWS;
    for (dim, out, lse, want) in [
        (DIM, values + 1, MERGED, "out: overlaps states.w"),
        (DIM, values + ROWS * DIM - 1, MERGED, "out: overlaps states.w"),
        (1, EARLIER, MERGED, "out: overlaps states.m"),
        (DIM, LATER, EARLIER, "lse: overlaps states.m"),
        (DIM, LATER, values, "lse: overlaps states.w"),
        (DIM, LATER, LATER + 1, "out: overlaps lse"),
    ] {
        let refused = Memory::new().finish(dim, dense(EARLIER), out, Some(lse)).unwrap();
        assert!(refused.starts_with(want), "{out} {lse}: {refused}");
    }
}

#[test]
fn addresses_and_sizes_that_are_refused() {
    let mut memory = Memory::new();
    let at = memory.0.as_mut_ptr();
    let (a, b, to) = (read(at, dense(EARLIER)), read(at, dense(LATER)), write(at, dense(MERGED)));
    let none = elsa_states_in { m: null_mut(), s: null_mut(), w: null_mut() };
    let nowhere = elsa_states_out { m: null_mut(), s: null_mut(), w: null_mut() };
    let odd = elsa_states_in { s: a.s.wrapping_byte_add(2), ..a };
    let (long, half) = (isize::MAX as usize / 4 + 1, 1 << (usize::BITS / 2));
    for (rows, dim, earlier, want) in [
        (ROWS, DIM, &none, "earlier.m: null"),
        (ROWS, DIM, &odd, "earlier.s: address"),
        (long, 1, &a, "earlier.m: "),
        (half, half, &a, "rows, dim: "),
    ] {
        // SAFETY: the call rejects the arrays and neither reads nor writes them (*read*, *write*).
        let refused = refusal(unsafe { elsa_states_merge(rows, dim, earlier, &b, &to) }).unwrap();
        assert!(refused.starts_with(want), "{refused}");
        assert!(rows != long || refused.ends_with("as many as can be addressed"), "{refused}");
    }
    // Null pointers are accepted if there are no rows.
    // SAFETY: the call neither reads nor writes an element (*read*, *write*).
    assert_eq!(refusal(unsafe { elsa_states_merge(0, DIM, &none, &none, &nowhere) }), None);
    // SAFETY: the call neither reads nor writes an element (*read*, *write*).
    assert_eq!(refusal(unsafe { elsa_states_finish(0, DIM, &none, null_mut(), null_mut()) }), None);
}

/// A row whose sum is NaN is poisoned even if its reference is minus infinity; it does not count as empty.
#[test]
fn poison_without_a_reference_stays_poison() {
    let (out, lse) = finished(&Row { m: [f32::NEG_INFINITY], s: [f32::NAN], w: [f32::NAN; DIM] });
    assert!(out.iter().all(|x| x.is_nan()) && lse.is_nan(), "{out:?} {lse}");
}

/// A row that neither a run nor a merge can produce is refused, both when states are merged (in `earlier` and `later`)
/// and when they are finished. The message gives the array and the index of the row, and nothing is written.
#[test]
fn states_that_no_run_writes_are_refused() {
    const INF: f32 = f32::INFINITY;
    let good = Row::of(&[(2.5, [0.3, -0.7, 11.0])]);
    let untouched = Row { m: [-7.0], s: [-8.0], w: [-9.0; DIM] };
    for (m, s, w, words) in [
        (f32::NAN, 1.0, [1.0; DIM], ".m: row 0 holds NaN; allowed: "),
        (f32::NAN, f32::NAN, [f32::NAN; DIM], ".m: row 0 holds NaN; allowed: "),
        (0.0, -1.0, [1.0; DIM], ".s: row 0 holds -1; allowed: "),
        (0.0, 0.0, [1.0; DIM], ".s: row 0 holds 0; allowed: "),
        (0.0, INF, [1.0; DIM], ".s: row 0 holds inf; allowed: "),
        (0.0, -INF, [1.0; DIM], ".s: row 0 holds -inf; allowed: "),
        (-INF, 1e-38, [0.0; DIM], ".s: row 0 holds 0.00000000000000000000000000000000000001; allowed: 0 "),
        (-INF, -1.0, [0.0; DIM], ".s: row 0 holds -1; allowed: 0 "),
        (INF, 1.0, [1.0; DIM], ".s: row 0 holds 1; allowed: NaN"),
        (0.0, f32::NAN, [f32::NAN, 2.0, f32::NAN], ".w: row 0 holds 2; allowed: NaN"),
        (-INF, f32::NAN, [1.0; DIM], ".w: row 0 holds 1; allowed: NaN"),
    ] {
        let bad = Row { m: [m], s: [s], w };
        for (name, a, b) in [("earlier", &bad, &good), ("later", &good, &bad)] {
            let mut out = untouched.clone();
            // SAFETY: the arrays have one row and live until the call has returned (*read*, *write*).
            let status = unsafe { elsa_states_merge(1, DIM, &a.read(), &b.read(), &out.write()) };
            let message = refusal(status).expect(words);
            assert!(message.starts_with(&format!("{name}{words}")), "{message}");
            assert_eq!(out.bits(), untouched.bits());
        }
        let (mut out, mut lse) = ([5.0; DIM], 5.0);
        // SAFETY: the arrays have one row and live until the call has returned (*read*, *write*).
        let status = unsafe { elsa_states_finish(1, DIM, &bad.read(), out.as_mut_ptr(), &mut lse) };
        assert!(refusal(status).expect(words).starts_with(&format!("states{words}")));
        assert_eq!((out, lse), ([5.0; DIM], 5.0));
    }
    // Non-finite values can produce a NaN in W while the sum stays finite.
    let odd = Row { w: [f32::NAN, INF, 1.0], ..good };
    assert!(merged(&odd, &Row::of(&[]), false).w[0].is_nan());
}
