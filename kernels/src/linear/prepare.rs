//! What the tokens of a segment need once, for all strips of the state.

use super::exponential::{LARGEST_SUM, NEUTRAL, TOGETHER, both, split, splits};
use super::kernel::{FEW, Factors, Head, MOST_TOGETHER, Segment, meets, product_row};
use super::rows::SEGMENT;
use super::tile::reads;
use crate::lanes::{Lanes, MAX_LANES};
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
        if meets(head.group, delta) {
            made.row = product_row(head.pass);
            let products = take((head.group + usize::from(delta)) * head.tokens * made.row);
            made.products = products;
            if head.pass < FEW {
                meet_few::<L>(isa, &made, products);
            } else {
                meet::<L>(isa, &made, products, take(head.dim * made.row));
            }
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
/// Contract: writable for `group · tokens · dim`, `tokens · dim`, for the delta rules `tokens · dim`, and `4 · dim` values.
struct Rows {
    queries: *mut f32,
    writers: *mut f32,
    readers: *mut f32,
    ends: *mut f32,
}

/// The rows of gates that belong to a dim.
///
/// # Safety
/// - The clauses of [`Head`] and [`Rows`].
#[inline(always)]
unsafe fn per_dim(head: &Head, rows: &Rows, made: &mut Segment) {
    let (dim, delta) = (head.dim, !rows.readers.is_null());
    let mut tokens = head.tokens;
    let mut beyond = false;
    // SAFETY: dims below `dim` of tokens below `tokens` (clauses). What begins with whole blocks ends with the dims.
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
            made.enter = Some(Factors { high: rows.ends, rest: rows.ends.add(dim), per_dim: true });
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

/// `TOGETHER` values, or with `ALL` unset as many as there are, and zeros.
///
/// # Safety
/// - `count` values are readable at `from`; with `ALL` they are `TOGETHER` or more.
#[inline(always)]
unsafe fn load<const ALL: bool>(from: *const f32, count: usize) -> [f32; TOGETHER] {
    // SAFETY: the clause.
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

/// Writes `TOGETHER` values, or with `ALL` unset as many as there are.
///
/// # Safety
/// - `count` values are writable at `to`; with `ALL` they are `TOGETHER` or more.
#[inline(always)]
unsafe fn store<const ALL: bool>(x: &[f32; TOGETHER], to: *mut f32, count: usize) {
    // SAFETY: the clause.
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

/// The gates of a token from dim `x` on.
///
/// # Safety
/// - The clauses of [`Head`]; `t` is one of the tokens. With `ALL` there are `TOGETHER` dims.
#[inline(always)]
unsafe fn gates<const ALL: bool>(head: &Head, x: usize, t: usize) -> [f32; TOGETHER] {
    // SAFETY: token `t` (clause).
    unsafe { load::<ALL>(head.gates.offset(t as isize * head.gate_stride).add(x), head.dim - x) }
}

/// How many of `tokens` tokens a segment may have for the dims from `x` on, at least one, and whether the gate of a dim
/// leaves the range with the first token.
///
/// # Safety
/// - As for [`gates`].
#[inline(always)]
unsafe fn length<const ALL: bool>(head: &Head, x: usize, tokens: usize) -> (usize, bool) {
    // SAFETY: tokens below `tokens` (clause).
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

/// The sums after the first token, and whether a gate leaves the range: such a gate multiplies the state as the segment
/// begins, and its sum begins after it.
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

/// `x · by`, element by element.
#[inline(always)]
fn times(x: &[f32; TOGETHER], by: &[f32; TOGETHER]) -> [f32; TOGETHER] {
    core::array::from_fn(|i| x[i] * by[i])
}

/// Writes the dims from `x` on of the rows of `tokens` tokens, and the factors of the ends.
///
/// # Safety
/// - The clauses of [`Head`] and [`Rows`]; the sums of `tokens` tokens stay in range. With `ALL` there are `TOGETHER` dims.
#[inline(always)]
unsafe fn scaled<const ALL: bool>(head: &Head, rows: &Rows, x: usize, tokens: usize) {
    let (dim, count) = (head.dim, head.dim - x);
    // SAFETY: dims below `dim` of tokens below `tokens` (clauses).
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

/// The rows of a segment that meet writing keys: first those of queries, then reading keys. With them comes whether a token
/// meets itself: it writes before its query reads, and after its key does.
///
/// # Safety
/// - `t` is one of the segment's tokens, and `n` at most its query rows, below it for the rules without rates.
#[inline(always)]
unsafe fn meeting(segment: &Segment, n: usize, t: usize) -> (*const f32, isize, usize) {
    let token = t as isize;
    // SAFETY: a row of token `t` (clause).
    unsafe {
        if n < segment.group {
            let at = token * segment.query_stride + n as isize * segment.group_stride;
            (segment.queries.offset(at), segment.query_stride, 1)
        } else {
            (segment.readers.offset(token * segment.reader_stride), segment.reader_stride, 0)
        }
    }
}

/// The products of the tokens of each pass, where these are few: dims lie in the lanes.
///
/// # Safety
/// - The rows of the segment are readable, and `products` writable for `tokens` rows of `row` values for each query row of a
///   token, and once more for the delta rules.
#[inline(always)]
unsafe fn meet_few<L: Lanes>(isa: L::Isa, segment: &Segment, products: *mut f32) {
    for n in 0..segment.group + usize::from(!segment.betas.is_null()) {
        let mut t = 0;
        while t < segment.tokens {
            let first = t / segment.pass * segment.pass;
            if t + MOST_TOGETHER <= segment.tokens.min(first + segment.pass)
                && (t - first).is_multiple_of(MOST_TOGETHER)
            {
                // SAFETY: four tokens of a pass, and fours before them in it; the same clauses.
                unsafe {
                    for i in (first..t).step_by(MOST_TOGETHER) {
                        meet_four::<L, 4>(isa, segment, n, (first, t, i), products);
                    }
                    match n < segment.group {
                        true => meet_four::<L, 1>(isa, segment, n, (first, t, t), products),
                        false => meet_four::<L, 0>(isa, segment, n, (first, t, t), products),
                    }
                }
                t += MOST_TOGETHER;
                continue;
            }
            // SAFETY: rows of tokens below `tokens` (clause).
            unsafe {
                let (x, _, itself) = meeting(segment, n, t);
                let count = t - first + itself;
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
            t += 1;
        }
    }
}

/// The products of row `n` of four tokens from `t` on with four writing keys from `writer` on, each a sum in the order of
/// [`dots`]: of the first token with the first `MORE`, of each later one with one more. The pass begins with `first`.
///
/// # Safety
/// - As for [`meet_few`]; the tokens are among those of the pass.
#[inline(always)]
unsafe fn meet_four<L: Lanes, const MORE: usize>(
    isa: L::Isa,
    segment: &Segment,
    n: usize,
    (first, t, writer): (usize, usize, usize),
    products: *mut f32,
) {
    const B: usize = MOST_TOGETHER;
    let dim = segment.dim;
    let whole = dim / L::N * L::N;
    let mut sums = [[L::splat(isa, 0.0); B]; B];
    // SAFETY: rows of the tokens of the pass, and their products (clauses).
    unsafe {
        let x: [*const f32; B] = core::array::from_fn(|r| meeting(segment, n, t + r).0);
        let writers: [*const f32; B] =
            core::array::from_fn(|i| segment.writers.offset((writer + i) as isize * segment.writer_stride));
        for d in (0..whole).step_by(L::N) {
            let mut y = [L::splat(isa, 0.0); B];
            for i in 0..B {
                y[i] = L::load(isa, writers[i].add(d));
            }
            for r in 0..B {
                let x = L::load(isa, x[r].add(d));
                for i in 0..B {
                    if i < r + MORE {
                        sums[r][i] = x.mul_add(y[i], sums[r][i]);
                    }
                }
            }
        }
        for r in 0..B {
            let to = products.add((n * segment.tokens + t + r) * segment.row + writer - first);
            for i in 0..B.min(r + MORE) {
                let mut sum = sums[r][i].lane_sum();
                for d in whole..dim {
                    sum += x[r].add(d).read() * writers[i].add(d).read();
                }
                to.add(i).write(sum);
            }
        }
    }
}

/// The products of the tokens of each pass: writing keys lie in the lanes, a vector of them after the other, and are read
/// as a state is. What a token has nothing to do with is written too, up to the end of a vector.
///
/// # Safety
/// - As for [`meet_few`], where rows of products are whole vectors.
/// - `columns` is writable for `dim · row` values.
#[inline(always)]
unsafe fn meet<L: Lanes>(isa: L::Isa, segment: &Segment, products: *mut f32, columns: *mut f32) {
    const R: usize = 8;
    for first in (0..segment.tokens).step_by(segment.pass) {
        let count = segment.pass.min(segment.tokens - first);
        for i in (0..count).step_by(L::N) {
            // SAFETY: at most `N` tokens of the pass; a vector of every dim (clauses).
            unsafe {
                let writers = segment.writers.offset((first + i) as isize * segment.writer_stride);
                let to = columns.add(i * segment.dim);
                transpose::<L>(isa, writers, segment.writer_stride, (count - i).min(L::N), segment.dim, to);
            }
        }
        for n in 0..segment.group + usize::from(!segment.betas.is_null()) {
            let mut t = 0;
            while t < count {
                let rows = if t + R <= count { R } else { 1 };
                for i in (0..t + rows).step_by(L::N) {
                    // SAFETY: rows of tokens of the pass, and a vector of products of each (clauses).
                    unsafe {
                        let (x, stride, _) = meeting(segment, n, first + t);
                        let keys = columns.add(i * segment.dim).cast_const();
                        let to = products.add((n * segment.tokens + first + t) * segment.row + i);
                        if rows == R {
                            let sums = met::<L, R>(isa, segment.dim, x, stride, keys);
                            for r in 0..R {
                                sums[r].store(to.add(r * segment.row));
                            }
                        } else {
                            met::<L, 1>(isa, segment.dim, x, stride, keys)[0].store(to);
                        }
                    }
                }
                t += rows;
            }
        }
    }
}

/// `x K` for `R` rows `x`, `stride` apart, and a vector of writing keys, `[dim][N]`. Dims are summed up by themselves, a few at a
/// time: what many tokens write is multiplied by products, and no later token takes back what these are off.
///
/// # Safety
/// - `dim` values, a multiple of four, are readable in each row of `x`, and `dim` vectors at `keys`.
#[inline(always)]
unsafe fn met<L: Lanes, const R: usize>(
    isa: L::Isa,
    dim: usize,
    x: *const f32,
    stride: isize,
    keys: *const f32,
) -> [L; R] {
    let mut whole = [L::splat(isa, 0.0); R];
    for first in (0..dim).step_by(SEGMENT) {
        let some = SEGMENT.min(dim - first);
        // SAFETY: dims below `dim` (clause).
        let part = unsafe { reads::<L, R, 1>(isa, some, x.add(first), stride, keys.add(first * L::N), L::N) };
        for r in 0..R {
            whole[r] = whole[r].plus(part[r][0]);
        }
    }
    whole
}

/// Writes the transpose of `rows` rows of `dim` values at `from`, `stride` apart, to `to`, `[dim][N]`, with zeros past the
/// last row.
///
/// # Safety
/// - At most `N` such rows are readable, and `dim · N` values writable at `to`.
#[inline(always)]
unsafe fn transpose<L: Lanes>(
    isa: L::Isa,
    from: *const f32,
    stride: isize,
    rows: usize,
    dim: usize,
    to: *mut f32,
) {
    let whole = dim / L::N * L::N;
    // SAFETY: dims below `dim` of rows below `rows` (clauses).
    unsafe {
        for x in (0..whole).step_by(L::N) {
            let mut square = [L::splat(isa, 0.0); MAX_LANES];
            for r in 0..L::N {
                if r < rows {
                    square[r] = L::load(isa, from.offset(r as isize * stride).add(x));
                }
            }
            L::transpose(isa, &mut square);
            for r in 0..L::N {
                square[r].store(to.add((x + r) * L::N));
            }
        }
        for x in whole..dim {
            for r in 0..L::N {
                let value = if r < rows { from.offset(r as isize * stride).add(x).read() } else { 0.0 };
                to.add(x * L::N + r).write(value);
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
