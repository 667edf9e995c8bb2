//! Fills the kernel parameters from a problem and the addresses of its tensors.

use super::plan::GpuPlan;
use crate::cuda::marshal::{self, dtype, int, tensor};
use crate::cuda::parameter::parameters;
use elsa_core::attention::plan::SplitChoice;
use elsa_core::attention::{self, BiasView, MaskKind, MaskView, Operand, Operands, Problem, Spec};
use elsa_core::dtype::DType;
use elsa_kernels::cuda::attention::{
    self as args, Addend, AttentionArgs, Budget, MathArgs, MeasureArgs, Measuring, PIECE_ROWS, Planes,
    PresentArgs, Sequence, SplitArgs, WithinArgs, WithinCounts,
};
use elsa_kernels::cuda::tensor::{DeviceTensor, Divisor, TYPE_F32};

parameters!(AttentionArgs, MathArgs, MeasureArgs, PresentArgs, SplitArgs, WithinArgs);

/// Device addresses of the partial states. They are zero if the attention kernel writes the output directly.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartialStates {
    /// Address of the references and sums of the partial states.
    pub ms: u64,
    /// Address of the weighted sums of the partial states.
    pub w: u64,
    /// Address of the sums of skipped weights; used only with an error budget.
    pub d: u64,
}

/// The sequences of a call, in the layout that the kernels read.
#[derive(Clone, Copy, Debug)]
pub struct Sequences {
    /// Device address of the table; zero if one entry applies to every batch index.
    pub table: u64,
    /// The entry that applies to every batch index, if there is no table.
    pub shared: Sequence,
    /// Number of queries of the longest sequence.
    pub longest: usize,
    /// Largest number of keys that a sequence may attend.
    pub most_keys: usize,
}

/// Returns `true` if rows can be accessed four elements at a time.
fn is_vec4(tensor: &DeviceTensor, dim: usize, element: usize) -> bool {
    marshal::is_vec4(tensor, dim, element) && tensor.token < args::NEAR
}

/// Converts a sequence to the layout that the kernels read.
///
/// The keys that row `i` attends start at key `start + i` and end before key `end + i`. This interval is clipped to the
/// range from zero to the number of keys. A start of `-queries` or less, and an end of `keys` or more, do not limit any
/// row. A start of `keys` or more, or an end of `-queries` or less, leaves every row without keys. The diagonal may be
/// arbitrarily far from the keys of a chunk, so `start` and `end` are clamped to these limits; the kernels' sums then
/// fit in 32 bits.
pub fn sequence(s: &attention::Sequence) -> Sequence {
    let (low, high) = (-(s.queries as isize), s.keys as isize);
    let start = s.left().map(|left| s.offset().saturating_sub_unsigned(left).clamp(low, high));
    let end = s.right().map(|right| s.offset().saturating_add_unsigned(right).saturating_add(1));
    let end = end.map(|end| end.clamp(low, high));
    let (offset, left, right) = match (start.filter(|x| *x > low), end.filter(|x| *x < high)) {
        (None, None) => (0, -1, -1),
        (Some(start), None) => (start as i32, 0, -1),
        (None, Some(end)) => (end as i32 - 1, -1, 0),
        // Neither bound has been clipped, so the start precedes the end.
        (Some(start), Some(end)) => (start as i32, 0, (end - 1 - start) as i32),
    };
    Sequence {
        batch: int(s.batch),
        query0: int(s.query0),
        queries: int(s.queries),
        key0: int(s.key0),
        keys: int(s.keys),
        past: int(s.past),
        reach: int(s.reach()),
        left,
        right,
        offset,
    }
}

const fn addend_kind(kind: MaskKind) -> i32 {
    match kind {
        MaskKind::Bool => args::ADDEND_BOOL,
        MaskKind::Additive(DType::F32) => args::ADDEND_F32,
        MaskKind::Additive(DType::F16) => args::ADDEND_F16,
        MaskKind::Additive(DType::Bf16) => args::ADDEND_BF16,
    }
}

/// Returns the kernel parameter for a mask, or for a bias with the layout of a mask.
fn addend(view: &MaskView, data: u64) -> Addend {
    let [batch, head, query, key] = view.strides().map(|stride| stride as i64);
    let period = int(view.shape()[0]);
    let kind = addend_kind(view.kind());
    Addend { data, batch, head, query, key, by_period: Divisor::new(period), period, kind }
}

