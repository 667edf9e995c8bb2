//! Runs the stage `host` (the tests of the workspace, natively and on the stand-in GPU, and all programs that use the
//! libraries) and the stage `miri`.
//!
//! Cargo rebuilds a crate if other packages are selected with it, because the features of its dependencies then differ.
//! Commands that share a build folder therefore select the same packages, and select tests by name.

use super::cargo::{add_tests, tests, together, widest, with_standin};
use super::{capi, examples, groups, guide, printed, python, readme};
use crate::boards::build;
use crate::boards::target::{HOST, Target};
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::{Path, PathBuf};

/// Tests that take longer than a second each. `--fast` skips them. Each name belongs to exactly one test.
const SLOW: [&str; 40] = [
    "a_merge",
    "a_streamed_run",
    "append::the_bits_of_copies_and_no_other_byte",
    "cli_bench::workloads_are_measured_by_name",
    "cli_budget::the_number_that_a_refusal_names_is_enough",
    "cli_commit::a_run_recovers_from_a_kill_at_every_step",
    "cli_foreign::no_argument_of_any_verb_acts_or_hides",
    "cli_inputs::no_verb_overwrites_what_it_reads",
    "cli_memory::an_output_is_held_once",
    "cli_memory::headers_take_memory_in_proportion",
    "cli_origin::gradients_take_the_states_of_their_own_tensors",
    "cli_origin::sizes_are_those_of_arrays",
    "cli_origin::tasks_of_other_tensors_are_refused",
    "cli_resume::a_run_goes_on_where_it_was_killed",
    "cli_stream::refused_memory_leaves_no_output",
    "cli_tables::many_rows_are_compared_by_name",
    "cli_tasks::every_rule_holds_by_original_positions",
    "cli_tasks::ragged_lengths_down_to_none",
    "cli_verify_bench::the_stress_scenario_is_verified",
    "cli_windows::what_does_not_fit_is_refused_by_flag",
    "decoding::heads_that_share_keys_have_the_bits_of_heads_that_do_not",
    "determinism::threads_budget_and_repetition_change_no_bit",
    "less_memory_makes_smaller_units",
    "masks::shared_masks_have_the_bits_of_expanded_ones",
    "program::a_later_signal_ends_a_loop_that_hangs",
    "program::a_serial_port_that_nobody_reads_holds_no_frame_up",
    "program::a_signal_ends_a_loop_that_waits_for_its_first_frame_or_for_a_long_period",
    "program::every_frame_is_answered_at_100_hz_under_load",
    "reference_oracle::agrees_on_hard_cases",
    "schedule::hard_cases_are_covered_as_defined",
    "schedules::frozen_runs_are_exact_on_hard_cases",
    "schedules_diagonal::answers_are_within_their_bounds",
    "schedules_kernels::answers_by_a_schedule_are_within_their_bounds",
    "schedules_unseen::answers_are_within_their_bounds",
    "schedules_unseen::blocks_far_from_the_queries_go_unseen",
    "schedules_unseen::what_may_count_is_met",
    "streamed::bits_are_those_in_memory",
    "tests::sizes::a_mask_that_a_free_axis_decides_stays_a_tensor",
    "the_loop_allocates_nothing",
    "workspaces::any_sequence_of_calls_passes_through_one_workspace",
];

/// Runs the stage `host`; if `fast`, only the tests of the workspace, without those of [`SLOW`].
pub fn host(tree: &Tree, fast: bool) -> Ran {
    Ran::of("tests and checks", |ran| {
        let mut run = Run::new(tree, "cargo test --workspace --no-fail-fast");
        if fast {
            run = run.args("-- --exact").args(&SLOW.map(|name| format!("--skip {name}")).join(" "));
        }
        let out = tests(ran, run.env_default("ELSA_REQUIRE", widest()));
        let skipped = printed::skipped(&out.stdout);
        if fast && out.ok && skipped != SLOW.len() as u64 {
            return Err(format!("{skipped} tests were skipped, but SLOW names {}", SLOW.len()));
        }
        match groups::folder() {
            Ok(folder) => {
                let line = "cargo test --workspace --test tool --no-fail-fast -- --ignored cli_groups::";
                tests(ran, Run::new(tree, line).env("ELSA_TEST_GROUPS", folder));
            }
            Err(why) => ran.note = format!("not run: control groups ({why})"),
        }
        if fast {
            return Ok(());
        }
        let driver = standin::build(tree, Variant::Plain)?;
        on_the_standin(tree, ran, &driver);
        let folder = products(tree)?;
        let folder = build::quick(tree, ran, &Target::named(tree, HOST)?, &folder)?;
        python::newest(tree, ran, &folder, &driver)?;
        guide::pages(tree, ran, &tree.target.join("debug"), &folder, &setup::ort::newest(tree)?)?;
        readme::rust_by_the_compiler(tree, ran)?;
        capi::quick(tree, ran, &folder, &driver)?;
        examples::snippets(tree, ran, &folder, &driver)
    })
}

