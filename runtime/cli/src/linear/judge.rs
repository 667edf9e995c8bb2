//! Compares outputs with the recurrence in f64, on all cores. Differences must be within the error bound of the
//! execution.

use super::truth::Truth;
use crate::error::Error;
use crate::rows::for_items;
use crate::verdict::Verdict;
use elsa_core::drift::larger;
use elsa_core::dtype::Elements;
use elsa_core::linear::bound::Executed;
use elsa_core::linear::{Inputs, Problem};
use indicatif::ProgressBar;
use serde::Serialize;

/// The results of a run, and data about the execution that computed them.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    /// Data about the execution of each sequence. The error bound is computed from these data.
    pub executed: &'a [Executed],
    /// The output, if it was computed.
    pub output: Option<Elements<'a>>,
    /// The states after the last token, if the problem has them.
    pub present: Option<&'a [f32]>,
}

/// The element whose error is the largest relative to its bound.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Worst {
    /// `out` or `present_state`.
    pub tensor: &'static str,
    /// Sequence, head, token and column of an output element; sequence, state, row and column of a state element.
    pub place: [usize; 4],
    /// Computed value.
    pub found: f64,
    /// Exact value.
    pub truth: f64,
    /// Bound on the distance between the two values.
    pub bound: f64,
}

/// Judgement of the results of a run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Judged {
    /// Number of compared elements, including those of states.
    pub elements: u64,
    /// Number of elements whose error exceeds its bound.
    pub beyond: u64,
    /// Number of elements whose bound is infinite or NaN.
    pub unclaimed: u64,
    /// Number of elements whose exact value is not finite.
    pub not_finite: u64,
    /// Largest absolute error of an element.
    pub max_abs: f64,
    /// Relative L2 error of the output: `‖dY‖ / ‖Y‖`, where `Y` is the exact output and `dY` is the error.
    pub rel_l2: f64,
    /// Largest bound on the error of an element, over output and states.
    pub bound_abs: f64,
    /// Bound on `rel_l2`.
    pub bound_l2: f64,
    /// Largest ratio of an element's error to its bound.
    pub used: f64,
    /// Largest factor by which the updates of the state amplify an error in it.
    pub gain: f64,
    /// The element with the largest ratio of error to bound.
    pub worst: Option<Worst>,
    #[serde(skip)]
    squares: [f64; 3],
}

impl Judged {
    /// Returns the verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.beyond, self.unclaimed) {
            (0, 0) => Verdict::Pass,
            (0, _) => Verdict::NoClaim,
            _ => Verdict::Fail,
        }
    }

    /// Adds the comparison of one element.
    fn element(&mut self, worst: Worst) {
        let Worst { found, truth, bound, tensor, .. } = worst;
        self.elements += 1;
        if !truth.is_finite() {
            // If the exact value is infinite, the f32 result may be NaN, because infinities can cancel. A finite result
            // is always wrong.
            self.not_finite += 1;
            self.beyond += u64::from(found.is_finite());
            return;
        }
        let error = (found - truth).abs();
        self.bound_abs = larger(self.bound_abs, bound);
        if !bound.is_finite() {
            self.unclaimed += 1;
        } else if error > bound || error.is_nan() {
            self.beyond += 1;
        }
        let used = if error == 0.0 { 0.0 } else { error / bound };
        if self.worst.is_none() || used > self.used || used.is_nan() {
            (self.used, self.worst) = (used, Some(worst));
        }
        self.max_abs = larger(self.max_abs, error);
        if tensor == "out" {
            self.squares[0] += error * error;
            self.squares[1] += truth * truth;
            self.squares[2] += bound * bound;
        }
    }

    /// Compares the results of one state of a sequence with the exact results.
    fn of(problem: &Problem, answer: &Answer<'_>, truth: &Truth) -> Judged {
        let mut judged = Judged { gain: truth.gain, ..Judged::default() };
        let output = answer
            .output
            .iter()
            .flat_map(|output| truth.rows(&problem.spec().output).map(move |row| (output, row)));
        for (output, row) in output {
            let [sequence, head, token] = row.place;
            for (column, (truth, bound)) in row.truth.iter().zip(row.error).enumerate() {
                let found = f64::from(output.get(row.at + column));
                let place = [sequence, head, token, column];
                judged.element(Worst { tensor: "out", place, found, truth: *truth, bound: *bound });
            }
        }
        if let (Some(present), Some(view)) = (answer.present, &problem.spec().present_state) {
            for row in truth.state_rows(view) {
                let [sequence, state, dim] = row.place;
                for (column, (truth, bound)) in row.truth.iter().zip(row.error).enumerate() {
                    let found = f64::from(present[row.at + column]);
                    let place = [sequence, state, dim, column];
                    judged.element(Worst {
                        tensor: "present_state",
                        place,
                        found,
                        truth: *truth,
                        bound: *bound,
                    });
                }
            }
        }
        judged
    }

    /// Adds the judgement of another state.
    fn add(&mut self, other: Judged) {
        self.elements += other.elements;
        self.beyond += other.beyond;
        self.unclaimed += other.unclaimed;
        self.not_finite += other.not_finite;
        self.max_abs = larger(self.max_abs, other.max_abs);
        if self.worst.is_none() || other.used > self.used || other.used.is_nan() {
            (self.used, self.worst) = (other.used, other.worst);
        }
        self.gain = larger(self.gain, other.gain);
        self.bound_abs = larger(self.bound_abs, other.bound_abs);
        self.squares.iter_mut().zip(other.squares).for_each(|(sum, more)| *sum += more);
    }
}

