//! The version of the project, and every place in the tree that states it.

use crate::files;
use crate::shell::{Run, Tree};
use std::fmt;
use std::str::FromStr;

/// Files that state the version, each with the texts that do. In a text, `@` stands for the version, and `@0`, `@1` and `@2`
/// stand for its numbers. The first text is the version itself, from which cargo gives it to every package.
const PLACES: [(&str, &[&str]); 5] = [
    ("Cargo.toml", &["[workspace.package]\nversion = \"@\"\n", "version = \"=@\""]),
    ("runtime/elsa/Cargo.toml", &["version = \"=@\""]),
    (
        "runtime/capi/src/types/numbers.rs",
        &["ELSA_VERSION_MAJOR: u32 = @0;", "ELSA_VERSION_MINOR: u32 = @1;", "ELSA_VERSION_PATCH: u32 = @2;"],
    ),
    (
        "runtime/capi/include/elsa/common.h",
        &["ELSA_VERSION_MAJOR @0\n", "ELSA_VERSION_MINOR @1\n", "ELSA_VERSION_PATCH @2\n"],
    ),
    ("examples/ros/package.xml", &["<version>@</version>"]),
];

/// A version by semantic versioning, without a pre-release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semver([u32; 3]);

impl Semver {
    /// Returns the version of this program, which is that of every package.
    pub fn own() -> Result<Semver, String> {
        env!("CARGO_PKG_VERSION").parse()
    }

    /// Writes this version into a text of [`PLACES`].
    fn fill(self, text: &str) -> String {
        let [major, minor, patch] = self.0.map(|number| number.to_string());
        text.replace("@0", &major).replace("@1", &minor).replace("@2", &patch).replace('@', &self.to_string())
    }
}

impl fmt::Display for Semver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl FromStr for Semver {
    type Err = String;

    fn from_str(text: &str) -> Result<Semver, String> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|number| number.parse().ok()).collect();
        let three = numbers.and_then(|numbers| numbers.try_into().ok()).map(Semver);
        // A sign or a leading zero would not come back.
        let found = three.filter(|version| version.to_string() == text);
        found.ok_or_else(|| format!("version: '{text}'; allowed: three numbers, such as 1.2.3"))
    }
}

/// Lists the places that do not state `version`.
pub fn disagreeing(tree: &Tree, version: Semver) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for (file, texts) in PLACES {
        let content = files::text(&tree.root.join(file))?;
        let absent =
            texts.iter().map(|text| version.fill(text)).filter(|text| !content.contains(text.as_str()));
        faults.extend(absent.map(|text| format!("{file}: no {text:?}; cargo xtask release --set {version}")));
    }
    Ok(faults)
}

/// Writes the version `to` into every place, and into Cargo.lock. Every place must state the present version.
pub fn set(tree: &Tree, to: Semver) -> Result<(), String> {
    let from = Semver::own()?;
    let faults = disagreeing(tree, from)?;
    if !faults.is_empty() {
        return Err(faults.join("\n       "));
    }
    for (file, texts) in PLACES {
        let path = tree.root.join(file);
        let content = files::text(&path)?;
        let changed =
            texts.iter().fold(content, |content, text| content.replace(&from.fill(text), &to.fill(text)));
        files::write(&path, changed)?;
        println!("{file}: {to}");
    }
    let line = "cargo update --workspace --offline";
    Run::new(tree, line).run().text(line).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!("1.20.3".parse::<Semver>(), Ok(Semver([1, 20, 3])));
        assert_eq!(Semver([1, 20, 3]).to_string(), "1.20.3");
        for wrong in ["", "1.2", "1.2.3.4", "1.2.x", "v1.2.3", "+1.2.3", "01.2.3", "1.2.3-rc1"] {
            let fault = wrong.parse::<Semver>().unwrap_err();
            assert!(fault.contains(&format!("'{wrong}'; allowed: three numbers")), "{fault}");
        }
    }

    #[test]
    fn a_text_receives_the_version_or_its_numbers() {
        let version = Semver([1, 20, 3]);
        assert_eq!(version.fill("version = \"=@\""), "version = \"=1.20.3\"");
        assert_eq!(version.fill("@0 @1 @2"), "1 20 3");
    }

    #[test]
    fn the_tree_states_one_version() {
        let tree = Tree::find().unwrap();
        assert_eq!(disagreeing(&tree, Semver::own().unwrap()), Ok(Vec::new()));
        let other = disagreeing(&tree, Semver([4_000_000_001, 4_000_000_002, 4_000_000_003])).unwrap();
        assert_eq!(other.len(), PLACES.iter().map(|(_, texts)| texts.len()).sum::<usize>());
    }
}