/// Returns the kernel parameter for the bias, which is a tensor with the layout of a mask, or a table of relative
/// positions.
fn bias(s: &Spec, data: u64) -> Addend {
    let table = match &s.bias {
        None => return Addend::default(),
        Some(BiasView::Dense(view)) => return addend(view, data),
        Some(BiasView::Table(table)) => table,
    };
    let kind = addend_kind(MaskKind::Additive(table.dtype));
    let heads = table.heads as i64;
    let row = Addend {
        data,
        head: 1,
        query: heads,
        by_period: Divisor::new(1),
        period: 1,
        kind,
        ..Addend::default()
    };
    match &s.windows {
        // For positions P, the entry of a query and a key is P(query) − P(key) + P(last token).
        Some(windows) if !table.indexed => {
            let last = windows.place(windows.tokens() - 1) * table.heads * table.dtype.size();
            Addend { data: data + last as u64, key: -heads, ..row }
        }
        _ => row,
    }
}

/// Returns the kernel parameters for the windows of a picture. The field `positions` is 1 if a bias table has no index,
/// so that the windows determine relative positions.
fn windows(s: &Spec) -> args::Windows {
    let Some(windows) = &s.windows else { return args::Windows::default() };
    let (count, across) = (int(windows.count()), int(windows.picture[1] / windows.size[1]));
    let side = |axis: usize| match windows.shift[axis] {
        0 => i32::MAX,
        shift => int(windows.size[axis] - shift),
    };
    let width = windows.size[1];
    args::Windows {
        by_windows: Divisor::new(count),
        by_across: Divisor::new(across),
        by_width: Divisor::new(int(width)),
        windows: count,
        across,
        width: int(width),
        side_row: side(0),
        side_column: side(1),
        positions: i32::from(matches!(s.bias, Some(BiasView::Table(table)) if !table.indexed)),
    }
}

/// Returns flags for everything that changes the scores of a call, except the soft cap.
fn changes(s: &Spec) -> i32 {
    let indexed = matches!(s.bias, Some(BiasView::Table(table)) if table.indexed);
    let shifted = matches!(&s.windows, Some(windows) if windows.is_shifted());
    [
        (s.mask.is_some(), args::CHANGED_BY_MASK),
        (s.bias.is_some(), args::CHANGED_BY_BIAS),
        (shifted, args::CHANGED_BY_SIDES),
        (indexed, args::CHANGED_BY_INDEX),
    ]
    .iter()
    .filter(|(there, _)| *there)
    .map(|(_, change)| change)
    .sum()
}

/// Returns the number of row blocks into which the longest sequence is divided.
pub fn row_blocks(plan: &GpuPlan, sequences: &Sequences) -> usize {
    let c = &plan.choice;
    (sequences.longest * c.heads_at_once).div_ceil(c.kernel.rows.max(1))
}

