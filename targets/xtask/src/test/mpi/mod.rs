//! Runs the stage `mpi`: the program `runtime/mpi` and its tests, built with this machine's folder and with the libraries
//! Open MPI and MPICH, on several processes. The answers must have the bits of one process, and `quorum` those of the tool.
//! The same programs, built for a board, run on emulated processors.

mod emulated;
mod launch;
mod races;

use self::launch::{MODES, PROGRAMS, SOURCE, answers, launch, same, tensors};
use super::dist::dist;
use super::vision::{count, make, refusals};
use crate::boards::target::HOST;
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use serde_json::Value;
use std::path::Path;

/// Libraries of MPI: the suffix of their programs, and the Debian packages of the compiler and of the launcher.
const LIBRARIES: [(&str, [&str; 2]); 2] =
    [("openmpi", ["libopenmpi-dev", "openmpi-bin"]), ("mpich", ["libmpich-dev", "mpich"])];

/// Numbers of processes of the tests, and the number of random problems of each.
const TESTS: [(usize, u32); 3] = [(2, 200), (4, 200), (8, 30)];

/// Shape of the tensors of the program: batch, heads, tokens, head size.
const SHAPE: [usize; 4] = [2, 4, 97, 16];

/// Rate of a slowed link in bytes per second.
const SLOW: f64 = 1e8;

/// Rate of a link so slow that the messages of a small ring take much longer than its computation.
const SLOWEST: f64 = 1e5;

/// Requests that the program must reject, each with a text that the error message must contain.
const REFUSED: [(&str, &str); 9] = [
    ("", "mode"),
    ("ring", "--q"),
    ("ring --q no-such.npy", "no-such.npy"),
    ("ring --q Cargo.toml", "no .npy file"),
    ("ring --chunks 0", "--chunks"),
    ("ring --bogus 1", "--bogus"),
    ("ring --timeout -1", "--timeout"),
    ("link --slow-link 0", "--slow-link"),
    ("ring --json", "--json"),
];

/// Runs the stage `mpi`.
pub fn mpi(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    let here = dist(tree, ran, HOST)?;
    let home = tree.target.join("mpi");
    for (at, name) in ["q", "k", "v"].into_iter().enumerate() {
        files::write(&home.join(format!("{name}.npy")), array(at as u32 + 1))?;
    }
    for (library, [compiler, launcher]) in LIBRARIES {
        let wrapper = format!("/usr/bin/mpicxx.{library}");
        setup::file(tree, &wrapper, compiler)?;
        setup::program(tree, &format!("mpirun.{library}"), launcher)?;
        let dir = home.join(library);
        let more = [format!("-DMPI_CXX_COMPILER={wrapper}")];
        make(tree, SOURCE, &PROGRAMS, None, &dir, &here, &more)?;
        for (processes, problems) in TESTS {
            count(ran, launch(tree, library, processes).arg(dir.join(PROGRAMS[1])).arg(problems.to_string()));
        }
        // Seeds of a problem of each mode.
        for seed in 3..6 {
            let lost = |how: &str| {
                launch(tree, library, 3).arg(dir.join(PROGRAMS[1])).arg(how).arg(seed.to_string()).run()
            };
            let stopped = lost("stop");
            let typed = stopped.stdout.contains("typed: timeout: ") && !stopped.stdout.contains("untyped");
            let found = format!("{}: {}", stopped.how, stopped.stdout.lines().next().unwrap_or_default());
            let good = typed && stopped.code.is_some_and(|code| code != 0);
            ran.note(
                &format!("{library}: a stopped process, seed {seed}"),
                if good { Ok(found) } else { Err(found) },
            );
            let dead = lost("die");
            let good = dead.code.is_some_and(|code| code != 0);
            ran.note(
                &format!("{library}: a dead process, seed {seed}"),
                if good { Ok(dead.how) } else { Err(dead.how) },
            );
        }
        races::run(tree, ran, library, &dir, &here, &more)?;
        program(tree, ran, library, &home, &here)?;
    }
    if Run::new(tree, "id -u").quiet().run().stdout.trim() != "0" {
        ran.note = "no emulated processes: unpacking their libraries needs root".to_owned();
        return Ok(());
    }
    emulated::run(tree, ran, &home)
}

