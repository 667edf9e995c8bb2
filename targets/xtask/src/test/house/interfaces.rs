//! Checks the tables of the guide that show which interface offers which option: every test that a cell names must
//! exist.

/// The page with the tables.
pub const PAGE: &str = "docs/src/interfaces.md";

/// The interfaces in the order of the columns, each with the folder and the file name extension of its tests.
const INTERFACES: [(&str, &str, &str); 6] = [
    ("Rust", "tests/tests/crossing", "rs"),
    ("C", "tests/capi", "c"),
    ("C++", "tests/capi", "cpp"),
    ("Python", "runtime/python/tests", "py"),
    ("tool", "runtime/cli/tests/tool", "rs"),
    ("ONNX", "runtime/ort/examples/host", "rs"),
];

/// Contents of a cell that names no test: the interface lacks the option, or no test runs it.
const WITHOUT_TEST: [&str; 2] = ["–", "untested"];

/// Returns the cells of a line of a table; `None` if the line belongs to no table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// Returns whether a source defines a function with this name.
fn defines(extension: &str, text: &str, name: &str) -> bool {
    let keyword = match extension {
        "rs" => "fn ",
        "py" => "def ",
        // In C and C++, a definition begins in the first column.
        _ => {
            let call = format!(" {name}(");
            let begins = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic());
            return text.lines().any(|line| begins(line) && line.contains(&call) && !line.ends_with(';'));
        }
    };
    let head = format!("{keyword}{name}(");
    text.lines().any(|line| line.trim_start().trim_start_matches("pub ").starts_with(&head))
}

/// Finds cells of the page's tables that name no test, or one that does not exist. Also returns the number of tests.
pub fn missing(document: &str, text: &str, files: &[(String, String)]) -> (usize, Vec<String>) {
    let mut named = 0;
    let mut faults = Vec::new();
    let mut checked = false;
    let mut in_table = false;
    for (at, line) in text.lines().enumerate() {
        let row = cells(line);
        if let Some(cells) = &row {
            if !in_table {
                checked = cells[1..].iter().copied().eq(INTERFACES.iter().map(|interface| interface.0));
            }
            let is_row = in_table && !cells[0].starts_with("---");
            if checked && is_row && cells.len() != INTERFACES.len() + 1 {
                faults.push(format!(
                    "{document}:{}: {} cells; allowed: {}",
                    at + 1,
                    cells.len(),
                    INTERFACES.len() + 1
                ));
            } else if checked && is_row {
                for (cell, interface) in cells[1..].iter().zip(INTERFACES) {
                    let (tests, fault) = cell_fault(cell, interface, files);
                    named += tests;
                    faults.extend(fault.map(|fault| format!("{document}:{}: {}: {fault}", at + 1, cells[0])));
                }
            }
        }
        in_table = row.is_some();
    }
    if named == 0 {
        faults.push(format!("{document}: names no test of an interface"));
    }
    (named, faults)
}

/// Returns the number of tests that a cell names, and the fault of the cell.
fn cell_fault(
    cell: &str,
    (interface, folder, extension): (&str, &str, &str),
    files: &[(String, String)],
) -> (usize, Option<String>) {
    if WITHOUT_TEST.contains(&cell) {
        return (0, None);
    }
    let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    let exists = |test: &str| {
        test.split_once("::").is_some_and(|(stem, name)| {
            // A test of another folder is named by its path.
            let folder = if stem.contains('/') { String::new() } else { format!("{folder}/") };
            let path = format!("{folder}{stem}.{extension}");
            files.iter().any(|(file, text)| *file == path && defines(extension, text, name))
        })
    };
    let fault = match tests.iter().find(|test| !exists(test)) {
        Some(test) => Some(format!("`{test}` is no test of {interface} in {folder}")),
        None if tests.is_empty() => {
            Some(format!("{interface}: '{cell}'; allowed: {} or tests", WITHOUT_TEST.join(", ")))
        }
        None => None,
    };
    (tests.len(), fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &[&str]) -> (usize, Vec<String>) {
        let files = [
            ("tests/tests/crossing/a.rs", "#[test]\nfn b() {}\n"),
            ("tests/capi/a.c", "static int c(int x) {\n    d(x);\n}\nint e(void);\n"),
            ("tests/capi/a.cpp", "void f(const elsa::engine &engine) {\n"),
            ("runtime/python/tests/test_a.py", "class A:\n    def test_g(self):\n"),
            ("runtime/cli/tests/tool/cli_a.rs", "fn h() {\n"),
            ("runtime/src/a.rs", "fn i() {\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let head = "| option | Rust | C | C++ | Python | tool | ONNX |\n|---|---|---|---|---|---|---|\n";
        let other = "| other | table |\n|---|---|\n| `no::test` | x |\n";
        missing("D.md", &format!("{other}\n{head}{}\n\n{other}", rows.join("\n")), &files)
    }

    #[test]
    fn tests_that_exist_are_counted() {
        let row =
            "| x | `a::b`, `runtime/src/a::i` | `a::c` | `a::f` | `test_a::test_g` | `cli_a::h` | untested |";
        assert_eq!(found(&[row, "| y | – | – | – | – | – | – |"]), (6, Vec::new()));
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let row = |cell: &str| format!("| x | `a::b` | {cell} | – | – | – | – |");
        assert_eq!(found(&[&row("`a::c`")]), (2, Vec::new()));
        for cell in ["`a::d`", "`a::e`", "`a::b`", "`b::c`", "`a`", "`a::c`, `a::x`", "yes", ""] {
            let (_, faults) = found(&[&row(cell)]);
            assert_eq!(faults.len(), 1, "{cell}: {faults:?}");
            assert!(faults[0].starts_with("D.md:7: x: "), "{faults:?}");
        }
        assert_eq!(
            found(&["| x | `a::b` |"]).1,
            ["D.md:7: 2 cells; allowed: 7", "D.md: names no test of an interface"]
        );
    }
}
