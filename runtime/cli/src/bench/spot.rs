//! A short check of 16 points against the last saved table of this board: two points of correctness and fourteen of
//! speed.
//!
//! The points of speed are rows of the default grid, so `elsa bench --save` creates the table. A point of speed passes
//! if the relative increase of its latency over the recorded latency is at most the sum of the noise of both runs, or
//! at most the scatter of all changes. A slower point is measured again, up to twice, after all other points.

use super::args::BOTH;
use super::compare::{Change, Verdict, change, same, scatter};
use super::csv::{self, Row};
use super::grid::{COLUMNS, Case, cell};
use super::measure::Measured;
use super::method::{Algorithm, ELSA, MATH};
use super::save;
use crate::error::{Error, one_line};
use crate::foreign::Shown;
use crate::report::{self, object};
use crate::verdict::{BAD, GOOD, UNCLEAR};
use elsa_core::dtype::DType;
use elsa_core::telemetry::record::{Cell, Start};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A point of speed: a case and the name of a method.
type Point = (Case, &'static str);

/// Returns the cases of the points of correctness: one case whose keys fill more than one segment, and one with a mask.
#[must_use]
pub fn correctness() -> [Case; 2] {
    let case = |dtype, tokens, mask| Case { workload: None, shape: cell(1, tokens, mask), dtype };
    [case(DType::F32, 900, COLUMNS[0]), case(DType::F16, 400, COLUMNS[2])]
}

/// Returns the points of speed, which all belong to the default grid.
#[must_use]
pub fn speed() -> Vec<Point> {
    let point =
        |dtype, tokens, mask, method| (Case { workload: None, shape: cell(1, tokens, mask), dtype }, method);
    let [plain, padded, biased] = COLUMNS;
    let of = |dtype| {
        [
            point(dtype, 64, plain, ELSA),
            point(dtype, 196, plain, ELSA),
            point(dtype, 400, plain, ELSA),
            point(dtype, 400, padded, ELSA),
            point(dtype, 400, biased, ELSA),
            point(dtype, 900, plain, ELSA),
            point(dtype, 900, plain, MATH),
        ]
    };
    [DType::F32, DType::F16].into_iter().flat_map(of).collect()
}

/// Returns all cases to measure, without duplicates.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for case in correctness().into_iter().chain(speed().into_iter().map(|(case, _)| case)) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// Returns the methods to measure on `case`: both methods if `case` has a point of speed for the method `math`, and
/// otherwise only the method `elsa`.
#[must_use]
pub fn methods(case: &Case) -> &'static [Algorithm] {
    if speed().contains(&(*case, MATH)) { BOTH } else { &[Algorithm::Elsa] }
}

/// Returns the last saved table of this board, with its path.
///
/// # Errors
/// Returns an error for a folder without a table or for a table that cannot be read.
pub fn record(
    given: Option<&Path>,
    target: Option<&str>,
    start: &Start,
) -> Result<(PathBuf, Vec<Row>), Error> {
    let folder = save::folder(given, target, start);
    let path = save::newest(&folder).ok_or_else(|| Error::Argument {
        argument: "spot",
        found: format!("{}: no table of this board", folder.display()),
        allowed: format!("a folder with one; elsa bench --save {} makes it", folder.display()),
    })?;
    let rows = csv::read("spot", &path)?;
    Ok((path, rows))
}

/// Converts a cell to a row of a table.
fn row(cell: &Cell) -> Row {
    Row {
        workload: cell.workload.as_deref().unwrap_or_default().to_owned(),
        shape: cell.shape.as_str().to_owned(),
        dtype: cell.dtype.as_str().to_owned(),
        method: cell.method.as_str().to_owned(),
        backend: cell.backend.as_str().to_owned(),
        kernel: cell.kernel.as_str().to_owned(),
        threads: cell.threads,
        samples: cell.samples,
        p50_ms: Some(cell.p50_ms).filter(|ms| ms.is_finite()),
        noise: cell.noise,
        clean: cell.clean,
    }
}

/// Maximum number of times that slower points are measured again. A machine that is slow for some seconds does not mean
/// that the program is slower.
pub const AGAIN: usize = 2;

/// Returns `true` if `measured` is the measurement of `method` on `case`.
fn is_of(measured: &Measured, case: &Case, method: &str) -> bool {
    let cell = &measured.cell;
    cell.shape == case.shape.to_string().as_str() && cell.dtype == case.dtype.name() && cell.method == method
}

