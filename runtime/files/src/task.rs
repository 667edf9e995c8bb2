//! Reads and writes the files of a quorum task. A file contains the states or the gradient shares of the task. It is an
//! `.npz` archive that NumPy can read, and it describes its task and the whole problem.
//!
//! | array | type, shape | content |
//! |---|---|---|
//! | `version` | i64 `[1]` | 2 |
//! | `kind` | i64 `[1]` | 0 states, 1 gradient shares |
//! | `quorum` | i64 `[levels]` | number of chunks at each level |
//! | `path` | i64 `[depth]` | index of the task at each level |
//! | `shape` | i64 `[7]` | sizes of the whole problem: batch, heads, key heads, queries, keys, head size, head size of values |
//! | `rules` | i64 `[6]` | element type (0 f32, 1 f16, 2 bf16), causal (0 no, 1 top-left, 2 bottom-right), window to the left and right (−1 open), mask (0 none, 1 bool, 2 f32, 3 f16, 4 bf16), key lengths (0 absent, 1 given) |
//! | `factors` | f32 `[2]` | scale, soft cap (0 off) |
//! | `kv_lens` | i64 `[batch]`, or `[0]` | key lengths |
//! | `run_id` | i64 `[bytes]` | name of the run (`--run-id`), one byte per element; empty without a name |
//! | `fingerprint` | i64 `[1]` | 64-bit FNV-1a hash of the description of the problem and the run's name |
//! | `runs` | i64 `[runs, 2]` | first token and number of tokens of each run of queries, in the order of the rows |
//! | `key_runs` | i64 `[runs, 2]` | first token and number of tokens of each run of keys; only with gradient shares |
//! | `query_sums` | i64 `[rows]` | checksum of each query token ([`Sums`]); empty, like the next two, if the run has a name |
//! | `key_sums` | i64 `[key rows]` | checksum of each key token, over keys and values |
//! | `d_out_sums` | i64 `[rows]` | checksum of the gradient of each query token's output; only with gradient shares |
//! | `m`, `S` | f32 `[batch, heads, rows]` | references, sums |
//! | `W` | f32 `[batch, heads, rows, head size of values]` | weighted sums |
//! | `dq` | f32 `[batch, heads, rows, head size]` | shares of the queries' gradient |
//! | `dk` | f32 `[batch, key heads, key rows, head size]` | shares of the keys' gradient |
//! | `dv` | f32 `[batch, key heads, key rows, head size of values]` | shares of the values' gradient |
//!
//! A file contains either `m`, `S` and `W`, or `dq`, `dk` and `dv`. A file of merged states or of `elsa run
//! --state-out` contains `m`, `S`, `W`, `run_id`, and the `query_sums` and `key_sums` of all tokens.
//!
//! The reader trusts nothing in a file: the sizes of arrays must agree with the description, and the runs in the file
//! must be the runs of the task. The reader checks the header of an array before it reads the array, so it needs no
//! more memory than the sizes of the file's arrays imply.

use crate::sums::{NAMES, Sums};
use crate::{Accept, Array, Buffer, Content, Data, Fault, Format, Stored, TensorError, header, read};
use elsa_core::attention::{Alignment, Lengths, MaskKind, Problem};
use elsa_core::dtype::DType;
use elsa_core::quorum::{Division, MAX_LEVELS, MAX_RUNS, Run, Task, TaskPath};
use elsa_runtime::{GradientSizes, RowStates, TaskGradients};
use std::io::{Read, Seek};

/// Version of the file format.
const VERSION: i64 = 2;

/// Maximum length of a run's name in bytes.
pub const MOST_NAME: usize = 256;

/// Element types in the order of their numbers in `rules`.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Description of the whole problem that is divided into tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Number of chunks at each level of the division.
    pub quorum: Vec<i64>,
    /// Batch, heads, key heads, queries, keys, head size, head size of values.
    pub shape: [usize; 7],
    /// The six numbers of the array `rules`.
    rules: [i64; 6],
    /// Bits of the scale and of the soft cap.
    factors: [u32; 2],
    /// Key lengths, one per batch index; empty if no key lengths are given.
    lengths: Vec<i64>,
    /// Name of the run; empty if the run has no name.
    pub run: String,
}

/// Content of a task file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// States of rows, written by `elsa run --task`.
    States,
    /// Gradient shares, written by `elsa backward --task`.
    Gradients,
}

