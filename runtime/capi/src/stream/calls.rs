//! Streams: attention over tensors that callbacks supply and receive, within a memory budget.

use super::gpu::OnGpu;
use super::rows::{Reader, Writer, ended};
use crate::attention;
use crate::engine::ENGINES;
use crate::fault::{Fault, call};
use crate::growing::{Room, take, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::types::*;
use crate::{convert, text};
use elsa_core::attention::Problem;
use elsa_core::attention::plan::Part;
use elsa_runtime::{Backend, Engine, Fallback, StreamOptions, StreamPlan, StreamReport, UnitSizes};
use std::sync::Arc;

/// Stream behind a handle.
#[derive(Debug)]
enum Stream {
    Cpu {
        plan: Box<StreamPlan>,
        /// `true` if the engine has a GPU.
        fallback: bool,
    },
    Gpu(Box<OnGpu>),
}

impl Stream {
    /// Creates a stream that the CPU computes.
    fn on_cpu(engine: &Engine, problem: &Problem, options: &StreamOptions) -> Result<Stream, Fault> {
        let fallback = engine.backend() == Backend::Cuda;
        if fallback && engine.fallback() == Fallback::Fail {
            return Err(Fault::new(
                ELSA_STATUS_UNSUPPORTED,
                &"engine: a GPU, without device_budget, and ELSA_FALLBACK_FAIL; allowed: a device_budget, a back end of the CPU, or ELSA_FALLBACK_CPU",
            ));
        }
        Ok(Stream::Cpu { plan: Box::new(engine.stream(problem, options)?), fallback })
    }

    fn problem(&self) -> &Problem {
        match self {
            Stream::Cpu { plan, .. } => plan.problem(),
            Stream::Gpu(gpu) => gpu.problem(),
        }
    }
}

static STREAMS: Table<Stream> = Table::new("stream");

/// Creates a stream: attention within a memory budget, over tensors that callbacks supply and receive part by part, so
/// that keys and values may be larger than memory. Everything that depends on the shape is decided here. A budget that
/// is too small returns ELSA_STATUS_MEMORY, and the message gives the required bytes. Null options select the defaults,
/// with a budget of 0, which is always too small.
///
/// As many query rows as the budget allows stay in memory, while the keys that they may attend stream past in chunks.
/// Results are bit-identical to elsa_run on the CPU with the same block, for every budget, chunk and number of threads.
///
/// The CPU computes even if the engine has a GPU, unless the options have a device_budget; with ELSA_FALLBACK_FAIL such an
/// engine returns ELSA_STATUS_UNSUPPORTED. A problem that appends returns ELSA_STATUS_UNSUPPORTED too. The results of a GPU
/// have the bits of its runs in memory with the same keys per split. The memory account of the CPU starts with
/// the memory that the process uses when the stream is created. It does not include later allocations of the program or
/// its callbacks.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_stream_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    options: *const elsa_stream_options,
    stream: *mut elsa_stream,
) -> elsa_status {
    call(|| {
        aligned("stream", stream)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: the caller keeps the clause *read*.
        let problem = attention::convert::problem(&unsafe { take("problem", problem) }?)?;
        // SAFETY: the caller keeps the clause *read*.
        let given: elsa_stream_options = unsafe { take_or_default("options", options) }?;
        let options = super::convert::options(&given)?;
        let made = match given.device_budget {
            0 => Stream::on_cpu(&engine, &problem, &options)?,
            _ => Stream::Gpu(Box::new(OnGpu::new(&engine, &problem, &given, &options)?)),
        };
        let id = STREAMS.insert(Arc::new(made))?;
        // SAFETY: the caller keeps the clause *write*.
        unsafe { put(stream, elsa_stream { id }) };
        Ok(())
    })
}

/// Describes the choices of a stream and its memory account.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_stream_describe(
    stream: elsa_stream,
    info: *mut elsa_stream_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let stream = STREAMS.get(stream.id)?;
        let (plan, fallback) = match &*stream {
            Stream::Cpu { plan, fallback } => (plan, *fallback),
            Stream::Gpu(gpu) => {
                room.fill(gpu.info());
                return Ok(());
            }
        };
        let UnitSizes { sequences, heads, tiles, vectors, chunk } = plan.choice().sizes();
        let account = plan.account();
        room.fill(elsa_stream_info {
            size: size_of::<elsa_stream_info>(),
            backend: convert::backend_number(plan.backend()),
            fallback: u32::from(fallback),
            kernel: text::name(plan.kernel()),
            resident_rows: plan.resident_rows(),
            chunk_keys: plan.choice().chunk,
            units: plan.units().unwrap_or(0),
            host_bytes: account.host(),
            fixed_bytes: account.of(Part::Fixed),
            query_bytes: account.of(Part::Queries),
            key_bytes: account.of(Part::Keys),
            added_bytes: account.of(Part::Added),
            output_bytes: account.of(Part::Outputs),
            state_bytes: account.of(Part::States),
            resident_bytes: account.of(Part::Resident),
            workspace_bytes: account.of(Part::Workspace),
            device_bytes: 0,
            sizes: [sequences, heads, tiles, vectors, chunk],
        });
        Ok(())
    })
}

