//! Error bounds beside the errors of answers that are made to be hard.

#![forbid(unsafe_code)]

use elsa_tests::SLOW;
use elsa_tests::bounds::{Found, hunters};

/// No error exceeds the bounds, over problems of every kind on every back end.
#[test]
fn no_error_exceeds_its_bounds() {
    let problems = if cfg!(miri) {
        1
    } else if SLOW {
        60
    } else {
        100
    };
    for hunter in hunters() {
        let mut found = Found::default();
        (0..problems).for_each(|seed| hunter.hunt(seed, 100, &mut found));
        let Found { rows, worst, likely, prior, .. } = found;
        println!(
            "{}: {rows} rows, {worst:.2e} of worst, {likely:.2e} of likely, {prior:.2e} of prior",
            hunter.name
        );
        assert!(found.which.is_empty(), "{:#?}", found.which);
        assert!(rows > 0, "{}", hunter.name);
    }
}
