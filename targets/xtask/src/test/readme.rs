//! Follows the quick starts of the guide in empty folders outside the tree. Each fenced block of a page is written to the
//! file named in its first line, or run by the shell. The last printed line must be the one that the page states.

use crate::c_programs::{FOREIGN, WARNINGS};
use crate::files;
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Folder of the guide's pages.
const PAGE: &str = "docs/src";
/// Pages whose blocks this module runs.
const PAGES: [&str; 2] = ["start-rust.md", "start-cpp.md"];

/// First lines of the blocks that this module runs.
pub const FOLLOWED: [&str; 10] = [
    "# Cargo.toml, at its end",
    "// src/main.rs",
    "# in pipeline",
    "// src/main.rs, with a plan",
    "# in pipeline, with a plan",
    "# CMakeLists.txt",
    "// main.cpp",
    ADAPTORS,
    "# the same machine",
    "# a board",
];

/// Returns the fenced block whose first line is `first`.
fn block<'a>(page: &'a str, first: &str) -> Result<&'a str, String> {
    let fault = || format!("{PAGE}: no fenced block that starts with the line '{first}'");
    // The blocks are the pieces between an opening and a closing fence, which are every second piece. A piece begins with the
    // language.
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|piece| piece.split_once('\n'));
    blocks.map(|(_, text)| text).find(|text| text.lines().next() == Some(first)).ok_or_else(fault)
}

/// Returns `true` if [`PAGES`] contain the lines of `text` consecutively, regardless of indentation.
pub fn repeats(tree: &Tree, text: &str) -> Result<bool, String> {
    let page = page(tree)?;
    let [whole, part]: [Vec<&str>; 2] = [&page, text].map(|text| text.lines().map(str::trim).collect());
    Ok(!part.is_empty() && whole.windows(part.len()).any(|lines| lines == part))
}

/// Returns the expected output of a block, which is stated in the comment after the block's last command.
fn promise(script: &str) -> Result<&str, String> {
    let comment = script.trim_end().lines().last().and_then(|line| line.rsplit_once(" # "));
    comment.map(|(_, text)| text.trim()).ok_or_else(|| format!("{PAGE}: no '# output' ends '{script}'"))
}

/// Creates a folder with files that contain blocks of `page`. `files` lists the name of each file, and the first line
/// of the block that it contains.
fn folder(page: &str, files: &[(&str, &str)]) -> Result<TempDir, String> {
    let dir = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    for (name, first) in files {
        let path = dir.path().join(name);
        files::write(&path, block(page, first)?)?;
    }
    Ok(dir)
}

/// Returns the texts of [`PAGES`], concatenated.
fn page(tree: &Tree) -> Result<String, String> {
    let read = |name| files::text(&tree.root.join(PAGE).join(name));
    PAGES.into_iter().map(read).collect()
}

/// Returns the command that runs a block of the page as a script in `dir`. The page calls the checkout `$ELSA`.
fn script(tree: &Tree, dir: &Path, text: &str) -> Run {
    let text = text.replace("$ELSA/target", &tree.target.display().to_string());
    Run::new(tree, "sh -euc").arg(text).dir(dir).env("ELSA", &tree.root)
}

/// Runs `run` and checks that the last printed line is `wanted`.
fn prints(ran: &mut Ran, what: &str, run: Run, wanted: &str) {
    let out = run.run();
    let last = out.stdout.lines().last().unwrap_or_default();
    let good = out.ok && last == wanted;
    if !good {
        let found = if out.ok { last } else { &out.how };
        ran.faults.push(format!("{PAGE}, {what}: {found}; the page promises: {wanted}"));
    }
    ran.passed += u64::from(good);
    ran.failed += u64::from(!good);
}

/// Runs the Rust quick start, with the dependency versions of the tree.
pub fn rust(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let page = page(tree)?;
    let dir = folder(&page, &[])?;
    let at = |error: std::io::Error| format!("{}: {error}", dir.path().display());
    fs::copy(tree.root.join("rust-toolchain.toml"), dir.path().join("rust-toolchain.toml")).map_err(at)?;
    if !Run::new(tree, "cargo new --quiet --vcs none pipeline").dir(dir.path()).run().ok {
        return Err("cargo new: failed".to_owned());
    }
    let package = dir.path().join("pipeline");
    fs::copy(tree.root.join("Cargo.lock"), package.join("Cargo.lock")).map_err(at)?;
    let manifest = package.join("Cargo.toml");
    let added =
        block(&page, "# Cargo.toml, at its end")?.replace("../elsa-edge", &tree.root.display().to_string());
    let text = fs::read_to_string(&manifest).map_err(at)? + &added;
    fs::write(&manifest, text).map_err(at)?;
    for (program, printed) in RUST {
        fs::write(package.join("src/main.rs"), block(&page, program)?).map_err(at)?;
        let text = block(&page, printed)?;
        let run = script(tree, &package, text).env("CARGO_TARGET_DIR", tree.target.join("readme"));
        prints(ran, program, run, promise(text)?);
    }
    Ok(())
}

/// Programs of the Rust quick start: the first line of each program's block, and the first line of the block with its output.
const RUST: [(&str, &str); 2] =
    [("// src/main.rs", "# in pipeline"), ("// src/main.rs, with a plan", "# in pipeline, with a plan")];

