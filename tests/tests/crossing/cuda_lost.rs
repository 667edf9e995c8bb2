//! Tests lost contexts and reused memory, through the stand-in driver: plans of different sizes share an engine and a
//! workspace, and a context is lost between any two driver calls. Every call returns the correct output, from the GPU
//! or from the CPU, and none is refused.

use elsa_core::dtype::ElementsMut;
use elsa_oracle::cases::{Case, Data, Params};
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, Plan, PlanOptions, RunError, Workspace};
use std::sync::OnceLock;
use std::time::Duration;

fn engine() -> Engine {
    let fallback = if std::env::var_os("ELSA_TEST_FAIL").is_some() { Fallback::Fail } else { Fallback::Cpu };
    let backend = Some(Backend::Cuda);
    Engine::new(&EngineOptions::default().backend(backend).threads(2).fallback(fallback)).unwrap()
}

/// Returns a case whose keys are split, so that the workspace contains partial states.
fn large() -> Case {
    Params::plain(20, 1500, 24, 24).build("large")
}

/// Returns a case with few keys, whose workspace contains little more than a table of sequences.
fn small() -> Case {
    Params { batch: 3, lengths: true, pad: 3, ..Params::plain(5, 9, 8, 8) }.build("small")
}

fn verdict(case: &Case, output: &Data, lse: Option<&[f32]>) -> String {
    match case.naive().check(output, lse, 2000) {
        Ok(_) => "right".into(),
        Err(e) => format!("WRONG, {e}"),
    }
}

/// Number of runs per call. If the GPU computes all of them correctly, [`call`] returns [`ALL_ON_THE_GPU`].
const RUNS: usize = 3;
const ALL_ON_THE_GPU: &str = " cuda cuda cuda right";

/// Runs a bound call [`RUNS`] times. Returns the back end of each run and whether the output is correct, or the error.
fn call(plan: &Plan, case: &Case, workspace: &mut Workspace) -> String {
    let mut buffers = case.buffers();
    let mut bound = match plan.bind(case.inputs(), buffers.outputs(), workspace) {
        Ok(bound) => bound,
        Err(e) => return format!("bind error {e}"),
    };
    // If a run loses its data, a later run must prepare the data again.
    let runs: Result<Vec<&str>, _> = (0..RUNS).map(|_| Ok(bound.run()?.backend.name())).collect();
    drop(bound);
    match runs {
        Ok(runs) => {
            let answer = verdict(case, &buffers.output, Some(&buffers.lse));
            format!("{} {answer}", runs.join(" "))
        }
        Err::<_, RunError>(e) => format!("run error {e}"),
    }
}

/// In a child process, alternates calls of plans that share a workspace with calls of a plan with a separate workspace.
#[test]
#[ignore = "run by the other tests in a child"]
fn sharing() {
    if !is_child() {
        return;
    }
    let engine = engine();
    // Unlike the large problem, this one needs a table of sequences and room for three sequences.
    let both = Params { batch: 3, lengths: true, ..large().params }.build("both");
    let cases = [small(), large(), both];
    let plans = cases.each_ref().map(|case| engine.plan(&case.problem(), &PlanOptions::default()).unwrap());
    assert!(plans[..2].iter().all(|plan| plan.workspace_bytes() < plans[2].workspace_bytes()));
    let mut shared = plans[2].workspace().unwrap();
    let mut own = plans[0].workspace().unwrap();
    for _ in 0..2 {
        for (plan, case) in plans.iter().zip(&cases) {
            println!("call: {} {}", case.name, call(plan, case, &mut shared));
        }
        println!("call: own {}", call(&plans[0], &cases[0], &mut own));
    }
    println!("end: {}", engine.loaded_kernels().len());
}

/// Calls one plan twice, in a child process.
#[test]
#[ignore = "run by the other tests in a child"]
fn twice() {
    if !is_child() {
        return;
    }
    let (engine, case) = (engine(), small());
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    for _ in 0..2 {
        println!("call: {}", call(&plan, &case, &mut workspace));
    }
    println!("end: {}", engine.threads());
}

/// Log sink that, for every message, lets another thread use the engine and waits for that thread.
struct Nosy;

static WATCHED: OnceLock<Engine> = OnceLock::new();

