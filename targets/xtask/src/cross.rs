//! The stages `cross` and `deploy`: what is built for boards is built, examined, linked against, run by emulation,
//! and deployed over ssh to this machine.

use crate::bad;
use crate::build::{self, HOST, Target};
use crate::check::{self, Found};
use crate::count::Ran;
use crate::deploy;
use crate::readme;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use elsa_targets::{Board, NAMES};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files of every board's folder.
const HANDED_OUT: [&str; 4] =
    ["bin/elsa", "share/aarch64.cmake", "share/licences/LICENSE-MIT", "share/licences/THIRD-PARTY.txt"];
/// Files of the C library among them.
const OF_LIBRARY: [&str; 7] = [
    "lib/libelsa.a",
    "lib/libelsa.so",
    "lib/cmake/elsa/elsaConfig.cmake",
    "lib/cmake/elsa/elsaConfigVersion.cmake",
    "lib/pkgconfig/elsa.pc",
    "include/elsa.h",
    "include/elsa.hpp",
];
/// Files of the board itself among them.
const OF_BOARD: [&str; 5] = ["board.md", "config.toml", "profile.toml", "required.txt", "toolchain.cmake"];

/// Arguments of the bench that the emulator runs: a decoding call and the short end of the grid.
const SHORT_GRID: &str = "bench --json --seconds 0.1 --shape 1,1,1,256,64 --shape 1,1,64,64,64 \
    --shape 1,1,100,100,64 --shape 1,1,144,144,64 --shape 1,1,196,196,64";
/// Lines that it prints: two methods for each shape.
const SHORT_GRID_LINES: usize = 10;

/// Counts one check.
fn note(ran: &mut Ran, what: &str, found: Found) {
    match found {
        Ok(found) => {
            println!("{what}: {found}");
            ran.passed += 1;
        }
        Err(fault) => {
            ran.failed += 1;
            ran.faults.push(format!("{what}: {fault}"));
        }
    }
}

fn text(out: &Output, what: &str) -> Result<String, String> {
    let said = out.stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    if out.ok { Ok(out.stdout.clone()) } else { Err(format!("{what}: {}: {said}", out.how)) }
}

/// The stage `cross`.
pub fn cross(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::board(tree)?;
    for trial in bad::trials(tree)? {
        note(ran, trial.what, trial.fault.map_or_else(|| Ok("as it should be".to_owned()), Err));
    }
    for name in NAMES {
        let target = Target::named(tree, name)?;
        ran.join(build::build(tree, &target, false)?);
        let of_board = OF_BOARD.map(|file| format!("share/{name}/{file}"));
        let files = HANDED_OUT.iter().chain(&OF_LIBRARY).map(|file| (*file).to_owned()).chain(of_board);
        let dist = target.dist(tree);
        let absent: Vec<String> = files.filter(|file| !dist.join(file).is_file()).collect();
        let found = if absent.is_empty() { Ok("complete".to_owned()) } else { Err(absent.join(", ")) };
        note(ran, &format!("{name}: files"), found);
    }
    let board = Board::named("jetson-tx2").map_err(|error| error.to_string())?;
    let dist = Target::named(tree, &board.name)?.dist(tree);
    consumer(tree, ran, &dist)?;
    readme::board(tree, ran, setup::oldest_cmake(tree)?.as_deref(), &setup::emulator())?;
    emulate(tree, ran, &board, &dist);
    Ok(())
}

