//! Copies blocks of tokens between series and rows that contain a tile's channels.

use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::series::Series;
use elsa_kernels::primitives::Primitives;
use elsa_kernels::series::Columns;
use half::{bf16, f16};
use std::ops::Range;

/// Order of the elements of a block in memory.
enum Order {
    /// The channels of a token are contiguous. The number is the distance between tokens, in elements.
    Rows(usize),
    /// The tokens of a channel are contiguous. The number is the distance between channels, in elements.
    Lines(usize),
    /// Neither channels nor tokens are contiguous.
    Other,
}

fn order(series: &Series) -> Order {
    let view = series.view();
    match series.channel_stride() {
        Some(1) => Order::Rows(view.steps()[2]),
        Some(channel) if view.strides()[2] == 1 => Order::Lines(channel),
        _ => Order::Other,
    }
}

/// A tile: a range of channels in one sequence.
#[derive(Clone, Copy, Debug)]
pub struct ChannelTile {
    /// Index of the sequence.
    pub batch: usize,
    /// Index of the first channel.
    pub channel: usize,
    /// Number of channels.
    pub channels: usize,
}

/// A block of tokens, and the direction in which a pass visits them.
#[derive(Clone, Debug)]
pub struct TokenBlock {
    /// Range of the tokens' indices in the tensor.
    pub tokens: Range<usize>,
    /// `true` if the pass visits the last token first.
    pub reverse: bool,
}

impl TokenBlock {
    /// Creates the block of tokens that a pass over `tokens` tokens visits in the steps `steps`.
    pub fn of(steps: Range<usize>, tokens: usize, reverse: bool) -> TokenBlock {
        let tokens = if reverse { tokens - steps.end..tokens - steps.start } else { steps };
        TokenBlock { tokens, reverse }
    }

    /// Returns the rows of the tokens in the order of the pass. `first` points to the row with the lowest address, and
    /// `stride` is the distance between rows.
    pub fn columns<T>(&self, first: *const T, stride: usize) -> Columns<*const T> {
        let last = self.tokens.len().saturating_sub(1);
        if self.reverse {
            Columns { first: first.wrapping_add(last * stride), stride: -(stride as isize) }
        } else {
            Columns { first, stride: stride as isize }
        }
    }

    /// Returns the same rows as [`TokenBlock::columns`], for writing.
    pub fn columns_mut<T>(&self, first: *mut T, stride: usize) -> Columns<*mut T> {
        let Columns { first, stride } = self.columns(first.cast_const(), stride);
        Columns { first: first.cast_mut(), stride }
    }
}

/// A series from which a pass reads.
#[derive(Clone, Copy, Debug)]
pub struct PassInput<'a> {
    pub series: Series,
    pub data: Elements<'a>,
}

