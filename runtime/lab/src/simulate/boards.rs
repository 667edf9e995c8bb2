//! Time of attention by several equal boards in the modes of `elsa-mpi`, compared with one board.
//!
//! The symbols are n tokens, p boards, and t(x), the seconds of a call over x tokens:
//!
//! ```text
//! one      t(n)
//! ring     (p − 1) max(t(n/p), keys and values of n/p tokens) + t(n/p) + collection of the answers
//! quorum   ⌈c/p⌉ (A n²/c + B l n/c + C) + collection of the states of c tasks, each of l n/c tokens
//! decode   A n/p + B + C + 2 ⌈log2 p⌉ (states of a query), for one query over n keys
//! ```
//!
//! A message takes the latency plus its bytes / bandwidth. The first board collects the messages of the others, one after the
//! other. The kernel is assumed to skip masked pairs.

use super::args::Link;
use super::costs::Costs;
use super::text::{count, size, time};
use serde::Serialize;
use std::io::{Result, Write};

/// Bytes of an `f32`, the type of states and answers.
const F32: f64 = 4.0;

/// Several boards in a network.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Number of boards.
    pub boards: usize,
    /// Link between each two boards.
    pub link: Link,
    /// Numbers of chunks: c per division and l per task.
    pub division: (usize, usize),
}

/// Time of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mode {
    /// `one board`, `ring`, `quorum`, or `decode`.
    pub mode: &'static str,
    /// Seconds until the first board has the answer.
    pub seconds: f64,
    /// Seconds of computation on the busiest board.
    pub compute_seconds: f64,
    /// Bytes that all boards send.
    pub sent_bytes: f64,
}

/// Predicted times of all modes.
#[derive(Clone, Debug, Serialize)]
pub struct Together {
    boards: usize,
    latency_seconds: f64,
    bytes_per_second: f64,
    /// Modes with as many queries as keys.
    pub modes: Vec<Mode>,
    /// Name of the fastest one of `modes`.
    pub fastest: &'static str,
    /// Smallest power of two from 64 to 2^40 for which several boards are faster than one; `None` if no such power exists.
    pub from_tokens: Option<f64>,
    /// One query over all keys: one board, and `decode`.
    pub one_query: Vec<Mode>,
}

impl Cluster {
    /// Predicts the times of `tokens` tokens at these costs of a board.
    #[must_use]
    pub fn predict(&self, costs: &Costs, tokens: f64) -> Together {
        let modes = self.modes(costs, tokens);
        let from_tokens = (6..=40).map(|power| f64::from(power).exp2()).find(|n| {
            let modes = self.modes(costs, *n);
            fastest(&modes) != modes[0].mode
        });
        Together {
            boards: self.boards,
            latency_seconds: self.link.latency,
            bytes_per_second: self.link.rate * 1e9,
            fastest: fastest(&modes),
            modes,
            from_tokens,
            one_query: self.one_query(costs, tokens),
        }
    }

    fn message(&self, bytes: f64) -> f64 {
        self.link.latency + bytes / (self.link.rate * 1e9)
    }

    fn modes(&self, costs: &Costs, n: f64) -> Vec<Mode> {
        let (p, heads, dim) = (self.boards as f64, costs.heads as f64, costs.dim as f64);
        let (c, l) = (self.division.0 as f64, self.division.1 as f64);
        let model = costs.forward.time;
        let alone = model.formula(n);
        let one = Mode { mode: "one board", seconds: alone, compute_seconds: alone, sent_bytes: 0.0 };
        let part = n / p;
        let (step, keys) = (model.formula(part), 2.0 * part * heads * dim * costs.element as f64);
        // An answer and the log-sum-exp of each row.
        let answers = part * heads * (dim + 1.0) * F32;
        let ring = Mode {
            mode: "ring",
            seconds: (p - 1.0) * (step.max(self.message(keys)) + self.message(answers)) + step,
            compute_seconds: p * step,
            sent_bytes: (p - 1.0) * (p * keys + answers),
        };
        let rounds = (c / p).ceil();
        let task = model.square * n * n / c + model.linear * l * n / c + model.constant;
        let states = l * n / c * heads * (dim + 2.0) * F32;
        let others = (c - rounds).max(0.0);
        let quorum = Mode {
            mode: "quorum",
            seconds: rounds * task + others * self.message(states),
            compute_seconds: rounds * task,
            sent_bytes: others * states,
        };
        vec![one, ring, quorum]
    }