/// Judges several results for a problem whose inputs have been checked. `bar` advances by one step for each state of
/// each result.
///
/// # Errors
/// Returns an error if the system refuses memory.
pub fn judge(
    problem: &Problem,
    inputs: &Inputs<'_>,
    answers: &[Answer<'_>],
    bar: &ProgressBar,
) -> Result<Vec<Judged>, Error> {
    let (sequences, states) = (problem.sequences(), problem.state_heads());
    let places = sequences * states;
    let tasks: Vec<usize> = (0..answers.len() * places).collect();
    let found = for_items(
        &tasks,
        1,
        || (),
        |(), task| -> Result<Judged, Error> {
            let (answer, sequence) = (&answers[task / places], task % places / states);
            let executed = &answer.executed[sequence];
            let truth = Truth::bounded(problem, inputs, executed, sequence, task % states)?;
            Ok(Judged::of(problem, answer, &truth))
        },
        |count| bar.inc(count),
    );
    // Adds the judgements in the order of the states, so that the sums do not depend on the threads.
    let mut judged = vec![Judged::default(); answers.len()];
    for (task, found) in tasks.iter().zip(found) {
        judged[task / places].add(found?);
    }
    for judged in &mut judged {
        let [error, norm, bound] = judged.squares;
        let relative = |squares: f64| if squares == 0.0 { 0.0 } else { (squares / norm).sqrt() };
        (judged.rel_l2, judged.bound_l2) = (relative(error), relative(bound));
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(found: f64, truth: f64, bound: f64) -> Judged {
        let mut judged = Judged::default();
        judged.element(Worst { tensor: "out", place: [0; 4], found, truth, bound });
        judged
    }

    #[test]
    fn an_element_beyond_its_bound_fails_and_an_infinite_bound_claims_nothing() {
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        for (found, truth, bound, verdict) in [
            (1.0, 1.0, 0.0, Verdict::Pass),
            (1.1, 1.0, 0.2, Verdict::Pass),
            (1.3, 1.0, 0.2, Verdict::Fail),
            (nan, 1.0, 0.2, Verdict::Fail),
            (1.0, 1.1, nan, Verdict::NoClaim),
            (infinite, 1.0, 0.2, Verdict::Fail),
            (1.0, 2.0, infinite, Verdict::NoClaim),
            (nan, nan, nan, Verdict::Pass),
            (nan, infinite, nan, Verdict::Pass),
            (1.0, nan, nan, Verdict::Fail),
        ] {
            assert_eq!(element(found, truth, bound).verdict(), verdict, "{found} {truth} {bound}");
        }
        let mut sum = element(1.1, 1.0, 0.2);
        sum.add(element(1.3, 1.0, 0.2));
        sum.add(element(1.0, 1.0, 0.2));
        assert_eq!((sum.elements, sum.beyond, sum.verdict()), (3, 1, Verdict::Fail));
        assert!((sum.used - 1.5).abs() < 1e-9 && (sum.max_abs - 0.3).abs() < 1e-9);
        assert!(sum.worst.is_some_and(|worst| worst.found == 1.3));
    }
}