/// Returns the parameter of the attention kernel and of the merge kernel. `at` contains the device address of every
/// operand. The address of an absent operand is zero. `serial` is `true` if a thread block processes all splits of its
/// rows.
pub fn attention(
    plan: &GpuPlan,
    problem: &Problem,
    at: &Operands<u64>,
    partials: PartialStates,
    sequences: Sequences,
    serial: bool,
) -> AttentionArgs {
    let (s, c) = (problem.spec(), &plan.choice);
    let of = |operand| match problem.memory(operand).and_then(|memory| memory.view) {
        Some(view) => tensor(&view, at[operand]),
        None => DeviceTensor::default(),
    };
    let mask = s.mask.map_or(Addend::default(), |mask| addend(&mask, at[Operand::Mask]));
    let (query_factor, cap) = problem.score_factors();
    let row_blocks = row_blocks(plan, &sequences);
    let group = problem.group();
    let columns = problem.heads() * problem.sequences();
    let at_once = if serial { 1 } else { c.splits };
    let (first, short_from) = order(c.longest_first, c.short_last, [row_blocks, at_once, columns]);
    let (d, dv, size) = (problem.head_dim(), problem.value_dim(), s.dtype.size());
    let mut filled = AttentionArgs {
        query: of(Operand::Query),
        key: of(problem.source(Operand::Key)),
        value: of(problem.source(Operand::Value)),
        past_key: of(Operand::PastKey),
        past_value: of(Operand::PastValue),
        output: of(Operand::Output),
        mask,
        bias: bias(s, at[Operand::Bias]),
        index: at[Operand::BiasIndex],
        index_keys: int(problem.keys()),
        entries: match s.bias {
            Some(BiasView::Table(table)) => int(table.entries),
            _ => 0,
        },
        windows: windows(s),
        sequences: sequences.table,
        lse: at[Operand::LogSumExp],
        state_m: at[Operand::StateReference],
        state_s: at[Operand::StateSum],
        state_w: at[Operand::StateWeighted],
        part_ms: partials.ms,
        part_w: partials.w,
        sequence: sequences.shared,
        sequence_count: int(problem.sequences()),
        dtype: dtype(s.dtype),
        changes: changes(s),
        flags: 0,
        heads: int(problem.heads()),
        group: int(group),
        tokens: int(s.query.tokens()),
        head_dim: int(d),
        value_dim: int(dv),
        part_dim: int(c.partial_dim),
        row_blocks: int(row_blocks),
        splits: int(c.splits),
        chunk: int(c.chunk),
        query_factor,
        cap,
        query_rows: int(problem.rows()),
        by_first: Divisor::new(first),
        first,
        short_from,
        by_splits: Divisor::new(int(at_once)),
        by_heads: Divisor::new(int(problem.heads())),
        by_group: Divisor::new(int(group)),
        by_tokens: Divisor::new(int(s.query.tokens())),
    };
    let vec4 = |tensors: [&DeviceTensor; 2], dim, flag| match tensors.iter().all(|t| is_vec4(t, dim, size)) {
        true => flag,
        false => 0,
    };
    filled.flags = vec4([&filled.query, &filled.query], d, args::QUERY_VEC4)
        | vec4([&filled.key, &filled.past_key], d, args::KEY_VEC4)
        | vec4([&filled.value, &filled.past_value], dv, args::VALUE_VEC4)
        | vec4([&filled.output, &filled.output], dv, args::OUTPUT_VEC4);
    let inputs = args::QUERY_VEC4 | args::KEY_VEC4 | args::VALUE_VEC4;
    if filled.flags & inputs == inputs && c.has_plain_tiles([d, dv]) {
        filled.flags |= args::WHOLE_ROWS;
    }
    if serial {
        filled.flags |= args::SERIAL_SPLITS;
    }
    if c.longest_first {
        filled.flags |= args::LONGEST_FIRST;
    }
    filled
}

/// Returns `true` if the rows of queries, keys, values and output can be accessed four elements at a time.
pub fn reads_four(call: &AttentionArgs) -> bool {
    let all = args::QUERY_VEC4 | args::KEY_VEC4 | args::VALUE_VEC4 | args::OUTPUT_VEC4;
    let all = if call.output.data == 0 { all & !args::OUTPUT_VEC4 } else { all };
    call.flags & all == all
}

/// Returns the number of tiles into which the keys of the longest sequence are split.
pub fn split_tiles(choice: &SplitChoice, sequences: &Sequences) -> usize {
    sequences.most_keys.div_ceil(choice.kernel.keys.max(1))
}

/// Returns the parameters of the kernel for refused rows, and those of the kernels on Tensor Cores. `call` is the parameter of the
/// attention kernel. The workspace is at address `scratch`.
pub fn split(
    plan: &GpuPlan,
    choice: &SplitChoice,
    problem: &Problem,
    call: AttentionArgs,
    sequences: &Sequences,
    scratch: u64,
) -> (SplitArgs, SplitArgs) {
    let [channels, _] = choice.words();
    let zeroed = scratch + plan.layout.zeroed.start as u64;
    let row_blocks = sequences.longest.div_ceil(choice.kernel.rows.max(1));
    let longest = int(split_tiles(choice, sequences));
    let planes = Planes {
        images: scratch + plan.layout.planes.start as u64,
        shifts: scratch + plan.layout.shifts.start as u64,
        channels: zeroed,
        refused: zeroed + 4 * channels as u64,
        tiles: int(choice.tiles),
        kv_heads: int(problem.kv_heads()),
        rows: int(choice.kernel.rows),
        row_blocks: int(choice.row_blocks),
        longest,
        unused: 0,
        by_longest: Divisor::new(longest),
        by_kv_heads: Divisor::new(int(problem.kv_heads())),
    };
    let columns = problem.heads() * problem.sequences();
    let (first, short_from) =
        order(plan.choice.longest_first, false, [row_blocks, plan.choice.splits, columns]);
    let own = AttentionArgs {
        row_blocks: int(row_blocks),
        first,
        short_from,
        by_first: Divisor::new(first),
        ..call
    };
    (SplitArgs { call, planes }, SplitArgs { call: own, planes })
}

