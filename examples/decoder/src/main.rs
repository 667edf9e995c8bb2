//! The binary `elsa-decoder`: prints the columns of the paper's table 13 for a decoder with random weights.
#![forbid(unsafe_code)]

use clap::Parser;
use elsa_decoder::error::Error;
use elsa_decoder::forward::{all_layers, buffers, differing, in_memory, streamed};
use elsa_decoder::layer::Sizes;
use elsa_decoder::weights::Weights;
use elsa_runtime::{Engine, EngineOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// A decoder that reads layers' weights while earlier layers compute.
#[derive(Parser, Debug)]
#[command(name = "elsa-decoder", version)]
struct Cli {
    /// Lengths of sequences
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "64,128,256,512")]
    tokens: Vec<usize>,
    /// Layers
    #[arg(long, value_name = "N", default_value_t = 8)]
    layers: usize,
    /// Heads of the queries
    #[arg(long, value_name = "N", default_value_t = 8)]
    heads: usize,
    /// Heads of keys and values, a divisor of --heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    kv_heads: usize,
    /// Size of a head
    #[arg(long, value_name = "N", default_value_t = 64)]
    dim: usize,
    /// Inner size of the gated MLP
    #[arg(long, value_name = "N", default_value_t = 1376)]
    mlp: usize,
    /// Worker threads of attention [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Folder of the weight file, which is unnamed and disappears with the process
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Drop the file from the system's cache before each sequence, so that weights come from the
    /// device
    #[arg(long)]
    cold: bool,
    /// Do not compare with all weights in memory, so that they need not fit there
    #[arg(long)]
    no_check: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elsa-decoder: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let Cli { heads, kv_heads, mlp, .. } = *cli;
    let sizes = Sizes { heads, kv_heads, head_dim: cli.dim, mlp }.check()?;
    for (argument, found) in cli.tokens.iter().map(|n| ("tokens", *n)).chain([("layers", cli.layers)]) {
        if !(1..=1 << 20).contains(&found) {
            return Err(Error::Argument { argument, found: found.to_string(), allowed: "1 to 1048576" });
        }
    }
    let engine = Engine::new(&EngineOptions::default().threads(cli.threads))?;
    let folder = cli.folder.clone().unwrap_or_else(std::env::temp_dir);
    let weights = Weights::random(&folder, sizes, cli.layers)?;
    let mut buffers = buffers(&weights)?;
    let layers = if cli.no_check { None } else { Some(all_layers(&weights)?) };
    let mut out = std::io::stdout().lock();
    let print = |e| Error::Weights { path: "standard output".into(), source: e };
    writeln!(
        out,
        "{} layers of {:.1} MB, two of them in memory; {} with {} worker threads",
        cli.layers,
        weights.layer_bytes() as f64 / 1e6,
        engine.backend(),
        engine.threads()
    )
    .map_err(print)?;
    writeln!(
        out,
        "{:>8} {:>12} {:>12} {:>12} {:>12} {:>12}  bits",
        "tokens", "copy ms", "compute ms", "wait ms", "Overlap_eff", "tok/s"
    )
    .map_err(print)?;
    for &tokens in &cli.tokens {
        if cli.cold {
            weights.forget()?;
        }
        let (found, row) = streamed(&engine, &weights, &mut buffers, tokens)?;
        let checked = match &layers {
            Some(layers) => {
                let expected = in_memory(&engine, &weights, layers, tokens)?;
                match differing(&found, &expected) {
                    0 => "as in memory",
                    differing => return Err(Error::Differs { tokens, differing, all: expected.len() }),
                }
            }
            None => "not compared",
        };
        let (copy, compute, wait) = (row.copy_ms(), row.compute_ms(), row.wait_ms());
        let (overlap, rate) = (row.times.overlap(), row.rate());
        writeln!(
            out,
            "{tokens:>8} {copy:>12.3} {compute:>12.3} {wait:>12.3} {overlap:>12.3} {rate:>12.0}  {checked}"
        )
        .map_err(print)?;
    }
    writeln!(out, "copy, compute and wait are of a layer; Overlap_eff is 1 - wait / total").map_err(print)
}
