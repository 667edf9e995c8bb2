//! `cargo xtask build`: assembles a folder that a board, another machine or a C++ project can use without changes.
//!
//! ```text
//! target/dist/NAME/
//!     bin/elsa                    the tool, stripped
//!     lib/libelsa.a               the C library, of one object whose only global symbols are the functions of elsa.h
//!     lib/libelsa.so.1.0          the shared library; libelsa.so.1, which programs load, and libelsa.so point to it
//!     lib/libelsa_ort.so          the operators of ONNX Runtime
//!     lib/cmake/elsa lib/pkgconfig
//!     include/                    elsa.h, elsa.hpp, and elsa/ with their parts
//!     share/python/elsa.py        the Python library, which loads the C library from lib/
//!     share/python/elsa_modules/  elsa.distributed, for several processes
//!     share/python/_elsa.*        its optional extension module: compiled for the host, or as source for a board
//!     share/NAME/                 the board: profile, toolchain files, board.md
//!     share/required.txt          kernels that must run on the board
//!     share/licences/             licences of this project and of the linked packages
//! ```
//!
//! The boards share one build, made for the oldest of them: ARMv8.0-A and glibc 2.27. Only boards whose GPU has Tensor Cores of
//! compute capability 8.0 get the modules for them. The target `x86-64` has the same
//! glibc. Zig links these builds, because zig has stubs of the C library for every version. [`Additions`] lists the parts
//! that a build contains on request only.
//! `super::check` has accepted every artefact that is shipped.

use super::check::{self, Exceptions, Found};
use super::library::{self, Abi, Library};
use super::paths;
use super::target::Target;
use crate::files::{self, at, write};
use crate::gpu::ptx;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::Build;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// File name of the operator library for ONNX Runtime.
const OPERATOR: &str = "libelsa_ort.so";
/// Linker script that removes unwinding tables from a board's tool. The tool aborts on panic, so it does not need them.
/// The compiler emits some of these tables in spite of the tool's flag.
const WITHOUT_TABLES: &str = "targets/tool.ld";

/// Path of the compiled module of elsa.py, relative to the folder for this machine.
pub const MODULE: &str = "share/python/_elsa.abi3.so";
/// Path of the source of elsa.py's module, relative to the tree. The folder for a board contains this source instead of
/// the module.
const SOURCE: &str = "runtime/python/_elsa.c";
/// Python program that prints the folder of Python's headers. It prints the folder only if the headers exist and
/// support the limited API that the module uses.
const HEADERS: &str = "import os, sys, sysconfig\npath = sysconfig.get_path('include')\n\
    there = os.path.exists(os.path.join(path, 'Python.h')) and not sysconfig.get_config_var('Py_GIL_DISABLED')\n\
    print(path if there and sys.version_info >= (3, 8) else '')";

/// Packages that one cargo command builds, and the name of the command's profile. The profile keeps symbols.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Name of the profile.
    pub profile: &'static str,
    /// Arguments that select the packages and their features.
    pub packages: &'a str,
    /// Compiler flag that makes the code of these packages smaller.
    pub flag: &'static str,
}

/// The libraries. Their functions catch panics, so they need unwinding tables. The flag makes LLVM move repeated
/// instructions into a separate function only if that saves at least 36 bytes. The reason is that each new function
/// also adds an entry of 36 bytes to the unwinding tables, and LLVM does not count this entry.
pub const LIBRARIES: Part<'static> = Part {
    profile: "shipped",
    packages: "-p elsa-capi -p elsa-ort",
    flag: "-Cllvm-args=-outliner-benefit-threshold=36",
};
/// The tool, which aborts on panic. Its compiler flag differs from the flag of the libraries, so its profile has a
/// separate folder. If the folder were shared, cargo would rebuild everything.
const TOOL: Part<'static> =
    Part { profile: "tool", packages: "-p elsa-cli", flag: "-Cforce-unwind-tables=no" };