    fn one_query(&self, costs: &Costs, n: f64) -> Vec<Mode> {
        let (p, model) = (self.boards as f64, costs.forward.time);
        let compute = |keys: f64| model.square * keys + model.linear + model.constant;
        let state = costs.heads as f64 * (costs.dim as f64 + 2.0) * F32;
        let alone = compute(n);
        let steps = 2.0 * p.log2().ceil();
        vec![
            Mode { mode: "one board", seconds: alone, compute_seconds: alone, sent_bytes: 0.0 },
            Mode {
                mode: "decode",
                seconds: compute(n / p) + steps * self.message(state),
                compute_seconds: compute(n / p),
                sent_bytes: 2.0 * (p - 1.0) * state,
            },
        ]
    }
}

/// Returns the name of the fastest mode, the first one of equals.
fn fastest(modes: &[Mode]) -> &'static str {
    modes.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds)).map_or("none", |mode| mode.mode)
}

/// Prints the predicted times.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn print(out: &mut impl Write, tokens: f64, of: &Together) -> Result<()> {
    let n = count(tokens);
    writeln!(out, "\n{} boards, {n} tokens; the fastest is: {}", of.boards, of.fastest)?;
    for (what, modes) in [("all queries", &of.modes), ("one query", &of.one_query)] {
        for mode in modes {
            writeln!(
                out,
                "  {what:<12} {:<10} {:>12}, of it {:>12} of computation; sent {}",
                mode.mode,
                time(mode.seconds),
                time(mode.compute_seconds),
                size(mode.sent_bytes)
            )?;
        }
    }
    match of.from_tokens {
        Some(from) => writeln!(out, "  several boards are faster than one from about {} tokens", count(from)),
        None => writeln!(out, "  one board is the fastest up to {} tokens", count(40f64.exp2())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sets;
    use super::*;

    #[test]
    fn the_network_decides_which_mode_is_fastest() {
        let costs = sets::named("jetson-tx2").unwrap();
        let with = |boards, latency, rate| Cluster { boards, link: Link { latency, rate }, division: (7, 3) };
        let t = costs.forward.time;
        let n = 65536.0;
        // A network that costs nothing: the ring computes p parts of the pairs at once.
        let free = with(4, 0.0, 1e12).predict(&costs, n);
        let step = t.formula(n / 4.0);
        assert!((free.modes[1].seconds / (4.0 * step) - 1.0).abs() < 1e-9, "{free:?}");
        assert_eq!((free.modes[0].seconds, free.fastest), (t.formula(n), "ring"));
        // A slow network hides all computation but the last step.
        let slow = with(2, 0.5, 1e-6).predict(&costs, n);
        let (heads, dim) = (costs.heads as f64, costs.dim as f64);
        let keys = n * heads * dim * costs.element as f64 / 1e3;
        let answers = n / 2.0 * heads * (dim + 1.0) * 4.0 / 1e3;
        let wanted = 0.5 + keys + 0.5 + answers + t.formula(n / 2.0);
        assert!((slow.modes[1].seconds / wanted - 1.0).abs() < 1e-9, "{slow:?}");
        assert_eq!(slow.fastest, "one board");
        // From the predicted number of tokens on, and not at half of it, several boards are faster.
        let cluster = with(3, 1e-4, 0.1);
        let from = cluster.predict(&costs, n).from_tokens.unwrap();
        assert_ne!(cluster.predict(&costs, from).fastest, "one board");
        assert_eq!(cluster.predict(&costs, from / 2.0).fastest, "one board");
        // A single query gains nothing from boards that wait longer than it computes.
        let [one, decode] = with(2, 1e3, 1.0).predict(&costs, n).one_query[..] else { panic!() };
        assert!(one.seconds < decode.seconds && one.compute_seconds > decode.compute_seconds);
    }
}
