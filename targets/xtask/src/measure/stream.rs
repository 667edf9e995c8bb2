//! `cargo xtask stream-figures`: memory and speed of streamed runs of the tool on this machine.
//!
//! Every figure comes from reports of `elsa run --json` on files of random numbers, which are removed at the end. The
//! time of a streamed run includes reading and writing. The time of a run in memory includes only the computation, so
//! the ratio of the two times favours the run in memory.

use crate::shell::{Run, Tree};
use elsa_core::random;
use serde_json::Value;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Head size.
const DIM: usize = 64;
const GIB: usize = 1 << 30;
/// Number of query rows in the speed comparison; all of them are resident.
const RESIDENT: usize = 4096;
/// Number of keys in the speed comparison.
const KEYS: usize = 32_768;
/// Command-line arguments of `cargo xtask stream-figures`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Arguments {
    /// Size in GiB of a file of keys and values that is streamed within a budget of 1 GiB. It needs free disk
    /// space.
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    gib: f64,
    /// Number of pairs of a streamed run and a run in memory.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x| *x > 0.0 && *x <= 4096.0);
    number.ok_or_else(|| "allowed: a positive number, at most 4096".to_owned())
}

/// A row of the table. The cells are: quantity, setting, measured value, reference value.
type Row = [String; 4];

/// Builds the tool, measures streamed runs, and prints the results as a table in Markdown.
pub fn run(tree: &Tree, arguments: Arguments) -> Result<(), String> {
    Run::new(tree, "cargo build --release -p elsa-cli").run().text("the tool does not build")?;
    let folder = tempfile::Builder::new().prefix("stream-figures-").tempdir_in(&tree.target);
    let folder = folder.map_err(|error| format!("{}: {error}", tree.target.display()))?;
    let bench = Bench { tree, folder: folder.path() };
    let mut rows = Vec::new();
    for mebibytes in [64, 256, 1024] {
        rows.push(bench.peak(mebibytes)?);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        rows.extend(bench.speed(threads, arguments.pairs)?);
    }
    rows.push(bench.large(arguments.gib)?);
    println!("\n| figure | setting | measured | wanted |\n|---|---|---|---|");
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
    Ok(())
}

/// The tree in which the tool runs, and the folder with the files of the measurements.
struct Bench<'a> {
    tree: &'a Tree,
    folder: &'a Path,
}

