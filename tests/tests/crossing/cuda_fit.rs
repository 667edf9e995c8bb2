//! Tests GPU streams that are fitted to memory budgets, and their smaller tasks when the driver refuses memory.

use crate::cuda_stream::run;
use elsa_core::attention::Alignment;
use elsa_oracle::cases::{Case, Params};
use elsa_oracle::gpu_engine;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{
    Backend, Engine, EngineOptions, Fallback, Fitted, GpuStream, KeysFrom, StreamBudget, StreamError,
    StreamFit, StreamWants,
};

fn wants(keys: KeysFrom) -> StreamWants {
    StreamWants { lse: true, states: true, ..StreamWants::new(keys) }
}

fn fitted(engine: &Engine, case: &Case, budget: &StreamBudget) -> (GpuStream, StreamFit) {
    match GpuStream::fit(engine, &case.problem(), &wants(KeysFrom::Function), budget).unwrap() {
        Fitted::Gpu(stream, fit) => (*stream, fit),
        Fitted::Cpu { reason, .. } => panic!("{reason}"),
    }
}

fn long() -> Case {
    let causal = Some(Alignment::BottomRight);
    Params { heads: 2, kv_heads: 1, causal, ..Params::plain(400, 1100, 32, 32) }.build("long")
}

/// Checks that a stream stays within its budget and uses most of it. The bits are the same under any budget that has
/// room for the same splits.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn budgets_are_kept_and_used() {
    let engine = gpu_engine(Fallback::Fail);
    let case = long();
    let (mut all, fit) = fitted(&engine, &case, &StreamBudget::default());
    assert!(all.division().rows == 400 && fit.n_cap * fit.task_rows >= 400 && fit.refused == 0, "{fit:?}");
    let want = run(&mut all, &engine, &case, KeysFrom::Function).0.bits();
    let [device, pinned] = all.bytes();
    let integrated = engine.device().unwrap().profile.integrated;
    let whole = if integrated { device + pinned } else { device };
    let mut divisions = std::collections::BTreeSet::new();
    for percent in [95, 80, 60] {
        let bytes = whole / 100 * percent;
        let budget = StreamBudget { device: Some(bytes), pinned: None };
        let (mut stream, fit) = fitted(&engine, &case, &budget);
        let [device, pinned] = stream.bytes();
        let taken = if integrated { device + pinned } else { device };
        let task = (case.spec.query.heads() * 4 * (32 * 3 + 40) + 600) * fit.task_rows * 2;
        assert!(taken <= bytes && taken + 2 * task >= bytes, "{percent} %: {taken} of {bytes}, {fit:?}");
        let division = stream.division();
        assert!(division.rows < 400 && division.keys / division.splits == 1024, "{division:?}");
        divisions.insert(division.rows);
        assert_eq!(run(&mut stream, &engine, &case, KeysFrom::Function).0.bits(), want, "{percent} %");
    }
    assert!(divisions.len() >= 2, "{divisions:?}");
    // Splits become finer if there is less memory; if there is almost none, fitting is refused.
    let small = StreamBudget { device: Some(300_000), pinned: Some(300_000) };
    let (mut stream, fit) = fitted(&engine, &case, &small);
    assert!(stream.division().keys < 1024 && fit.refused > 0, "{:?} {fit:?}", stream.division());
    case.naive().check_all(&run(&mut stream, &engine, &case, KeysFrom::Function).0, 5000).unwrap();
    let none = StreamBudget { device: Some(1000), pinned: Some(1000) };
    let error = GpuStream::fit(&engine, &case.problem(), &wants(KeysFrom::Function), &none).unwrap_err();
    assert!(matches!(error, StreamError::Budget { budget: 1000, .. }), "{error}");
}

