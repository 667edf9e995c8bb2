//! Computes, once per segment, the values that all strips of the state need.

use super::exponential::{LARGEST_SUM, NEUTRAL, TOGETHER, both, split, splits};
use super::kernel::{FEW, Factors, Head, ROWS_TOGETHER, Segment, has_products, product_row, wide};
use super::products::{multiply_few, multiply_rows, multiply_wide};
use crate::lanes::Lanes;
use elsa_core::linear::Gates;

/// Determines the next segment of `head`, and writes the data that the strips of the state need for this segment. The
/// segment starts at the first token of `head`.
///
/// # Safety
/// - The clauses of [`Head`] hold.
/// - `room` is writable for [`head_room`](super::kernel::head_room) values, and is not modified while the segment is
///   used. It does not overlap the memory that the head points to.
#[inline(always)]
pub unsafe fn prepare<L: Lanes>(isa: L::Isa, head: &Head, room: *mut f32, segment: &mut Segment) {
    let delta = !head.betas.is_null();
    let mut free = room;
    // SAFETY: `room` has every slice that is taken here (clause); `head_room` counts them in this order.
    let mut take = |count: usize| unsafe {
        let taken = free;
        free = free.add(count);
        taken
    };
    let [up, down, betas] = [(); 3].map(|()| take(head.tokens));
    let ends = take(4);
    let mut made = Segment {
        dim: head.dim,
        rows: head.rows,
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
    // SAFETY: the caller keeps the clauses of `Head`; every array has the size that is reserved for it, and `tokens` is
    // at most the number of the head's tokens.
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
                let rows = Rows { queries, writers, readers, ends: take(4 * dim) };
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
        if has_products(head.group, delta) {
            made.row = product_row(head.pass);
            let products = take((head.group + usize::from(delta)) * head.tokens * made.row);
            made.products = products;
            made.wide = wide(head.per, delta, head.pass);
            if head.pass < FEW {
                multiply_few::<L>(isa, &made, products);
            } else if made.wide {
                let rows = take(ROWS_TOGETHER * head.dim * 2).cast();
                let columns = take(head.dim * made.row);
                match L::MANY_REGISTERS {
                    true => multiply_wide::<L, 8>(isa, &made, products, columns, rows),
                    false => multiply_wide::<L, 4>(isa, &made, products, columns, rows),
                }
            } else {
                multiply_rows::<L>(isa, &made, products, take(head.dim * made.row));
            }
        }
    }
    *segment = made;
}