impl Kind {
    /// Returns the word for this kind in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::States => "states",
            Kind::Gradients => "shares of gradients",
        }
    }
}

/// Description of a task, as its file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Content of the task's file.
    pub kind: Kind,
    /// The whole problem that the task is a part of.
    pub whole: Whole,
    /// Path of the task in the tree of tasks: its index at each level.
    pub path: TaskPath,
}

/// Returns `true` if `name` is valid as the name of a run: 1 to [`MOST_NAME`] bytes of printable ASCII.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    (1..=MOST_NAME).contains(&name.len()) && name.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

fn broken(found: impl Into<String>, allowed: &'static str) -> Fault {
    TensorError::Format { format: "task's", found: found.into(), allowed }.into()
}

impl Whole {
    /// Describes the whole problem, which has `queries` query tokens and `keys` key tokens. `problem` supplies the
    /// other sizes and the rules; `problem` itself may contain only the tokens of one task.
    #[must_use]
    pub fn of(
        division: &Division,
        problem: &Problem,
        [queries, keys]: [usize; 2],
        lengths: &Lengths<'_>,
        run: Option<&str>,
    ) -> Whole {
        let spec = problem.spec();
        let side = |side: Option<usize>| side.map_or(-1, |n| n as i64);
        let dtype = |of: DType| DTYPES.iter().position(|dtype| *dtype == of).unwrap_or(0) as i64;
        let causal = match spec.causal {
            None => 0,
            Some(Alignment::TopLeft) => 1,
            Some(Alignment::BottomRight) => 2,
        };
        let mask = match spec.mask.map(|mask| mask.kind()) {
            None => 0,
            Some(MaskKind::Bool) => 1,
            Some(MaskKind::Additive(of)) => 2 + dtype(of),
        };
        Whole {
            quorum: division.sets().iter().map(|set| set.chunks() as i64).collect(),
            shape: [
                spec.query.batch(),
                problem.heads(),
                problem.kv_heads(),
                queries,
                keys,
                problem.head_dim(),
                problem.value_dim(),
            ],
            rules: [
                dtype(spec.dtype),
                causal,
                side(spec.window.left),
                side(spec.window.right),
                mask,
                i64::from(lengths.keys.is_some()),
            ],
            factors: [problem.scale(), spec.softcap.unwrap_or(0.0)].map(f32::to_bits),
            lengths: lengths.keys.unwrap_or_default().to_vec(),
            run: run.unwrap_or_default().to_owned(),
        }
    }

    /// Returns the element type of the outputs.
    #[must_use]
    pub fn dtype(&self) -> DType {
        DTYPES.get(self.rules[0] as usize).copied().unwrap_or(DType::F32)
    }

    /// Returns the division of the problem into tasks.
    ///
    /// # Errors
    /// Returns an error if the library has no interest set for one of the numbers of chunks in `quorum`.
    pub fn division(&self) -> Result<Division, Fault> {
        let chunks: Option<Vec<usize>> = self.quorum.iter().map(|c| usize::try_from(*c).ok()).collect();
        let made = chunks.and_then(|chunks| Division::new(&chunks).ok());
        made.ok_or_else(|| broken(format!("quorum {:?}", self.quorum), "chunks that have an interest set"))
    }

    /// Returns the sizes of the whole problem's gradients.
    #[must_use]
    pub const fn gradients(&self) -> GradientSizes {
        let [batch, heads, kv_heads, queries, keys, dim, value_dim] = self.shape;
        let (query_sequences, key_sequences) = (batch * heads, batch * kv_heads);
        GradientSizes { query_sequences, key_sequences, queries, keys, dim, value_dim }
    }

    /// Returns the number of sequences: batch size times heads.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Returns the first field that differs in `other`: the field's name, its value in `other`, and its value in
    /// `self`.
    #[must_use]
    pub fn difference(&self, other: &Whole) -> Option<(&'static str, String, String)> {
        let fields = |whole: &Whole| {
            [
                ("quorum", format!("{:?}", whole.quorum)),
                ("shape", format!("{:?}", whole.shape)),
                ("rules", format!("{:?}", whole.rules)),
                ("factors", format!("{:?}", whole.factors.map(f32::from_bits))),
                ("kv_lens", format!("{:?}", whole.lengths)),
                ("run_id", format!("{:?}", whole.run)),
            ]
        };
        let pairs = fields(self).into_iter().zip(fields(other));
        pairs.into_iter().find(|(mine, its)| mine != its).map(|((name, mine), (_, its))| (name, its, mine))
    }

