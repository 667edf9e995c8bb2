//! `cargo xtask ptx`: compiles device code to PTX that a CUDA 10.2 driver loads, and runs ptxas to determine the
//! resources of each kernel.
//!
//! Every `NAME.cu` in a folder of `kernels/cuda` becomes `kernels/ptx/sm_53/NAME.ptx`, a module with one entry point. If the name
//! contains `__sm80`, the kernel uses Tensor Cores and the module is `kernels/ptx/sm_80/NAME.ptx`, for GPUs of compute
//! capability 8.0 and later.
//! The text is packed: comments, optional spaces and most line ends are removed, and long names are shortened. Packing
//! changes no instruction and saves a third of the bytes. `kernels/ptx/manifest.json` records the sources, the
//! compiler, the flags and the resources of each kernel.
//!
//! The kernels of the example `cpp-camera` are compiled in the same way, to modules next to their sources. They belong to the
//! example, so the manifest does not list them.

use super::sass;
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree, side_by_side};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const COMPILER: &str = "clang-19";
const FLAGS: &str = "-x cuda --cuda-device-only -S -nocudainc -nocudalib -O3 -std=c++17 -Xclang -fcuda-short-ptr \
    -mllvm -nvptx-short-ptr -ffp-contract=fast";
/// Folder of the device code. Kernels elsewhere include its headers by paths relative to it.
pub const SOURCES: &str = "kernels/cuda";
/// Folder of an example's kernels and of their modules.
pub const EXAMPLE: &str = "examples/cpp-camera/kernels";
/// Operator of the kernels in [`EXAMPLE`], for the sums of bytes.
const OF_EXAMPLE: &str = "camera";
/// Folder of the folders of the committed PTX modules, one for each [`Generation`].
pub const MODULES: &str = "kernels/ptx";
const MANIFEST: &str = "kernels/ptx/manifest.json";

/// GPUs that a module is compiled for.
#[derive(Debug)]
struct Generation {
    /// Oldest GPU that loads the module.
    target: &'static str,
    /// Version of the PTX ISA, multiplied by ten. It is the newest one that the driver of that GPU's board loads.
    isa: u32,
    /// GPUs for which ptxas checks the module. Newer GPUs run the same code.
    assembled: &'static [&'static str],
    /// Optimisation level of ptxas, and of the driver that compiles the module.
    level: u32,
    /// Largest number of bytes that a thread may keep in local memory.
    spilled: usize,
}

/// The GPU of the Jetson Nano, which is the oldest GPU with instructions that compute with pairs of f16 numbers, under CUDA 10.2.
static FIRST: Generation =
    Generation { target: "sm_53", isa: 65, assembled: &["sm_53", sass::TARGET], level: 3, spilled: 0 };
/// GPUs whose Tensor Cores multiply 16 x 16 by 16 x 8 numbers, under CUDA 11.4. Level 1 keeps accumulators out of local memory.
const TENSOR: Generation =
    Generation { target: "sm_80", isa: 74, assembled: &["sm_80", "sm_87", "sm_90"], level: 1, spilled: 16 };

/// The same for kernels with two groups of warps, which are faster at the usual level.
static HALVES: Generation = Generation { level: 3, ..TENSOR };

impl Generation {
    /// Returns the generation of a kernel, which its name states.
    fn of(kernel: &str) -> &'static Generation {
        match kernel.contains("__sm80") {
            true if kernel.ends_with("_halves") => &HALVES,
            true => &TENSOR,
            false => &FIRST,
        }
    }
}

