//! A fault of `tests/faults`: a patch below a header of four lines, which `git apply` ignores.
//!
//! ```text
//! fault: what is wrong, in a line
//! stage: the stage of the short run that must turn red
//! run: the narrow command of that stage, as super::command reads it
//! red: what the failure says: a test, a message
//! ```

use crate::files;
use crate::shell::Tree;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

const FOLDER: &str = "tests/faults";

/// A fault that can be applied to the code.
pub struct Fault {
    /// Name of the patch file, without its extension.
    pub name: String,
    /// Path of the patch file.
    pub patch: PathBuf,
    /// Hash of the patch file.
    pub digest: String,
    /// Description of the fault.
    pub what: String,
    /// The stage that must turn red.
    pub stage: String,
    /// The command that fails because of the fault.
    pub run: String,
    /// Expected text of the failure.
    pub red: String,
}

impl Fault {
    /// Reads the faults with these names, or all faults if `names` is empty, sorted by name.
    ///
    /// # Errors
    /// Returns an error if no file has the name, or if the header is not complete.
    pub fn named(tree: &Tree, names: &[String]) -> Result<Vec<Fault>, String> {
        let folder = tree.root.join(FOLDER);
        let all =
            files::below(&folder, &["patch"])?.into_iter().map(Fault::read).collect::<Result<Vec<_>, _>>()?;
        if let Some(unknown) = names.iter().find(|name| all.iter().all(|fault| fault.name != **name)) {
            let known: Vec<&str> = all.iter().map(|fault| fault.name.as_str()).collect();
            return Err(format!("--prove: {unknown}; allowed: {}", known.join(", ")));
        }
        Ok(all.into_iter().filter(|fault| names.is_empty() || names.contains(&fault.name)).collect())
    }

    fn read(patch: PathBuf) -> Result<Fault, String> {
        let text = files::text(&patch)?;
        let header = text.split("\ndiff ").next().unwrap_or_default();
        let line = |key: &str| {
            let value = header.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            let value = value.map(str::trim).filter(|value| !value.is_empty());
            value.map(str::to_owned).ok_or_else(|| format!("{}: no line '{key}: …'", patch.display()))
        };
        Ok(Fault {
            name: patch.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            digest: Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
            what: line("fault")?,
            stage: line("stage")?,
            run: line("run")?,
            red: line("red")?,
            patch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_must_be_complete() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { root: dir.path().to_owned(), target: dir.path().join("target") };
        let folder = dir.path().join(FOLDER);
        std::fs::create_dir_all(&folder).unwrap();
        let header = "fault: a\nstage: host\nrun: test b\nred: c\n\ndiff --git a/x b/x\n";
        std::fs::write(folder.join("one.patch"), header).unwrap();
        std::fs::write(folder.join("README"), "").unwrap();
        let found = Fault::named(&tree, &[]).unwrap();
        assert_eq!((found.len(), found[0].name.as_str(), found[0].run.as_str()), (1, "one", "test b"));
        let unknown = Fault::named(&tree, &["two".to_owned()]).err().unwrap();
        assert_eq!(unknown, "--prove: two; allowed: one");
        for key in ["fault", "stage", "run", "red"] {
            std::fs::write(folder.join("one.patch"), header.replace(&format!("{key}: "), "x: ")).unwrap();
            assert!(Fault::named(&tree, &[]).err().unwrap().contains(key));
        }
    }
}
