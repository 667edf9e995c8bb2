//! Costs that are known without a measurement on this machine: the paper's A100, an H200 that was measured, and
//! predictions from the profiles of boards.
//!
//! - **a100**, published. Stream-CQSA prints parabolas and lines for one head of size 128 in f16 (section 3.3). The
//!   printed parabola of the forward pass is negative below 27,985 tokens. Therefore there is also a fit without
//!   negative coefficients. This second fit is made from the five rows of the paper's table 1. Each row states the
//!   seconds that seven tasks take together.
//! - **h200**, measured with this library: eight heads of size 64 in f32.
//! - **Jetsons**, predicted. The compute time is predicted from the board's FP32 peak. The share of this peak that a
//!   kernel reaches is assumed to be the share that the same PTX reaches on the H200. A call reads and writes its bytes
//!   once, at the bandwidth of the memory. The launch of a call is assumed to take no time.

use super::costs::{Costs, GIB, Origin, Pass};
use crate::model::{Bytes, Sample, Seconds};
use elsa_cli::error::Error;
use elsa_targets::{Board, NAMES};

/// Default value of `--board`.
pub const DEFAULT: &str = "a100";
const H200: &str = "h200";

/// Number of tokens for which the paper's table 1 was computed.
pub const TOKENS: f64 = 1e9;

/// A row of the paper's tables 1 and 2. Each pair contains the value of the forward pass and the value of the backward
/// pass.
pub struct Row {
    /// Number of levels of division.
    pub level: u32,
    /// Memory per task in GiB.
    pub gib: [f64; 2],
    /// Seconds that seven tasks take together.
    pub seven: [f64; 2],
    /// Hours of all tasks together.
    pub hours: [f64; 2],
    /// Shares of the time in percent (table 2): the mask, computation and merge of the forward pass; the preparation,
    /// computation and merge of the backward pass; communication; and everything else.
    pub shares: [f64; 8],
}

/// Rows of the paper's tables 1 and 2.
pub const TABLE: [Row; 5] = [
    Row {
        level: 5,
        gib: [21.08, 41.79],
        seven: [14_260.0, 35_103.0],
        hours: [9_510.0, 23_411.0],
        shares: [0.04, 28.80, 0.02, 0.01, 70.93, 0.06, 0.13, 0.02],
    },
    Row {
        level: 6,
        gib: [9.09, 17.93],
        seven: [2_600.0, 6_442.0],
        hours: [12_138.0, 30_075.0],
        shares: [0.09, 28.53, 0.05, 0.03, 70.81, 0.14, 0.31, 0.05],
    },
    Row {
        level: 7,
        gib: [3.94, 7.68],
        seven: [478.0, 1_178.0],
        hours: [15_621.0, 38_497.0],
        shares: [0.18, 28.50, 0.08, 0.05, 70.52, 0.23, 0.38, 0.06],
    },
    Row {
        level: 8,
        gib: [1.75, 3.32],
        seven: [91.0, 221.0],
        hours: [20_817.0, 50_556.0],
        shares: [0.39, 28.15, 0.18, 0.12, 69.53, 0.52, 0.96, 0.14],
    },
    Row {
        level: 9,
        gib: [0.80, 1.43],
        seven: [18.0, 42.0],
        hours: [28_824.0, 67_256.0],
        shares: [0.90, 27.35, 0.41, 0.29, 67.34, 1.17, 2.23, 0.32],
    },
];

/// Fits of the forward and of the backward pass as the paper prints them, in seconds and GiB.
const PRINTED: [(Seconds, Bytes); 2] = [
    (
        Seconds { square: 9.37e-12, linear: 9.92e-7, constant: -3.51e-2 },
        Bytes { per_token: 1.45e-6, fixed: 8.42e-2 },
    ),
    (
        Seconds { square: 2.38e-11, linear: 4.81e-7, constant: 8.84e-2 },
        Bytes { per_token: 2.88e-6, fixed: 1.36e-2 },
    ),
];

/// Costs of a task in the paper's study of a million tokens (section 2.4), at one, two and three levels of division:
/// memory in GiB and time in seconds.
pub const STUDY: [[f64; 2]; 3] = [[52.65, 110.06], [22.56, 19.74], [4.13, 4.13]];
/// Memory in GiB and time in seconds of the undivided problem in the paper's study of a million tokens.
pub const STUDY_WHOLE: [f64; 2] = [92.53, 223.22];