/// Returns the error budget of a run. The counters start at the address `left_out`, and the sums of skipped weights
/// follow them.
pub fn budget(
    plan: &GpuPlan,
    problem: &Problem,
    odds: f32,
    left_out: u64,
    partials: PartialStates,
) -> Budget {
    let counting = plan.choice.counting;
    let counts = (counting * size_of::<WithinCounts>()) as u64;
    let places = match problem.spec().packed {
        Some(_) => int(counting / problem.heads().max(1)),
        None => 0,
    };
    Budget { part_d: partials.d, left_out: left_out + counts, counts: left_out, odds, places }
}

/// Returns the additional parameters of the measuring kernel. The kernel's records begin at the address `records`.
pub fn measure(
    plan: &GpuPlan,
    problem: &Problem,
    at: &Operands<u64>,
    sequences: &Sequences,
    records: u64,
) -> Measuring {
    let s = problem.spec();
    let elements = |operand| problem.memory(operand).map_or(0, |memory| memory.elements as i64);
    let mask = s.mask.and_then(|mask| match mask.kind() {
        MaskKind::Bool => None,
        MaskKind::Additive(dtype) => Some(dtype),
    });
    let bias = s.bias.map(|bias| bias.dtype());
    let pieces = |rows: usize| int(rows.div_ceil(PIECE_ROWS).max(1));
    Measuring {
        records,
        mask: at[Operand::Mask],
        bias: at[Operand::Bias],
        mask_elements: mask.filter(|_| sequences.longest > 0).map_or(0, |_| elements(Operand::Mask)),
        bias_elements: bias.filter(|_| sequences.longest > 0).map_or(0, |_| elements(Operand::Bias)),
        mask_dtype: mask.map_or(TYPE_F32, dtype),
        bias_dtype: bias.map_or(TYPE_F32, dtype),
        record: int(plan.choice.record_stride()),
        query_pieces: pieces(sequences.longest),
        key_pieces: pieces(sequences.most_keys),
        kv_heads: int(problem.kv_heads()),
    }
}

/// Returns the parameters of the kernel that writes the present tensors, one set for keys and one for values. A set is
/// `None` if the problem does not have the tensor. Rows that the present tensor already contains are omitted.
pub fn presents(problem: &Problem, at: &Operands<u64>) -> [Option<PresentArgs>; 2] {
    let size = problem.spec().dtype.size();
    let view = |operand| problem.memory(operand).and_then(|memory| memory.view);
    let of = |operand| view(operand).map_or(DeviceTensor::default(), |view| tensor(&view, at[operand]));
    let present = |to: Operand, past: Operand, fresh: Operand| {
        let (new, mut present) = (view(fresh)?, tensor(&view(to)?, at[to]));
        let kept = problem.kept_tokens(to).unwrap_or(0);
        present.data += (kept as i64 * present.token) as u64 * size as u64;
        Some(PresentArgs {
            past: of(past),
            fresh: of(fresh),
            present,
            batch: int(new.batch()),
            heads: int(new.heads()),
            past_tokens: int(problem.past() - kept),
            fresh_tokens: int(new.tokens()),
            dim: int(new.dim()),
            element_size: int(size),
        })
    };
    [
        present(Operand::PresentKey, Operand::PastKey, Operand::Key),
        present(Operand::PresentValue, Operand::PastValue, Operand::Value),
    ]
}