impl log::Log for Nosy {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let Some(engine) = WATCHED.get() else { return };
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(engine.loaded_kernels().len()));
        let answer = wait.recv_timeout(Duration::from_secs(5));
        println!("call: {} {}", record.args(), if answer.is_ok() { "right" } else { "DEADLOCK" });
    }
    fn flush(&self) {}
}

/// In a child process, installs a log sink that waits for another user of the engine, and runs calls.
#[test]
#[ignore = "run by the other tests in a child"]
fn logging() {
    if !is_child() {
        return;
    }
    log::set_logger(&Nosy).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let engine = WATCHED.get_or_init(engine);
    for case in [small(), large()] {
        let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
        println!("call: {}", call(&plan, &case, &mut plan.workspace().unwrap()));
    }
    println!("end: {}", engine.threads());
}

/// In a child process, runs a plan on data that an earlier run left on the device, with calls of another plan in
/// between. The output is in memory that the device accesses in place, so that the result of a resident run is visible.
#[test]
#[ignore = "run by the other tests in a child"]
fn resident() {
    if !is_child() {
        return;
    }
    let engine = engine();
    let case = large();
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (between, other) = (small(), engine.plan(&small().problem(), &PlanOptions::default()).unwrap());
    let mut room = other.workspace().unwrap();
    let mut output = engine.host_buffer::<f32>(case.spec.output.extent()).unwrap();
    for staged in [true, false] {
        for round in 0..4 {
            output.fill(f32::NAN);
            let mut buffers = case.buffers();
            let mut outputs = buffers.outputs();
            outputs.output = Some(ElementsMut::F32(&mut output));
            let mut bound = plan.bind(case.inputs(), outputs, &mut workspace).unwrap();
            let mut report = None;
            if staged {
                report = Some(bound.run());
            }
            for _ in 0..round {
                println!("between: {}", call(&other, &between, &mut room));
                report = Some(bound.run_resident());
            }
            drop(bound);
            let Some(report) = report else { continue };
            match report {
                Ok(report) => {
                    let answer = verdict(&case, &Data::F32(output.to_vec()), None);
                    println!("call: {} {answer}", report.backend);
                }
                Err(e) => println!("call: error {e}"),
            }
        }
    }
    println!("end: {}", engine.threads());
}

