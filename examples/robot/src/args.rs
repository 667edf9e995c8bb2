//! The command line.

use crate::frame::{PixelFormat, Size};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser};
use elsa_runtime::{Backend, Fallback};
use std::path::PathBuf;
use std::time::Duration;

/// Classifies frames at a fixed rate: camera, pipe or pictures in; one line per frame out.
#[derive(Parser, Debug)]
#[command(name = "elsa-robot", version, after_help = HELP)]
pub struct Cli {
    /// Weights of the Vision Transformer, as trained by examples/cpp-vision
    #[arg(long, value_name = "FILE.safetensors")]
    pub model: PathBuf,
    /// Source of the frames.
    #[command(flatten)]
    pub input: Input,
    /// Width and height of a pipe's or camera's frames
    #[arg(long, value_name = "WxH", default_value = "640x480")]
    pub size: Size,
    /// Sample format of a pipe's or camera's frames
    #[arg(long, value_enum, default_value = "yuyv")]
    pub format: PixelFormat,
    /// Start again with the first picture of --images after the last
    #[arg(long, conflicts_with_all = ["pipe", "camera"])]
    pub repeat: bool,
    /// If a pipe's frames come faster than the loop, replace them by newer ones, like a camera's
    #[arg(long, conflicts_with_all = ["images", "camera"])]
    pub newest: bool,
    /// End with an error when a pipe or camera delivers nothing for this long [default: 5 for a camera, none for a pipe]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub patience: Option<Duration>,
    /// Frames per second
    #[arg(long, value_name = "HZ", default_value = "30", value_parser = rate)]
    pub rate: f64,
    /// End after this many frames, broken ones included
    #[arg(long, value_name = "N")]
    pub frames: Option<u64>,
    /// Lines and the summary as JSON
    #[arg(long)]
    pub json: bool,
    /// Send the lines through this serial port (8N1) instead of standard output
    #[arg(long, value_name = "DEVICE")]
    pub serial: Option<PathBuf>,
    /// Bits per second of the serial port
    #[arg(long, value_name = "BAUD", default_value = "115200", value_parser = clap::value_parser!(u32).range(50..=12_500_000))]
    pub baud: u32,
    /// Bind the loop to this core
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Real-time priority, policy SCHED_FIFO
    #[arg(long, value_name = "1..99", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub priority: Option<u8>,
    /// Keep the memory of the process from being paged out
    #[arg(long)]
    pub lock_memory: bool,
    /// auto uses the environment variable ELSA_BACKEND if it is set, else the best back end that is present
    #[arg(long, default_value = AUTO, value_parser = PossibleValuesParser::new(backends()).map(backend))]
    pub backend: BackendFlag,
    /// If the GPU is missing or fails: cpu computes on the CPU instead, fail ends the loop
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(["cpu", "fail"]).map(fallback))]
    pub fallback: Fallback,
    /// Threads of the attention, including that of the loop. The model is small: more than one seldom pays
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: usize,
}

/// Source of the frames: exactly one of the three.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Input {
    /// The PNG and JPEG files of a folder, in the order of their names
    #[arg(long, value_name = "FOLDER")]
    pub images: Option<PathBuf>,
    /// Raw frames from a file or named pipe, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub pipe: Option<PathBuf>,
    /// A V4L2 camera
    #[arg(long, value_name = "DEVICE")]
    pub camera: Option<PathBuf>,
}

/// Value of `--backend` that selects no particular back end.
const AUTO: &str = "auto";

/// Back end that `--backend` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFlag {
    /// The back end that the environment variable names, or the best back end that is present.
    Auto,
    /// A particular back end.
    Forced(Backend),
}

const HELP: &str = "\
Every period of 1/HZ seconds the loop takes a frame, if one is waiting, and answers it. An answer is late when it
comes after the end of its period; periods that pass meanwhile are skipped, not made up. Results go to standard
output, or to the serial port; a line that finds no room is dropped and counted. The summary goes to standard
output at the end. Messages go to standard error; ELSA_LOG=info adds more.

SIGTERM and Ctrl-C end the loop with the summary; a second one ends it at once.

Exit status: 0 done; 2 the request was wrong; 3 the device or the system failed.";

/// Iterates over the values of `--backend`, with the most portable back end first.
fn backends() -> impl Iterator<Item = &'static str> {
    [AUTO].into_iter().chain(Backend::ALL.into_iter().rev().map(Backend::name))
}

fn backend(s: String) -> BackendFlag {
    s.parse().map_or(BackendFlag::Auto, BackendFlag::Forced)
}

fn fallback(s: String) -> Fallback {
    if s == "fail" { Fallback::Fail } else { Fallback::Cpu }
}

fn rate(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(x) if (0.1..=10_000.0).contains(&x) => Ok(x),
        _ => Err("allowed: a number from 0.1 to 10000".into()),
    }
}

fn seconds(s: &str) -> Result<Duration, String> {
    match s.parse() {
        Ok(x) if x > 0.0 && x <= 86_400.0 => Ok(Duration::from_secs_f64(x)),
        _ => Err("allowed: a positive number of seconds, at most 86400".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        let cli = parse("elsa-robot --model m --images d --backend scalar --rate 100").unwrap();
        assert_eq!((cli.backend, cli.rate), (BackendFlag::Forced(Backend::SCALAR), 100.0));
        for bad in [
            "elsa-robot --model m",
            "elsa-robot --images d",
            "elsa-robot --model m --images d --pipe -",
            "elsa-robot --model m --pipe - --repeat",
            "elsa-robot --model m --images d --rate 0",
            "elsa-robot --model m --images d --rate nan",
            "elsa-robot --model m --images d --priority 100",
            "elsa-robot --model m --pipe - --size 0x1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
