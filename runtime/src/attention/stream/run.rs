//! Executes a streamed run: moves the chunks of all units through two buffers, and writes outputs unit by unit.

use super::certificate::StreamCertificate;
use super::error::StreamError;
use super::memory::StreamMemory;
use super::plan::StreamPlan;
use super::present::{self, PRESENTS, chunks, copies};
use super::regions::{Part, Regions, sequences};
use super::tensors::{table_of, tensors_of};
use super::units::{Units, keys_of};
use crate::attention::cpu::resident::Resident;
use crate::backend::Backend;
use crate::cpu::memory::Bytes;
use crate::cpu::pool::Crew;
use crate::stream::{Excerpt, RowSink, RowSource, Times, prefetch};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, Lengths, MaskKind, Operand, Problem};
use std::ops::Range;

/// Number of bytes of a mask or a bias that are measured at once. This number of bytes fits in a cache.
const MEASURED_AT_ONCE: usize = 256 << 10;

/// Report of a streamed run.
#[derive(Clone, Debug)]
pub struct StreamReport {
    /// Times per activity, and the number of bytes read.
    pub times: Times,
    /// Number of bytes written.
    pub written: u64,
    /// Number of units, including those that an earlier run had finished.
    pub units: usize,
    /// Measurements of the run's tensors; `None` if the plan does not certify
    /// ([`PlanOptions::certify`](crate::PlanOptions::certify)).
    pub certificate: Option<StreamCertificate>,
}

/// A step of a run.
#[derive(Clone, Debug)]
enum Step {
    /// Copies a chunk of keys and values, for one pair of a batch index and a key head, to the present tensors.
    Copy { number: usize, keys: Range<usize>, ends: bool },
    /// Computes the attention of a unit's rows over a chunk of keys.
    Pass(Part),
}

impl StreamPlan {
    /// Iterates over the steps of a run from unit `from` on.
    fn steps<'a>(&'a self, lengths: Lengths<'a>, from: usize) -> impl Iterator<Item = Step> + Send + 'a {
        let (problem, choice) = (&self.problem, &self.choice);
        let copied = copies(problem);
        let copy = (from..copied.max(from)).flat_map(move |number| {
            chunks(0..problem.keys(), choice.chunk).map(move |(keys, _, ends)| Step::Copy {
                number,
                keys,
                ends,
            })
        });
        // Sequences without queries have no unit. There may be very many such sequences, so the iterator stops after the
        // last unit.
        let units = Units::new(problem, choice, lengths).take(Units::number(problem, choice, &lengths));
        let units = units.filter(move |unit| copied + unit.number >= from);
        let passes = units.flat_map(move |unit| {
            let keys = keys_of(&unit, problem, &lengths, choice.cpu.segment);
            chunks(keys, choice.chunk)
                .map(move |(keys, begins, ends)| Step::Pass(Part { unit: unit.clone(), keys, begins, ends }))
        });
        copy.chain(passes)
    }

    /// Returns the number of units, and the number of key chunks that are processed from unit `from` on, for calls with
    /// these lengths. The sink is notified of every finished unit. If there are present tensors, the first units copy
    /// keys and values to them.
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem.
    pub fn count(&self, lengths: &Lengths<'_>, from: usize) -> Result<(usize, usize), StreamError> {
        Ok((self.units_for(lengths)?, self.steps(*lengths, from).count()))
    }

    /// Returns the number of units for calls with these lengths.
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem.
    pub fn units_for(&self, lengths: &Lengths<'_>) -> Result<usize, ArgumentError> {
        self.check(lengths)?;
        Ok(copies(&self.problem).saturating_add(Units::number(&self.problem, &self.choice, lengths)))
    }

    /// Returns the number of units, which does not depend on key lengths. Returns `None` if the problem is packed: the
    /// query lengths are then arguments of the call ([`StreamPlan::units_for`]).
    #[must_use]
    pub fn units(&self) -> Option<usize> {
        let (problem, lengths) = (&self.problem, Lengths::default());
        let number = || Units::number(problem, &self.choice, &lengths);
        problem.spec().packed.is_none().then(|| copies(problem).saturating_add(number()))
    }

