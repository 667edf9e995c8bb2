//! Computes the numbers of `elsa-lab simulate` from given costs: the paper's tables and studies, and plain streaming
//! for comparison.

use super::costs::{Costs, GIB, Origin, Pass};
use super::schedule::{self, Schedule, Tree};
use super::sets;
use crate::model::{Bytes, Division, Extremum, Sample, Seconds, fit, optimum};
use elsa_cli::error::Error;
use serde::Serialize;

/// Number of keys in a streaming buffer.
const CHUNK: f64 = 4096.0;
/// Seconds in an hour.
const HOUR: f64 = 3600.0;
/// Maximum number of levels in the search for an optimum.
const DEEPEST: u32 = 24;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Total number of tokens.
    pub tokens: f64,
    /// Numbers of chunks: c per division and l per task.
    pub division: (usize, usize),
    /// Levels to simulate; `None` means the first level whose tasks fit, and the next four.
    pub levels: Option<&'a [u32]>,
    /// Memory limit in bytes.
    pub limit: f64,
    /// Bytes per second at which tensors arrive; `None` if transfers are not simulated.
    pub link: Option<f64>,
    /// `true` to simulate the backward pass too.
    pub backward: bool,
}

impl Request<'_> {
    /// Returns the division of `tokens` tokens by the requested numbers of chunks.
    #[must_use]
    pub fn of(&self, tokens: f64) -> Division {
        Division::new(tokens, self.division.0, self.division.1)
    }
}

/// Values that the paper prints, and the deviations of the model from them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Paper {
    /// Printed memory of a task in GiB.
    pub gib: f64,
    /// Printed hours of all tasks.
    pub hours: f64,
    /// Relative deviation of the model's memory from the printed one.
    pub gib_off: f64,
    /// Relative deviation of the model's hours from the printed ones.
    pub hours_off: f64,
}

/// Cost of a pass at one level.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// Bytes per task.
    pub bytes: f64,
    /// `true` if a task fits in memory.
    pub fits: bool,
    /// Total hours of all tasks if the kernel also computes masked pairs.
    pub dense_hours: f64,
    /// Total hours of all tasks if the kernel skips masked pairs.
    pub hours: f64,
    /// Total hours of all tasks according to the paper's printed fit, if the kernel also computes masked pairs; `None`
    /// if the predicted time is negative.
    pub printed_fit_hours: Option<f64>,
    /// Relative deviation of the printed fit's memory from the memory in table 1.
    pub printed_fit_gib: Option<f64>,
    /// Comparison with table 1, if it has a row for this cost.
    pub paper: Option<Paper>,
}

/// A level of division: a row of table 1.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// Number of levels of division.
    pub level: u32,
    /// Tokens per task.
    pub task_tokens: f64,
    /// Number of tasks.
    pub tasks: f64,
    /// Number of tasks that contain a given token. The token is moved once for each of these tasks.
    pub copies: f64,
    /// Work of a kernel that also computes masked pairs, relative to plain attention.
    pub dense_work: f64,
    /// Bytes that all tasks of the forward pass read and write.
    pub moved_bytes: f64,
    /// Hours to move `moved_bytes` over the link; `None` without a link.
    pub moved_hours: Option<f64>,
    /// Costs of each pass.
    pub passes: Vec<Cost>,
}

