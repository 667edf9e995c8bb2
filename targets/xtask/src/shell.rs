//! Runs commands. A command is printed before it runs. The output of a command is shown while the command runs. The
//! output is also kept, so that results can be counted.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Workspace of the test program for machines without an operating system.
pub const BARE_METAL: &str = "tests/bare-metal";
/// The workspace of the fuzz targets.
pub const FUZZ: &str = "tests/fuzz";

/// Folders of the project.
pub struct Tree {
    /// Root of the repository.
    pub root: PathBuf,
    /// Folder of the build outputs of the main workspace.
    pub target: PathBuf,
}

impl Tree {
    /// Returns the tree that this program was built from.
    pub fn find() -> Result<Tree, String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = here.ancestors().find(|path| path.join("core/Cargo.toml").is_file());
        let root = root.ok_or_else(|| format!("{}: not inside the repository", here.display()))?.to_owned();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(path) => root.join(path),
            None => root.join("target"),
        };
        Ok(Tree { root, target })
    }
}

/// The result of a command.
pub struct Output {
    /// `true` if the command exited with status zero.
    pub ok: bool,
    /// Exit status; `None` if the command did not start or was killed.
    pub code: Option<i32>,
    /// Exit status as text, or the reason why there is no exit status.
    pub how: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Returns the standard output of a successful command. For a failed command, the error says how `what` ended, and
    /// contains the last line of standard error.
    pub fn text(&self, what: &str) -> Result<String, String> {
        let said = self.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        if self.ok { Ok(self.stdout.clone()) } else { Err(format!("{what}: {}: {said}", self.how)) }
    }
}

/// A command with its environment, folder and time limit.
pub struct Run {
    words: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    dir: PathBuf,
    front: Option<PathBuf>,
    limit: Option<Duration>,
    input: Option<PathBuf>,
    show_stdout: bool,
    announce: bool,
    whole: bool,
}

impl Run {
    /// Splits `line` at spaces into a command that runs in the root of the tree.
    pub fn new(tree: &Tree, line: &str) -> Run {
        Run {
            words: line.split_whitespace().map(OsString::from).collect(),
            variables: Vec::new(),
            dir: tree.root.clone(),
            front: None,
            limit: None,
            input: None,
            show_stdout: true,
            announce: true,
            whole: false,
        }
    }

    /// Appends one argument, unchanged.
    pub fn arg(mut self, word: impl Into<OsString>) -> Run {
        self.words.push(word.into());
        self
    }

    /// Appends arguments, split at spaces.
    pub fn args(mut self, line: &str) -> Run {
        self.words.extend(line.split_whitespace().map(OsString::from));
        self
    }

    /// Sets a variable of the command's environment.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Run {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Sets a variable of the command's environment, unless the user has set it.
    pub fn env_default(self, name: &str, value: &str) -> Run {
        if std::env::var_os(name).is_some() { self } else { self.env(name, value) }
    }

    /// Puts a folder in front of the command's search path for programs.
    pub fn front(mut self, dir: PathBuf) -> Run {
        self.front = Some(dir);
        self
    }

    /// Sets the folder that the command runs in.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Run {
        self.dir = dir.into();
        self
    }

    /// Kills the command after `limit`.
    pub fn limit(mut self, limit: Duration) -> Run {
        self.limit = Some(limit);
        self
    }

    /// Connects a file to the command's standard input, which is empty by default.
    pub fn input(mut self, path: impl Into<PathBuf>) -> Run {
        self.input = Some(path.into());
        self
    }

    /// Does not show standard output on the screen. Used for output that only a program reads.
    pub fn machine(mut self) -> Run {
        self.show_stdout = false;
        self
    }

    /// Prints the command and its output together after the command has ended, so that the outputs of commands that run
    /// in parallel are not mixed.
    pub fn whole(mut self) -> Run {
        self.whole = true;
        self
    }

    /// Prints neither the command nor its output.
    pub fn quiet(mut self) -> Run {
        self.announce = false;
        self.show_stdout = false;
        self
    }

    /// Returns the command as a user would type it.
    pub fn line(&self) -> String {
        let quote = |word: &OsString| {
            let word = word.to_string_lossy();
            if word.contains([' ', '*', '"', '[', ';', '$']) {
                format!("'{word}'")
            } else {
                word.into_owned()
            }
        };
        let front = self.front.iter().map(|dir| format!("PATH={}:$PATH", dir.display()));
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={}", quote(value)));
        let input = self.input.iter().map(|path| format!("<{}", path.display()));
        let words = front.chain(variables).chain(self.words.iter().map(quote)).chain(input);
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the command, with its environment and its input.
    fn command(&self) -> Result<Command, String> {
        let (program, arguments) = self.words.split_first().ok_or("no command")?;
        let input = self.input.as_ref().map(std::fs::File::open).transpose();
        let input = input.map_err(|error| format!("standard input: {error}"))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.dir).stdin(input.map_or_else(Stdio::null, Stdio::from));
        // The variables that rustup and cargo set for this program do not apply to the cargo that it starts.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let own = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
            if own.iter().any(|own| name.starts_with(own)) || name == "RUSTUP_TOOLCHAIN" || name == "CARGO" {
                command.env_remove(&name);
            }
        }
        if let Some(dir) = &self.front {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let path = std::env::join_paths(std::iter::once(dir.clone()).chain(std::env::split_paths(&path)));
            command.env("PATH", path.map_err(|error| format!("PATH: {error}"))?);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Starts `command`.
    fn spawn(mut command: Command) -> Result<Child, String> {
        command.spawn().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))
    }

    /// Runs the command until it exits, and writes standard output and standard error to the file `path`. Returns the
    /// exit status as text, or the reason why there is no exit status.
    pub fn into_file(self, path: &Path) -> String {
        let go = || {
            let at = |error: std::io::Error| format!("{}: {error}", path.display());
            std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(at)?;
            let file = std::fs::File::create(path).map_err(at)?;
            let mut command = self.command()?;
            command.stdout(file.try_clone().map_err(at)?).stderr(file);
            Run::spawn(command)?.wait().map(|status| status.to_string()).map_err(at)
        };
        go().unwrap_or_else(|fault| fault)
    }

    /// Runs the command until it exits.
    pub fn run(self) -> Output {
        let line = self.line();
        let live = self.announce && !self.whole;
        if live {
            println!("$ {line}");
        }
        let nothing =
            |how: String| Output { ok: false, code: None, how, stdout: String::new(), stderr: String::new() };
        let start = Instant::now();
        let child = self.command().and_then(|mut command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Run::spawn(command)
        });
        let mut child = match child {
            Ok(child) => child,
            Err(how) => return nothing(how),
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (show_stdout, show_stderr) = (self.show_stdout && !self.whole, live);
        let (status, stdout, stderr) = std::thread::scope(|scope| {
            let out = scope.spawn(move || copy(out, show_stdout.then(std::io::stdout)));
            let err = scope.spawn(move || copy(err, show_stderr.then(std::io::stderr)));
            let status = wait(&mut child, self.limit);
            (status, out.join().unwrap_or_default(), err.join().unwrap_or_default())
        });
        let seconds = start.elapsed().as_secs_f64();
        if live {
            println!("# {seconds:.1} s");
        } else if self.announce {
            let stdout = if self.show_stdout { stdout.as_str() } else { "" };
            println!("$ {line}\n{stderr}{stdout}# {seconds:.1} s");
        }
        let (code, how) = match status {
            Ok(status) => (status.code(), status.to_string()),
            Err(how) => (None, how),
        };
        Output { ok: code == Some(0), code, how, stdout, stderr }
    }
}

