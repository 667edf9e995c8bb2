//! Runs the stage `install`: the packages of this machine's shipped folder are installed, used and removed.
//!
//! The Debian packages are installed by apt into a bare root. The tool then runs there, and the C++ program of the guide
//! is compiled and linked with CMake and with pkg-config. The packages of a board are installed into the same root, next
//! to an arm64 C library, and their tool runs in the emulator. The wheel is installed by pip into an empty environment.
//! After a removal, the same files exist as before the installation.

use super::dist::dist;
use super::readme;
use crate::boards::target::{HOST, Target};
use crate::files::{self, at};
use crate::package;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Names of the Debian packages.
const DEBS: [&str; 4] = ["elsa-edge", "libelsa1", "libelsa-dev", "libelsa-onnxruntime"];
/// Board whose packages are installed next to those of this machine's architecture.
const BOARD: &str = "jetson-tx2";

/// Commands that use the packages in the bare root, in the order of the checks. `/packages` contains the packages and the
/// program of the guide.
const USES: [(&str, &str); 7] = [
    ("the tool prints its version", "elsa --version"),
    (
        "completions and man pages",
        "cd /usr/share && bash -c '. bash-completion/completions/elsa && complete -p elsa' && \
        grep -q certificate zsh/vendor-completions/_elsa && grep -q certificate fish/vendor_completions.d/elsa.fish && \
        zcat man/man1/elsa-run.1.gz | grep -m 1 certificate",
    ),
    (
        "the tool computes a mean",
        "elsa run --q q.npy --k q.npy --v v.npy --out out.npy >/dev/null && tail -c 8 out.npy | od -An -tf4",
    ),
    (
        "CMake links the static library",
        "rm -rf build && cmake -B build >/dev/null && cmake --build build >/dev/null && \
        ! ldd build/pipeline | grep libelsa && build/pipeline",
    ),
    (
        "CMake links the shared library",
        "rm -rf build && sed -i '1i set(ELSA_SHARED ON)' CMakeLists.txt && cmake -B build >/dev/null && \
        cmake --build build >/dev/null && ldd build/pipeline | grep -q libelsa.so.1 && build/pipeline",
    ),
    (
        "pkg-config links the static library",
        "g++ main.cpp $(pkg-config --cflags --libs elsa) -o static && ./static",
    ),
    (
        "pkg-config links the shared library",
        "g++ main.cpp $(pkg-config --cflags --libs elsa-shared) -o shared && \
        ldd shared | grep -q libelsa.so.1 && ./shared",
    ),
];

/// Runs the stage `install`.
pub fn install(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        let folder = dist(tree, ran, HOST)?;
        let to = tree.target.join("install");
        files::empty(&to)?;
        let made = package::make(tree, &Target::named(tree, HOST)?, &folder, &to)?;
        let (debs, wheels): (Vec<PathBuf>, Vec<PathBuf>) =
            made.into_iter().partition(|path| path.extension().is_some_and(|x| x == "deb"));
        setup::program(tree, "lintian", "lintian")?;
        lintian(tree, ran, &debs);
        let python = setup::wheel_user(tree)?;
        for wheel in &wheels {
            pip(tree, ran, &python, wheel)?;
        }
        if Run::new(tree, "id -u").quiet().run().stdout.trim() != "0" {
            ran.note = "Debian packages not installed: needs root".to_owned();
            return Ok(());
        }
        let root = setup::roots::bare_root(tree)?;
        apt(tree, ran, &root, &debs)?;
        let folder = dist(tree, ran, BOARD)?;
        let board = Target::named(tree, BOARD)?;
        let made = package::make(tree, &board, &folder, &tree.target.join("install-board"))?;
        let debs: Vec<PathBuf> =
            made.into_iter().filter(|path| path.extension().is_some_and(|x| x == "deb")).collect();
        lintian(tree, ran, &debs);
        apt_for_board(tree, ran, &root, &debs)
    })
}

/// Checks the Debian packages by Debian's rules.
fn lintian(tree: &Tree, ran: &mut Ran, debs: &[PathBuf]) {
    let run = Run::new(tree, "lintian --allow-root --no-cfg --fail-on error,warning");
    let found = debs.iter().fold(run, |run, path| run.arg(path)).run().text("lintian");
    ran.note("lintian", found.map(|_| format!("{} packages", debs.len())));
}

