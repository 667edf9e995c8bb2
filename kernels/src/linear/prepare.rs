//! What the tokens of a segment need once, for all strips of the state.

use super::exponential::{LARGEST_SUM, NEUTRAL, TOGETHER, both, split};
use super::kernel::{Factors, Head, Segment, meets};
use crate::lanes::Lanes;
use elsa_core::linear::Gates;

/// Takes a segment from the first tokens of `head`, and writes what its strips need.
///
/// # Safety
/// - The clauses of [`Head`].
/// - `room` is writable for [`head_room`](super::kernel::head_room) values, and stays as it is while the segment is used. It
///   does not overlap what the head points to.
#[inline(always)]
pub unsafe fn prepare<L: Lanes>(isa: L::Isa, head: &Head, room: *mut f32, segment: &mut Segment) {
    let delta = !head.betas.is_null();
    let mut free = room;
    // SAFETY: `head_room` counts what is taken here, in this order (clause).
    let mut take = |count: usize| unsafe {
        let taken = free;
        free = free.add(count);
        taken
    };
    let [up, down, betas] = [(); 3].map(|()| take(head.tokens));
    let ends = take(4);
    let mut made = Segment {
        dim: head.dim,
        group: head.group,
        pass: head.pass,
        queries: head.queries,
        query_stride: head.query_stride,
        group_stride: head.group_stride,
        readers: head.keys,
        reader_stride: head.key_stride,
        writers: head.keys,
        writer_stride: head.key_stride,
        up,
        down,
        betas: core::ptr::null(),
        ..Segment::EMPTY
    };
    // SAFETY: the clauses of `Head`; every array has the size that is taken for it, and `tokens` is at most the head's.
    unsafe {
        match head.per {
            Gates::None => {
                for t in 0..head.tokens {
                    up.add(t).write(head.scale);
                    down.add(t).write(1.0);
                }
                made.tokens = head.tokens;
                if delta {
                    ends.write(NEUTRAL.0);
                    ends.add(1).write(NEUTRAL.1);
                    made.exit = Some(Factors { high: ends, rest: ends.add(1), per_dim: false });
                }
            }
            Gates::PerHead => per_head(head, up, down, ends, &mut made),
            Gates::PerDim => {
                let (dim, tokens) = (head.dim, head.tokens);
                let queries = take(head.group * tokens * dim);
                let writers = take(tokens * dim);
                let readers = if delta { take(tokens * dim) } else { core::ptr::null_mut() };
                let rows = Rows { queries, writers, readers, ends: take(4 * dim), sums: take(4 * dim) };
                for t in 0..tokens {
                    up.add(t).write(head.scale);
                    down.add(t).write(1.0);
                }
                per_dim(head, &rows, &mut made);
            }
        }
        if delta {
            for t in 0..made.tokens {
                betas.add(t).write(head.betas.offset(t as isize * head.beta_stride).read());
            }
            made.betas = betas;
        }
        if meets(head.group, delta, head.pass) {
            made.row = head.pass.next_multiple_of(4);
            let products = take((head.group + usize::from(delta)) * head.tokens * made.row);
            made.products = products;
            meet::<L>(isa, &made, products);
        }
    }
    *segment = made;
}

/// The scalars of gates that belong to a head.
///
/// # Safety
/// - The clauses of [`Head`]; `up` and `down` are writable for its tokens, `ends` for four values.
#[inline(always)]
unsafe fn per_head(head: &Head, up: *mut f32, down: *mut f32, ends: *mut f32, made: &mut Segment) {
    let mut sum = 0.0f64;
    let mut t = 0;
    // SAFETY: tokens below the head's; the last vector of sums is cut where they end (clauses).
    unsafe {
        while t < head.tokens {
            let mut sums = [0.0; TOGETHER];
            let mut count = 0;
            while count < TOGETHER && t + count < head.tokens {
                let gate = f64::from(head.gates.offset((t + count) as isize * head.gate_stride).read());
                let next = sum + gate;
                if next.abs() <= LARGEST_SUM {
                    sum = next;
                } else if t + count == 0 {
                    let (high, rest) = split(gate);
                    ends.write(high);
                    ends.add(1).write(rest);
                    made.enter = Some(Factors { high: ends, rest: ends.add(1), per_dim: false });
                } else {
                    break;
                }
                sums[count] = sum;
                count += 1;
            }
            let (grown, shrunk) = both(&sums);
            for i in 0..count {
                up.add(t + i).write(grown[i] * head.scale);
                down.add(t + i).write(shrunk[i]);
            }
            t += count;
            if count < TOGETHER {
                break;
            }
        }
        let (high, rest) = split(sum);
        ends.add(2).write(high);
        ends.add(3).write(rest);
        made.exit = Some(Factors { high: ends.add(2), rest: ends.add(3), per_dim: false });
    }
    made.tokens = t;
}

