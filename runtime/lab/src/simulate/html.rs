//! Renders the report as one self-contained page: tables, curves, and the hybrid tree with its timeline.

use super::beside::MethodCost;
use super::costs::Costs;
use super::measure::{Check, Kernels};
use super::schedule::Schedule;
use super::study::{self, Request, Simulation};
use super::text::{self, Printed, count, size, time};
use crate::model::{Division, Sample};
use askama::Template;
use elsa_cli::error::Error;
use elsa_cli::picture::{Axis, Bar, COLORS, Picture, Point, Quantity, Raw, WIDTH, chart};

/// Number of intervals between the points of a curve.
const POINTS: i32 = 24;
/// Maximum number of first-level tasks in the drawing of a tree.
const WIDE: usize = 64;
/// Height of a task in the drawing of a tree.
const HEIGHT: f64 = 28.0;
/// Distance between the upper edges of two levels in the drawing of a tree.
const LEVEL: f64 = 36.0;

/// Axis of tokens.
const TOKENS: Axis = Axis::log("tokens");
/// Axis of the memory of a call.
const MEMORY: Axis = Axis::log("memory").of(Quantity::Bytes);
/// Axis of times.
const TIME: Axis = Axis::log("time").of(Quantity::Seconds);
/// Axis of bytes.
const BYTES: Axis = Axis::log("bytes").of(Quantity::Bytes);