    /// Returns the command-line flags that define the problem, without the flags that name the tensors' files.
    #[must_use]
    pub fn flags(&self) -> String {
        let mut flags = String::new();
        let mut add = |text: String| {
            flags.push(' ');
            flags.push_str(&text);
        };
        match self.rules[1] {
            1 => add("--causal=top-left".into()),
            2 => add("--causal=bottom-right".into()),
            _ => {}
        }
        if (self.rules[2], self.rules[3]) != (-1, -1) {
            add(format!("--window {},{}", self.rules[2], self.rules[3]));
        }
        let [scale, softcap] = self.factors.map(f32::from_bits);
        if scale != (1.0 / (self.shape[5] as f64).sqrt()) as f32 {
            add(format!("--scale {scale}"));
        }
        if softcap != 0.0 {
            add(format!("--softcap {softcap}"));
        }
        if self.rules[4] != 0 {
            add("--mask FILE".into());
        }
        if self.rules[5] != 0 {
            add("--kv-lens FILE".into());
        }
        if !self.run.is_empty() {
            add(format!("--run-id '{}'", self.run.replace('\'', "'\\''")));
        }
        flags
    }

    /// Computes the 64-bit FNV-1a hash of all fields. Fields are hashed as 64-bit little-endian words, and the length of
    /// each list precedes the list.
    fn fingerprint(&self) -> i64 {
        let shape = self.shape.map(|n| n as i64);
        let factors = self.factors.map(i64::from);
        let name = bytes(&self.run);
        let lists: [&[i64]; 5] = [&self.quorum, &shape, &self.rules, &factors, &self.lengths];
        let named = (!name.is_empty()).then_some(&name[..]);
        let words = lists
            .into_iter()
            .chain(named)
            .flat_map(|list| [list.len() as i64].into_iter().chain(list.iter().copied()));
        let bytes = words.flat_map(i64::to_le_bytes);
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }) as i64
    }
}

impl Description {
    /// Builds the arrays of a file with the states of `task`.
    #[must_use]
    pub fn states_to_arrays(&self, task: &Task, sums: Sums, states: RowStates) -> Vec<(&'static str, Array)> {
        let [batch, heads, .., dim] = self.whole.shape;
        let rows = task.query_tokens();
        let mut arrays = self.arrays(task, sums);
        arrays.push(("m", float(&[batch, heads, rows], states.m)));
        arrays.push(("S", float(&[batch, heads, rows], states.s)));
        arrays.push(("W", float(&[batch, heads, rows, dim], states.w)));
        arrays
    }

    /// Builds the arrays of a file with the gradient shares of `task`.
    #[must_use]
    pub fn shares_to_arrays(
        &self,
        task: &Task,
        sums: Sums,
        shares: TaskGradients,
    ) -> Vec<(&'static str, Array)> {
        let mut arrays = self.arrays(task, sums);
        arrays.push(("key_runs", places(task.keys())));
        let [query, key, value] = self.share_shapes(task);
        arrays.push(("dq", float(&query, shares.query)));
        arrays.push(("dk", float(&key, shares.key)));
        arrays.push(("dv", float(&value, shares.value)));
        arrays
    }

    /// Returns the shapes of the shares `dq`, `dk` and `dv` of `task`.
    fn share_shapes(&self, task: &Task) -> [[usize; 4]; 3] {
        let [batch, heads, kv_heads, _, _, dim, value_dim] = self.whole.shape;
        let (queries, keys) = (task.query_tokens(), task.key_tokens());
        [[batch, heads, queries, dim], [batch, kv_heads, keys, dim], [batch, kv_heads, keys, value_dim]]
    }

