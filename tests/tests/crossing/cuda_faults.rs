//! Provokes every possible driver failure, through the stand-in driver. Each failure ends in a correct output or in a
//! typed error, is reported once to the log and in every report, and leaves the process usable.
//!
//! Every fault occurs in a child process, which plans, binds and runs one problem several times and prints the results.

use elsa_core::attention::Alignment;
use elsa_core::dtype::{Elements, ElementsMut};
use elsa_oracle::cases::{Buffers, Case, Data, Params};
use elsa_oracle::naive::Answer;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, PlanOptions, Report};
use memchr::memmem;
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of warnings that were logged.
static WARNINGS: AtomicUsize = AtomicUsize::new(0);

struct Counter;

impl log::Log for Counter {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
            println!("warning: {}", record.args());
        }
    }
    fn flush(&self) {}
}

/// Returns a causal problem with two heads, present tensors, and enough keys for several splits. Its run needs the
/// tile kernel, the merge kernel and the kernel that writes present tensors.
fn problem() -> Case {
    let causal = Some(Alignment::BottomRight);
    let p = Params {
        heads: 2,
        kv_heads: 2,
        causal,
        past: Some(100),
        present: true,
        ..Params::plain(70, 300, 24, 24)
    };
    p.build("faults")
}

/// Counts the calls of each driver function so far, if the child process has a log.
fn calls() -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    if let Ok(path) = std::env::var("ELSA_STANDIN_LOG") {
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            *calls.entry(line.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    calls
}

fn judge(naive: &Answer, buffers: &Buffers) -> String {
    match naive.check_all(buffers, 600) {
        Ok(_) => "right".into(),
        Err(e) => format!("WRONG, {e}"),
    }
}

fn tell(what: &str, report: &Report, answer: &str) {
    let reason = report.fallback.as_ref().map_or("-".to_owned(), ToString::to_string);
    println!("{what}: {} {answer} {}", report.backend, reason.replace('\n', " "));
}

/// Runs the scenario in a child process. Each line that it prints begins with a word. After `engine`, `plan`,
/// `workspace` or `bind`, the line contains an error. After `run`, it contains the back end, the verdict and the reason
/// of the fallback. Other lines begin with `warning` or `end`.
#[test]
#[ignore = "run by the other tests in a child"]
fn scenario() {
    if !is_child() {
        return;
    }
    log::set_logger(&Counter).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let fail = std::env::var_os("ELSA_TEST_FAIL").is_some();
    let fallback = if fail { Fallback::Fail } else { Fallback::Cpu };
    let backend = std::env::var_os("ELSA_TEST_AUTO").is_none().then_some(Backend::Cuda);
    attempt(&EngineOptions::default().backend(backend).threads(2).fallback(fallback));
    println!("end: {}", WARNINGS.load(Ordering::SeqCst));
}

fn attempt(options: &EngineOptions) {
    let engine = match Engine::new(options) {
        Ok(engine) => engine,
        Err(e) => return println!("engine: {}", e.to_string().replace('\n', " ")),
    };
    let case = problem();
    let (naive, want) = (case.naive(), case.naive_present());
    let checked = case.problem();
    let plan = match engine.plan(&checked, &PlanOptions::default()) {
        Ok(plan) => plan,
        Err(e) => return println!("plan: {}", e.to_string().replace('\n', " ")),
    };
    let mut workspace = match plan.workspace() {
        Ok(workspace) => workspace,
        Err(e) => return println!("workspace: {e}"),
    };
    let mut first: Option<Buffers> = None;
    for _ in 0..2 {
        let mut buffers = case.buffers();
        let outputs = buffers.outputs();
        let mut bound = match plan.bind(case.inputs(), outputs, &mut workspace) {
            Ok(bound) => bound,
            Err(e) => {
                println!("bind: {e}");
                continue;
            }
        };
        let mut reports = Vec::new();
        for _ in 0..3 {
            let before = calls();
            let report = bound.run();
            let after = calls();
            for name in
                ["cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadDataEx", "cuMemFree_v2", "cuMemFreeHost"]
            {
                println!("during {name}: {}", after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0));
            }
            reports.push(report);
        }
        drop(bound);
        let answer = judge(&naive, &buffers);
        for report in reports {
            match report {
                // The verdict is about the outputs of the last run.
                Ok(report) => tell("run", &report, &answer),
                Err(e) => println!("error: {}", e.to_string().replace('\n', " ")),
            }
        }
        if buffers.present != want && answer == "right" {
            println!("run: present WRONG");
        }
        first.get_or_insert(buffers);
    }
    mapped(&engine, &case, &naive);
    // The engine stays usable for another plan and another workspace.
    drop(workspace);
    let packed = Some(vec![(5, 9), (0, 3), (40, 70)]);
    let small = Params { packed, ..Params::plain(0, 0, 8, 8) }.build("after");
    let checked = small.problem();
    let mut buffers = small.buffers();
    let again = engine.plan(&checked, &PlanOptions::default()).map_err(|e| e.to_string()).and_then(|plan| {
        let mut workspace = plan.workspace().map_err(|e| e.to_string())?;
        let mut bound =
            plan.bind(small.inputs(), buffers.outputs(), &mut workspace).map_err(|e| e.to_string())?;
        bound.run().map_err(|e| e.to_string())
    });
    match again {
        Ok(report) => tell("after", &report, &judge(&small.naive(), &buffers)),
        Err(e) => println!("after error: {}", e.replace('\n', " ")),
    }
}

