//! Decides verdicts (PASS, FAIL or NO CLAIM) and explains them in words.

use super::case::Case;
use crate::report::count;
use crate::verdict::Verdict;
use serde::Serialize;
use std::fmt;

/// Returns the verdict that follows from the numbers of a case.
#[must_use]
pub fn decide(case: &Case) -> Verdict {
    let surprised = case.surprises();
    if case.beyond > 0 || case.not_finite > 0 || case.argmax_unexplained > 0 || (case.random && surprised) {
        Verdict::Fail
    } else if case.rows_without_claim > 0 || (case.assumed.is_some() && surprised) {
        Verdict::NoClaim
    } else {
        Verdict::Pass
    }
}

/// Explains the verdict on a case in one sentence.
#[must_use]
pub fn why(case: &Case) -> String {
    let Case { subject, components: all, beyond, not_finite, unlikely, .. } = case;
    match case.verdict {
        Verdict::Fail => {
            let worst = case.worst_component.as_ref().map_or_else(String::new, |w| {
                let [sequence, head, query, component] = w.at;
                format!(
                    "; the worst is component {component} of sequence {sequence}, head {head}, query {query}: \
                     {:e} in place of {:e}, which may be off by {:.1e}",
                    w.found, w.exact, w.allowed
                )
            });
            if *not_finite > 0 {
                format!(
                    "the answer of {subject} is wrong: {not_finite} numbers of it or of its probabilities are \
                     NaN or infinite where exact attention is not, or the reverse{worst}"
                )
            } else if *beyond > 0 {
                format!(
                    "the answer of {subject} is wrong: {beyond} of {all} numbers differ from exact attention by \
                     more than rounding can{worst}"
                )
            } else if case.argmax_unexplained > 0 {
                format!(
                    "the answer of {subject} is wrong: in {}, another key has the largest weight than in exact \
                     attention, by more than rounding can explain",
                    count(case.argmax_unexplained as u64, "row")
                )
            } else if case.assumed.is_some() {
                format!(
                    "the answer of {subject} is not that of FP32: {unlikely} of {all} numbers are further off than its \
                     roundings get by chance, and no tokens repeat; TF32 or 16-bit arithmetic looks like this"
                )
            } else {
                format!(
                    "the answer of {subject} is suspect: {unlikely} of {all} numbers are further off than random \
                     roundings get, although the numbers are random"
                )
            }
        }
        Verdict::NoClaim if case.rows_without_claim > 0 => {
            let range = if case.beyond_range > 0 {
                format!("{} numbers left the range of the arithmetic", case.beyond_range)
            } else {
                format!("scores reach {:.0e}, and their rounding alone may change the answer", case.score)
            };
            format!(
                "nothing is said about {} of {} rows of {subject}: {range}; smaller queries, keys or scale would \
                 allow a verdict",
                case.rows_without_claim, case.rows
            )
        }
        Verdict::NoClaim => format!(
            "nothing is said about {subject}: no number is further off than FP32 can be at worst, but {unlikely} of \
             {all} are further off than its roundings get by chance; tokens that repeat look like this, and so does \
             TF32 or 16-bit arithmetic",
        ),
        Verdict::Pass => {
            let cancels = match case.rows_cancelling {
                0 => String::new(),
                n => format!(
                    "; in {} values cancel so far that the answer is smaller than its bound, so that there the \
                     bound counts against the terms, not the answer",
                    count(n as u64, "row")
                ),
            };
            let drawn = match &case.audit {
                Some(audit) => format!(" of {} rows drawn with seed {}", case.rows, audit.seed),
                None => String::new(),
            };
            format!(
                "every number{drawn} of {subject} is as close to exact attention as rounding allows: off by at most \
                 {:.1e} of the terms that are added up, {:.1e} being proven{cancels}",
                case.error_over_terms, case.bound_over_terms
            )
        }
    }
}

/// Summary of all cases, which `--json` prints as the last line.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Kind of the record: `summary`.
    pub what: &'static str,
    /// FAIL if any case fails. Otherwise NO CLAIM if any case has no claim, and PASS if all cases pass.
    pub verdict: Verdict,
    /// Number of cases.
    pub cases: usize,
    /// Number of cases that pass.
    pub passed: usize,
    /// Names of the cases that fail.
    pub failed: Vec<String>,
    /// Names of the cases without a claim.
    pub no_claim: Vec<String>,
}

