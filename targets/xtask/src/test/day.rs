//! Runs the stage `board-day`: rehearses a board day on an emulated Cortex-A57.
//!
//! The option `-L PREFIX` makes the emulator open PREFIX/path in place of path, if PREFIX/path exists. A board's prefix
//! consists of the tree of files by which the tests of `elsa-board` simulate the board, of the C library, and of
//! programs that stand for `nvpmodel` and `jetson_clocks`. So the binaries are those of the board. The GPU is a
//! stand-in driver for the board's processor. The test programs of the GPU run natively, because they are too slow in
//! an emulator.

use super::cargo::with_standin;
use super::dist::dist;
use crate::boards::day::{lay, report};
use crate::boards::outputs;
use crate::boards::target::{HOST, Target};
use crate::files::{self, at};
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup::{self, BOARD_ROOT};
use crate::shell::{Output, Run, Tree};
use elsa_targets::NAMES;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of times that the longest rehearsal is killed.
const KILLS: usize = 10;
/// Steps that are too slow in an emulator, or that need a GPU.
const NATIVE: &str = "verify-gpu,bits-cuda,conformance,hostile,outputs-alone,determinism,tuned,linear,stream,\
    schedules,no-allocation,device-tensors,warm,c-plain,c-buffers,c-device,c-linear-device,c-series-device,\
    c-copies,c-graph,scale";
/// Steps that the longest rehearsal must finish, and titles that its report must have.
const WHOLE: [&[&str]; 2] = [
    &["calls", "bits-cpu", "soak", "masks-gpu", "masks-cpu", "streams-gpu", "streams-cpu"],
    &["Latencies", "Masks", "Streams"],
];
/// The same if the rehearsal may change power modes and clocks, which only root may.
const MODES: [&[&str]; 2] = [
    &["other-mode-grid-gpu", "locked-masks-cpu", "other-mode-locked-streams-cpu"],
    &["Power modes and clocks"],
];
/// Free space in KiB that is too small for a step.
const TOO_SMALL: u64 = 8192;
/// Steps that run on this machine.
const TWIN: &str = "what,gpu,grid,masks-gpu,streams-gpu,onnx-cpu,onnx-cpu-time,tensorrt,python";
/// A program that stands for `trtexec`. It calls the whole interface of each plugin.
const TRTEXEC: &str = r#"#!/bin/sh
for word in "$@"; do
  case $word in --plugins=*) '@TESTS@' "${word#--plugins=}" || exit ;; esac
done
echo "[I] GPU Compute Time: min = 0.1 ms, max = 0.3 ms, mean = 0.2 ms, median = 0.2 ms, percentile(99%) = 0.3 ms"
"#;
/// A program that stands for `nvpmodel`.
const NVPMODEL: &str = r#"#!/bin/sh
state=$ELSA_ROOT/var/lib/nvpmodel/status
case $1 in
-q) echo "NV Power Mode: x"; sed 's/pmode:0*\([0-9]\).*/\1/' "$state" ;;
-m) echo "pmode:000$2" >"$state" ;;
esac
"#;
/// A program that stands for `jetson_clocks`.
const JETSON_CLOCKS: &str = r#"#!/bin/sh
case $1 in
--store) echo kept >"$2" ;;
*) echo "${1:-locked}" >>"$ELSA_ROOT/clocks" ;;
esac
"#;

/// Returns the results of the steps that are recorded in a folder of a board day, by the names of the steps.
pub fn recorded(folder: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = files::text(&folder.join("day/steps.jsonl"))?;
    let steps = text.lines().filter_map(|line| outputs::lines(line).ok()?.into_iter().next());
    let steps = steps.filter(|line| line["what"] == "step");
    Ok(steps.map(|line| (word(&line, "id"), word(&line, "result"))).collect())
}

fn word(line: &serde_json::Value, key: &str) -> String {
    line[key].as_str().unwrap_or_default().to_owned()
}

/// A folder of a board day, and the machine that it runs on.
struct Rehearsal<'a> {
    tree: &'a Tree,
    folder: PathBuf,
    prefix: PathBuf,
    driver: Option<PathBuf>,
}