impl PassInput<'_> {
    /// Returns the rows of a block in the memory of the series; `None` if the kernel cannot read the rows in that
    /// memory.
    fn in_place(&self, tile: ChannelTile, block: &TokenBlock, width: usize) -> Option<Columns<*const f32>> {
        match (self.data, order(&self.series)) {
            (Elements::F32(data), Order::Rows(stride))
                if tile.channels == width && !block.tokens.is_empty() =>
            {
                let at = self.series.at(tile.batch, block.tokens.start, tile.channel);
                Some(block.columns(data[at..].as_ptr(), stride))
            }
            _ => None,
        }
    }

    /// Returns the rows of a block in the order of the pass, either in the memory of the series or copied to `to`.
    ///
    /// # Safety
    /// - The clauses of [`PassInput::copy`] hold.
    pub unsafe fn rows(
        &self,
        p: &Primitives,
        tile: ChannelTile,
        block: &TokenBlock,
        width: usize,
        to: *mut f32,
        convert: &Convert,
    ) -> Columns<*const f32> {
        self.in_place(tile, block, width).unwrap_or_else(|| {
            // SAFETY: `copy` has the clauses of this function.
            unsafe { self.copy(p, tile, block, width, to, convert) };
            block.columns(to.cast_const(), width)
        })
    }

    /// Copies a block to rows of `width` values at `to`, in the order of the tokens in memory. Fills columns beyond the
    /// tile's channels with zeros.
    ///
    /// # Safety
    /// - The tensor has been checked against its problem, and tile and block are within it; `tile.channels ≤ width`.
    /// - The instruction set of `p` is present.
    /// - At `to`, as many rows are writable as the block has tokens, rounded up to a multiple of four. The invariant of
    ///   `convert` is true.
    pub unsafe fn copy(
        &self,
        p: &Primitives,
        tile: ChannelTile,
        block: &TokenBlock,
        width: usize,
        to: *mut f32,
        convert: &Convert,
    ) {
        let (count, channels, dtype) = (block.tokens.len(), tile.channels, self.data.dtype());
        if count == 0 || channels == 0 {
            return;
        }
        let at = self.series.at(tile.batch, block.tokens.start, tile.channel);
        let from = self.data.as_ptr().wrapping_add(at * dtype.size());
        // SAFETY: the rows of the block, or the lines of its channels, are readable in the tensor. There is room for
        // the rows at `to`, and in `convert` for the lines that are converted (clauses).
        unsafe {
            match order(&self.series) {
                Order::Rows(stride) => {
                    p.rows_to_f32(dtype, from, stride, count, channels, to, width);
                    if channels < width {
                        for row in 0..count {
                            to.add(row * width + channels).write_bytes(0, width - channels);
                        }
                    }
                }
                Order::Lines(stride) if dtype == DType::F32 => {
                    let padded = count.next_multiple_of(4);
                    (p.transpose_in)(from.cast(), stride, channels, count, padded, width, 1.0, to);
                }
                Order::Lines(stride) if convert.holds(channels, count) => {
                    p.rows_to_f32(dtype, from, stride, channels, count, convert.at, convert.line);
                    let padded = count.next_multiple_of(4);
                    (p.transpose_in)(convert.at, convert.line, channels, count, padded, width, 1.0, to);
                }
                _ => {
                    for (row, token) in block.tokens.clone().enumerate() {
                        for c in 0..width {
                            let x = if c < channels {
                                self.data.get(self.series.at(tile.batch, token, tile.channel + c))
                            } else {
                                0.0
                            };
                            to.add(row * width + c).write(x);
                        }
                    }
                }
            }
        }
    }
}

/// Memory for converting elements: room for `lines` lines with `line` values each.
///
/// Invariant: `lines · line` values are writable at `at`.
#[derive(Clone, Copy, Debug)]
pub struct Convert {
    pub at: *mut f32,
    pub lines: usize,
    pub line: usize,
}

impl Convert {
    fn holds(&self, lines: usize, len: usize) -> bool {
        lines <= self.lines && len <= self.line
    }
}

/// A series to which a pass writes. Workers write disjoint elements.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    series: Series,
    dtype: DType,
    data: *mut u8,
}

impl Target {
    /// Creates the target for a series. Its elements `data` must have been checked against the problem of the call.
    pub fn new(series: Series, data: &mut ElementsMut<'_>) -> Target {
        Target { series, dtype: data.elements().dtype(), data: data.as_mut_ptr() }
    }

    fn address(&self, batch: usize, token: usize, channel: usize) -> *mut u8 {
        self.data.wrapping_add(self.series.at(batch, token, channel) * self.dtype.size())
    }

    /// Returns the rows to which the kernel writes a block, in the order of the pass, and whether these rows are in the
    /// memory of the series. The rows are at `buffer` if the kernel cannot write to the memory of the series.
    pub fn rows(
        &self,
        tile: ChannelTile,
        block: &TokenBlock,
        width: usize,
        buffer: *mut f32,
    ) -> (Columns<*mut f32>, bool) {
        match order(&self.series) {
            Order::Rows(stride) if self.dtype == DType::F32 && tile.channels == width => {
                let at = self.address(tile.batch, block.tokens.start, tile.channel);
                (block.columns_mut(at.cast(), stride), true)
            }
            _ => (block.columns_mut(buffer, width), false),
        }
    }

