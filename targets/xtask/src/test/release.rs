//! Runs the release stages: dependencies and their licences, contents and interface of packages, and the oldest supported
//! Rust compiler.

use super::cargo::{JSON, builds};
use super::readme;
use crate::boards::paths;
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{BARE_METAL, FUZZ, Output, Run, Tree};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// File with the rules by which cargo-deny checks the dependencies.
const RULES: &str = "deny.toml";
/// Checks of cargo-deny that need only the tree and cargo's downloads.
const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];
/// Options that silence warnings about rules that only some workspaces need.
const UNUSED: &str = "-A unmatched-skip -A unnecessary-skip -A license-not-encountered \
                      -A license-exception-not-encountered";
/// Fields of a package that the registry displays.
const SHOWN: [&str; 7] =
    ["description", "keywords", "categories", "readme", "license", "rust_version", "version"];
/// The file that names the commit of the last release, or says "none".
const RELEASED: &str = "targets/released.txt";
/// The main crate and the crates whose items it re-exports: cargo-semver-checks reads one crate at a time, without the
/// items of other crates.
const INTERFACE: &str = "-p elsa-edge -p elsa-core -p elsa-runtime";
/// Text in cargo's message about a locked package that its author has withdrawn.
const YANKED: &str = "is yanked";

/// Checks licences, versions and sources of the dependencies, as a part of the stage `check`.
pub fn deny(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        let program = setup::deny(tree)?;
        let rules = tree.root.join(RULES);
        let targets = targets(&rules)?;
        for dir in [".", BARE_METAL, FUZZ] {
            let graph = graph(tree, dir, &targets)?;
            let run = Run::new(tree, "").dir(tree.root.join(dir)).arg(&program).args("--offline --config");
            let run = run.arg(&rules).arg("--metadata-path").arg(&graph);
            let run = run.args("check --hide-inclusion-graph").args(UNUSED).args(&CHECKS.join(" "));
            let line = run.line();
            let out = run.run();
            for (check, passed) in CHECKS.map(|check| (check, verdict(&out, check))) {
                match passed {
                    Some(true) => ran.passed += 1,
                    Some(false) => {
                        ran.failed += 1;
                        ran.faults.push(format!("{line}: {check} failed"));
                    }
                    None => ran.faults.push(format!("{line}: ran no check of {check}")),
                }
            }
        }
        advisories(tree, &program, &rules, &graph(tree, ".", &targets)?, ran);
        Ok(())
    })
}

/// Checks the dependencies against a downloaded database of known vulnerabilities. If the database is not available, no
/// check is counted.
fn advisories(tree: &Tree, program: &Path, rules: &Path, graph: &Path, ran: &mut Ran) {
    let run = Run::new(tree, "").arg(program).arg("--config").arg(rules).arg("--metadata-path").arg(graph);
    let out = run.args("check --hide-inclusion-graph advisories").limit(Duration::from_secs(60)).run();
    match verdict(&out, "advisories") {
        Some(true) => ran.passed += 1,
        Some(false) => {
            ran.failed += 1;
            ran.faults.push("cargo deny check advisories: failed".to_owned());
        }
        None if out.code.is_none() || out.stderr.contains("advisory database") => {
            ran.note = "advisories not checked: no database".to_owned();
            println!("{}", ran.note);
        }
        None => ran.faults.push(format!("cargo deny check advisories: {}", out.how)),
    }
}

/// Returns the result of `check` from the last line of cargo-deny, such as `bans ok, licenses FAILED`.
fn verdict(out: &Output, check: &str) -> Option<bool> {
    let last = [&out.stdout, &out.stderr].into_iter().filter_map(|text| text.lines().last());
    let words = last.flat_map(|line| line.split(", ")).filter_map(|word| word.trim().split_once(' '));
    words.filter(|(name, _)| *name == check).map(|(_, result)| result == "ok").next()
}

/// Reads the target triples for which the rules are checked.
fn targets(rules: &Path) -> Result<Vec<String>, String> {
    let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", rules.display());
    let text = fs::read_to_string(rules).map_err(|error| fault(&error))?;
    let value: toml::Table = text.parse().map_err(|error| fault(&error))?;
    let list = value.get("graph").and_then(|graph| graph.get("targets")).and_then(toml::Value::as_array);
    let targets: Vec<String> =
        list.into_iter().flatten().filter_map(|target| Some(target.as_str()?.to_owned())).collect();
    if targets.is_empty() { Err(fault(&"no targets in [graph]")) } else { Ok(targets) }
}

/// Writes the package graph of a workspace for `targets` to a file, and returns its path. Packages for other systems are
/// not downloaded.
fn graph(tree: &Tree, dir: &str, targets: &[String]) -> Result<PathBuf, String> {
    let run = Run::new(tree, "cargo metadata --format-version 1 --locked").dir(tree.root.join(dir));
    let run = targets.iter().fold(run, |run, target| run.arg("--filter-platform").arg(target));
    let line = run.line();
    let text = run.machine().run().text(&line)?;
    let path = tree.target.join("deny").join(format!("{}.json", dir.replace(['/', '.'], "-")));
    files::write(&path, text).map(|()| path)
}

