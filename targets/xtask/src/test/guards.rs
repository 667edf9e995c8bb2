//! Guarded files of stages. If a guarded file changes, the short run includes the stage that guards it. The tree contains the
//! hashes of the guarded files from the last complete run that passed.

use super::results::{FILE, keep, read};
use super::stages::{STAGES, Stage};
use crate::shell::{Run, Tree};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;

const OPENING: &str = "\
# Hashes of what stages of the long run guard, written by `cargo xtask test --all` when every stage has passed. Where the
# tree differs, the short run takes the stage as well.
";

/// Hashes of the guarded files, by the name of the stage.
pub type Hashes = BTreeMap<String, String>;

/// Hashes the guarded files in their present state.
///
/// # Errors
/// Returns an error if the tree is not a git checkout, or if a file cannot be read.
pub fn hashes(tree: &Tree) -> Result<Hashes, String> {
    let guarding = STAGES.iter().filter(|stage| !stage.guards.is_empty());
    guarding.map(|stage| Ok((stage.name.to_owned(), hash(tree, stage.guards)?))).collect()
}

/// Returns a hash of the names and contents of the files in `paths`.
fn hash(tree: &Tree, paths: &[&str]) -> Result<String, String> {
    let run = Run::new(tree, "git ls-files -z --cached --others --exclude-standard --");
    let list = paths.iter().fold(run, |run, path| run.arg(*path)).quiet().run().text("git ls-files")?;
    let mut files: Vec<&str> = list.split('\0').filter(|name| !name.is_empty()).collect();
    files.sort_unstable();
    files.dedup();
    let mut hash = Sha256::new();
    for name in files {
        // A file that git lists, but that was removed, is left out of the hash.
        let Ok(content) = std::fs::read(tree.root.join(name)) else { continue };
        hash.update(format!("{name}\0{}\0", content.len()));
        hash.update(content);
    }
    Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the hashes that the tree contains; `None` if no long run has written them.
fn written(tree: &Tree) -> Result<Option<Hashes>, String> {
    let path = tree.root.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let fault = |error: &dyn std::fmt::Display| format!("{FILE}: {error}");
    let text = std::fs::read_to_string(path).map_err(|error| fault(&error))?;
    toml::from_str(&text).map(Some).map_err(|error| fault(&error))
}

/// Returns the path of the file that records which stages passed on this machine. For each stage, the file contains the
/// hash of the guarded files.
fn passed(tree: &Tree) -> PathBuf {
    tree.target.join("test-results/guards.json")
}

/// Returns the stages whose guarded files have changed. The guarded files of these stages differ both from the files of
/// the last long run and from the files with which the stage last passed on this machine.
pub fn wanted(tree: &Tree) -> Result<Vec<&'static Stage>, String> {
    let Some(written) = written(tree)? else {
        println!("{FILE}: absent; cargo xtask test --all writes it");
        return Ok(Vec::new());
    };
    let here: Hashes = read(&passed(tree)).unwrap_or_default();
    Ok(differing(&hashes(tree)?, &[&written, &here]))
}

/// Returns the stages whose hash in `now` differs from the stage's hash in each of `known`.
fn differing(now: &Hashes, known: &[&Hashes]) -> Vec<&'static Stage> {
    let same = |stage: &&Stage| now.get(stage.name).is_none_or(|hash| knows(known, stage.name, hash));
    STAGES.iter().filter(|stage| !same(stage)).collect()
}

fn knows(known: &[&Hashes], name: &str, hash: &str) -> bool {
    known.iter().any(|known| known.get(name).is_some_and(|old| old == hash))
}

/// Records that a stage passed on this machine. `then` are the hashes of the guarded files at the beginning of the run.
pub fn keep_passed(tree: &Tree, name: &str, then: &Hashes) -> Result<(), String> {
    let Some(hash) = then.get(name) else { return Ok(()) };
    let mut here: Hashes = read(&passed(tree)).unwrap_or_default();
    here.insert(name.to_owned(), hash.clone());
    keep(&passed(tree), &here)
}

/// Writes the hashes into the tree; returns whether the file changed.
pub fn write(tree: &Tree, hashes: &Hashes) -> Result<bool, String> {
    if written(tree)?.as_ref() == Some(hashes) {
        return Ok(false);
    }
    let lines: String = hashes.iter().map(|(name, hash)| format!("{name} = \"{hash}\"\n")).collect();
    std::fs::write(tree.root.join(FILE), format!("{OPENING}{lines}"))
        .map_err(|error| format!("{FILE}: {error}"))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_hash_follows_names_and_content_and_nothing_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { root: dir.path().to_owned(), target: dir.path().join("target") };
        let path = |name: &str| dir.path().join(name);
        assert!(hash(&tree, &["a"]).is_err(), "no checkout");
        assert!(Run::new(&tree, "git init --quiet").quiet().run().ok);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::create_dir_all(path("targets")).unwrap();
        fs::write(path("a/b/c"), "1").unwrap();
        fs::write(path("other"), "1").unwrap();
        let of = || hash(&tree, &["a"]).unwrap();
        let first = of();
        fs::write(path("other"), "2").unwrap();
        assert_eq!(of(), first);
        fs::write(path("a/b/c"), "2").unwrap();
        assert_ne!(of(), first);
        fs::rename(path("a/b/c"), path("a/b/d")).unwrap();
        fs::write(path("a/b/d"), "1").unwrap();
        assert_ne!(of(), first);
        fs::rename(path("a/b/d"), path("a/b/c")).unwrap();
        assert!(Run::new(&tree, "git add a").quiet().run().ok);
        assert_eq!(of(), first);
        fs::remove_file(path("a/b/c")).unwrap();
        assert_ne!(of(), first);

        // Written hashes are read back, and are not written twice.
        assert_eq!(written(&tree), Ok(None));
        let hashes = Hashes::from([("ptx".to_owned(), first)]);
        assert_eq!((write(&tree, &hashes), write(&tree, &hashes)), (Ok(true), Ok(false)));
        assert_eq!(written(&tree), Ok(Some(hashes)));
        fs::write(path(FILE), "ptx = 1").unwrap();
        assert!(written(&tree).unwrap_err().contains(FILE));
    }

    #[test]
    fn a_stage_is_wanted_while_nothing_knows_its_hash() {
        let of = |pairs: &[(&str, &str)]| -> Hashes {
            pairs.iter().map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned())).collect()
        };
        let names = |known: &[&Hashes]| -> Vec<&str> {
            let now = of(&[("ptx", "1"), ("boards", "2")]);
            differing(&now, known).into_iter().map(|stage| stage.name).collect()
        };
        let (all, old, new) =
            (of(&[("ptx", "1"), ("boards", "2")]), of(&[("ptx", "1")]), of(&[("boards", "2")]));
        assert_eq!(names(&[&all]), [""; 0]);
        assert_eq!(names(&[&old]), ["boards"]);
        assert_eq!(names(&[&old, &new]), [""; 0]);
        assert_eq!(names(&[&of(&[("ptx", "0")])]), ["boards", "ptx"]);
    }
}
