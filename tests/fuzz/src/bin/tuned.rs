//! Parses arbitrary text as a tuned file. The result is a tuned file that stays the same when it is written and parsed
//! again, or a typed error of one line.
#![no_main]
#![forbid(unsafe_code)]

use elsa_runtime::Tuned;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Tuned::parse(text) {
        Ok(tuned) => assert_eq!(Tuned::parse(&tuned.text()), Ok(tuned)),
        Err(error) => {
            let line = error.to_string();
            assert!(line.contains("allowed: ") && !line.contains('\n'), "{line}");
        }
    }
});
