//! `cargo xtask build --features`: builds a slice of the C library, with the functions of some features of the package
//! `elsa-capi`.
//!
//! The folder `target/dist/NAME-FEATURES` contains the library, its headers, its package descriptions and the board's
//! files. It contains no tool, no operator of ONNX Runtime and no Python library, because these need every function.

use super::build::{self, LIBRARIES, Part, WITHOUT_SCALAR};
use super::check::{self, Exceptions};
use super::library::{self, Abi};
use super::paths;
use super::target::Target;
use crate::files;
use crate::ran::Ran;
use crate::shell::Tree;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The manifest of the C library.
const MANIFEST: &str = "runtime/capi/Cargo.toml";
/// Folder with a folder of sources for each feature that adds functions, and for functions that need several features, whose
/// names the name of the folder joins by underscores.
const SOURCES: &str = "runtime/capi/src";
/// Name of a driver function that a library with GPU kernels looks up. A library without them has no code for a GPU.
const DRIVER: &[u8] = b"cuInit";

/// Features of the C library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The features, with those that they need.
    features: BTreeSet<String>,
    /// All other features.
    absent: BTreeSet<String>,
}

impl Slice {
    /// Returns the slice with the features `names` of the manifest.
    pub fn named<S: AsRef<str>>(tree: &Tree, names: &[S]) -> Result<Slice, String> {
        Slice::parse(&files::text(&tree.root.join(MANIFEST))?, names)
    }