/// Where the rows of gates that belong to a dim go.
///
/// Contract: writable for `group · tokens · dim`, `tokens · dim`, for the delta rules `tokens · dim`, and twice `4 · dim`
/// values.
struct Rows {
    queries: *mut f32,
    writers: *mut f32,
    readers: *mut f32,
    ends: *mut f32,
    /// Sums in f64, and the next ones.
    sums: *mut f32,
}

/// `TOGETHER` values, or as many as there are, and zeros.
///
/// # Safety
/// - `count` values are readable at `from`.
#[inline(always)]
unsafe fn load<T: Copy + Default>(from: *const T, count: usize) -> [T; TOGETHER] {
    let mut x = [T::default(); TOGETHER];
    // SAFETY: the clause; a f64 number in room for f32 may lie anywhere.
    unsafe {
        if count >= TOGETHER {
            x = from.cast::<[T; TOGETHER]>().read_unaligned();
        } else {
            for i in 0..count {
                x[i] = from.add(i).read_unaligned();
            }
        }
    }
    x
}

/// Writes `TOGETHER` values, or as many as there are.
///
/// # Safety
/// - `count` values are writable at `to`.
#[inline(always)]
unsafe fn store<T: Copy>(x: [T; TOGETHER], to: *mut T, count: usize) {
    // SAFETY: the clause.
    unsafe {
        if count >= TOGETHER {
            to.cast::<[T; TOGETHER]>().write_unaligned(x);
        } else {
            for i in 0..count {
                to.add(i).write_unaligned(x[i]);
            }
        }
    }
}

/// `x · by`, element by element.
#[inline(always)]
fn times(x: &[f32; TOGETHER], by: &[f32; TOGETHER]) -> [f32; TOGETHER] {
    core::array::from_fn(|i| x[i] * by[i])
}

/// The rows of gates that belong to a dim.
///
/// # Safety
/// - The clauses of [`Head`] and [`Rows`].
#[inline(always)]
unsafe fn per_dim(head: &Head, rows: &Rows, made: &mut Segment) {
    let (dim, tokens) = (head.dim, head.tokens);
    let delta = !rows.readers.is_null();
    let sums: *mut f64 = rows.sums.cast();
    let nexts = sums.wrapping_add(dim);
    let mut t = 0;
    // SAFETY: dims below `dim` of tokens below `tokens` (clauses).
    unsafe {
        for x in (0..dim).step_by(TOGETHER) {
            store([0.0; TOGETHER], sums.add(x), dim - x);
        }
        while t < tokens {
            let gates = head.gates.offset(t as isize * head.gate_stride);
            let mut inside = true;
            for x in (0..dim).step_by(TOGETHER) {
                let (before, gate) = (load(sums.add(x), dim - x), load(gates.add(x), dim - x));
                let next: [f64; TOGETHER] = core::array::from_fn(|i| before[i] + f64::from(gate[i]));
                inside &= next.iter().fold(true, |all, y| all & (y.abs() <= LARGEST_SUM));
                store(next, nexts.add(x), dim - x);
            }
            if !inside {
                if t > 0 {
                    break;
                }
                // What is beyond multiplies the state as the segment begins.
                for x in 0..dim {
                    let gate = nexts.add(x).read_unaligned();
                    let beyond = gate.is_nan() || gate.abs() > LARGEST_SUM;
                    let (high, rest) = if beyond { split(gate) } else { NEUTRAL };
                    rows.ends.add(x).write(high);
                    rows.ends.add(dim + x).write(rest);
                    if beyond {
                        nexts.add(x).write_unaligned(0.0);
                    }
                }
                made.enter = Some(Factors { high: rows.ends, rest: rows.ends.add(dim), per_dim: true });
            }
            for x in (0..dim).step_by(TOGETHER) {
                let count = dim - x;
                let sum = load(nexts.add(x), count);
                store(sum, sums.add(x), count);
                let (up, down) = both(&sum);
                let key = load(head.keys.offset(t as isize * head.key_stride).add(x), count);
                store(times(&key, &down), rows.writers.add(t * dim + x), count);
                if delta {
                    store(times(&key, &up), rows.readers.add(t * dim + x), count);
                }
                for g in 0..head.group {
                    let at = t as isize * head.query_stride + g as isize * head.group_stride;
                    let query = load(head.queries.offset(at).add(x), count);
                    store(times(&query, &up), rows.queries.add((t * head.group + g) * dim + x), count);
                }
            }
            t += 1;
        }
        let ends = rows.ends.add(2 * dim);
        for x in 0..dim {
            let (high, rest) = split(sums.add(x).read_unaligned());
            ends.add(x).write(high);
            ends.add(dim + x).write(rest);
        }
        made.exit = Some(Factors { high: ends, rest: ends.add(dim), per_dim: true });
    }
    made.tokens = t;
    made.queries = rows.queries;
    (made.query_stride, made.group_stride) = ((head.group * dim) as isize, dim as isize);
    (made.writers, made.writer_stride) = (rows.writers, dim as isize);
    (made.readers, made.reader_stride) = (if delta { rows.readers } else { rows.writers }, dim as isize);
}

