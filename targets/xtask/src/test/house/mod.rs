//! Checks the structure, in the stage `check`. Modules of a crate must not use each other in a circle. Files must not be too
//! long, and must belong to a crate. A word of the glossary must name one type. Documents must agree with the source: the
//! paths and names that they mention exist, `unsafe` is only in the listed files, and no table has two rows for the same
//! subject. The guide's tables of options must name tests that exist.
//!
//! | file | contents |
//! |---|---|
//! | `read` | the modules of a crate, read from its source |
//! | `circles` | which module uses which, and the circles |
//! | `files` | lengths of files, files in no crate, paths in documents |
//! | `claims` | names in documents, places of `unsafe`, rows of tables |
//! | `glossary` | types that share a name of the glossary |
//! | `interfaces` | the tests that the guide's tables of options name |
//! | `shared` | files that operators share, which must name no operator |

mod circles;
mod claims;
mod files;
mod glossary;
mod interfaces;
mod read;
mod shared;

use crate::ran::Ran;
use crate::shell::{BARE_METAL, FUZZ, Run, Tree};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// File name extensions of source files.
const SOURCE: [&str; 9] = ["rs", "c", "cpp", "h", "hpp", "cu", "cuh", "py", "sh"];

/// Files that may exceed the maximum length, each with the reason.
const LONGER: [(&str, &str); 6] = [
    ("runtime/python/_elsa.c", "one source, which a board compiles"),
    ("runtime/python/elsa.py", "one module, which a program may copy"),
    ("runtime/capi/include/elsa/attention.h", "generated"),
    ("runtime/capi/include/elsa/common.h", "generated"),
    ("runtime/capi/include/elsa/series.h", "generated"),
    ("tests/standin/driver.cpp", "a whole driver, for tests only"),
];

/// The document that lists the places of `unsafe`.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// The document with the glossary.
const CONTRIBUTING: &str = "CONTRIBUTING.md";

/// Documents whose paths and names must exist.
const DOCUMENTS: [&str; 3] = [ARCHITECTURE, CONTRIBUTING, "SECURITY.md"];

/// Checks the workspaces.
pub fn house(tree: &Tree) -> Ran {
    Ran::of("modules, files and paths", |ran| {
        for dir in [".", BARE_METAL, FUZZ] {
            for (name, root) in roots(tree, &tree.root.join(dir))? {
                imports(tree, &name, &root, ran)?;
            }
        }
        let text =
            |path: &str| fs::read_to_string(tree.root.join(path)).map_err(|error| format!("{path}: {error}"));
        let mut files = Vec::new();
        for path in sources(tree)? {
            files.push((path.clone(), text(&path)?));
        }
        let mut count = files.len();
        let mut faults = files::lengths(&files, &LONGER);
        faults.extend(files::undeclared(&files));
        faults.extend(claims::rooms(ARCHITECTURE, &text(ARCHITECTURE)?, &files));
        faults.extend(shared::shared(ARCHITECTURE, &text(ARCHITECTURE)?, &files));
        let (words, shared) = glossary::shared_names(CONTRIBUTING, &text(CONTRIBUTING)?, &files);
        count += words;
        faults.extend(shared);
        let page = text(interfaces::PAGE)?;
        let (tests, untrue) = interfaces::missing(interfaces::PAGE, &page, &files);
        count += tests;
        faults.extend([untrue, claims::repeated(interfaces::PAGE, &page)].concat());
        let words = claims::words(&files);
        for document in DOCUMENTS {
            let (exists, text) = (|path: &str| tree.root.join(path).exists(), text(document)?);
            let (paths, missing) = files::missing(document, &text, exists);
            let (names, unknown) = claims::unknown(document, &text, &words);
            if paths + names == 0 {
                faults.push(format!("{document}: names nothing of the source"));
            }
            count += paths + names;
            faults.extend([missing, unknown, claims::repeated(document, &text)].concat());
        }
        ran.passed += count.saturating_sub(faults.len()) as u64;
        ran.failed += faults.len() as u64;
        ran.faults.extend(faults);
        Ok(())
    })
}

