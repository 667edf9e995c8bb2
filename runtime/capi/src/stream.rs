//! Streams: attention over tensors that callbacks read and take, within a budget.

use crate::engine::ENGINES;
use crate::fault::{Fault, call};
use crate::growing::{Room, take, take_or_default};
use crate::handles::Table;
use crate::pointer::{aligned, put};
use crate::rows::{Reader, Writer, ended};
use crate::types::*;
use crate::{convert, tensors, text};
use elsa_core::attention::plan::Part;
use elsa_runtime::{Backend, Fallback, StreamPlan, StreamReport};

/// A stream, and whether the CPU computes it in place of a GPU.
#[derive(Debug)]
struct Stream {
    plan: StreamPlan,
    fallback: bool,
}

static STREAMS: Table<Stream> = Table::new("stream");

/// Decides everything that depends on the shape, within a budget of memory: attention whose tensors are read and taken by
/// callbacks, part by part, so that keys and values may be larger than memory. Null options are the defaults, which have
/// no budget; a budget that is too small is ELSA_STATUS_MEMORY, and the message names the bytes needed.
///
/// Query rows stay in memory, as many as the budget allows, while the keys that they may attend pass in chunks. The bits
/// are those of elsa_run on the CPU with the same block, for every budget, chunk and number of threads.
///
/// The CPU computes, also where the engine has a GPU, unless its policy is ELSA_FALLBACK_FAIL: that is
/// ELSA_STATUS_UNSUPPORTED. So is a problem that appends. The account begins with what the process has when the stream is
/// created: what the program allocates afterwards, its callbacks included, comes on top.
///
/// # Safety
/// *read*, *write*.
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
        // SAFETY: *read*.
        let problem = convert::problem(&unsafe { take("problem", problem) }?)?;
        // SAFETY: *read*.
        let options = unsafe { take_or_default("options", options) }?;
        let options = convert::stream_options(&options)?;
        let fallback = engine.backend() == Backend::Cuda;
        if fallback && engine.fallback() == Fallback::Fail {
            return Err(Fault::new(
                ELSA_STATUS_UNSUPPORTED,
                &"engine: a GPU, which does not compute streams, and ELSA_FALLBACK_FAIL; allowed: a back end of the CPU, or ELSA_FALLBACK_CPU",
            ));
        }
        let id = STREAMS.insert(Stream { plan: engine.stream(&problem, &options)?, fallback })?;
        // SAFETY: *write*.
        unsafe { put(stream, elsa_stream { id }) };
        Ok(())
    })
}

/// Writes what a stream has chosen, and the account of its bytes.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_stream_describe(
    stream: elsa_stream,
    info: *mut elsa_stream_info,
) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::new("info", info) }?;
        let stream = STREAMS.get(stream.id)?;
        let (plan, account) = (&stream.plan, stream.plan.account());
        room.fill(elsa_stream_info {
            size: size_of::<elsa_stream_info>(),
            backend: convert::backend_number(plan.backend()),
            fallback: u32::from(stream.fallback),
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

/// Runs a stream: has read fill the rows that are needed next while those before them are computed, hands the rows of
/// outputs to write as soon as they are final, unit by unit, and waits. All memory is allocated before the first chunk is
/// computed. The report may be null.
///
/// Who calls back: write is called by the thread that makes this call, read by a thread of the library's with 256 KiB of
/// stack, named elsa-reader, which ends before the call does; the table of a bias alone is read by the caller's thread,
/// before there is another one. So a read and a write may run at the same time, and neither of them twice at once in a run.
/// Reads come in the order of the chunks, at most two chunks ahead of what is computed. An input that several units need is read
/// for each of them; every row of an output is written once.
///
/// What a callback may do: call any function of this library, elsa_stream_destroy of the stream and other runs of it
/// included; take any time; write into the rows that it is to fill. It returns: no exception, longjmp or end of a thread
/// leaves it, and it keeps the floating-point environment. It does not use data or rows afterwards.
///
/// How a run ends early: by a callback that returns another number than zero. After a read nothing else is read, and what
/// was read before it is computed and written. After a write nothing else is written, and at most two chunks more are read.
/// The call then returns ELSA_STATUS_CALLBACK, and the report has the number, the operand, and the units that are finished,
/// at which another run of the same stream may go on by first_unit. Every other failure leaves the report alone. Bad data
/// calls nothing back, but for an entry of bias_index outside the table, which is found when it has been read.
///
/// Several runs of one stream may take place at the same time, with callbacks that allow it; each takes the bytes of the
/// account but for the fixed ones.
///
/// # Safety
/// *read*, *write*, *callbacks*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_stream_run(
    stream: elsa_stream,
    data: *const elsa_stream_data,
    report: *mut elsa_stream_report,
) -> elsa_status {
    call(|| {
        // SAFETY: *read*, *write*.
        let (room, data) = unsafe { (Room::optional("report", report)?, take("data", data)?) };
        let stream = STREAMS.get(stream.id)?;
        let mut source = Reader::new(&data).ok_or_else(|| Fault::null("read"))?;
        let mut sink = Writer::new(&data).ok_or_else(|| Fault::null("write"))?;
        let plan = &stream.plan;
        let lists = [data.key_lengths, data.cu_seqlens_q, data.cu_seqlens_k];
        // SAFETY: *read*.
        let lengths = unsafe { tensors::lengths(plan.problem(), lists) }?;
        let (done, failed) = match plan.run(&lengths, &mut source, &mut sink, data.first_unit) {
            Ok(done) => (report_of(&done), None),
            Err(e) => {
                let Some((operand, code)) = ended(&e) else { return Err(e.into()) };
                let (units, finished) = (plan.units_for(&lengths)?, sink.finished);
                let done = elsa_stream_report { code, operand, units, finished, ..Default::default() };
                (done, Some(Fault::new(ELSA_STATUS_CALLBACK, &e)))
            }
        };
        if let Some(room) = room {
            room.fill(done);
        }
        failed.map_or(Ok(()), Err)
    })
}

/// Ends the handle of a stream. Runs that are under way complete.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_stream_destroy(stream: elsa_stream) -> elsa_status {
    call(|| STREAMS.remove(stream.id).map(drop))
}