impl Rehearsal<'_> {
    /// Returns the variables of the program.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let prefix = self.prefix.display().to_string();
        let emulator = format!("qemu-aarch64 -cpu cortex-a57 -L {prefix}");
        let mut variables = vec![("ELSA_EMULATOR", emulator), ("ELSA_ROOT", prefix)];
        if let Some(driver) = &self.driver {
            let driver = driver.display().to_string();
            variables.extend([("LD_LIBRARY_PATH", driver.clone()), ("ELSA_STANDIN", driver)]);
        }
        variables
    }

    /// Runs the program with these options, after the words `front`.
    fn run(&self, front: &str, options: &str) -> Output {
        let run = Run::new(self.tree, front).args("sh").arg(self.folder.join("board-day.sh")).args(options);
        let run = self.variables().into_iter().fold(run, |run, (name, value)| run.env(name, value));
        run.limit(Duration::from_secs(3600)).run()
    }

    /// Returns the number of steps that have begun.
    fn begun(&self) -> usize {
        let text = fs::read_to_string(self.folder.join("day/steps.jsonl")).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("{\"what\":\"begin\"")).count()
    }

    /// Runs the program with these options, and kills it when its second step begins. Returns whether it was killed.
    fn killed(&self, options: &str) -> Result<bool, String> {
        let script = self.folder.join("board-day.sh");
        // The first step is the one that the previous kill interrupted.
        let last = self.begun() + 2;
        let mut command = Command::new("sh");
        command.arg(&script).args(options.split_whitespace()).envs(self.variables());
        let mut child = command.stdin(Stdio::null()).spawn().map_err(at(&script))?;
        loop {
            if child.try_wait().map_err(at(&script))?.is_some() {
                return Ok(false);
            }
            if self.begun() >= last {
                std::thread::sleep(Duration::from_millis(200));
                child.kill().and_then(|()| child.wait()).map_err(at(&script))?;
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns an error if a step has another result than `done` or `absent`, or if one of `wanted` is not done.
    fn good(&self, wanted: &[&str]) -> Result<String, String> {
        let steps = recorded(&self.folder)?;
        let bad = steps.iter().filter(|(_, result)| !matches!(result.as_str(), "done" | "absent"));
        let bad = bad.map(|(name, result)| format!("{name}: {result}: {}", self.said(name)));
        let gone = wanted.iter().filter(|name| steps.get(**name).is_none_or(|result| result != "done"));
        let faults: Vec<String> = bad.chain(gone.map(|name| format!("{name}: not done"))).collect();
        if faults.is_empty() { Ok(format!("{} steps", steps.len())) } else { Err(faults.join("; ")) }
    }

    /// Returns the last line that a step wrote to standard error.
    fn said(&self, step: &str) -> String {
        let text = fs::read_to_string(self.folder.join(format!("day/{step}.err"))).unwrap_or_default();
        text.lines().last().unwrap_or_default().to_owned()
    }
}

/// Makes the prefix of every board in the folder `to`.
fn prefixes(tree: &Tree, to: &Path) -> Result<(), String> {
    files::empty(to)?;
    let run =
        Run::new(tree, "cargo test -p elsa-board --lib -- --ignored --exact tests::tree::trees_are_written");
    run.env("ELSA_TREES", to).run().text("the trees of the boards")?;
    for name in NAMES {
        let prefix = to.join(name);
        let lib = prefix.join("lib");
        symlink(Path::new(BOARD_ROOT).join("lib"), &lib).map_err(at(&lib))?;
        for (path, text) in [("usr/sbin/nvpmodel", NVPMODEL), ("usr/bin/jetson_clocks", JETSON_CLOCKS)] {
            let path = prefix.join(path);
            files::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(at(&path))?;
        }
    }
    Ok(())
}

/// Runs the stage `board-day`.
pub fn day(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        setup::board(tree)?;
        let home = tree.target.join("board-day/rehearsal");
        files::empty(&home)?;
        let trees = home.join("trees");
        prefixes(tree, &trees)?;
        let driver = standin::build(tree, Variant::Board)?;
        let name = setup::reference()?.name;
        let shipped = dist(tree, ran, &name)?;
        let board = |name: &str, tests: bool, folder: &str, driver: Option<&PathBuf>| {
            let folder = home.join(folder);
            lay(tree, &Target::named(tree, name)?, &shipped, tests, &folder)?;
            Ok::<_, String>(Rehearsal { tree, folder, prefix: trees.join(name), driver: driver.cloned() })
        };
        for name in NAMES {
            let rehearsal = board(name, false, name, Some(&driver))?;
            each_board(ran, name, &rehearsal)?;
        }
        let whole = board(&name, true, "whole", Some(&driver))?;
        interrupted(ran, &whole)?;
        let absent = board(&name, false, "no-driver", None)?;
        without_time(ran, &absent)?;
        without_driver(ran, &absent)?;
        without_root(ran, &absent)?;
        without_space(ran, &absent)?;
        let twin = twin(tree, ran, &home)?;
        let archive = |folder: &Path| folder.join("board-day.tar.gz");
        let page = home.join("page.html");
        let archives = [archive(&whole.folder), archive(&home.join(NAMES[0]))];
        let told = report::report(tree, &archives, Some(&page));
        let found = told.and_then(|()| titled(&page, &wanted(tree, 1)));
        ran.note("the report of two archives", found.map(|()| page.display().to_string()));
        let told = report::report(tree, &[archive(&twin)], Some(&page));
        ran.note("the report of this machine's twin", told.map(|()| "made".to_owned()));
        Ok(())
    })
}