/// Fits a stream in a child process and runs it. Prints `fit` with the numbers of resident tasks and of refusals, or
/// `cpu`, or `error`.
#[test]
#[ignore = "run by the other tests in a child"]
fn child_fits() {
    if !is_child() {
        return;
    }
    let fallback = if std::env::var_os("ELSA_TEST_FAIL").is_some() { Fallback::Fail } else { Fallback::Cpu };
    let options = EngineOptions::default().backend(Backend::Cuda).threads(1).fallback(fallback);
    let engine = Engine::new(&options).unwrap();
    let case = long();
    match GpuStream::fit(&engine, &case.problem(), &wants(KeysFrom::Function), &StreamBudget::default()) {
        Ok(Fitted::Gpu(mut stream, fit)) => {
            let (found, _) = run(&mut stream, &engine, &case, KeysFrom::Function);
            if fit.refused == 0 || stream.division().keys < 1024 {
                case.naive().check_all(&found, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            }
            let hash = found.bits().iter().fold(0u64, |a, b| a.wrapping_mul(31).wrapping_add(u64::from(*b)));
            println!("bits: {hash:x}");
            println!("fit: {} {}", fit.n_cap, fit.refused);
        }
        Ok(Fitted::Cpu { refused, .. }) => println!("cpu: {refused}"),
        Err(e) => println!("error: {}", e.is_memory()),
    }
    println!("end: -");
}

/// Checks devices that refuse memory or have little of it: the result is fewer resident tasks, smaller tasks, a run on
/// the CPU, or an error. Every output is correct, and its bits do not depend on the number of resident tasks.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn refused_memory_makes_smaller_tasks() {
    let test = "cuda_fit::child_fits";
    let of = |variables: &[(&str, &str)]| {
        let output = child(test, &folder(), variables);
        assert_eq!(said(&output, "end").len(), 1, "{variables:?}: {output:?}");
        let fit = said(&output, "fit").first().map(|line| {
            let numbers: Vec<usize> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            (numbers[0], numbers[1])
        });
        (fit, said(&output, "bits"), said(&output, "cpu"), said(&output, "error"))
    };
    for device in ["", "discrete"] {
        let plain = of(&[("ELSA_STANDIN_DEVICE", device)]);
        let (n_cap, refused) = plain.0.unwrap();
        assert!(n_cap > 2 && refused == 0, "{plain:?}");
        // Each refused allocation, whichever it is, costs one resident task.
        for (fault, times) in [
            ("cuMemAlloc_v2:1:2", 1),
            ("cuMemAlloc_v2:1:2,cuMemAlloc_v2:2:2", 2),
            ("cuMemHostAlloc:1:2", 1),
            ("cuMemAlloc_v2:2:2,cuMemHostAlloc:1:2", 2),
            ("cuStreamCreate:2:2", 1),
            ("cuEventCreate:7:2", 1),
        ] {
            let found = of(&[("ELSA_STANDIN_DEVICE", device), ("ELSA_STANDIN_FAIL", fault)]);
            assert_eq!(found.0, Some((n_cap - times, times)), "{fault}: {found:?}");
            assert_eq!(found.1, plain.1, "{fault}");
        }
        // The search requests memory for all rows, and this device has less.
        let small = of(&[("ELSA_STANDIN_DEVICE", device), ("ELSA_STANDIN_MEMORY", "900000")]);
        assert!(small.0.is_some_and(|(tasks, _)| tasks < n_cap), "{small:?}");
        // If there are more refusals than resident tasks (`n_cap`, measured above), tasks become finer.
        let faults: Vec<String> = (1..=n_cap + 1).map(|n| format!("cuMemAlloc_v2:{n}:2")).collect();
        let finer = of(&[("ELSA_STANDIN_DEVICE", device), ("ELSA_STANDIN_FAIL", &faults.join(","))]);
        assert!(finer.0.is_some_and(|(tasks, refused)| refused == n_cap + 1 && tasks > 1), "{finer:?}");
        // Every allocation is refused.
        let all = [("ELSA_STANDIN_DEVICE", device), ("ELSA_STANDIN_FAIL", "cuMemAlloc_v2:1+:2")];
        let (fit, _, cpu, _) = of(&all);
        assert!(fit.is_none() && cpu.len() == 1);
        let (fit, _, cpu, error) = of(&[all[0], all[1], ("ELSA_TEST_FAIL", "1")]);
        assert!(fit.is_none() && cpu.is_empty() && error == ["true"], "{error:?}");
    }
}

/// In a child process, fits a stream `ELSA_TEST_FITS` times, prints the numbers of resident tasks and of refusals each
/// time, and runs the last stream.
#[test]
#[ignore = "run by the other tests in a child"]
fn child_fits_again() {
    if !is_child() {
        return;
    }
    let (engine, case) = (gpu_engine(Fallback::Fail), long());
    let times = std::env::var("ELSA_TEST_FITS").unwrap().parse().unwrap();
    let mut last = None;
    for _ in 0..times {
        drop(last.take());
        let (stream, fit) = fitted(&engine, &case, &StreamBudget::default());
        println!("fit: {} {}", fit.n_cap, fit.refused);
        last = Some(stream);
    }
    let found = last.map(|mut stream| run(&mut stream, &engine, &case, KeysFrom::Function).0.bits());
    let bits = found.unwrap_or_default();
    let hash = bits.iter().fold(0u64, |a, b| a.wrapping_mul(31).wrapping_add(u64::from(*b)));
    println!("bits: {hash:x}");
}

/// Refuses each allocation of a stream once: device memory, page-locked memory, streams and events. Each refusal costs
/// one resident task and changes no bit.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn every_allocation_may_be_refused() {
    for device in ["", "discrete"] {
        let fits = |times: usize, variable: &str, value: &str| {
            let times = times.to_string();
            let variables = [("ELSA_STANDIN_DEVICE", device), ("ELSA_TEST_FITS", &*times), (variable, value)];
            let output = child("cuda_fit::child_fits_again", &folder(), &variables);
            let (fit, bits) = (said(&output, "fit"), said(&output, "bits"));
            assert_eq!(bits.len(), 1, "{variables:?}: {output:?}");
            (fit, bits)
        };
        let logged = |times| {
            let log = tempfile::NamedTempFile::new().unwrap();
            let found = fits(times, "ELSA_STANDIN_LOG", log.path().to_str().unwrap());
            (found, std::fs::read_to_string(log.path()).unwrap())
        };
        // If nothing is fitted, no stream runs. Otherwise, the last stream runs and allocates additional page-locked
        // memory. The calls of one fit are therefore the calls with two fits minus the calls with one fit.
        let (_, none) = logged(0);
        let ((plain, want), once) = logged(1);
        let (_, twice) = logged(2);
        let (n_cap, refused) = plain[0].split_once(' ').unwrap();
        assert_eq!(refused, "0");
        let less = format!("{} 1", n_cap.parse::<usize>().unwrap() - 1);
        for call in ["cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate"] {
            let count = |log: &str| log.lines().filter(|line| line.split(' ').next() == Some(call)).count();
            let calls = count(&twice) - count(&once);
            assert!(calls > 0, "{call}");
            // In fit `k`, the `k`-th call is refused, and the next attempt makes all calls.
            let mut at = count(&none);
            let faults: Vec<String> = (1..=calls)
                .map(|k| {
                    let fault = format!("{call}:{}:2", at + k);
                    at += k + calls;
                    fault
                })
                .collect();
            let (found, bits) = fits(calls, "ELSA_STANDIN_FAIL", &faults.join(","));
            assert!(
                found.len() == calls && found.iter().all(|fit| *fit == less),
                "{device} {call}: {found:?}"
            );
            assert_eq!(bits, want, "{device} {call}");
        }
    }
}