/// The tool's package without the verb backward.
const WITHOUT_GRADIENTS: &str = "-p elsa-cli --no-default-features";

/// Compiler flag that leaves the scalar kernels out of a board's tool and slices. A board's processor always has NEON,
/// so these kernels would run only if a user named them. The whole libraries keep the scalar kernels, because elsa.py
/// uses them to check its structs.
pub const WITHOUT_SCALAR: &str = "--cfg=elsa_without=\"scalar\"";
/// Compiler flag that leaves the modules for Tensor Cores out of the builds for boards whose GPU cannot load them.
pub const WITHOUT_TENSOR_CORES: &str = "--cfg=elsa_without=\"sm80\"";

/// Flags that [`quick`] adds to a cargo command. They include an example, because only then does cargo select the same
/// features as for the tests and build nothing twice.
pub const PRODUCTS: &str = "--lib --bin elsa --example host";

/// Parts that a build for a board contains on request only.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Additions {
    /// Precompile GPU kernels for the board's GPU (requires ptxas).
    #[arg(long)]
    cubins: bool,
    /// Include the verb backward in the board's tool.
    #[arg(long)]
    gradients: bool,
}

/// Folders that contain cargo's build outputs.
struct Products {
    libraries: PathBuf,
    tool: PathBuf,
}

/// Copies a file or a folder. Recorded measurements (`bench`) in the folder are left out.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if from.is_file() {
        return write(to, files::bytes(from)?);
    }
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        if entry.file_name() != "bench" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Runs `cargo xtask build`.
pub fn run(tree: &Tree, name: &str, additions: Additions) -> Result<(), String> {
    let ran = build(tree, &Target::named(tree, name)?, additions)?;
    if ran.faults.is_empty() { Ok(()) } else { Err(ran.faults.join("\n       ")) }
}

/// Assembles a folder for tests, for this machine or a board, in `target/quick`. It is built without link-time
/// optimisation and must not be shipped. Its artefacts are checked like shipped ones, except for sizes. For this
/// machine, the check for paths is also omitted, because paths are not remapped.
pub fn quick(tree: &Tree, ran: &mut Ran, target: &Target, products: &Path) -> Result<PathBuf, String> {
    let abi = Abi::read(tree)?;
    let products = Products { libraries: products.to_owned(), tool: products.to_owned() };
    let home = tree.target.join("quick").join(target.name());
    let library =
        library::make(tree, target, &abi, &products.libraries.join("libelsa.a"), &home.join("library"))?;
    let dist = home.join("dist");
    assemble(tree, target, &abi, &products, &library, &dist)?;
    let found = examine(tree, target, &abi, &products, &library, &[], &dist, None)?;
    let faults = found.faults.join("; ");
    ran.join(found);
    if faults.is_empty() { Ok(dist) } else { Err(format!("{}: {faults}", dist.display())) }
}

/// Builds the programs and libraries for a target, assembles the target's folder and checks it. Returns the results of
/// the checks.
pub fn build(tree: &Tree, target: &Target, additions: Additions) -> Result<Ran, String> {
    let assembled = match target {
        Target::Board(board) if additions.cubins => assembled(tree, &board.build.cubin)?,
        _ if additions.cubins => {
            return Err(format!("--cubins: {}; allowed: a board, whose GPU is known", target.name()));
        }
        _ => Vec::new(),
    };
    let abi = Abi::read(tree)?;
    let products = compile(tree, target, &assembled, additions)?;
    let dist = target.dist(tree);
    let folder = tree.target.join("library").join(target.name());
    let library = library::make(tree, target, &abi, &products.libraries.join("libelsa.a"), &folder)?;
    assemble(tree, target, &abi, &products, &library, &dist)?;
    let mut room = if additions.gradients { check::GRADIENTS } else { 0 };
    if matches!(target, Target::Board(board) if ptx::has_tensor_cores(&board.build.cubin)) {
        room += check::TENSOR_CORES;
    }
    let ran = examine(tree, target, &abi, &products, &library, &assembled, &dist, Some(room))?;
    if ran.faults.is_empty() {
        println!("{}: {}", dist.display(), ran.summary());
    }
    Ok(ran)
}

