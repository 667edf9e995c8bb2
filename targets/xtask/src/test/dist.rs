//! Builds the shipped folders, once for each state of the tree.

use super::results::{content, keep, read};
use crate::boards::build;
use crate::boards::target::Target;
use crate::ran::Ran;
use crate::shell::Tree;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Returns the folder for a board or for this machine. If the folder is outdated, builds it first and adds the checks of the
/// build to `ran`.
///
/// # Errors
/// Returns an error if the build or a check fails.
pub fn dist(tree: &Tree, ran: &mut Ran, name: &str) -> Result<PathBuf, String> {
    let target = Target::named(tree, name)?;
    let dist = target.dist(tree);
    let stamp = tree.target.join(format!("test-results/dist-{name}.json"));
    // The time of the tool is compared too, because `cargo xtask build` may have replaced the folder.
    let state = || Some((content(tree)?, written(&dist.join("bin/elsa"))?));
    if state().is_some_and(|state| read(&stamp) == Some(state)) {
        return Ok(dist);
    }
    let built = build::build(tree, &target, build::Additions::default())?;
    let faults = built.faults.join("; ");
    ran.join(built);
    match (faults.is_empty(), state()) {
        (false, _) => Err(format!("{}: {faults}", dist.display())),
        (true, Some(state)) => keep(&stamp, &state).map(|()| dist),
        (true, None) => Ok(dist),
    }
}

/// Returns the modification time of a file, in nanoseconds.
fn written(path: &Path) -> Option<u128> {
    Some(path.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos())
}