    fn check(&self, lengths: &Lengths<'_>) -> Result<(), ArgumentError> {
        if lengths.chunk.is_some() {
            return Err(ArgumentError::Conflict { argument: "chunk", other: "host_budget" });
        }
        lengths.check(&self.problem)
    }

    /// Computes the outputs of unit `from` and all later units: reads tensors chunk by chunk from `source`, in a
    /// separate thread, and passes outputs to `sink`, unit by unit. To resume a run, set `from` to the first unit that
    /// the sink has not recorded as finished. The bits of the outputs equal those of an in-memory run. This holds for
    /// every budget, every chunk length and every number of threads.
    ///
    /// Everything is allocated before the first chunk is computed. If memory is refused, the run fails. In this case,
    /// [`Engine::fit_stream`](crate::Engine::fit_stream) instead makes a smaller plan.
    ///
    /// If the plan certifies, queries, keys, values and outputs are measured as they are streamed. Masks and biases are
    /// read one additional time, because the certificate of an in-memory run also covers the parts of a mask or a bias
    /// that belong to chunks that no row attends. These chunks are not streamed.
    ///
    /// ```
    /// use elsa_core::{attention::{Lengths, Operand, Spec}, dtype::DType, view::{Layout, View}};
    /// use elsa_runtime::{Engine, EngineOptions, StreamOptions};
    /// use std::io;
    ///
    /// let (queries, keys, dim) = (3, 5000, 8);
    /// let of = |n| View::dense("x", Layout::Bhnd, &[2, n, dim], None);
    /// let problem = Spec::new(DType::F32, of(queries)?, of(keys)?, of(keys)?, of(queries)?).check()?;
    /// let engine = Engine::new(&EngineOptions::default())?;
    /// let plan = engine.stream(&problem, &StreamOptions::new(256 << 20))?;
    /// assert!(plan.account().host() <= 256 << 20);
    ///
    /// // Every element of the inputs is 1, so every element of the output is 1.
    /// let mut source = |_: Operand, _offset: u64, to: &mut [u8]| {
    ///     to.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&1f32.to_le_bytes()));
    ///     io::Result::Ok(())
    /// };
    /// let mut y = vec![0u8; 2 * queries * dim * 4];
    /// let mut sink = |_: Operand, offset: u64, from: &[u8]| {
    ///     y[offset as usize..][..from.len()].copy_from_slice(from);
    ///     io::Result::Ok(())
    /// };
    /// let report = plan.run(&Lengths::default(), &mut source, &mut sink, 0)?;
    /// assert_eq!(report.times.bytes, 4 * 2 * (queries + 2 * keys) as u64 * dim as u64);
    /// let is_one = |x: &[u8]| (f32::from_le_bytes([x[0], x[1], x[2], x[3]]) - 1.0).abs() < 1e-6;
    /// assert!(y.chunks_exact(4).all(is_one));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem, if memory is not available, if the source or the sink
    /// fails, if a worker panicked, or if the run was cancelled ([`Engine::cancel`](crate::Engine::cancel)). The
    /// contents of the sink are then incomplete. Also returns an error if the plan certifies and `from` is not 0.
    pub fn run(
        &self,
        lengths: &Lengths<'_>,
        source: &mut (impl RowSource<Operand> + Send),
        sink: &mut impl RowSink<Operand>,
        from: usize,
    ) -> Result<StreamReport, StreamError> {
        self.run_in(&mut StreamMemory::new(self)?, lengths, source, sink, from)
    }