/// Builds the shipped C libraries alone. Returns the folder of the shared library, which has the names that programs
/// and linkers look for.
pub fn libraries(tree: &Tree, target: &Target) -> Result<PathBuf, String> {
    let abi = Abi::read(tree)?;
    let products = part(tree, target, &[], &LIBRARIES, Vec::new())?;
    let folder = tree.target.join("library").join(target.name());
    library::make(tree, target, &abi, &products.join("libelsa.a"), &folder)?;
    link(&abi, &folder)?;
    Ok(folder)
}

/// Makes the links to the shared library in its folder.
fn link(abi: &Abi, folder: &Path) -> Result<(), String> {
    for (name, to) in abi.links() {
        let link = folder.join(name);
        std::os::unix::fs::symlink(to, &link).map_err(at(&link))?;
    }
    Ok(())
}

/// Compiles the libraries and the tool.
fn compile(
    tree: &Tree,
    target: &Target,
    assembled: &[PathBuf],
    additions: Additions,
) -> Result<Products, String> {
    let tables = tree.root.join(WITHOUT_TABLES);
    let (mut tool, mut without) = (TOOL, Vec::new());
    if matches!(target, Target::Board(_)) {
        without = vec![format!("-Clink-arg=-Wl,-T,{}", tables.display()), WITHOUT_SCALAR.to_owned()];
        if !additions.gradients {
            tool.packages = WITHOUT_GRADIENTS;
        }
    }
    Ok(Products {
        libraries: part(tree, target, assembled, &LIBRARIES, Vec::new())?,
        tool: part(tree, target, assembled, &tool, without)?,
    })
}

/// Runs cargo for `part`, with additional compiler flags. Returns the folder of the build outputs.
pub fn part(
    tree: &Tree,
    target: &Target,
    assembled: &[PathBuf],
    part: &Part<'_>,
    mut flags: Vec<String>,
) -> Result<PathBuf, String> {
    flags.push(part.flag.to_owned());
    let packages = format!("--profile {} {}", part.profile, part.packages);
    let mut run = match target.build() {
        None => Run::new(tree, "cargo build"),
        Some(build) => {
            setup::target(tree, target.triple())?;
            let run = Run::new(tree, "cargo-zigbuild build --target").arg(build.zig_target());
            run.front(setup::zig(tree)?)
        }
    };
    if let Target::Board(board) = target {
        run = run.arg("--config").arg(target.folder(tree).join("config.toml"));
        if !ptx::has_tensor_cores(&board.build.cubin) {
            flags.push(WITHOUT_TENSOR_CORES.to_owned());
        }
    }
    run = run.args(&packages).arg("--config").arg(paths::renamed(tree, target.triple())?);
    run = run.arg("--config").arg(format!("target.{}.rustflags={}", target.triple(), json!(flags)));
    if let Some(dir) = assembled.first().and_then(|path| path.parent()) {
        run = run.env("ELSA_CUBIN_DIR", dir);
    }
    run.run().text(&format!("{}: does not build", target.name()))?;
    Ok(match target.build() {
        None => tree.target.join(part.profile),
        Some(build) => tree.target.join(&build.triple).join(part.profile),
    })
}

/// Assembles GPU code for one architecture from the committed PTX. Returns the paths of the cubins.
fn assembled(tree: &Tree, architecture: &str) -> Result<Vec<PathBuf>, String> {
    let ptxas = setup::ptxas(tree)?;
    let to = tree.target.join("cubin").join(architecture);
    // Files left over from another state of the tree would be embedded, too.
    files::empty(&to)?;
    let mut made = Vec::new();
    for (path, level) in ptx::modules_of(tree, architecture)? {
        let cubin = to.join(path.file_stem().unwrap_or_default()).with_extension("cubin");
        let run = Run::new(tree, "").arg(&ptxas).args(&format!("-O{level} -arch={architecture} -o"));
        let run = run.arg(&cubin).arg(&path).quiet();
        run.run().text(&format!("ptxas -arch={architecture} {}", path.display()))?;
        made.push(cubin);
    }
    if made.is_empty() { Err(format!("{}: holds no PTX for {architecture}", ptx::MODULES)) } else { Ok(made) }
}

