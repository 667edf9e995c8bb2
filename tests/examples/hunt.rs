//! Hunts for a violation of an error bound on every back end of the machine.
//!
//! `cargo run --release -p elsa-tests --example hunt -- [--seconds N] [--rows N] [--seed N] [--only NAME] [--threads N]
//! [--schedules]`
//!
//! Every problem is designed to be hard. Every row of every output is judged against the bound that is computed along
//! with the exact values, and against the bound that is computed from norms of the inputs. The scalar code of
//! `elsa-core` also runs inexact schedules, which freeze references, skip blocks within an error budget, or skip
//! weights below a threshold λ. Their outputs are judged against separate bounds. With `--schedules`, only these
//! schedules run. With `--only NAME`, only the back ends run whose names contain NAME, such as `--only "Tensor Cores"`.
//! If all of them are on Tensor Cores, every problem has a shape that these multiply, and most problems have outliers.
//! `--threads` problems are judged at a time, by default one for each processor. The hunt ends after `--seconds` (60 by
//! default), or after `--rows` rows over all back ends, and prints a line of findings per back end. A violation is a
//! failure.
//!
//! `--tightness` prints the ratio of bounds to errors instead, on Gaussian rows of head size 64.

#![forbid(unsafe_code)]

use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::scalar;
use elsa_oracle::bounds::{Drawn, Findings, Hunter, hunters};
use elsa_oracle::schedules::hunt::{Rule, Tally, hunt};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
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
        if hunters.is_empty() && rules.is_empty() {
            return Err(format!("--only: {name:?} is in no name of a back end on this machine"));
        }
    }
    let threads = match number("--threads")? {
        Some(threads) => threads.max(1),
        None => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    };
    let cores_only = rules.is_empty() && hunters.iter().all(Hunter::on_tensor_cores);
    let empty =
        || (vec![Findings::default(); hunters.len() + rules.len()], vec![Tally::default(); rules.len()]);
    let first = seed.unwrap_or(0);
    let (next, judged, start) = (AtomicU64::new(first), AtomicU64::new(0), Instant::now());
    let shown = Mutex::new(Instant::now());
    // Every thread takes the next seed until the hunt ends.
    let work = || {
        let (mut all, mut tallies) = empty();
        let rows_of = |all: &[Findings]| all.iter().map(|x| x.rows).sum::<u64>();
        while start.elapsed().as_secs() < seconds && judged.load(Ordering::Relaxed) < rows {
            let (seed, before) = (next.fetch_add(1, Ordering::Relaxed), rows_of(&all));
            for (hunter, found) in hunters.iter().zip(&mut all) {
                match cores_only {
                    true => {
                        let drawn = Drawn::for_tensor_cores(seed, KEYS);
                        hunter.judge(&drawn, &format!("seed {seed} for Tensor Cores"), found);
                    }
                    false => hunter.hunt(seed, KEYS, found),
                }
            }
            for ((&rule, found), tally) in rules.iter().zip(&mut all[hunters.len()..]).zip(&mut tallies) {
                hunt(rule, seed, found, tally);
            }
            let new = rows_of(&all) - before;
            let rows = judged.fetch_add(new, Ordering::Relaxed) + new;
            if let Ok(mut shown) = shown.try_lock()
                && shown.elapsed() >= PACE
            {
                *shown = Instant::now();
                eprintln!("{:4} s  {rows} rows", start.elapsed().as_secs());
            }
        }
        (all, tallies)
    };
    let (mut all, mut tallies) = empty();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    for part in parts {
        let (findings, counts) = part.map_err(|_| "a thread panicked")?;
        all.iter_mut().zip(&findings).for_each(|(all, found)| all.merge(found));
        tallies.iter_mut().zip(&counts).for_each(|(tally, more)| tally.merge(more));
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
        "{} seeds in {} s; the bound from norms claims something in {} of {} rows",
        next.into_inner() - first,
        start.elapsed().as_secs(),
        total.claimed,
        total.rows
    );
    for (hunter, found) in hunters.iter().zip(&all) {
        let Findings { rows, outliers, cancelling, with_refusals, .. } = found;
        print!(
            "{}: {outliers} of {rows} rows have outliers, {cancelling} have terms that cancel",
            hunter.name
        );
        match hunter.on_tensor_cores() {
            true => println!("; {with_refusals} are in problems with refused blocks of rows"),
            false => println!(),
        }
    }
    for (rule, Tally { recomputed, row_blocks: [of, out] }) in rules.iter().zip(&tallies) {
        println!("{}: {recomputed} rows computed again; {out} of {of} rows of blocks left out", rule.name());
    }
    total.which.iter().for_each(|which| println!("violation: {which}"));
    Ok(if total.violations == 0 && total.rows > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
