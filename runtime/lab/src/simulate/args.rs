//! The flags of `elsa-lab simulate`.

use super::sets;
use clap::Args;
use elsa_cli::args::ForceArgs;
use elsa_cli::args::values::{bytes, one_of, positive};
use std::path::PathBuf;

/// Maximum number of tokens. Up to this number, a double distinguishes consecutive integers.
const MOST: f64 = 1e15;
/// Maximum number of levels of a division.
const LEVELS: u32 = 24;
/// Default numbers of tokens for measuring costs.
const SIZES: &str = "512,1024,2048,4096";
/// Default numbers of tokens for running streaming and quorums.
const BESIDE: &str = "1024,2048,4096";

/// The text below the flags.
const HELP: &str = "\
Costs are bytes = D x + E and seconds = A x^2 + B x + C of a call over x tokens, fitted by least squares without negative
coefficients. A board is a100 (published: Stream-CQSA, one head of 128 in f16), h200 (measured: this library, eight heads
of 64 in f32), or a Jetson (predicted from its profile, one head of 64 in f32). --measure fits this machine and checks the
fit on sizes that it was not made from.

Streaming keeps query rows in memory and lets all keys pass. Quorums divide the tokens into tasks of l of c chunks, level by
level; each token then moves l^levels times, and a kernel that computes masked pairs does (l^2/c)^levels of the work.

Examples:
  elsa-lab simulate --tokens 1e9 --backward
  elsa-lab simulate --tokens 100K --board jetson-tx2 --memory 256MiB --link 0.3
  elsa-lab simulate --tokens 16K --board jetson-tx2 --boards 3 --link 0.0002,0.1
  elsa-lab simulate --tokens 1M --measure --save-fit here.json --html page.html
  elsa-lab simulate --tokens 1M --measure --threads 1 --beside --html page.html
  elsa-lab simulate --tokens 1M --fit here.json --c 13 --levels 1..4 --json";

/// A number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tokens(pub f64);

/// Levels of division.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels(pub Vec<u32>);

/// A link between boards, or to the memory that tensors arrive from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds of an empty message.
    pub latency: f64,
    /// 10⁹ bytes per second.
    pub rate: f64,
}

/// Numbers of tokens to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

/// `elsa-lab simulate`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct SimulateArgs {
    /// Tokens of the whole problem: 1000000, 1e9, or a number of K, M or G, which are powers of a thousand
    #[arg(long, value_name = "N", default_value = "1e9", allow_negative_numbers = true, value_parser = tokens)]
    pub tokens: Tokens,
    /// Known costs [default: a100]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["fit", "measure"], value_parser = one_of(sets::names()))]
    pub board: Option<&'static str>,
    /// Costs from --save-fit
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    pub fit: Option<PathBuf>,
    /// Measure costs here at these sizes, at least three [default: 512,1024,2048,4096]
    #[arg(long, value_name = "N,N,...", num_args = 0..=1, require_equals = true, default_missing_value = SIZES,
        value_parser = sizes_of::<3>)]
    pub measure: Option<Sizes>,
    /// Measured heads [default: 1]
    #[arg(long, value_name = "N", requires = "measure", allow_negative_numbers = true, value_parser = positive)]
    pub heads: Option<usize>,
    /// Size of a measured head [default: 64]
    #[arg(long, value_name = "N", requires = "measure", allow_negative_numbers = true, value_parser = positive)]
    pub dim: Option<usize>,
    /// Measured worker threads [default: all cores]. A single thread is measured by its CPU time, so that other
    /// programs matter less
    #[arg(long, value_name = "N", requires = "measure", allow_negative_numbers = true, value_parser = positive)]
    pub threads: Option<usize>,
    /// Run streaming and quorums here at these sizes, within all, half and a quarter of the tensors' bytes
    /// [default: 1024,2048,4096]
    #[arg(long, value_name = "N,N,...", num_args = 0..=1, require_equals = true, default_missing_value = BESIDE,
        requires = "measure", value_parser = sizes_of::<1>)]
    pub beside: Option<Sizes>,
    /// Save the measurements to a file, for --fit
    #[arg(long, value_name = "FILE", requires = "measure")]
    pub save_fit: Option<PathBuf>,
    /// Chunks of a division by quorums
    #[arg(long, value_name = "C", default_value = "7", allow_negative_numbers = true, value_parser = positive)]
    pub c: usize,
    /// Levels of division, such as 5..9 or 1,2,3 [default: the first whose tasks fit in memory, and four more]
    #[arg(long, value_name = "LEVELS", allow_negative_numbers = true, value_parser = levels)]
    pub levels: Option<Levels>,
    /// Memory for tasks and streaming: bytes, or a number of KiB, MiB or GiB [default: that of the board]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub memory: Option<usize>,
    /// Rate at which tensors arrive, in 10^9 bytes per second, after the latency of a message in seconds if it counts
    /// [default: unknown, transfers cost nothing]
    #[arg(long, value_name = "[S,]GB/S", allow_negative_numbers = true, value_parser = link)]
    pub link: Option<Link>,
    /// Boards that compute together by elsa-mpi, each two joined by --link
    #[arg(long, value_name = "P", requires = "link", allow_negative_numbers = true, value_parser = positive)]
    pub boards: Option<usize>,
    /// Include the backward pass; with --measure it is measured too
    #[arg(long)]
    pub backward: bool,
    /// Permission for outputs to replace the input.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a page with tables and pictures
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Parses a number of tokens, in units of one, K, M or G.
fn tokens(text: &str) -> Result<Tokens, String> {
    let (number, factor) = [("K", 1e3), ("M", 1e6), ("G", 1e9)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1.0));
    let found = number.parse::<f64>().ok().map(|x| x * factor);
    found.filter(|x| (1.0..=MOST).contains(x) && x.fract() == 0.0).map(Tokens).ok_or_else(|| {
        format!("allowed: a whole number of tokens from 1 to {MOST:e}, as 1000000, 1e9, 400K, 1M or 1G")
    })
}

