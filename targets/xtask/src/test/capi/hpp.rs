//! Tests `elsa.hpp`: compiles and runs programs that use it, in standards after C++14. Also compiles lines that must not
//! compile: the compiler's error must name the number of the line.

use super::programs::{BESIDE, Compilers, WARNINGS, checks};
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::path::Path;

const COMPILERS: [&str; 2] = ["g++", "clang++-19"];
/// Standards after C++14, with `[[nodiscard]]` or `std::span`.
const LATER: [&str; 2] = ["c++17", "c++20"];
/// Program in which `CASE` selects one line that must not compile.
const REFUSED: &str = "tests/capi/refused.cpp";
/// Mark at the end of a line that must not compile.
const MARK: &str = "// refused: ";

/// Compiles `sources` of `tests/capi` in the later standards, against the folder `dist`, into the folder `home`, and
/// runs the programs.
pub fn later(tree: &Tree, ran: &mut Ran, sources: &[&str], dist: &Path, home: &Path) {
    let by = |source| COMPILERS.into_iter().flat_map(move |by| LATER.map(|standard| (source, by, standard)));
    ran.each(sources.iter().copied().flat_map(by).collect(), |ran, (source, compiler, standard)| {
        let program = home.join(format!("{source}-{compiler}-{standard}"));
        let compilers = Compilers::of("", compiler);
        let link = format!("-std={standard} -O1 {} {BESIDE}", dist.join("lib/libelsa.a").display());
        let include = dist.join("include");
        if compilers.compile(tree, Path::new(source), &include, &link, &program).count(ran) {
            checks(ran, &format!("{source}, {standard}"), Run::new(tree, "").arg(&program));
        }
    });
}

/// Checks that `compilers` reject the lines that must not compile.
pub fn refused(tree: &Tree, ran: &mut Ran, compilers: &[&str], dist: &Path) -> Result<(), String> {
    let path = tree.root.join(REFUSED);
    let text = crate::files::text(&path)?;
    let lines = marked(&text);
    let by = compilers.iter().flat_map(|compiler| ["c++14", "c++17"].map(|standard| (*compiler, standard)));
    let all = by.flat_map(|by| (0..=lines.len()).map(move |case| (by, case)));
    ran.each(all.collect(), |ran, ((compiler, standard), case)| {
        let run =
            Run::new(tree, &format!("{compiler} -std={standard} {WARNINGS} -DCASE={case} -fsyntax-only -I"));
        let out = run.arg(dist.join("include")).arg(&path).quiet().run();
        let what = format!("{REFUSED}, {compiler} {standard}");
        let Some((line, why)) = case.checked_sub(1).and_then(|at| lines.get(at)) else {
            return ran.note(&what, if out.ok { Ok("compiles".to_owned()) } else { Err(out.stderr) });
        };
        let named = out.stderr.contains(&format!("refused.cpp:{line}:"));
        let found = format!("line {line}, {why}: {}", out.how);
        ran.note(&format!("{what}, case {case}"), if !out.ok && named { Ok(found) } else { Err(found) });
    });
    if lines.is_empty() { Err(format!("{REFUSED}: no line is marked")) } else { Ok(()) }
}

/// Returns the line numbers of the marked lines, counted from one, and the reasons why these lines must not compile.
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