/// Maximum total size in bytes of an operator's modules. The operator is named by the folder of its sources. In linear
/// attention, the modules of kernels that walk over states have a size of 1.4 MB. The modules of the quadratic form
/// with delta rules and per-dim gates have a size of 0.4 MB, and those that compute all chunks at once have 0.9 MB.
/// These are separate modules, because a process only compiles the modules of its plans.
const MOST_BYTES: [(&str, usize); 5] = [
    ("attention", 6_502_000),
    ("linear", 2_750_000),
    ("series", 218_000),
    (OF_TENSOR_CORES, 4_900_000),
    (OF_EXAMPLE, 20_000),
];
/// The modules of [`TENSOR`], for the sums of bytes.
const OF_TENSOR_CORES: &str = "Tensor Cores";
/// Largest number of processor seconds that ptxas should take for a module. On a slow machine, [`MOST_SECONDS`] are
/// allowed. If a module takes longer, the measurement is repeated, up to [`TIMES`] times, and the smallest time counts.
const MEANT_SECONDS: f64 = 1.0;
const MOST_SECONDS: f64 = 5.0;
const TIMES: usize = 5;

/// Returns the version of the newest PTX ISA that the driver of a board loads, multiplied by ten. `gpu` is the compute capability
/// of the board's GPU, multiplied by ten.
pub fn newest_isa(gpu: u32) -> u32 {
    if gpu >= 80 { TENSOR.isa } else { FIRST.isa }
}

/// Returns the number of a GPU such as `sm_62`, its compute capability multiplied by ten.
fn number(gpu: &str) -> Option<u32> {
    gpu.strip_prefix("sm_").and_then(|digits| digits.parse().ok())
}

/// Returns `true` if a GPU such as `sm_62` loads the modules for Tensor Cores.
pub fn has_tensor_cores(gpu: &str) -> bool {
    number(TENSOR.target) <= number(gpu)
}

/// Returns the committed modules that a GPU such as `sm_62` loads, each with the optimisation level for its compiler.
pub fn modules_of(tree: &Tree, gpu: &str) -> Result<Vec<(PathBuf, u32)>, String> {
    let mut all = Vec::new();
    for Generation { target, .. } in [&FIRST, &TENSOR] {
        if number(target) <= number(gpu) {
            let paths = files::below(&tree.root.join(MODULES).join(target), &["ptx"])?;
            let level = |path: &Path| {
                path.file_stem().map_or(FIRST.level, |name| Generation::of(&name.to_string_lossy()).level)
            };
            all.extend(paths.into_iter().map(|path| (path.clone(), level(&path))));
        }
    }
    Ok(all)
}

/// Limits of an SM with compute capability 5.3 or 6.2. The limits are, in order: registers, bytes of shared memory,
/// threads, blocks.
const SM: [usize; 4] = [65_536, 65_536, 2048, 32];

/// The resources that ptxas reports for a kernel. Each is the maximum over the targets of its [`Generation`].
struct Resources {
    registers: usize,
    shared: usize,
    spilled: usize,
    threads: usize,
    seconds: f64,
}

impl Resources {
    /// Returns the number of threads of the kernel that can be resident on an SM at the same time.
    fn resident(&self) -> usize {
        let per = |room: usize, takes: usize| room.checked_div(takes).unwrap_or(SM[3]);
        let registers = self.registers.next_multiple_of(8) * self.threads;
        let blocks =
            per(SM[0], registers).min(per(SM[1], self.shared)).min(per(SM[2], self.threads)).min(SM[3]);
        blocks * self.threads
    }
}

/// Paths of NVIDIA's programs.
struct Tools {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
}

/// The generated files: modules, manifest and table of costs. Each file is stored with its path in the tree. Also
/// contains the lines to print about the files.
struct Made {
    files: Vec<(String, String)>,
    lines: Vec<String>,
    faults: Vec<String>,
}

/// Generates the modules, the manifest and the table of costs, and writes them into the tree.
pub fn write(tree: &Tree) -> Result<(), String> {
    let made = make(tree)?;
    let text = |error: std::io::Error| format!("{MODULES}: {error}");
    for Generation { target, .. } in [&FIRST, &TENSOR] {
        let folder = tree.root.join(MODULES).join(target);
        std::fs::create_dir_all(&folder).map_err(text)?;
        for entry in std::fs::read_dir(&folder).map_err(text)? {
            std::fs::remove_file(entry.map_err(text)?.path()).map_err(text)?;
        }
    }
    for (path, content) in &made.files {
        std::fs::write(tree.root.join(path), content).map_err(|error| format!("{path}: {error}"))?;
    }
    made.lines.iter().for_each(|line| println!("{line}"));
    if made.faults.is_empty() { Ok(()) } else { Err(made.faults.join("\n")) }
}