/// Parses levels of division: `A..B`, both included, or a list.
fn levels(text: &str) -> Result<Levels, String> {
    let level = |text: &str| text.trim().parse().ok().filter(|level| *level <= LEVELS);
    let found: Option<Vec<u32>> = match text.split_once("..") {
        Some((first, last)) => level(first).zip(level(last)).map(|(first, last)| (first..=last).collect()),
        None => text.split(',').map(level).collect(),
    };
    found
        .filter(|levels| !levels.is_empty() && levels.windows(2).all(|two| two[0] < two[1]))
        .map(Levels)
        .ok_or_else(|| format!("allowed: rising levels from 0 to {LEVELS}, as 5..9 or 1,2,3"))
}

/// Parses a list of at least `LEAST` increasing numbers of tokens.
fn sizes_of<const LEAST: usize>(text: &str) -> Result<Sizes, String> {
    let found: Option<Vec<usize>> =
        text.split(',').map(|text| text.trim().parse().ok().filter(|n| (1..=1 << 20).contains(n))).collect();
    found
        .filter(|sizes| sizes.len() >= LEAST && sizes.windows(2).all(|two| two[0] < two[1]))
        .map(Sizes)
        .ok_or_else(|| {
            format!("allowed: {LEAST} rising numbers of tokens or more, from 1 to 1048576, as 512,1024,2048")
        })
}

/// Parses a link: its rate in 10⁹ bytes per second, or its latency in seconds and its rate.
fn link(text: &str) -> Result<Link, String> {
    let (latency, rate) = text.split_once(',').unwrap_or(("0", text));
    let latency = latency.parse().ok().filter(|latency| (0.0..=1e3).contains(latency));
    let rate = rate.parse().ok().filter(|rate| (1e-6..=1e6).contains(rate));
    latency.zip(rate).map(|(latency, rate)| Link { latency, rate }).ok_or_else(|| {
        "allowed: 10^9 bytes per second, from 0.000001 to 1000000, or the latency in seconds before it, as 0.0002,0.1".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_understood() {
        for (text, n) in
            [("1e9", 1e9), ("1000000", 1e6), ("400K", 4e5), ("1.5M", 1.5e6), ("2G", 2e9), ("1", 1.0)]
        {
            assert_eq!(tokens(text), Ok(Tokens(n)), "{text}");
        }
        for text in ["0", "-1", "1e99", "nan", "inf", "1.5", "", "K", "1k", "1e16", "1e400"] {
            assert!(tokens(text).is_err(), "{text}");
        }
        assert_eq!(levels("5..9"), Ok(Levels(vec![5, 6, 7, 8, 9])));
        assert_eq!((levels("0,2"), levels("3")), (Ok(Levels(vec![0, 2])), Ok(Levels(vec![3]))));
        assert!(
            ["", "9..5", "1,1", "-1", "25", "a", "1..", "5...9"]
                .into_iter()
                .all(|text| levels(text).is_err())
        );
        assert_eq!(sizes_of::<3>("1,2,3"), Ok(Sizes(vec![1, 2, 3])));
        assert!(
            ["1,2", "3,2,1", "0,1,2", "a,b,c", "1,2,2000000"]
                .into_iter()
                .all(|text| sizes_of::<3>(text).is_err())
        );
        assert_eq!(link("0.3"), Ok(Link { latency: 0.0, rate: 0.3 }));
        assert_eq!(link("2e-4,0.1"), Ok(Link { latency: 2e-4, rate: 0.1 }));
        assert!(
            ["0", "-1", "nan", "inf", "1e7", "-1,1", "nan,1", "1,", ",1", "1,1,1"]
                .into_iter()
                .all(|text| link(text).is_err())
        );
    }
}
