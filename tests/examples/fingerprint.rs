//! Prints fingerprints of computed outputs: hashes of all bits that every back end returns for a fixed set of problems.
//!
//! The fingerprints are used to compare two commits on the same machine: if a change must not alter any bit, the hashes
//! before and after the change are equal. `cargo xtask fingerprint` runs this program natively, under emulation and on
//! the stand-in GPU.
//!
//! `cargo run --release -p elsa-tests --example fingerprint -- [--cases] [--random N] [BACKEND…]`
//!
//! The program runs the named back ends. If no name is given, it runs `core` (the scalar fallback of `elsa_core`) and
//! every back end that is present, or only the one that `ELSA_BACKEND` names. It prints a line per kernel: back end,
//! method, block size, number of calls, the hash of all bits, the hash with every NaN treated as equal (Rust promises
//! no NaN payload), and finally the kernel. `sed 's/ [^ ]*$//'` removes the kernel, because kernels may be renamed. For
//! refused calls, the kernel is `refused` and the hash is that of the messages. `--cases` adds a line per call.
//! `--random` is the number of random problems, 300 by default.

#![forbid(unsafe_code)]

use elsa_core::attention::{Alignment, scalar};
use elsa_core::dtype::DType;
use elsa_oracle::cases::{Buffers, Case, Data, Params, any_params, hard_cases};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, Method, PlanOptions, backends};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

type Failure = Box<dyn std::error::Error>;

/// Two 64-bit FNV-1a hashes: of all bits, and with every NaN treated as equal.
#[derive(Clone, Copy)]
struct Hash {
    bits: u64,
    values: u64,
}

impl Hash {
    const NEW: Hash = Hash { bits: 0xcbf2_9ce4_8422_2325, values: 0xcbf2_9ce4_8422_2325 };

    fn add(&mut self, bits: &[u8], value: &[u8]) {
        for (hash, bytes) in [(&mut self.bits, bits), (&mut self.values, value)] {
            for byte in bytes {
                *hash = (*hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    fn element(&mut self, bits: u32, nan: bool) {
        self.add(&bits.to_le_bytes(), &(if nan { u32::MAX } else { bits }).to_le_bytes());
    }

    fn data(&mut self, data: &Data) {
        match data {
            Data::F32(x) => self.floats(x),
            Data::F16(x) => x.iter().for_each(|x| self.element(x.to_bits().into(), x.is_nan())),
            Data::Bf16(x) => x.iter().for_each(|x| self.element(x.to_bits().into(), x.is_nan())),
        }
    }

    fn floats(&mut self, data: &[f32]) {
        data.iter().for_each(|x| self.element(x.to_bits(), x.is_nan()));
    }

    /// Hashes everything that a call may have written.
    fn answer(&mut self, buffers: &Buffers) {
        self.data(&buffers.output);
        [&buffers.lse, &buffers.m, &buffers.s, &buffers.w].into_iter().for_each(|x| self.floats(x));
        if let Some((k, v)) = &buffers.present {
            self.data(k);
            self.data(v);
        }
    }
}

/// Returns the hard cases, cases for kernels that the hard cases do not use, and `random` random problems.
fn problems(random: usize) -> Result<Vec<Case>, Failure> {
    let mut cases = hard_cases();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for causal in [None, Some(Alignment::BottomRight)] {
            for (queries, keys) in [(1, 300), (5, 70), (70, 130), (1000, 70)] {
                for d in [24, 64, 96, 128, 256] {
                    let p = Params { dtype, causal, ..Params::plain(queries, keys, d, d.min(2 * d - 7)) };
                    cases.push(p.build(format!("{dtype}, {queries} queries, {keys} keys, d = {d}")));
                }
            }
        }
        for (queries, keys, d) in [(2, 5000, 96), (1, 30_000, 128), (70, 1000, 200), (300, 1300, 64)] {
            let p = Params { dtype, ..Params::plain(queries, keys, d, d) };
            cases.push(p.build(format!("{dtype}, {queries} queries, {keys} keys")));
        }
    }
    cases.push(Params::plain(9000, 64, 64, 64).build("9000 queries"));
    let (params, mut runner) = (any_params(), TestRunner::deterministic());
    for i in 0..random {
        cases.push(
            params.new_tree(&mut runner).map_err(|e| e.to_string())?.current().build(format!("random {i}")),
        );
    }
    Ok(cases)
}

/// Runs one call, with states and log-sum-exp if requested, and returns the name of its kernel.
fn call(
    engine: Option<&Engine>,
    case: &Case,
    options: &PlanOptions,
    (states, lse): (bool, bool),
    buffers: &mut Buffers,
) -> Result<&'static str, Failure> {
    let problem = case.problem();
    let mut outputs = buffers.outputs();
    outputs.state = outputs.state.filter(|_| states);
    outputs.lse = outputs.lse.filter(|_| lse);
    let Some(engine) = engine else {
        let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).ok_or("scratch")?];
        scalar::run(&problem, &case.inputs(), &mut outputs, &mut scratch)?;
        return Ok("fallback");
    };
    let plan = engine.plan(&problem, options)?;
    let mut workspace = plan.workspace()?;
    plan.run(case.inputs(), outputs, &mut workspace)?;
    Ok(plan.kernel())
}