    /// Runs like [`StreamPlan::run`], in `memory`, which was allocated for this plan.
    pub(super) fn run_in(
        &self,
        memory: &mut StreamMemory,
        lengths: &Lengths<'_>,
        source: &mut (impl RowSource<Operand> + Send),
        sink: &mut impl RowSink<Operand>,
        from: usize,
    ) -> Result<StreamReport, StreamError> {
        let units = self.units_for(lengths)?;
        if from > units {
            return Err(StreamError::Unit { found: from, units });
        }
        let certify = self.choice.cpu.certify;
        if certify && from > 0 {
            return Err(StreamError::Unmeasured { found: from });
        }
        let (problem, choice) = (&self.problem, &self.choice);
        let crew = self.engine.pool().begin();
        let regions = Regions::new(problem, choice, self.written)?;
        let StreamMemory { resident, buffers, record } = memory;
        let table = choice.table_bytes(problem);
        if table > 0 {
            let to = resident.table.as_mut_slice();
            let rows = table_of(problem)?;
            source.read_rows(Operand::Bias, &rows, to).map_err(|e| StreamError::read(Operand::Bias, e))?;
        }
        let mut added = 0;
        if certify && units > copies(problem) {
            if table > 0 {
                resident.measure(&self.cpu, problem, Operand::Bias, None);
            }
            for operand in [Operand::Mask, Operand::Bias] {
                added += self.measure(operand, source, &mut buffers[0], resident)?;
            }
        }
        let mut written = 0;
        let times = prefetch(
            buffers,
            self.steps(*lengths, from),
            |step, buffer| {
                crew.check()?;
                read(&regions, problem, lengths, step, source, buffer)
            },
            |step, buffer| {
                crew.check()?;
                let noted = match &step {
                    Step::Copy { number, keys, ends } => {
                        written += copy(&regions, problem, *number, keys, buffer, sink)?;
                        ends.then_some(*number)
                    }
                    Step::Pass(part) => {
                        written += self.pass(&regions, lengths, part, buffer, resident, (&crew, sink))?;
                        part.ends.then_some(copies(problem) + part.unit.number)
                    }
                };
                if let Some(number) = noted {
                    sink.unit_finished(number).map_err(|source| StreamError::Note { number, source })?;
                }
                sink.part_computed();
                Ok(())
            },
        )?;
        crew.check()?;
        let times = Times { bytes: times.bytes + table as u64 + added, ..times };
        let certificate = certify.then(|| {
            let mut record = std::mem::take(record);
            resident.measured(&self.cpu, problem, &mut record);
            // A stream always runs on the CPU, which is a fallback if the engine prefers a GPU.
            let fallback = self.engine.backend() == Backend::Cuda;
            StreamCertificate::new(problem, self.certificate(), record, fallback)
        });
        Ok(StreamReport { times, written, units, certificate: certificate.flatten() })
    }

    /// Reads an additive mask or a dense bias completely, through `buffer`, and measures it. Returns the number of
    /// bytes read. Does not read a bias table.
    fn measure(
        &self,
        operand: Operand,
        source: &mut impl RowSource<Operand>,
        buffer: &mut Bytes,
        resident: &mut Resident,
    ) -> Result<u64, StreamError> {
        let spec = self.problem.spec();
        let dense = match operand {
            Operand::Mask => matches!(spec.mask.map(|mask| mask.kind()), Some(MaskKind::Additive(_))),
            _ => matches!(spec.bias, Some(BiasView::Dense(_))),
        };
        let Some(memory) = self.problem.memory(operand).filter(|_| dense) else { return Ok(0) };
        let (tensor, size) = (tensors_of(&self.problem)?[operand], memory.element_size);
        let [batch, heads, queries, keys] = tensor.shape();
        // Each read covers complete rows, or a piece of a row that is too long for one read.
        let most = buffer.as_slice().len().min(MEASURED_AT_ONCE) / size.max(1);
        let (rows, columns) = ((most / keys.max(1)).max(1), keys.min(most));
        if most == 0 && memory.bytes() > 0 {
            return Err(StreamError::Memory { bytes: memory.bytes() });
        }
        let mut bytes = 0;
        for pair in 0..batch * heads {
            for row in (0..queries).step_by(rows) {
                for start in (0..keys).step_by(columns.max(1)) {
                    let (count, len) = (rows.min(queries - row), columns.min(keys - start));
                    let excerpt = Excerpt {
                        tensor,
                        size,
                        first: [pair / heads, pair % heads, row],
                        count: [1, 1, count],
                        start,
                        len,
                        to: [count * len, count * len, len],
                        at: 0,
                    };
                    let to = &mut buffer.as_mut_slice()[..excerpt.bytes()];
                    source.read_rows(operand, &excerpt, to).map_err(|e| StreamError::read(operand, e))?;
                    resident.measure(&self.cpu, &self.problem, operand, Some((buffer, excerpt.bytes())));
                    bytes += excerpt.bytes() as u64;
                }
            }
        }
        Ok(bytes)
    }

