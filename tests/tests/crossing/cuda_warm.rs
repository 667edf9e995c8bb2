//! Checks that the first run of a warmed-up plan makes none of the driver calls that prepare a plan. The stand-in
//! driver counts the calls, in a child process with a separate log. Also tests faults while warming up, and page-locked
//! buffers.

use elsa_core::attention::{Inputs, Outputs};
use elsa_core::dtype::{Elements, ElementsMut};
use elsa_oracle::cases::{Case, Data, Params, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{Backend, Fallback, HostBuffer, PlanOptions};
use std::collections::BTreeMap;
use std::path::Path;

/// Driver functions that a fully prepared run does not call.
const LAZY: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuStreamCreate",
    "cuEventCreate",
    "cuMemFree_v2",
    "cuMemFreeHost",
];

/// Reads the lines that the child's log contains so far.
fn log() -> Vec<String> {
    let path = std::env::var("ELSA_STANDIN_LOG").unwrap();
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

/// Counts the calls of each function in [`LAZY`] after the first `before` lines of the log.
fn lazy_since(before: usize) -> BTreeMap<&'static str, usize> {
    let log = log();
    let count =
        |name: &str| log[before..].iter().filter(|line| line.starts_with(&format!("{name} "))).count();
    LAZY.into_iter().map(|name| (name, count(name))).filter(|(_, n)| *n > 0).collect()
}

/// Runs a test of this program in a child process with a log, and checks that the test reached its end. Returns what
/// the child printed after `lazy: `.
fn counted(test: &str, library: &Path, device: &str, more: &[(&str, &str)]) -> Vec<String> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut variables =
        vec![("ELSA_STANDIN_LOG", log.path().to_str().unwrap()), ("ELSA_STANDIN_DEVICE", device)];
    variables.extend(more);
    let output = child(test, library, &variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said(&output, "end").len() == 1,
        "{test}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    said(&output, "lazy")
}

/// Returns `true` if the stand-in driver computes the case in an instant.
fn is_small(case: &Case) -> bool {
    let problem = case.problem();
    problem.rows() * problem.keys() <= 50_000
}