/// FP32 peak of an H200 in operations per second: 132 multiprocessors with 128 lanes at 1.98 GHz, two operations per
/// cycle.
const H200_PEAK: f64 = 132.0 * 128.0 * 2.0 * 1.98e9;
/// Operations per second that this library reaches on an H200 at 8,192 tokens (docs/src/machines/h200-2026-11-26.md).
const H200_REACHED: f64 = 43.1e12;

/// Returns a pair for every board that `--board` accepts. Both entries of the pair are the name of the board.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    [DEFAULT, H200].into_iter().chain(NAMES).map(|name| (name, name))
}

/// Returns the costs of the board `name`.
///
/// # Errors
/// Returns an error for a board whose profile lacks data that a prediction needs.
pub fn named(name: &str) -> Result<Costs, Error> {
    match name {
        DEFAULT => a100(),
        H200 => h200(),
        name => predicted(name),
    }
}

fn unfit(e: crate::model::FitError) -> Error {
    Error::Argument {
        argument: "board",
        found: e.to_string(),
        allowed: "costs with enough measurements".into(),
    }
}

fn a100() -> Result<Costs, Error> {
    let whole = crate::model::Division::new(TOKENS, 7, 3);
    let pass = |of: usize| -> Result<Pass, Error> {
        let rows = |value: &dyn Fn(&Row) -> f64| -> Vec<[f64; 2]> {
            TABLE.iter().map(|row| [whole.task_tokens(f64::from(row.level)), value(row)]).collect()
        };
        let pass = Pass::fitted(&rows(&|row| row.seven[of] / 7.0), &rows(&|row| row.gib[of] * GIB))
            .map_err(unfit)?;
        let (time, Bytes { per_token, fixed }) = PRINTED[of];
        Ok(Pass { printed: Some((time, Bytes { per_token: per_token * GIB, fixed: fixed * GIB })), ..pass })
    };
    Ok(Costs {
        name: DEFAULT.into(),
        title: "NVIDIA A100, 80 GiB".into(),
        origin: Origin::Published,
        source: "Stream-CQSA (arXiv 2604.20819), table 1, fitted here without negative coefficients; beside it the fits \
                 that the paper prints"
            .into(),
        heads: 1,
        dim: 128,
        element: 2,
        limit: Some(80.0 * GIB),
        forward: pass(0)?,
        backward: Some(pass(1)?),
    })
}

/// Returns the costs of 64 heads on the A100, from the paper's study of a million tokens.
///
/// The third row of the study prints 4.13 GiB and 4.13 s. At the task size of the third row, the line through the first
/// two rows gives 9.67 GiB. The bytes are therefore fitted to the first two rows only.
///
/// # Errors
/// Never fails: the numbers are constants that can be fitted.
pub fn study() -> Result<Costs, Error> {
    let whole = crate::model::Division::new(1e6, 7, 3);
    let at = |level: usize| whole.task_tokens(level as f64 + 1.0);
    let times: Vec<[f64; 2]> = STUDY.iter().enumerate().map(|(i, row)| [at(i), row[1]]).collect();
    let bytes: Vec<[f64; 2]> = STUDY[..2].iter().enumerate().map(|(i, row)| [at(i), row[0] * GIB]).collect();
    Ok(Costs {
        source: "Stream-CQSA, section 2.4: what it estimates of 64 heads at one to three levels".into(),
        heads: 64,
        forward: Pass::fitted(&times, &bytes).map_err(unfit)?,
        backward: None,
        ..a100()?
    })
}

fn h200() -> Result<Costs, Error> {
    let (heads, dim) = (8, 64);
    let microseconds =
        [(1024.0, 60.5), (2048.0, 214.7), (4096.0, 808.5), (8192.0, 3192.5), (16384.0, 12827.7)];
    let times = microseconds.map(|(tokens, us)| [tokens, us * 1e-6]);
    // Bytes of queries, keys, values and outputs in f32.
    let bytes = microseconds.map(|(tokens, _)| [tokens, tokens * (4 * heads * dim * 4) as f64]);
    Ok(Costs {
        name: H200.into(),
        title: "NVIDIA H200".into(),
        origin: Origin::Measured,
        source: "median device times of 1,024 to 16,384 tokens (docs/src/machines/h200-2026-11-26.md); bytes are those of the tensors"
            .into(),
        heads,
        dim,
        element: 4,
        limit: Some(141e9),
        forward: Pass::fitted(&times, &bytes).map_err(unfit)?,
        backward: None,
    })
}