/// Copies files into an empty folder.
fn copy(files: &[PathBuf], folder: &Path) -> Result<(), String> {
    files::empty(folder)?;
    for path in files {
        let to = folder.join(path.file_name().unwrap_or_default());
        fs::copy(path, &to).map_err(at(&to))?;
    }
    Ok(())
}

/// Returns the command that installs the packages in `/packages`. First it removes packages that an interrupted run may
/// have left, and lists all files. Files in `/var` are not listed, because apt writes there. `suffix` selects packages of
/// another architecture.
fn installs(suffix: &str) -> String {
    let names = DEBS.map(|name| format!("{name}{suffix}")).join(" ");
    format!(
        "dpkg --purge {names} 2>/dev/null && \
        find / -xdev -path /packages -prune -o -path /var -prune -o -print | sort >before && \
        apt-get -qq install ./*.deb && dpkg --verify {names}"
    )
}

/// Returns the command that removes the packages, and compares all files with those before the installation.
fn removes(suffix: &str) -> String {
    let names = DEBS.map(|name| format!("{name}{suffix}")).join(" ");
    format!(
        "apt-get -qq purge {names} >/dev/null && \
        find / -xdev -path /packages -prune -o -path /var -prune -o -print | sort >after && diff before after && \
        ! ldconfig -p | grep libelsa && echo nothing is left"
    )
}

/// Returns a command that runs in `/packages` of the root.
fn inside(tree: &Tree, root: &Path, script: &str) -> Run {
    let run = Run::new(tree, "chroot").arg(root).args("sh -c").arg(format!("cd /packages && {script}"));
    run.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive")
}

/// Notes the last line that a command printed. If `wanted` is given, it must be this line.
fn note_last(ran: &mut Ran, what: &str, run: Run, wanted: Option<&str>) {
    let out = run.run();
    let last = out.stdout.lines().last().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let good = out.ok && wanted.is_none_or(|wanted| last == wanted);
    ran.note(what, if good { Ok(last) } else { Err(format!("{}: {last} {}", out.how, out.stderr.trim())) });
}

/// Writes tensors of zeros and of values. All scores are equal, so each row of the output is the mean of the values 0 and
/// 4, and of 8 and 0. With one value that is not zero, and a power of two, no step rounds.
fn tensors(folder: &Path) -> Result<(), String> {
    files::write(&folder.join("q.npy"), npy([0.0; 4]))?;
    files::write(&folder.join("v.npy"), npy([0.0, 8.0, 4.0, 0.0]))
}

/// Installs the packages of a board into the root next to the C library of their architecture, runs the tool in the
/// emulator and removes the packages.
fn apt_for_board(tree: &Tree, ran: &mut Ran, root: &Path, debs: &[PathBuf]) -> Result<(), String> {
    let work = root.join("packages");
    copy(debs, &work)?;
    tensors(&work)?;
    note_last(ran, "apt installs the packages of a board", inside(tree, root, &installs(":arm64")), None);
    setup::program(tree, "qemu-aarch64", "qemu-user")?;
    let tool = || {
        let run = Run::new(tree, "qemu-aarch64 -cpu cortex-a57 -L").arg(root).arg(root.join("usr/bin/elsa"));
        run.dir(&work)
    };
    let version = format!("elsa {VERSION}");
    note_last(ran, "the board's tool prints its version", tool().args("--version"), Some(&version));
    let run = tool()
        .args("run --q q.npy --k q.npy --v v.npy --out out.npy")
        .run()
        .text("elsa run")
        .and_then(|_| fs::read(work.join("out.npy")).map_err(at(&work)));
    let mean = run.and_then(|file| match file.strip_suffix(&floats([2.0, 4.0, 2.0, 4.0])[..]) {
        Some(_) => Ok("2 4".to_owned()),
        None => Err("not 2 4 2 4".to_owned()),
    });
    ran.note("the board's tool computes a mean", mean);
    note_last(ran, "apt removes the packages of a board", inside(tree, root, &removes(":arm64")), None);
    Ok(())
}

