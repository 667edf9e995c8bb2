//! Starts the programs of `runtime/mpi` on several processes, and compares their answers.

use crate::files;
use crate::shell::{Run, Tree};
use std::path::Path;
use std::time::Duration;

/// Folder of the programs.
pub const SOURCE: &str = "runtime/mpi";
/// The program and its tests.
pub const PROGRAMS: [&str; 2] = ["elsa-mpi", "mpi-tests"];

/// Modes with their flags. All have the bits of one process.
pub const MODES: [&str; 4] = [
    "ring --chunks 8 --causal",
    "ring --chunks 5 --window 20,3 --kv-lens 60,97 --softcap 2",
    "quorum --quorum 7 --causal",
    "decode --chunks 8 --causal=bottom-right",
];

/// Returns the command that starts `processes` processes of a program.
pub fn launch(tree: &Tree, library: &str, processes: usize) -> Run {
    let run = Run::new(tree, &format!("mpirun.{library} -n {processes}")).limit(Duration::from_secs(120));
    // Open MPI refuses root and more processes than cores unless it is asked.
    run.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
}

/// Returns the flags of the tensors in the folder `home`.
pub fn tensors(home: &Path) -> String {
    let input = |name: &str| home.join(format!("{name}.npy")).display().to_string();
    format!("--q {} --k {} --v {}", input("q"), input("k"), input("v"))
}

/// Returns the files that one, two and four processes write in a mode. `elsa` returns the command of that many processes.
///
/// # Errors
/// Returns an error if a run fails.
pub fn answers(home: &Path, mode: &str, elsa: &dyn Fn(usize) -> Run) -> Result<Vec<Vec<u8>>, String> {
    let answer = |processes| {
        let out = home.join(format!("y{processes}.npy"));
        let flags = format!("{mode} {} --threads 1 --out {}", tensors(home), out.display());
        elsa(processes).args(&flags).run().text("elsa-mpi")?;
        files::bytes(&out)
    };
    [1, 2, 4].into_iter().map(answer).collect()
}

/// Requires that all answers have the bits of the first one.
///
/// # Errors
/// Returns an error if an answer differs, or is empty.
pub fn same(answers: &[Vec<u8>]) -> Result<String, String> {
    let same = answers.iter().all(|answer| elements(answer) == elements(&answers[0]));
    let empty = answers.iter().any(|answer| elements(answer).is_empty());
    let found = format!("{} answers", answers.len());
    if same && !empty { Ok(found) } else { Err(found) }
}

/// Returns the bytes of the elements of an `.npy` file of version 1.
pub fn elements(file: &[u8]) -> &[u8] {
    let length = file.get(8..10).map_or(0, |two| usize::from(two[0]) + 256 * usize::from(two[1]));
    file.get(10 + length..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_by_their_elements() {
        let file = |end: u8| b"\x93NUMPY\x01\x00\x01\x00\n".iter().copied().chain([end]).collect::<Vec<u8>>();
        assert_eq!(elements(&file(7)), [7]);
        assert!(same(&[file(7), file(7)]).is_ok());
        assert!(same(&[file(7), file(8)]).is_err());
        assert!(same(&[b"\x93NUMPY".to_vec()]).is_err());
    }
}