/// Returns `true` if this process may change power modes and clocks.
fn root(tree: &Tree) -> bool {
    Run::new(tree, "id -u").quiet().run().stdout.trim() == "0"
}

/// Returns the steps (0) or titles (1) that the longest rehearsal must have.
fn wanted(tree: &Tree, which: usize) -> Vec<&'static str> {
    [WHOLE[which], if root(tree) { MODES[which] } else { &[] }].concat()
}

/// Returns an error if a page lacks one of the titles.
fn titled(page: &Path, titles: &[&str]) -> Result<(), String> {
    let text = files::text(page)?;
    let gone: Vec<&str> =
        titles.iter().copied().filter(|title| !text.contains(&format!("<h2>{title}</h2>"))).collect();
    if gone.is_empty() { Ok(()) } else { Err(format!("{}: lacks {}", page.display(), gone.join(", "))) }
}

/// Runs what every board answers differently: its sensors, its energy, and its power modes.
fn each_board(ran: &mut Ran, name: &str, rehearsal: &Rehearsal<'_>) -> Result<(), String> {
    let before = fs::read_to_string(rehearsal.prefix.join("var/lib/nvpmodel/status")).unwrap_or_default();
    rehearsal.run("", "--quick --only what,energy,clocks");
    ran.note(&format!("{name}: steps"), rehearsal.good(&["system", "sensors", "idle", "energy-cpu"]));
    let info = outputs::lines(&files::text(&rehearsal.folder.join("day/info.out"))?)?;
    let machine = info.first().map(|info| info["machine"].clone()).unwrap_or_default();
    let known = machine["target"] == name && machine["emulated"] == true && machine["rails"][0].is_object();
    let found = if known { Ok("recognised".to_owned()) } else { Err(machine.to_string()) };
    ran.note(&format!("{name}: elsa info"), found);
    let after = fs::read_to_string(rehearsal.prefix.join("var/lib/nvpmodel/status")).unwrap_or_default();
    let mode = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    let clocks = fs::read_to_string(rehearsal.prefix.join("clocks")).unwrap_or_default();
    let undone = mode(&before) == mode(&after) && clocks.lines().last() != Some("locked");
    let found = if undone { Ok("undone".to_owned()) } else { Err(format!("{before} {after} {clocks}")) };
    ran.note(&format!("{name}: power mode and clocks"), found);
    Ok(())
}

