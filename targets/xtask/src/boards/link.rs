//! Accesses to a board over ssh: commands, copies and fetched files.
//!
//! All accesses use this machine's `ssh`, so the user's keys, jump hosts and aliases apply. They share one connection, so
//! that a password is requested only once. Without a terminal, no password is requested. After the first access, an access
//! that finds no connection is repeated for ten minutes.

use crate::files;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use std::cell::Cell;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Address of a board, as for ssh.
#[derive(clap::Args)]
pub struct Address {
    /// Address of the board, as for ssh.
    #[arg(value_name = "USER@BOARD", required_unless_present = "folder", conflicts_with = "folder")]
    destination: Option<String>,
    /// SSH port.
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// SSH private key file.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// SSH configuration file, instead of the user's.
    #[arg(long, value_name = "FILE")]
    ssh_config: Option<PathBuf>,
}

/// Exit status of ssh if it cannot connect or log in.
const NO_CONNECTION: i32 = 255;
/// Time for which an access is repeated.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time between two of these accesses.
const PAUSE: Duration = Duration::from_secs(2);

/// A connection to the board.
pub struct Link<'a> {
    tree: &'a Tree,
    /// Address of the board.
    pub destination: String,
    options: Vec<OsString>,
    port: Option<u16>,
    /// Temporary folder that contains the socket of the shared connection.
    socket: tempfile::TempDir,
    /// `true` after the first access.
    reached: Cell<bool>,
}

impl<'a> Link<'a> {
    /// Prepares a connection. Nothing is connected until the first command.
    pub fn new(tree: &'a Tree, address: &Address) -> Result<Link<'a>, String> {
        let destination = address.destination.clone().unwrap_or_default();
        if destination.is_empty() || destination.starts_with('-') {
            return Err(format!(
                "board: {destination}; allowed: USER@BOARD, or a name from ssh's configuration"
            ));
        }
        setup::program(tree, "ssh", "openssh-client")?;
        let socket = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        let mut options: Vec<OsString> = Vec::new();
        let mut set = |option: String| options.extend(["-o".into(), option.into()]);
        set("ConnectTimeout=15".to_owned());
        // A cable that has been pulled ends the connection within half a minute.
        set("ServerAliveInterval=10".to_owned());
        set("ServerAliveCountMax=3".to_owned());
        set("ControlMaster=auto".to_owned());
        set(format!("ControlPath={}", socket.path().join("s").display()));
        set("ControlPersist=60".to_owned());
        if !std::io::stdin().is_terminal() {
            set("BatchMode=yes".to_owned());
        }
        for (flag, path) in [("-i", &address.identity), ("-F", &address.ssh_config)] {
            if let Some(path) = path {
                if !path.is_file() {
                    return Err(format!("{}: no such file; allowed: a file for ssh {flag}", path.display()));
                }
                options.extend([flag.into(), path.into()]);
            }
        }
        Ok(Link { tree, destination, options, port: address.port, socket, reached: Cell::new(false) })
    }

    /// Adds ssh's options to a command whose last word is ssh, or to the words that follow it.
    fn start(&self, run: Run) -> Run {
        let run = self.options.iter().fold(run, |run, option| run.arg(option));
        match self.port {
            Some(number) => run.args(&format!("-p {number}")),
            None => run,
        }
    }

    /// Returns the ssh command that runs `command` in the board's shell.
    fn command(&self, command: &str) -> Run {
        self.start(Run::new(self.tree, "ssh")).arg("--").arg(&self.destination).arg(command)
    }

    /// Runs a command on the board and returns the command's output. The command must succeed.
    pub fn ask(&self, command: &str) -> Result<String, String> {
        self.succeeded(command, self.access(|| self.command(command).quiet()))
    }

    /// Runs a command that accesses the board.
    fn access(&self, command: impl Fn() -> Run) -> Output {
        let mut lost = None;
        loop {
            let out = command().run();
            if out.code != Some(NO_CONNECTION) {
                self.reached.set(true);
                return out;
            }
            let since = *lost.get_or_insert_with(Instant::now);
            if !self.reached.get() || since.elapsed() > PATIENCE {
                return out;
            }
            println!("{}: connection lost; trying again", self.destination);
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the output of a command that succeeded. For a failed command, the error says how `what` ended.
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

    /// Copies the contents of the folder `from` to the folder `dir` on the board, and preserves symbolic links.
    pub fn copy(&self, from: &Path, dir: &str) -> Result<(), String> {
        let archive = self.socket.path().join("folder.tar");
        let pack = Run::new(self.tree, "tar -cf").arg(&archive).arg("-C").arg(from).arg(".");
        pack.quiet().run().text("packing the folder")?;
        let unpack = format!("tar -xf - -C {dir} --no-same-owner");
        self.succeeded("copying", self.access(|| self.command(&unpack).input(&archive)))?;
        std::fs::remove_file(&archive).map_err(files::at(&archive))
    }

    /// Copies the file `from` on the board to the new file `to`. If the copy fails, there is no file `to`.
    pub fn fetch(&self, from: &str, to: &Path) -> Result<(), String> {
        to.parent().map_or(Ok(()), files::folder)?;
        let part = to.with_extension("part");
        // The shell connects the file, because the output of a command is kept as text.
        let out = self.access(|| {
            let run = Run::new(self.tree, "sh -c").arg("file=$1; shift; exec \"$@\" >\"$file\"").arg("sh");
            let run = self.start(run.arg(&part).arg("ssh")).arg("--").arg(&self.destination);
            run.arg(format!("cat {from}")).quiet()
        });
        let fetched = self.succeeded(from, out);
        if fetched.is_err() {
            // The incomplete file may not exist.
            let _ = std::fs::remove_file(&part);
        }
        fetched.and_then(|_| std::fs::rename(&part, to).map_err(files::at(to)))
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        if self.socket.path().join("s").exists() {
            // A connection that has already ended need not be closed, so failures are ignored.
            let run = self.start(Run::new(self.tree, "ssh -O exit"));
            let _ = run.arg("--").arg(&self.destination).quiet().run();
        }
    }
}
