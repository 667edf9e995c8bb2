//! Runs a stream: transfers, computes and merges one chunk after another, and returns results at the end of each query
//! block.

use super::addends;
use super::call::{StreamCall, StreamKeys, StreamRows, StreamTimes};
use super::engine::{GpuStream, MARKS, Marks, merging};
use super::memory::Area;
use super::plan::KeysFrom;
use super::steps::{self, Step, Steps};
use crate::attention::cuda::marshal::{self, PartialStates, Sequences};
use crate::attention::stream::error::StreamError;
use crate::cuda::driver::{Entered, RawStream};
use crate::error::RunError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, Chunk, Lengths, Operand, Operands, Problem, Spec};
use elsa_core::view::{Layout, View};
use elsa_kernels::cuda::attention::{AttentionArgs, Pending, StreamArgs, merge_blocks};
use std::io;
use std::time::Duration;

/// Guard that waits for both streams when it is dropped, so that no copy still uses the caller's memory.
struct Settle<'a> {
    entered: &'a Entered<'a>,
    streams: [RawStream; 2],
}

impl Drop for Settle<'_> {
    fn drop(&mut self) {
        for stream in self.streams {
            if let Err(e) = stream.synchronize(self.entered) {
                log::debug!("while waiting for a GPU: {e}");
            }
        }
    }
}

/// A tensor in host or device memory whose tokens are used chunk by chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct InPlace {
    pub(super) view: View,
    pub(super) host: *const u8,
    pub(super) device: u64,
}

/// A run in progress.
pub(super) struct Run<'a, 'c, 'k> {
    pub(super) stream: &'a GpuStream,
    pub(super) entered: &'a Entered<'a>,
    pub(super) call: StreamCall<'c, 'k>,
    /// Tensors of keys and values; `None` if a function fills them.
    pub(super) tensors: Option<[InPlace; 2]>,
    pub(super) times: StreamTimes,
}

impl GpuStream {
    /// Streams all keys past all queries. `results` is called once for each block of resident queries, in order. The
    /// past keys come before the new keys. Present tensors are rejected, because the caller already has past and new
    /// keys; [`GpuStream::run_between`] writes present tensors.
    ///
    /// # Errors
    /// Returns an error if the data do not match the problem, if a function fails, if the device fails, or if the run
    /// was cancelled ([`Engine::cancel`](crate::Engine::cancel)). Even after an error, no pending work uses the
    /// caller's memory.
    pub fn run(&mut self, call: StreamCall<'_, '_>) -> Result<StreamTimes, StreamError> {
        let spec = self.plan.problem.spec();
        if spec.present_key.is_some() || spec.present_value.is_some() {
            let argument = if spec.present_key.is_some() { "present_k" } else { "present_v" };
            let allowed = "a stream between a source and a sink";
            return Err(StreamError::Unsupported { argument, allowed });
        }
        self.pass(call)
    }

    /// Runs like [`GpuStream::run`], for a problem whose present tensors are written elsewhere.
    pub(crate) fn pass(&mut self, call: StreamCall<'_, '_>) -> Result<StreamTimes, StreamError> {
        call.lengths.check(&self.plan.problem)?;
        if call.lengths.chunk.is_some() {
            return Err(ArgumentError::Conflict { argument: "chunk", other: "a stream" }.into());
        }
        let adds = addends::BOXES.into_iter().find(|operand| self.plan.problem.memory(*operand).is_some());
        if let (Some(operand), None) = (adds, &call.addends) {
            return Err(ArgumentError::Needs { argument: operand.argument(), other: "its data" }.into());
        }
        let (units, _) = self.blocks_and_steps(&call.lengths, 0);
        if call.from > units {
            return Err(StreamError::Unit { found: call.from, units });
        }
        let context = self.context.clone();
        let entered = context.enter()?;
        let tensors = self.tensors(&entered, &call.keys)?;
        let settle = Settle { entered: &entered, streams: [self.compute.raw(), self.copy.raw()] };
        let mut run = Run { stream: self, entered: &entered, call, tensors, times: StreamTimes::default() };
        let done = run.all();
        let times = run.times;
        drop(settle);
        done.map(|()| times)
    }

