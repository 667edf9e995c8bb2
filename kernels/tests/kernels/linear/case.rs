//! One head of linear attention: its data, its definition in f64, and its computation by a kernel.

use crate::noise;
use elsa_core::linear::Gates;
use elsa_kernels::linear::{Ahead, Columns, Head, Kernel, Segment, Strip, head_room, strip_room};

/// Arrangement of a state in strips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strips {
    /// Packed, with the widest strips possible.
    Packed,
    /// Packed, one vector wide.
    Narrow,
    /// Strips that are columns of the complete state, with a row stride larger than a strip's width.
    InPlace,
}

/// Location of the state before the first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In the memory that also receives the state after the segments.
    Here,
    /// In separate memory.
    Elsewhere,
    /// No state in memory: the segment starts with zeros.
    Nowhere,
}

/// A head with contiguous rows of `dim` and `value_dim` values.
#[derive(Clone, Debug)]
pub struct Case {
    pub dim: usize,
    pub value_dim: usize,
    pub tokens: usize,
    pub group: usize,
    pub per: Gates,
    pub delta: bool,
    /// Queries, `[tokens][group][dim]`.
    pub queries: Vec<f32>,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
    pub gates: Vec<f32>,
    pub betas: Vec<f32>,
    /// State before the first token, `[dim][value_dim]`.
    pub past: Vec<f32>,
    pub strips: Strips,
    pub start: Start,
}

/// Factor applied to the outputs.
pub const SCALE: f32 = 0.75;

impl Case {
    /// Creates a case with unit keys, gates from 0.8 to 1, and rates from 0 to 1.
    pub fn new([dim, value_dim]: [usize; 2], tokens: usize, group: usize, per: Gates, delta: bool) -> Case {
        let mut keys = noise(tokens * dim, 2);
        for key in keys.chunks_mut(dim) {
            let norm = key.iter().map(|x| x * x).sum::<f32>().sqrt();
            key.iter_mut().for_each(|x| *x /= norm);
        }
        let gates = tokens * if per == Gates::PerDim { dim } else { 1 };
        Case {
            dim,
            value_dim,
            tokens,
            group,
            per,
            delta,
            queries: noise(tokens * group * dim, 1),
            keys,
            values: noise(tokens * value_dim, 3),
            gates: noise(gates, 4).iter().map(|x| (0.9 + 0.1 * x).ln()).collect(),
            betas: noise(tokens, 5).iter().map(|x| 0.5 + 0.5 * x).collect(),
            past: noise(dim * value_dim, 6),
            strips: Strips::Packed,
            start: Start::Here,
        }
    }

    /// Computes the outputs `[tokens][group][value_dim]` and the last state from the definition. Each value comes with
    /// the sum of the magnitudes of its terms.
    pub fn reference(&self) -> (Vec<[f64; 2]>, Vec<[f64; 2]>) {
        let (d, n) = (self.dim, self.value_dim);
        let wide = |x: f32| f64::from(x);
        let mut state: Vec<[f64; 2]> = self.past.iter().map(|x| [wide(*x), wide(*x).abs()]).collect();
        let mut out = Vec::new();
        for t in 0..self.tokens {
            for (r, row) in state.chunks_mut(n).enumerate() {
                let log = match self.per {
                    Gates::None => continue,
                    Gates::PerHead => wide(self.gates[t]),
                    Gates::PerDim => wide(self.gates[t * d + r]),
                };
                let gate = log.exp();
                for s in row {
                    // A gate of −∞ clears by selection, whether or not the state is finite.
                    *s = if log == f64::NEG_INFINITY { [0.0; 2] } else { [s[0] * gate, s[1] * gate] };
                }
            }
            let key = &self.keys[t * d..][..d];
            for c in 0..n {
                let mut written = [wide(self.values[t * n + c]); 2];
                written[1] = written[1].abs();
                if self.delta {
                    let beta = wide(self.betas[t]);
                    let held: f64 = (0..d).map(|r| wide(key[r]) * state[r * n + c][0]).sum();
                    let size: f64 = (0..d).map(|r| (wide(key[r]) * state[r * n + c][0]).abs()).sum();
                    written = [beta * (written[0] - held), beta.abs() * (written[1] + size)];
                }
                for r in 0..d {
                    let s = &mut state[r * n + c];
                    *s = [s[0] + wide(key[r]) * written[0], s[1] + wide(key[r]).abs() * written[1]];
                }
            }
            for g in 0..self.group {
                let query = &self.queries[(t * self.group + g) * d..][..d];
                for c in 0..n {
                    let mut y = [0.0; 2];
                    for r in 0..d {
                        y[0] += wide(SCALE) * wide(query[r]) * state[r * n + c][0];
                        y[1] += wide(SCALE) * wide(query[r]).abs() * state[r * n + c][1];
                    }
                    out.push(y);
                }
            }
        }
        (out, state)
    }

