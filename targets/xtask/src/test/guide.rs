//! Runs the snippets of README and of every page of the guide in one folder: Python, shell, and transcripts, in which the
//! output follows each line `$ command`. A block whose info string continues with `untested:` and a reason is only counted.
//! [`readme`] runs the blocks of Rust and C++. Blocks of type `text` are diagrams and are not run.

use super::readme;
use crate::files;
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::path::Path;
use std::time::Duration;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(120);

/// Python program that writes the files that the pages use, in addition to the files that docs/src/tool.md creates.
const FILES: &str = r#"
import numpy as np
random = np.random.default_rng(2)
q, k, v = (np.load(name + ".npy") for name in "qkv")
weights = np.exp(q.astype(float) @ np.swapaxes(k, -1, -2) / 8)
wrong = (weights @ v / weights.sum(-1, keepdims=True)).astype(np.float32)
wrong[0, 3, 5, 7] += 0.001
np.save("wrong.npy", wrong)
np.save("dy.npy", random.standard_normal(q.shape).astype(np.float32))
np.save("g.npy", -random.random((1, 12, 197)).astype(np.float32))
np.save("padding.npy", np.arange(197).reshape(1, 1, 1, 197) < 150)
np.save("lengths.npy", np.array([150]))
"#;

/// A fenced block: its language, its text and, if the block is marked as untested, the reason.
#[derive(Debug, PartialEq)]
struct Fence<'a> {
    language: &'a str,
    untested: Option<&'a str>,
    text: &'a str,
}

/// Returns the fenced blocks of `page`.
fn fences(page: &str) -> Vec<Fence<'_>> {
    // The blocks are the pieces between an opening and a closing fence, which are every second piece.
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|piece| piece.split_once('\n'));
    let fence = |(info, text)| {
        let (language, rest): (&str, &str) = str::split_once(info, ' ').unwrap_or((info, ""));
        Fence { language, untested: rest.strip_prefix("untested: "), text }
    };
    blocks.map(fence).collect()
}

/// Returns the commands of a transcript, each with the output below it.
fn calls(transcript: &str) -> Vec<(&str, Vec<&str>)> {
    let mut calls: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in transcript.lines() {
        match (line.strip_prefix("$ "), calls.last_mut()) {
            (Some(command), _) => calls.push((command, Vec::new())),
            (None, Some((_, output))) => output.push(line),
            (None, None) => {}
        }
    }
    calls
}

/// Returns the shape of a line: its words, without the numbers, paths and instruction sets that differ between machines.
fn shape(line: &str) -> Vec<&str> {
    let general = |word| {
        let bare = str::trim_matches(word, |c: char| !c.is_alphanumeric());
        let differs = ["scalar", "neon", "present", "absent"].contains(&bare);
        match word {
            _ if word.contains('…') => "…",
            _ if differs || word.contains(|c: char| c.is_ascii_digit()) => "#",
            _ => word,
        }
    };
    line.split_whitespace().map(general).collect()
}

/// Returns `true` if `found` equals `wanted`. In `wanted`, an item `…` matches any number of items.
fn matches<T: PartialEq + Copy>(
    wanted: &[T],
    found: &[T],
    any: &impl Fn(T) -> bool,
    same: &impl Fn(T, T) -> bool,
) -> bool {
    match wanted.split_first() {
        None => found.is_empty(),
        Some((&first, rest)) if any(first) => {
            (0..=found.len()).any(|skipped| matches(rest, &found[skipped..], any, same))
        }
        Some((&first, rest)) => {
            found.first().is_some_and(|&line| same(first, line)) && matches(rest, &found[1..], any, same)
        }
    }
}

/// Returns `true` if a line has the shape of `wanted`.
fn same_shape(wanted: &str, found: &str) -> bool {
    matches(&shape(wanted), &shape(found), &|word| word == "…", &|a, b| a == b)
}

/// Returns `true` if the output `found` has the shape of `wanted`.
fn same_output(wanted: &[&str], found: &str) -> bool {
    let found: Vec<&str> = found.lines().collect();
    matches(wanted, &found, &|line| line == "…", &same_shape)
}

