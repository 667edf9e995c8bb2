//! Merging and finishing of row states in host memory, by [`NaturalMerge`] in the natural-log units of the caller. An
//! output array may be the corresponding input array, such as `merged.m` and `earlier.m`, because each element is read
//! before it is written.

use crate::fault::{Fault, call};
use crate::pointer::get;
use crate::types::{elsa_states_in, elsa_states_out, elsa_status};
use elsa_core::state::{NaturalMerge, is_empty, misfit};

/// Checks an array of f32 values. Returns its start and end addresses, or `None` if it has no elements.
fn span(argument: &str, address: usize, count: usize) -> Result<Option<(usize, usize)>, Fault> {
    if count == 0 {
        return Ok(None);
    }
    if address == 0 {
        return Err(Fault::null(argument));
    }
    if !address.is_multiple_of(4) {
        return Err(Fault::argument(format_args!(
            "{argument}: address {address:#x}; allowed: a multiple of 4"
        )));
    }
    let end = count.checked_mul(4).filter(|&n| n <= isize::MAX as usize).and_then(|n| address.checked_add(n));
    match end {
        Some(end) => Ok(Some((address, end))),
        None => Err(Fault::argument(format_args!(
            "{argument}: {count} elements; allowed: as many as can be addressed"
        ))),
    }
}

/// Returns the number of elements in the weighted sums of `rows` rows with `dim` elements each.
fn weights(rows: usize, dim: usize) -> Result<usize, Fault> {
    rows.checked_mul(dim).ok_or_else(|| {
        Fault::argument(format_args!("rows, dim: {rows}, {dim}; allowed: a product that can be counted"))
    })
}

/// Returns an error if a row of `states` is one that neither a run nor a merge can produce.
///
/// # Safety
/// The arrays of `states` are aligned and readable: `m` and `s` for `rows` values, `w` for `rows * dim`.
unsafe fn known(name: &str, rows: usize, dim: usize, states: &elsa_states_in) -> Result<(), Fault> {
    for row in 0..rows {
        // SAFETY: row < rows (clause of this function). If dim is 0, the pointer of w may be null and is not used.
        let found = unsafe {
            let w = match dim {
                0 => &[],
                _ => std::slice::from_raw_parts(states.w.add(row * dim), dim),
            };
            misfit(*states.m.add(row), *states.s.add(row), w)
        };
        if let Some((array, found, allowed)) = found {
            let array = array.to_ascii_lowercase();
            return Err(Fault::argument(format_args!(
                "{name}.{array}: row {row} holds {found}; allowed: {allowed}"
            )));
        }
    }
    Ok(())
}

/// Returns an error if the array `written` overlaps the array `other`. With `same`, the two may be the same array.
fn apart(
    written: (&str, Option<(usize, usize)>),
    other: (&str, Option<(usize, usize)>),
    same: bool,
) -> Result<(), Fault> {
    if let (Some(a), Some(b)) = (written.1, other.1)
        && a.0 < b.1
        && b.0 < a.1
        && !(same && a == b)
    {
        return Err(Fault::argument(format_args!(
            "{}: overlaps {}; allowed: memory of its own",
            written.0, other.0
        )));
    }
    Ok(())
}

/// # Safety
/// The arrays of `earlier` and `later` are readable and those of `merged` writable: `m` and `s` for `rows` f32 values,
/// `w` for `rows * dim`. Nothing else uses the arrays of `merged`.
unsafe fn merge(
    rows: usize,
    dim: usize,
    earlier: &elsa_states_in,
    later: &elsa_states_in,
    merged: &elsa_states_out,
) -> Result<(), Fault> {
    let all = weights(rows, dim)?;
    let inputs = [
        ("earlier.m", span("earlier.m", earlier.m as usize, rows)?),
        ("earlier.s", span("earlier.s", earlier.s as usize, rows)?),
        ("earlier.w", span("earlier.w", earlier.w as usize, all)?),
        ("later.m", span("later.m", later.m as usize, rows)?),
        ("later.s", span("later.s", later.s as usize, rows)?),
        ("later.w", span("later.w", later.w as usize, all)?),
    ];
    let outputs = [
        ("merged.m", span("merged.m", merged.m as usize, rows)?),
        ("merged.s", span("merged.s", merged.s as usize, rows)?),
        ("merged.w", span("merged.w", merged.w as usize, all)?),
    ];
    for (i, &output) in outputs.iter().enumerate() {
        for (j, &input) in inputs.iter().enumerate() {
            apart(output, input, i == j % 3)?;
        }
        for &other in &outputs[i + 1..] {
            apart(output, other, false)?;
        }
    }
    // SAFETY: the caller keeps the clause of this function, and the checks above found the arrays aligned.
    unsafe {
        known("earlier", rows, dim, earlier)?;
        known("later", rows, dim, later)?;
    }
    for row in 0..rows {
        // SAFETY: row < rows (clause of this function); the checks above found the arrays aligned, and outputs apart.
        let (ma, sa, mb, sb) =
            unsafe { (*earlier.m.add(row), *earlier.s.add(row), *later.m.add(row), *later.s.add(row)) };
        let joined = NaturalMerge::of((ma, sa), (mb, sb));
        // SAFETY: row * dim + i < rows * dim (clause of this function); the same checks apply.
        unsafe {
            for i in row * dim..row * dim + dim {
                *merged.w.add(i) = joined.w(*earlier.w.add(i), *later.w.add(i));
            }
            *merged.m.add(row) = joined.m;
            *merged.s.add(row) = joined.s;
        }
    }
    Ok(())
}