/// Writes the table of costs for the modules in the tree, without compiling the modules again.
pub fn write_costs(tree: &Tree) -> Result<(), String> {
    let tools = Tools { ptxas: setup::ptxas(tree)?, nvdisasm: setup::nvdisasm(tree)? };
    let modules = files::below(&tree.root.join(MODULES).join(FIRST.target), &["ptx"])?;
    let scratch = tree.target.join("ptx");
    files::folder(&scratch)?;
    let of = |path: PathBuf| {
        let kernel = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = files::text(&path)?;
        let cubin = scratch.join(format!("{kernel}.cubin"));
        let run = Run::new(tree, "").arg(&tools.ptxas).args(&format!("-arch={} -o", sass::TARGET));
        let run = run.arg(&cubin).arg(&path).quiet().run();
        if !run.ok {
            return Err(format!("{kernel}: ptxas: {}\n{}", run.how, run.stderr));
        }
        let threads = threads(&text).ok_or_else(|| format!("{kernel}: without launch bounds"))?;
        let cost = sass::cost(tree, &tools.nvdisasm, &cubin, &kernel, threads)?;
        if let Some(cost) = &cost {
            println!("{kernel:<53}{}", cost.line());
        }
        Ok(cost.map(|cost| (kernel, cost)))
    };
    let costs = side_by_side(modules, of).into_iter().collect::<Result<Vec<_>, String>>()?;
    let costs: Vec<_> = costs.into_iter().flatten().collect();
    for (path, text) in sass::tables(&costs) {
        std::fs::write(tree.root.join(path), text).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Returns the number of threads per block, from the launch bounds in a module's text.
fn threads(text: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix(".maxntid ")?.split(',').next()?.parse().ok())
}

/// Generates all files again and compares them with the files in the tree.
pub fn check(tree: &Tree) -> Ran {
    Ran::of("modules", |ran| {
        let made = make(tree)?;
        made.lines.iter().for_each(|line| println!("{line}"));
        for (path, content) in &made.files {
            let same = std::fs::read_to_string(tree.root.join(path)).is_ok_and(|old| old == *content);
            let what = format!("{path}: not what its sources make; run: cargo xtask ptx");
            ran.add(&what, same, u64::from(same), u64::from(!same));
        }
        let known = |path: &PathBuf| made.files.iter().any(|(file, _)| tree.root.join(file) == *path);
        let mut strays = files::below(&tree.root.join(MODULES), &["ptx"])?;
        strays.extend(files::below(&tree.root.join(EXAMPLE), &["ptx"])?);
        strays.retain(|path| !known(path));
        ran.faults.extend(strays.iter().map(|path| format!("{}: has no source", path.display())));
        ran.faults.extend(made.faults);
        Ok(())
    })
}

fn make(tree: &Tree) -> Result<Made, String> {
    setup::program(tree, COMPILER, COMPILER)?;
    let tools = Tools { ptxas: setup::ptxas(tree)?, nvdisasm: setup::nvdisasm(tree)? };
    let version = Run::new(tree, &format!("{COMPILER} --version")).quiet().run();
    let version = version.stdout.lines().next().unwrap_or_default().to_owned();
    let old = std::fs::read_to_string(tree.root.join(MANIFEST)).ok();
    let old: Value = old.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    // The code may depend on the compiler's version number, but not on the packager's suffix.
    let number = |text: &str| text.split_whitespace().find(|word| word.contains('.')).map(str::to_owned);
    let compiler = number(&version).ok_or_else(|| format!("{COMPILER} --version: {version}"))?;
    if old["compiler"].as_str().is_some_and(|old| old != compiler) {
        println!("note: the modules were made with clang {}, this is {compiler}", old["compiler"]);
    }
    let scratch = tree.target.join("ptx");
    files::folder(&scratch)?;
    let mut made = Made { files: Vec::new(), lines: Vec::new(), faults: Vec::new() };
    let (mut inputs, mut kernels) = (Map::new(), Map::new());
    let (mut all, mut costs) = (BTreeMap::<String, usize>::new(), Vec::new());
    let (mut names, mut units, mut operators) = (Vec::new(), Vec::new(), Vec::new());
    for path in sources(tree)? {
        let name = path.strip_prefix(tree.root.join(SOURCES)).unwrap_or(&path).to_string_lossy().into_owned();
        let content = files::bytes(&path)?;
        let digest = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        inputs.insert(name.clone(), Value::String(digest));
        let Some(kernel) = path.file_stem().filter(|_| name.ends_with(".cu")) else { continue };
        names.push(kernel.to_string_lossy().into_owned());
        operators.push(name.split('/').next().unwrap_or_default().to_owned());
        units.push(path);
    }
    for path in files::below(&tree.root.join(EXAMPLE), &["cu"])? {
        names.push(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
        operators.push(OF_EXAMPLE.to_owned());
        units.push(path);
    }
    let of = |(path, kernel): (PathBuf, &String)| compile(tree, &tools, &scratch, &path, kernel);
    for ((kernel, operator), unit) in
        names.iter().zip(operators).zip(side_by_side(units.into_iter().zip(&names).collect(), of))
    {
        let (text, takes, cost) = unit?;
        made.faults.extend(refuse(kernel, &text));
        let spilled = Generation::of(kernel).spilled;
        if takes.spilled > spilled {
            made.faults.push(format!("{kernel}: spills {} bytes; allowed: {spilled}", takes.spilled));
        }
        if takes.seconds > MOST_SECONDS {
            made.faults.push(format!("{kernel}: ptxas took {:.1} s; allowed: {MOST_SECONDS}", takes.seconds));
        }
        if let Some(cost) = cost {
            made.lines.push(format!("{kernel:<53}{}", cost.line()));
            costs.push((kernel.to_owned(), cost));
        }
        made.lines.push(format!(
            "{kernel:<53}{:>4} registers{:>7} bytes shared{:>6} of 2048 threads on an SM{:>8} bytes{:>6.2} s of ptxas",
            takes.registers,
            takes.shared,
            takes.resident(),
            text.len(),
            takes.seconds
        ));
        let target = Generation::of(kernel).target;
        let folder = if operator == OF_EXAMPLE { EXAMPLE.to_owned() } else { format!("{MODULES}/{target}") };
        let of_library = operator != OF_EXAMPLE;
        *all.entry(if target == FIRST.target { operator } else { OF_TENSOR_CORES.to_owned() })
            .or_default() += text.len();
        if of_library {
            kernels.insert(
                kernel.to_owned(),
                json!({ "registers": takes.registers, "shared": takes.shared, "threads": takes.threads, "bytes": text.len() }),
            );
        }
        made.files.push((format!("{folder}/{kernel}.ptx"), text));
    }
    for (operator, bytes) in all {
        let most = MOST_BYTES.iter().find(|(name, _)| *name == operator).map_or(0, |(_, most)| *most);
        if bytes > most {
            made.faults.push(format!("{MODULES}: {bytes} bytes of {operator}; allowed: {most}"));
        }
        made.lines.push(format!("{bytes} bytes of {operator}"));
    }
    made.lines.push(format!("{} modules", kernels.len()));
    let targets = [&FIRST, &TENSOR, &HALVES];
    let targets =
        targets.map(|g| json!({ "target": g.target, "isa": f64::from(g.isa) / 10.0, "level": g.level }));
    let manifest = json!({
        "compiler": compiler,
        "flags": FLAGS.split_whitespace().collect::<Vec<_>>(),
        "targets": targets,
        "inputs": inputs,
        "kernels": kernels,
    });
    let text = serde_json::to_string_pretty(&manifest).map_err(|error| error.to_string())? + "\n";
    made.files.push((MANIFEST.to_owned(), text));
    made.files.extend(sass::tables(&costs).map(|(path, text)| (path.to_owned(), text)));
    Ok(made)
}

/// Compiles a source file to packed PTX. Returns the text, and the resources and the cost of the kernel.
fn compile(
    tree: &Tree,
    tools: &Tools,
    scratch: &Path,
    source: &Path,
    kernel: &str,
) -> Result<(String, Resources, Option<sass::Cost>), String> {
    let out = scratch.join(format!("{kernel}.ptx"));
    let Generation { target, isa, assembled, .. } = Generation::of(kernel);
    let of_target = format!("--cuda-gpu-arch={target} -Xclang -target-feature -Xclang +ptx{isa}");
    let run = Run::new(tree, &format!("{COMPILER} {FLAGS} {of_target} -I {SOURCES}"));
    let run = run.arg(source).arg("-o").arg(&out).quiet().run();
    if !run.ok {
        return Err(format!("{kernel}: {}\n{}", run.how, run.stderr));
    }
    let fault = |error: std::io::Error| format!("{}: {error}", out.display());
    let text = pack(kernel, &std::fs::read_to_string(&out).map_err(fault)?);
    std::fs::write(&out, &text).map_err(fault)?;
    let mut most = assemble(tree, &tools.ptxas, kernel, assembled[0], &out, &text)?;
    for target in &assembled[1..] {
        let takes = assemble(tree, &tools.ptxas, kernel, target, &out, &text)?;
        most.registers = most.registers.max(takes.registers);
        most.shared = most.shared.max(takes.shared);
        most.spilled = most.spilled.max(takes.spilled);
        most.seconds = most.seconds.max(takes.seconds);
    }
    // The file contains machine code for `sass::TARGET`, because ptxas assembles for this target last.
    let cost = match assembled.last() {
        Some(&sass::TARGET) => {
            sass::cost(tree, &tools.nvdisasm, &out.with_extension("cubin"), kernel, most.threads)?
        }
        _ => None,
    };
    Ok((text, most, cost))
}

/// Lists the device sources and the headers that they include, sorted by path. Headers for host code are omitted.
fn sources(tree: &Tree) -> Result<Vec<PathBuf>, String> {
    let mut paths = files::below(&tree.root.join(SOURCES), &["cu", "cuh"])?;
    paths.retain(|path| !path.ends_with("host.cuh"));
    Ok(paths)
}

/// Packs a module whose only entry point is `kernel`, and does not change its instructions. Removes comments and
/// optional spaces. Shortens the names of registers, labels, the parameter and the shared memory. Joins short
/// statements into lines.
fn pack(kernel: &str, text: &str) -> String {
    let mut packed = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut words = line.split_whitespace();
        packed.push_str(words.next().unwrap_or_default());
        for word in words {
            // A space separates an instruction or a directive from its operands; no space follows a comma.
            if !packed.ends_with(',') {
                packed.push(' ');
            }
            packed.push_str(word);
        }
        packed.push('\n');
    }
    let shared = format!("_ZZ{}{kernel}E12memory_array", kernel.len());
    let packed =
        packed.replace("$L__BB0_", "L").replace(&format!("{kernel}_param_0"), "P").replace(&shared, "S");
    fill(&short_names(&packed))
}

/// Joins statements and labels into lines of at most `WIDTH` bytes.
fn fill(text: &str) -> String {
    const WIDTH: usize = 120;
    let ends = |line: &str| line.ends_with([';', ':']);
    let mut filled = String::with_capacity(text.len());
    let mut width = usize::MAX;
    for line in text.lines() {
        if width.saturating_add(line.len()) <= WIDTH && ends(&filled) && ends(line) {
            width += line.len();
        } else {
            filled.push_str(if filled.is_empty() { "" } else { "\n" });
            width = line.len();
        }
        filled.push_str(line);
    }
    filled + "\n"
}

/// Renames the compiler's registers. A new name consists of a letter for the class of the register, and a number.
/// Frequent registers get short numbers.
fn short_names(text: &str) -> String {
    const CLASSES: [(&str, char); 6] =
        [("rd", 'd'), ("rs", 'h'), ("fd", 'g'), ("f", 'f'), ("r", 'r'), ("p", 'p')];
    // Splits a piece that follows a percent sign into three parts: the class, the number and the rest. Only a register
    // has a number.
    let register = |piece: &str| {
        CLASSES.iter().enumerate().find_map(|(class, (name, _))| {
            let rest = piece.strip_prefix(name)?;
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let declared = rest.starts_with('<');
            (digits > 0 || declared)
                .then(|| (class, rest[..digits].parse::<usize>().ok(), rest[digits..].to_owned()))
        })
    };
    let mut uses = CLASSES.map(|_| BTreeMap::<usize, usize>::new());
    for piece in text.split('%').skip(1) {
        if let Some((class, Some(number), _)) = register(piece) {
            *uses[class].entry(number).or_default() += 1;
        }
    }
    let numbers = uses.map(|uses| {
        let mut order: Vec<(usize, usize)> =
            uses.into_iter().map(|(number, uses)| (usize::MAX - uses, number)).collect();
        order.sort_unstable();
        order.into_iter().enumerate().map(|(new, (_, old))| (old, new)).collect::<BTreeMap<_, _>>()
    });
    let mut short = String::with_capacity(text.len());
    let mut pieces = text.split('%');
    short.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        match register(piece) {
            Some((class, Some(number), rest)) => {
                short.push(CLASSES[class].1);
                short.push_str(&numbers[class][&number].to_string());
                short.push_str(&rest);
            }
            // A declaration of registers has `<count>` instead of a number.
            Some((class, None, rest)) => {
                short.push(CLASSES[class].1);
                let after = rest.split_once('>').map_or("", |(_, after)| after);
                short.push_str(&format!("<{}>{after}", numbers[class].len().max(1)));
            }
            None => {
                short.push('%');
                short.push_str(piece);
            }
        }
    }
    short
}