/// Pairs each measured row with its recorded row, if there is one. Returns the scatter of the changes of latency over
/// all pairs.
fn of_all(recorded: &[Row], measured: &[Measured]) -> f64 {
    let all: Vec<Row> = measured.iter().map(|measured| row(&measured.cell)).collect();
    let known = |now: &Row| recorded.iter().find(|row| same(row, now));
    scatter(all.iter().filter_map(|now| Some((known(now)?, now))))
}

/// Returns the cases with a point of speed that is slower in `measured` than in `recorded`, the rows of the saved
/// table.
#[must_use]
pub fn slower(recorded: &[Row], measured: &[Measured]) -> Vec<Case> {
    let scatter = of_all(recorded, measured);
    let mut cases = Vec::new();
    for (case, method) in speed() {
        let now = measured.iter().find(|measured| is_of(measured, &case, method));
        let now = now.map(|measured| row(&measured.cell));
        let before = now.as_ref().and_then(|now| recorded.iter().find(|row| same(row, now)));
        let slower = now
            .as_ref()
            .zip(before)
            .is_some_and(|(now, before)| change(before, now, scatter).verdict == Verdict::Slower);
        if slower && !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// Replaces a measurement in `all` if `again` contains a clean and faster measurement of the same case and method.
pub fn keep_faster(all: &mut [Measured], again: Vec<Measured>) {
    for again in again {
        let (a, of) = (&again.cell, |b: &Cell| (b.shape.clone(), b.dtype.clone(), b.method.clone()));
        let place = all.iter_mut().find(|old| of(&old.cell) == of(a));
        if let Some(old) = place.filter(|old| a.clean && a.p50_ms < old.cell.p50_ms) {
            *old = again;
        }
    }
}

/// Prints a verdict for each point; with `json`, one object per line.
///
/// # Errors
/// Returns an error if any point failed.
pub fn judge(
    out: &mut Shown<impl Write>,
    json: bool,
    path: &Path,
    recorded: &[Row],
    measured: &[Measured],
) -> Result<(), Error> {
    let find = |case: &Case, method: &str| measured.iter().find(|measured| is_of(measured, case, method));
    // Each point has a name, the verdict (`None` if unknown), and the words that describe its measurement.
    let mut points: Vec<(String, Option<bool>, String)> = Vec::new();
    for case in correctness() {
        let (outcome, words) = match find(&case, ELSA) {
            None => (None, "refused".to_owned()),
            Some(Measured { cell, total, .. }) if total.explained.holds() && cell.certified => {
                (Some(true), format!("rel L2 {:.2e}, certified", cell.rel_l2))
            }
            Some(Measured { cell, .. }) => (Some(false), format!("rel L2 {:.2e}", cell.rel_l2)),
        };
        points.push((format!("correct {} {}", case.shape, case.dtype), outcome, words));
    }
    let scatter = of_all(recorded, measured);
    for (case, method) in speed() {
        let now = find(&case, method).map(|measured| row(&measured.cell));
        let name = format!("speed   {} {} {method}", case.shape, case.dtype);
        let before = now.as_ref().and_then(|now| recorded.iter().find(|row| same(row, now)));
        let (outcome, words) = match (&now, before) {
            (None, _) => (None, "refused, or no such method on this back end".to_owned()),
            (Some(_), None) => (None, "not in the table".to_owned()),
            (Some(now), Some(before)) => {
                let Change { ratio, verdict, .. } = change(before, now, scatter);
                let outcome = match verdict {
                    Verdict::Slower => Some(false),
                    Verdict::Faster | Verdict::Same => Some(true),
                    Verdict::Unknown => None,
                };
                let times =
                    ratio.map_or_else(String::new, |ratio| format!(", {ratio:.3} of the recorded time"));
                (outcome, format!("{}{times}", verdict.name()))
            }
        };
        points.push((name, outcome, words));
    }
    let count = |of| points.iter().filter(|(_, outcome, _)| *outcome == of).count();
    let [passed, failed, unknown] = [Some(true), Some(false), None].map(count);
    for (name, outcome, words) in &points {
        let (verdict, style) = match outcome {
            Some(true) => ("passed", GOOD),
            Some(false) => ("FAILED", BAD),
            None => ("cannot be told", UNCLEAR),
        };
        if json {
            report::json(out, &object! { what: "spot", point: name, verdict: verdict, found: words })?;
        } else {
            out.paint(style, &format!("{verdict:<14}"))?;
            writeln!(out, " {name}: {words}")?;
        }
    }
    if !json {
        let all = points.len();
        writeln!(
            out,
            "{passed} of {all} passed, {failed} failed, {unknown} cannot be told; recorded: {}",
            one_line(&path.display().to_string())
        )?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Error::Slower(format!("{failed} of {} points failed", points.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::GRID;
    use super::*;
    use crate::oracle::Total;
    use elsa_core::telemetry::record::text;

    /// Returns the measurements of a simulated run in which every case has latency `ms`.
    fn measured(ms: f64) -> Vec<Measured> {
        let of = |case: &Case, method| {
            let cell = Cell {
                shape: text(&case.shape.to_string()),
                dtype: text(case.dtype.name()),
                method: text(method),
                samples: 9,
                p50_ms: ms,
                noise: Some(0.02),
                certified: true,
                clean: true,
                ..Cell::default()
            };
            Measured { cell, total: Total::of(&[]), times: Vec::new() }
        };
        cases().iter().flat_map(|case| [ELSA, MATH].map(|method| of(case, method))).collect()
    }

    fn judged(recorded: &[Row], measured: &[Measured]) -> (Option<u8>, String) {
        let mut out = Vec::new();
        let verdict =
            judge(&mut Shown::new(&mut out, false), false, Path::new("kept.csv"), recorded, measured);
        (verdict.err().map(|e| e.status()), String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_point_has_a_verdict() {
        let recorded: Vec<Row> = measured(1.0).iter().map(|measured| row(&measured.cell)).collect();
        let (status, text) = judged(&recorded, &measured(1.02));
        assert_eq!((status, text.lines().count()), (None, 17), "{text}");
        assert!(text.contains("16 of 16 passed, 0 failed, 0 cannot be told; recorded: kept.csv"), "{text}");
        // All points are slower by more than the noise.
        let (status, text) = judged(&recorded, &measured(1.1));
        assert!(status == Some(4) && text.contains("2 of 16 passed, 14 failed"), "{text}");
        // First, points are missing from the table. Then all measurements are disturbed. Then no point is measured.
        let (status, text) = judged(&recorded[..2], &measured(9.0));
        assert!(status == Some(4) && text.matches("not in the table").count() > 10, "{text}");
        let mut disturbed = measured(9.0);
        disturbed.iter_mut().for_each(|measured| measured.cell.clean = false);
        let (status, text) = judged(&recorded, &disturbed);
        assert!(status.is_none() && text.contains("2 of 16 passed, 0 failed, 14 cannot be told"), "{text}");
        let (status, text) = judged(&recorded, &[]);
        assert!(status.is_none() && text.contains("0 of 16 passed, 0 failed, 16 cannot be told"), "{text}");
        // First, the errors of answers exceed the certificate. Then answers differ by more than rounding explains.
        let mut wrong = measured(1.0);
        wrong.iter_mut().for_each(|measured| measured.cell.certified = false);
        assert!(judged(&recorded, &wrong).1.contains("14 of 16 passed, 2 failed"));
        let mut wrong = measured(1.0);
        wrong.iter_mut().for_each(|measured| measured.total.explained.beyond = 1);
        assert_eq!(judged(&recorded, &wrong).0, Some(4));
    }

    #[test]
    fn there_are_sixteen_points_of_the_default_grid() {
        assert_eq!(correctness().len() + speed().len(), 16);
        let mut points = speed();
        points.dedup();
        assert_eq!(points.len(), 14);
        for (case, _) in points {
            assert!(GRID.contains(&case.shape.keys) && COLUMNS.contains(&case.shape.mask), "{case:?}");
        }
        assert_eq!(cases().len(), 12);
        // Every point of speed is measured. The slow method is measured only for its points of speed.
        assert!(speed().iter().all(|(case, method)| *method == ELSA || methods(case) == BOTH));
        assert_eq!(cases().iter().filter(|case| methods(case) == BOTH).count(), 2);
    }

    #[test]
    fn what_is_slower_is_measured_again_and_the_faster_time_counts() {
        let recorded: Vec<Row> = measured(1.0).iter().map(|measured| row(&measured.cell)).collect();
        let mut all = measured(1.0);
        assert_eq!(slower(&recorded, &all), []);
        let (case, method) = speed()[3];
        let place = all.iter().position(|measured| is_of(measured, &case, method)).unwrap();
        all[place].cell.p50_ms = 1.5;
        assert_eq!(slower(&recorded, &all), [case]);
        let again = |ms, clean| {
            let mut again = measured(ms);
            again.retain(|measured| is_of(measured, &case, method));
            again[0].cell.clean = clean;
            again
        };
        for (ms, clean, kept) in [(1.6, true, 1.5), (1.01, false, 1.5), (1.01, true, 1.01)] {
            keep_faster(&mut all, again(ms, clean));
            assert_eq!(all[place].cell.p50_ms, kept);
        }
        assert_eq!(slower(&recorded, &all), []);
        assert!(all.iter().enumerate().all(|(i, measured)| i == place || measured.cell.p50_ms == 1.0));
    }
}
