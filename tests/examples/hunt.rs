//! Hunts for a violation of an error bound on every back end of the machine.
//!
//! `cargo run --release -p elsa-tests --example hunt -- [--seconds N] [--rows N] [--seed N] [--only NAME] [--schedules]`
//!
//! Every problem is designed to be hard. Every row of every output is judged against the bound that is computed along
//! with the exact values, and against the bound that is computed from norms of the inputs. The scalar code of
//! `elsa-core` also runs inexact schedules, which freeze references, skip blocks within an error budget, or skip
//! weights below a threshold λ. Their outputs are judged against separate bounds. With `--schedules`, only these
//! schedules run. With `--only NAME`, only the back ends run whose names contain NAME. The hunt ends after `--seconds` (60 by default), or after `--rows` rows over all back ends, and
//! prints a line of findings per back end. A violation is a failure.
//!
//! `--tightness` prints the ratio of bounds to errors instead, on Gaussian rows of head size 64.

#![forbid(unsafe_code)]

use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::scalar;
use elsa_oracle::bounds::{Drawn, Findings, hunters};
use elsa_oracle::schedules::hunt::{Rule, Tally, hunt};
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Upper limit of the number of keys in most problems.
const KEYS: usize = 100;
/// Time between lines of progress.
const PACE: Duration = Duration::from_secs(10);

/// Returns the argument after `flag`, which is empty if `flag` is the last one.
fn text(flag: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|x| x != flag);
    arguments.next().map(|_| arguments.next().unwrap_or_default())
}

/// Returns the number after `flag`.
fn number(flag: &str) -> Result<Option<u64>, String> {
    let Some(text) = text(flag) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| format!("{flag}: {text:?}; allowed: a whole number"))
}

/// Formats the percentiles 1, 50 and 99 of the numbers in `all`.
fn spread(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    let at = |percent: usize| all.get((all.len() * percent / 100).min(all.len().saturating_sub(1)));
    let text = |x: Option<&f64>| x.map_or("none".into(), |x| format!("{x:8.1}"));
    [1, 50, 99].map(|percent| text(at(percent))).join(" ")
}

/// Prints the time that the bound from norms takes, and the ratio of bounds to errors.
fn tightness() {
    let problem = Drawn::gaussian(0, 1, 1024, 64).problem;
    let arithmetic = Arithmetic::of(&problem, scalar::executed(&problem));
    let (start, times) = (Instant::now(), 1_000_000);
    for i in 0..times {
        let query = black_box(8.0 + 1e-6 * f64::from(i));
        black_box(arithmetic.prior(1024, &Norms { query, key: 9.0, bias: 0.0 }));
    }
    println!("the bound from norms takes {:.0} ns", start.elapsed().as_nanos() as f64 / f64::from(times));
    println!(
        "{:24} {:>6} {:>16} {:>26} {:>26}",
        "back end", "keys", "bound", "largest: p1, p50, p99", "norm: p1, p50, p99"
    );
    for hunter in hunters() {
        for (keys, queries, problems) in [(1024, 64, 4), (65_536, 20, 1)] {
            let all: Vec<_> =
                (0..problems).flat_map(|seed| hunter.tightness(seed, queries, keys, 64)).collect();
            for (i, bound) in ["worst", "likely", "prior", "likely prior"].into_iter().enumerate() {
                let of = |pick: fn(&elsa_oracle::bounds::Tightness) -> [f64; 4]| {
                    spread(all.iter().map(|x| pick(x)[i]).collect())
                };
                println!("{:24} {keys:>6} {bound:>16} {} {}", hunter.name, of(|x| x.largest), of(|x| x.norm));
            }
        }
    }
}

fn main() -> Result<ExitCode, String> {
    if std::env::args().any(|x| x == "--tightness") {
        tightness();
        return Ok(ExitCode::SUCCESS);
    }
    let [seconds, rows, seed] = [number("--seconds")?, number("--rows")?, number("--seed")?];
    // If only a number of rows is given, there is no time limit.
    let seconds = seconds.unwrap_or(if rows.is_some() { u64::MAX } else { 60 });
    let rows = rows.unwrap_or(u64::MAX);
    let schedules = std::env::args().any(|x| x == "--schedules");
    let mut hunters = if schedules { Vec::new() } else { hunters() };
    let mut rules = Rule::ALL.to_vec();
    if let Some(name) = text("--only") {
        hunters.retain(|hunter| hunter.name.contains(&name));
        rules.retain(|rule| rule.name().contains(&name));
    }
    let mut all: Vec<Findings> = vec![Findings::default(); hunters.len() + rules.len()];
    let mut tallies = vec![Tally::default(); rules.len()];
    let (start, mut shown) = (Instant::now(), Instant::now());
    let sum = |all: &[Findings], of: fn(&Findings) -> u64| all.iter().map(of).sum::<u64>();
    let mut seed = seed.unwrap_or(0);
    while start.elapsed().as_secs() < seconds && sum(&all, |x| x.rows) < rows {
        for (hunter, found) in hunters.iter().zip(&mut all) {
            hunter.hunt(seed, KEYS, found);
        }
        for ((&rule, found), tally) in rules.iter().zip(&mut all[hunters.len()..]).zip(&mut tallies) {
            hunt(rule, seed, found, tally);
        }
        seed += 1;
        if shown.elapsed() >= PACE {
            shown = Instant::now();
            let (rows, bad) = (sum(&all, |x| x.rows), sum(&all, |x| x.violations));
            eprintln!("{:4} s  {rows} rows, {bad} violations", start.elapsed().as_secs());
        }
    }
    println!(
        "{:24} {:>10} {:>11} {:>10} {:>8} {:>9} {:>9} {:>9}  closest to worst; to prior",
        "back end", "rows", "components", "violations", "unlikely", "of worst", "of likely", "of prior"
    );
    let mut total = Findings::default();
    all.iter().for_each(|found| total.merge(found));
    let names = hunters.iter().map(|hunter| hunter.name.as_str());
    let names = names.chain(rules.iter().map(|rule| rule.name())).chain(["all"]);
    for (name, x) in names.zip(all.iter().chain([&total])) {
        println!(
            "{name:24} {:>10} {:>11} {:>10} {:>8} {:>9.2e} {:>9.2e} {:>9.2e}  {}; {}",
            x.rows,
            x.components,
            x.violations,
            x.unlikely,
            x.worst,
            x.likely,
            x.prior,
            x.closest[0],
            x.closest[1]
        );
    }
    println!(
        "{} seeds; the bound from norms claims something in {} of {} rows",
        seed, total.claimed, total.rows
    );
    for (rule, Tally { recomputed, row_blocks: [of, out] }) in rules.iter().zip(&tallies) {
        println!("{}: {recomputed} rows computed again; {out} of {of} rows of blocks left out", rule.name());
    }
    total.which.iter().for_each(|which| println!("violation: {which}"));
    Ok(if total.violations == 0 && total.rows > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