/// Runs every case on one back end, or on the fallback of `elsa_core`, and prints its lines.
fn fingerprint(backend: Option<Backend>, cases: &[Case], each: bool) -> Result<(), Failure> {
    // Two threads, so that work is shared on any machine.
    let options = EngineOptions::default().backend(backend).threads(2).fallback(Fallback::Fail);
    let engine = backend.map(|_| Engine::new(&options)).transpose()?;
    let name = backend.map_or("core", Backend::name);
    let elsa = |block| PlanOptions::default().block(block).all_workers(true);
    let requests = match backend {
        None => vec![("elsa", elsa(64))],
        Some(Backend::Cuda) => {
            vec![("elsa", elsa(64)), ("half", elsa(64).half_scores(true))]
        }
        Some(_) => {
            let math = elsa(64).method(Method::Math);
            vec![("elsa", elsa(64)), ("elsa", elsa(128)), ("elsa", elsa(256)), ("math", math)]
        }
    };
    for (method, options) in requests {
        // One entry per kernel, in the order in which the cases need the kernels, which does not depend on their names.
        let mut lines: Vec<(&str, usize, Hash)> = Vec::new();
        // The method `half` sums scores in f16, which concerns only f16 inputs.
        let concerned = |case: &Case| method != "half" || matches!(case.q, Data::F16(_));
        for (i, case) in cases.iter().enumerate().filter(|(_, case)| concerned(case)) {
            for wanted in [(true, true), (false, i % 2 == 0)] {
                let mut buffers = case.buffers();
                let mut hash = Hash::NEW;
                let kernel = call(engine.as_ref(), case, &options, wanted, &mut buffers);
                match &kernel {
                    Ok(_) => hash.answer(&buffers),
                    Err(e) => hash.add(e.to_string().as_bytes(), e.to_string().as_bytes()),
                }
                let (kernel, Hash { bits, values }) = (kernel.unwrap_or("refused"), hash);
                if each {
                    let outputs = if wanted.0 { "states" } else { "output" };
                    let hashes = format!("{bits:016x} {values:016x}");
                    println!("  {name} {method} {} {outputs} {hashes} {i} {}", options.block, case.name);
                }
                let at = lines.iter().position(|line| line.0 == kernel).unwrap_or_else(|| {
                    lines.push((kernel, 0, Hash::NEW));
                    lines.len() - 1
                });
                lines[at].1 += 1;
                lines[at].2.add(&bits.to_le_bytes(), &values.to_le_bytes());
            }
        }
        for (kernel, calls, Hash { bits, values }) in lines {
            println!("{name:<7} {method} {:<3} {calls:>5} {bits:016x} {values:016x} {kernel}", options.block);
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let (mut names, mut each, mut random) = (Vec::new(), false, 300);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--cases" => each = true,
            "--random" => random = arguments.next().ok_or("--random: allowed: a number")?.parse()?,
            _ => names.push(argument),
        }
    }
    if names.is_empty() {
        names.extend(std::env::var("ELSA_BACKEND").ok().filter(|name| !name.is_empty() && name != "auto"));
    }
    if names.is_empty() {
        let present = backends().into_iter().filter(|b| b.present).map(|b| b.backend.name().to_owned());
        names = std::iter::once("core".to_owned()).chain(present).collect();
    }
    let cases = problems(random)?;
    for name in names {
        let backend = if name == "core" { None } else { Some(name.parse()?) };
        fingerprint(backend, &cases, each)?;
    }
    Ok(())
}
