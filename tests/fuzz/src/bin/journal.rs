//! Parses arbitrary bytes as a journal. The result is the journal of a run, nothing if the journal has not begun, or a
//! refusal with a reason. A truncated journal must parse as a journal with fewer finished units.
#![no_main]
#![forbid(unsafe_code)]

use elsa_cli::stream::journal::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match parse(bytes) {
    Ok(Some((earlier, length))) => {
        assert!(length <= bytes.len() && !earlier.sizes.contains(&0));
        assert!(earlier.finished <= bytes.len() / "unit 0\n".len());
        // Without the bytes after them, the valid lines parse to the same journal.
        assert_eq!(parse(&bytes[..length]), Ok(Some((earlier.clone(), length))));
        if let Some(cut) = length.checked_sub(1) {
            match parse(&bytes[..cut]) {
                Ok(Some((fewer, _))) => {
                    assert!(
                        fewer.finished < earlier.finished
                            || earlier.commit.is_some() && fewer.commit.is_none()
                    );
                }
                Ok(None) => assert!(earlier.finished == 0 && earlier.commit.is_none()),
                Err(found) => panic!("{found}"),
            }
        }
    }
    Ok(None) => {}
    Err(found) => assert!(!found.is_empty() && !found.contains('\n')),
});