/// Installs the Debian packages into the bare root, uses them and removes them.
fn apt(tree: &Tree, ran: &mut Ran, root: &Path, debs: &[PathBuf]) -> Result<(), String> {
    let work = root.join("packages");
    copy(debs, &work)?;
    let promised = readme::cpp_files(tree, &work)?;
    tensors(&work)?;
    let version = format!("elsa {VERSION}");
    note_last(ran, "apt installs the packages", inside(tree, root, &installs("")), None);
    for (what, script) in USES {
        let wanted = match what {
            "the tool prints its version" => Some(version.as_str()),
            "the tool computes a mean" => Some("2 4"),
            _ if what.contains("links") => Some(promised.as_str()),
            _ => None,
        };
        note_last(ran, what, inside(tree, root, script), wanted);
    }
    note_last(ran, "apt removes everything", inside(tree, root, &removes("")), None);
    Ok(())
}

/// Returns the bytes of values in a file of numpy.
fn floats(values: [f32; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns a file of numpy with a tensor [1, 1, 2, 2] of f32.
fn npy(values: [f32; 4]) -> Vec<u8> {
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, 2), }");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(header.bytes());
    file.extend(floats(values));
    file
}

/// Installs a wheel into the environment of the interpreter `python`, uses it, compares its types with its functions, and
/// removes it.
fn pip(tree: &Tree, ran: &mut Ran, python: &Path, wheel: &Path) -> Result<(), String> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bin = python.parent().unwrap_or(Path::new("/"));
    let run = |line: &str| Run::new(tree, "").arg(python).args(line).dir(&tree.target).quiet();
    let remove = || run("-m pip uninstall --quiet --yes elsa-edge").run().text("pip uninstall");
    let files = || {
        let found = Run::new(tree, "find").arg(bin.with_file_name("")).args("-not -path *__pycache__*");
        found.quiet().run().text("find").map(|text| text.lines().map(str::to_owned).collect::<BTreeSet<_>>())
    };
    // A run that was interrupted may have left the package.
    remove()?;
    let before = files()?;
    run("-m pip install --quiet --no-index").arg(wheel).run().text(&name)?;
    let mut check = |what: &str, run: Run, wanted: &str| {
        let found = run.run().text(&name).map(|text| text.lines().last().unwrap_or_default().to_owned());
        let fault = |text| format!("{text}; allowed: {wanted}");
        ran.note(
            &format!("{name}: {what}"),
            found.and_then(|text| if text == wanted { Ok(text) } else { Err(fault(text)) }),
        );
    };
    let compiled = if name.contains("abi3") { "True" } else { "False" };
    let program = "import elsa, numpy as np\nv = np.array([[[[0, 8], [4, 0]]]], np.float32)\n\
        print(elsa.attention(v * 0, v * 0, v).tolist(), elsa._path.endswith('elsa/libelsa.so.1'), bool(elsa._elsa))";
    let wanted = format!("[[[[2.0, 4.0], [2.0, 4.0]]]] True {compiled}");
    check("attention", run("-B -c").arg(program), &wanted);
    let line = "import runpy, elsa; runpy.run_module('elsa'); print(elsa.version())";
    check("python -m elsa", run("-B -c").arg(line), VERSION);
    check(
        "the tool",
        Run::new(tree, "").arg(bin.join("elsa")).arg("--version").quiet(),
        &format!("elsa {VERSION}"),
    );
    // The environment has no torch, so stubtest cannot import this module.
    let allowed = tree.target.join("install/unchecked-stubs.txt");
    files::write(&allowed, "elsa\\.distributed\n")?;
    check(
        "stubs",
        run("-m mypy.stubtest --ignore-missing-stub elsa --allowlist").arg(&allowed),
        "Success: no issues found in 4 modules",
    );
    let typed = run("-m mypy --strict -c").arg("import elsa.distributed\nversion: str = elsa.version()");
    check("types", typed, "Success: no issues found in 1 source file");
    remove()?;
    let left: Vec<String> = files()?.difference(&before).cloned().collect();
    let gone = if left.is_empty() { Ok("nothing is left".to_owned()) } else { Err(left.join(", ")) };
    ran.note(&format!("{name}: pip uninstall"), gone);
    Ok(())
}