/// Assembles the folder `dist` of the whole build from cargo's build outputs.
fn assemble(
    tree: &Tree,
    target: &Target,
    abi: &Abi,
    products: &Products,
    library: &Library,
    dist: &Path,
) -> Result<(), String> {
    assemble_library(tree, target, abi, library, dist)?;
    strip(tree, &products.tool.join("elsa"), &dist.join("bin/elsa"), "--strip-all")?;
    strip(tree, &products.libraries.join(OPERATOR), &dist.join("lib").join(OPERATOR), "--strip-all")?;
    for file in ["elsa.py", "elsa_modules/distributed.py"] {
        copy(&tree.root.join("runtime/python").join(file), &dist.join("share/python").join(file))?;
    }
    match target {
        Target::Host(_) => module(tree, None, &dist.join(MODULE)).map(|_| ()),
        Target::Board(_) | Target::Desktop(_) => {
            copy(&tree.root.join(SOURCE), &dist.join("share/python/_elsa.c"))
        }
    }
}

/// Assembles the folder `dist` of the C library: the library, its headers, its package descriptions, the files of the
/// board and the licences.
pub fn assemble_library(
    tree: &Tree,
    target: &Target,
    abi: &Abi,
    library: &Library,
    dist: &Path,
) -> Result<(), String> {
    if dist.exists() {
        fs::remove_dir_all(dist).map_err(at(dist))?;
    }
    strip(tree, &library.shared, &dist.join("lib").join(abi.file()), "--strip-all")?;
    strip(tree, &library.archive, &dist.join("lib/libelsa.a"), "--strip-debug")?;
    link(abi, &dist.join("lib"))?;
    copy(&tree.root.join("runtime/capi/include"), &dist.join("include"))?;
    describe(tree, abi, "..", &dist.join("lib"))?;
    if let Target::Board(board) = target {
        copy(&target.folder(tree), &dist.join("share").join(&board.name))?;
        for file in ["aarch64.cmake", "required.txt"] {
            copy(&tree.root.join("targets").join(file), &dist.join("share").join(file))?;
        }
    }
    let licences = dist.join("share/licences");
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&tree.root.join(name), &licences.join(name))?;
    }
    write(&licences.join("THIRD-PARTY.txt"), third_party(tree, target.triple())?)
}

/// Compiles elsa.py's module for the settings `build`, or with this machine's compiler, if the machine's Python has
/// headers. Returns `true` if it was compiled; elsa.py also works without the module.
pub fn module(tree: &Tree, build: Option<&Build>, to: &Path) -> Result<bool, String> {
    let found = Run::new(tree, "python3 -c").arg(HEADERS).quiet().run();
    let headers = found.stdout.trim();
    if headers.is_empty() {
        println!("{}: not made: no headers of Python 3.8 or later", to.display());
        return Ok(false);
    }
    let run = setup::compiler(tree, build)?.args("-std=c99 -O2 -Wall -Wextra -Werror -fPIC -shared -s");
    let run = run.arg(format!("-I{headers}")).arg("-o").arg(to).arg(tree.root.join(SOURCE)).quiet();
    run.run().text(&format!("compiling {SOURCE}")).map(|_| true)
}

/// Templates in `runtime/capi` for the package descriptions of CMake and pkg-config. Each is listed with the path of
/// its description in the folder of the libraries.
const PACKAGES: [(&str, &str); 4] = [
    ("cmake/elsaConfig.cmake.in", "cmake/elsa/elsaConfig.cmake"),
    ("cmake/elsaConfigVersion.cmake.in", "cmake/elsa/elsaConfigVersion.cmake"),
    ("elsa.pc.in", "pkgconfig/elsa.pc"),
    ("elsa-shared.pc.in", "pkgconfig/elsa-shared.pc"),
];