/// Runs the pages with the programs in `built`, the Python module in the folder `dist`, and the interpreter `python`.
pub fn pages(tree: &Tree, ran: &mut Ran, built: &Path, dist: &Path, python: &Path) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let run = |program: &str, text: &str| {
        let run =
            Run::new(tree, program).arg(text).dir(dir.path()).front(built.to_owned()).limit(LIMIT).quiet();
        run.env("PYTHONPATH", dist.join("share/python")).env("ELSA_LIBRARY", "").env("ELSA_BACKEND", "").run()
    };
    let interpreter = format!("{} -Bc", python.display());
    let mut pages = files::below(&tree.root.join("docs/src"), &["md"])?;
    // The page about the tool comes first, because it writes the tensors that the other pages read.
    pages.sort_by_key(|path| (!path.ends_with("tool.md"), path.clone()));
    pages.push(tree.root.join("README.md"));
    let (mut untested, mut written) = (0, false);
    for path in pages {
        let page = files::text(&path)?;
        let name = path.strip_prefix(&tree.root).unwrap_or(&path).display().to_string();
        for fence in fences(&page) {
            let first = fence.text.lines().next().unwrap_or_default();
            let what = format!("{name}: {first}");
            match fence.language {
                _ if fence.untested.is_some() => untested += 1,
                "text" => {}
                _ if readme::FOLLOWED.contains(&first) || readme::repeats(tree, fence.text)? => {}
                "python" => {
                    let out = run(&interpreter, fence.text);
                    ran.note(&what, if out.ok { Ok("runs".to_owned()) } else { Err(out.stderr) });
                    if !written {
                        run(&interpreter, FILES).text("the files of the guide")?;
                        written = true;
                    }
                }
                "sh" => {
                    let out = run("sh -euc", fence.text);
                    ran.note(&what, if out.ok { Ok("runs".to_owned()) } else { Err(out.stderr) });
                }
                "console" => {
                    for (command, wanted) in calls(fence.text) {
                        let command = command.replace("python3", &python.display().to_string());
                        let out = run("sh -c", &format!("{{ {command}\n}} 2>&1"));
                        let good = same_output(&wanted, &out.stdout);
                        let found = if good { Ok("prints its output".to_owned()) } else { Err(out.stdout) };
                        ran.note(&format!("{name}: {command}"), found);
                    }
                }
                other => ran.note(
                    &what,
                    Err(format!("language '{other}'; allowed: python, sh, console, text, or untested:")),
                ),
            }
        }
    }
    println!("the guide: {untested} blocks are marked as untested");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_have_a_language_and_perhaps_a_reason() {
        let page = "a\n```sh untested: a board\nx\n```\nb\n```console\n$ y\n1\n```\n";
        let [sh, console] = &fences(page)[..] else { panic!("{page}") };
        assert_eq!((sh.language, sh.untested, sh.text), ("sh", Some("a board"), "x\n"));
        assert_eq!((console.language, console.untested), ("console", None));
        assert_eq!(calls(console.text), [("y", vec!["1"])]);
    }

    #[test]
    fn outputs_are_compared_by_their_shape() {
        let wanted = ["elsa: wrote y.npy in … ms (avx512, 2 threads)", "…", "last"];
        assert!(same_output(&wanted, "elsa: wrote y.npy in 0.1 ms (avx2, 12 threads)\nmore\nlast\n"));
        assert!(same_output(&wanted, "elsa: wrote y.npy in 0.1 ms (scalar, 12 threads)\nlast"));
        assert!(!same_output(&wanted, "elsa: wrote y.npy in 0.1 s (avx2, 2 threads)\nlast\n"));
        assert!(!same_output(&wanted, "elsa: wrote y.npy in 0.1 ms (avx2, 2 threads)\n"));
        assert!(!same_output(&["a", "b"], "a\nc\n"));
    }

    /// Checks that every block of every page is run by this module, run by [`readme`], or marked as untested.
    #[test]
    fn every_block_has_a_known_language() {
        let tree = Tree::find().unwrap();
        let mut untested = 0;
        for path in files::below(&tree.root.join("docs/src"), &["md"]).unwrap() {
            let page = files::text(&path).unwrap();
            for fence in fences(&page) {
                let first = fence.text.lines().next().unwrap_or_default();
                let known = ["text", "python", "sh", "console"].contains(&fence.language);
                assert!(
                    known || fence.untested.is_some() || readme::FOLLOWED.contains(&first),
                    "{path:?}: {fence:?}"
                );
                untested += u64::from(fence.untested.is_some());
            }
        }
        assert!(untested < 20, "{untested} blocks are untested");
    }
}
