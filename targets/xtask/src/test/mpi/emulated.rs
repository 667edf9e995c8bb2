//! The programs for a board: cross-compiled with the board's folder and with Debian's arm64 libraries of MPI, and run by
//! this machine's launchers, each process in an emulator. The emulated processes need the C library of their MPI, which
//! is later than a board's; the stages `boards` and `links` test with the board's own.

use super::launch::{MODES, PROGRAMS, SOURCE, answers, launch, same};
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use crate::test::dist::dist;
use crate::test::vision::{count, make};
use std::path::Path;

/// Libraries of MPI: the suffix of their launchers, and their headers and library in Debian's folder of arm64 packages.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("openmpi", "usr/lib/aarch64-linux-gnu/openmpi/include", "libmpi.so.40"),
    ("mpich", "usr/include/aarch64-linux-gnu/mpich", "libmpich.so.12"),
];

/// Numbers of processes of the tests, and the number of random problems of each.
const TESTS: [(usize, u32); 2] = [(2, 60), (4, 60)];

/// Runs the tests of the programs and every mode of `elsa-mpi` on the tensors in the folder `home`.
///
/// # Errors
/// Returns an error if a program cannot be installed or built, or if a mode fails.
pub fn run(tree: &Tree, ran: &mut Ran, home: &Path) -> Result<(), String> {
    let board = setup::reference()?;
    setup::board(tree)?;
    setup::program(tree, "aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")?;
    let root = setup::roots::arm64(tree, "libopenmpi-dev,libmpich-dev")?;
    let there = dist(tree, ran, &board.name)?;
    for (library, headers, shared) in LIBRARIES {
        let dir = home.join(&board.name).join(library);
        let headers = root.join(headers);
        let more = [
            format!(
                "-DCMAKE_TOOLCHAIN_FILE={}",
                there.join(format!("share/{}/toolchain.cmake", board.name)).display()
            ),
            format!("-DELSA_SYSROOT={}", root.display()),
            // CMake would ask the compiler of this machine's MPI for its headers.
            "-DMPI_CXX_COMPILER=aarch64-linux-gnu-g++".to_owned(),
            format!("-DMPI_CXX_COMPILER_INCLUDE_DIRS={}", headers.display()),
            format!("-DMPI_CXX_HEADER_DIR={}", headers.display()),
            "-DMPI_CXX_LIB_NAMES=mpi".to_owned(),
            format!("-DMPI_mpi_LIBRARY={}", root.join("usr/lib/aarch64-linux-gnu").join(shared).display()),
        ];
        make(tree, SOURCE, &PROGRAMS, None, &dir, &there, &more)?;
        let emulated = |name: &str, processes: usize| -> Run {
            let run = launch(tree, library, processes).args(&setup::emulator_in(&root));
            // The emulator has no call that reads the memory of another process. With UCX's other transports, emulated
            // processes of MPICH sometimes wait in MPI_Finalize for ever.
            let run =
                run.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none").env("UCX_TLS", "posix,self");
            run.arg(dir.join(name))
        };
        for (processes, problems) in TESTS {
            count(ran, emulated(PROGRAMS[1], processes).arg(problems.to_string()));
        }
        for mode in MODES {
            let answers = answers(home, mode, &|processes| emulated(PROGRAMS[0], processes))?;
            ran.note(&format!("{library}, emulated: the bits of {mode}"), same(&answers));
        }
        let told =
            emulated(PROGRAMS[0], 1).arg("--help").run().text("elsa-mpi --help").map(|_| "done".to_owned());
        ran.note(
            &format!("{library}, emulated: a program for {}", board.name),
            told.and_then(|_| machine(&dir)),
        );
    }
    Ok(())
}

/// Requires that the programs in `dir` are for a board's processor, so that this machine cannot have run them itself.
fn machine(dir: &Path) -> Result<String, String> {
    // The machine of an ELF file is at byte 18; 183 is aarch64.
    let found = PROGRAMS.map(|name| files::bytes(&dir.join(name)).map(|bytes| bytes.get(18).copied()));
    if found.iter().all(|machine| *machine == Ok(Some(183))) {
        Ok("aarch64".to_owned())
    } else {
        Err(format!("machines {found:?}; allowed: 183"))
    }
}