/// In a child process, runs some small hard cases with and without states, each case with a new plan. Prints how often
/// these runs call the functions in [`LAZY`].
#[test]
#[ignore = "run by the other tests in a child"]
fn first_runs() {
    if !is_child() {
        return;
    }
    let cold = std::env::var_os("ELSA_TEST_COLD").is_some();
    let mut cases = 0;
    for case in hard_cases().into_iter().filter(is_small).step_by(7) {
        let engine = gpu_engine(Fallback::Fail);
        let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        if !cold {
            let report = plan.warm(&mut workspace).unwrap();
            assert_eq!((report.backend, &report.fallback), (Backend::Cuda, &None));
        }
        let mut buffers = case.buffers();
        let before = log().len();
        for states in [true, false] {
            let mut outputs = buffers.outputs();
            if !states {
                outputs.state = None;
            }
            plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
        }
        let lazy = lazy_since(before);
        if !cold {
            case.naive().check_all(&buffers, 4096).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
        if !lazy.is_empty() {
            println!("lazy: {lazy:?} {case:?}");
        }
        cases += 1;
    }
    assert!(cases > 20);
    println!("end: {cases}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn after_a_warm_up_the_first_run_allocates_and_loads_nothing() {
    let library = folder();
    for device in ["", "discrete"] {
        let lazy = counted("cuda_warm::first_runs", &library, device, &[]);
        assert!(lazy.is_empty(), "{device}: {lazy:?}");
        // The first run must prepare a plan that was not warmed up.
        let lazy = counted("cuda_warm::first_runs", &library, device, &[("ELSA_TEST_COLD", "1")]);
        assert!(lazy.iter().any(|calls| calls.contains("cuMemAlloc_v2")), "{device}: {lazy:?}");
        assert!(lazy.iter().any(|calls| calls.contains("cuModuleLoadDataEx")), "{device}: {lazy:?}");
    }
}

fn plain(queries: usize, keys: usize) -> Case {
    Params { heads: 2, kv_heads: 2, ..Params::plain(queries, keys, 16, 16) }.build("warm")
}

/// Warms up a plan in a child process, under faults that the parent sets.
#[test]
#[ignore = "run by the other tests in a child"]
fn warm_alone() {
    if !is_child() {
        return;
    }
    let fail = std::env::var_os("ELSA_TEST_FAIL").is_some();
    let engine = gpu_engine(if fail { Fallback::Fail } else { Fallback::Cpu });
    let case = plain(1, 9000);
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    match plan.warm(&mut workspace) {
        Ok(report) => println!("warm: {} {}", report.backend, report.fallback.is_some()),
        Err(e) => println!("warm: {e}"),
    }
    // A run is correct with or without warming up.
    let (buffers, _) = case.run(&plan, &mut workspace);
    case.naive().check_all(&buffers, 4096).unwrap();
    println!("end: 0");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_gpu_that_fails_while_it_is_warmed_up() {
    let library = folder();
    for name in ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"] {
        for code in [2, 700] {
            let fault = format!("{name}:1:{code}");
            let output = child("cuda_warm::warm_alone", &library, &[("ELSA_STANDIN_FAIL", &*fault)]);
            let warm = said(&output, "warm");
            assert!(warm.len() == 1 && warm[0].ends_with(" true"), "{fault}: {warm:?}");
            assert_eq!(said(&output, "end").len(), 1, "{fault}");
            let output = child(
                "cuda_warm::warm_alone",
                &library,
                &[("ELSA_STANDIN_FAIL", &*fault), ("ELSA_TEST_FAIL", "1")],
            );
            let warm = said(&output, "warm");
            assert!(warm.len() == 1 && warm[0].contains(name), "{fault}: {warm:?}");
            assert_eq!(said(&output, "end").len(), 1, "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Allocates a buffer in a child process, under faults that the parent sets.
#[test]
#[ignore = "run by the other tests in a child"]
fn buffer_alone() {
    if !is_child() {
        return;
    }
    for fallback in [Fallback::Cpu, Fallback::Fail] {
        let engine = gpu_engine(fallback);
        match engine.host_buffer::<u8>(1000) {
            Ok(buffer) => {
                assert!(buffer.iter().all(|x| *x == 0) && buffer.data().addr().is_multiple_of(64));
                assert_eq!(buffer.is_pinned(), buffer.device_address().is_some());
                println!("buffer: {}", buffer.is_pinned());
            }
            Err(e) => println!("buffer: {e}"),
        }
    }
    println!("end: 0");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn page_locked_memory_that_is_not_there() {
    let library = folder();
    let said = |fault: &str| {
        let output = child("cuda_warm::buffer_alone", &library, &[("ELSA_STANDIN_FAIL", fault)]);
        assert_eq!(said(&output, "end").len(), 1, "{fault}: {}", String::from_utf8_lossy(&output.stderr));
        said(&output, "buffer")
    };
    assert_eq!(said(""), ["true", "true"]);
    let none = said("cuMemHostAlloc:1+:2");
    assert_eq!(none[0], "false");
    assert!(none[1].contains("cuMemHostAlloc") && none[1].contains("1000 bytes"), "{none:?}");
    // A failure while a buffer is dropped has no effect.
    for fault in ["cuCtxSynchronize:1+:999", "cuMemFreeHost:1+:1"] {
        assert_eq!(said(fault).len(), 2, "{fault}");
    }
}

/// Checks that an f32 plan uses tensors in page-locked buffers in place, and that reports count the bytes copied.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn copies_are_counted() {
    let engine = gpu_engine(Fallback::Fail);
    let case = plain(37, 300);
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let buffer = |data: &Data| -> HostBuffer<f32> {
        let Data::F32(data) = data else { panic!("f32") };
        let mut buffer = engine.host_buffer(data.len()).unwrap();
        buffer.copy_from_slice(data);
        buffer
    };
    let inputs = [&case.q, &case.k, &case.v].map(buffer);
    let mut output = engine.host_buffer::<f32>(case.spec.output.extent()).unwrap();
    let integrated = engine.device().unwrap().profile.integrated;
    let all: usize = inputs.iter().map(|x| x.len() * 4).sum::<usize>() + output.len() * 4;
    let mut read =
        Inputs::new(Elements::F32(&inputs[0]), Elements::F32(&inputs[1]), Elements::F32(&inputs[2]));
    let mut bound = plan.bind(read, Outputs::new(ElementsMut::F32(&mut output)), &mut workspace).unwrap();
    assert_eq!(bound.run().unwrap().copied, if integrated { 0 } else { all });
    let resident = bound.run_resident().unwrap().copied;
    assert_eq!(resident, 0);
    // Both events are recorded between the start of enqueueing and the end of the wait. A device measures time in half
    // microseconds.
    let (report, times) = bound.run_timed().unwrap();
    let times = times.unwrap();
    assert_eq!(report.copied, 0);
    let host = times.enqueue + times.wait + std::time::Duration::from_micros(5);
    assert!(!times.device.is_zero() && times.device <= host, "{times:?}");
    bound.run().unwrap();
    drop(bound);
    case.naive().check(&Data::F32(output.to_vec()), None, 4096).unwrap();
    // The key is now in ordinary memory. An integrated device copies only the key.
    let Data::F32(key) = &case.k else { panic!("f32") };
    read.key = Elements::F32(key);
    let outputs = Outputs::new(ElementsMut::F32(&mut output));
    let report = plan.bind(read, outputs, &mut workspace).unwrap().run().unwrap();
    assert_eq!(report.copied, if integrated { key.len() * 4 } else { all });
}