    /// Returns the number of query blocks of a call, and the number of steps from block `from` on.
    pub(crate) fn blocks_and_steps(&self, lengths: &Lengths<'_>, from: usize) -> (usize, usize) {
        let division = self.plan.options.division;
        let steps = || Steps::new(&self.plan.problem, lengths, division.rows, division.keys);
        let mut rest = steps();
        rest.skip_blocks(from);
        (steps().filter(|step| step.last).count(), rest.count())
    }

    /// Returns the page-locked memory for keys and for values, which the caller may use until the next run.
    pub(crate) fn key_room(&mut self) -> [&mut [u8]; 2] {
        [Area::Key(0), Area::Value(0)].map(|area| match self.memory.on_host(area) {
            // SAFETY: *room*: the areas do not overlap, and all their bytes were written when they were allocated. No
            // run is in progress, because a run waits for its work.
            Some((data, len)) => unsafe { std::slice::from_raw_parts_mut(data, len) },
            None => &mut [],
        })
    }

    /// Returns the tensors of keys and values; `None` if a function fills them. Checks that the keys come from the
    /// source that the stream was created for, and that the device can use their memory.
    fn tensors(
        &self,
        entered: &Entered<'_>,
        keys: &StreamKeys<'_>,
    ) -> Result<Option<[InPlace; 2]>, StreamError> {
        let from = self.plan.options.keys;
        let [found, allowed] = [
            match keys {
                StreamKeys::Function(_) => KeysFrom::Function,
                StreamKeys::Host { .. } => KeysFrom::Host,
                StreamKeys::Device(_) => KeysFrom::Device,
            },
            from,
        ];
        if found != allowed {
            return Err(StreamError::Keys { found: place_name(found), allowed: place_name(allowed) });
        }
        let of = |operand: Operand| {
            let memory = self.plan.problem.memory(operand);
            memory.and_then(|memory| Some((memory.view?, memory.bytes(), operand.argument())))
        };
        let (Some(key), Some(value)) = (of(Operand::Key), of(Operand::Value)) else { return Ok(None) };
        let size = self.plan.problem.spec().dtype.size();
        Ok(match keys {
            StreamKeys::Function(_) => None,
            StreamKeys::Host { key: k, value: v } => {
                let place = |(view, needed, argument): (View, usize, _), data: &[u8]| {
                    if data.len() < needed {
                        let (found, needed) = (data.len() / size, needed / size);
                        return Err(ArgumentError::Short { argument, found, needed }.into());
                    }
                    let mut device = 0;
                    if self.plan.gpu.profile().integrated && needed > 0 {
                        let address = data.as_ptr().expose_provenance() as u64;
                        device = entered.mapped(address, needed).ok_or(StreamError::Keys {
                            found: "ordinary host memory",
                            allowed: "page-locked memory, on an integrated GPU",
                        })?;
                    }
                    Ok::<InPlace, StreamError>(InPlace { view, host: data.as_ptr(), device })
                };
                Some([place(key, k)?, place(value, v)?])
            }
            StreamKeys::Device(keys) => {
                let place = |(view, needed, _): (View, usize, &str), address: u64| {
                    let usable = needed == 0
                        || (address.is_multiple_of(size as u64)
                            && entered.usable_at(address, needed).is_ok());
                    if !usable {
                        return Err(StreamError::Keys {
                            found: "an address that the device cannot use, or too few bytes",
                            allowed: "aligned memory of the device and its context for the whole view",
                        });
                    }
                    let device =
                        if needed == 0 { 0 } else { entered.usable_at(address, needed).unwrap_or(0) };
                    Ok(InPlace { view, host: std::ptr::null(), device })
                };
                Some([place(key, keys.key)?, place(value, keys.value)?])
            }
        })
    }
}

const fn place_name(keys: KeysFrom) -> &'static str {
    match keys {
        KeysFrom::Function => "a function",
        KeysFrom::Host => "host memory",
        KeysFrom::Device => "device memory",
    }
}