/// Returns the names and root files of the crates in a workspace, without test programs.
fn roots(tree: &Tree, dir: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let run = Run::new(tree, "cargo metadata --no-deps --format-version 1").dir(dir).quiet();
    let out = run.run();
    let value: Value = serde_json::from_str(&out.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {}", out.stderr))?;
    let mut roots = Vec::new();
    for package in value["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let (kind, path) = (&target["kind"][0], target["src_path"].as_str().unwrap_or_default());
            if kind != "test" {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = format!("{} ({} {})", text(&package["name"]), text(kind), text(&target["name"]));
                roots.push((name, PathBuf::from(path)));
            }
        }
    }
    if roots.is_empty() { Err(format!("{}: no crate", dir.display())) } else { Ok(roots) }
}

/// Looks for circles in one crate.
fn imports(tree: &Tree, name: &str, root: &Path, ran: &mut Ran) -> Result<(), String> {
    let source = |path: &Path| fs::read_to_string(tree.root.join(path)).ok();
    let modules = read::read(&source, root.strip_prefix(&tree.root).unwrap_or(root))?;
    let mut inside = 0;
    for circle in circles::circles(&modules) {
        inside += circle.modules.len() as u64;
        let (modules, uses) = (circle.modules.join(", "), circle.uses.join("\n    "));
        ran.faults.push(format!("{name}: a circle of {modules}\n    {uses}"));
    }
    ran.passed += modules.len() as u64 - inside;
    ran.failed += inside;
    Ok(())
}