/// Returns the reason why the driver of the kernel's oldest board would reject a module; `None` if the driver would load the module.
fn refuse(kernel: &str, text: &str) -> Option<String> {
    let after = |directive: &str| text.lines().find_map(|line| line.strip_prefix(directive)).map(str::trim);
    let isa = after(".version").and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 10 + minor.parse::<u32>().ok()?)
    });
    let Generation { target, isa: newest, .. } = Generation::of(kernel);
    if isa.is_none_or(|isa| isa > *newest) {
        let allowed = f64::from(*newest) / 10.0;
        return Some(format!("{kernel}: PTX ISA {:?}; allowed: at most {allowed}", after(".version")));
    }
    if after(".target") != Some(target) {
        return Some(format!("{kernel}: target {:?}; allowed: {target}", after(".target")));
    }
    let entry = format!(".entry {kernel}(");
    if text.matches(".entry ").count() != 1 || !text.contains(&entry) {
        return Some(format!("{kernel}: allowed: one entry point, of the module's name"));
    }
    None
}

/// Returns the sum of the processor seconds in the last line that the shell's `times` prints, such as `0m1.250s
/// 0m0.030s`; infinity if the line has another format.
fn processor_seconds(said: &str) -> f64 {
    let last = said.lines().last().unwrap_or_default();
    let seconds = |time: &str| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let times: Option<Vec<f64>> = last.split_whitespace().map(seconds).collect();
    times.filter(|times| times.len() == 2).map_or(f64::INFINITY, |times| times.iter().sum())
}