impl Bench<'_> {
    /// Runs the tool with the arguments in `line`, and returns the tool's report. In `line`, `@` stands for the folder
    /// with the files.
    fn elsa(&self, line: &str) -> Result<Value, String> {
        let run = Run::new(self.tree, "").arg(self.tree.target.join("release/elsa"));
        let folder = format!("{}/", self.folder.display());
        let run = line.split_whitespace().fold(run, |run, word| run.arg(word.replace('@', &folder)));
        let text = run.arg("--json").machine().run().text(line)?;
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|error| format!("{line}: {error}"))
    }

    /// Writes a tensor of one head with `tokens` rows of random numbers, unless the file exists.
    fn tensor(&self, name: &str, tokens: usize) -> Result<(), String> {
        let path = self.folder.join(name);
        if path.exists() {
            return Ok(());
        }
        let failed = |error| format!("{}: {error}", path.display());
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(failed)?);
        file.write_all(&npy_header(tokens)).map_err(failed)?;
        noise(&mut file, tokens * DIM, tokens as u64).and_then(|()| file.flush()).map_err(failed)
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Measures the share of the memory budget that a run uses if not all of its rows fit into the budget at once.
    fn peak(&self, mebibytes: usize) -> Result<Row, String> {
        let budget = mebibytes << 20;
        // A row takes more than 800 bytes: two copies of its query, its output and its state.
        let queries = budget / 800;
        self.tensor("rows.npy", queries)?;
        self.tensor("few.npy", 1024)?;
        let line =
            format!("run --q @rows.npy --k @few.npy --v @few.npy --out @y.npy --host-budget {mebibytes}MiB");
        let report = self.elsa(&line)?;
        self.remove("rows.npy")?;
        self.remove("y.npy")?;
        let (peak, units) = (number(&report, "peak_rss_bytes")?, number(&report, "units")?);
        if units < 2.0 {
            return Err(format!("{line}: all rows fit, so that more memory would not help"));
        }
        Ok([
            "peak memory (VmHWM) / budget".to_owned(),
            format!("{mebibytes} MiB, {queries} queries"),
            format!("{peak} bytes, {:.1} %", 100.0 * peak / budget as f64),
            "at most 100 %, at least 95 %".to_owned(),
        ])
    }

    /// Measures the speed of a streamed run relative to the speed of a run in memory. The files of the streamed run are
    /// in the page cache.
    fn speed(&self, threads: usize, pairs: u32) -> Result<[Row; 2], String> {
        self.tensor("q.npy", RESIDENT)?;
        self.tensor("k.npy", KEYS)?;
        self.tensor("v.npy", KEYS)?;
        let memory = format!("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --threads {threads}");
        let streamed = format!("{memory} --host-budget 256MiB");
        let (mut ratios, mut overlaps) = (Vec::new(), Vec::new());
        // The first pair warms the page cache.
        for pair in 0..=pairs {
            let mut ms = [0.0; 2];
            for turn in 0..2 {
                // The order of the two runs alternates from pair to pair.
                let which = (pair as usize + turn) % 2;
                let report = self.elsa(if which == 0 { &memory } else { &streamed })?;
                ms[which] = number(&report, "ms")?;
                if which == 1 {
                    let rows = number(&report, "resident_rows")?;
                    if rows != RESIDENT as f64 {
                        return Err(format!("{streamed}: {rows} resident rows; wanted: {RESIDENT}"));
                    }
                    if pair > 0 {
                        overlaps.push(number(&report, "overlap_eff")?);
                    }
                }
            }
            if pair > 0 {
                ratios.push(ms[0] / ms[1]);
            }
        }
        let setting = format!("{RESIDENT} resident rows, {KEYS} keys, {threads} threads, {pairs} pairs");
        let row = |name: &str, values: Vec<f64>, wanted: &str| -> Row {
            [name.to_owned(), setting.clone(), shown(values), wanted.to_owned()]
        };
        Ok([
            row("speed of cached stream relative to in memory", ratios, "at least 0.95"),
            row("Overlap_eff", overlaps, "near 1"),
        ])
    }

    /// Measures a run over a file of keys and values that is larger than the budget.
    fn large(&self, gib: f64) -> Result<Row, String> {
        let keys = (gib * GIB as f64) as usize / (2 * DIM * 4);
        self.tensor("some.npy", 256)?;
        let path = self.folder.join("kv.safetensors");
        println!("writing {} of {gib} GiB", path.display());
        let written = File::create(&path).and_then(|file| {
            let mut file = BufWriter::with_capacity(1 << 20, file);
            file.write_all(&safetensors_header(keys))?;
            noise(&mut file, 2 * keys * DIM, 9)?;
            file.flush()
        });
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        let line =
            "run --q @some.npy --k @kv.safetensors#k --v @kv.safetensors#v --out @y.npy --host-budget 1GiB";
        let report = self.elsa(line)?;
        self.remove("kv.safetensors")?;
        let (peak, read) = (number(&report, "peak_rss_bytes")?, number(&report, "bytes_read")?);
        let (seconds, overlap) = (number(&report, "ms")? / 1e3, number(&report, "overlap_eff")?);
        Ok([
            "file of keys and values, 1 GiB budget".to_owned(),
            format!("{gib} GiB, {keys} keys, 256 queries"),
            format!(
                "peak {peak} bytes; {read} bytes in {seconds:.1} s ({:.2} GB/s), Overlap_eff {overlap:.3}",
                read / seconds / 1e9
            ),
            "a peak below 1 GiB".to_owned(),
        ])
    }
}

/// Returns the number that a report stores under `name`.
fn number(report: &Value, name: &str) -> Result<f64, String> {
    report[name].as_f64().ok_or_else(|| format!("no {name} in the report: {report}"))
}

/// Returns the header of an `.npy` file: the bytes before the elements. The file contains `tokens` rows of one head.
fn npy_header(tokens: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, {tokens}, {DIM}), }}")
        .into_bytes();
    text.resize((10 + text.len() + 1).next_multiple_of(64) - 11, b' ');
    text.push(b'\n');
    [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], &text].concat()
}

/// Returns the header of a `.safetensors` file: the bytes before the elements. The file contains the tensors `k` and
/// `v` with `keys` rows each.
fn safetensors_header(keys: usize) -> Vec<u8> {
    let bytes = keys * DIM * 4;
    let tensor = |name: &str, start: usize| {
        format!(
            r#""{name}":{{"dtype":"F32","shape":[1,1,{keys},{DIM}],"data_offsets":[{start},{}]}}"#,
            start + bytes
        )
    };
    let mut text = format!("{{{},{}}}", tensor("k", 0), tensor("v", bytes)).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// Writes `count` random numbers from −1 to 1. Zeros are not used, because blocks of zeros could become holes in the
/// file.
fn noise(file: &mut impl Write, count: usize, seed: u64) -> std::io::Result<()> {
    random::noise(seed, count).try_for_each(|x| file.write_all(&x.to_le_bytes()))
}

/// Formats the median and the quartiles of `values`.
fn shown(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * values.len().saturating_sub(1) as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        let of = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        of(low) + (of(high) - of(low)) * place.fract()
    };
    format!("{:.3} ({:.3}–{:.3})", at(0.5), at(0.25), at(0.75))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_is_shown() {
        assert_eq!(shown(vec![5.0, 1.0, 2.0, 4.0, 3.0]), "3.000 (2.000–4.000)");
        assert_eq!(shown(vec![1.0, 2.0]), "1.500 (1.250–1.750)");
        assert!(shown(Vec::new()).contains("NaN"));
    }
}