/// Returns the packages of the workspace that are published.
pub fn published(tree: &Tree) -> Result<Vec<Value>, String> {
    let what = "cargo metadata --format-version 1 --no-deps";
    let value: Value = serde_json::from_str(&Run::new(tree, what).quiet().run().text(what)?)
        .map_err(|error| format!("{what}: {error}"))?;
    // Null means that any registry is allowed; an empty list means that no registry is.
    let public = |package: &&Value| package["publish"].is_null();
    let packages: Vec<Value> =
        value["packages"].as_array().into_iter().flatten().filter(public).cloned().collect();
    if packages.is_empty() { Err(format!("{what}: no package is published")) } else { Ok(packages) }
}

/// Returns the name of a package.
pub fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// Runs the stage `msrv`.
pub fn msrv(tree: &Tree) -> Ran {
    Ran::of("targets", |ran| {
        let packages = published(tree)?;
        let version = packages[0]["rust_version"].as_str().ok_or("no rust-version in Cargo.toml")?;
        let toolchain =
            if version.matches('.').count() == 1 { format!("{version}.0") } else { version.into() };
        let board = setup::reference()?.build.triple;
        setup::toolchain(tree, &toolchain, &board)?;
        let check = || {
            let run = Run::new(tree, "").arg("cargo").arg(format!("+{toolchain}"));
            run.args("check --locked").arg("--target-dir").arg(tree.target.join("msrv")).arg(JSON)
        };
        let all = packages.iter().fold(check(), |run, package| run.arg("-p").arg(name(package)));
        builds(ran, all);
        // Checks the code that is compiled for the boards. The packages of the tool have no such code.
        builds(ran, check().args("-p elsa-edge -p elsa-targets --target").arg(&board));
        Ok(())
    })
}

/// Runs the stage `package`.
pub fn package(tree: &Tree) -> Ran {
    Ran::of("packages", |ran| {
        let packages = published(tree)?;
        ran.faults
            .extend(pack(tree, &packages)?.lines().filter(|line| line.contains(YANKED)).map(str::to_owned));
        for package in &packages {
            let mut faults = missing(package);
            let file = packed(tree, package);
            if !file.is_file() {
                faults.push(format!("{}: {} was not made", name(package), file.display()));
            }
            let listed = format!("cargo package --list --allow-dirty -p {}", name(package));
            let files = Run::new(tree, &listed).quiet().run().text(&listed)?;
            for needed in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
                if !files.lines().any(|file| file == needed) {
                    faults.push(format!("{}: {needed} is not in the package", name(package)));
                }
            }
            ran.passed += u64::from(faults.is_empty());
            ran.failed += u64::from(!faults.is_empty());
            ran.faults.extend(faults);
        }
        rehearse(tree, ran, &packages)?;
        documents(tree, ran, &packages)?;
        compatible(tree, ran)?;
        readme::rust(tree, ran)
    })
}

/// Packs the published packages. Returns the messages of cargo.
pub fn pack(tree: &Tree, packages: &[Value]) -> Result<String, String> {
    let run = Run::new(tree, "cargo package --locked --no-verify --allow-dirty");
    let run = packages.iter().fold(run, |run, package| run.arg("-p").arg(name(package)));
    let run = run.arg("--target-dir").arg(tree.target.join("package"));
    let line = run.line();
    let out = run.run();
    out.text(&line).map(|_| out.stderr)
}

/// Returns the file into which [`pack`] packs a package.
pub fn packed(tree: &Tree, package: &Value) -> PathBuf {
    let version = package["version"].as_str().unwrap_or_default();
    tree.target.join("package/package").join(format!("{}-{version}.crate", name(package)))
}

/// Publishes every package in a rehearsal: cargo builds each one from its packed files, and uploads nothing.
fn rehearse(tree: &Tree, ran: &mut Ran, packages: &[Value]) -> Result<(), String> {
    // Cargo unpacks the packages of a rehearsal in a folder of its own, and would use those of an earlier rehearsal again.
    let version =
        |package: &Value| format!("{}-{}", name(package), package["version"].as_str().unwrap_or_default());
    let kept =
        |folder: &PathBuf| packages.iter().map(|package| folder.join(version(package))).collect::<Vec<_>>();
    for old in paths::unpacked_sources().iter().flat_map(kept).filter(|folder| folder.is_dir()) {
        fs::remove_dir_all(&old).map_err(|error| format!("{}: {error}", old.display()))?;
    }
    let run = Run::new(tree, "cargo publish --workspace --dry-run --locked --allow-dirty");
    let run = run.arg("--target-dir").arg(tree.target.join("publish"));
    let line = run.line();
    let out = run.run();
    ran.add(&line, out.ok, u64::from(out.ok), u64::from(!out.ok));
    Ok(())
}

