//! `cargo xtask mca`: LLVM's model of the Cortex-A57 over the loops of the NEON kernel that hold the products.

use super::program;
use crate::setup;
use crate::shell::{Run, Tree};
use serde_json::Value;
use std::fmt::Write;

/// Fewest vector FMAs of a loop for it to be a product loop.
const PRODUCT_FMAS: usize = 48;
/// Instructions beyond which a backward branch closes no inner loop.
const LONGEST: usize = 2000;
/// Iterations that the model runs.
const ITERATIONS: u32 = 200;

/// An instruction of a listing.
#[derive(Clone, Debug)]
struct Line {
    at: u64,
    text: String,
}

impl Line {
    fn is_fma(&self) -> bool {
        self.text.starts_with("fmla") || self.text.starts_with("fmls")
    }

    /// A load or store of vector registers through the stack pointer.
    fn is_spill(&self) -> bool {
        let operands = self.text.split_once(char::is_whitespace);
        let memory = self.text.starts_with("ld") || self.text.starts_with("st");
        let vector = |operands: &str| operands.trim_start().starts_with(['q', 'd', 's', 'v', '{']);
        memory && operands.is_some_and(|(_, operands)| vector(operands) && operands.contains("[sp"))
    }

    /// Where it may branch to, when it is a branch.
    fn target(&self) -> Option<u64> {
        let (name, operands) = self.text.split_once(char::is_whitespace)?;
        let branch = name == "b" || ["b.", "cb", "tb"].iter().any(|start| name.starts_with(start));
        let last = operands.split('<').next()?.rsplit(',').next()?.trim();
        let hexadecimal = last.strip_prefix("0x").filter(|_| branch)?;
        u64::from_str_radix(hexadecimal, 16).ok()
    }

    /// As the assembler reads it, with every address that it names replaced by a label.
    fn assembly(&self) -> String {
        let text = self.text.split(" <").next().unwrap_or_default();
        let names_address = self.target().is_some() || text.starts_with("adr") || text.starts_with("bl");
        match text.rfind("0x").filter(|_| names_address) {
            Some(at) => format!("{}loop", &text[..at]),
            None => text.to_owned(),
        }
    }
}

/// The instructions of llvm-objdump's listing.
fn listing(text: &str) -> Vec<Line> {
    let line = |line: &str| {
        let (at, text) = line.trim_start().split_once(':')?;
        let text = text.split("//").next().unwrap_or_default().trim();
        Some(Line { at: u64::from_str_radix(at, 16).ok()?, text: text.to_owned() })
    };
    text.lines().filter_map(line).filter(|line| !line.text.is_empty()).collect()
}

/// The innermost loops with many FMAs: a backward branch and all from its target on.
fn product_loops(lines: &[Line]) -> Vec<&[Line]> {
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for (end, line) in lines.iter().enumerate() {
        let Some(target) = line.target().filter(|target| *target <= line.at) else { continue };
        let Ok(start) = lines.binary_search_by_key(&target, |line| line.at) else { continue };
        let body = &lines[start..=end];
        let straight = !body.iter().any(|line| line.text == "ret");
        if body.len() <= LONGEST && straight && body.iter().filter(|x| x.is_fma()).count() >= PRODUCT_FMAS {
            loops.push((start, end));
        }
    }
    let inner = |a: &(usize, usize), b: &(usize, usize)| a != b && a.0 <= b.0 && b.1 <= a.1;
    let innermost = loops.iter().filter(|a| !loops.iter().any(|b| inner(a, b)));
    innermost.map(|&(start, end)| &lines[start..=end]).collect()
}

/// Cycles of one iteration, and the share of them in which the two vector pipes are busy, as llvm-mca reports.
fn modelled(report: &str) -> Option<(f64, f64)> {
    let report: Value = serde_json::from_str(report).ok()?;
    let region = &report["CodeRegions"][0];
    let summary = &region["SummaryView"];
    let cycles = summary["TotalCycles"].as_f64()? / summary["Iterations"].as_f64()?;
    let names = report["TargetInfo"]["Resources"].as_array()?;
    // After the rows of the instructions comes that of the whole iteration.
    let whole = region["Instructions"].as_array()?.len() as u64;
    let usage = region["ResourcePressureView"]["ResourcePressureInfo"].as_array()?;
    let busy = usage.iter().filter(|row| row["InstructionIndex"] == whole).filter_map(|row| {
        let name = names.get(row["ResourceIndex"].as_u64()? as usize)?.as_str()?;
        ["A57UnitW", "A57UnitX"].contains(&name).then(|| row["ResourceUsage"].as_f64())?
    });
    Some((cycles, busy.sum::<f64>() / 2.0 / cycles))
}