/// Compiles the Rust quick start with the build outputs of the tests, to check that the page matches the library.
pub fn rust_by_the_compiler(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let page = page(tree)?;
    let built = tree.target.join("debug");
    for (program, printed) in RUST {
        let dir = folder(&page, &[("main.rs", program)])?;
        let run = Run::new(tree, "rustc --edition 2024 -o").arg(dir.path().join("pipeline"));
        let run = run.arg(dir.path().join("main.rs")).arg("-L").arg(built.join("deps"));
        let run = run.arg("--extern").arg(format!("elsa_edge={}", built.join("libelsa_edge.rlib").display()));
        run.run().text("the quick start of Rust")?;
        let run = Run::new(tree, "").arg(dir.path().join("pipeline"));
        prints(ran, program, run, promise(block(&page, printed)?)?);
    }
    Ok(())
}

/// Runs the C++ quick start with the folder `dist` for this machine, and with the CMake in the folder `cmake`, if given.
pub fn cpp(tree: &Tree, ran: &mut Ran, dist: &Path, cmake: Option<&Path>) -> Result<(), String> {
    let page = page(tree)?;
    let dir = folder(&page, &CPP)?;
    let text = block(&page, "# the same machine")?;
    let named = "$ELSA/target/dist/host";
    if !text.contains(named) {
        return Err(format!("{PAGE}: no {named} in the quick start of C++"));
    }
    let run = script(tree, dir.path(), &text.replace(named, &dist.display().to_string()));
    let run = if let Some(cmake) = cmake { run.front(cmake.to_owned()) } else { run };
    prints(ran, "C++", run, promise(text)?);
    Ok(())
}

/// First line of the block with the examples of the adaptors.
const ADAPTORS: &str = "// adaptors.cpp";

/// Compiles the examples of the adaptors against the folder `dist`, with declarations in place of the other libraries'
/// headers.
pub fn adaptors(tree: &Tree, ran: &mut Ran, dist: &Path) -> Result<(), String> {
    let dir = folder(&page(tree)?, &[("adaptors.cpp", ADAPTORS)])?;
    let run = Run::new(tree, &format!("g++ -std=c++14 {WARNINGS} -fsyntax-only -I{FOREIGN} -I"));
    let out = run.arg(dist.join("include")).arg(dir.path().join("adaptors.cpp")).quiet().run();
    ran.note("the adaptors of the guide", if out.ok { Ok("compile".to_owned()) } else { Err(out.stderr) });
    Ok(())
}

/// Writes the files of the C++ quick start into `dir`. Returns the last line that its program prints.
pub fn cpp_files(tree: &Tree, dir: &Path) -> Result<String, String> {
    let page = page(tree)?;
    for (name, first) in CPP {
        files::write(&dir.join(name), block(&page, first)?)?;
    }
    promise(block(&page, "# the same machine")?).map(str::to_owned)
}

/// Runs the C++ quick start with the board's folder, which must exist, and runs the program in `emulator`.
pub fn board(tree: &Tree, ran: &mut Ran, cmake: Option<&Path>, emulator: &str) -> Result<(), String> {
    let page = page(tree)?;
    let dir = folder(&page, &CPP)?;
    let run = script(tree, dir.path(), &format!("{}{emulator} ./pipeline\n", block(&page, "# a board")?));
    let run = if let Some(cmake) = cmake { run.front(cmake.to_owned()) } else { run };
    prints(ran, "C++ for a board", run, promise(block(&page, "# the same machine")?)?);
    Ok(())
}

/// Files of the C++ quick start, and the first lines of their blocks.
const CPP: [(&str, &str); 2] = [("CMakeLists.txt", "# CMakeLists.txt"), ("main.cpp", "// main.cpp")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_first_line() {
        let page = "text\n```sh\na b\n```\n```cpp\n// a.cpp\nint x;\n```\nend\n";
        assert_eq!(block(page, "// a.cpp"), Ok("// a.cpp\nint x;\n"));
        assert_eq!(block(page, "a b"), Ok("a b\n"));
        assert!(block(page, "end").is_err() && block(page, "int x;").is_err());
    }

    /// Checks that README.md and the documentation of the crate contain the first program of the Rust quick start.
    #[test]
    fn the_first_program_is_the_same_everywhere() {
        let tree = Tree::find().unwrap();
        let page = page(&tree).unwrap();
        let (_, program) = block(&page, RUST[0].0).unwrap().split_once('\n').unwrap();
        assert!(program.lines().count() <= 10, "{program}");
        for (name, mark) in [("README.md", ""), ("runtime/elsa/src/lib.rs", "//! ")] {
            let repeated: String = program.lines().map(|line| format!("{mark}{line}\n")).collect();
            assert!(files::text(&tree.root.join(name)).unwrap().contains(&repeated), "{name}");
        }
        assert!(repeats(&tree, program).unwrap());
        assert!(!repeats(&tree, &program.replace("bhnd", "bnhd")).unwrap() && !repeats(&tree, "").unwrap());
    }

    #[test]
    fn a_promise_is_the_last_comment() {
        assert_eq!(promise("# sh\nmake && ./a    # 1 # 2\n\n"), Ok("2"));
        assert!(promise("make\n").is_err());
    }
}