/// Links a C program with the static library of the folder through its CMake package and toolchain file, sees how
/// much longer that makes it, and runs it.
fn consumer(tree: &Tree, ran: &mut Ran, dist: &Path) -> Result<(), String> {
    setup::program(tree, "cmake", "cmake")?;
    setup::program(tree, "make", "make")?;
    let python = setup::zig(tree)?.join("python");
    let dir = tree.target.join("consumer");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let define = |name: &str, value: String| format!("-D{name}={value}");
    let out = Run::new(tree, "cmake -S targets/xtask/consumer -DCMAKE_BUILD_TYPE=Release -B")
        .arg(&dir)
        .arg(define(
            "CMAKE_TOOLCHAIN_FILE",
            dist.join("share/jetson-tx2/toolchain.cmake").display().to_string(),
        ))
        .arg(define("ELSA_ZIG", format!("{};-m;ziglang", python.display())))
        .arg(define("elsa_DIR", dist.join("lib/cmake/elsa").display().to_string()))
        .machine()
        .run();
    text(&out, "the C consumer, configuring")?;
    let out = Run::new(tree, "cmake --build").arg(&dir).machine().run();
    text(&out, "the C consumer")?;
    let mut lengths = Vec::new();
    for name in ["with", "without"] {
        let stripped = dir.join(name).with_extension("stripped");
        build::strip(tree, &dir.join(name), &stripped, "--strip-all")?;
        lengths
            .push(fs::metadata(&stripped).map_err(|error| format!("{}: {error}", stripped.display()))?.len());
    }
    note(
        ran,
        "what libelsa.a adds to a stripped C program",
        check::size(lengths[0].saturating_sub(lengths[1]), check::ADDED),
    );
    let glibc = elsa_targets::Version { major: 2, minor: 27 };
    let bytes = fs::read(dir.join("with")).map_err(|error| format!("{}: {error}", dir.display()))?;
    note(ran, "symbol versions of the C program", check::symbol_versions(&bytes, glibc));
    note(ran, "libraries of the C program", check::libraries(&bytes));
    let exceptions = check::Exceptions::read(tree)?;
    note(ran, "instructions of the C program", check::instructions(tree, &dir.join("with"), &exceptions));
    let out = Run::new(tree, &setup::emulator()).arg(dir.join("with")).limit(Duration::from_secs(60)).run();
    let said = text(&out, "the C consumer, running");
    note(
        ran,
        "the C program",
        said.and_then(|said| if said.trim() == "ok" { Ok(said.trim().to_owned()) } else { Err(said) }),
    );
    Ok(())
}

/// Runs the binary that boards get on an emulated Cortex-A57.
fn emulate(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) {
    let elsa = |rest: &str, seconds: u64| {
        let run = Run::new(tree, &setup::emulator()).arg(dist.join("bin/elsa")).args(rest);
        let out = run.limit(Duration::from_secs(seconds)).machine().run();
        text(&out, &format!("elsa {rest}"))
    };
    let info = elsa("info --json", 30).and_then(|text| deploy::lines(&text));
    note(ran, "elsa info, emulated", info.as_ref().map(|_| "done".to_owned()).map_err(Clone::clone));
    let verified = elsa("verify --scenario stress --json", 240).and_then(|text| deploy::lines(&text));
    let cases = |lines: &Vec<serde_json::Value>| match lines.len() {
        0 => Err("no case".to_owned()),
        n => Ok(format!("{n} cases")),
    };
    note(ran, "elsa verify, emulated", verified.as_ref().map_err(Clone::clone).and_then(cases));
    let measured = elsa(SHORT_GRID, 240).and_then(|text| deploy::lines(&text));
    let all = |lines: &Vec<serde_json::Value>| {
        let certified = lines.iter().filter(|line| line["certified"] == true).count();
        let found = format!("{certified} of {} answers certified", lines.len());
        if certified == SHORT_GRID_LINES {
            Ok(found)
        } else {
            Err(format!("{found}; wanted: {SHORT_GRID_LINES}"))
        }
    };
    note(ran, "elsa bench, emulated", measured.as_ref().map_err(Clone::clone).and_then(all));
    // The GPU's kernels are looked for in the file: an emulator has no driver.
    let mut processor = board.clone();
    processor.required.retain(|required| matches!(required, elsa_targets::Required::Cpu(_)));
    let info = info.ok().and_then(|lines| lines.into_iter().next()).unwrap_or_default();
    let missing = deploy::missing(&processor, &info, &measured.unwrap_or_default());
    let found = match (missing.is_empty(), processor.required.len()) {
        (true, n) if n > 0 => Ok(format!("{n} ran")),
        (true, _) => Err("none is listed".to_owned()),
        (false, _) => Err(missing.join(", ")),
    };
    note(ran, "required kernels of the processor, emulated", found);
}

