//! Checks that documents agree with the source: the listed places of `unsafe` and the mentioned names must be correct. Also
//! checks that a table has only one row per subject.

use super::files::spans;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeSet;

/// The heading below which ARCHITECTURE.md lists the files with `unsafe` code.
const ROOMS: &str = "## Where unsafe is allowed";

/// Returns whether the code of a file, including attributes and macros, contains the word `unsafe`.
fn is_unsafe(stream: TokenStream) -> bool {
    stream.into_iter().any(|token| match token {
        TokenTree::Ident(word) => word == "unsafe",
        TokenTree::Group(group) => is_unsafe(group.stream()),
        _ => false,
    })
}

/// Finds Rust files with unsafe code that the document does not list, and places that the document lists although they
/// contain no unsafe code.
pub fn rooms(document: &str, text: &str, files: &[(String, String)]) -> Vec<String> {
    let below = text.lines().skip_while(|line| *line != ROOMS).skip(1);
    let section = below.take_while(|line| !line.starts_with("## ")).collect::<Vec<_>>().join("\n");
    let rooms: Vec<&str> = spans(&section)
        .into_iter()
        .map(|(_, span)| span)
        .filter(|span| files.iter().any(|(path, _)| within(path, span)))
        .collect();
    if rooms.is_empty() {
        return vec![format!("{document}: no rooms below '{ROOMS}'")];
    }
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let stream: TokenStream = match text.parse() {
            Ok(stream) => stream,
            Err(error) => {
                faults.push(format!("{path}: {error}"));
                continue;
            }
        };
        if !is_unsafe(stream) {
            continue;
        }
        match rooms.iter().find(|room| within(path, room)) {
            Some(room) => drop(used.insert(*room)),
            None => faults.push(format!("{path}: unsafe; allowed: in the rooms that {document} lists")),
        }
    }
    // Spans without `/` are ignored, because the section also names code that forbids `unsafe`.
    let idle = rooms.iter().filter(|room| room.contains('/') && !used.contains(*room));
    faults
        .extend(idle.map(|room| format!("{document}: `{room}` is listed as a room of unsafe and has none")));
    faults
}

/// Returns whether a path is `room`, or is in the folder `room`.
fn within(path: &str, room: &str) -> bool {
    path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the words of all sources.
pub fn words<'a>(files: &'a [(String, String)]) -> BTreeSet<&'a str> {
    let split = |text: &'a str| text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    files.iter().flat_map(|(path, text)| split(path).chain(split(text))).collect()
}

/// Finds names in a document's code spans (`Name`, `module::name` or `name()`) that do not occur in the sources. A name occurs
/// if it is a word of the sources, or a part of a word between underscores.
pub fn unknown(document: &str, text: &str, words: &BTreeSet<&str>) -> (usize, Vec<String>) {
    let mut named = 0;
    let mut faults = Vec::new();
    for (line, span) in spans(text) {
        let name = span.strip_suffix("()").unwrap_or(span);
        let is_word = |part: &str| {
            let mut letters = part.chars();
            letters.next().is_some_and(|c| c.is_alphabetic() || c == '_')
                && letters.all(|c| c.is_alphanumeric() || c == '_')
        };
        let parts: Vec<&str> = name.split("::").collect();
        if !parts.iter().all(|part| is_word(part)) {
            continue;
        }
        named += 1;
        // Documents also mention single parts of kernel names, because each part has its own meaning.
        let within = |part: &str| words.iter().any(|word| format!("_{word}_").contains(&format!("_{part}_")));
        if let Some(part) = parts.iter().find(|part| !words.contains(*part) && !within(part)) {
            faults.push(format!("{document}:{line}: `{span}`: no source has {part}"));
        }
    }
    (named, faults)
}