fn assemble(
    tree: &Tree,
    ptxas: &Path,
    kernel: &str,
    target: &str,
    from: &Path,
    text: &str,
) -> Result<Resources, String> {
    let once = || {
        // The last line of the shell's output states the processor time of the shell's children. This time does not
        // depend on other load on the machine.
        let run = Run::new(tree, "sh -c").arg("\"$@\"; code=$?; times; exit $code").args("sh").arg(ptxas);
        let run = run
            .args(&format!("-O{} -arch={target} -v -o", Generation::of(kernel).level))
            .arg(from.with_extension("cubin"))
            .arg(from)
            .quiet()
            .run();
        let seconds = processor_seconds(&run.stdout);
        (run, seconds)
    };
    let (run, mut seconds) = once();
    for _ in 1..TIMES {
        if run.ok && seconds > MEANT_SECONDS {
            seconds = seconds.min(once().1);
        }
    }
    if !run.ok {
        return Err(format!("{kernel}: ptxas: {}\n{}{}", run.how, run.stdout, run.stderr));
    }
    let report = run.stdout + &run.stderr;
    let before = |what: &str| {
        let end = report.find(what)?;
        report[..end].split_whitespace().next_back()?.parse::<usize>().ok()
    };
    Ok(Resources {
        registers: before(" registers").ok_or_else(|| format!("{kernel}: ptxas names no registers"))?,
        shared: before(" bytes smem").unwrap_or(0),
        spilled: before(" bytes spill stores").unwrap_or(0) + before(" bytes stack frame").unwrap_or(0),
        threads: threads(text).ok_or_else(|| format!("{kernel}: without launch bounds"))?,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_tells_what_its_children_took() {
        assert_eq!(processor_seconds("ptxas info\n0m0.00s 0m0.01s\n1m2.250s 0m0.500s\n"), 62.75);
        for wrong in ["", "ptxas info", "0m1.0s", "1.0 2.0", "0m1.0s 0mxs"] {
            assert_eq!(processor_seconds(wrong), f64::INFINITY, "{wrong}");
        }
    }

    #[test]
    fn packing_keeps_every_word() {
        let text = "//\n// made by\n.version 6.5\n.target sm_53\n\n\t// .globl\tx\n.visible .entry x(\n\t.param .u64 x_param_0\n)\n{\n\t.reg .f32 \t%f<9>;\n\t.reg .b64 \t%rd<5>;\n\tfma.rn.f32 \t%f1, %f8, %f8, %f4;  // note\n\tmov.u32 \t%r1, %tid.x;\n$L__BB0_2:\n\tld.param.u64 \t%rd3, [x_param_0+8];\n}\n";
        let want = ".version 6.5\n.target sm_53\n.visible .entry x(\n.param .u64 P\n)\n{\n.reg .f32 f<3>;.reg .b64 d<1>;fma.rn.f32 f1,f0,f0,f2;mov.u32 r0,%tid.x;L2:ld.param.u64 d0,[P+8];\n}\n";
        assert_eq!(pack("x", text), want);
        assert_eq!(pack("x", want), want);
        let long = fill(&"mov.u32 r0,r1;\n".repeat(20));
        assert_eq!(long.lines().map(str::len).collect::<Vec<_>>(), [112, 112, 56]);
        assert_eq!(fill(&long), long);
    }

    #[test]
    fn what_an_old_driver_refuses_is_refused() {
        let good = ".version 6.5\n.target sm_53\n.visible .entry x(\n)\n";
        assert_eq!(refuse("x", good), None);
        for (from, to) in
            [("6.5", "6.6"), ("6.5", "7.0"), ("sm_53", "sm_70"), ("x(", "y("), (".version 6.5\n", "")]
        {
            assert!(refuse("x", &good.replace(from, to)).is_some(), "{to}");
        }
        assert!(refuse("x", &good.repeat(2)).is_some());
    }
}