    /// Computes the attention of a unit over one chunk of keys. After the unit's last chunk, writes the unit's outputs.
    /// Returns the number of bytes written.
    fn pass(
        &self,
        regions: &Regions<'_>,
        lengths: &Lengths<'_>,
        part: &Part,
        buffer: &Bytes,
        resident: &mut Resident,
        (crew, sink): (&Crew<'_>, &mut impl RowSink<Operand>),
    ) -> Result<u64, StreamError> {
        if part.begins {
            resident.sequences.clear();
            resident.sequences.extend(sequences(&self.problem, lengths, &part.unit));
        }
        let Some(first) = resident.sequences.first().copied() else { return Ok(0) };
        let places = regions.places(part, &first)?;
        resident.pass(
            &self.cpu,
            &self.problem,
            crew,
            &part.unit,
            &places,
            buffer,
            (part.keys.clone(), part.begins, part.ends),
        )?;
        let mut written = 0;
        if part.ends {
            for (operand, excerpt) in regions.writes(part, &first) {
                written += write(operand, &excerpt, resident.rows.as_slice(), regions.start(operand), sink)?;
            }
        }
        Ok(written)
    }
}

/// Reads the excerpts of a step into `buffer`. Returns the number of bytes read.
fn read(
    regions: &Regions<'_>,
    problem: &Problem,
    lengths: &Lengths<'_>,
    step: &Step,
    source: &mut impl RowSource<Operand>,
    buffer: &mut Bytes,
) -> Result<u64, StreamError> {
    let mut bytes = 0;
    let mut fill = |operand: Operand, excerpt: &Excerpt, start: usize, buffer: &mut [u8]| {
        bytes += excerpt.bytes() as u64;
        source.read_rows(operand, excerpt, &mut buffer[start..]).map_err(|e| StreamError::read(operand, e))
    };
    let buffer = buffer.as_mut_slice();
    match step {
        Step::Copy { number, keys, .. } => {
            for operands @ [_, new, present] in PRESENTS {
                if problem.memory(present).is_some() {
                    let (reads, _) = present::excerpts(problem, regions.tensors(), operands, *number, keys);
                    for (operand, excerpt) in reads {
                        fill(operand, &excerpt, regions.start(new), buffer)?;
                    }
                }
            }
        }
        Step::Pass(part) => {
            let first = problem.sequence(lengths, part.unit.sequences.start);
            for (operand, excerpt) in regions.reads(part, &first) {
                fill(operand, &excerpt, regions.start(operand), buffer)?;
                if operand == Operand::BiasIndex {
                    check_index(problem, &excerpt, &buffer[regions.start(operand)..])?;
                }
            }
        }
    }
    Ok(bytes)
}

/// Checks that every entry of an index refers to an entry of the table.
fn check_index(problem: &Problem, excerpt: &Excerpt, buffer: &[u8]) -> Result<(), ArgumentError> {
    let Some(BiasView::Table(table)) = problem.spec().bias else { return Ok(()) };
    excerpt.pieces(|offset, place| table.check_entries(&buffer[place], |i| offset as usize / 8 + i))
}

/// Writes an excerpt to the sink. Returns the number of bytes written.
fn write(
    operand: Operand,
    excerpt: &Excerpt,
    buffer: &[u8],
    start: usize,
    sink: &mut impl RowSink<Operand>,
) -> Result<u64, StreamError> {
    sink.write_rows(operand, excerpt, &buffer[start..]).map_err(|e| StreamError::write(operand, e))?;
    Ok(excerpt.bytes() as u64)
}

/// Writes the keys and values of a step to the present tensors. Returns the number of bytes written.
fn copy(
    regions: &Regions<'_>,
    problem: &Problem,
    number: usize,
    keys: &Range<usize>,
    buffer: &Bytes,
    sink: &mut impl RowSink<Operand>,
) -> Result<u64, StreamError> {
    let mut bytes = 0;
    for operands @ [_, new, present] in PRESENTS {
        if problem.memory(present).is_some() {
            let (_, excerpt) = present::excerpts(problem, regions.tensors(), operands, number, keys);
            bytes += write(present, &excerpt, buffer.as_slice(), regions.start(new), sink)?;
        }
    }
    Ok(bytes)
}
