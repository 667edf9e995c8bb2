//! Runs the stage `deploy`: deploys over ssh to this machine, breaks a connection, and tries requests that must be
//! refused.

use super::day;
use crate::boards::library::Abi;
use crate::boards::target::HOST;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::REFERENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// An ssh server of this user on the loopback interface, with separate keys in a temporary folder.
struct Server {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Server {
    fn start(tree: &Tree) -> Result<Server, String> {
        setup::program(tree, "ssh-keygen", "openssh-client")?;
        setup::file(tree, SSHD, "openssh-server")?;
        let dir = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
        let path = |name: &str| dir.path().join(name);
        let fault = |error: std::io::Error| format!("{}: {error}", dir.path().display());
        for key in ["host", "user", "stranger"] {
            let run = Run::new(tree, "ssh-keygen -q -t ed25519 -N").arg("").arg("-f").arg(path(key)).quiet();
            run.run().text("ssh-keygen")?;
        }
        fs::copy(path("user.pub"), path("authorized")).map_err(fault)?;
        // A server that root starts needs this folder, which Debian makes when the system starts.
        if Run::new(tree, "id -u").quiet().run().stdout.trim() == "0" {
            fs::create_dir_all("/run/sshd").map_err(|error| format!("/run/sshd: {error}"))?;
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.map_err(|error| format!("a port of the loopback: {error}"))?.port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
             Subsystem sftp internal-sftp\n",
            path("host").display(),
            path("authorized").display()
        );
        fs::write(path("sshd_config"), config).map_err(fault)?;
        let public = fs::read_to_string(path("host.pub")).map_err(fault)?;
        fs::write(path("known"), format!("[127.0.0.1]:{port} {public}")).map_err(fault)?;
        let stranger = fs::read_to_string(path("stranger.pub")).map_err(fault)?;
        fs::write(path("wrong"), format!("[127.0.0.1]:{port} {stranger}")).map_err(fault)?;
        for (config, known) in [("config", "known"), ("impostor", "wrong")] {
            let text = format!("UserKnownHostsFile {}\nGlobalKnownHostsFile none\n", path(known).display());
            fs::write(path(config), text + "StrictHostKeyChecking yes\nIdentitiesOnly yes\n")
                .map_err(fault)?;
        }
        let child = Server::spawn(dir.path()).map_err(fault)?;
        let mut server = Server { child, dir, port };
        server.wait().map(|()| server)
    }

    fn spawn(dir: &Path) -> std::io::Result<Child> {
        let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?;
        let config = dir.join("sshd_config");
        Command::new(SSHD).args(["-D", "-e", "-f"]).arg(config).stdin(Stdio::null()).stderr(log).spawn()
    }

    /// Waits until the server listens.
    fn wait(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        Err(format!("{SSHD}: does not listen: {}", log.trim()))
    }