    /// Copies rows of `width` values at `from`, in the order of the tokens in memory, to a block of the series.
    ///
    /// # Safety
    /// - The tensor is writable, tile and block are within it, and no other worker writes these elements;
    ///   `tile.channels ≤ width`.
    /// - The instruction set of `p` is present.
    /// - At `from`, as many rows are readable as the block has tokens, rounded up to a multiple of four. The invariant
    ///   of `convert` is true.
    pub unsafe fn store(
        &self,
        p: &Primitives,
        tile: ChannelTile,
        block: &TokenBlock,
        width: usize,
        from: *const f32,
        convert: &Convert,
    ) {
        let (count, channels) = (block.tokens.len(), tile.channels);
        if count == 0 || channels == 0 {
            return;
        }
        let to = self.address(tile.batch, block.tokens.start, tile.channel);
        // SAFETY: the rows at `from` are readable, and the block is writable in the tensor. `convert` has room for the
        // lines that are converted (clauses).
        unsafe {
            match (order(&self.series), p.narrow(self.dtype)) {
                (Order::Rows(stride), None) => {
                    for row in 0..count {
                        let to = to.cast::<f32>().add(row * stride);
                        to.copy_from_nonoverlapping(from.add(row * width), channels);
                    }
                }
                (Order::Rows(stride), Some(narrow)) => {
                    for row in 0..count {
                        let to = to.cast::<u16>().add(row * stride);
                        narrow(from.add(row * width), 1, channels, to, channels);
                    }
                }
                (Order::Lines(stride), None) => {
                    (p.transpose_out)(from, width, channels, count, to.cast(), stride);
                }
                (Order::Lines(stride), Some(narrow)) if convert.holds(channels, count) => {
                    (p.transpose_out)(from, width, channels, count, convert.at, convert.line);
                    for line in 0..channels {
                        let from = convert.at.add(line * convert.line);
                        narrow(from, 1, count, to.cast::<u16>().add(line * stride), count);
                    }
                }
                _ => {
                    for (row, token) in block.tokens.clone().enumerate() {
                        for c in 0..channels {
                            let x = from.add(row * width + c).read();
                            self.set(tile.batch, token, tile.channel + c, x);
                        }
                    }
                }
            }
        }
    }

    /// Writes an element.
    ///
    /// # Safety
    /// - The tensor is writable, has the element, and no other worker writes it.
    pub unsafe fn set(&self, batch: usize, token: usize, channel: usize, x: f32) {
        let to = self.address(batch, token, channel);
        // SAFETY: the tensor has the element, with the type of the branch (clause).
        unsafe {
            match self.dtype {
                DType::F32 => to.cast::<f32>().write(x),
                DType::F16 => to.cast::<f16>().write(f16::from_f32(x)),
                DType::Bf16 => to.cast::<bf16>().write(bf16::from_f32(x)),
            }
        }
    }
}

/// Past and present states of the channels of a call. Workers write disjoint present states.
#[derive(Clone, Copy, Debug)]
pub struct States {
    past: *const f32,
    present: *mut f32,
}

impl States {
    /// Creates the states of a call whose data have been checked.
    pub fn new(in_place: bool, past: Option<&[f32]>, present: Option<&mut [f32]>) -> States {
        let present = present.map_or(std::ptr::null_mut(), <[f32]>::as_mut_ptr);
        let past = match past {
            _ if in_place => present.cast_const(),
            Some(past) => past.as_ptr(),
            None => std::ptr::null(),
        };
        States { past, present }
    }

