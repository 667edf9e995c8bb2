//! `cargo xtask deploy`: builds for a board, copies the folder to the board over ssh, runs `elsa verify` and
//! `elsa bench` there, and stores the measurements in `targets/NAME/bench`.
//!
//! All accesses to the board use this machine's `ssh`, so the user's keys, jump hosts and aliases apply. They share one
//! connection, so that a password is requested only once. Without a terminal, no password is requested. The facts of
//! the board are read before anything is built or copied.
//!
//! A results file contains one JSON object per line: first the facts of the board (`what` is `board`), then the lines
//! of `elsa bench --json`. A fact that the board does not report is null. Existing files are never overwritten.

use super::build;
use super::target::Target;
use crate::files::{self, at};
use crate::setup;
use crate::shell::{Output, Run, Tree};
use elsa_targets::{Board, Required};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Arguments of `cargo xtask deploy`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Board to build for.
    #[arg(long, value_parser = Target::names())]
    target: String,
    /// Address of the board, as for ssh.
    #[arg(value_name = "USER@BOARD")]
    destination: String,
    /// SSH port.
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// SSH private key file.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// SSH configuration file, instead of the user's.
    #[arg(long, value_name = "FILE")]
    ssh_config: Option<PathBuf>,
    /// Folder on the board, relative to the user's home.
    #[arg(long, value_name = "DIR", default_value = "elsa")]
    dir: String,
    /// Folder for the measurements [default: targets/NAME/bench]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    #[command(flatten)]
    additions: build::Additions,
    /// Options of `elsa bench`, after `--`, such as --seconds 5 or --shape.
    #[arg(last = true, value_name = "ARGUMENTS")]
    bench: Vec<String>,
}

/// Exit status of ssh if it cannot connect or log in.
const NO_CONNECTION: i32 = 255;
/// Exit status of `elsa bench` if something disturbed the measurement of a row.
pub const UNCLEAN: i32 = 5;

/// A script that prints the facts of the board as `key=value` lines, and omits the facts that it cannot find. `$1` is
/// the folder for the deployment. The script does not read sensors and clocks, because `elsa info` reads them more
/// reliably.
const PROBE: &str = r#"
say() { [ -n "$2" ] && echo "$1=$2"; }
say machine "$(uname -m)"
say host "$(uname -n)"
say kernel "$(uname -r)"
say board "$(tr -d '\000' </proc/device-tree/model 2>/dev/null)"
say l4t "$(head -n 1 /etc/nv_tegra_release 2>/dev/null)"
say driver "$(head -n 1 /proc/driver/nvidia/version 2>/dev/null)"
say nvpmodel "$(nvpmodel -q 2>/dev/null | tr '\n' ' ')"
dir=$1
while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
say free_kib "$(df -Pk "$dir" 2>/dev/null | awk 'NR == 2 { print $4 }')"
exit 0
"#;

/// Facts of the board that are written to the first line of a results file.
const HEADER: [&str; 7] = ["machine", "host", "kernel", "board", "l4t", "driver", "nvpmodel"];

/// A connection to the board.
struct Link<'a> {
    tree: &'a Tree,
    destination: String,
    options: Vec<std::ffi::OsString>,
    port: Option<u16>,
    /// Temporary folder that contains the socket of the shared connection.
    socket: tempfile::TempDir,
}