/// The products of the tokens of each pass.
///
/// # Safety
/// - The rows of the segment are readable, and `products` writable for `tokens` rows of `row` values for each query row of a
///   token, and once more for the delta rules.
#[inline(always)]
unsafe fn meet<L: Lanes>(isa: L::Isa, segment: &Segment, products: *mut f32) {
    let delta = !segment.betas.is_null();
    for n in 0..segment.group + usize::from(delta) {
        for t in 0..segment.tokens {
            let first = t / segment.pass * segment.pass;
            // A token writes before its query reads, and after its key does.
            let queries = n < segment.group;
            let count = t - first + usize::from(queries);
            // SAFETY: rows of tokens below `tokens` (clause).
            unsafe {
                let x = if queries {
                    let at = t as isize * segment.query_stride + n as isize * segment.group_stride;
                    segment.queries.offset(at)
                } else {
                    segment.readers.offset(t as isize * segment.reader_stride)
                };
                let to = products.add((n * segment.tokens + t) * segment.row);
                let mut i = 0;
                while i < count {
                    let writer = segment.writers.offset((first + i) as isize * segment.writer_stride);
                    if count - i >= 4 {
                        dots::<L, 4>(isa, segment.dim, x, writer, segment.writer_stride, to.add(i));
                        i += 4;
                    } else {
                        dots::<L, 1>(isa, segment.dim, x, writer, segment.writer_stride, to.add(i));
                        i += 1;
                    }
                }
            }
        }
    }
}

/// The products of a row with `R` rows at `b`, `stride` apart: dims lie in the lanes.
///
/// # Safety
/// - `dim` values are readable at `a` and in each row of `b`; `R` values are writable at `to`.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize>(
    isa: L::Isa,
    dim: usize,
    a: *const f32,
    b: *const f32,
    stride: isize,
    to: *mut f32,
) {
    let whole = dim / L::N * L::N;
    // SAFETY: dims below `dim` of `R` rows (clauses).
    unsafe {
        let mut sums = [L::splat(isa, 0.0); R];
        for x in (0..whole).step_by(L::N) {
            let y = L::load(isa, a.add(x));
            for r in 0..R {
                sums[r] = y.mul_add(L::load(isa, b.offset(r as isize * stride).add(x)), sums[r]);
            }
        }
        for r in 0..R {
            let mut sum = sums[r].lane_sum();
            for x in whole..dim {
                sum += a.add(x).read() * b.offset(r as isize * stride).add(x).read();
            }
            to.add(r).write(sum);
        }
    }
}