/// Variables of the page's template.
#[derive(Template)]
#[template(path = "simulate.html")]
struct Page<'a> {
    version: &'static str,
    tokens: String,
    costs: &'a Costs,
    origin: &'static str,
    facts: Vec<(&'static str, String)>,
    /// Pictures below a heading. A heading without pictures is left out.
    groups: Vec<(&'static str, Vec<Picture>)>,
    /// Description and drawing of the hybrid tree.
    tree: Option<(String, Picture)>,
    levels: Vec<Vec<String>>,
    shares: Vec<Vec<String>>,
    optimum: Vec<(String, [String; 4])>,
    parts: [&'static str; 8],
    checks: &'a [Check],
    text: String,
}

/// Renders the page.
///
/// # Errors
/// Returns an error if the template fails. The page is rendered in memory, so no I/O can fail.
pub fn page(of: &Printed<'_>) -> Result<String, Error> {
    let Printed { costs, request, report, checks, kernels, ran } = *of;
    let mut text = Vec::new();
    text::print(&mut text, of)?;
    let hybrid = report.study.hybrid.as_ref();
    let mut groups = vec![
        ("Streaming and quorums", beside(costs, request)),
        ("Streaming and quorums, run on this machine", ran_here(ran)),
        ("The fits", fits(costs)),
        ("Forward and backward, naive and streaming", figures(report, kernels)),
        ("Memory in time", hybrid.map(memory).into_iter().flatten().collect()),
    ];
    groups.retain(|(_, pictures)| !pictures.is_empty());
    let page = Page {
        version: env!("CARGO_PKG_VERSION"),
        tokens: count(request.tokens),
        costs,
        origin: costs.origin.name(),
        facts: facts(costs, request, report),
        groups,
        tree: hybrid.and_then(tree),
        levels: levels(report),
        shares: shares(report),
        optimum: optimum(report),
        parts: text::PARTS,
        checks,
        text: String::from_utf8_lossy(&text).into_owned(),
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

fn facts(costs: &Costs, request: &Request<'_>, report: &Simulation) -> Vec<(&'static str, String)> {
    let streaming = &report.streaming;
    let mut facts = vec![
        ("Machine", costs.title.clone()),
        ("Source", costs.source.clone()),
        (
            "Tensors",
            format!("{} of {}, {} bits an element", text::heads(costs.heads), costs.dim, costs.element * 8),
        ),
        ("Memory", size(request.limit)),
    ];
    facts.extend(streaming.hours.iter().map(|(name, hours)| match *name {
        "forward" => ("Plain streaming, forward", time(hours * 3600.0)),
        _ => ("Plain streaming, backward", time(hours * 3600.0)),
    }));
    facts.push(("Its resident rows", count(streaming.resident_rows)));
    facts.push(("It moves", size(streaming.moved_bytes)));
    facts
}

/// Returns the tooltip of a point on `axes`.
fn tip(axes: [Axis; 2], x: f64, y: f64) -> String {
    format!("{}: {}", axes[0].quantity.label(x), axes[1].quantity.label(y))
}

/// Draws the curve of the function `of`, evaluated at each argument in `places`.
fn curve(name: &str, places: &[f64], [x, y]: [Axis; 2], of: impl Fn(f64) -> Option<f64>) -> Raw {
    let point = |at: f64| {
        let cost = of(at).filter(|cost| cost.is_finite() && *cost > 0.0)?;
        Some(Point::new(at, cost, tip([x, y], at, cost)))
    };
    Raw::new(name, places.iter().filter_map(|x| point(*x)))
}

/// Returns arguments from `low` to `high` with equal ratios between neighbours.
fn places(low: f64, high: f64) -> Vec<f64> {
    (0..=POINTS).map(|i| low * (high / low).powf(f64::from(i) / f64::from(POINTS))).collect()
}

/// Draws modelled time, peak bytes and bytes moved, against the number of tokens and against the memory.
fn beside(costs: &Costs, request: &Request<'_>) -> Vec<Picture> {
    let pass = &costs.forward;
    let division = |tokens: f64| Division::new(tokens, request.division.0, request.division.1);
    // Smallest number of levels at which a task fits in memory.
    let level =
        |tokens: f64, limit: f64| study::first_level(pass.memory, division(tokens), limit).map(f64::from);
    let streamed =
        |tokens: f64, limit: f64| study::streaming(costs, tokens, &Request { limit, ..*request }).ok();
    let dense = |n: f64, m: f64| study::dense(pass.time, division(n), level(n, m)?);
    let skipping = |n: f64, m: f64| Some(study::skipping(pass.time, division(n), level(n, m)?));
    let moved = |n: f64, m: f64| Some(study::moved(costs, division(n), level(n, m)?));
    let task = |n: f64, m: f64| Some(pass.memory.at(division(n).task_tokens(level(n, m)?)));
    let seconds = |n: f64, _: f64| pass.time.at(n);
    /// Function that returns a cost for a number of tokens and a number of bytes of memory.
    type Of<'a> = &'a dyn Fn(f64, f64) -> Option<f64>;
    /// Title, axis of the cost and curves of a chart.
    type Drawn<'a> = (&'static str, Axis, &'a [(&'static str, Of<'a>)]);
    let drawn: [Drawn<'_>; 3] = [
        (
            "Time",
            TIME,
            &[
                ("streaming", &seconds),
                ("quorums, dense", &dense),
                ("quorums, masked tiles skipped", &skipping),
            ],
        ),
        (
            "Peak bytes",
            BYTES,
            &[
                ("streaming", &|n, m| Some(streamed(n, m)?.peak_bytes)),
                ("quorums, a task", &task),
                ("whole, in memory", &|n, _| Some(pass.memory.at(n))),
            ],
        ),
        (
            "Bytes moved",
            BYTES,
            &[("streaming", &|n, m| Some(streamed(n, m)?.moved_bytes)), ("quorums", &moved)],
        ),
    ];
    let tokens = places((request.tokens / 1e4).max(1.0), request.tokens * 10.0);
    let budgets = places(request.limit / 256.0, request.limit * 16.0);
    let mut charts = Vec::new();
    for (title, cost, curves) in drawn {
        let axes = [TOKENS, cost];
        let by_tokens =
            curves.iter().map(|(name, of)| curve(name, &tokens, axes, |n| of(n, request.limit))).collect();
        let title_n = format!("{title} in {} of memory", size(request.limit));
        charts.extend(chart(title_n, axes, by_tokens, true));
        let axes = [MEMORY, cost];
        let by_budget =
            curves.iter().map(|(name, of)| curve(name, &budgets, axes, |m| of(request.tokens, m))).collect();
        let title_m = format!("{title} of {} tokens", count(request.tokens));
        charts.extend(chart(title_m, axes, by_budget, true));
    }
    charts
}

/// Draws charts of the costs that both methods had on this machine: against the number of tokens for each budget, and
/// against the budget for the largest number of tokens.
fn ran_here(all: &[MethodCost]) -> Vec<Picture> {
    let Some(largest) = all.iter().map(|ran| ran.tokens).max() else { return Vec::new() };
    let mut shares: Vec<f64> = Vec::new();
    for ran in all {
        if !shares.contains(&ran.share) {
            shares.push(ran.share);
        }
    }
    /// Function that returns the quantity that a chart shows for a run.
    type Of = fn(&MethodCost) -> f64;
    let drawn: [(&str, Axis, Of); 3] = [
        ("Time", TIME, |ran| ran.seconds),
        ("Peak bytes", BYTES, |ran| ran.peak_bytes),
        ("Bytes moved", BYTES, |ran| ran.moved_bytes),
    ];
    let mut charts = Vec::new();
    for (title, cost, of) in drawn {
        let point = |ran: &MethodCost, x: f64| {
            let y = of(ran);
            let shown = cost.quantity.label(y);
            let tip = format!("{} tokens in {}, {} levels: {shown}", ran.tokens, size(ran.budget), ran.level);
            Point::new(x, y, tip)
        };
        let mut by_tokens = Vec::new();
        for share in &shares {
            for method in ["streaming", "quorums"] {
                let chosen = all.iter().filter(|ran| ran.share == *share && ran.method == method);
                let points = chosen.map(|ran| point(ran, ran.tokens as f64));
                by_tokens.push(Raw::new(format!("{method}, {share} of the tensors"), points));
            }
        }
        charts.extend(chart(format!("{title}, measured"), [TOKENS, cost], by_tokens, true));
        let by_budget = ["streaming", "quorums"].map(|method| {
            let chosen = all.iter().filter(|ran| ran.tokens == largest && ran.method == method);
            Raw::new(method, chosen.map(|ran| point(ran, ran.budget)))
        });
        let title = format!("{title} of {largest} tokens, measured");
        charts.extend(chart(title, [MEMORY, cost], by_budget.into(), true));
    }
    charts
}

/// Draws fits and their samples.
fn fits(costs: &Costs) -> Vec<Picture> {
    let axes = [TOKENS, TIME];
    let mut charts = Vec::new();
    for (name, pass) in costs.passes(true) {
        let sizes = pass.times.iter().map(|sample| sample.tokens);
        let (low, high) = sizes.fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        let places = if high > 0.0 { places(low / 64.0, high * 4.0) } else { places(1e3, 1e7) };
        let mut curves = vec![curve("not negative", &places, axes, |x| pass.time.at(x))];
        if let Some((time, _)) = pass.printed {
            curves.push(curve("as printed", &places, axes, |x| time.at(x)));
        }
        let measured = pass
            .times
            .iter()
            .map(|Sample { tokens, value }| Point::new(*tokens, *value, tip(axes, *tokens, *value)));
        curves.push(Raw { name: "measured".into(), points: measured.collect(), faint: true });
        charts.extend(chart(format!("Time of a call, {name}"), axes, curves, true));
    }
    charts
}

/// Draws the paper's figures 5 and 6: naive against streaming kernel, and forward against backward pass.
fn figures(report: &Simulation, kernels: &[Kernels]) -> Vec<Picture> {
    let names = ["forward", "backward"];
    let of_both = |of: fn(&study::Both) -> [f64; 2], cost: Axis| -> Vec<Raw> {
        let one = |i: usize| {
            let point = |both: &study::Both| {
                let (x, y) = (both.tokens, of(both)[i]);
                Point::new(x, y, tip([TOKENS, cost], x, y))
            };
            Raw::new(names[i], report.both.iter().map(point))
        };
        vec![one(0), one(1)]
    };
    let of_kernels = |of: &dyn Fn(&Kernels) -> [Option<f64>; 2], cost: Axis| -> Vec<Raw> {
        let one = |i: usize, name: &str| {
            let point = |kernel: &Kernels| {
                let (x, y) = (kernel.tokens as f64, of(kernel)[i]?);
                Some(Point::new(x, y, tip([TOKENS, cost], x, y)))
            };
            Raw::new(name, kernels.iter().filter_map(point))
        };
        vec![one(0, "naive"), one(1, "streaming")]
    };
    let drawn = [
        ("Bytes, forward and backward", BYTES, of_both(|both| both.bytes, BYTES)),
        ("Time, forward and backward", TIME, of_both(|both| both.seconds, TIME)),
        ("Bytes, naive and streaming kernel", BYTES, of_kernels(&|kernel| kernel.bytes.map(Some), BYTES)),
        ("Time, naive and streaming kernel", TIME, of_kernels(&|kernel| kernel.seconds, TIME)),
    ];
    let of = |(title, cost, raw): (&str, Axis, Vec<Raw>)| chart(title.into(), [TOKENS, cost], raw, true);
    drawn.into_iter().filter_map(of).collect()
}

/// Draws the memory in use against time, as steps.
fn memory(schedule: &Schedule) -> Option<Picture> {
    let steps = &schedule.at_once.steps;
    let points = steps.windows(2).flat_map(|two| {
        [two[0].seconds, two[1].seconds].map(|seconds| Point::new(seconds, two[0].bytes, String::new()))
    });
    let raw = vec![Raw::new("in use", points)];
    let axes = [Axis::linear("time").of(Quantity::Seconds), Axis::linear("memory").of(Quantity::Bytes)];
    chart("Hybrid schedule, at once".into(), axes, raw, false)
}

/// Describes and draws the hybrid tree. It has one row per level. The tasks into which a task is divided are below it.
/// `None` for a tree with too many tasks.
fn tree(schedule: &Schedule) -> Option<(String, Picture)> {
    let tree = schedule.tree;
    let whole = Some(tree.chunks.pow(tree.base)).filter(|whole| *whole <= WIDE)?;
    let mut picture =
        Picture { title: "Tasks by level".into(), area: [0.0, 0.0, WIDTH, 0.0], ..Picture::default() };
    let mut row = |level: usize, count: usize, of: usize, divided: usize| {
        let width = WIDTH / of as f64;
        let name = format!("level {}", tree.base as usize + level);
        let top = 8.0 + LEVEL * level as f64;
        for i in 0..count {
            let (color, word) = if i < divided { (COLORS - 1, ", divided") } else { (level, "") };
            let (x, tip) = (i as f64 * width, format!("{name}, task {i}{word}"));
            picture.bars.push(Bar { x, y: top, width: 0.92 * width, height: HEIGHT, color, tip });
        }
        if count > divided {
            picture.legend.push((level, name));
        }
        if count > 0 {
            picture.area[3] = top + HEIGHT;
        }
    };
    row(0, whole, whole, tree.divided);
    row(1, tree.divided * tree.chunks, whole * tree.chunks, tree.again);
    row(2, tree.again * tree.chunks, whole * tree.chunks * tree.chunks, 0);
    if tree.divided > 0 {
        picture.legend.push((COLORS - 1, "divided further".into()));
    }
    let [a, b, c] = schedule.leaves;
    let words = format!(
        "{whole} tasks of level {}, of which {} are divided, and {} of theirs again: {a} + {b} + {c} leaves, {} at once, {} one by one.",
        tree.base,
        tree.divided,
        tree.again,
        time(schedule.at_once.seconds),
        time(schedule.serial)
    );
    Some((words, picture))
}

/// Formats the costs at each level of division, as in the paper's table 1.
fn levels(report: &Simulation) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for level in &report.levels {
        for cost in &level.passes {
            let hours = |hours: f64| time(hours * 3600.0);
            let paper = cost.paper;
            rows.push(vec![
                level.level.to_string(),
                cost.pass.into(),
                count(level.task_tokens),
                count(level.tasks),
                count(level.copies),
                format!("{:.2}", level.dense_work),
                size(level.moved_bytes),
                format!("{}{}", size(cost.bytes), if cost.fits { "" } else { ", too much" }),
                hours(cost.dense_hours),
                hours(cost.hours),
                cost.printed_fit_hours.map_or_else(|| "–".into(), hours),
                paper.map_or_else(|| "–".into(), |paper| format!("{:.2} GiB", paper.gib)),
                paper.map_or_else(|| "–".into(), |paper| format!("{:.0} h", paper.hours)),
                paper.map_or_else(|| "–".into(), |paper| text::percent(paper.hours_off)),
            ]);
        }
    }
    rows
}

/// Formats modelled and printed shares of the time, as in the paper's table 2.
fn shares(report: &Simulation) -> Vec<Vec<String>> {
    let row = |shares: &study::Shares| {
        let both = shares.modelled.iter().zip(shares.printed);
        let cells = both.map(|(modelled, printed)| format!("{modelled:.2} / {printed:.2}"));
        std::iter::once(shares.level.to_string()).chain(cells).collect()
    };
    report.shares.iter().map(row).collect()
}

fn optimum(report: &Simulation) -> Vec<(String, [String; 4])> {
    let of = |found: &study::Optimum| {
        let level = |level: Option<u32>| level.map_or_else(|| "–".into(), |level| level.to_string());
        let negative =
            found.negative_below.map_or_else(|| "nowhere".into(), |x| format!("below {x:.0} tokens"));
        let best = format!("{} / {}", level(found.best_level), level(found.best_level_at_once));
        (
            format!("{}, {}", found.pass, found.fit),
            [found.serial.clone(), found.parallel.clone(), best, negative],
        )
    };
    report.optimum.iter().map(of).collect()
}