/// # Safety
/// The arrays of `states` are readable. `out` is writable for `rows * dim` f32 values and `lse`, if it is not null, for
/// `rows`; nothing else uses `out` or `lse`.
unsafe fn finish(
    rows: usize,
    dim: usize,
    states: &elsa_states_in,
    out: *mut f32,
    lse: *mut f32,
) -> Result<(), Fault> {
    let all = weights(rows, dim)?;
    let inputs = [
        ("states.m", span("states.m", states.m as usize, rows)?),
        ("states.s", span("states.s", states.s as usize, rows)?),
        ("states.w", span("states.w", states.w as usize, all)?),
    ];
    let out_span = ("out", span("out", out as usize, all)?);
    let lse_span = ("lse", if lse.is_null() { None } else { span("lse", lse as usize, rows)? });
    for input in inputs {
        apart(out_span, input, input.0 == "states.w")?;
        apart(lse_span, input, false)?;
    }
    apart(out_span, lse_span, false)?;
    // SAFETY: the caller keeps the clause of this function, and the checks above found the arrays aligned.
    unsafe { known("states", rows, dim, states)? };
    for row in 0..rows {
        // SAFETY: row < rows and row * dim + i < rows * dim (clause of this function); the checks above found the
        // arrays aligned, and outputs apart.
        unsafe {
            let (m, s) = (*states.m.add(row), *states.s.add(row));
            for i in row * dim..row * dim + dim {
                *out.add(i) = if is_empty(m, s) { 0.0 } else { *states.w.add(i) / s };
            }
            if !lse.is_null() {
                *lse.add(row) = if is_empty(m, s) {
                    f32::NEG_INFINITY
                } else {
                    (f64::from(m) + f64::from(s).ln()) as f32
                };
            }
        }
    }
    Ok(())
}

/// Merges the states of two disjoint sets of keys, row by row. An output may be the same array as an input; partial
/// overlap is not allowed.
///
/// The merged m is the larger of the two. S = S_a exp(m_a - m) + S_b exp(m_b - m), and W is formed in the same way,
/// computed in f64 from the exact difference of the references and rounded once to f32. If one state has no key, the
/// other is returned bit for bit; if neither has one, the merged state is (minus infinity, 0, 0). The W of a state with
/// no key is ignored, even if it holds infinities or NaN. A NaN in S poisons the merged S.
///
/// Valid states are those that a run or a merge produces: m of minus infinity with S of 0; finite m with finite S
/// greater than 0; or NaN in S and in all of W, with any m except NaN. W may hold infinities and NaN next to a finite
/// S, since values may. A row with any other state is rejected with ELSA_STATUS_ARGUMENT before anything is written;
/// the message gives its array and row number.
///
/// Merging is deterministic: the same states produce the same bits on every machine, and exchanging earlier and later
/// produces the same numbers. With three or more states, different orders or groupings may differ by rounding from each
/// other and from the state of all keys. A fixed order and grouping, such as merging chunks in the order of their keys,
/// always produces the same bits.
///
/// # Safety
/// The structs and the arrays of earlier and later are valid for reads, and those of merged for writes: m and s for
/// rows f32 values, w for rows * dim. Nothing else writes to the inputs or uses the outputs during the call (*read*,
/// *write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_states_merge(
    rows: usize,
    dim: usize,
    earlier: *const elsa_states_in,
    later: *const elsa_states_in,
    merged: *const elsa_states_out,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        unsafe { merge(rows, dim, get("earlier", earlier)?, get("later", later)?, get("merged", merged)?) }
    })
}

/// Converts states to the output, out = W / S as f32 [rows, dim], and to the log-sum-exp, one f32 per row, which may
/// be null. For a row with no key, the output is zero and the log-sum-exp minus infinity. States that elsa_states_merge
/// rejects are rejected here too.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_states_finish(
    rows: usize,
    dim: usize,
    states: *const elsa_states_in,
    out: *mut f32,
    lse: *mut f32,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { finish(rows, dim, get("states", states)?, out, lse) })
}
