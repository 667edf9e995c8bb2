//! Compares the scalar fallback with the definition, on hard and on random cases.

use elsa_core::attention::scalar;
use elsa_oracle::cases::{Case, any_case, hard_cases};
use proptest::prelude::*;

/// Number of additions between a key and the result: in a segment and in the merge tree over a few segments.
const ADDITIONS: usize = 512 + 4;

fn check(case: &Case) -> Result<f64, String> {
    let problem = case.problem();
    let mut buffers = case.buffers();
    let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).unwrap()];
    scalar::run(&problem, &case.inputs(), &mut buffers.outputs(), &mut scratch).map_err(|e| e.to_string())?;
    if buffers.present != case.naive_present() {
        return Err("the present is not past and new keys".into());
    }
    case.naive().check_all(&buffers, ADDITIONS)
}

#[test]
fn hard_cases_are_within_tolerance() {
    let cases = hard_cases();
    for case in &cases {
        check(case).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    }
    assert!(cases.len() > 100, "{} cases", cases.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_cases_are_within_tolerance(case in any_case()) {
        let checked = check(&case);
        prop_assert!(checked.is_ok(), "{checked:?}");
    }
}
