//! Prints the report as text.

use super::beside::{MethodCost, RUNS};
use super::costs::{Costs, GIB};
use super::measure::{Check, Kernels};
use super::schedule::Schedule;
use super::study::{Cost, Level, Optimum, Request, Shares, Simulation, Study};
use crate::model::Seconds;
use elsa_cli::error::one_line;
use std::io::{Result, Write};

/// Names of the parts into which the paper's table 2 divides the time.
pub const PARTS: [&str; 8] =
    ["mask", "forward", "merge", "prepare", "backward", "merge back", "communication", "rest"];

/// Formats a number of bytes in the largest unit in which the number is at least one.
#[must_use]
pub fn size(bytes: f64) -> String {
    let units = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, power)| bytes >= (1u64 << power) as f64);
    match unit {
        Some((name, power)) => format!("{:.2} {name}", bytes / (1u64 << power) as f64),
        None => format!("{bytes:.0} B"),
    }
}

/// Formats seconds in a readable unit.
#[must_use]
pub fn time(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => "–".into(),
        s if s >= 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.2} us", s * 1e6),
    }
}

/// Formats a number of tokens as a short text with a unit such as K or M.
#[must_use]
pub fn count(n: f64) -> String {
    match n {
        n if n >= 1e15 => format!("{n:.2e}"),
        n if n >= 1e9 => format!("{:.4}G", n / 1e9),
        n if n >= 1e6 => format!("{:.4}M", n / 1e6),
        n if n >= 1e4 => format!("{:.2}K", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Formats a relative deviation in percent, with its sign.
#[must_use]
pub fn percent(off: f64) -> String {
    format!("{:+.1} %", 100.0 * off)
}

/// Formats the formula for the seconds of a call over x tokens.
#[must_use]
pub fn parabola(time: Seconds) -> String {
    let Seconds { square, linear, constant } = time;
    format!(
        "{square:.3e} x^2 {} {:.3e} x {} {:.3e} s",
        sign(linear),
        linear.abs(),
        sign(constant),
        constant.abs()
    )
}

fn sign(x: f64) -> char {
    if x < 0.0 { '-' } else { '+' }
}

/// Formats a number of heads.
#[must_use]
pub fn heads(n: usize) -> String {
    format!("{n} head{}", if n == 1 { "" } else { "s" })
}

/// Content of a printed report.
pub struct Printed<'a> {
    /// Costs that the simulation is based on.
    pub costs: &'a Costs,
    /// Parameters of the simulation.
    pub request: &'a Request<'a>,
    /// Results of the simulation.
    pub report: &'a Simulation,
    /// Checks of a fit that was made on this machine.
    pub checks: &'a [Check],
    /// Naive method compared with this library (figure 5).
    pub kernels: &'a [Kernels],
    /// Measurements of streaming and quorums on this machine.
    pub ran: &'a [MethodCost],
}

/// Prints the entire report.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn print(out: &mut impl Write, of: &Printed<'_>) -> Result<()> {
    let Printed { costs, request, report, checks, kernels, ran } = *of;
    fits(out, costs, request, checks)?;
    streaming(out, costs, request, report)?;
    if !ran.is_empty() {
        beside(out, ran)?;
    }
    levels(out, request, &report.levels)?;
    if !report.shares.is_empty() {
        shares(out, &report.shares)?;
    }
    study(out, &report.study)?;
    kernels_and_passes(out, costs, report, kernels)?;
    optima(out, &report.optimum)
}

fn fits(out: &mut impl Write, costs: &Costs, request: &Request<'_>, checks: &[Check]) -> Result<()> {
    writeln!(
        out,
        "costs      {}, {}: {}",
        one_line(&costs.title),
        costs.origin.name(),
        one_line(&costs.source)
    )?;
    let (heads, dim, bits) = (heads(costs.heads), costs.dim, costs.element * 8);
    writeln!(out, "tensors    {heads} of {dim}, {bits} bits an element; memory {}", size(request.limit))?;
    for (name, pass) in costs.passes(true) {
        let off = pass.worst.map_or_else(String::new, |[time, memory]| {
            format!("; off by at most {:.1} % and {:.1} %", 100.0 * time, 100.0 * memory)
        });
        let memory = pass.memory;
        writeln!(
            out,
            "{name:<10} {}, {:.1} x + {:.3e} bytes{off}",
            parabola(pass.time),
            memory.per_token,
            memory.fixed
        )?;
        if let Some((time, memory)) = pass.printed {
            let negative =
                time.negative_below().map_or_else(String::new, |x| format!("; negative below {x:.0} tokens"));
            let (per_token, fixed) = (memory.per_token, memory.fixed);
            writeln!(out, "  printed  {}, {per_token:.1} x + {fixed:.3e} bytes{negative}", parabola(time))?;
        }
    }
    for Check { tokens, seconds, fitted, off } in checks {
        let (seconds, fitted) = (time(*seconds), time(*fitted));
        writeln!(
            out,
            "  unseen   {tokens} tokens: {seconds} measured, {fitted} by the fit, {}",
            percent(*off)
        )?;
    }
    Ok(())
}

fn streaming(out: &mut impl Write, costs: &Costs, request: &Request<'_>, report: &Simulation) -> Result<()> {
    let streaming = &report.streaming;
    writeln!(out, "\nplain streaming of {} tokens", count(request.tokens))?;
    for (name, hours) in &streaming.hours {
        let printed = streaming.printed_fit_hours.iter().find(|(other, _)| other == name);
        let printed = printed
            .map_or_else(String::new, |(_, hours)| format!(" ({} by the printed fit)", time(hours * 3600.0)));
        writeln!(out, "  {name:<8} {}{printed}", time(hours * 3600.0))?;
    }
    let (rows, passes) = (count(streaming.resident_rows), count(streaming.passes));
    writeln!(
        out,
        "  memory   {}: {rows} resident rows of a head, {passes} passes of its keys",
        size(streaming.peak_bytes)
    )?;
    let moved =
        streaming.moved_hours.map_or_else(String::new, |hours| format!(" in {}", time(hours * 3600.0)));
    writeln!(out, "  moved    {}{moved}", size(streaming.moved_bytes))?;
    if let Some(rows) = streaming.rows_that_hide {
        writeln!(
            out,
            "  overlap  with {} or more resident rows, computing takes longer than reading",
            count(rows)
        )?;
    }
    if costs.backward.is_none() && request.backward {
        writeln!(out, "  backward not known for these costs")?;
    }
    Ok(())
}

/// Prints the measurements of streaming and quorums.
fn beside(out: &mut impl Write, all: &[MethodCost]) -> Result<()> {
    writeln!(out, "\nstreaming and quorums, run here, medians of {RUNS}; their answers agree")?;
    writeln!(
        out,
        "  {:>8} {:>11} {:<10} {:>6} {:>6} {:>12} {:>12} {:>11} {:>11}",
        "tokens", "budget", "method", "levels", "parts", "time", "model", "held", "moved"
    )?;
    for ran in all {
        let MethodCost { tokens, method, level, tasks, .. } = ran;
        let (budget, held, moved) = (size(ran.budget), size(ran.peak_bytes), size(ran.moved_bytes));
        let (seconds, modelled) = (time(ran.seconds), time(ran.modelled));
        writeln!(
            out,
            "  {tokens:>8} {budget:>11} {method:<10} {level:>6} {tasks:>6} {seconds:>12} {modelled:>12} {held:>11} {moved:>11}"
        )?;
    }
    Ok(())
}

/// Prints the costs at each level of division (the paper's table 1), followed by notes.
fn levels(out: &mut impl Write, request: &Request<'_>, levels: &[Level]) -> Result<()> {
    let (chunks, members) = request.division;
    writeln!(out, "\nquorums of c = {chunks}, l = {members} (table 1)")?;
    writeln!(
        out,
        "  {:>5} {:>10} {:>10} {:>9} {:>9} {:>11}  {:<8} {:>11} {:>12} {:>12} {:>12}  printed in the paper",
        "level",
        "tokens",
        "tasks",
        "copies",
        "work",
        "moved",
        "pass",
        "memory",
        "dense",
        "skipping",
        "printed fit"
    )?;
    for level in levels {
        for (i, cost) in level.passes.iter().enumerate() {
            let Cost { pass, bytes, fits, dense_hours, hours, .. } = cost;
            let head = if i == 0 {
                let (tokens, tasks, copies) =
                    (count(level.task_tokens), count(level.tasks), count(level.copies));
                let moved = size(level.moved_bytes);
                format!(
                    "{:>5} {tokens:>10} {tasks:>10} {copies:>9} {:>8.2}x {moved:>11}",
                    level.level, level.dense_work
                )
            } else {
                " ".repeat(59)
            };
            let hour = |hours: f64| time(hours * 3600.0);
            let printed = cost.printed_fit_hours.map_or_else(|| "–".into(), hour);
            let paper = cost.paper.map_or_else(String::new, |paper| {
                let off = (percent(paper.gib_off), percent(paper.hours_off));
                format!("{:.2} GiB ({}), {:.0} h ({})", paper.gib, off.0, paper.hours, off.1)
            });
            let beyond = if *fits { "" } else { " *" };
            let line = format!(
                "  {head}  {pass:<8} {:>11} {:>12} {:>12} {printed:>12}  {paper}{beyond}",
                size(*bytes),
                hour(*dense_hours),
                hour(*hours)
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        if let Some(hours) = level.moved_hours {
            writeln!(out, "        moving takes {}", time(hours * 3600.0))?;
        }
    }
    if levels.iter().flat_map(|level| &level.passes).any(|cost| !cost.fits) {
        writeln!(out, "  * does not fit in memory")?;
    }
    writeln!(
        out,
        "  dense: masked pairs are computed; skipping: they are not, and the work is plain attention's"
    )
}

/// Prints the modelled and the printed shares of the time (the paper's table 2).
fn shares(out: &mut impl Write, shares: &[Shares]) -> Result<()> {
    writeln!(out, "\nwhere the time goes, in percent: modelled / printed (table 2)")?;
    let names: Vec<String> = PARTS.iter().map(|name| format!("{name:>14}")).collect();
    writeln!(out, "  level{}", names.join(""))?;
    for Shares { level, printed, modelled } in shares {
        let cells = modelled.iter().zip(printed).map(|(a, b)| format!("{:>14}", format!("{a:.2} / {b:.2}")));
        writeln!(out, "  {level:>5}{}", cells.collect::<String>())?;
    }
    writeln!(
        out,
        "  printed: measured there. Modelled: computing by the fits of table 1, every other part by a line through"
    )?;
    writeln!(out, "  its five seconds, so the difference tells how linear in tokens it is")
}

fn schedule(schedule: &Schedule) -> String {
    let [a, b, c] = schedule.leaves;
    let base = schedule.tree.base;
    let leaves: Vec<String> = [a, b, c]
        .iter()
        .zip(base..)
        .filter(|(count, _)| **count > 0)
        .map(|(count, level)| format!("{count} of level {level}"))
        .collect();
    format!(
        "{}: {} one by one, {} at once in {}",
        leaves.join(" + "),
        time(schedule.serial),
        time(schedule.at_once.seconds),
        size(schedule.at_once.peak_bytes)
    )
}

/// Prints the study of a problem that is larger than memory (the paper's figures 4, 8 and 9).
fn study(out: &mut impl Write, study: &Study) -> Result<()> {
    let (tokens, heads) = (count(study.tokens), heads(study.heads));
    writeln!(out, "\n{tokens} tokens, {heads}, under {} (figures 4, 8, 9)", size(study.limit))?;
    let [bytes, seconds] = study.whole;
    writeln!(out, "  whole    {}, {} by the same fit, streamed or not", size(bytes), time(seconds))?;
    if let Some([gib, seconds]) = study.whole_printed {
        writeln!(
            out,
            "  SDPA     {gib:.2} GiB, {seconds:.2} s as printed: the same pairs by another kernel"
        )?;
    }
    for uniform in &study.uniform {
        let printed = uniform.printed.map_or_else(String::new, |[gib, s]| {
            let off = (uniform.bytes / GIB / gib - 1.0, uniform.seconds / s - 1.0);
            format!(" (printed {gib:.2} GiB {}, {s:.2} s {})", percent(off.0), percent(off.1))
        });
        let (tokens, bytes, seconds) =
            (count(uniform.task_tokens), size(uniform.bytes), time(uniform.seconds));
        writeln!(
            out,
            "  task     {tokens} tokens, {bytes}, {seconds}{printed}; {:.0} fit",
            uniform.at_a_time
        )?;
        if let Some(found) = &uniform.schedule {
            writeln!(out, "  uniform  {}", schedule(found))?;
        }
    }
    if let Some(found) = &study.hybrid {
        writeln!(out, "  hybrid   {}", schedule(found))?;
        let tree = found.tree;
        writeln!(
            out,
            "  tree     {} tasks of level {}, {} of them divided into {}, {} of these into {}",
            tree.chunks.pow(tree.base),
            tree.base,
            tree.divided,
            tree.divided * tree.chunks,
            tree.again,
            tree.again * tree.chunks
        )?;
    }
    writeln!(
        out,
        "  at once: each task keeps the speed that it has alone, as figure 4 assumes; one by one is what one GPU does"
    )
}

/// Prints the comparison of the naive with the streaming kernel (the paper's figure 5), and of the forward with the
/// backward pass (figure 6).
fn kernels_and_passes(
    out: &mut impl Write,
    costs: &Costs,
    report: &Simulation,
    kernels: &[Kernels],
) -> Result<()> {
    let (heads, dim) = (heads(costs.heads), costs.dim);
    writeln!(
        out,
        "\nnaive and streaming kernel (figure 5): plans of this library on this machine, {heads} of {dim}, f32"
    )?;
    for Kernels { tokens, bytes: [naive, ours], seconds } in kernels {
        let ratio = naive / ours;
        let (naive, ours) = (size(*naive), size(*ours));
        write!(out, "  {tokens:>7} tokens: {naive:>11} and {ours:>11}, {ratio:.1} to one")?;
        if let [Some(naive), Some(ours)] = seconds {
            write!(out, "; {} and {}, {:.2} to one", time(*naive), time(*ours), naive / ours)?;
        }
        writeln!(out)?;
    }
    if report.both.is_empty() {
        return writeln!(out, "\nforward and backward (figure 6): these costs have no backward pass");
    }
    let printed = costs.forward.printed.is_some();
    let whose = if printed { ", by the printed fits, which were made at these sizes" } else { "" };
    writeln!(out, "\nforward and backward (figure 6){whose}")?;
    for both in &report.both {
        let ([a, b], [s, t]) = (both.bytes, both.seconds);
        writeln!(
            out,
            "  {:>8} tokens: {} and {}, {:.2} to one; {} and {}, {:.2} to one",
            count(both.tokens),
            size(a),
            size(b),
            b / a,
            time(s),
            time(t),
            t / s
        )?;
    }
    Ok(())
}

/// Prints the task sizes with the lowest cost (the paper's appendix C).
fn optima(out: &mut impl Write, optima: &[Optimum]) -> Result<()> {
    writeln!(out, "\nthe size of a task that costs least (appendix C)")?;
    for found in optima {
        writeln!(out, "  {}, {} fit", found.pass, found.fit)?;
        writeln!(out, "    one at a time   {}", found.serial)?;
        writeln!(out, "    as many as fit  {}", found.parallel)?;
        let level = |level: Option<u32>| level.map_or_else(|| "–".into(), |level| level.to_string());
        let (best, at_once) = (level(found.best_level), level(found.best_level_at_once));
        writeln!(out, "    least, counted  level {best} one at a time, level {at_once} as many as fit")?;
        if let (Some(x), Some(level)) = (found.negative_below, found.negative_from_level) {
            writeln!(
                out,
                "    no claim        from level {level} on: the fit is negative below {x:.0} tokens"
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(
            (size(12.0), size(1536.0), size(80.0 * GIB)),
            ("12 B".into(), "1.50 KiB".into(), "80.00 GiB".into())
        );
        assert_eq!(
            (time(7200.0), time(0.5), time(2e-6)),
            ("2.0 h".into(), "500.000 ms".into(), "2.00 us".into())
        );
        assert_eq!((time(f64::NAN), count(1e9), count(343.0)), ("–".into(), "1.0000G".into(), "343".into()));
        let fit = Seconds { square: 9.37e-12, linear: 9.92e-7, constant: -3.51e-2 };
        assert_eq!(parabola(fit), "9.370e-12 x^2 + 9.920e-7 x - 3.510e-2 s");
    }
}