/// Returns the paths, relative to the root, of all source files that git does not ignore.
fn sources(tree: &Tree) -> Result<Vec<String>, String> {
    let out = Run::new(tree, "git ls-files --cached --others --exclude-standard").quiet().run();
    let listed = out.text("git ls-files")?;
    let is_source = |path: &&str| {
        Path::new(path).extension().is_some_and(|x| SOURCE.iter().any(|source| x == *source))
            && tree.root.join(path).is_file()
    };
    Ok(listed.lines().filter(is_source).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the circles of a crate whose root is `lib.rs`.
    fn found(files: &[(&str, &str)]) -> Vec<circles::Circle> {
        let files: BTreeMap<&Path, &str> =
            files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        let source = |path: &Path| files.get(path).map(|text| (*text).to_owned());
        circles::circles(&read::read(&source, Path::new("lib.rs")).unwrap())
    }

    /// Returns the modules of the only circle.
    fn circle(files: &[(&str, &str)]) -> Vec<String> {
        let circles = found(files);
        assert_eq!(circles.len(), 1, "{circles:?}");
        circles.into_iter().next().unwrap().modules
    }

    #[test]
    fn a_circle_is_found_with_its_places() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("b.rs", "pub struct B;\n\nfn f() -> crate::c::C {\n    crate::c::C\n}\n"),
            ("c/mod.rs", "pub struct C;\nfn g(a: &super::a::A) {}\n"),
        ];
        let circles = found(&files);
        assert_eq!(circles[0].modules, ["crate::a", "crate::b", "crate::c"]);
        assert_eq!(
            circles[0].uses,
            [
                "a.rs:1: crate::a uses crate::b: crate::b::B",
                "b.rs:3: crate::b uses crate::c: crate::c::C",
                "c/mod.rs:2: crate::c uses crate::a: super::a::A",
            ]
        );
        assert!(
            found(&files[..3].iter().chain(&[("c/mod.rs", "pub struct C;")]).copied().collect::<Vec<_>>())
                .is_empty()
        );
    }

    #[test]
    fn a_reexport_is_charged_to_the_module_that_defines() {
        // `b` uses `a` through a re-export at the root, under another name.
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A as First;\npub use b::*;\n"),
            ("a.rs", "use crate::B;\npub struct A(B);\n"),
            ("b.rs", "pub struct B;\nfn f(_: crate::First) {}\n"),
        ];
        assert_eq!(circle(&files), ["crate::a", "crate::b"]);
    }

    #[test]
    fn a_facade_and_its_children_are_no_circle() {
        let files = [
            ("lib.rs", "mod plan;\npub use plan::{Choice, choose};\n"),
            ("plan/mod.rs", "mod choose;\nmod kind;\npub use choose::choose;\npub use kind::Choice;\n"),
            (
                "plan/choose.rs",
                "use super::Choice;\nuse crate::plan;\npub fn choose() -> plan::Choice { todo!() }\n",
            ),
            ("plan/kind.rs", "pub struct Choice;\n"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn a_parent_that_uses_what_it_hands_on_makes_one_with_a_child_that_uses_it() {
        let root = "mod a;\npub use a::A;\npub struct Error;\n";
        let child = ("a.rs", "use super::Error;\npub struct A(Error);\n");
        assert!(found(&[("lib.rs", root), child]).is_empty());
        for code in ["fn f(_: A) {}", "fn f() { g!(A) }", "use a::A as B;", "fn f() { let x = a::A; }"] {
            let root = format!("{root}{code}\n");
            assert_eq!(circle(&[("lib.rs", &root), child]), ["crate", "crate::a"], "{code}");
        }
    }

    #[test]
    fn tests_are_not_read() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod missing;\n"),
            (
                "a.rs",
                "pub struct A;\n#[cfg(all(test, not(miri)))]\nuse crate::b::B;\nmod tests { use crate::b::B; }\n",
            ),
            (
                "b.rs",
                "use crate::a::A;\npub struct B;\n#[cfg(test)]\nmod checks { use super::*; fn f(a: A) {} }\n",
            ),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn macros_are_followed() {
        let user = "use crate::make::make;\npub struct A;\nmake!();\n";
        let files = |body: &str, user: &str| {
            let make = format!("macro_rules! make {{ () => {{ {body} }} }}\npub(crate) use make;\n");
            circles_of(&[("lib.rs", "mod make;\nmod a;\n"), ("make.rs", &make), ("a.rs", user)])
        };
        assert_eq!(files("fn f(_: $crate::a::A) {}", user), 1);
        // The macro's body imports the module and an item of it, in a group.
        assert_eq!(files("use $crate::{a::{self, B}}; fn f(_: a::A) {}", user), 1);
        // This body names nothing that `a` defines, because `super` refers to the caller's parent module.
        assert_eq!(files("fn f(_: super::a::A, a: u8) { a.A(); let A: u8 = 0; }", user), 0);
        // The macro is called without an import, then in the arguments of another macro.
        assert_eq!(files("$crate::a::f()", "pub fn f() { make!() }\n"), 1);
        assert_eq!(files("$crate::a::f()", "pub fn f() { assert!(1 < make!(), \"{}\", 1) }\n"), 1);
    }

    #[test]
    fn types_behind_pointers_are_uses() {
        let root = "mod a;\nmod b;\npub mod c { pub use crate::b::*; }\n";
        let b = ("b.rs", "use crate::a::A;\npub struct b_t(A);\npub struct B;\n");
        for code in ["fn f(_: *const b_t) {}", "fn f(_: &mut B) {}", "fn f<'a>(_: &'a mut crate::b::B) {}"] {
            let a = format!("use crate::c::*;\npub struct A;\n{code}\n");
            assert_eq!(circle(&[("lib.rs", root), ("a.rs", &a), b]), ["crate::a", "crate::b"], "{code}");
        }
        let a = "use crate::c::*;\npub struct A;\nfn f() { let mut b_t = 0; g(&mut b_t); }\n";
        assert!(found(&[("lib.rs", root), ("a.rs", a), b]).is_empty());
    }

    fn circles_of(files: &[(&str, &str)]) -> usize {
        found(files).len()
    }

    #[test]
    fn names_of_one_s_own_are_not_imports() {
        let root = "mod a;\npub use a::{a, A};\npub struct Error;\n";
        let child = ("a.rs", "use super::Error;\npub struct A;\npub fn a(_: Error) {}\n");
        for code in
            ["fn f(a: u8) { g(a); }", "fn f() { let a = 1; println!(\"{}\", a); x.a(); }", "use std::a as b;"]
        {
            let root = format!("{root}{code}\n");
            assert!(found(&[("lib.rs", &root), child]).is_empty(), "{code}");
        }
    }

    #[test]
    fn inline_modules_and_paths_of_files_are_read() {
        let files = [
            ("lib.rs", "mod a { pub mod b; pub struct A(super::c::C); }\n#[path = \"other/d.rs\"]\nmod c;\n"),
            ("a/b.rs", "pub struct B;\n"),
            ("other/d.rs", "mod e;\npub struct C(crate::a::b::B);\nfn f(_: crate::a::A) {}\n"),
            ("other/e.rs", ""),
        ];
        assert_eq!(circle(&files), ["crate::a", "crate::c"]);
    }
}