fn report_of(done: &StreamReport) -> elsa_stream_report {
    let times = &done.times;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    elsa_stream_report {
        units: done.units,
        finished: done.units,
        parts: times.parts,
        read_bytes: times.bytes,
        written_bytes: done.written,
        total_ms: ms(times.total),
        read_ms: ms(times.read),
        compute_ms: ms(times.compute),
        wait_ms: ms(times.wait),
        overlap: times.overlap(),
        ..elsa_stream_report::default()
    }
}

/// Runs a stream and waits. read fills the rows needed next while the previous ones are computed; write receives rows
/// of outputs as soon as they are final, unit by unit. All memory is allocated before the first chunk is computed. The
/// report may be null.
///
/// Threads: write and unit_finished are called by the thread that makes this call. read is called by a thread of the library, named
/// elsa-reader, with 256 KiB of stack, which ends before the call does; only the table of a bias is read by the
/// caller's thread, before the reader starts. A read and a write may therefore run at the same time, but a run never
/// has two reads or two writes at once. Reads follow the order of the chunks, at most two chunks ahead of the
/// computation. An input that several units need is read for each of them; every row of an output is written once. On a
/// GPU, the thread that makes this call calls all of them.
///
/// Callbacks may take any time, and may call any function of this library, including elsa_stream_destroy and other runs
/// of the same stream. They must return normally, without an exception, a longjmp or ending the thread, and preserve
/// the floating-point environment. They must not use data or rows after they return.
///
/// A callback that returns a non-zero value ends the run early. After a failed read, nothing else is read, and the data
/// read before it is still computed and written. After a failed write, nothing else is written, and at most two more
/// chunks are read, and the same holds for unit_finished. The call then returns ELSA_STATUS_CALLBACK, and the report holds the value, the operand and the
/// number of finished units. Another run of the same stream may resume after these units: see first_unit of
/// elsa_stream_data. Any other failure leaves the report unchanged. Invalid data is detected before any callback is
/// called, except an entry of bias_index outside the table, which is detected when it has been read.
///
/// Several runs of a stream may take place at the same time if the callbacks allow it; each needs all bytes of the
/// memory account except fixed_bytes. On a GPU, a stream has one run at a time, and a concurrent second run returns
/// ELSA_STATUS_BUSY.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). The callbacks may
/// be called as described above and obey these rules (*callbacks*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_stream_run(
    stream: elsa_stream,
    data: *const elsa_stream_data,
    report: *mut elsa_stream_report,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, data) = unsafe { (Room::optional("report", report)?, take("data", data)?) };
        let stream = STREAMS.get(stream.id)?;
        let mut source = Reader::new(&data).ok_or_else(|| Fault::null("read"))?;
        let mut sink = Writer::new(&data).ok_or_else(|| Fault::null("write"))?;
        let lists = [data.key_lengths, data.cu_seqlens_q, data.cu_seqlens_k];
        // SAFETY: the caller keeps the clause *read*.
        let lengths = unsafe { attention::tensors::lengths(stream.problem(), lists) }?;
        let (done, failed) = match &*stream {
            Stream::Gpu(gpu) => gpu.run(&lengths, &mut source, &mut sink, data.first_unit)?,
            Stream::Cpu { plan, .. } => match plan.run(&lengths, &mut source, &mut sink, data.first_unit) {
                Ok(done) => (report_of(&done), None),
                Err(e) => {
                    let Some((operand, code)) = ended(&e) else { return Err(e.into()) };
                    let (units, finished) = (plan.units_for(&lengths)?, sink.finished);
                    let done = elsa_stream_report { code, operand, units, finished, ..Default::default() };
                    (done, Some(Fault::new(ELSA_STATUS_CALLBACK, &e)))
                }
            },
        };
        if let Some(room) = room {
            room.fill(done);
        }
        failed.map_or(Ok(()), Err)
    })
}

/// Destroys the handle of a stream. Runs in progress complete.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_stream_destroy(stream: elsa_stream) -> elsa_status {
    call(|| STREAMS.remove(stream.id).map(drop))
}