/// Runs a whole day, which is killed at the beginning of [`KILLS`] steps.
fn interrupted(ran: &mut Ran, whole: &Rehearsal<'_>) -> Result<(), String> {
    let options = format!("--quick --minutes 240 --skip {NATIVE}");
    let mut kills = 0;
    while kills < KILLS && whole.killed(&options)? {
        kills += 1;
    }
    let found = if kills == KILLS { Ok(format!("{kills} times")) } else { Err(format!("{kills} times")) };
    ran.note("a whole day, killed", found);
    let out = whole.run("", &options);
    let wanted = wanted(whole.tree, 0);
    ran.note("a whole day, continued", out.text("board-day.sh").and_then(|_| whole.good(&wanted)));
    // Nothing is left to do.
    let begun = whole.begun();
    let out = whole.run("", &options);
    let found = if out.ok && whole.begun() == begun { Ok("nothing".to_owned()) } else { Err(out.stdout) };
    ran.note("a whole day, once more", found);
    Ok(())
}

/// Runs without any time: the steps are recorded as skipped, and later starts run them.
fn without_time(ran: &mut Ran, rehearsal: &Rehearsal<'_>) -> Result<(), String> {
    let out = rehearsal.run("", "--quick --minutes 0 --only what,grid,other-mode-grid-gpu");
    let steps = recorded(&rehearsal.folder)?;
    let skipped = steps.values().filter(|result| *result == "skipped").count();
    let all = skipped == steps.len() && steps.contains_key("other-mode-grid-gpu");
    let said = rehearsal.said("grid-cpu") == "0 minutes are used up";
    let found = if out.code == Some(4) && all && said {
        Ok(format!("{skipped} steps"))
    } else {
        Err(format!("{}: {steps:?}", out.how))
    };
    ran.note("without time", found);
    Ok(())
}

/// Runs on a machine without a driver, whose GPU steps are absent.
fn without_driver(ran: &mut Ran, rehearsal: &Rehearsal<'_>) -> Result<(), String> {
    rehearsal.run("", "--quick --only what,load-cold,grid,masks-gpu,streams-gpu,other-mode-grid-gpu");
    let steps = recorded(&rehearsal.folder)?;
    let absent = ["load-cold", "grid-gpu", "masks-gpu", "streams-gpu", "other-mode-grid-gpu"];
    let absent = absent.iter().all(|name| steps.get(*name).is_some_and(|x| x == "absent"));
    let found = if absent { rehearsal.good(&["grid-cpu"]) } else { Err(format!("{steps:?}")) };
    ran.note("without a driver", found);
    Ok(())
}

/// Runs as a user without rights, in a copy of the folder that belongs to this user.
fn without_root(ran: &mut Ran, rehearsal: &Rehearsal<'_>) -> Result<(), String> {
    let tree = rehearsal.tree;
    let root = root(tree);
    let home = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let copied = |from: &Path, name: &str| {
        let to = home.path().join(name);
        Run::new(tree, "cp -a").arg(from).arg(&to).quiet().run().text("copying the folder")?;
        Ok::<_, String>(to)
    };
    let (folder, prefix) = (copied(&rehearsal.folder, "folder")?, copied(&rehearsal.prefix, "prefix")?);
    files::empty(&folder.join("day"))?;
    if root {
        Run::new(tree, "chown -R 65534:65534").arg(home.path()).quiet().run().text("chown")?;
    }
    let user = if root { "setpriv --reuid 65534 --regid 65534 --clear-groups" } else { "" };
    let other = Rehearsal { tree, folder, prefix, driver: None };
    other.run(user, "--quick --only what,locked,other-mode-grid-cpu");
    let steps = recorded(&other.folder)?;
    let absent = ["locked", "other-mode-grid-cpu"];
    let absent = absent.iter().all(|name| steps.get(*name).is_some_and(|result| result == "absent"));
    let found = if absent { other.good(&["system", "sensors", "info"]) } else { Err(format!("{steps:?}")) };
    ran.note("without root", found);
    Ok(())
}

/// Runs on a disk that is almost full, and then on the same disk with free space. The disk is a file system in memory,
/// which only root can mount.
fn without_space(ran: &mut Ran, rehearsal: &Rehearsal<'_>) -> Result<(), String> {
    let tree = rehearsal.tree;
    let disk = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let mount = Run::new(tree, "mount -t tmpfs -o size=512m tmpfs").arg(disk.path()).quiet().run();
    if !mount.ok {
        ran.note = format!("not run: a full disk ({})", mount.stderr.trim());
        return Ok(());
    }
    let tried = tried_without_space(rehearsal, disk.path());
    Run::new(tree, "umount").arg(disk.path()).quiet().run().text("umount")?;
    ran.note("on a full disk", tried);
    Ok(())
}