/// Runs a call whose query and output are in memory that an integrated GPU accesses in place. Prints the number of
/// copies.
fn mapped(engine: &Engine, case: &Case, naive: &Answer) {
    let Data::F32(q) = &case.q else { panic!("f32") };
    let (Ok(mut query), Ok(mut output)) =
        (engine.host_buffer::<f32>(q.len()), engine.host_buffer::<f32>(case.spec.output.extent()))
    else {
        return;
    };
    query.copy_from_slice(q);
    output.fill(f32::NAN);
    let (checked, mut buffers) = (case.problem(), case.buffers());
    let Ok(plan) = engine.plan(&checked, &PlanOptions::default()) else { return };
    let Ok(mut workspace) = plan.workspace() else { return };
    let mut inputs = case.inputs();
    inputs.query = Elements::F32(&query);
    let mut outputs = buffers.outputs();
    outputs.output = Some(ElementsMut::F32(&mut output));
    let before = calls();
    let Ok(mut bound) = plan.bind(inputs, outputs, &mut workspace) else { return };
    let Ok(report) = bound.run() else { return };
    drop(bound);
    let after = calls();
    for name in ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"] {
        println!("mapped {name}: {}", after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0));
    }
    let pinned = query.is_pinned() && output.is_pinned();
    let output = output.to_vec();
    buffers.output = Data::F32(output);
    tell(if pinned { "mapped" } else { "ordinary" }, &report, &judge(naive, &buffers));
}

/// Runs the scenario in a child process with the environment `variables`; the scenario must reach its end.
fn scene(library: &Path, variables: &[(&str, &str)]) -> Output {
    let output = child("cuda_faults::scenario", library, variables);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && !said(&output, "end").is_empty(),
        "{variables:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!text.contains("WRONG"), "{variables:?}:\n{text}");
    output
}