/// Cost of plain attention that streams keys and values past resident query rows.
#[derive(Clone, Debug, Serialize)]
pub struct Streaming {
    /// Number of resident query rows per head.
    pub resident_rows: f64,
    /// Number of passes over the keys and values of a head.
    pub passes: f64,
    /// Peak memory in bytes.
    pub peak_bytes: f64,
    /// Bytes read and written.
    pub moved_bytes: f64,
    /// Hours to move `moved_bytes` over the link; `None` without a link.
    pub moved_hours: Option<f64>,
    /// Hours of computation, by pass.
    pub hours: Vec<(&'static str, f64)>,
    /// Hours of computation according to the paper's printed fits, by pass.
    pub printed_fit_hours: Vec<(&'static str, f64)>,
    /// Smallest number of resident rows for which computation takes longer than reading.
    pub rows_that_hide: Option<f64>,
}

/// A row of table 2: shares of the time in percent.
#[derive(Clone, Debug, Serialize)]
pub struct Shares {
    /// Number of levels of division.
    pub level: u32,
    /// Shares that the paper prints.
    pub printed: [f64; 8],
    /// Shares that the model predicts.
    pub modelled: [f64; 8],
}

/// A uniform schedule of the study.
#[derive(Clone, Debug, Serialize)]
pub struct Uniform {
    /// Tokens per task.
    pub task_tokens: f64,
    /// Bytes per task.
    pub bytes: f64,
    /// Seconds per task.
    pub seconds: f64,
    /// Number of tasks that fit in memory at once.
    pub at_a_time: f64,
    /// GiB and seconds per task that the paper prints.
    pub printed: Option<[f64; 2]>,
    /// The schedule; `None` if a task does not fit in memory or if there are too many tasks.
    pub schedule: Option<Schedule>,
}

/// Study of a problem that is larger than memory.
#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// Number of heads per call.
    pub heads: usize,
    /// Number of tokens.
    pub tokens: f64,
    /// Memory limit in bytes.
    pub limit: f64,
    /// Bytes and seconds of the undivided problem.
    pub whole: [f64; 2],
    /// GiB and seconds that the paper prints for the undivided problem. The paper measured them with PyTorch's
    /// attention. For the same pairs, PyTorch's kernel takes less time than the kernel with which the paper timed the
    /// tasks.
    pub whole_printed: Option<[f64; 2]>,
    /// Uniform schedules of three successive levels.
    pub uniform: Vec<Uniform>,
    /// Hybrid schedule with the shortest time for concurrent tasks.
    pub hybrid: Option<Schedule>,
    /// Paths of the hybrid schedule's tasks, in the syntax of `elsa run --task-path`.
    pub hybrid_paths: Vec<String>,
}

/// A point of figure 6: the cost of a task in both passes.
#[derive(Clone, Debug, Serialize)]
pub struct Both {
    /// Tokens per task.
    pub tokens: f64,
    /// Memory per task in bytes: first of the forward pass, then of the backward pass.
    pub bytes: [f64; 2],
    /// Time per task in seconds: first of the forward pass, then of the backward pass.
    pub seconds: [f64; 2],
}

/// Results of appendix C for one pass and one fit.
#[derive(Clone, Debug, Serialize)]
pub struct Optimum {
    /// `forward` or `backward`.
    pub pass: &'static str,
    /// Fit from which the optimum follows: `as printed` or `not negative`.
    pub fit: &'static str,
    /// Number of tokens below which the fit is negative.
    pub negative_below: Option<f64>,
    /// Description of the optimum if one task runs at a time.
    pub serial: String,
    /// Description of the optimum if as many tasks run at once as fit in memory.
    pub parallel: String,
    /// Cheapest level of division if one task runs at a time. Only levels whose tasks fit in memory and have a positive
    /// time are compared.
    pub best_level: Option<u32>,
    /// Cheapest level of division if as many tasks run at once as fit in memory. Only levels whose tasks fit in memory
    /// and have a positive time are compared.
    pub best_level_at_once: Option<u32>,
    /// First level at which the fit is negative.
    pub negative_from_level: Option<u32>,
}

/// Complete report of a simulation.
#[derive(Clone, Debug, Serialize)]
pub struct Simulation {
    /// Costs by level (table 1).
    pub levels: Vec<Level>,
    /// Costs of plain streaming.
    pub streaming: Streaming,
    /// Rows of table 2; empty if table 2 was not made with these costs and this division.
    pub shares: Vec<Shares>,
    /// Study of a problem that is larger than memory (figures 4, 8 and 9).
    pub study: Study,
    /// Points of figure 6; empty if the costs of the backward pass are unknown.
    pub both: Vec<Both>,
    /// Results of appendix C, one for each pass and fit.
    pub optimum: Vec<Optimum>,
}

/// Returns the sizes in bytes of one query, of one key with its value, and of the state of one query. Each size is for
/// one token of one head.
fn per_token(costs: &Costs) -> (f64, f64, f64) {
    let (dim, element) = (costs.dim as f64, costs.element as f64);
    // m, S and W are f32.
    (dim * element, 2.0 * dim * element, 4.0 * (dim + 2.0))
}

/// Computes the cost of plain streaming of `tokens` tokens within the memory limit.
///
/// Heads are processed one at a time. Memory contains query rows with their states and outputs, and two buffers of keys
/// and values.
///
/// # Errors
/// Returns an error if the limit is too small for one row.
pub fn streaming(costs: &Costs, tokens: f64, request: &Request<'_>) -> Result<Streaming, Error> {
    let (query, keys, state) = per_token(costs);
    let chunk = CHUNK.min(tokens);
    let (row, buffers) = (2.0 * query + state, 2.0 * chunk * keys);
    let rows = ((request.limit - buffers) / row).floor().min(tokens);
    if rows.is_nan() || rows < 1.0 {
        return Err(Error::Argument {
            argument: "memory",
            found: format!("{} bytes", request.limit),
            allowed: format!("at least {} bytes, for two buffers of keys and one row", buffers + row),
        });
    }
    let passes = (tokens / rows).ceil();
    let heads = costs.heads as f64;
    let moved = heads * tokens * (2.0 * query + passes * keys);
    let hours = |of: &dyn Fn(&Pass) -> Option<Seconds>| -> Vec<(&'static str, f64)> {
        let passes = costs.passes(request.backward);
        passes.filter_map(|(name, pass)| Some((name, of(pass)?.at(tokens)? / HOUR))).collect()
    };
    // Reading the key and the value of one token for one head takes `keys / link` seconds. Computing the pair of this
    // key and one row takes `A / heads` seconds.
    let per_pair = costs.forward.time.square / heads;
    Ok(Streaming {
        resident_rows: rows,
        passes,
        peak_bytes: rows * row + buffers,
        moved_bytes: moved,
        moved_hours: request.link.map(|link| moved / link / HOUR),
        hours: hours(&|pass| Some(pass.time)),
        printed_fit_hours: hours(&|pass| pass.printed.map(|(time, _)| time)),
        rows_that_hide: request.link.map(|link| (keys / link / per_pair).ceil()),
    })
}

/// Returns the bytes that all tasks at a level read and write: queries, keys, values and states.
#[must_use]
pub fn moved(costs: &Costs, whole: Division, level: f64) -> f64 {
    let (query, keys, state) = per_token(costs);
    costs.heads as f64 * whole.tokens * whole.copies(level) * (query + keys + state)
}

/// Returns the total seconds of all tasks at a level if the kernel skips masked pairs. Such a kernel computes the same
/// number of pairs as plain attention.
#[must_use]
pub fn skipping(time: Seconds, whole: Division, level: f64) -> f64 {
    let Seconds { square, linear, constant } = time;
    square * whole.tokens * whole.tokens
        + linear * whole.tokens * whole.copies(level)
        + constant * whole.tasks(level)
}

/// Returns the total seconds of all tasks at a level if the kernel also computes masked pairs. Returns `None` if the
/// fitted time of a task is not positive.
#[must_use]
pub fn dense(time: Seconds, whole: Division, level: f64) -> Option<f64> {
    Some(whole.tasks(level) * time.at(whole.task_tokens(level))?)
}

/// Returns the first level whose tasks fit in `limit` bytes.
#[must_use]
pub fn first_level(memory: Bytes, whole: Division, limit: f64) -> Option<u32> {
    (0..=DEEPEST).find(|level| memory.at(whole.task_tokens(f64::from(*level))) <= limit)
}

/// Returns the row of table 1 for a level, if the table was made with these costs and this division.
fn row(costs: &Costs, request: &Request<'_>, level: u32) -> Option<&'static sets::Row> {
    let same = costs.origin == Origin::Published && request.division.0 == 7 && request.tokens == sets::TOKENS;
    sets::TABLE.iter().find(|row| same && row.level == level)
}

fn level(costs: &Costs, request: &Request<'_>, level: u32) -> Level {
    let whole = request.of(request.tokens);
    let at = f64::from(level);
    let tokens = whole.task_tokens(at);
    let paper = row(costs, request, level);
    let cost = |(i, (name, pass)): (usize, (&'static str, &Pass))| {
        let bytes = pass.memory.at(tokens);
        let dense_hours = dense(pass.time, whole, at).unwrap_or(f64::NAN) / HOUR;
        Cost {
            pass: name,
            bytes,
            fits: bytes <= request.limit,
            dense_hours,
            hours: skipping(pass.time, whole, at) / HOUR,
            printed_fit_hours: pass.printed.and_then(|(time, _)| Some(dense(time, whole, at)? / HOUR)),
            printed_fit_gib: pass
                .printed
                .zip(paper)
                .map(|((_, memory), paper)| memory.at(tokens) / GIB / paper.gib[i] - 1.0),
            paper: paper.map(|paper| Paper {
                gib: paper.gib[i],
                hours: paper.hours[i],
                gib_off: bytes / GIB / paper.gib[i] - 1.0,
                hours_off: dense_hours / paper.hours[i] - 1.0,
            }),
        }
    };
    let moved_bytes = moved(costs, whole, at);
    Level {
        level,
        task_tokens: tokens,
        tasks: whole.tasks(at),
        copies: whole.copies(at),
        dense_work: whole.dense_work(at),
        moved_bytes,
        moved_hours: request.link.map(|link| moved_bytes / link / HOUR),
        passes: costs.passes(request.backward).enumerate().map(cost).collect(),
    }
}

/// Computes table 2. The seconds of the two computations come from the fits of table 1. The work of every other part
/// should be linear in the number of tokens, so a line is fitted to the part's five printed values. The deviations from
/// this line show how linear the part is.
fn shares(costs: &Costs, request: &Request<'_>) -> Vec<Shares> {
    let Some(backward) = costs.backward.as_ref().filter(|_| row(costs, request, 5).is_some()) else {
        return Vec::new();
    };
    let whole = request.of(sets::TOKENS);
    let tokens = |row: &sets::Row| whole.task_tokens(f64::from(row.level));
    let part = |i: usize| -> Box<dyn Fn(f64) -> f64> {
        let time = match i {
            1 => Some(costs.forward.time),
            4 => Some(backward.time),
            _ => None,
        };
        if let Some(time) = time {
            return Box::new(move |x| 7.0 * time.formula(x));
        }
        let samples: Vec<Sample> = sets::TABLE
            .iter()
            .map(|row| Sample {
                tokens: tokens(row),
                value: row.shares[i] / 100.0 * (row.seven[0] + row.seven[1]),
            })
            .collect();
        let line = fit::fit(&samples, |x| [x, 1.0]).map_or([0.0; 2], |fit| fit.coefficients);
        Box::new(move |x| line[0] * x + line[1])
    };
    let parts: Vec<_> = (0..8).map(part).collect();
    let of = |row: &sets::Row| {
        let seconds: Vec<f64> = parts.iter().map(|part| part(tokens(row))).collect();
        let all: f64 = seconds.iter().sum();
        let mut modelled = [0.0; 8];
        for (share, seconds) in modelled.iter_mut().zip(&seconds) {
            *share = 100.0 * seconds / all;
        }
        Shares { level: row.level, printed: row.shares, modelled }
    };
    sets::TABLE.iter().map(of).collect()
}

/// Computes the study of figures 4, 8 and 9. The problem has a million tokens, or the requested number of tokens if
/// that is smaller. The memory limit is too small for the undivided problem.
fn study(costs: &Costs, request: &Request<'_>) -> Result<Study, Error> {
    let published = costs.origin == Origin::Published && request.division.0 == 7 && request.tokens >= 1e6;
    let with_heads;
    let costs = if published {
        with_heads = sets::study()?;
        &with_heads
    } else {
        costs
    };
    let tokens = request.tokens.min(1e6);
    let whole = request.of(tokens);
    let Pass { time, memory, .. } = costs.forward;
    let bytes = memory.at(tokens);
    // If the undivided problem fits in the limit, the limit is replaced by the paper's share of the problem's bytes.
    let limit = if request.limit < bytes { request.limit } else { bytes * 80.0 / sets::STUDY_WHOLE[0] };
    let cost = |level: u32| {
        let x = whole.task_tokens(f64::from(level));
        Some([memory.at(x), time.at(x)?])
    };
    let first = first_level(memory, whole, limit).unwrap_or(1).max(1);
    let uniform = (first..first + 3).map(|base| {
        let x = whole.task_tokens(f64::from(base));
        let tree = Tree { chunks: request.division.0, base, divided: 0, again: 0 };
        let few = whole.tasks(f64::from(base)) <= 1e5;
        Uniform {
            task_tokens: x,
            bytes: memory.at(x),
            seconds: time.at(x).unwrap_or(f64::NAN),
            at_a_time: (limit / memory.at(x)).floor(),
            printed: sets::STUDY.get(base as usize - 1).copied().filter(|_| published),
            schedule: few.then(|| schedule::of(tree, limit, cost)).flatten(),
        }
    });
    let hybrid = schedule::hybrid(request.division.0, first, limit, cost);
    let written = |path: Vec<u16>| path.iter().map(u16::to_string).collect::<Vec<_>>().join(".");
    let hybrid_paths = hybrid.iter().flat_map(|found| found.tree.paths()).map(written).collect();
    Ok(Study {
        heads: costs.heads,
        tokens,
        limit,
        whole: [bytes, time.at(tokens).unwrap_or(f64::NAN)],
        whole_printed: Some(sets::STUDY_WHOLE).filter(|_| published),
        uniform: uniform.collect(),
        hybrid,
        hybrid_paths,
    })
}

/// Computes the points of figure 6: the costs of both passes for 100K to 1M tokens. The paper's printed fits are
/// preferred, because they were made at these sizes.
pub(super) fn both(costs: &Costs) -> Vec<Both> {
    let Some(backward) = &costs.backward else { return Vec::new() };
    let at = |tokens: f64| {
        let of = |pass: &Pass| {
            let (time, memory) = pass.printed.unwrap_or((pass.time, pass.memory));
            Some((memory.at(tokens), time.at(tokens)?))
        };
        let (forward, backward) = (of(&costs.forward)?, of(backward)?);
        Some(Both { tokens, bytes: [forward.0, backward.0], seconds: [forward.1, backward.1] })
    };
    (1..=10).filter_map(|i| at(f64::from(i) * 1e5)).collect()
}

/// Computes the results of appendix C with the paper's printed fit, if there is one, and with the fit without negative
/// coefficients.
fn optima(costs: &Costs, request: &Request<'_>) -> Vec<Optimum> {
    let whole = request.of(request.tokens);
    let mut all = Vec::new();
    for (pass, cost) in costs.passes(request.backward) {
        let fits =
            [cost.printed.map(|(t, m)| ("as printed", t, m)), Some(("not negative", cost.time, cost.memory))];
        for (name, time, memory) in fits.into_iter().flatten() {
            let words = |found: Extremum| {
                let at = |x: f64| format!("{x:.0} tokens, level {:.2}", whole.level_of(x));
                match found {
                    Extremum::Falls => {
                        "falls with the size of a task: the largest that fit are best".to_owned()
                    }
                    Extremum::Rises => "rises with the size of a task: no size is least".to_owned(),
                    Extremum::Minimum(x) => format!("least at {}", at(x)),
                    Extremum::Maximum(x) => format!("greatest at {}; no size is least", at(x)),
                    Extremum::Both { maximum, minimum } => {
                        format!("greatest at {}, then least at {}", at(maximum), at(minimum))
                    }
                }
            };
            let levels = || 0..=DEEPEST;
            let tokens = |level: u32| whole.task_tokens(f64::from(level));
            let best = |of: &dyn Fn(u32) -> Option<f64>| {
                let fitting = levels()
                    .filter(|level| tokens(*level) >= 1.0 && memory.at(tokens(*level)) <= request.limit);
                let costed: Vec<(u32, f64)> = fitting.filter_map(|level| Some((level, of(level)?))).collect();
                costed.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(level, _)| level)
            };
            let serial = |level: u32| dense(time, whole, f64::from(level));
            // The number of concurrent tasks is an integer, limited by memory and by the number of tasks.
            let at_once = |level: u32| {
                let held = (request.limit / memory.at(tokens(level))).floor();
                Some(serial(level)? / held.min(whole.tasks(f64::from(level))))
            };
            all.push(Optimum {
                pass,
                fit: name,
                negative_below: time.negative_below(),
                serial: words(optimum::serial(time)),
                parallel: words(optimum::parallel(time, memory)),
                best_level: best(&serial),
                best_level_at_once: best(&at_once),
                negative_from_level: levels().find(|level| time.at(tokens(*level)).is_none()),
            });
        }
    }
    all
}

/// Computes the complete report.
///
/// # Errors
/// Returns an error if the memory limit is too small for one row of a stream or for a task of any size.
pub fn report(costs: &Costs, request: &Request<'_>) -> Result<Simulation, Error> {
    let streaming = streaming(costs, request.tokens, request)?;
    let whole = request.of(request.tokens);
    let levels: Vec<u32> = match request.levels {
        Some(levels) => levels.to_vec(),
        None => {
            let deepest = costs
                .passes(request.backward)
                .map(|(_, pass)| first_level(pass.memory, whole, request.limit));
            let first = deepest.collect::<Option<Vec<u32>>>().and_then(|levels| levels.into_iter().max());
            let first = first.ok_or_else(|| Error::Argument {
                argument: "memory",
                found: format!("{} bytes", request.limit),
                allowed: format!(
                    "more than {} bytes, which a task of any size needs",
                    costs.forward.memory.fixed
                ),
            })?;
            // Tasks have at least one token.
            (first..first + 5)
                .filter(|level| *level == first || whole.task_tokens(f64::from(*level)) >= 1.0)
                .collect()
        }
    };
    Ok(Simulation {
        levels: levels.into_iter().map(|of| level(costs, request, of)).collect(),
        streaming,
        shares: shares(costs, request),
        study: study(costs, request)?,
        both: both(costs),
        optimum: optima(costs, request),
    })
}

#[cfg(test)]
mod tests;