    /// Builds the arrays that both kinds of files contain: the description and the checksums.
    fn arrays(&self, task: &Task, sums: Sums) -> Vec<(&'static str, Array)> {
        let Description { kind, whole, path } = self;
        let mut arrays = vec![
            ("version", list(vec![VERSION])),
            ("kind", list(vec![*kind as i64])),
            ("quorum", list(whole.quorum.clone())),
            ("path", list(path.digits().iter().map(|digit| i64::from(*digit)).collect())),
            ("shape", list(whole.shape.map(|n| n as i64).to_vec())),
            ("rules", list(whole.rules.to_vec())),
            ("factors", float(&[2], whole.factors.map(f32::from_bits).to_vec())),
            ("kv_lens", list(whole.lengths.clone())),
            ("run_id", list(bytes(&whole.run))),
            ("fingerprint", list(vec![whole.fingerprint()])),
            ("runs", places(task.queries())),
        ];
        let kept = self.sums_of(task);
        let named = NAMES.into_iter().zip(sums.0).zip(kept);
        arrays.extend(named.filter_map(|((name, sums), kept)| kept.map(|_| (name, list(sums)))));
        arrays
    }

    /// Returns the length of each array of checksums in the file of `task`; `None` for an array that the file does not
    /// have.
    fn sums_of(&self, task: &Task) -> [Option<usize>; 3] {
        let (queries, keys) = match self.whole.run.is_empty() {
            true => (task.query_tokens(), task.key_tokens()),
            false => (0, 0),
        };
        [Some(queries), Some(keys), (self.kind == Kind::Gradients).then_some(queries)]
    }

    /// Reads the description from a file of `length` bytes and creates the task. Only the headers of the states or
    /// shares are read.
    ///
    /// # Errors
    /// Returns an error if the file is malformed or has another version, if its description contradicts itself, if its
    /// runs differ from the runs of the task, or if an array has the wrong shape or type.
    pub fn read(file: &mut (impl Read + Seek), length: u64) -> Result<(Description, Task), Fault> {
        let version = integers(file, length, "version", 1)?;
        if version != [VERSION] {
            let allowed = "version 2: have elsa of this version compute the task again";
            return Err(broken(format!("version {version:?}"), allowed));
        }
        let kind = match integers(file, length, "kind", 1)?[..] {
            [0] => Kind::States,
            [1] => Kind::Gradients,
            ref other => {
                return Err(broken(format!("kind {other:?}"), "0 (states) or 1 (shares of gradients)"));
            }
        };
        let quorum = integers(file, length, "quorum", MAX_LEVELS)?;
        let digits = integers(file, length, "path", MAX_LEVELS)?;
        let shape = sizes(&integers(file, length, "shape", 7)?)?;
        let rules = integers(file, length, "rules", 6)?;
        array_header(file, length, "factors", &[2])?;
        let factors = floats(file, length, "factors")?;
        // The first axis of this array must be the batch size in `shape`.
        let array = if kind == Kind::States { "m" } else { "dq" };
        let found = header(&mut *file, length, Format::Npz, Some(array), Accept::Float)?.0.shape;
        if found.first() != Some(&shape[0]) {
            return Err(broken(
                format!("{array} of shape {found:?}"),
                "one of as many sequences as the shape says",
            ));
        }
        let lengths = integers(file, length, "kv_lens", shape[0])?;
        let name: Option<Vec<u8>> = integers(file, length, "run_id", MOST_NAME)?
            .iter()
            .map(|byte| u8::try_from(*byte).ok())
            .collect();
        let run = name
            .filter(|name| name.is_empty() || is_name(name))
            .and_then(|name| String::from_utf8(name).ok());
        let run =
            run.ok_or_else(|| broken("a run_id that is none", "up to 256 printable characters of ASCII"))?;
        let digits: Option<Vec<u16>> = digits.iter().map(|digit| u16::try_from(*digit).ok()).collect();
        let path = digits.and_then(|digits| TaskPath::new(&digits));
        let path = path.ok_or_else(|| broken("a path that is none", "numbers of tasks"))?;
        let whole = Whole {
            quorum,
            shape,
            rules: rules.try_into().map_err(|_| broken("rules of another number", "6 rules"))?,
            factors: match factors.1[..] {
                [scale, softcap] => [scale, softcap].map(f32::to_bits),
                _ => return Err(broken("factors of another number", "scale and soft cap")),
            },
            lengths,
            run,
        };
        let batch = whole.shape[0];
        let ranges = [0..=2, 0..=2, -1..=i64::MAX, -1..=i64::MAX, 0..=4, 0..=1];
        let given = if whole.rules[5] == 1 { batch } else { 0 };
        if !whole.rules.iter().zip(ranges).all(|(rule, range)| range.contains(rule))
            || whole.lengths.len() != given
        {
            return Err(broken(format!("rules {:?}", whole.rules), "those of a problem"));
        }
        let fingerprint = integers(file, length, "fingerprint", 1)?;
        if fingerprint != [whole.fingerprint()] {
            return Err(broken("another fingerprint than the description has", "a file as it was written"));
        }
        let (queries, keys) = (whole.shape[3], whole.shape[4]);
        let task = Task::new(&whole.division()?, &path, queries, keys)
            .map_err(|e| broken(e.to_string(), "a task of its division"))?;
        let of_keys = (kind == Kind::Gradients).then_some(("key_runs", task.keys()));
        for (name, runs) in [("runs", task.queries())].into_iter().chain(of_keys) {
            let found = integers(file, length, name, 2 * MAX_RUNS)?;
            if !found.into_iter().eq(numbers(runs)) {
                return Err(broken(format!("{name} of another task"), "those of the task"));
            }
        }
        let description = Description { kind, whole, path };
        description.headers(&task, file, length)?;
        Ok((description, task))
    }