/// Computes the factors `up` and `down` of each token and the factors at both ends of the segment, for gates per head.
///
/// # Safety
/// - The clauses of [`Head`] hold; `up` and `down` are writable for one value per token of the head, `ends` for four
///   values.
#[inline(always)]
unsafe fn per_head(head: &Head, up: *mut f32, down: *mut f32, ends: *mut f32, made: &mut Segment) {
    let mut sum = 0.0f64;
    let mut t = 0;
    // SAFETY: the tokens are in the head, and the last vector of sums ends with them (clauses).
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
                    made.entry = Some(Factors { high: ends, rest: ends.add(1), per_dim: false });
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

/// Buffers for the rows that are multiplied by gates, if there is a gate per dim.
///
/// Contract: `queries` is writable for `group · tokens · dim` values, `writers` for `tokens · dim` values, and `ends`
/// for `4 · dim` values. Under the delta rules `readers` is writable for `tokens · dim` values.
struct Rows {
    queries: *mut f32,
    writers: *mut f32,
    readers: *mut f32,
    ends: *mut f32,
}

/// Multiplies the rows of keys and queries by their gates, for gates per dim.
///
/// # Safety
/// - The clauses of [`Head`] and [`Rows`] hold.
#[inline(always)]
unsafe fn per_dim(head: &Head, rows: &Rows, made: &mut Segment) {
    let (dim, delta) = (head.dim, !rows.readers.is_null());
    let mut tokens = head.tokens;
    let mut beyond = false;
    // SAFETY: the dims are below `dim`, and the tokens below `tokens` (clauses). Whole blocks are followed by the
    // remaining dims.
    unsafe {
        for x in (0..dim).step_by(TOGETHER) {
            let (count, enters) = match dim - x {
                TOGETHER.. => length::<true>(head, x, tokens),
                _ => length::<false>(head, x, tokens),
            };
            tokens = count;
            beyond |= enters;
        }
        for x in (0..dim).step_by(TOGETHER) {
            match dim - x {
                TOGETHER.. => scaled::<true>(head, rows, x, tokens),
                _ => scaled::<false>(head, rows, x, tokens),
            }
        }
        if beyond {
            made.entry = Some(Factors { high: rows.ends, rest: rows.ends.add(dim), per_dim: true });
        }
        let exit = rows.ends.add(2 * dim);
        made.exit = Some(Factors { high: exit, rest: exit.add(dim), per_dim: true });
    }
    made.tokens = tokens;
    made.queries = rows.queries;
    (made.query_stride, made.group_stride) = ((head.group * dim) as isize, dim as isize);
    (made.writers, made.writer_stride) = (rows.writers, dim as isize);
    (made.readers, made.reader_stride) = (if delta { rows.readers } else { rows.writers }, dim as isize);
}

/// With `ALL`, loads `TOGETHER` values. Without `ALL`, loads the first `count` values (at most `TOGETHER`), followed by
/// zeros.
///
/// # Safety
/// - `count` values are readable at `from`. With `ALL`, `count` is at least `TOGETHER`.
#[inline(always)]
unsafe fn load<const ALL: bool>(from: *const f32, count: usize) -> [f32; TOGETHER] {
    // SAFETY: the values that are loaded are readable (clause).
    unsafe {
        if ALL {
            return from.cast::<[f32; TOGETHER]>().read();
        }
        let mut x = [0.0; TOGETHER];
        for i in 0..count.min(TOGETHER) {
            x[i] = from.add(i).read();
        }
        x
    }
}

/// With `ALL`, writes all `TOGETHER` values of `x`. Without `ALL`, writes the first `count` values of `x`.
///
/// # Safety
/// - `count` values are writable at `to`. With `ALL`, `count` is at least `TOGETHER`.
#[inline(always)]
unsafe fn store<const ALL: bool>(x: &[f32; TOGETHER], to: *mut f32, count: usize) {
    // SAFETY: the values that are stored have room (clause).
    unsafe {
        if ALL {
            to.cast::<[f32; TOGETHER]>().write(*x);
        } else {
            for i in 0..count.min(TOGETHER) {
                to.add(i).write(x[i]);
            }
        }
    }
}

/// Loads the gates of token `t` for the dims that start at `x`.
///
/// # Safety
/// - The clauses of [`Head`] hold; `t` is one of the tokens. With `ALL` at least `TOGETHER` dims start at `x`.
#[inline(always)]
unsafe fn gates<const ALL: bool>(head: &Head, x: usize, t: usize) -> [f32; TOGETHER] {
    // SAFETY: the gates of token `t` are readable (clause).
    unsafe { load::<ALL>(head.gates.offset(t as isize * head.gate_stride).add(x), head.dim - x) }
}

/// Returns the largest number of tokens, from one to `tokens`, that the gates of the dims starting at `x` allow in a
/// segment. Also returns `true` if the first token's gate for one of these dims exceeds the range on its own.
///
/// # Safety
/// - The clauses of [`gates`] hold.
#[inline(always)]
unsafe fn length<const ALL: bool>(head: &Head, x: usize, tokens: usize) -> (usize, bool) {
    // SAFETY: the tokens are below `tokens` (clause).
    unsafe {
        let mut sums = first(&gates::<ALL>(head, x, 0));
        let enters = sums.1;
        for t in 1..tokens {
            let gate = gates::<ALL>(head, x, t);
            let mut inside = true;
            for i in 0..TOGETHER {
                sums.0[i] += f64::from(gate[i]);
                inside &= sums.0[i].abs() <= LARGEST_SUM;
            }
            if !inside {
                return (t, enters);
            }
        }
        (tokens, enters)
    }
}

/// Returns each dim's sum of gates after the first token, and `true` if a gate leaves the range. Such a gate multiplies
/// the state at the start of the segment, and is not included in the sum of its dim.
#[inline(always)]
fn first(gate: &[f32; TOGETHER]) -> ([f64; TOGETHER], bool) {
    let mut sums = [0.0; TOGETHER];
    let mut enters = false;
    for i in 0..TOGETHER {
        let sum = f64::from(gate[i]);
        let inside = sum.abs() <= LARGEST_SUM;
        enters |= !inside;
        sums[i] = if inside { sum } else { 0.0 };
    }
    (sums, enters)
}

/// Returns `x · by`, element by element.
#[inline(always)]
fn times(x: &[f32; TOGETHER], by: &[f32; TOGETHER]) -> [f32; TOGETHER] {
    core::array::from_fn(|i| x[i] * by[i])
}

/// Writes the rows of `tokens` tokens and the factors at both ends of the segment, for the dims that start at `x`.
///
/// # Safety
/// - The clauses of [`Head`] and [`Rows`] hold; the sums of `tokens` tokens stay in range. With `ALL` at least
///   `TOGETHER` dims start at `x`.
#[inline(always)]
unsafe fn scaled<const ALL: bool>(head: &Head, rows: &Rows, x: usize, tokens: usize) {
    let (dim, count) = (head.dim, head.dim - x);
    // SAFETY: the dims are below `dim`, and the tokens below `tokens` (clauses).
    unsafe {
        let gate = gates::<ALL>(head, x, 0);
        let (mut sums, _) = first(&gate);
        for t in 0..tokens {
            if t > 0 {
                let gate = gates::<ALL>(head, x, t);
                for i in 0..TOGETHER {
                    sums[i] += f64::from(gate[i]);
                }
            }
            let (up, down) = both(&sums);
            let key = load::<ALL>(head.keys.offset(t as isize * head.key_stride).add(x), count);
            store::<ALL>(&times(&key, &down), rows.writers.add(t * dim + x), count);
            if !rows.readers.is_null() {
                store::<ALL>(&times(&key, &up), rows.readers.add(t * dim + x), count);
            }
            for g in 0..head.group {
                let at = t as isize * head.query_stride + g as isize * head.group_stride;
                let query = load::<ALL>(head.queries.offset(at).add(x), count);
                store::<ALL>(&times(&query, &up), rows.queries.add((t * head.group + g) * dim + x), count);
            }
        }
        let (high, rest) = splits(&sums);
        store::<ALL>(&high, rows.ends.add(2 * dim + x), count);
        store::<ALL>(&rest, rows.ends.add(3 * dim + x), count);
        let (mut high, mut rest) = ([NEUTRAL.0; TOGETHER], [NEUTRAL.1; TOGETHER]);
        for i in 0..TOGETHER {
            if gate[i].is_nan() || f64::from(gate[i]).abs() > LARGEST_SUM {
                (high[i], rest[i]) = split(gate[i].into());
            }
        }
        store::<ALL>(&high, rows.ends.add(x), count);
        store::<ALL>(&rest, rows.ends.add(dim + x), count);
    }
}
