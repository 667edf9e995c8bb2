//! The tests under ThreadSanitizer: products that use the memory of a message in flight are data races. See
//! `runtime/mpi/tests/races.cpp`.

use super::launch::{SOURCE, launch};
use crate::ran::Ran;
use crate::shell::Tree;
use crate::test::vision::make;
use std::path::Path;

const PROGRAM: &str = "mpi-races";
const SUPPRESSIONS: &str = "runtime/mpi/tests/tsan.supp";
/// Number of random problems: all modes, with and without masks.
const PROBLEMS: &str = "30";
/// Largest number of runs with a planted race. A message that is complete before the products need its memory hides the race, and
/// on a busy machine every message of a run may be.
const PLANTED_RUNS: usize = 5;

/// Builds the tests in the folder `dir` of a library of MPI, and runs them on two processes: once as they are, and once
/// with a planted race, which must be found.
///
/// # Errors
/// Returns an error if the program cannot be built.
pub fn run(
    tree: &Tree,
    ran: &mut Ran,
    library: &str,
    dir: &Path,
    here: &Path,
    more: &[String],
) -> Result<(), String> {
    make(tree, SOURCE, &[PROGRAM], None, dir, here, more)?;
    for (what, plant, most) in [("no data race", "0", 1), ("a planted data race", "1", PLANTED_RUNS)] {
        let options = format!("suppressions={}", tree.root.join(SUPPRESSIONS).display());
        let found = || {
            let run = launch(tree, library, 2).arg(dir.join(PROGRAM)).arg(PROBLEMS);
            // UCX, a transport of MPICH, otherwise intercepts calls of the system where ThreadSanitizer cannot run.
            let run =
                run.env("TSAN_OPTIONS", &options).env("MPI_TESTS_PLANT", plant).env("UCX_MEM_EVENTS", "n");
            let out = run.run();
            let text = format!("{}\n{}", out.stdout, out.stderr);
            let races = text.matches("WARNING: ThreadSanitizer: data race").count();
            (out, text, races)
        };
        let (mut out, mut text, mut races) = found();
        for _ in 1..most {
            if races > 0 {
                break;
            }
            (out, text, races) = found();
        }
        let complete = text.contains(" passed, 0 failed");
        let good = complete && out.ok == (plant == "0") && (races == 0) == (plant == "0");
        let found = format!("{}, {races} races, all problems computed: {complete}", out.how);
        ran.note(&format!("{library}: {what}"), if good { Ok(found) } else { Err(found) });
    }
    Ok(())
}
