//! `cargo xtask release`: checks the commit, and makes the folder of a release from it.
//!
//! ```text
//! target/release-0.1.0/
//!     *.deb *.whl         packages, by `cargo xtask package`
//!     *.crate             packed crates, as `cargo publish` uploads them
//!     *.cdx.json          bills of materials
//!     THIRD-PARTY-*.txt   licences of everything that is linked, for each target
//!     CHANGES.md          the section of the release in CHANGELOG.md
//!     COMMIT              the commit
//!     SHA256SUMS          sums of all other files, for `sha256sum --check`
//! ```
//!
//! The checks come first, and all faults are reported together: every place states one version; CHANGELOG.md has a section
//! with a date; the tree is the commit; the dependencies obey `deny.toml`. The command does not publish anything.

mod bill;
mod changes;
mod version;

use crate::boards::target::{Target, X86_64};
use crate::files::{self, at};
use crate::package;
use crate::shell::{Run, Tree};
use crate::test::release::{deny, name, pack, packed, published};
use elsa_targets::REFERENCE;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use version::Semver;

/// Targets of a release. The packages of the second one serve every board.
const TARGETS: [&str; 2] = [X86_64, REFERENCE];

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Asked {
    /// Write this version into every place that states it, and make nothing.
    #[arg(long, value_name = "VERSION", conflicts_with = "draft")]
    set: Option<Semver>,
    /// Make target/release-draft even if checks fail; it is not for others.
    #[arg(long)]
    draft: bool,
}

/// Runs `cargo xtask release`.
pub fn run(tree: &Tree, asked: &Asked) -> Result<(), String> {
    if let Some(version) = asked.set {
        return version::set(tree, version);
    }
    let version = Semver::own()?;
    let changes = changes::section(&files::text(&tree.root.join(changes::FILE))?, version);
    let mut faults = version::disagreeing(tree, version)?;
    faults.extend(changes.as_ref().err().cloned());
    faults.extend(uncommitted(tree)?);
    faults.extend(deny(tree).close().faults);
    if !faults.is_empty() && !asked.draft {
        return Err(format!("not a release:\n       {}", faults.join("\n       ")));
    }
    faults.iter().for_each(|fault| println!("not a release: {fault}"));
    let folder = if asked.draft { "release-draft".to_owned() } else { format!("release-{version}") };
    let to = tree.target.join(folder);
    make(tree, version, &changes.unwrap_or_default(), &to)?;
    println!("{}", to.display());
    if !asked.draft {
        println!("next: cargo publish --workspace; git tag v{version}; the commit into targets/released.txt");
    }
    Ok(())
}

/// Returns a fault if a file of the tree differs from the commit.
fn uncommitted(tree: &Tree) -> Result<Option<String>, String> {
    let line = "git status --porcelain";
    let list = Run::new(tree, line).quiet().run().text(line)?;
    let files: Vec<&str> = list.lines().map(str::trim).collect();
    let first =
        files.first().map(|file| format!("{} files differ from the commit, such as {file}", files.len()));
    Ok(first.map(|found| format!("{found}; allowed: none")))
}

/// Makes the folder of the release.
fn make(tree: &Tree, version: Semver, changes: &str, to: &Path) -> Result<(), String> {
    files::empty(to)?;
    package::run(tree, &TARGETS.map(str::to_owned))?;
    let packages = tree.target.join("packages");
    for entry in fs::read_dir(&packages).map_err(at(&packages))? {
        put(&entry.map_err(at(&packages))?.path(), to)?;
    }
    let crates = published(tree)?;
    pack(tree, &crates)?;
    for each in &crates {
        let path = packed(tree, each);
        put(&path, to).map_err(|fault| format!("{}: {fault}", name(each)))?;
    }
    let mut triples = Vec::new();
    for target in TARGETS {
        let target = Target::named(tree, target)?;
        let licences = files::bytes(&target.dist(tree).join("share/licences/THIRD-PARTY.txt"))?;
        files::write(&to.join(format!("THIRD-PARTY-{}.txt", target.machine())), licences)?;
        triples.push(target.triple().to_owned());
    }
    let line = "git log -1 --format=%H%n%ct";
    let commit = Run::new(tree, line).quiet().run().text(line)?;
    let (hash, seconds) = commit.trim().split_once('\n').ok_or_else(|| format!("{line}: {commit}"))?;
    let triples: Vec<&str> = triples.iter().map(String::as_str).collect();
    bill::write(tree, &triples, &version.to_string(), seconds, to)?;
    files::write(&to.join("CHANGES.md"), changes)?;
    files::write(&to.join("COMMIT"), format!("{hash}\n"))?;
    let sums = sums(to)?;
    files::write(&to.join("SHA256SUMS"), sums)
}

/// Copies a file into the folder `to`.
fn put(file: &Path, to: &Path) -> Result<(), String> {
    let copy = to.join(file.file_name().unwrap_or_default());
    fs::copy(file, &copy).map(|_| ()).map_err(at(file))
}

/// Returns the sums of the files in a folder, in the order of their names, as sha256sum prints them.
fn sums(folder: &Path) -> Result<String, String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        let sum = Sha256::digest(files::bytes(&path)?);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), sum));
    }
    lines.sort();
    Ok(lines.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_sha256sum() {
        let tree = Tree::find().unwrap();
        let folder = tree.target.join(format!("test-of-sums-{}", std::process::id()));
        files::write(&folder.join("b"), "abc").unwrap();
        files::write(&folder.join("a"), "").unwrap();
        let found = sums(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        // The sums of FIPS 180-4's example and of the empty text.
        let wanted = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n\
                      ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n";
        assert_eq!(found, wanted);
    }
}