impl<'a> Link<'a> {
    fn new(tree: &'a Tree, arguments: &Arguments) -> Result<Link<'a>, String> {
        let destination = &arguments.destination;
        if destination.is_empty() || destination.starts_with('-') {
            return Err(format!(
                "board: {destination}; allowed: USER@BOARD, or a name from ssh's configuration"
            ));
        }
        setup::program(tree, "ssh", "openssh-client")?;
        let socket = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        let mut options: Vec<std::ffi::OsString> = Vec::new();
        let mut set = |option: String| options.extend(["-o".into(), option.into()]);
        set("ConnectTimeout=15".to_owned());
        set("ControlMaster=auto".to_owned());
        set(format!("ControlPath={}", socket.path().join("s").display()));
        set("ControlPersist=60".to_owned());
        if !std::io::stdin().is_terminal() {
            set("BatchMode=yes".to_owned());
        }
        for (flag, path) in [("-i", &arguments.identity), ("-F", &arguments.ssh_config)] {
            if let Some(path) = path {
                if !path.is_file() {
                    return Err(format!("{}: no such file; allowed: a file for ssh {flag}", path.display()));
                }
                options.extend([flag.into(), path.into()]);
            }
        }
        Ok(Link { tree, destination: destination.clone(), options, port: arguments.port, socket })
    }

    fn start(&self, program: &str) -> Run {
        let mut run = Run::new(self.tree, program);
        for option in &self.options {
            run = run.arg(option);
        }
        if let Some(number) = self.port {
            run = run.args(&format!("-p {number}"));
        }
        run
    }

    /// Returns the ssh command that runs `command` in the board's shell.
    fn command(&self, command: &str) -> Run {
        self.start("ssh").arg("--").arg(&self.destination).arg(command)
    }

    /// Runs a command on the board and returns the command's output. The command must succeed.
    fn ask(&self, command: &str) -> Result<String, String> {
        self.succeeded(command, self.command(command).quiet().run())
    }

    fn succeeded(&self, what: &str, out: Output) -> Result<String, String> {
        if out.ok {
            return Ok(out.stdout);
        }
        let said = out.stderr.trim();
        Err(if out.code == Some(NO_CONNECTION) {
            format!("{}: no connection: {said}", self.destination)
        } else {
            format!("{}: {what}: {}: {said}", self.destination, out.how)
        })
    }

    /// Returns the rows of a finished `elsa bench`. Also accepts the exit status [`UNCLEAN`], because the rows whose
    /// measurement was disturbed are marked.
    fn measured(&self, out: Output) -> Result<Vec<Value>, String> {
        let text = if out.code == Some(UNCLEAN) { out.stdout } else { self.succeeded("elsa bench", out)? };
        rows(&text)
    }

    /// Copies the contents of the folder `from` to the folder `dir` on the board, and preserves symbolic links.
    fn copy(&self, from: &Path, dir: &str) -> Result<(), String> {
        let archive = self.socket.path().join("folder.tar");
        let pack = Run::new(self.tree, "tar -cf").arg(&archive).arg("-C").arg(from).arg(".");
        pack.quiet().run().text("packing the folder")?;
        let out = self.command(&format!("tar -xf - -C {dir} --no-same-owner")).input(archive).run();
        self.succeeded("copying", out).map(|_| ())
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        if self.socket.path().join("s").exists() {
            // A connection that has already ended need not be closed, so failures are ignored.
            let _ = self.start("ssh -O exit").arg("--").arg(&self.destination).quiet().run();
        }
    }
}

/// Parses lines of the format `key=value`, and ignores all others.
fn facts(text: &str) -> Map<String, Value> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), json!(value.trim()))).collect()
}

/// Checks that the board has the target's processor and enough free space for the folder.
fn fits(facts: &Map<String, Value>, target: &Target, needed_kib: u64) -> Result<(), String> {
    let fact = |key: &str| facts.get(key).and_then(Value::as_str).unwrap_or_default();
    if fact("machine") != target.machine() {
        let (found, wanted) = (fact("machine"), target.machine());
        return Err(format!("machine: {found}; allowed: {wanted}, the machine of {}", target.name()));
    }
    match fact("free_kib").parse::<u64>() {
        Ok(free) if free < needed_kib => Err(format!("space: {free} KiB free; needed: {needed_kib} KiB")),
        Ok(_) => Ok(()),
        Err(_) => Err("space: df reports nothing about the folder".to_owned()),
    }
}

/// Returns the total size in KiB of the files in a folder. The size of each file is rounded up to a multiple of 4 KiB.
fn kib(path: &Path) -> Result<u64, String> {
    let file = fs::symlink_metadata(path).map_err(at(path))?;
    if !file.is_dir() {
        return Ok(file.len().div_ceil(4096) * 4);
    }
    fs::read_dir(path).map_err(at(path))?.map(|entry| kib(&entry.map_err(at(path))?.path())).sum()
}

/// Returns the required kernels of the board that did not run, according to two reports of the tool: `info`, and the
/// `lines` of the measurements.
pub fn missing(board: &Board, info: &Value, lines: &[Value]) -> Vec<String> {
    let backends = info["backends"].as_array().cloned().unwrap_or_default();
    let mut seen: BTreeSet<&str> =
        backends.iter().filter(|x| x["present"] == true).filter_map(|x| x["kernel"].as_str()).collect();
    seen.extend(lines.iter().filter_map(|line| line["kernel"].as_str()));
    let cuda = backends.iter().any(|x| x["name"] == "cuda" && x["present"] == true);
    let gone = |required: &Required| match required {
        Required::Cpu(name) => (!seen.contains(name.as_str())).then(|| format!("cpu {name}")),
        Required::Gpu(name) => (!cuda).then(|| format!("gpu {name} (no back end cuda)")),
    };
    board.required.iter().filter_map(gone).collect()
}

