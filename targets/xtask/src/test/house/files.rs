//! Checks the lengths of files, whether every source file belongs to a crate, and whether the paths that documents name
//! exist.

use std::path::Path;

/// Maximum number of lines in a source file.
const MOST_LINES: usize = 600;

/// Finds files that are too long, and files that are in the list of exceptions `longer` although they are short enough.
pub fn lengths(files: &[(String, String)], longer: &[(&str, &str)]) -> Vec<String> {
    let excepted = |path: &str| longer.iter().any(|(longer, _)| *longer == path);
    let long = |text: &str| text.lines().count() > MOST_LINES;
    let found = files.iter().filter(|(path, text)| long(text) && !excepted(path));
    let found =
        found.map(|(path, text)| format!("{path}: {} lines; allowed: {MOST_LINES}", text.lines().count()));
    let stale =
        longer.iter().filter(|(longer, _)| !files.iter().any(|(path, text)| path == longer && long(text)));
    let stale = stale.map(|(path, why)| {
        format!("{path}: listed as longer ({why}), and is not; allowed: {MOST_LINES} lines")
    });
    found.chain(stale).collect()
}

/// Returns files that the compiler never sees because no module declares them. Examines the folders `src` and the
/// folders that contain the `main.rs` of a test program.
pub fn undeclared(files: &[(String, String)]) -> Vec<String> {
    let known = |path: &Path| files.iter().any(|(file, _)| Path::new(file) == path);
    let of_crate = |path: &str| {
        let below_src = path.split('/').any(|folder| folder == "src");
        path.ends_with(".rs") && (below_src || known(&Path::new(path).with_file_name("main.rs")))
    };
    let declared = |path: &str| {
        let path = Path::new(path);
        let (folder, stem) = (path.parent()?, path.file_stem()?.to_str()?);
        // `a/mod.rs` is the module `a` of the folder above.
        let (dir, name) =
            if stem == "mod" { (folder.parent()?, folder.file_name()?.to_str()?) } else { (folder, stem) };
        let line = format!("mod {name};");
        let may = |file: &Path| {
            let root = ["lib.rs", "main.rs", "mod.rs"].iter().any(|root| dir.join(root) == *file);
            root || file == dir.with_extension("rs")
        };
        let declares = |(file, text): &(String, String)| {
            may(Path::new(file)) && text.lines().any(|x| x.trim_start_matches("pub ").ends_with(&line))
        };
        Some(files.iter().any(declares))
    };
    let root = |path: &str| {
        let folder = |folder: &str| path.contains(&format!("src/{folder}/"));
        path.ends_with("src/lib.rs") || path.ends_with("/main.rs") || folder("bin")
    };
    let faults = files.iter().filter(|(path, _)| of_crate(path) && !root(path));
    let faults = faults.filter(|(path, _)| !declared(path).unwrap_or(false));
    faults.map(|(path, _)| format!("{path}: no module declares it; delete it or declare it")).collect()
}

/// Returns the code spans of a document outside its code blocks, each with its line number.
pub fn spans(text: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        fenced ^= line.starts_with("```");
        if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (at + 1, span)));
        }
    }
    spans
}

/// Finds paths that a document's code spans name and that do not exist.
pub fn missing(document: &str, text: &str, exists: impl Fn(&str) -> bool) -> (usize, Vec<String>) {
    let mut named = 0;
    let mut faults = Vec::new();
    let paths = spans(text).into_iter();
    for (line, path) in paths.filter(|(_, span)| span.contains('/') && !span.contains(char::is_whitespace)) {
        named += 1;
        if !exists(path) {
            faults.push(format!("{document}:{line}: `{path}` does not exist"));
        }
    }
    (named, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn long_files_and_stale_exceptions_are_found() {
        let [long, most] = [601, 600].map(|lines| "x\n".repeat(lines));
        let files = files(&[("a.rs", &long), ("b.rs", &most), ("c.rs", &long)]);
        assert_eq!(lengths(&files, &[("c.rs", "a table")]), ["a.rs: 601 lines; allowed: 600"]);
        for stale in ["b.rs", "d.rs"] {
            let found = lengths(&files, &[("a.rs", "x"), ("c.rs", "x"), (stale, "a table")]);
            assert_eq!(found.len(), 1);
            assert!(found[0].starts_with(stale) && found[0].contains("a table"), "{found:?}");
        }
    }

    #[test]
    fn files_that_no_module_declares_are_found() {
        let whole = [
            ("x/src/lib.rs", "pub mod a;\nmod b;\n"),
            ("x/src/a.rs", "pub(crate) mod c;\n"),
            ("x/src/a/c.rs", ""),
            ("x/src/b/mod.rs", "#[cfg(test)]\nmod tests;\n"),
            ("x/src/b/tests.rs", ""),
            ("x/src/bin/tool.rs", ""),
            ("x/tests/t.rs", ""),
            ("x/tests/all/main.rs", "mod e;\n"),
            ("x/tests/all/e.rs", ""),
        ];
        assert!(undeclared(&files(&whole)).is_empty(), "{:?}", undeclared(&files(&whole)));
        for stray in ["x/src/c.rs", "x/src/b/a.rs", "x/src/d/mod.rs", "x/src/ab.rs", "x/tests/all/f.rs"] {
            let found = undeclared(&files(&[&whole[..], &[(stray, "")]].concat()));
            assert_eq!(found.len(), 1, "{stray}");
            assert!(found[0].starts_with(stray), "{found:?}");
        }
    }

    #[test]
    fn paths_of_documents_that_do_not_exist_are_found() {
        let text = "`a/b.rs`, `a/c/` and `x / y`\n```sh\n`no/where`\n```\n`mod` `a/d.rs`\n";
        let (named, faults) = missing("D.md", text, |path| ["a/b.rs", "a/c/"].contains(&path));
        assert_eq!((named, faults), (3, vec!["D.md:5: `a/d.rs` does not exist".to_owned()]));
    }
}