/// Writes the package descriptions for CMake and pkg-config into the folder `lib` of the libraries. The folder `include`
/// is in the folder at the relative path `up`.
pub fn describe(tree: &Tree, abi: &Abi, up: &str, lib: &Path) -> Result<(), String> {
    for (template, to) in PACKAGES {
        let text = files::text(&tree.root.join("runtime/capi").join(template))?;
        let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("@UP@", up);
        write(&lib.join(to), text.replace("@SONAME@", &abi.soname()).replace("@FILE@", &abi.file()))?;
    }
    Ok(())
}

/// Copies a file without its symbols or without its debugging information; `how` is the option of strip that selects
/// one of the two.
pub fn strip(tree: &Tree, from: &Path, to: &Path, how: &str) -> Result<(), String> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    let llvm = setup::llvm(tree)?;
    let out =
        Run::new(tree, "").arg(llvm.join("llvm-strip")).arg(how).arg("-o").arg(to).arg(from).quiet().run();
    if out.ok {
        Ok(())
    } else {
        Err(format!("llvm-strip {}: {} {}", from.display(), out.how, out.stderr.trim()))
    }
}

/// Packages of the tree whose outputs are handed out: the tool, the libraries, and the operator of ONNX Runtime.
pub const SHIPPED: [&str; 3] = ["elsa-cli", "elsa-capi", "elsa-ort"];

/// Returns the text of a JSON string; empty if the value is no string.
fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns cargo's descriptions of the packages of other authors that are linked into the outputs of [`SHIPPED`] for the
/// target `triple`.
pub fn linked(tree: &Tree, triple: &str) -> Result<Vec<Value>, String> {
    let out = Run::new(tree, "cargo metadata --format-version 1 --filter-platform").arg(triple).quiet().run();
    let value: Value =
        serde_json::from_str(&out.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (packages, nodes) = (list(&value["packages"]), list(&value["resolve"]["nodes"]));
    let shipped = |package: &&Value| SHIPPED.iter().any(|name| package["name"] == *name);
    let mut open: Vec<String> =
        packages.iter().filter(shipped).map(|package| string(&package["id"])).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !linked.insert(id.clone()) {
            continue;
        }
        for node in nodes.iter().filter(|node| node["id"] == id.as_str()) {
            let normal = |dep: &&Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            open.extend(list(&node["deps"]).iter().filter(normal).map(|dep| string(&dep["pkg"])));
        }
    }
    let foreign = |package: &Value| !package["source"].is_null() && linked.contains(&string(&package["id"]));
    let found: Vec<Value> = packages.into_iter().filter(foreign).collect();
    if found.is_empty() {
        Err("cargo metadata: names no package that is linked".to_owned())
    } else {
        Ok(found)
    }
}

/// Returns the licence texts of every package that is linked into the tool or the library.
fn third_party(tree: &Tree, triple: &str) -> Result<String, String> {
    let mut text = String::from(
        "Packages that are linked into elsa, libelsa and libelsa_ort, with their licences. Besides them: the standard library\n\
         of Rust (MIT OR Apache-2.0), and for the boards compiler-rt and libunwind of LLVM (Apache-2.0 WITH\n\
         LLVM-exception) as zig (MIT) brings them.\n",
    );
    for package in linked(tree, triple)? {
        let line = "=".repeat(100);
        let (name, version) = (string(&package["name"]), string(&package["version"]));
        let (licence, source) = (string(&package["license"]), string(&package["repository"]));
        // The MPL requires the location of the source.
        text += &format!("\n{line}\n{name} {version}: {licence}; source: {source}\n");
        let manifest = PathBuf::from(string(&package["manifest_path"]));
        let dir = manifest.parent().unwrap_or(Path::new("."));
        let mut files: Vec<PathBuf> =
            fs::read_dir(dir).map_err(at(dir))?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let is_licence = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        for path in files.iter().filter(|path| path.is_file() && is_licence(path)) {
            text += &format!("\n{}\n", String::from_utf8_lossy(&files::bytes(path)?).trim_end());
        }
    }
    Ok(text)
}