fn tried_without_space(rehearsal: &Rehearsal<'_>, disk: &Path) -> Result<String, String> {
    let tree = rehearsal.tree;
    let folder = disk.join("folder");
    Run::new(tree, "cp -a").arg(&rehearsal.folder).arg(&folder).quiet().run().text("copying the folder")?;
    files::empty(&folder.join("day"))?;
    let free = Run::new(tree, "df -k --output=avail").arg(disk).quiet().run().stdout;
    let free: u64 = free.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or_default();
    let filler = disk.join("filler");
    let size = format!("-l {}KiB", free.saturating_sub(TOO_SMALL));
    Run::new(tree, "fallocate").args(&size).arg(&filler).quiet().run().text("filling the disk")?;
    let prefix = rehearsal.prefix.clone();
    let full = Rehearsal { tree, folder, prefix, driver: None };
    let out = full.run("", "--quick --only what");
    if out.code != Some(3) || !recorded(&full.folder)?.is_empty() {
        return Err(format!("not refused: {}: {}{}", out.how, out.stdout, out.stderr));
    }
    fs::remove_file(&filler).map_err(at(&filler))?;
    full.run("", "--quick --only what").text("with free space again")?;
    full.good(&["system", "sensors", "info"])
}

/// Makes a folder with a program that stands for TensorRT's `trtexec`.
fn trtexec(tree: &Tree, home: &Path) -> Result<PathBuf, String> {
    let headers = setup::tensorrt(tree)?;
    let root = home.join("tensorrt");
    let tests = root.join("tests");
    files::folder(&root)?;
    let compiled = Run::new(
        tree,
        "g++ -std=c++14 -O1 -rdynamic examples/tensorrt/tests/tests.cpp -I runtime/capi/include -isystem",
    )
    .arg(&headers.tensorrt)
    .arg("-isystem")
    .arg(&headers.cuda)
    .arg("-o")
    .arg(&tests)
    .args("-lpthread -ldl");
    compiled.run().text("the program that stands for TensorRT")?;
    let script = root.join("usr/src/tensorrt/bin/trtexec");
    files::write(&script, TRTEXEC.replace("@TESTS@", &tests.display().to_string()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(at(&script))?;
    Ok(root)
}

/// Runs the steps of the GPU and of the other libraries natively, on the stand-in driver. Returns the folder.
fn twin(tree: &Tree, ran: &mut Ran, home: &Path) -> Result<PathBuf, String> {
    let folder = home.join("twin");
    let shipped = dist(tree, ran, HOST)?;
    lay(tree, &Target::named(tree, HOST)?, &shipped, true, &folder)?;
    let driver = standin::build(tree, Variant::Plain)?;
    let (headers, python) = (setup::tensorrt(tree)?, setup::ort::newest(tree)?);
    let include = format!("{}:{}", headers.tensorrt.display(), headers.cuda.display());
    let run = Run::new(tree, "sh").arg(folder.join("board-day.sh"));
    let run = run.args("--quick --minutes 240 --only").arg(TWIN).args("--skip scale,memcheck,racecheck");
    let run = run.env("ELSA_ROOT", trtexec(tree, home)?).env("CPATH", include).env("ELSA_TEST_THREADS", "1");
    let run = run.front(python.parent().unwrap_or(Path::new("")).to_owned());
    let out = with_standin(run, &driver).limit(Duration::from_secs(3600)).run();
    let failed = |text: &str| {
        let lines = text.lines().filter(|line| line.contains(": failed") || line.contains(": late"));
        lines.collect::<Vec<_>>().join("; ")
    };
    let steps = recorded(&folder)?;
    let done = ["hostile", "python", "onnx-cpu", "onnx-cpu-time", "tensorrt"];
    let done = done.iter().all(|name| steps.get(*name).is_some_and(|result| result == "done"));
    let found = if out.ok && done { Ok("passed".to_owned()) } else { Err(failed(&out.stdout)) };
    ran.note("the GPU's steps on this machine", found);
    Ok(folder)
}