    /// Breaks all connections, and accepts none for a while.
    fn cut(&mut self, tree: &Tree) -> Result<(), String> {
        let text = |error: std::io::Error| format!("{SSHD}: {error}");
        let sessions = Run::new(tree, "pgrep -P").arg(self.child.id().to_string()).quiet().run().stdout;
        self.child.kill().and_then(|()| self.child.wait()).map_err(text)?;
        Run::new(tree, "kill -KILL").args(&sessions).quiet().run();
        std::thread::sleep(Duration::from_millis(300));
        self.child = Server::spawn(self.dir.path()).map_err(text)?;
        self.wait()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are ignored, because the server may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Number of times that the connection is broken.
const CUTS: usize = 10;
/// Path of the SSH server in common distributions. sshd refuses to start unless it is called by an absolute path.
const SSHD: &str = "/usr/sbin/sshd";

/// Runs the stage `deploy`.
pub fn deploy(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| loopback(tree, ran))
}

fn loopback(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let mut server = Server::start(tree)?;
    let user = Run::new(tree, "id -un").quiet().run().stdout.trim().to_owned();
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let home = server.dir.path().to_owned();
    let results = home.join("results");
    let command = |target: &str, config: &str, key: &str, dir: &Path, port: u16| {
        Run::new(tree, "")
            .arg(&own)
            .args(&format!("deploy --target {target} {user}@127.0.0.1 --port {port} --identity"))
            .arg(home.join(key))
            .arg("--ssh-config")
            .arg(home.join(config))
            .arg("--results")
            .arg(&results)
            .arg("--dir")
            .arg(dir)
            .limit(Duration::from_secs(900))
    };
    let dir = server.path("board");

    // The second command finds all steps recorded.
    for _ in 0..2 {
        let out = command(HOST, "config", "user", &dir, server.port).args("-- --quick").run();
        ran.note("deploy to this machine", out.text("deploy").map(|_| "done".to_owned()));
    }
    // The links must arrive as links, not as copies of the library.
    let links = Abi::read(tree)?
        .links()
        .into_iter()
        .map(|(name, to)| (dir.join("lib").join(name), PathBuf::from(to)));
    let other = links.filter(|(link, to)| fs::read_link(link).ok().as_ref() != Some(to));
    let other: Vec<String> = other.map(|(link, _)| link.display().to_string()).collect();
    let found = if other.is_empty() { Ok("arrived".to_owned()) } else { Err(other.join(", ")) };
    ran.note("links of the library", found);
    let archives = crate::files::below(&results, &["gz"])?;
    let pages = crate::files::below(&results, &["html"])?;
    ran.note(
        "archives",
        if archives.len() == 2 && pages.len() == 2 {
            Ok("two with their pages, neither written over".to_owned())
        } else {
            Err(format!("{archives:?}, {pages:?}"))
        },
    );
    let steps = day::recorded(&dir)?;
    let done = ["system", "sensors", "info", "verify", "grid-cpu"];
    let whole = done.iter().all(|name| steps.get(*name).is_some_and(|result| result == "done"));
    ran.note(
        "steps of the results",
        if whole { Ok(format!("{} recorded", steps.len())) } else { Err(format!("{steps:?}")) },
    );

    let broken = server.path("broken");
    let out = std::thread::scope(|scope| {
        // The step idle takes twenty seconds.
        let run = command(HOST, "config", "user", &broken, server.port).args("-- --only what,verify,idle");
        let run = scope.spawn(|| run.run());
        while !broken.exists() && !run.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let cuts = (0..CUTS).try_for_each(|_| {
            std::thread::sleep(Duration::from_secs(1));
            if run.is_finished() { Err("ended early".to_owned()) } else { server.cut(tree) }
        });
        let out = run.join().map_err(|_| "the command panicked".to_owned())?;
        out.text("deploy").and(cuts).map(|()| format!("{CUTS} times, and connected again"))
    });
    ran.note("a broken connection", out);

    let machine = Run::new(tree, "uname -m").quiet().run().stdout.trim().to_owned();
    // Requests that must be refused, each with words of the message.
    let nowhere = server.path("empty");
    crate::files::folder(&nowhere)?;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let closed = closed.map_err(|error| format!("a port of the loopback: {error}"))?.port();
    let foreign = if machine == "aarch64" { None } else { Some("machine: ") };
    let refusals = [
        (
            "no ssh",
            command(HOST, "config", "user", &dir, server.port).env("PATH", nowhere),
            Some("ssh is missing"),
        ),
        ("a closed port", command(HOST, "config", "user", &dir, closed), Some("no connection")),
        (
            "a key that the host does not know",
            command(HOST, "config", "stranger", &dir, server.port),
            Some("Permission denied"),
        ),
        (
            "a host with another key",
            command(HOST, "impostor", "user", &dir, server.port),
            Some("verification failed"),
        ),
        (
            "a folder without space",
            command(HOST, "config", "user", Path::new("/proc/elsa"), server.port),
            Some("space: 0 KiB free"),
        ),
        ("another processor", command(REFERENCE, "config", "user", &dir, server.port), foreign),
    ];
    for (what, run, word) in refusals {
        let Some(word) = word else { continue };
        let out = run.quiet().run();
        let said = format!("{}{}", out.stdout, out.stderr);
        let found = if out.ok {
            Err("was not refused".to_owned())
        } else if said.contains(word) {
            Ok(format!("refused: {}", said.trim().lines().last().unwrap_or_default()))
        } else {
            Err(format!("refused without '{word}': {said}"))
        };
        ran.note(what, found);
    }
    Ok(())
}