fn everything(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Requires that the CPU computed all runs correctly, and that each run and exactly one warning gave `reason`.
fn fell_back(output: &Output, reason: &str) {
    let runs = said(output, "run");
    assert_eq!(runs.len(), 6, "{}", everything(output));
    for run in &runs {
        assert!(
            !run.starts_with("cuda") && run.contains(" right ") && run.contains(reason),
            "{reason}: {run}"
        );
    }
    let warnings = said(output, "warning");
    assert!(warnings.len() == 1 && warnings[0].contains(reason), "{reason}: {warnings:?}");
}

/// Runs the scenario under [`Fallback::Fail`]. It must report an error at `stage` that contains `reason`, and no run
/// may be on the CPU.
fn failed(library: &Path, variables: &[(&str, &str)], stage: &str, reason: &str) {
    let mut all = variables.to_vec();
    all.push(("ELSA_TEST_FAIL", "1"));
    let output = scene(library, &all);
    let errors = said(&output, stage);
    assert!(
        errors.iter().any(|e| e.contains(reason)),
        "{all:?}: {stage}, {reason}:\n{}",
        everything(&output)
    );
    assert!(!said(&output, "run").iter().any(|run| !run.starts_with("cuda")), "{}", everything(&output));
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn without_a_fault_the_gpu_computes_and_allocates_nothing() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let output = scene(&folder(), &[("ELSA_STANDIN_LOG", log.path().to_str().unwrap())]);
    let runs = said(&output, "run");
    assert!(runs.len() == 6 && runs.iter().all(|run| run == "cuda right -"), "{runs:?}");
    assert_eq!(said(&output, "after"), ["cuda right -"]);
    assert_eq!(said(&output, "end"), ["0"]);
    // Keys, values and the past are copied in, the query is not. Log-sum-exp, states and the present are copied out,
    // the output is not.
    assert_eq!(said(&output, "mapped"), ["cuda right -"]);
    assert_eq!(said(&output, "mapped cuMemcpyHtoDAsync_v2"), ["4"]);
    assert_eq!(said(&output, "mapped cuMemcpyDtoHAsync_v2"), ["6"]);
    for name in ["cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadDataEx", "cuMemFree_v2", "cuMemFreeHost"] {
        let during = said(&output, &format!("during {name}"));
        assert!(during.len() == 6 && during.iter().all(|n| n == "0"), "{name}: {during:?}");
    }
    // Every resource is released.
    let calls = std::fs::read_to_string(log.path()).unwrap();
    let count = |name: &str| calls.lines().filter(|line| *line == format!("{name} 0")).count();
    for (take, give) in [
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuModuleLoadDataEx", "cuModuleUnload"),
        ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
    ] {
        assert!(count(take) > 0, "{take} is never called");
        assert_eq!(count(take), count(give), "{take} and {give}");
    }
    let bad: Vec<&str> = calls.lines().filter(|line| !line.ends_with(" 0")).collect();
    // A pointer query returns code 1 if the memory does not belong to the driver.
    assert!(bad.iter().all(|line| *line == "cuPointerGetAttribute 1"), "{bad:?}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn no_driver_no_device_and_an_old_one() {
    let empty = tempfile::tempdir().unwrap();
    fell_back(&scene(empty.path(), &[]), "libcuda");
    failed(empty.path(), &[], "engine", "libcuda");
    let library = folder();
    let cases = [("none", "CUDA_ERROR_NO_DEVICE"), ("old", "5.2")];
    for (device, reason) in cases {
        fell_back(&scene(&library, &[("ELSA_STANDIN_DEVICE", device)]), reason);
        failed(&library, &[("ELSA_STANDIN_DEVICE", device)], "engine", reason);
        // If no GPU is requested, there is nothing to warn about.
        let auto = scene(&library, &[("ELSA_STANDIN_DEVICE", device), ("ELSA_TEST_AUTO", "1")]);
        assert_eq!(said(&auto, "end"), ["0"], "{}", everything(&auto));
        assert!(said(&auto, "run").iter().all(|run| !run.starts_with("cuda") && run.ends_with("right -")));
    }
    let auto = scene(&library, &[("ELSA_TEST_AUTO", "1")]);
    assert!(said(&auto, "run").iter().all(|run| run == "cuda right -"), "{}", everything(&auto));
    for device in ["nano", "new"] {
        let other = scene(&library, &[("ELSA_STANDIN_DEVICE", device)]);
        assert!(said(&other, "run").iter().all(|run| run == "cuda right -"), "{}", everything(&other));
    }
}

/// Returns the names of the functions that the library exports.
fn exports(library: &[u8]) -> BTreeSet<String> {
    let file = object::File::parse(library).unwrap();
    let symbols = file.dynamic_symbols().filter(|s| s.is_definition() && s.is_global());
    symbols.map(|s| s.name().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn each_missing_symbol_is_named() {
    let whole = std::fs::read(folder().join("libcuda.so.1")).unwrap();
    let mut needed = 0;
    for name in exports(&whole) {
        // This copy of the library has a changed name in its symbol table.
        let mut lacking = whole.clone();
        let pattern = [b"\0", name.as_bytes(), b"\0"].concat();
        let found: Vec<usize> = memmem::find_iter(&whole, &pattern).collect();
        for at in &found {
            lacking[at + 1] = b'x';
        }
        assert!(!found.is_empty() && !exports(&lacking).contains(&name), "{name}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("libcuda.so.1"), &lacking).unwrap();
        let output = scene(dir.path(), &[]);
        if said(&output, "run").iter().all(|run| run == "cuda right -") {
            continue;
        }
        needed += 1;
        fell_back(&output, &name);
    }
    println!("{needed} symbols are needed");
    assert!(needed >= 30, "{needed}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn the_library_exports_what_a_driver_of_10_2_does() {
    let list = include_str!("../../standin/symbols-10.2.txt");
    let allowed: BTreeSet<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(allowed.len() > 300);
    let exported = exports(&std::fs::read(folder().join("libcuda.so.1")).unwrap());
    assert!(exported.len() > 60);
    let beyond: Vec<&String> = exported.iter().filter(|name| !allowed.contains(name.as_str())).collect();
    assert!(beyond.is_empty(), "{beyond:?}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn modules_that_are_refused() {
    let library = folder();
    let refuse = [("ELSA_STANDIN_PTX", "refuse")];
    let output = scene(&library, &refuse);
    fell_back(&output, "CUDA_ERROR_INVALID_PTX");
    for part in ["module ", "6.5", "10.2", "PTX is refused"] {
        assert!(said(&output, "run")[0].contains(part), "{part}: {}", everything(&output));
    }
    failed(&library, &refuse, "plan", "PTX is refused");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn memory_that_is_not_there() {
    let library = folder();
    for bytes in ["1", "1000", "300000"] {
        fell_back(&scene(&library, &[("ELSA_STANDIN_MEMORY", bytes)]), "OUT_OF_MEMORY");
        let output = scene(&library, &[("ELSA_STANDIN_MEMORY", bytes), ("ELSA_TEST_FAIL", "1")]);
        assert!(everything(&output).contains("OUT_OF_MEMORY"), "{}", everything(&output));
    }
}

/// Makes each driver function of the scenario fail, at its first and at its last call, with codes that keep the context
/// usable and with codes that lose it.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn every_call_fails() {
    let library = folder();
    let log = tempfile::NamedTempFile::new().unwrap();
    let _ = scene(&library, &[("ELSA_STANDIN_LOG", log.path().to_str().unwrap())]);
    let mut calls: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(log.path()).unwrap().lines() {
        *calls.entry(line.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
    }
    let (mut cpu, mut gpu) = (0, 0);
    for (name, n) in &calls {
        let at: BTreeSet<usize> = [1, *n].into();
        for call in at {
            for code in [2, 700] {
                let fault = format!("{name}:{call}:{code}");
                let output = scene(&library, &[("ELSA_STANDIN_FAIL", &fault)]);
                let runs = said(&output, "run");
                // If a call that only releases something fails, no output changes.
                assert_eq!(runs.len(), 6, "{fault}:\n{}", everything(&output));
                assert_eq!(said(&output, "after").len(), 1, "{fault}:\n{}", everything(&output));
                match runs.iter().filter(|run| !run.starts_with("cuda")).count() {
                    0 => gpu += 1,
                    _ => cpu += 1,
                }
                for run in &runs {
                    assert_eq!(run.starts_with("cuda"), run.ends_with(" -"), "{fault}: {run}");
                }
                if call == 1 {
                    let output = scene(&library, &[("ELSA_STANDIN_FAIL", &fault), ("ELSA_TEST_FAIL", "1")]);
                    assert!(said(&output, "run").iter().all(|run| run.starts_with("cuda")), "{fault}");
                }
            }
        }
    }
    println!("{} functions; {cpu} faults brought the CPU in, {gpu} did not", calls.len());
    assert!(calls.len() >= 25 && cpu > 30 && gpu > 10, "{cpu} {gpu}");
}

/// Checks that a lost context is replaced once. If the new context is lost too, the CPU computes all later runs.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_lost_context_is_replaced_once() {
    let library = folder();
    for code in ["700", "702", "719"] {
        let output = scene(&library, &[("ELSA_STANDIN_FAIL", &format!("cuLaunchKernel:1:{code}"))]);
        let runs = said(&output, "run");
        assert!(!runs[0].starts_with("cuda") && runs[0].contains(code), "{runs:?}");
        assert!(runs[1..].iter().all(|run| run == "cuda right -"), "{runs:?}");
        assert_eq!(said(&output, "after"), ["cuda right -"]);
        let output = scene(&library, &[("ELSA_STANDIN_FAIL", &format!("cuLaunchKernel:1+:{code}"))]);
        assert!(said(&output, "run").iter().all(|run| !run.starts_with("cuda") && run.contains(" right ")));
        assert!(!said(&output, "after")[0].starts_with("cuda"), "{}", everything(&output));
        assert_eq!(said(&output, "end"), ["1"], "{}", everything(&output));
        let fail =
            [("ELSA_STANDIN_FAIL", &*format!("cuStreamSynchronize:1+:{code}")), ("ELSA_TEST_FAIL", "1")];
        let output = scene(&library, &fail);
        assert!(
            !said(&output, "error").is_empty() && said(&output, "run").is_empty(),
            "{}",
            everything(&output)
        );
    }
}