/// Parses a report that contains one JSON value per line.
pub fn lines(text: &str) -> Result<Vec<Value>, String> {
    let parse = |line: &str| serde_json::from_str(line).map_err(|error| format!("not JSON: {line}: {error}"));
    text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect()
}

/// Parses the output of `elsa bench --json` and returns its rows of measurements.
pub fn rows(text: &str) -> Result<Vec<Value>, String> {
    let mut rows = lines(text)?;
    rows.retain(|line| line["what"] == "bench");
    Ok(rows)
}

/// Returns a path for a new results file. The name consists of the date and the host. If a file with that name exists,
/// a number is added.
fn results(dir: &Path, date: &str, host: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let host: String = host.chars().map(plain).collect();
    let path = |tail: &str| dir.join(format!("{date}-{host}{tail}.jsonl"));
    let numbered = (2..).map(|n: u32| path(&format!("-{n}")));
    std::iter::once(path("")).chain(numbered).find(|path| !path.exists()).unwrap_or_else(|| path(""))
}

/// Runs `cargo xtask deploy`.
pub fn run(tree: &Tree, arguments: &Arguments) -> Result<(), String> {
    let dir = &arguments.dir;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if dir.is_empty() || dir.starts_with('-') || !dir.chars().all(plain) {
        return Err(format!("--dir: {dir}; allowed: letters, digits, /, ., _ and -"));
    }
    let safe = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric() || "-=,._".contains(c));
    if let Some(word) = arguments.bench.iter().find(|word| !safe(word)) {
        return Err(format!("{word}; allowed: flags of elsa bench"));
    }
    let link = Link::new(tree, arguments)?;
    let target = Target::named(tree, &arguments.target)?;
    let probe = format!("set -- {dir}; {PROBE}");
    let before = facts(&link.ask(&probe)?);
    let here = |fault: String| format!("{}: {fault}", link.destination);
    fits(&before, &target, 0).map_err(here)?;

    let checked = build::build(tree, &target, arguments.additions)?;
    if !checked.faults.is_empty() {
        return Err(checked.faults.join("\n       "));
    }
    let dist = target.dist(tree);
    fits(&before, &target, kib(&dist)?).map_err(here)?;
    link.ask(&format!("mkdir -p {dir}"))?;
    link.copy(&dist, dir)?;

    let elsa = |rest: &str| link.command(&format!("cd {dir} && ./bin/elsa {rest}"));
    link.succeeded("elsa info", elsa("info").run())?;
    link.succeeded("elsa verify", elsa("verify --scenario stress").run())?;
    // This shape runs the kernel for few queries, too.
    let few = elsa("bench --force --json --method elsa --seconds 0.2 --shape 1,1,1,900,64").quiet().run();
    let mut records = link.measured(few)?;
    let measured = elsa(&format!("bench --json {}", arguments.bench.join(" "))).run();
    records.extend(link.measured(measured)?);
    let after = facts(&link.ask(&probe)?);
    // Clocks, temperatures and power are read right after the load.
    let info = lines(&link.succeeded("elsa info", elsa("info --json").quiet().run())?)?;
    let info = info.into_iter().next().unwrap_or(Value::Null);

    let date = Run::new(tree, "date -u +%Y-%m-%d").quiet().run();
    let commit = Run::new(tree, "git describe --always --dirty").quiet().run();
    let mut header = Map::new();
    header.insert("what".to_owned(), json!("board"));
    header.insert("target".to_owned(), json!(target.name()));
    header.insert("date".to_owned(), json!(date.stdout.trim()));
    header.insert("commit".to_owned(), json!(commit.stdout.trim()));
    for key in HEADER {
        header.insert(key.to_owned(), after.get(key).cloned().unwrap_or(Value::Null));
    }
    header.insert("info".to_owned(), info.clone());
    let folder = arguments.results.clone().unwrap_or_else(|| target.folder(tree).join("bench"));
    let host = after.get("host").and_then(Value::as_str).unwrap_or("board");
    let path = results(&folder, date.stdout.trim(), host);
    let mut text = Value::Object(header).to_string() + "\n";
    for record in &records {
        text += &format!("{record}\n");
    }
    files::write(&path, text)?;
    println!("{}: {} measurements", path.display(), records.len());
    if let Target::Board(board) = &target {
        let missing = missing(board, &info, &records);
        if !missing.is_empty() {
            return Err(here(format!("required kernels that did not run: {}", missing.join(", "))));
        }
    }
    Ok(())
}