/// `cargo xtask mca`.
pub fn run(tree: &Tree) -> Result<(), String> {
    for name in ["llvm-mca", "llvm-objdump"] {
        setup::program(tree, name, "llvm")?;
    }
    let program = program::build(tree)?;
    let out = Run::new(tree, "llvm-objdump -d --no-show-raw-insn").arg(&program).machine().run();
    if !out.ok {
        return Err(format!("llvm-objdump: {}", out.how));
    }
    let lines = listing(&out.stdout);
    let loops = product_loops(&lines);
    if loops.is_empty() {
        let n = lines.len();
        return Err(format!("no loop with {PRODUCT_FMAS} vector FMAs or more in {n} instructions"));
    }
    let file = tree.target.join("mca.s");
    let mut table = String::new();
    let mut spilling = 0;
    for body in &loops {
        let mut text = "loop:\n".to_owned();
        for line in *body {
            text += &line.assembly();
            text.push('\n');
        }
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let out = Run::new(tree, "llvm-mca -mtriple=aarch64-linux-gnu -mcpu=cortex-a57 --json")
            .args(&format!("-iterations={ITERATIONS}"))
            .arg(&file)
            .quiet()
            .run();
        let (cycles, busy) = modelled(&out.stdout)
            .filter(|_| out.ok)
            .ok_or_else(|| format!("llvm-mca, loop at {:x}: {}: {}", body[0].at, out.how, out.stderr))?;
        let fmas = body.iter().filter(|line| line.is_fma()).count();
        let spills = body.iter().filter(|line| line.is_spill()).count();
        let branches = body.iter().filter(|line| line.target().is_some()).count() - 1;
        spilling += usize::from(spills > 0);
        // A write to a string does not fail.
        let _ = writeln!(
            table,
            "{:>10x} {:>7} {fmas:>6} {cycles:>8.1} {:>8.1}% {:>7.1}% {spills:>7} {branches:>9}",
            body[0].at,
            body.len(),
            100.0 * fmas as f64 / cycles,
            100.0 * busy
        );
    }
    println!(
        "\nA four-lane FMA takes both vector pipes for a cycle. Branches are those besides the loop's own; the"
    );
    println!(
        "model goes straight through them. Spills are vector loads and stores through the stack pointer."
    );
    println!(
        "{:>10} {:>7} {:>6} {:>8} {:>9} {:>8} {:>7} {:>9}",
        "address", "instrs", "FMAs", "cycles", "FMA/cycle", "pipes", "spills", "branches"
    );
    print!("{table}");
    println!("{} loops with {PRODUCT_FMAS} FMAs or more, {spilling} with spills", loops.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop of `fmas` FMAs at `start`, closed by `branch`.
    fn body(start: u64, fmas: usize, branch: &str) -> String {
        let mut text = String::new();
        for i in 0..fmas as u64 {
            writeln!(text, "   {:x}:      \tfmla\tv1.4s, v0.4s, v2.s[0]", start + 4 * i).unwrap();
        }
        writeln!(text, "   {:x}:      \t{branch}\t0x{start:x} <.text+0x8>", start + 4 * fmas as u64).unwrap();
        text
    }

    #[test]
    fn the_innermost_product_loops_are_found() {
        let text = "\nx: file format\n0000000000001000 <.text>:\n".to_owned()
            + &body(0x1000, 48, "b.ne")
            + &body(0x2000, 47, "b.ne")
            + &body(0x3000, 50, "cbnz\tx1,")
            + "   3100: \tldr\tq0, [sp, #16]\n   3104: \tb\t0x3000 <.text>\n   3108: \tret\n";
        let lines = listing(&text);
        let loops = product_loops(&lines);
        let starts: Vec<_> = loops.iter().map(|body| (body[0].at, body.len())).collect();
        assert_eq!(starts, [(0x1000, 49), (0x3000, 51)]);
        assert_eq!(loops[1][50].assembly(), "cbnz\tx1,\tloop");
        assert!(product_loops(&listing(&body(0x1000, 47, "b.ne"))).is_empty());
    }

    #[test]
    fn spills_are_told_from_other_accesses() {
        let spill = |text: &str| Line { at: 0, text: text.to_owned() }.is_spill();
        assert!(spill("ldr\tq0, [sp, #16]") && spill("stp\td8, d9, [sp]") && spill("ldp\tq1, q2, [sp, #32]"));
        assert!(
            !spill("ldr\tq0, [x1, #16]")
                && !spill("ldr\tx0, [sp, #16]")
                && !spill("fmla\tv1.4s, v0.4s, v2.4s")
        );
    }

    #[test]
    fn the_model_is_read_by_name() {
        let report = r#"{"TargetInfo":{"Resources":["A57UnitL","A57UnitW","A57UnitX"]},"CodeRegions":[{
            "Instructions":["a","b"],"SummaryView":{"Iterations":10,"TotalCycles":40},
            "ResourcePressureView":{"ResourcePressureInfo":[
            {"InstructionIndex":0,"ResourceIndex":1,"ResourceUsage":9},
            {"InstructionIndex":2,"ResourceIndex":0,"ResourceUsage":9},
            {"InstructionIndex":2,"ResourceIndex":1,"ResourceUsage":3},
            {"InstructionIndex":2,"ResourceIndex":2,"ResourceUsage":1}]}}]}"#;
        assert_eq!(modelled(report), Some((4.0, 0.5)));
        assert_eq!(modelled("{}"), None);
    }
}
