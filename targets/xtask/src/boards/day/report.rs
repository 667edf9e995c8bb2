//! `cargo xtask board-report`: unpacks archives of board days, and passes them to `elsa-lab board-report`.

use crate::shell::{Run, Tree};
use std::path::{Component, Path, PathBuf};

/// Arguments of `cargo xtask board-report`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Archive of a board day, and possibly another one to compare it with.
    #[arg(value_name = "ARCHIVE", required = true, num_args = 1..=2)]
    archives: Vec<PathBuf>,
    /// File for the page [default: the archive's name with .html]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs `cargo xtask board-report`.
pub fn run(tree: &Tree, arguments: &Arguments) -> Result<(), String> {
    report(tree, &arguments.archives, arguments.html.as_deref())
}

/// Reports on an archive, and compares it with a second one. The page goes to `html`, or next to the first archive.
///
/// # Errors
/// Returns an error if an archive is damaged, or if it shows a failure.
pub fn report(tree: &Tree, archives: &[PathBuf], html: Option<&Path>) -> Result<(), String> {
    let mut run = Run::new(tree, "cargo run --quiet -p elsa-lab -- board-report");
    let mut folders = Vec::new();
    for archive in archives {
        let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        unpack(tree, archive, folder.path())?;
        run = run.arg(folder.path().join("day"));
        // The folder is kept until the report has ended.
        folders.push(folder);
    }
    let beside = archives.first().map(|archive| archive.with_extension("").with_extension("html"));
    let html = html.map(Path::to_owned).or(beside).unwrap_or_default();
    let path = std::path::absolute(&html).map_err(|error| format!("{}: {error}", html.display()))?;
    let out = run.arg("--html").arg(path).run();
    if out.ok { Ok(()) } else { Err(format!("{}: {}", html.display(), out.how)) }
}

/// Unpacks an archive into the folder `to`. The archive comes from another machine, so it may contain only files and
/// folders within `day`.
fn unpack(tree: &Tree, archive: &Path, to: &Path) -> Result<(), String> {
    let archive = std::path::absolute(archive).map_err(|error| format!("{}: {error}", archive.display()))?;
    let tar = |options: &str| Run::new(tree, "tar").arg(options).arg(&archive);
    let refused = |what: &str| format!("{}: {what}; allowed: files in the folder day", archive.display());
    let listed = tar("-tvzf").quiet().run().text(&archive.display().to_string())?;
    if let Some(line) = listed.lines().find(|line| !line.starts_with(['-', 'd'])) {
        return Err(refused(line));
    }
    let names = tar("-tzf").quiet().run().text(&archive.display().to_string())?;
    let within = |name: &str| {
        let mut parts = Path::new(name).components();
        parts.next() == Some(Component::Normal("day".as_ref()))
            && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    match names.lines().find(|name| !within(name)) {
        Some(name) => Err(refused(name)),
        None => {
            let run = tar("-xzf").arg("--no-same-owner").arg("-C").arg(to).quiet();
            run.run().text(&archive.display().to_string()).map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn archives_reach_no_other_folder() {
        let tree = Tree::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        files::write(&at("day/steps.jsonl"), "").unwrap();
        files::write(&at("other"), "").unwrap();
        std::os::unix::fs::symlink("/etc", at("day/link")).unwrap();
        let pack = |name: &str, words: &str| {
            let run = Run::new(&tree, "tar -P -czf").arg(at(name)).arg("-C").arg(folder.path()).args(words);
            assert!(run.quiet().run().ok, "{words}");
            files::folder(&at("to")).unwrap();
            unpack(&tree, &at(name), &at("to"))
        };
        assert_eq!(pack("a.tar.gz", "day/steps.jsonl"), Ok(()));
        assert!(at("to/day/steps.jsonl").is_file());
        for (name, words) in [("b.tar.gz", "other"), ("c.tar.gz", "day"), ("d.tar.gz", "day/../other")] {
            assert!(pack(name, words).unwrap_err().contains("allowed: files in the folder day"), "{words}");
        }
        files::write(&at("e.tar.gz"), "no archive").unwrap();
        assert!(unpack(&tree, &at("e.tar.gz"), &at("to")).is_err());
    }
}
