//! Cost of a kernel's machine code on a Jetson TX2. The cost consists of counts of the instructions in each part of the
//! kernel. The counts are decoded from the output of ptxas for `sm_62`, and written as a table for the prediction of
//! latencies.
//!
//! A kernel that iterates over tiles has five parts: the code before the first tile, a plain tile, a tile at the end of
//! the keys, the addition of sums to memory, and the code after the last tile. [`paths`] finds the path of a warp
//! through each part. [`code`] decodes the scheduling information of each instruction.
//!
//! The path through a kernel of linear attention depends on the rule. [`linear`] lists the calls, and [`thread`] executes
//! the code.

mod code;
pub mod linear;
mod paths;
mod thread;

use crate::files;
use crate::shell::{Run, Tree};
use code::Instruction;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use paths::{Loop, Rare, counted, is_exp, is_fma, loops, repeated, trips, walk};
use std::path::Path;

/// Architecture that the kernels are assembled for.
pub const TARGET: &str = "sm_62";
/// Source file of the table, relative to the root of the tree.
pub const TABLE: &str = "runtime/lab/src/predict/costs.rs";

/// Cycles from the issue of an instruction to its result, for instructions of variable latency. The numbers are
/// approximate. They apply to an idle Pascal GPU whose level 2 cache contains the loaded values. Other warps of the SM
/// hide most of these cycles.
const LATENCIES: [(&[&str], usize); 3] =
    [(&["LDG", "LD", "LDL"], 230), (&["LDS", "LDC", "SHFL", "STS"], 26), (&["BAR", "MEMBAR"], 12)];
/// Latency in cycles of all other instructions with a barrier: exponentials, conversions, and reads of special
/// registers.
const LATENCY: usize = 20;

/// Names of the counts for one part of a kernel and one warp, in the order of the fields of `GpuPart`.
const FIELDS: [&str; 13] = [
    "instructions",
    "pairs",
    "fma",
    "floats",
    "integers",
    "xmad",
    "special",
    "shared",
    "shared_words",
    "global_words",
    "conflicts",
    "stalls",
    "alone",
];

/// Counts for one part of a kernel, in the order of [`FIELDS`].
type Part = [usize; FIELDS.len()];

/// Counts for the five parts of a kernel, and the number of keys per tile. The parts are: before the first tile, a
/// plain tile, a tile at the end of the keys, the addition to memory, and after the last tile. A kernel of linear attention
/// has a row for each call instead.
pub struct Cost {
    parts: [Part; 5],
    keys: usize,
    rows: Vec<linear::Row>,
}

impl Cost {
    /// Summarizes the cost of a tile in one line of text.
    pub fn line(&self) -> String {
        if !self.rows.is_empty() {
            return format!("{} calls", self.rows.len());
        }
        let [instructions, pairs, fma, .., alone] = self.parts[1];
        let slots = instructions - pairs;
        if slots == 0 {
            return format!("{} instructions", self.parts[0][0]);
        }
        format!(
            "a tile of {} keys: {slots} issue slots, {:.0} % FMA, {pairs} pairs, {} stalls, {alone} cycles alone",
            self.keys,
            100.0 * fma as f64 / slots as f64,
            self.parts[1][11],
        )
    }
}