/// Builds the libraries, the tool and the host of ONNX Runtime in the configuration of the tests; returns their folder.
pub fn products(tree: &Tree) -> Result<PathBuf, String> {
    Run::new(tree, "cargo build --workspace").args(build::PRODUCTS).run().text("the libraries")?;
    Ok(tree.target.join("debug"))
}

/// Runs the same test programs again, with the stand-in GPU as an additional back end.
fn on_the_standin(tree: &Tree, ran: &mut Ran, driver: &Path) {
    // The tests of a process run one after another, because the stand-in refuses to free page-locked memory while any work is
    // running. `every_block_size` is skipped, because block sizes only concern the processor's kernels.
    let lines = [
        "cargo test --workspace --test crossing --no-fail-fast -- --include-ignored conformance:: \
         --skip every_block_size --test-threads 1",
        "cargo test --workspace --test crossing --test no_allocation --no-fail-fast -- --include-ignored \
         hostile:: certified:: windows:: determinism:: append:: chunks:: tasks:: run_and_bind --skip scale_ \
         --skip cuda_ --test-threads 1",
        "cargo test --workspace --test crossing --no-fail-fast -- --include-ignored cuda_ --skip scale_ \
         --skip cuda_conformance:: --skip cuda_tensor:: --test-threads 1",
        "cargo test --workspace --exclude elsa-kernels --lib --no-fail-fast -- --include-ignored cuda:: --test-threads 1",
    ];
    // Only the GPU is tested here: a previous command tests the back ends of the processor.
    let run = |line: &str| with_standin(Run::new(tree, line).env("ELSA_ONLY", "cuda"), driver);
    for (line, out) in together(lines.map(run).into()) {
        add_tests(ran, &line, &out);
    }
    let one =
        |line: &str| with_standin(Run::new(tree, "cargo test --workspace --no-fail-fast").args(line), driver);
    // Tests every flag of the tool on the GPU instead of the CPU, and the robot.
    let tool =
        one("--test tool -- --include-ignored cli_run:: cli_tune:: cli_stream::a_gpu cli_resume::a_gpu \
         cli_all_tasks::devices_");
    let robot = one("--test robot --test no_frame_allocates -- --include-ignored gpu:: the_loop_");
    let tensor = one("--test crossing -- --include-ignored cuda_tensor:: --test-threads 1");
    let of_tool = one("--test tool -- cli_tensor_cores:: cli_run::warmup").env("ELSA_BACKEND", "cuda");
    let on_tensor_cores = [tensor, of_tool].map(|run| run.env("ELSA_STANDIN_DEVICE", "tensor"));
    let runs = [tool.env("ELSA_BACKEND", "cuda"), robot].into_iter().chain(on_tensor_cores).collect();
    for (line, out) in together(runs) {
        add_tests(ran, &line, &out);
    }
}

/// Runs the part of the stage `ptx` that executes device code: every kernel, on a device large enough for many key splits.
pub fn large_device(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        let driver = standin::build(tree, Variant::Plain)?;
        let line = "cargo test --workspace --test crossing -- --include-ignored cuda_conformance::every_kernel --test-threads 1";
        tests(ran, with_standin(Run::new(tree, line), &driver).env("ELSA_STANDIN_DEVICE", "large"));
        Ok(())
    })
}

/// Runs the stage `miri`.
pub fn miri(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    if let Err(fault) = setup::nightly(tree, &["miri", "rust-src"]) {
        return Ran::fault(ran.counted, fault);
    }
    // Miri's standard library is built once, before several commands need it.
    if !Run::new(tree, "cargo +nightly miri setup").run().ok {
        return Ran::fault(ran.counted, "cargo +nightly miri setup: failed".to_owned());
    }
    // Each command uses one thread. The longest command comes first.
    let lines = [
        // Complete calls through the engine.
        "cargo +nightly miri test -p elsa-tests --test crossing --no-fail-fast -- small_calls::calls_agree",
        "cargo +nightly miri test -p elsa-tests --test crossing --no-fail-fast -- small_calls --skip calls_agree",
        // This crate forbids unsafe code. Its long tests are skipped here; the stage `host` runs them.
        "cargo +nightly miri test -p elsa-core --lib --tests --no-fail-fast -- --skip quorum:: \
         --skip backward:: --skip plan:: --skip rounding:: --skip run_certificate::",
        "cargo +nightly miri test -p elsa-kernels --tests --no-fail-fast",
        // Tests of mapped files are skipped, because Miri maps no files. The other skipped tests execute no unsafe code.
        "cargo +nightly miri test -p elsa-runtime --lib --no-fail-fast -- --skip mapped --skip tuned \
         --skip steps:: --skip guard::",
    ];
    let run = |line: &str| {
        // Isolation is disabled, so that the variables below reach the tests and proptest finds its folder.
        Run::new(tree, line)
            .env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-deterministic-floats")
            .env("ELSA_REQUIRE", "scalar")
            .env("ELSA_BACKEND", "scalar")
            .env_default("PROPTEST_CASES", "4")
    };
    for (line, out) in together(lines.map(run).into()) {
        add_tests(&mut ran, &line, &out);
    }
    ran
}