    /// Checks that the file's arrays of checksums, and of states or shares, have the shapes that the description
    /// implies. Reads only the headers of these arrays.
    fn headers(&self, task: &Task, file: &mut (impl Read + Seek), length: u64) -> Result<(), Fault> {
        for (name, count) in NAMES.into_iter().zip(self.sums_of(task)) {
            let Some(count) = count else { continue };
            let found = header(&mut *file, length, Format::Npz, Some(name), Accept::Lengths)?.0.shape;
            if found != [count] {
                return Err(misshapen(name, &found, &[count]));
            }
        }
        let [batch, heads, .., dim] = self.whole.shape;
        let rows = task.query_tokens();
        match self.kind {
            Kind::States => {
                array_header(file, length, "m", &[batch, heads, rows])?;
                array_header(file, length, "S", &[batch, heads, rows])?;
                array_header(file, length, "W", &[batch, heads, rows, dim])
            }
            Kind::Gradients => {
                let names = ["dq", "dk", "dv"].into_iter().zip(self.share_shapes(task));
                names.into_iter().try_for_each(|(name, shape)| array_header(file, length, name, &shape))
            }
        }
    }

    /// Reads the checksums of the tokens of `task`. `file` must be the file that this description and `task` were read
    /// from.
    ///
    /// # Errors
    /// Returns the errors of [`Description::states`].
    pub fn sums(&self, task: &Task, file: &mut (impl Read + Seek), length: u64) -> Result<Sums, Fault> {
        let mut sums = Sums::default();
        for ((name, count), to) in NAMES.into_iter().zip(self.sums_of(task)).zip(&mut sums.0) {
            if let Some(count) = count {
                *to = integers(file, length, name, count)?;
            }
        }
        Ok(sums)
    }

    /// Reads the states of `task`. `file` must be the file that this description and `task` were read from.
    ///
    /// # Errors
    /// Returns an error if the arrays have the wrong shape or type, if the file is malformed, or if the system refuses
    /// memory.
    pub fn states(
        &self,
        task: &Task,
        file: &mut (impl Read + Seek),
        length: u64,
    ) -> Result<RowStates, Fault> {
        let [batch, heads, .., dim] = self.whole.shape;
        let rows = task.query_tokens();
        Ok(RowStates {
            m: array(file, length, "m", &[batch, heads, rows])?,
            s: array(file, length, "S", &[batch, heads, rows])?,
            w: array(file, length, "W", &[batch, heads, rows, dim])?,
        })
    }

    /// Reads the gradient shares of `task`. `file` must be the file that this description and `task` were read from.
    ///
    /// # Errors
    /// Returns the errors of [`Description::states`].
    pub fn shares(
        &self,
        task: &Task,
        file: &mut (impl Read + Seek),
        length: u64,
    ) -> Result<TaskGradients, Fault> {
        let [query, key, value] = self.share_shapes(task);
        Ok(TaskGradients {
            query: array(file, length, "dq", &query)?,
            key: array(file, length, "dk", &key)?,
            value: array(file, length, "dv", &value)?,
        })
    }
}

/// Returns the first token and the number of tokens of each run.
fn numbers(runs: &[Run]) -> impl Iterator<Item = i64> + '_ {
    runs.iter().flat_map(|run| [run.span().start as i64, run.span().tokens as i64])
}

fn places(runs: &[Run]) -> Array {
    Array::Integers { shape: vec![runs.len(), 2], data: numbers(runs).collect() }
}