/// Renders the costs of kernels, with their names, as the Rust sources of the two tables. Returns each with its file.
pub fn tables(costs: &[(String, Cost)]) -> [(&'static str, String); 2] {
    let (calls, parts): (Vec<_>, Vec<_>) = costs.iter().partition(|(_, cost)| !cost.rows.is_empty());
    let rows = calls.iter().map(|(name, cost)| (name.as_str(), &cost.rows[..]));
    [(TABLE, table(&parts)), (linear::TABLE, linear::table(rows))]
}

fn table(costs: &[&(String, Cost)]) -> String {
    let mut text = String::from(
        "//! Costs of the kernels on a GPU of compute capability 6.2. Generated from their machine code by `cargo xtask ptx`.\n\n\
         use super::latency::{GpuCost, GpuPart};\n\n",
    );
    text.push_str("/// Builds a part, from its counts in the order of the fields.\n#[rustfmt::skip]\nconst fn part(counts: [u32; 13]) -> GpuPart {\n");
    text.push_str(&format!(
        "    let [{}] = counts;\n    GpuPart {{ {} }}\n}}\n\n",
        FIELDS.join(", "),
        FIELDS.join(", ")
    ));
    text.push_str("/// Builds the cost of a kernel from the keys of a tile and the counts of its five parts.\nconst fn cost(keys: u32, parts: [[u32; 13]; 5]) -> GpuCost {\n");
    text.push_str("    let [before, plain, edge, flush, after] = parts;\n    GpuCost {\n        keys,\n");
    for part in ["before", "plain", "edge", "flush", "after"] {
        text.push_str(&format!("        {part}: part({part}),\n"));
    }
    text.push_str("    }\n}\n\n/// The costs of each kernel, by its name.\n#[rustfmt::skip]\npub static COSTS: &[(&str, GpuCost)] = &[\n");
    for (name, cost) in costs {
        text.push_str(&format!("    (\"{name}\", cost({}, [\n", cost.keys));
        for part in cost.parts {
            text.push_str(&format!("        {part:?},\n"));
        }
        text.push_str("    ])),\n");
    }
    text.push_str("];\n");
    text
}

/// Suffixes of the names of kernels for problems with masks or biases. The time of such a kernel depends on the mask or
/// bias and is not predicted.
const CHANGED: [&str; 2] = ["_added", "_within"];
/// Prefixes in the names of kernels that have no predicted time: series, and the example of a camera.
const UNPREDICTED: [&str; 2] = ["series_", "camera_"];

/// Returns the cost of a kernel that ptxas has assembled, with `threads` threads in a block. Returns `None` for kernels
/// whose time is not predicted. These are some kernels of linear attention, those of series and of the example of a camera,
/// kernels for problems with masks or biases, and kernels with loops that cannot be decoded. For a kernel with such a loop, also
/// prints a line with the reason.
///
/// # Errors
/// Returns an error if the listing cannot be parsed.
pub fn cost(
    tree: &Tree,
    nvdisasm: &Path,
    cubin: &Path,
    kernel: &str,
    threads: usize,
) -> Result<Option<Cost>, String> {
    if CHANGED.iter().any(|end| kernel.ends_with(end))
        || UNPREDICTED.iter().any(|begin| kernel.starts_with(begin))
    {
        return Ok(None);
    }
    let run = Run::new(tree, "").arg(nvdisasm).args("-c -novliw -hex").arg(cubin).quiet().run();
    if !run.ok {
        return Err(format!("{kernel}: nvdisasm: {}\n{}", run.how, run.stderr));
    }
    let code = code::parse(&run.stdout, kernel)?;
    if kernel.starts_with(linear::PREFIX) {
        let rows = linear::rows(&code, &literals(cubin, kernel)?, kernel, threads, |way| {
            count(&code, way).to_vec()
        })?;
        let cost = Cost { parts: [Part::default(); 5], keys: 0, rows };
        return Ok(Some(cost).filter(|cost| !cost.rows.is_empty()));
    }
    let parts = parts(&code, Shape::named(kernel), threads);
    Ok(parts.map_err(|fault| println!("note: {kernel}: no cost: {fault}")).ok())
}

/// Returns the constants of a kernel's code, which are in a section of its own; empty for a kernel without constants.
fn literals(cubin: &Path, kernel: &str) -> Result<Vec<u8>, String> {
    let bytes = files::bytes(cubin)?;
    let fault = |error: object::Error| format!("{}: {error}", cubin.display());
    let file = ElfFile64::<Endianness>::parse(&*bytes).map_err(fault)?;
    let section = file.section_by_name(&format!(".nv.constant2.{kernel}"));
    section.map_or(Ok(Vec::new()), |section| section.data().map(<[u8]>::to_vec).map_err(fault))
}

/// Number of rows and keys per tile, and the head size. These numbers are parsed from a kernel's name.
struct Shape {
    rows: usize,
    keys: usize,
    dim: usize,
    pairs: bool,
}

impl Shape {
    fn named(kernel: &str) -> Option<Shape> {
        let piece = |prefix: char| {
            kernel.split('_').find_map(|piece| piece.strip_prefix(prefix)?.split('k').next()?.parse().ok())
        };
        let keys =
            kernel.split('_').find_map(|piece| piece.strip_prefix('q')?.split_once('k')?.1.parse().ok())?;
        Some(Shape { rows: piece('q')?, keys, dim: piece('d')?, pairs: kernel.contains("half2") })
    }

    /// Counts the multiply-add instructions of one thread in a tile. The first count is for the scores, the second for
    /// the values. With `pairs`, an instruction for the scores multiplies two pairs of f16 numbers. Returns `None` for
    /// tiles of at most [`FEW`] rows, because their threads divide the work differently.
    fn products(&self, threads: usize, pairs: bool) -> Option<[usize; 2]> {
        let each = self.rows * self.keys * self.dim / threads.max(1);
        (self.rows > FEW).then_some([if pairs { each / 2 } else { each }, each])
    }
}

/// Several lanes share a row in tiles with at most this number of rows.
const FEW: usize = 8;

fn parts(code: &[Instruction], shape: Option<Shape>, threads: usize) -> Result<Cost, String> {
    let all = loops(code);
    let of_tiles = |x: &&Loop| {
        let body = &code[x.first..=x.last];
        body.iter().any(is_exp) && body.iter().filter(|x| is_fma(x)).count() >= 64
    };
    let end = code.len() - 1;
    let Some((shape, plain)) = shape.zip(all.iter().find(of_tiles)) else {
        let way = walk(code, 0, end, Rare::Calls);
        let whole = Loop { first: 0, last: end };
        let inner = all
            .iter()
            .filter(|x| **x != whole)
            .map(|x| (*x, trips(code, x).unwrap_or(1)))
            .collect::<Vec<_>>();
        let mut parts = [Part::default(); 5];
        parts[0] = count(code, &repeated(&way, &inner));
        return Ok(Cost { parts, keys: 0, rows: Vec::new() });
    };
    let around: Vec<&Loop> =
        all.iter().filter(|x| x.first <= plain.first && plain.last <= x.last && *x != plain).collect();
    let tile = |first: usize, last: usize, pairs: bool| -> Result<Part, String> {
        let way = walk(code, first, last, Rare::Stores);
        let within = Loop { first: first.saturating_sub(1), last: last + 1 };
        let counts = match shape.products(threads, pairs) {
            Some(wanted) => counted(code, &way, &within, wanted)?,
            None => all
                .iter()
                .filter(|x| within.first < x.first && x.last < within.last)
                .map(|x| (*x, trips(code, x).unwrap_or(1)))
                .collect(),
        };
        let counts: Vec<_> = counts.into_iter().filter(|(x, _)| x.last < last).collect();
        Ok(count(code, &repeated(&way, &counts)))
    };
    let once = |first: usize, last: usize| {
        let way = if first <= last { walk(code, first, last, Rare::Calls) } else { Vec::new() };
        let counts: Vec<_> = all
            .iter()
            .filter(|x| first <= x.first && x.last <= last)
            .map(|x| (*x, trips(code, x).unwrap_or(1)))
            .collect();
        count(code, &repeated(&way, &counts))
    };
    let leaves = |x: &Instruction| matches!(x.name.as_str(), "BRA" | "BRK" | "SYNC") && x.guard.is_none();
    let plain_part = tile(plain.first, plain.last, shape.pairs)?;
    let (mut edge, mut flush) = (plain_part, Part::default());
    let mut outer = plain;
    if let Some(inner) = around.first() {
        let first = (plain.last + 1..inner.last).find(|&at| !leaves(&code[at])).unwrap_or(inner.last);
        let has_tile = |from: usize, to: usize| code[from..to].iter().any(is_exp);
        edge = if has_tile(first, inner.last) {
            tile(first, inner.last, false)
        } else if has_tile(inner.first, plain.first) {
            tile(inner.first, plain.first - 1, false)
        } else {
            Ok(plain_part)
        }
        // If this code does not contain the products of the tile, the tile counts as a plain tile.
        .unwrap_or(plain_part);
        outer = around.last().copied().unwrap_or(inner);
        if outer != *inner {
            flush = once(inner.last + 1, outer.last);
        }
    }
    let before = once(0, plain.first - 1);
    // The code behind a fence of the device merges splits. Only the last block of a row block runs it, instead of a merge kernel.
    let fence = code.iter().position(|x| x.name == "MEMBAR" && x.has("GL"));
    let after = once(outer.last + 1, fence.map_or(end, |at| at - 1));
    let keys = if shape.rows > FEW { shape.keys } else { paths::step(code, plain).unwrap_or(shape.keys) };
    Ok(Cost { parts: [before, plain_part, edge, flush, after], keys, rows: Vec::new() })
}

/// Returns the counts for the instructions on the path `way`.
fn count(code: &[Instruction], way: &[usize]) -> Part {
    let [mut pairs, mut fma, mut floats, mut integers, mut xmad, mut special] = [0; 6];
    let [mut shared, mut shared_words, mut global_words, mut conflicts, mut stalls] = [0; 5];
    let (mut time, mut open) = (0usize, [0usize; 6]);
    let mut kept: [Option<usize>; 3] = [None; 3];
    for &at in way {
        let x = &code[at];
        let words = if x.has("128") {
            4
        } else if x.has("64") {
            2
        } else {
            1
        };
        match x.name.as_str() {
            _ if is_fma(x) => fma += 1,
            "FADD" | "FMUL" | "FADD32I" | "FMUL32I" | "FMNMX" | "FSETP" | "FCMP" | "FSET" | "HADD2"
            | "HMUL2" | "RRO" => floats += 1,
            "MUFU" | "F2F" | "F2I" | "I2F" | "I2I" | "DFMA" | "DADD" | "DMUL" | "DSETP" => special += 1,
            "XMAD" => xmad += 1,
            "LDS" | "STS" => (shared, shared_words) = (shared + 1, shared_words + words),
            "LDG" | "STG" | "LD" | "ST" => global_words += words,
            _ => integers += 1,
        }
        // Source registers of the same bank are read one after another, unless they are kept from an earlier
        // instruction.
        let sources: Vec<Option<usize>> = x.operands().skip(1).take(3).map(Instruction::register).collect();
        if is_fma(x) {
            let mut banks = [0usize; 4];
            let mut read: Vec<usize> = Vec::new();
            for (place, source) in sources.iter().enumerate() {
                if let Some(register) =
                    source.filter(|register| kept[place] != Some(*register) && !read.contains(register))
                {
                    banks[register % 4] += 1;
                    read.push(register);
                }
            }
            conflicts += banks.into_iter().max().unwrap_or(0).saturating_sub(1);
        }
        for (place, kept) in kept.iter_mut().enumerate() {
            let keeps = x.control.reuse >> place & 1 == 1;
            *kept = sources.get(place).copied().flatten().filter(|_| keeps);
        }
        for (barrier, opens) in open.iter().enumerate() {
            if x.control.waits >> barrier & 1 == 1 {
                time = time.max(*opens);
            }
        }
        let latency =
            LATENCIES.iter().find(|(names, _)| names.contains(&x.name.as_str())).map_or(LATENCY, |x| x.1);
        if let Some(opens) = x.control.written.and_then(|barrier| open.get_mut(barrier)) {
            *opens = time + latency;
        }
        if let Some(opens) = x.control.read.and_then(|barrier| open.get_mut(barrier)) {
            *opens = (*opens).max(time + LATENCY);
        }
        if matches!(x.name.as_str(), "BAR" | "MEMBAR") {
            time += latency;
        }
        pairs += usize::from(x.control.stall == 0);
        stalls += x.control.stall as usize;
        time += x.control.stall as usize;
    }
    let alone = open.into_iter().fold(time, usize::max);
    [
        way.len(),
        pairs,
        fma,
        floats,
        integers,
        xmad,
        special,
        shared,
        shared_words,
        global_words,
        conflicts,
        stalls,
        alone,
    ]
}