fn scene(test: &str, fault: &str, fail: bool) -> Vec<String> {
    let mut variables = vec![("ELSA_STANDIN_FAIL", fault)];
    if fail {
        variables.push(("ELSA_TEST_FAIL", "1"));
    }
    let output = child(test, &folder(), &variables);
    let mut calls = said(&output, "call");
    calls.extend(said(&output, "between"));
    assert!(
        output.status.success() && said(&output, "end").len() == 1 && !calls.is_empty(),
        "{fault}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    calls
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn every_plan_keeps_its_workspace_when_a_context_is_lost() {
    let calls = scene("cuda_lost::sharing", "", false);
    assert!(calls.len() == 8 && calls.iter().all(|call| call.ends_with(ALL_ON_THE_GPU)), "{calls:?}");
    // Each of these launches loses the context. The CPU computes the run of that launch, and the GPU all other runs.
    for launch in [1, 2, 3, 6, 9, 14, 20, 29] {
        let calls = scene("cuda_lost::sharing", &format!("cuLaunchKernel:{launch}:700"), false);
        assert_eq!(calls.len(), 8);
        assert!(calls.iter().all(|call| call.ends_with(" right")), "launch {launch}: {calls:#?}");
        let runs = calls.iter().flat_map(|call| call.split(' ').filter(|word| *word == "cuda")).count();
        assert_eq!(runs, 8 * RUNS - 1, "launch {launch}: {calls:#?}");
    }
    // Both the first context and its replacement are lost.
    let calls = scene("cuda_lost::sharing", "cuLaunchKernel:3:700,cuLaunchKernel:12:719", false);
    assert!(calls.iter().all(|call| call.ends_with(" right")), "{calls:#?}");
    assert!(!calls[7].contains("cuda"), "{calls:#?}");
}

/// Checks that a context is replaced after an error code that loses it, and kept after any other code. In both cases
/// the GPU computes the next run.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn each_code_of_the_driver_either_loses_the_context_or_does_not() {
    // Codes by their effect on the context according to the driver's documentation: lost, unknown, or kept.
    let lost = [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911];
    let unknown = [4, 201, 709, 999];
    let kept = [1, 2, 400, 701, 708, 711, 712, 713, 720, 801];
    for (codes, contexts) in [(&lost[..], 1), (&unknown[..], 1), (&kept[..], 0)] {
        for code in codes {
            let log = tempfile::NamedTempFile::new().unwrap();
            let fault = format!("cuLaunchKernel:1:{code}");
            let variables =
                [("ELSA_STANDIN_FAIL", &*fault), ("ELSA_STANDIN_LOG", log.path().to_str().unwrap())];
            let output = child("cuda_lost::twice", &folder(), &variables);
            let calls = said(&output, "call");
            assert!(calls.len() == 2 && calls[0].ends_with(" cuda cuda right"), "{code}: {calls:?}");
            assert!(!calls[0].starts_with("cuda") && calls[1] == "cuda cuda cuda right", "{code}: {calls:?}");
            let log = std::fs::read_to_string(log.path()).unwrap();
            assert_eq!(log.matches("cuCtxCreate_v2 0").count(), contexts, "{code}");
        }
    }
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_log_sink_may_wait_for_another_thread() {
    let replaced = "a new context takes the place of the one that was lost right";
    for (fault, told) in [
        ("", "kernel "),
        ("cuLaunchKernel:1:700", replaced),
        ("cuLaunchKernel:1:700,cuCtxCreate_v2:1:2", "the CPU computes: "),
        ("cuModuleLoadDataEx:1:218", "the CPU computes: backend: cuda: module "),
        ("cuStreamSynchronize:2:710,cuModuleLoadDataEx:4:2", replaced),
    ] {
        let calls = scene("cuda_lost::logging", fault, false);
        assert!(calls.iter().all(|call| call.ends_with(" right")), "{fault}: {calls:#?}");
        assert!(calls.iter().any(|call| call.starts_with(told)), "{fault}: {calls:#?}");
    }
}

/// Replaces a lost context and refuses one allocation or module of the new one. All outputs must be correct, and the
/// GPU must compute the following runs.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn what_cannot_be_allocated_anew_is_tried_again() {
    // This launch belongs to the first run of the second call.
    let lost = "cuLaunchKernel:7:702";
    let log = tempfile::NamedTempFile::new().unwrap();
    let variables = [("ELSA_STANDIN_FAIL", lost), ("ELSA_STANDIN_LOG", log.path().to_str().unwrap())];
    assert!(child("cuda_lost::sharing", &folder(), &variables).status.success());
    let log = std::fs::read_to_string(log.path()).unwrap();
    let (before, after) = log.split_once("cuLaunchKernel 702\n").unwrap();
    for name in ["cuMemAlloc_v2", "cuMemHostAlloc", "cuModuleLoadDataEx"] {
        let count = |log: &str| log.lines().filter(|line| *line == format!("{name} 0")).count();
        let (first, last) = (count(before) + 1, count(before) + count(after));
        assert!(first <= last, "{name}: nothing is made anew");
        for call in (first..=last).take(4) {
            let fault = format!("{lost},{name}:{call}:2");
            let calls = scene("cuda_lost::sharing", &fault, false);
            assert!(calls.iter().all(|call| call.ends_with(" right")), "{fault}: {calls:#?}");
            // The GPU computes the last run of the second call, and all runs of a later call.
            assert!(calls[1].ends_with(" cuda right"), "{fault}: {calls:#?}");
            assert!(calls[6].ends_with(ALL_ON_THE_GPU), "{fault}: {calls:#?}");
        }
    }
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_resident_run_never_computes_on_memory_that_was_not_filled() {
    let calls = scene("cuda_lost::resident", "", false);
    assert!(calls.len() == 7 + 12 && calls.iter().all(|call| call.ends_with("cuda right")), "{calls:?}");
    for launch in [1, 3, 5, 12, 18, 31] {
        let fault = format!("cuLaunchKernel:{launch}:700");
        let calls = scene("cuda_lost::resident", &fault, false);
        assert!(calls.iter().all(|call| call.ends_with(" right")), "{fault}: {calls:#?}");
        // A call without a fallback may return an error or a correct output.
        let calls = scene("cuda_lost::resident", &fault, true);
        let fine = |call: &String| call.ends_with(" right") || call.contains("error ");
        assert!(calls.iter().all(fine), "{fault}: {calls:#?}");
    }
}
