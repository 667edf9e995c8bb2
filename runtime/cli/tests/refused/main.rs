//! Runs commands and refuses memory at each of their large allocations. A large allocation holds, for example, a tensor
//! or a list with an entry for each row. The commands are a streamed run, a quorum task, a merge, and a backward pass.
//! A command either completes its output, with the bits of a run without refusals, or returns a typed error and leaves
//! all files unchanged. It never aborts.
//!
//! Allocations below [`LEAST`](allocator::LEAST) bytes are not refused. They contain names, flags, file buffers and
//! similar data. Libraries abort if memory for such data is refused. The problems are large enough that a list with an
//! entry for each row is above this size.
#![allow(clippy::unwrap_used)]

mod allocator;
#[path = "../tool/common.rs"]
mod common;

use allocator::{Refuse, Refusing, refusing, turn};
use clap::Parser;
use common::{Desk, emulated, noise};
use elsa_cli::command::Cli;
use elsa_cli::error::Error;
use elsa_core::attention::{Lengths, Operand, Problem, Spec};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_runtime::{
    Engine, EngineOptions, FittedStream, StreamError, StreamFit, StreamOptions, UnitSizes, Written,
};
use std::collections::BTreeMap;
use std::io;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const TOKENS: usize = 280;
const DIM: usize = 8;

fn desk() -> Desk {
    let desk = Desk::new();
    let mut seed = 0;
    for (name, heads) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("dy", HEADS)] {
        seed += 1;
        desk.f32(&format!("{name}.npy"), &[1, heads, TOKENS, DIM], &noise(seed, heads * TOKENS * DIM));
    }
    desk
}

const INPUTS: &str = "--q @q.npy --k @k.npy --v @v.npy --threads 2";

/// Reads every file in the folder.
fn files(desk: &Desk) -> BTreeMap<String, Vec<u8>> {
    desk.list().into_iter().map(|name| (name.clone(), std::fs::read(desk.path(&name)).unwrap())).collect()
}

/// Calls the tool in this process.
fn call(desk: &Desk, line: &str, refuse: Refuse) -> (Result<(), Error>, usize) {
    let words = desk.words(line);
    let cli = Cli::try_parse_from(["elsa".to_owned()].into_iter().chain(words)).unwrap();
    refusing(refuse, || cli.command.run())
}

/// Runs a command repeatedly, in two series. In the first series, a single allocation is refused in each run. In the
/// second series, an allocation and all later ones are refused in each run. Each series has one run for every
/// allocation of the command. Returns how many runs of each series succeeded.
fn every_allocation(line: &str, prepare: impl Fn(&Desk), outputs: &[&str]) -> [usize; 2] {
    if emulated() {
        return [usize::MAX; 2];
    }
    let _turn = turn();
    let desk = desk();
    prepare(&desk);
    let before = files(&desk);
    let (done, count) = call(&desk, line, Refuse::Nothing);
    done.unwrap();
    let want = files(&desk);
    assert_eq!(want.len(), before.len() + outputs.len(), "{:?}", want.keys());
    assert!(count > 5, "{line}: {count}");
    // If a run fails, an earlier file at the path of an output must be unchanged.
    let stale: BTreeMap<String, Vec<u8>> = before
        .into_iter()
        .chain(outputs.iter().map(|name| ((*name).to_owned(), b"earlier".to_vec())))
        .collect();
    let mut answers = [0; 2];
    for (which, refuse) in [Refuse::One as fn(usize) -> Refuse, Refuse::From].into_iter().enumerate() {
        for number in 0.. {
            assert!(number < 1000, "{line}: no end");
            outputs.iter().for_each(|name| std::fs::write(desk.path(name), b"earlier").unwrap());
            let (done, count) = call(&desk, line, refuse(number));
            let found = files(&desk);
            match done {
                Ok(()) => {
                    assert!(found == want, "{line}: {number}: other bytes");
                    answers[which] += 1;
                }
                Err(e) => {
                    assert!(matches!(e.status(), 2 | 3), "{line}: {number}: {e}");
                    let said = e.line();
                    assert!(
                        said.contains("memory") && (said.starts_with("--") || said.starts_with("STATES")),
                        "{line}: {number}: {said}"
                    );
                    assert!(found == stale, "{line}: {number}: {said}: files changed");
                }
            }
            if count <= number {
                break;
            }
        }
    }
    answers
}

#[test]
fn a_streamed_run() {
    for extra in ["--lse-out @l.npy --state-out @s.npz", "--causal --eta 0.1"] {
        let line = format!("run {INPUTS} --out @y.npy --host-budget 1GiB {extra}");
        let outputs = if extra.contains("lse") { &["y.npy", "l.npy", "s.npz"][..] } else { &["y.npy"] };
        // If memory is refused, the run makes a smaller plan, so some runs succeed in both cases.
        let [one, from] = every_allocation(&line, |_| {}, outputs);
        assert!(one > 3 && from >= 1, "{one} {from}");
    }
}

#[test]
fn a_task_of_a_quorum() {
    let line = format!("run {INPUTS} --causal --quorum 7 --task 3/7 --state-out @t.npz");
    every_allocation(&line, |_| {}, &["t.npz"]);
}

#[test]
fn a_merge() {
    let names: Vec<String> = (0..7).map(|task| format!("t{task}.npz")).collect();
    let tasks = |desk: &Desk| {
        for (task, name) in names.iter().enumerate() {
            let line = format!("run {INPUTS} --causal --quorum 7 --task-path {task} --state-out @{name}");
            call(desk, &line, Refuse::Nothing).0.unwrap();
        }
    };
    let line = format!(
        "merge {} --out @y.npy --lse-out @l.npy --state-out @s.npz",
        names.iter().map(|name| format!("@{name} ")).collect::<String>()
    );
    every_allocation(&line, tasks, &["y.npy", "l.npy", "s.npz"]);
}