impl Summary {
    /// Summarizes the verdicts of named cases.
    #[must_use]
    pub fn of(verdicts: &[(String, Verdict)]) -> Summary {
        let with = |verdict| {
            verdicts.iter().filter(move |(_, found)| *found == verdict).map(|(name, _)| name.clone())
        };
        let (failed, no_claim): (Vec<_>, Vec<_>) =
            (with(Verdict::Fail).collect(), with(Verdict::NoClaim).collect());
        let verdict = match (failed.is_empty(), no_claim.is_empty()) {
            (false, _) => Verdict::Fail,
            (true, false) => Verdict::NoClaim,
            (true, true) => Verdict::Pass,
        };
        let passed = with(Verdict::Pass).count();
        Summary { what: "summary", verdict, cases: verdicts.len(), passed, failed, no_claim }
    }
}

impl Summary {
    /// Returns the summary without its verdict.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = match self.cases {
            1 if self.passed == 1 => "the case passes".to_owned(),
            1 => "the case does not pass".to_owned(),
            cases => format!("{} of {cases} cases pass", self.passed),
        };
        if !self.failed.is_empty() {
            words += &format!("; wrong: {}", self.failed.join(", "));
        }
        if !self.no_claim.is_empty() {
            words += &format!("; without a claim: {}", self.no_claim.join(", "));
        }
        words
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.words())
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::tests::case;
    use super::*;

    #[test]
    fn verdicts_follow_from_the_numbers() {
        let of = |change: &dyn Fn(&mut Case)| {
            let mut case = case();
            change(&mut case);
            case.verdict = decide(&case);
            (case.verdict, why(&case))
        };
        let (pass, text) = of(&|_| ());
        assert!(pass == Verdict::Pass && text.contains("as close to exact attention"), "{text}");
        type Change<'a> = (&'a dyn Fn(&mut Case), Verdict, &'a str);
        let changes: [Change<'_>; 10] = [
            (&|c| c.beyond = 3, Verdict::Fail, "3 of 1440 numbers differ"),
            (&|c| c.not_finite = 1, Verdict::Fail, "NaN or infinite"),
            (&|c| c.argmax_unexplained = 2, Verdict::Fail, "in 2 rows, another key"),
            (&|c| (c.random, c.unlikely) = (true, 2), Verdict::Fail, "suspect"),
            (&|c| c.unlikely = 2, Verdict::Pass, "as close"),
            (&|c| (c.assumed, c.unlikely) = (Some("FP32"), 2), Verdict::NoClaim, "tokens that repeat"),
            (
                &|c| (c.assumed, c.unlikely, c.random) = (Some("FP32"), 2, true),
                Verdict::Fail,
                "not that of FP32",
            ),
            (&|c| c.rows_without_claim = 4, Verdict::NoClaim, "4 of 60 rows"),
            (&|c| (c.rows_without_claim, c.beyond) = (4, 1), Verdict::Fail, "1 of 1440"),
            (&|c| c.rows_cancelling = 5, Verdict::Pass, "in 5 rows values cancel"),
        ];
        for (change, verdict, words) in changes {
            let (found, text) = of(change);
            assert!(found == verdict && text.contains(words), "{found} {text}");
            assert!(!text.contains('\n'));
        }
    }

    #[test]
    fn the_worst_case_decides_for_all() {
        use Verdict::{Fail, NoClaim, Pass};
        let of = |verdicts: &[Verdict]| {
            let named: Vec<_> =
                verdicts.iter().enumerate().map(|(i, verdict)| (format!("c{i}"), *verdict)).collect();
            Summary::of(&named).to_string()
        };
        assert_eq!(of(&[Pass, Pass]), "PASS: 2 of 2 cases pass");
        assert_eq!(of(&[Pass, NoClaim]), "NO CLAIM: 1 of 2 cases pass; without a claim: c1");
        assert_eq!(
            of(&[Fail, Pass, NoClaim, Fail]),
            "FAIL: 1 of 4 cases pass; wrong: c0, c3; without a claim: c2"
        );
        assert_eq!(of(&[Pass]), "PASS: the case passes");
        assert_eq!(of(&[Fail]), "FAIL: the case does not pass; wrong: c0");
    }
}