    /// Returns the slice with the features `names`. The default features of the manifest are all that a slice can have.
    fn parse<S: AsRef<str>>(manifest: &str, names: &[S]) -> Result<Slice, String> {
        let manifest: toml::Table =
            manifest.parse().map_err(|error: toml::de::Error| format!("{MANIFEST}: {error}"))?;
        let listed = |feature: &str| -> Vec<String> {
            let list = manifest.get("features").and_then(|features| features.get(feature));
            let list = list.and_then(toml::Value::as_array).into_iter().flatten();
            list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let all: BTreeSet<String> = listed("default").into_iter().collect();
        let mut open: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let mut features = BTreeSet::new();
        while let Some(name) = open.pop() {
            if !all.contains(&name) {
                let all: Vec<&str> = all.iter().map(String::as_str).collect();
                return Err(format!("--features: {name}; allowed: {}", all.join(", ")));
            }
            if features.insert(name.clone()) {
                // A feature of another package has a slash in its name.
                open.extend(listed(&name).into_iter().filter(|needed| !needed.contains('/')));
            }
        }
        let absent = all.difference(&features).cloned().collect();
        Ok(Slice { features, absent })
    }

    /// Returns `true` if the slice has the feature.
    pub fn has(&self, feature: &str) -> bool {
        self.features.contains(feature)
    }

    /// Returns the features, joined by `by`.
    pub fn joined(&self, by: &str) -> String {
        self.features.iter().map(String::as_str).collect::<Vec<_>>().join(by)
    }

    /// Returns the interface of the slice: that of the whole library, without the functions of absent features.
    pub fn abi(&self, tree: &Tree) -> Result<Abi, String> {
        let mut abi = Abi::read(tree)?;
        let root = tree.root.join(SOURCES);
        for source in files::below(&root, &["rs"])? {
            let folder = source.strip_prefix(&root).ok().and_then(|source| source.iter().next()?.to_str());
            if !folder.is_some_and(|folder| folder.split('_').any(|feature| self.absent.contains(feature))) {
                continue;
            }
            for name in defined(&files::text(&source)?) {
                if !abi.functions.remove(name) {
                    return Err(format!("{}: {name}; allowed: functions of elsa.map", source.display()));
                }
            }
        }
        Ok(abi)
    }
}

/// Returns the names of the C functions that a source defines.
fn defined(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().filter(|line| line.starts_with("pub "));
    lines.filter_map(|line| Some(line.split_once("extern \"C\" fn ")?.1.split_once('(')?.0))
}

/// Runs `cargo xtask build --features`.
pub fn run(tree: &Tree, name: &str, features: &[String]) -> Result<(), String> {
    let (target, slice) = (Target::named(tree, name)?, Slice::named(tree, features)?);
    let mut dist = PathBuf::new();
    let ran = Ran::of("checks", |ran| build(tree, ran, &target, &slice).map(|made| dist = made));
    if ran.faults.is_empty() {
        println!("{}: {}", dist.display(), ran.summary());
        Ok(())
    } else {
        Err(ran.faults.join("\n       "))
    }
}

/// Builds a slice for a target, and adds the checks of its libraries to `ran`. Returns the slice's folder.
pub fn build(tree: &Tree, ran: &mut Ran, target: &Target, slice: &Slice) -> Result<PathBuf, String> {
    let (abi, name) = (slice.abi(tree)?, format!("{}-{}", target.name(), slice.joined("-")));
    let packages = format!("-p elsa-capi --no-default-features --features {}", slice.joined(","));
    let part = Part { profile: "slice", packages: &packages, ..LIBRARIES };
    let without = matches!(target, Target::Board(_)).then(|| WITHOUT_SCALAR.to_owned());
    let products = build::part(tree, target, &[], &part, without.into_iter().collect())?;
    let folder = tree.target.join("library").join(&name);
    let made = library::make(tree, target, &abi, &products.join("libelsa.a"), &folder)?;
    let dist = tree.target.join("dist").join(&name);
    build::assemble_library(tree, target, &abi, &made, &dist)?;

    let shared = files::bytes(&dist.join("lib").join(abi.file()))?;
    let archive = files::bytes(&dist.join("lib/libelsa.a"))?;
    let private = paths::private(tree)?;
    let mut note = |file: &str, check: &str, found| ran.note(&format!("{name}, {file}: {check}"), found);
    note("libelsa.so", "machine", check::machine(&shared, target));
    note("libelsa.so", "libraries", check::libraries(&shared));
    note("libelsa.so", "name", check::soname(&shared, &abi.soname()));
    if let Some(build) = target.build() {
        note("libelsa.so", "symbol versions", check::symbol_versions(&shared, build.glibc));
    }
    if matches!(target, Target::Board(_)) {
        let exceptions = Exceptions::read(tree)?;
        note("libelsa.so", "instructions", check::instructions(tree, &made.shared, &exceptions));
    }
    note("libelsa.so", "exports", check::exports(&shared, &abi));
    note("libelsa.a", "exports", check::globals(&archive, &abi));
    for (file, bytes) in [("libelsa.so", &shared), ("libelsa.a", &archive)] {
        note(file, "driver symbols", check::driver_symbols(bytes));
        note(file, "paths", check::paths(bytes, &private));
    }
    note("libelsa.so", "code for a GPU", gpu_code(&shared, slice.has("cuda")));
    Ok(dist)
}

/// Checks that a library has code for a GPU if it should have some, and none otherwise.
fn gpu_code(bytes: &[u8], wanted: bool) -> check::Found {
    let word = |there| if there { "some" } else { "none" };
    let found = memchr::memmem::find(bytes, DRIVER).is_some();
    if found == wanted {
        Ok(word(found).to_owned())
    } else {
        Err(format!("{}; allowed: {}", word(found), word(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "[features]\ndefault = ['a', 'b', 'c']\na = []\nb = ['a', 'other/b']\nc = []\n\
        inject = []\n";

    #[test]
    fn features_bring_those_that_they_need() {
        let slice = Slice::parse(LISTED, &["b"]).unwrap();
        assert_eq!((slice.joined(","), slice.has("a"), slice.has("c")), ("a,b".to_owned(), true, false));
        assert_eq!(slice, Slice::parse(LISTED, &["a", "b", "a"]).unwrap());
    }

    #[test]
    fn unknown_features_are_refused() {
        for name in ["d", "inject", "default", ""] {
            let fault = Slice::parse(LISTED, &["a", name]).unwrap_err();
            assert_eq!(fault, format!("--features: {name}; allowed: a, b, c"));
        }
    }

    #[test]
    fn every_feature_has_its_own_functions() {
        let tree = Tree::find().unwrap();
        let whole = Abi::read(&tree).unwrap().functions;
        let of = |names: &[&str]| Slice::named(&tree, names).unwrap().abi(&tree).unwrap().functions;
        let (attention, stream) = (of(&["attention"]), of(&["stream"]));
        let [linear, series] = ["linear", "series"].map(|name| of(&[name]));
        for functions in [&attention, &stream, &linear, &series] {
            assert!(functions.contains("elsa_engine_create") && functions.contains("elsa_bound_run"));
            assert!(functions.is_subset(&whole) && functions.len() < whole.len());
        }
        assert!(attention.contains("elsa_run") && attention.contains("elsa_workspace_certified"));
        assert!(stream.contains("elsa_stream_run") && stream.is_superset(&attention));
        assert!(!attention.contains("elsa_stream_run") && !attention.contains("elsa_linear_run"));
        assert!(linear.contains("elsa_linear_run") && !linear.contains("elsa_run"));
        assert!(series.contains("elsa_selective_run") && !series.contains("elsa_states_merge"));
        let gradients = of(&["gradients"]);
        assert!(gradients.contains("elsa_gradients_run") && gradients.is_superset(&attention));
        assert!(!attention.contains("elsa_gradients_run"));
        let task = of(&["task"]);
        assert!(task.contains("elsa_task_run") && task.is_superset(&attention));
        assert_eq!(of(&["attention", "cuda", "gradients", "linear", "series", "stream", "task"]), whole);
        let both = of(&["gradients", "task"]);
        assert!(both.contains("elsa_gradients_task_run") && both.contains("elsa_gradients_merge_add"));
        for one in [&gradients, &task] {
            assert!(both.is_superset(one) && one.iter().all(|name| !name.starts_with("elsa_gradients_task")));
        }
        let all: BTreeSet<String> = [stream, both, linear, series].into_iter().flatten().collect();
        assert_eq!(all, whole);
    }

    #[test]
    fn code_for_a_gpu_is_told_by_the_driver() {
        assert!(gpu_code(b"..cuInit..", true).is_ok() && gpu_code(b"..cuInit..", false).is_err());
        assert!(gpu_code(b"..", false).is_ok() && gpu_code(b"..", true).is_err());
    }
}