    /// Computes the outputs and the last state with a kernel, in passes of `pass` and blocks of `block` tokens. Pads
    /// rows and strips, and removes the padding from the results. `reversed` stores the tokens from the last to the
    /// first. The output buffer initially contains ones. The kernel adds the outputs to them, and this function
    /// subtracts the ones.
    pub fn run(&self, kernel: &Kernel, pass: usize, block: usize, reversed: bool) -> (Vec<f32>, Vec<f32>) {
        let (lanes, wide) = (kernel.spec.lanes, kernel.spec.columns);
        let (dim, tokens, group) = (self.dim.next_multiple_of(4), self.tokens, self.group);
        let width = self.value_dim.next_multiple_of(lanes);
        let lay = |rows: &[f32], each: usize, from: usize, to: usize| {
            let mut laid = vec![0.0; tokens * each * to];
            for t in 0..tokens {
                let place = if reversed { tokens - 1 - t } else { t };
                for e in 0..each {
                    laid[(place * each + e) * to..][..from]
                        .copy_from_slice(&rows[(t * each + e) * from..][..from]);
                }
            }
            laid
        };
        let queries = lay(&self.queries, group, self.dim, dim);
        let keys = lay(&self.keys, 1, self.dim, dim);
        let values = lay(&self.values, 1, self.value_dim, width);
        let step = if self.per == Gates::PerDim { dim } else { 1 };
        let gates = match self.per {
            Gates::PerDim => lay(&self.gates, 1, self.dim, dim),
            _ => lay(&self.gates, 1, 1, 1),
        };
        let betas = lay(&self.betas, 1, 1, 1);
        let mut outputs = vec![1.0f32; tokens * group * width];
        // Each strip is described by its first column, width, offset and row stride; `widths` are the possible widths.
        let widths: &[usize] = match self.strips {
            Strips::Narrow => &[lanes],
            _ if self.delta => &[kernel.spec.delta_columns, wide, lanes],
            _ => &[wide, lanes],
        };
        let in_place = self.strips == Strips::InPlace;
        let row = width + 5;
        let mut strips = Vec::new();
        let mut c = 0;
        while c < width {
            let columns = widths.iter().copied().find(|w| width - c >= *w).unwrap_or(lanes);
            strips.push(if in_place { (c, columns, c, row) } else { (c, columns, c * dim, columns) });
            c += columns;
        }
        // Gaps between rows must not be written.
        let mut states =
            vec![if in_place { f32::NAN } else { 0.0 }; (dim - 1) * strips[0].3.max(width) + width];
        for (c, columns, at, stride) in &strips {
            for r in 0..dim {
                for x in 0..*columns {
                    let own = r < self.dim && c + x < self.value_dim;
                    let past = if own { self.past[r * self.value_dim + c + x] } else { 0.0 };
                    states[at + r * stride + x] = past;
                }
            }
        }
        // The destination is not read before it is written.
        let mut elsewhere = Vec::new();
        if self.start != Start::Here {
            elsewhere.clone_from(&states);
            states.fill(f32::NAN);
        }
        // Rooms have their exact size, so that AddressSanitizer detects accesses beyond their ends.
        let size = head_room(block.min(tokens), dim, group, self.per, self.delta, pass);
        let mut room = vec![f32::NAN; size];
        let mut strip_rooms = vec![f32::NAN; strip_room(pass, strips[0].1)];
        let sign = if reversed { -1 } else { 1 };
        let mut t = 0;
        while t < tokens {
            let at = if reversed { tokens - 1 - t } else { t };
            let head = Head {
                tokens: (block - t % block).min(tokens - t),
                dim,
                rows: dim,
                queries: if group > 0 { queries[at * group * dim..].as_ptr() } else { std::ptr::null() },
                query_stride: sign * (group * dim) as isize,
                group,
                group_stride: dim as isize,
                keys: keys[at * dim..].as_ptr(),
                key_stride: sign * dim as isize,
                gates: if self.per == Gates::None { std::ptr::null() } else { gates[at * step..].as_ptr() },
                gate_stride: sign * step as isize,
                per: self.per,
                betas: if self.delta { betas[at..].as_ptr() } else { std::ptr::null() },
                beta_stride: sign,
                scale: SCALE,
                pass,
            };
            let mut segment = Segment::EMPTY;
            // SAFETY: the kernel is present, the head has rows for every token, and the room has the required size.
            unsafe { (kernel.prepare)(&head, room.as_mut_ptr(), &mut segment) };
            assert!((1..=head.tokens).contains(&segment.tokens), "{}", segment.tokens);
            for &(c, width_of, place, stride) in &strips {
                let state = states[place..].as_mut_ptr();
                // The first segment finds the state at its start location, or none.
                let (from, from_stride) = match (self.start, t) {
                    (Start::Elsewhere, 0) => (elsewhere[place..].as_ptr(), stride),
                    (Start::Nowhere, 0) => (std::ptr::null(), 0),
                    _ => (state.cast_const(), stride),
                };
                let strip = Strip {
                    state,
                    width: width_of,
                    stride,
                    from,
                    from_stride,
                    room: strip_rooms.as_mut_ptr(),
                };
                let outputs = match group {
                    0 => std::ptr::null_mut(),
                    _ => outputs[at * group * width + c..].as_mut_ptr(),
                };
                let columns = Columns {
                    values: values[at * width + c..].as_ptr(),
                    value_stride: sign * width as isize,
                    outputs,
                    output_stride: sign * (group * width) as isize,
                    group_stride: width as isize,
                    add: true,
                    keep: true,
                    // The pointers are invalid, which is allowed for prefetching.
                    ahead: Ahead {
                        queries: std::ptr::dangling(),
                        query_stride: 1 << 20,
                        keys: std::ptr::dangling(),
                        key_stride: -(1 << 20),
                    },
                };
                // SAFETY: the kernel is present, strips have `dim` rows, and the columns have rows for every token.
                unsafe { (kernel.recur)(&strip, &segment, &columns) };
            }
            t += segment.tokens;
        }
        let mut out = Vec::new();
        for t in 0..tokens {
            let at = if reversed { tokens - 1 - t } else { t };
            for g in 0..group {
                out.extend(outputs[(at * group + g) * width..][..self.value_dim].iter().map(|y| y - 1.0));
            }
        }
        let mut last = vec![0.0; self.dim * self.value_dim];
        for (c, columns, at, stride) in &strips {
            for r in 0..self.dim {
                for x in (0..*columns).filter(|x| c + x < self.value_dim) {
                    last[r * self.value_dim + c + x] = states[at + r * stride + x];
                }
            }
        }
        if in_place {
            let between = states.chunks(row).flat_map(|row| row.iter().skip(width));
            assert!(between.into_iter().all(|x| x.is_nan()), "{} wrote between rows", kernel.spec.name);
        }
        (out, last)
    }

    /// Compares the results of a kernel with the definition. NaN must occur in the same elements of both.
    pub fn check(&self, kernel: &Kernel, pass: usize, block: usize, reversed: bool, what: &str) {
        let (out, last) = self.run(kernel, pass, block, reversed);
        let (want, state) = self.reference();
        // The kernel adds outputs to ones, which rounds them.
        for (got, want, floor, kind) in [(&out, &want, 1e-6, "output"), (&last, &state, 1e-30, "state")] {
            assert_eq!(got.len(), want.len());
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(*got) - want[0]).abs();
                let near = error <= 2e-6 * want[1] + floor || want[0].is_nan() && got.is_nan();
                assert!(
                    near,
                    "{} {what} {:?} delta {} pass {pass} block {block} {kind} {i}: {got} instead of {want:?}",
                    kernel.spec.name, self.per, self.delta
                );
            }
        }
    }
}