#[test]
fn gradients() {
    let outputs = ["dq.npy", "dk.npy", "dv.npy"];
    let line =
        format!("backward {INPUTS} --d-out @dy.npy --dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy");
    every_allocation(&line, |_| {}, &outputs);
    let forward = |desk: &Desk| {
        call(desk, &format!("run {INPUTS} --out @y.npy --lse-out @l.npy"), Refuse::Nothing).0.unwrap();
    };
    every_allocation(&format!("{line} --out @y.npy --lse @l.npy --quorum 7"), forward, &outputs);
}

fn engine(threads: usize) -> Engine {
    Engine::new(&EngineOptions::default().threads(threads)).unwrap()
}

/// Builds a problem with several sequences, heads and tiles.
fn problem(batch: usize, queries: usize, keys: usize) -> Problem {
    let of = |heads, n| View::dense("x", Layout::Bhnd, &[batch, heads, n, DIM], None).unwrap();
    Spec::new(DType::F32, of(4, queries), of(2, keys), of(2, keys), of(4, queries)).check().unwrap()
}

/// Runs a stream on computed inputs and returns its output.
fn output(stream: &mut FittedStream) -> Vec<u8> {
    let mut source = |operand: Operand, offset: u64, to: &mut [u8]| {
        for (i, x) in to.chunks_exact_mut(4).enumerate() {
            let at = offset / 4 + i as u64 + operand as u64 * 7919;
            x.copy_from_slice(&((at % 1013) as f32 / 506.5 - 1.0).to_le_bytes());
        }
        io::Result::Ok(())
    };
    let count = stream.plan().problem().memory(Operand::Output).unwrap().bytes();
    let mut output = vec![0xff; count];
    let mut sink = |_: Operand, offset: u64, from: &[u8]| {
        output[offset as usize..][..from.len()].copy_from_slice(from);
        io::Result::Ok(())
    };
    stream.run(&Lengths::default(), &mut source, &mut sink, 0).unwrap();
    output
}

/// Checks that a stream with less memory uses smaller units and yields the same bits. If memory is too small for even
/// the smallest units, the stream must end with a typed error.
#[test]
fn less_memory_makes_smaller_units() {
    if emulated() {
        return;
    }
    let _turn = turn();
    let engine = engine(2);
    let options = |sizes: Option<UnitSizes>| {
        StreamOptions::new(1 << 30).written(Written { output: true, lse: false, states: false }).sizes(sizes)
    };
    // The units of the three problems are sequences, heads, and tiles.
    for (problem, queries) in
        [(problem(9, 70, 1100), 70), (problem(1, 70, 1100), 70), (problem(1, 900, 1100), 900)]
    {
        let mut all = engine.fit_stream(&problem, &options(None)).unwrap();
        let rows = problem.rows();
        let whole = all.fit();
        assert_eq!((whole.refused, all.plan().resident_rows()), (0, rows));
        assert!(
            whole.n_cap > 1 && whole.n_parallel <= 2 && whole.task_rows * whole.n_cap >= rows,
            "{whole:?}"
        );
        let want = output(&mut all);
        let sizes = all.plan().choice().sizes();
        drop(all);
        // A single refusal leaves the stream with one task fewer.
        for times in 1..=2.min(whole.n_cap - 1) {
            let refused = |number| {
                let (fitted, _) =
                    refusing(Refuse::One(number), || engine.fit_stream(&problem, &options(None)));
                fitted.unwrap().fit()
            };
            let StreamFit { n_cap, refused, .. } = refused(times - 1);
            assert_eq!((n_cap, refused), (whole.n_cap - 1, 1), "{times}");
        }
        let fit = |room| refusing(Refuse::Beyond(room), || engine.fit_stream(&problem, &options(None))).0;
        let mut found = Vec::new();
        let mut room = 8 << 20;
        let needed = loop {
            match fit(room) {
                Ok(mut stream) => {
                    let StreamFit { n_cap, refused, task_rows, .. } = stream.fit();
                    let taken = stream.plan().account();
                    assert!(taken.total() <= 1 << 30);
                    found.push((stream.plan().resident_rows(), stream.plan().choice().chunk, refused));
                    assert!(n_cap * task_rows >= stream.plan().resident_rows());
                    assert!(output(&mut stream) == want, "{room}: other bits: {:?}", stream.plan().choice());
                }
                Err(StreamError::Memory { bytes }) => break bytes,
                Err(e) => panic!("{room}: {e}"),
            }
            room = room * 4 / 5;
        };
        // As memory shrinks, streams first keep fewer rows and then use shorter chunks. If even the smallest stream
        // does not fit, the error states how many bytes that stream needs.
        assert!(found.first().is_some_and(|(resident, ..)| *resident == rows), "{found:?}");
        assert!(found.iter().any(|(resident, _, refused)| *resident < rows && *refused > 0), "{found:?}");
        assert!(found.is_sorted_by(|a, b| a.0 * a.1 >= b.0 * b.1), "{found:?}");
        let least = found.iter().map(|(resident, ..)| *resident).min().unwrap();
        assert!(least < rows.min(4 * queries) && needed > room / 2, "{found:?} {needed} {room}");
        // A resumed run must use the sizes of the earlier run, so a refusal ends it.
        let again = refusing(Refuse::One(0), || engine.fit_stream(&problem, &options(Some(sizes)))).0;
        assert!(matches!(again, Err(StreamError::Memory { bytes }) if bytes > needed), "{again:?}");
    }
}