/// Returns the fields `first` and `short_from`, which determine the order of thread blocks. The last argument contains
/// the number of row blocks, the number of splits, and the number of heads summed over all sequences.
fn order(longest_first: bool, short_last: bool, [row_blocks, splits, columns]: [usize; 3]) -> (i32, i32) {
    match (longest_first, short_last && row_blocks > 1) {
        (true, _) => (int(columns), i32::MAX),
        (false, true) => (int(row_blocks - 1), int((row_blocks - 1) * splits * columns)),
        (false, false) => (int(row_blocks), i32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::{Alignment, Chunk, Lengths, Spec, Window};
    use elsa_core::view::{Layout, View};

    /// Computes the interval of keys that a row attends as the kernels do, in 32 bits.
    fn range(s: &Sequence, row: i32) -> (i32, i32) {
        let diagonal = s.offset.checked_add(row).unwrap();
        let start = if s.left >= 0 && diagonal > s.left { diagonal.checked_sub(s.left).unwrap() } else { 0 };
        let end = match s.right >= 0 && diagonal < s.reach.checked_sub(s.right).unwrap() {
            true => (diagonal.checked_add(s.right).unwrap() + 1).max(0),
            false => s.reach,
        };
        (start.min(end), end)
    }

    #[test]
    #[cfg_attr(miri, ignore = "a million intervals, and nothing unsafe")]
    fn kernels_have_the_intervals_of_a_sequence() {
        let view = |n| View::dense("x", Layout::Bhnd, &[n, 4], None).unwrap();
        let far = isize::MAX as usize / 4;
        let sides = [None, Some(0), Some(3), Some(9), Some(40), Some(usize::MAX)];
        let causes = [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)];
        let mut empty = 0;
        for (queries, keys) in [(1, 1), (7, 5), (5, 12)] {
            for (total, offset) in (keys..30).flat_map(|t| (0..=t - keys).map(move |o| (t, o))).chain([
                (far, 0),
                (far, far - keys),
                (far, 3_000_000_000),
            ]) {
                for (causal, left) in causes.into_iter().flat_map(|c| sides.map(|side| (c, side))) {
                    for right in sides {
                        let plain =
                            Spec::new(DType::F32, view(queries), view(keys), view(keys), view(queries));
                        let spec = plain.causal(causal).window(Window { left, right });
                        // If the keys of the chunk are far from the first key, the queries of the chunk are equally
                        // far from the first query.
                        let (query_offset, query_total) = match total {
                            30.. => (offset, far),
                            _ => (total / 3, total / 3 + queries),
                        };
                        let chunk = Chunk { query_offset, query_total, ..Chunk::of_keys(offset, total) };
                        let chunk = Some(if left == Some(3) { chunk } else { Chunk::of_keys(offset, total) });
                        let lengths = Lengths { chunk, ..Lengths::default() };
                        let want = spec.check().unwrap().sequence(&lengths, 0);
                        let found = sequence(&want);
                        for i in 0..queries {
                            let (start, end) = want.range(i);
                            let (a, b) = range(&found, i as i32);
                            // The intervals are equal, or both are empty.
                            let same = (a as usize, b as usize) == (start, end) || (a >= b && start >= end);
                            assert!(same, "{want:?} {found:?}: row {i} {a}..{b}");
                            empty += usize::from(start >= end);
                        }
                    }
                }
            }
        }
        assert!(empty > 0);
    }

    /// Computes the head, split and row block of a thread block as the kernels do.
    fn share(
        block: i32,
        longest_first: bool,
        (first, short_from): (i32, i32),
        row_blocks: i32,
        splits: i32,
    ) -> [i32; 3] {
        let is_short = block >= short_from;
        let quotient = block / first;
        let of_first = if is_short { block - short_from } else { quotient };
        let (of_splits, split) = (of_first / splits, of_first % splits);
        let at = block - quotient * first;
        match (longest_first, is_short) {
            (true, _) => [at, split, row_blocks - of_splits - 1],
            (false, true) => [of_splits, split, row_blocks - 1],
            (false, false) => [of_splits, split, first - at - 1],
        }
    }

    #[test]
    fn every_share_has_a_block_and_short_ones_the_last() {
        for [rows, splits, columns] in [[1, 1, 1], [1, 3, 2], [2, 1, 5], [4, 2, 12], [5, 4, 3]] {
            for (longest, short) in [(false, false), (true, false), (false, true)] {
                let order = order(longest, short, [rows, splits, columns]);
                let blocks = (rows * splits * columns) as i32;
                let of = |block| share(block, longest, order, int(rows), int(splits));
                let mut found: Vec<[i32; 3]> = (0..blocks).map(of).collect();
                if short && rows > 1 {
                    let tail = splits * columns;
                    let last = found.len() - tail;
                    assert!(found[last..].iter().all(|share| share[2] == int(rows) - 1), "{found:?}");
                }
                found.sort_unstable();
                let all = (0..int(columns)).flat_map(|column| {
                    (0..int(splits))
                        .flat_map(move |split| (0..int(rows)).map(move |row| [column, split, row]))
                });
                assert!(
                    found.iter().copied().eq(all),
                    "{rows} {splits} {columns} {longest} {short}: {found:?}"
                );
            }
        }
    }
}