/// Converts a list into an array with one axis.
#[must_use]
pub fn list(data: Vec<i64>) -> Array {
    Array::Integers { shape: vec![data.len()], data }
}

/// Converts the name of a run into the elements of `run_id`.
#[must_use]
pub fn bytes(name: &str) -> Vec<i64> {
    name.bytes().map(i64::from).collect()
}

fn float(shape: &[usize], data: Vec<f32>) -> Array {
    Array::Float(Content { shape: shape.to_vec(), data: Buffer::F32(data) })
}

/// Reads the elements of the f32 array `name`, whose shape must be `shape`.
fn array(file: &mut (impl Read + Seek), length: u64, name: &str, shape: &[usize]) -> Result<Vec<f32>, Fault> {
    array_header(file, length, name, shape)?;
    let (found, data) = floats(file, length, name)?;
    match found == shape {
        true => Ok(data),
        false => Err(misshapen(name, &found, shape)),
    }
}

/// Checks that the array `name` has shape `shape` and type f32, without reading its elements.
pub(crate) fn array_header(
    file: &mut (impl Read + Seek),
    length: u64,
    name: &str,
    shape: &[usize],
) -> Result<(), Fault> {
    let contents = header(file, length, Format::Npz, Some(name), Accept::Float)?.0;
    match (contents.stored, contents.shape == shape) {
        (Stored::F32, true) => Ok(()),
        (Stored::F32, false) => Err(misshapen(name, &contents.shape, shape)),
        (stored, _) => Err(broken(format!("'{name}' of {}", stored.name()), "f32")),
    }
}

pub(crate) fn misshapen(name: &str, found: &[usize], shape: &[usize]) -> Fault {
    broken(format!("{name} of shape {found:?}, not {shape:?}"), "the rows of the task")
}

/// Checks the sizes of a whole problem. Each tensor must be small enough that all of its elements can be indexed.
fn sizes(shape: &[i64]) -> Result<[usize; 7], Fault> {
    let bad = || broken(format!("shape {shape:?}"), "sizes of a problem");
    let sizes: Vec<usize> = shape.iter().map_while(|n| usize::try_from(*n).ok()).collect();
    let sizes: [usize; 7] = sizes.try_into().map_err(|_| bad())?;
    let [batch, heads, kv_heads, queries, keys, dim, value_dim] = sizes;
    let product = |factors: [usize; 4]| factors.into_iter().try_fold(1usize, usize::checked_mul);
    let fits = |factors| product(factors).is_some_and(|n| n <= isize::MAX as usize / 4);
    let tensors = [
        [batch, heads, queries, dim],
        [batch, kv_heads, keys, dim],
        [batch, kv_heads, keys, value_dim],
        [batch, heads, queries, value_dim],
    ];
    let none = [batch, heads, kv_heads, dim, value_dim].contains(&0);
    if none || !heads.is_multiple_of(kv_heads) || !tensors.into_iter().all(fits) {
        return Err(bad());
    }
    Ok(sizes)
}

/// Reads an integer array of any shape. Returns an error if the array has more than `most` elements.
pub fn integers(
    file: &mut (impl Read + Seek),
    length: u64,
    name: &str,
    most: usize,
) -> Result<Vec<i64>, Fault> {
    let long = |shape: &[usize]| broken(format!("'{name}' of shape {shape:?}"), "a short list");
    let shape = header(&mut *file, length, Format::Npz, Some(name), Accept::Lengths)?.0.shape;
    if shape.iter().try_fold(1usize, |n, axis| n.checked_mul(*axis)).is_none_or(|n| n > most) {
        return Err(long(&shape));
    }
    let contents = read(file, length, Format::Npz, Some(name), Accept::Lengths)?;
    match contents.data {
        Data::Integer(data) if data.len() <= most => Ok(data),
        _ => Err(long(&contents.shape)),
    }
}

fn floats(file: &mut (impl Read + Seek), length: u64, name: &str) -> Result<(Vec<usize>, Vec<f32>), Fault> {
    let contents = read(file, length, Format::Npz, Some(name), Accept::Float)?;
    match (contents.stored, contents.data) {
        (Stored::F32, Data::Float(Buffer::F32(data))) => Ok((contents.shape, data)),
        (stored, _) => Err(broken(format!("'{name}' of {}", stored.name()), "f32")),
    }
}