pub(super) fn io_error(what: &'static str) -> impl Fn(io::Error) -> StreamError {
    move |error| StreamError::Io { what, reason: error.to_string() }
}

/// Returns a dense view of `tokens` tokens of `batch` sequences. Heads and tokens have the order of `view`.
fn packed(view: &View, batch: usize, tokens: usize) -> Result<View, ArgumentError> {
    let [_, heads, _, dim] = view.shape();
    let [_, by_head, ..] = view.strides();
    match heads == 1 || by_head == dim {
        true => View::dense("k", Layout::Bnhd, &[batch, tokens, heads, dim], None),
        false => View::dense("k", Layout::Bhnd, &[batch, heads, tokens, dim], None),
    }
}

impl Run<'_, '_, '_> {
    fn all(&mut self) -> Result<(), StreamError> {
        let stream = self.stream;
        let crew = stream.engine.pool().begin();
        let lengths = self.call.lengths;
        let division = stream.plan.options.division;
        let mut steps = Steps::new(&stream.plan.problem, &lengths, division.rows, division.keys);
        steps.skip_blocks(self.call.from);
        stream.start.record(self.entered, stream.compute.raw())?;
        let mut number = 0;
        let mut step = steps.next();
        if let Some(step) = &step {
            self.bring_table()?;
            self.bring(0, step)?;
        }
        while let Some(present) = step {
            if crew.is_cancelled() {
                return Err(RunError::Cancelled.into());
            }
            self.compute(number, &present)?;
            step = steps.next();
            if let Some(next) = &step {
                self.bring(number + 1, next)?;
            }
            if present.last && !crew.is_cancelled() {
                self.hand_out(&present)?;
            }
            number += 1;
        }
        if crew.is_cancelled() {
            return Err(RunError::Cancelled.into());
        }
        for number in number.saturating_sub(2)..number {
            self.read_times(number)?;
        }
        Ok(())
    }

    pub(super) fn marks(&self, number: usize) -> &Marks {
        &self.stream.marks[number % MARKS]
    }

    /// Waits for step `number` to finish, and adds its times to the times of the run.
    pub(super) fn read_times(&mut self, number: usize) -> Result<(), StreamError> {
        let (entered, marks) = (self.entered, &self.stream.marks[number % MARKS]);
        let [begin, end] = &marks.work;
        end.synchronize(entered)?;
        let before = match number.checked_sub(1) {
            Some(before) => &self.marks(before).work[1],
            None => &self.stream.start,
        };
        let wait = f64::from(begin.since(entered, before)?);
        let compute = f64::from(end.since(entered, begin)?);
        let copy = f64::from(marks.copy[1].since(entered, &marks.copy[0])?);
        let times = &mut self.times;
        times.wait_ms += wait;
        times.compute_ms += compute;
        times.copy_ms += copy;
        times.total_ms += wait + compute;
        times.chunks += 1;
        Ok(())
    }

    /// Returns the positions of a step's queries and keys among all queries and keys. Past keys count as additional
    /// queries before the first one, so a diagonal that starts at the first key moves by the length of the past.
    pub(super) fn lengths(&self, step: &Step) -> Lengths<'_> {
        let past = self.stream.plan.problem.past();
        let [queries, keys] = step.group.len;
        let chunk = Chunk {
            key_offset: step.keys.start,
            key_total: keys,
            query_offset: step.tokens.start + past,
            query_total: queries + past,
        };
        Lengths { keys: self.call.lengths.keys, chunk: Some(chunk), ..Lengths::default() }
    }

    /// Returns the views through which the kernels read the keys and the values of a step, and the addresses of the
    /// keys and the values.
    pub(super) fn chunk(&self, number: usize, step: &Step) -> Result<[(View, u64); 2], StreamError> {
        let (stream, spec) = (self.stream, self.stream.plan.problem.spec());
        let areas = [Area::Key(number % 2), Area::Value(number % 2)];
        let count = step.batch().len();
        let mut chunk = [(spec.key, 0), (spec.value, 0)];
        for (which, (view, address)) in chunk.iter_mut().enumerate() {
            let in_place = self.tensors.as_ref().map(|tensors| tensors[which]);
            let [_, heads, _, dim] = view.shape();
            match in_place {
                Some(tensor) if tensor.device != 0 => {
                    let steps = view.steps();
                    let first = step.group.batch[0] * steps[0] + step.key_tokens().start * steps[2];
                    let offset = first * spec.dtype.size();
                    *view = View::new("k", [count, heads, step.keys.len(), dim], view.strides())?;
                    *address = tensor.device + offset as u64;
                }
                Some(_) => {
                    *view = packed(view, count, step.keys.len())?;
                    *address = stream.memory.on_device(areas[which]);
                }
                None => {
                    *view = View::dense("k", Layout::Bhnd, &[count, heads, step.keys.len(), dim], None)?;
                    *address = stream.memory.on_device(areas[which]);
                }
            }
        }
        Ok(chunk)
    }

    /// Returns the problem of a step: resident queries and a chunk of keys.
    pub(super) fn problem(&self, step: &Step, key: View, value: View) -> Result<Problem, ArgumentError> {
        let problem = &self.stream.plan.problem;
        let spec = problem.spec();
        let rows = |dim| {
            let shape = [step.batch().len(), problem.heads(), step.tokens.len(), dim];
            View::dense("q", Layout::Bhnd, &shape, None)
        };
        let (query, output) = (rows(problem.head_dim())?, rows(problem.value_dim())?);
        let mask = addends::view(problem, Operand::Mask, step)?;
        let bias = match addends::view(problem, Operand::Bias, step)? {
            Some(view) => Some(BiasView::Dense(view)),
            None => spec.bias,
        };
        let plain = Spec::new(spec.dtype, query, key, value, output);
        let Spec { scale, causal, window, softcap, windows, key_lengths, .. } = *spec;
        plain
            .scale(scale)
            .causal(causal)
            .window(window)
            .softcap(softcap)
            .mask(mask)
            .bias(bias)
            .windows(windows)
            .key_lengths(key_lengths)
            .check()
    }

    /// Enqueues the products of a step, and the merge of the resulting states. The products wait until the step's keys
    /// have been copied.
    fn compute(&mut self, number: usize, step: &Step) -> Result<(), StreamError> {
        if step.first {
            self.bring_queries(step)?;
        }
        let (stream, entered) = (self.stream, self.entered);
        let [(key, key_at), (value, value_at)] = self.chunk(number, step)?;
        let problem = self.problem(step, key, value)?;
        let lengths = self.lengths(step);
        let memory = &stream.memory;
        let at = Operands::from_fn(|operand| match operand {
            Operand::Query => memory.on_device(Area::Query),
            Operand::Key => key_at,
            Operand::Value => value_at,
            Operand::Output => memory.on_device(Area::Output),
            Operand::LogSumExp => memory.on_device(Area::Lse),
            Operand::StateReference => memory.on_device(Area::Reference),
            Operand::StateSum => memory.on_device(Area::Sum),
            Operand::StateWeighted => memory.on_device(Area::Weighted),
            Operand::Mask | Operand::Bias | Operand::BiasIndex => {
                memory.on_device(addends::area(&stream.plan.problem, operand, number % 2))
            }
            _ => 0,
        });
        let partials = PartialStates {
            ms: memory.on_device(Area::PartialMs),
            w: memory.on_device(Area::PartialW),
            d: 0,
        };
        let shared = marshal::sequence(&problem.sequence(&lengths, 0));
        let sequences = Sequences {
            table: if stream.plan.choice.sequences > 0 {
                memory.on_device(Area::Table(number % 2))
            } else {
                0
            },
            shared,
            longest: step.tokens.len(),
            most_keys: step.keys.len(),
        };
        let plan = stream.plan.for_keys(step.keys.len(), problem.rows());
        let call = marshal::attention(&plan, &problem, &at, partials, sequences, false);
        let chunks = problem_chunks(&stream.plan.problem, stream.plan.options.division.keys);
        let pending = Pending {
            ms: memory.on_device(Area::PendingMs),
            w: memory.on_device(Area::PendingW),
            slots: steps::slots(chunks) as i32,
            joins: step.joins as i32,
            into: step.into as i32,
            more: i32::from(!step.last),
        };
        let marks = self.marks(number);
        let compute = stream.compute.raw();
        marks.copy[1].precede(entered, compute)?;
        marks.work[0].record(entered, compute)?;
        self.launch(&problem, &plan.choice, call, pending)?;
        marks.work[1].record(entered, compute)?;
        Ok(())
    }

    fn launch(
        &self,
        problem: &Problem,
        choice: &elsa_core::attention::plan::GpuChoice,
        call: AttentionArgs,
        pending: Pending,
    ) -> Result<(), StreamError> {
        let (stream, entered) = (self.stream, self.entered);
        let compute = stream.compute.raw();
        let heads = problem.heads() / choice.heads_at_once.max(1);
        let blocks = problem.sequences() * heads * choice.splits * call.row_blocks.max(0) as usize;
        let threads = choice.kernel.resources.threads as u32;
        // SAFETY: the kernel takes an `AttentionArgs`. *room*: areas have room for the largest chunk and the largest
        // block, and keys used in place have all bytes of their views. *alive*: the memory belongs to the stream or to
        // the call, and runs wait for their kernels.
        unsafe { compute.launch(entered, &stream.attention, [blocks as u32, threads, 0], &call)? };
        let (merge, states) = merging()?;
        let blocks = merge_blocks(states, problem.rows(), choice.splits, choice.partial_dim);
        let parameter = StreamArgs { call, pending };
        let threads = merge.resources().threads as u32;
        // SAFETY: the kernel takes a `StreamArgs`; *room* and *alive* as in the launch above.
        unsafe { compute.launch(entered, &stream.merge, [blocks as u32, threads, 0], &parameter)? };
        Ok(())
    }

    /// Waits for the results of a block and passes them to the caller's function.
    fn hand_out(&mut self, step: &Step) -> Result<(), StreamError> {
        let (stream, entered) = (self.stream, self.entered);
        let (problem, memory) = (&stream.plan.problem, &stream.memory);
        let rows = step.batch().len() * problem.heads() * step.tokens.len();
        let (dv, size) = (problem.value_dim(), problem.spec().dtype.size());
        let areas = [
            (Area::Output, rows * dv * size),
            (Area::Lse, rows * 4),
            (Area::Reference, rows * 4),
            (Area::Sum, rows * 4),
            (Area::Weighted, rows * dv * 4),
        ];
        for (area, bytes) in areas {
            if let (true, Some((to, _))) = (memory.is_copied(area), memory.on_host(area)) {
                // SAFETY: *room*: both areas have at least `bytes` bytes. *alive*: the memory belongs to the stream,
                // and runs wait for copies.
                unsafe { stream.compute.raw().copy_out(entered, to, memory.on_device(area), bytes)? };
            }
        }
        stream.done.record(entered, stream.compute.raw())?;
        stream.done.synchronize(entered)?;
        let bytes = |(area, bytes): (Area, usize)| {
            memory.on_host(area).filter(|(_, len)| bytes <= *len).map_or(&[][..], |(data, _)| {
                // SAFETY: *room*: all bytes of the area were written when it was allocated, and no pending work writes
                // them.
                unsafe { std::slice::from_raw_parts(data.cast_const(), bytes) }
            })
        };
        let all = areas.map(bytes);
        let floats = |which: usize| {
            let bytes: &[u8] = all[which];
            if bytes.is_empty() {
                return &[][..];
            }
            // SAFETY: *room*: the new slice covers no more bytes than `bytes`. Areas are aligned to 256 bytes, and
            // every bit pattern is a number.
            unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<f32>(), bytes.len() / 4) }
        };
        let rows = StreamRows {
            batch: step.batch(),
            tokens: step.queries(),
            output: all[0],
            lse: floats(1),
            m: floats(2),
            s: floats(3),
            w: floats(4),
            bytes: all,
        };
        (self.call.results)(&rows).map_err(io_error("results"))
    }
}

/// Returns the number of chunks into which a problem's keys are divided.
fn problem_chunks(problem: &Problem, keys: usize) -> usize {
    problem.keys().div_ceil(keys.max(1))
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
