//! `elsa.hpp` to compilers: a part of the stage `capi`. The programs that use it, in the later standards of C++;
//! and lines that must not compile, each of which a compiler must name.

use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::path::Path;

const COMPILERS: [&str; 2] = ["g++", "clang++-19"];
/// Standards later than the oldest, for which `[[nodiscard]]` and `std::span` exist.
const LATER: [&str; 2] = ["c++17", "c++20"];
/// A program of which one line, chosen by `CASE`, must not compile.
const REFUSED: &str = "tests/capi/refused.cpp";
/// What stands behind such a line.
const MARK: &str = "// refused: ";

/// Compiles a program of `tests/capi` by the later standards, against the folder `dist` and to `home`; returns what came
/// of it, to be run.
pub fn later(tree: &Tree, ran: &mut Ran, source: &str, dist: &Path, home: &Path) -> Vec<(String, Run)> {
    let mut programs = Vec::new();
    for compiler in COMPILERS {
        for standard in LATER {
            let program = home.join(format!("{source}-{compiler}-{standard}"));
            let run = compiler_of(tree, compiler, standard, dist)
                .args("-O1 -o")
                .arg(&program)
                .arg(tree.root.join(SOURCES).join(source))
                .arg(dist.join("lib/libelsa.a"))
                .args(BESIDE);
            let line = run.line();
            let ok = run.run().ok;
            ran.add(&line, ok, u64::from(ok), u64::from(!ok));
            if ok {
                programs.push((format!("{source}, {standard}"), Run::new(tree, "").arg(&program)));
            }
        }
    }
    programs
}

/// The lines that must not compile.
pub fn refused(tree: &Tree, ran: &mut Ran, dist: &Path) -> Result<(), String> {
    let path = tree.root.join(REFUSED);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = marked(&text);
    for compiler in COMPILERS {
        for standard in ["c++14", "c++17"] {
            let compile = |case: usize| {
                let run = compiler_of(tree, compiler, standard, dist).arg(format!("-DCASE={case}"));
                run.args("-fsyntax-only").arg(&path).quiet().run()
            };
            let whole = compile(0);
            let what = format!("{REFUSED}, {compiler} {standard}");
            ran.note(&what, if whole.ok { Ok("compiles".to_owned()) } else { Err(whole.stderr) });
            for (case, (line, why)) in (1..).zip(&lines) {
                let out = compile(case);
                let named = out.stderr.contains(&format!("refused.cpp:{line}:"));
                let found = format!("line {line}, {why}: {}", out.how);
                ran.note(
                    &format!("{what}, case {case}"),
                    if !out.ok && named { Ok(found) } else { Err(found) },
                );
            }
        }
    }
    if lines.is_empty() { Err(format!("{REFUSED}: no line is marked")) } else { Ok(()) }
}

fn compiler_of(tree: &Tree, compiler: &str, standard: &str, dist: &Path) -> Run {
    Run::new(tree, &format!("{compiler} -std={standard} {WARNINGS} -I")).arg(dist.join("include"))
}

/// Numbers of the marked lines, from one, and why they must not compile.
fn marked(text: &str) -> Vec<(usize, &str)> {
    let mark = |(number, line)| -> Option<(usize, &str)> { Some((number, str::split_once(line, MARK)?.1)) };
    (1..).zip(text.lines()).filter_map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::marked;

    #[test]
    fn marked_lines_are_found() {
        assert_eq!(marked("a\nb; // refused: because\nc"), [(2, "because")]);
    }
}