/// A ssh server of this user's on the loopback, with keys of its own in a temporary folder.
struct Server {
    child: std::process::Child,
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
            text(&run.run(), "ssh-keygen")?;
        }
        fs::copy(path("user.pub"), path("authorized")).map_err(fault)?;
        // A server that root starts wants this folder, which Debian makes when the system does.
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
        let child = std::process::Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(path("sshd_config"))
            .stdin(std::process::Stdio::null())
            .stderr(fs::File::create(path("log")).map_err(fault)?)
            .spawn()
            .map_err(|error| format!("{SSHD}: {error}"))?;
        let mut server = Server { child, dir, port };
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            if server.child.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(server.path("log")).unwrap_or_default();
        Err(format!("{SSHD}: does not listen: {}", log.trim()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where distributions put the server, which must be started by its whole path.
const SSHD: &str = "/usr/sbin/sshd";

/// The stage `deploy`.
pub fn deploy(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| loopback(tree, ran))
}

fn loopback(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let server = Server::start(tree)?;
    let user = Run::new(tree, "id -un").quiet().run().stdout.trim().to_owned();
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let results = server.path("results");
    let command = |target: &str, config: &str, key: &str, dir: &Path, port: u16| {
        Run::new(tree, "")
            .arg(&own)
            .args(&format!("deploy --target {target} {user}@127.0.0.1 --port {port} --identity"))
            .arg(server.path(key))
            .arg("--ssh-config")
            .arg(server.path(config))
            .arg("--results")
            .arg(&results)
            .arg("--dir")
            .arg(dir)
            .limit(Duration::from_secs(900))
    };
    let dir = server.path("board");

    for _ in 0..2 {
        let run = command(HOST, "config", "user", &dir, server.port);
        let out = run.args("-- --shape 1,1,64,64,64 --seconds 0.05").run();
        note(ran, "deploy to this machine", text(&out, "deploy").map(|_| "done".to_owned()));
    }
    let mut files: Vec<PathBuf> =
        fs::read_dir(&results).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    note(
        ran,
        "results files",
        if files.len() == 2 { Ok("two, neither written over".to_owned()) } else { Err(format!("{files:?}")) },
    );
    let records = files.first().map_or_else(String::new, |path| fs::read_to_string(path).unwrap_or_default());
    let records = deploy::lines(&records)?;
    let header = records.first().cloned().unwrap_or_default();
    let machine = Run::new(tree, "uname -m").quiet().run().stdout.trim().to_owned();
    let whole = header["what"] == "board"
        && header["target"] == HOST
        && header["machine"] == machine.as_str()
        && header["l4t"].is_null() != Path::new("/etc/nv_tegra_release").is_file()
        && header["info"]["what"] == "info";
    note(
        ran,
        "header of the results",
        if whole { Ok("complete".to_owned()) } else { Err(header.to_string()) },
    );
    let benches = records.iter().filter(|line| line["what"] == "bench").count();
    note(
        ran,
        "lines of the results",
        if benches == 3 { Ok("3".to_owned()) } else { Err(format!("{benches}; wanted: 3")) },
    );

    // What must be refused, and the words that say why.
    let nowhere = server.path("empty");
    fs::create_dir_all(&nowhere).map_err(|error| format!("{}: {error}", nowhere.display()))?;
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
        ("another processor", command("jetson-tx2", "config", "user", &dir, server.port), foreign),
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
        note(ran, what, found);
    }
    Ok(())
}