/// Runs the program on files.
fn program(tree: &Tree, ran: &mut Ran, library: &str, home: &Path, here: &Path) -> Result<(), String> {
    let tensors = tensors(home);
    let elsa = |processes: usize| launch(tree, library, processes).arg(home.join(library).join(PROGRAMS[0]));
    for mode in MODES {
        let mut answers = answers(home, mode, &elsa)?;
        if let Some(flags) = mode.strip_prefix("quorum") {
            let out = home.join("tool.npy");
            let run = Run::new(tree, "").arg(here.join("bin/elsa")).args("run").args(flags).args(&tensors);
            run.args("--threads 1 --out").arg(&out).run().text("elsa")?;
            answers.push(files::bytes(&out)?);
        }
        ran.note(&format!("{library}: the bits of {mode}"), same(&answers));
    }
    let alone = home.join(library).join(PROGRAMS[0]);
    refusals(ran, |rest| Run::new(tree, "").arg(&alone).args(rest), &REFUSED);
    link(ran, library, &elsa);
    let out = home.join("slow.npy");
    let flags = format!("ring --chunks 8 {tensors} --threads 1 --out {}", out.display());
    slowed(ran, library, &elsa, &flags, predicted(tree)?);
    let out = home.join("refused.npy");
    let flags = format!("ring {tensors} --out {}", out.display());
    let both = elsa(1).args(&flags).args("--run-id a : -n 1").arg(home.join(library).join(PROGRAMS[0]));
    let told = both.args(&flags).args("--run-id b").run();
    let good = told.stderr.contains("rank 1: run_id b; allowed: run_id a") && !told.ok && !out.exists();
    ran.note(&format!("{library}: runs of two names"), if good { Ok(told.how) } else { Err(told.how) });
    Ok(())
}

/// Requires that `link` measures a slowed link within 20 %, in one of three attempts, because other programs disturb it.
fn link(ran: &mut Ran, library: &str, elsa: &dyn Fn(usize) -> Run) {
    let measured = || {
        let flags = format!("link --json --slow-link {SLOW}");
        let text = elsa(2).args(&flags).run().text("elsa-mpi link")?;
        let found: Value = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
        let bandwidth = found["pairs"][0]["bandwidth"].as_f64().unwrap_or_default();
        let found = format!("{bandwidth:.3e} bytes per second; allowed: {SLOW:.3e} within 20 %");
        if (bandwidth / SLOW - 1.0).abs() <= 0.2 { Ok(found) } else { Err(found) }
    };
    let found = measured().or_else(|_| measured()).or_else(|_| measured());
    ran.note(&format!("{library}: bandwidth of a slowed link"), found);
}

/// Returns the seconds that `elsa-lab simulate` predicts for a ring of two processes over a slow link, with the costs of
/// this machine.
///
/// # Errors
/// Returns an error if the tool fails or predicts no ring.
fn predicted(tree: &Tree) -> Result<f64, String> {
    let [batch, heads, tokens, dim] = SHAPE;
    let run =
        Run::new(tree, "cargo run --quiet -p elsa-lab -- simulate --json --measure=64,96,128 --threads 1");
    let run = run.args(&format!("--heads {} --dim {dim} --tokens {tokens}", batch * heads));
    let text = run
        .args(&format!("--boards 2 --link 0,{}", SLOWEST / 1e9))
        .machine()
        .run()
        .text("elsa-lab simulate")?;
    let found: Value = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
    let modes = found["together"]["modes"].as_array();
    let ring = modes.and_then(|modes| modes.iter().find(|mode| mode["mode"] == "ring"));
    ring.and_then(|ring| ring["seconds"].as_f64()).ok_or_else(|| format!("{text}: no seconds of a ring"))
}

/// Requires that a ring of two processes over a slow link takes the time `wanted` within 20 %, as the median of three
/// runs, in one of three attempts.
fn slowed(ran: &mut Ran, library: &str, elsa: &dyn Fn(usize) -> Run, flags: &str, wanted: f64) {
    let once = || {
        let out = elsa(2).args(flags).args(&format!("--slow-link {SLOWEST}")).run();
        let found =
            out.stderr.rsplit_once(" in ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
        found.ok_or_else(|| format!("{}: {}", out.how, out.stderr))
    };
    let measured = || {
        let mut all = [once()?, once()?, once()?];
        all.sort_by(f64::total_cmp);
        let seconds = all[1] / 1e3;
        let found = format!("{seconds:.3} s; allowed: the predicted {wanted:.3} s within 20 %");
        if (seconds / wanted - 1.0).abs() <= 0.2 { Ok(found) } else { Err(found) }
    };
    let found = measured().or_else(|_| measured()).or_else(|_| measured());
    ran.note(&format!("{library}: time of a ring over a slowed link"), found);
}

/// Returns an `.npy` file with noise of [`SHAPE`].
fn array(seed: u32) -> Vec<u8> {
    let [b, h, n, d] = SHAPE;
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({b}, {h}, {n}, {d}), }}").into_bytes();
    header.resize(117, b' ');
    header.push(b'\n');
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(header);
    let mut state = seed;
    for _ in 0..b * h * n * d {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend(((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::launch::elements;
    use super::*;

    #[test]
    fn arrays_have_their_elements_behind_the_header() {
        let file = array(1);
        assert_eq!(elements(&file).len(), 4 * SHAPE.iter().product::<usize>());
        assert_eq!(file.len() - elements(&file).len(), 128);
        assert!(elements(&file) != elements(&array(2)));
    }
}
