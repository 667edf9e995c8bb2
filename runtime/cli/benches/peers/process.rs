//! The process that measures the peers, and slices of time.

use crate::request::Failure;
use elsa_core::dtype::Elements;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Pause after a slice, during which worker threads fall asleep. This library's threads fall asleep within microseconds
/// after their last job.
const SETTLE: Duration = Duration::from_millis(1);
/// Maximum share of a slice's time for which its threads may wait for a processor. With a larger share, the slice
/// counts as disturbed. Checked only for slices that are measured by the wall clock.
const DISTURBED: f64 = 0.03;
/// Maximum number of times that a slice is measured. If the last measurement is disturbed too, the round is dropped.
const RETAKES: u32 = 6;
/// Within a slice, calls run for this number of seconds between two readings of the clock.
const LOOK: f64 = 1e-4;

/// Writes elements as f32, which is exact for every type.
pub fn write(dir: &Path, name: &str, x: Elements<'_>) -> std::io::Result<()> {
    std::fs::write(dir.join(name), (0..x.len()).flat_map(|i| x.get(i).to_le_bytes()).collect::<Vec<u8>>())
}

/// Process that runs a Python script and communicates with it by the protocol of `slices.py`.
pub struct Peers {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The jobs that the script has prepared.
#[derive(Deserialize)]
pub struct Prepared {
    pub jobs: Vec<String>,
    /// Peers that cannot be measured, with the reasons.
    pub absent: BTreeMap<String, String>,
    pub versions: Map<String, Value>,
}

/// Measurement of one slice of a job.
#[derive(Deserialize)]
pub struct Slice {
    /// Seconds per call.
    pub seconds: f64,
    pub calls: u64,
    /// `true` if no other program affected the time.
    pub calm: bool,
    /// Seconds for which thread pools kept spinning after the slice.
    pub settle: f64,
}

impl Peers {
    /// Starts `script` from this file's folder, with `variables` in its environment.
    pub fn start(python: &str, script: &str, variables: &[(&str, &str)]) -> Result<Peers, Failure> {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers"));
        let mut command = Command::new(python);
        command.arg("-B").arg(folder.join(script)).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(variables.iter().copied());
        let mut child = command.spawn().map_err(|error| format!("{python}: {error}"))?;
        let to = child.stdin.take().ok_or("no pipe to the peers")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from the peers")?);
        Ok(Peers { child, to, from })
    }

    pub fn ask<T: for<'a> Deserialize<'a>>(&mut self, request: &Value) -> Result<T, Failure> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(format!("the process of the peers ended: {}", self.child.wait()?).into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    pub fn slice(&mut self, name: &str, slice: Duration) -> Result<Slice, Failure> {
        self.ask(&json!({ "slice": name, "seconds": slice.as_secs_f64(), "look": LOOK, "tries": RETAKES,
            "waited": DISTURBED }))
    }

    pub fn end(self) -> Result<(), Failure> {
        let Peers { mut child, to, .. } = self;
        drop(to);
        child.wait()?;
        Ok(())
    }
}

/// Returns the total seconds for which threads of this process were ready to run but had no processor (Linux).
fn waited() -> f64 {
    let of = |task: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    std::fs::read_dir("/proc/self/task").map_or(0.0, |tasks| tasks.filter_map(of).sum::<f64>() / 1e9)
}

/// Measures a slice of repeated calls of `run`, which calls this library. The function `measure` of `slices.py` does
/// the same for a peer. With one thread, the processor time is measured; with several threads, the wall clock.
pub fn own_slice(
    run: &mut dyn FnMut() -> Result<(), Failure>,
    threads: usize,
    slice: Duration,
) -> Result<Slice, Failure> {
    let clock = || {
        let now = clock_gettime(if threads == 1 { ClockId::ThreadCPUTime } else { ClockId::Monotonic });
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let mut take = |together: u64| -> Result<Slice, Failure> {
        let before = if threads == 1 { 0.0 } else { waited() };
        let (start, mut calls) = (clock(), 0);
        let elapsed = loop {
            for _ in 0..together {
                run()?;
            }
            calls += together;
            let elapsed = clock() - start;
            if elapsed >= slice.as_secs_f64() {
                break elapsed;
            }
        };
        let calm = threads == 1 || waited() - before <= DISTURBED * elapsed;
        Ok(Slice { seconds: elapsed / calls as f64, calls, calm, settle: 0.0 })
    };
    let first = take(1)?;
    let together = ((LOOK / first.seconds) as u64).max(1);
    let mut taken = take(together)?;
    for _ in 1..RETAKES {
        if taken.calm {
            break;
        }
        taken = take(together)?;
    }
    std::thread::sleep(SETTLE);
    Ok(taken)
}