/// Calls `work` for every item, on all cores. Returns the results in the order of the items.
pub fn side_by_side<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = items.len();
    let waiting = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(count));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(count) {
            scope.spawn(|| {
                while let Some((i, item)) = next() {
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the processor seconds that the finished child processes used; 0 if the system does not report them.
pub fn processor_seconds() -> f64 {
    let told = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may contain spaces, but it ends with the last parenthesis. Fields 16 and 17 of the line are
    // the times of the children in user and system mode, in hundredths of a second.
    let fields = told.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Reads `from` until it ends, copies each piece to `to` as soon as it arrives, and returns all of the text.
fn copy(from: Option<impl Read>, mut to: Option<impl Write>) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    if let Some(mut from) = from {
        while let Ok(n) = from.read(&mut piece) {
            if n == 0 {
                break;
            }
            all.extend_from_slice(&piece[..n]);
            if let Some(to) = &mut to {
                // Errors are ignored, so that a closed terminal does not stop a test.
                let _ = to.write_all(&piece[..n]).and_then(|()| to.flush());
            }
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Waits until the process ends. Kills the process if it has not ended after `limit`.
fn wait(child: &mut Child, limit: Option<Duration>) -> Result<ExitStatus, String> {
    let text = |error: std::io::Error| error.to_string();
    let Some(limit) = limit else { return child.wait().map_err(text) };
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(text)? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            child.kill().map_err(text)?;
            child.wait().map_err(text)?;
            return Err(format!("ended after {} s without a result", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_and_results_keep_their_order() {
        let squares = side_by_side((0..100u64).collect(), |n| n * n);
        assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<u64>>());
        assert!(side_by_side(Vec::<u64>::new(), |n| n).is_empty());
    }

    #[test]
    fn output_status_and_limit_are_told() {
        let tree = Tree::find().unwrap();
        let run = |script: &str| Run::new(&tree, "sh -c").arg(script).quiet();
        let out = run("echo a; echo b >&2").run();
        assert!(out.ok && out.stdout == "a\n" && out.stderr == "b\n");
        let out = run("exit 3").run();
        assert!(!out.ok && out.code == Some(3) && out.how.contains('3'), "{}", out.how);
        let out = Run::new(&tree, "cat").input(tree.root.join("rust-toolchain.toml")).quiet().run();
        assert!(out.ok && out.stdout.starts_with("[toolchain]"), "{}", out.stdout);
        let out = Run::new(&tree, "cat").input(tree.root.join("no-such-file")).quiet().run();
        assert!(!out.ok && out.how.contains("standard input"), "{}", out.how);
        let file = tree.target.join(format!("test-of-a-log-{}/log", std::process::id()));
        let how = Run::new(&tree, "sh -c").arg("echo a; echo b >&2; exit 3").into_file(&file);
        assert!(how.contains('3') && std::fs::read_to_string(&file).unwrap() == "a\nb\n", "{how}");
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
        let out = run("exec sleep 30").limit(Duration::from_millis(50)).run();
        assert!(!out.ok && out.how.contains("without a result"), "{}", out.how);
        let out = Run::new(&tree, "no-such-program-at-all").quiet().run();
        assert!(!out.ok && out.how.contains("no-such-program-at-all"), "{}", out.how);
    }
}