    /// Copies the past states of `channels` channels from index `first` on, `[channel][n]`, to `[n][width]` at `to`.
    /// Fills columns beyond `channels` with zeros. Writes only zeros if there are no past states.
    ///
    /// # Safety
    /// - The call's states have these channels, with `n` values each; `channels ≤ width`.
    /// - `n · width` values are writable at `to`.
    /// - The instruction set of `p` is present.
    pub unsafe fn load(
        &self,
        p: &Primitives,
        first: usize,
        channels: usize,
        n: usize,
        width: usize,
        to: *mut f32,
    ) {
        // SAFETY: the states of the channels are readable, and `to` has room for them (clauses).
        unsafe {
            if self.past.is_null() {
                to.write_bytes(0, n * width);
            } else {
                columns_of_lines(p, self.past.wrapping_add(first * n), channels, n, width, to);
            }
        }
    }

    /// Writes the present states of `channels` channels from `[n][width]` at `from`, if the call outputs them.
    ///
    /// # Safety
    /// - The clauses of [`States::load`] hold for `from` instead of `to`: the `n · width` values are readable at
    ///   `from`. No other worker writes these states.
    pub unsafe fn store(
        &self,
        p: &Primitives,
        first: usize,
        channels: usize,
        n: usize,
        width: usize,
        from: *const f32,
    ) {
        if self.present.is_null() {
            return;
        }
        let to = self.present.wrapping_add(first * n);
        // SAFETY: the values are readable at `from`, and the states of the channels are writable (clauses).
        unsafe {
            if n.is_multiple_of(4) && n > 0 {
                (p.transpose_out)(from, width, channels, n, to, n);
                return;
            }
            for c in 0..channels {
                for i in 0..n {
                    to.add(c * n + i).write(from.add(i * width + c).read());
                }
            }
        }
    }

    /// Returns `true` if a call with `batch` sequences of `tokens` tokens writes neither outputs nor states. The number
    /// of channels does not change the result.
    pub fn leave_nothing(&self, batch: usize, tokens: usize) -> bool {
        batch == 0 || (tokens == 0 && self.present.is_null())
    }

    /// Returns the address of the past states of a channel; null if the call has no past states. A channel has `n`
    /// states.
    pub fn past(&self, channel: usize, n: usize) -> *const f32 {
        if self.past.is_null() { self.past } else { self.past.wrapping_add(channel * n) }
    }

    /// Returns the address of the present states of a channel; null if the call does not output present states. A
    /// channel has `n` states.
    pub fn present(&self, channel: usize, n: usize) -> *mut f32 {
        if self.present.is_null() { self.present } else { self.present.wrapping_add(channel * n) }
    }
}

/// Transposes `channels` consecutive lines of `n` values at `from` to `[n][width]` at `to`. Fills columns beyond
/// `channels` with zeros.
///
/// # Safety
/// - The lines are readable at `from`, and `n · width` values are writable at `to`; `channels ≤ width`.
/// - The instruction set of `p` is present.
pub unsafe fn columns_of_lines(
    p: &Primitives,
    from: *const f32,
    channels: usize,
    n: usize,
    width: usize,
    to: *mut f32,
) {
    // SAFETY: the lines are readable, and the columns are writable (clauses). The kernel transposes the lines only if
    // their length `n` is a multiple of four.
    unsafe {
        if n.is_multiple_of(4) && n > 0 {
            (p.transpose_in)(from, n, channels, n, n, width, 1.0, to);
            return;
        }
        for i in 0..n {
            for c in 0..width {
                let x = if c < channels { from.add(c * n + i).read() } else { 0.0 };
                to.add(i * width + c).write(x);
            }
        }
    }
}

/// Returns the tile with index `number` among the tiles of all sequences. Each sequence has `tiles` tiles. A tile has
/// at most `width` channels and does not cross the boundaries of groups, which have `group` channels each.
pub fn tile(number: usize, tiles: usize, channels: usize, group: usize, width: usize) -> ChannelTile {
    let (batch, number) = (number / tiles, number % tiles);
    let each = group.div_ceil(width);
    let first = number % each * width;
    let channel = number / each * group + first;
    ChannelTile { batch, channel, channels: width.min(group - first).min(channels - channel) }
}