/// Returns the subjects that the first cell of a row names; `a function or a field of the interface` has two.
fn subjects(cell: &str) -> Vec<String> {
    let Some((first, second)) = cell.split_once(" or ") else { return vec![cell.to_owned()] };
    let tail = match (first.contains(" of "), second.find(" of ")) {
        (false, Some(at)) => &second[at..],
        _ => "",
    };
    vec![format!("{first}{tail}"), second.to_owned()]
}

/// Finds rows of one table that have the same subject.
pub fn repeated(document: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known: Vec<(String, usize)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else {
            known.clear();
            continue;
        };
        let cell = row.split('|').next().unwrap_or_default().trim().to_lowercase();
        if cell.is_empty() || cell.chars().all(|c| c == '-' || c == ':') {
            continue;
        }
        for subject in subjects(&cell) {
            match known.iter().find(|(before, _)| *before == subject) {
                Some((_, line)) => {
                    faults.push(format!("{document}:{}: '{subject}' has a row in line {line}, too", at + 1));
                }
                None => known.push((subject, at + 1)),
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn unsafe_outside_the_listed_rooms_is_found() {
        let text = "# A\n`b`\n## Where unsafe is allowed\n`k`; `r/cpu` and\n`r/one.rs`. `core` forbids it.\n## Next\n`r`\n";
        let inside = [
            ("k/a.rs", "unsafe fn f() {}"),
            ("r/cpu/b.rs", "fn f() { m! { unsafe { g() } } }"),
            ("r/one.rs", "unsafe impl Send for A {}"),
            ("core/lib.rs", "#![forbid(unsafe_code)]\n// unsafe\n/// unsafe\nconst A: &str = \"unsafe\";"),
            ("x.py", "unsafe"),
        ];
        assert_eq!(rooms("A.md", text, &files(&inside)), Vec::<String>::new());
        for (path, code) in [
            ("r/bound.rs", "fn f() { unsafe { g() } }"),
            ("r/cpus/b.rs", "unsafe fn f() {}"),
            ("b/b.rs", "#[unsafe(no_mangle)]\nfn f() {}"),
        ] {
            let all = [&inside[..], &[(path, code)]].concat();
            let found = rooms("A.md", text, &files(&all));
            assert_eq!(found, [format!("{path}: unsafe; allowed: in the rooms that A.md lists")]);
        }
        let idle = rooms("A.md", text, &files(&[&inside[..2], &[("r/one.rs", "fn f() {}")]].concat()));
        assert_eq!(idle, ["A.md: `r/one.rs` is listed as a room of unsafe and has none"]);
        assert_eq!(
            rooms("A.md", "# A", &files(&inside)),
            ["A.md: no rooms below '## Where unsafe is allowed'"]
        );
    }

    #[test]
    fn names_that_no_source_has_are_found() {
        let files = files(&[("src/file.rs", "struct Kept; impl Kept { fn kept() {} }")]);
        let text = "`Kept`, `Kept::kept`, `kept()`, `file`, `a b`, `.npy`, `x-y`, `--f`\n```\n`Gone`\n```\n`Gone` `Kept::gone()`";
        let (named, faults) = unknown("A.md", text, &words(&files));
        assert_eq!(named, 6);
        assert_eq!(
            faults,
            ["A.md:5: `Gone`: no source has Gone", "A.md:5: `Kept::gone()`: no source has gone"]
        );
    }

    #[test]
    fn rows_about_the_same_are_found() {
        let table = |rows: &[&str]| format!("| to add | touch |\n|---|---|\n{}\n", rows.join("\n"));
        let one = table(&["| a function of C | x |", "| a field of C | y |", "| a board | z |"]);
        assert_eq!(repeated("A.md", &format!("{one}\n{one}")), Vec::<String>::new());
        for rows in [
            ["| a board | x |", "| A board | y |"],
            ["| a function or a field of C | x |", "| a function of C | y |"],
        ] {
            assert_eq!(repeated("A.md", &table(&rows)).len(), 1, "{rows:?}");
        }
    }
}