/// Builds the pages of the published packages as docs.rs does: with a nightly compiler, the features in a package's
/// metadata, and the setting `docsrs`. Counts one check for each package.
fn documents(tree: &Tree, ran: &mut Ran, packages: &[Value]) -> Result<(), String> {
    setup::nightly(tree, &[])?;
    for package in packages {
        let on_docs_rs = &package["metadata"]["docs"]["rs"];
        let features = if on_docs_rs["all-features"] == true { "--all-features" } else { "" };
        let run = Run::new(tree, "cargo +nightly doc --locked --no-deps --lib").args(features);
        let run = run.arg("-p").arg(name(package)).arg("--target-dir").arg(tree.target.join("docsrs"));
        let run = run.env("DOCS_RS", "1").env("RUSTDOCFLAGS", "--cfg docsrs");
        let line = run.line();
        let out = run.run();
        ran.add(&line, out.ok, u64::from(out.ok), u64::from(!out.ok));
    }
    Ok(())
}

/// Checks that the changes of the interface since the last release follow the rules of semantic versioning.
fn compatible(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let Some(commit) = released(&files::text(&tree.root.join(RELEASED))?)? else {
        ran.note = "interface not compared: nothing released yet".to_owned();
        println!("{}", ran.note);
        return Ok(());
    };
    let run = Run::new(tree, "").arg(setup::semver_checks(tree)?).args("semver-checks").args(INTERFACE);
    let run = run.arg("--baseline-rev").arg(commit);
    let line = run.line();
    run.run().text(&line)?;
    ran.passed += 1;
    Ok(())
}

/// Parses the file [`RELEASED`]: a commit, or `None` for the word "none".
fn released(text: &str) -> Result<Option<String>, String> {
    match text.trim() {
        "none" => Ok(None),
        commit if commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(Some(commit.to_owned()))
        }
        found => Err(format!("{RELEASED}: '{found}'; allowed: none, or the 40 digits of a commit")),
    }
}

/// Lists the fields of [`SHOWN`] that are empty in `package`.
fn missing(package: &Value) -> Vec<String> {
    let empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        value => value.as_str().is_none_or(str::is_empty),
    };
    let missing = SHOWN.iter().filter(|field| empty(&package[**field]));
    missing.map(|field| format!("{}: no {field} in Cargo.toml", name(package))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn output(ok: bool, stderr: &str) -> Output {
        let (stdout, stderr) = (String::new(), stderr.to_owned());
        Output { ok, code: Some(i32::from(!ok)), how: String::new(), stdout, stderr }
    }

    #[test]
    fn verdicts_are_read_from_the_last_line() {
        let out = output(false, "error[rejected]: bans ok\nbans ok, licenses FAILED, sources ok\n");
        let found = ["bans", "licenses", "sources", "advisories"].map(|check| verdict(&out, check));
        assert_eq!(found, [Some(true), Some(false), Some(true), None]);
        assert_eq!(verdict(&output(false, "failed to fetch advisory database\n"), "advisories"), None);
    }

    #[test]
    fn the_last_release_is_a_commit_or_none() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(released("none\n"), Ok(None));
        assert_eq!(released(&format!("{commit}\n")), Ok(Some(commit.to_owned())));
        for wrong in ["", "v0.1.0", &commit[1..], "none none"] {
            assert!(released(wrong).is_err_and(|error| error.contains("allowed: none")), "{wrong}");
        }
        assert!(released(&fs::read_to_string(Tree::find().unwrap().root.join(RELEASED)).unwrap()).is_ok());
    }

    #[test]
    fn what_a_package_does_not_say_is_found() {
        let whole = json!({
            "name": "a", "description": "b", "keywords": ["c"], "categories": ["d"], "readme": "e",
            "license": "f", "rust_version": "1.2", "version": "0.1.0",
        });
        assert!(missing(&whole).is_empty());
        for (field, value) in [("keywords", json!([])), ("readme", Value::Null), ("description", json!(""))] {
            let mut package = whole.clone();
            package[field] = value;
            assert_eq!(missing(&package), [format!("a: no {field} in Cargo.toml")]);
        }
    }

    /// Checks that the tree's toolchain is at least as new as the version that the packages declare.
    #[test]
    fn the_toolchain_of_the_tree_is_new_enough() {
        let tree = Tree::find().unwrap();
        let read = |file: &str| -> toml::Table {
            fs::read_to_string(tree.root.join(file)).unwrap().parse().unwrap()
        };
        let numbers = |text: &str| text.split('.').map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
        let manifest = read("Cargo.toml");
        let oldest = numbers(manifest["workspace"]["package"]["rust-version"].as_str().unwrap());
        let pinned = numbers(read("rust-toolchain.toml")["toolchain"]["channel"].as_str().unwrap());
        assert!(oldest <= pinned, "{oldest:?} {pinned:?}");
        // The guide must state this version.
        let page = fs::read_to_string(tree.root.join("docs/src/start-rust.md")).unwrap();
        let promise = format!("Rust {}.{} or later", oldest[0], oldest[1]);
        assert!(page.contains(&promise), "start-rust.md: no '{promise}'");
    }
}