fn predicted(name: &str) -> Result<Costs, Error> {
    let lacks = |what: &str| Error::Argument {
        argument: "board",
        found: format!("{name}, whose profile lacks {what}"),
        allowed:
            "a board with a complete profile, as jetson-tx2, or --fit with what --measure has saved there"
                .into(),
    };
    let board = Board::named(name).map_err(|e| lacks(&e.to_string()))?;
    let (heads, dim, element) = (1usize, 64usize, 4usize);
    let gpu = &board.gpu;
    let lanes = gpu.sms.zip(gpu.lanes_per_sm).ok_or_else(|| lacks("gpu.sms or gpu.lanes_per_sm"))?;
    let mhz = f64::from(gpu.mhz.ok_or_else(|| lacks("gpu.mhz"))?);
    let bandwidth = board.memory.bandwidth_gbs.ok_or_else(|| lacks("memory.bandwidth_gbs"))? * 1e9;
    let peak = (lanes.0 * lanes.1) as f64 * 2.0 * mhz * 1e6;
    let reached = peak * (H200_REACHED / H200_PEAK);
    let per_token = (4 * heads * dim * element) as f64;
    Ok(Costs {
        name: name.into(),
        title: board.title,
        origin: Origin::Predicted,
        source: format!(
            "{:.0} GFLOP/s, which is {:.0} % of the GPU's FP32 peak, as the same PTX reaches on an H200; {:.1} GB/s of memory; \
             nobody has measured this board",
            reached / 1e9,
            100.0 * H200_REACHED / H200_PEAK,
            bandwidth / 1e9
        ),
        heads,
        dim,
        element,
        limit: board.memory.bytes.map(|bytes| bytes as f64),
        forward: Pass {
            time: Seconds {
                square: (4 * heads * dim) as f64 / reached,
                linear: per_token / bandwidth,
                constant: 0.0,
            },
            memory: Bytes { per_token, fixed: 0.0 },
            worst: None,
            times: Vec::<Sample>::new(),
            printed: None,
        },
        backward: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_costs_or_says_what_it_lacks() {
        for (name, _) in names() {
            match named(name) {
                Ok(costs) => {
                    assert_eq!(costs.name, name);
                    assert!(costs.passes(true).all(|(_, pass)| pass.time.is_sound()), "{name}");
                }
                Err(e) => assert!(e.status() == 2 && e.to_string().contains("profile lacks"), "{e}"),
            }
        }
        assert!(named("jetson-tx2").is_ok() && named(DEFAULT).is_ok() && named(H200).is_ok());
    }

    #[test]
    fn hours_of_the_table_are_its_own_seconds() {
        for Row { level, seven, hours, .. } in &TABLE {
            for (seconds, hours) in seven.iter().zip(hours) {
                // The paper prints rounded seconds and hours, so both roundings bound the deviation.
                let found = seconds * 7f64.powi(*level as i32 - 1) / 3600.0;
                assert!(
                    (found / hours - 1.0).abs() <= 0.5 / seconds + 0.5 / hours,
                    "{level}: {found} {hours}"
                );
            }
        }
    }

    #[test]
    fn the_fit_to_the_table_is_near_it() {
        let costs = named(DEFAULT).unwrap();
        for (name, pass) in costs.passes(true) {
            let [time, memory] = pass.worst.unwrap();
            assert!(time < 0.04 && memory < 0.02, "{name}: {time} {memory}");
        }
        // The third row of the study is off the line through the other two.
        let study = study().unwrap();
        let third = study.forward.memory.at(1e6 * 27.0 / 343.0) / GIB;
        assert!((third - 9.67).abs() < 0.02 && study.forward.worst.unwrap()[0] < 0.15, "{third} {study:?}");
    }
}