/// Checks the build outputs and the folder `dist`, and prints the result of each check. `shipped` is `None` if the folder
/// is not shipped; otherwise it is the number of bytes by which the tool may exceed its size limit. Sizes are checked only
/// in a folder that is shipped. If the folder is for this machine, paths are checked only if it is shipped, too.
fn examine(
    tree: &Tree,
    target: &Target,
    abi: &Abi,
    products: &Products,
    library: &Library,
    assembled: &[PathBuf],
    dist: &Path,
    shipped: Option<u64>,
) -> Result<Ran, String> {
    let mut ran = Ran::none("checks");
    let mut note = |file: &str, check: &str, found: Found| match found {
        Ok(found) => {
            println!("{file:<14} {check:<16} {found}");
            ran.passed += 1;
        }
        Err(fault) => {
            ran.failed += 1;
            ran.faults.push(format!("{}, {file}: {check}: {fault}", target.name()));
        }
    };
    let assembled: Vec<Vec<u8>> =
        assembled.iter().map(|path| files::bytes(path)).collect::<Result<_, _>>()?;
    let room = check::BINARY
        + shipped.unwrap_or_default()
        + assembled.iter().map(|cubin| cubin.len() as u64).sum::<u64>();
    let board = match target {
        Target::Board(board) => Some(board),
        Target::Host(_) | Target::Desktop(_) => None,
    };
    let renamed = shipped.is_some() || board.is_some();
    let private = paths::private(tree)?;
    let (tool, shared) = (dist.join("bin/elsa"), dist.join("lib").join(abi.file()));
    let operator = dist.join("lib").join(OPERATOR);
    let files = [
        ("elsa", &tool, &products.tool.join("elsa")),
        ("libelsa.so", &shared, &library.shared),
        (OPERATOR, &operator, &products.libraries.join(OPERATOR)),
    ];
    for (file, path, unstripped) in files {
        let bytes = files::bytes(path)?;
        note(file, "machine", check::machine(&bytes, target));
        note(file, "libraries", check::libraries(&bytes));
        note(file, "driver symbols", check::driver_symbols(&bytes));
        if renamed {
            note(file, "paths", check::paths(&bytes, &private));
        }
        let (ptx, gpu) = (target.build().and_then(|x| x.ptx), board.map(|x| x.gpu.capability));
        note(file, "PTX", check::ptx(&bytes, ptx, gpu, board.map_or(&[], |x| &x.required)));
        if !assembled.is_empty() {
            note(file, "cubins", check::cubins(&bytes, &assembled));
        }
        if let Some(build) = target.build() {
            note(file, "symbol versions", check::symbol_versions(&bytes, build.glibc));
        }
        if board.is_some() {
            if shipped.is_some() {
                note(file, "size", check::size(bytes.len() as u64, room));
            }
            let exceptions = Exceptions::read(tree)?;
            note(file, "instructions", check::instructions(tree, unstripped, &exceptions));
        }
    }
    note(OPERATOR, "entry", check::entry(&files::bytes(&operator)?, "RegisterCustomOps"));
    let (shared, archive) = (files::bytes(&shared)?, files::bytes(&dist.join("lib/libelsa.a"))?);
    note("libelsa.so", "name", check::soname(&shared, &abi.soname()));
    note("libelsa.so", "exports", check::exports(&shared, abi));
    note("libelsa.a", "driver symbols", check::driver_symbols(&archive));
    if renamed {
        note("libelsa.a", "paths", check::paths(&archive, &private));
    }
    note("libelsa.a", "exports", check::globals(&archive, abi));
    Ok(ran)
}
