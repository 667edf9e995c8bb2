//! Fuzzes the error bounds: checks that no error exceeds its bound, for any contents of the tensors.
#![no_main]
#![forbid(unsafe_code)]

use elsa_oracle::bounds::{Drawn, Findings, Hunter, hunters};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static HUNTERS: Vec<Hunter> = hunters();
}

fuzz_target!(|bytes: &[u8]| {
    let Some(drawn) = Drawn::of_bytes(bytes) else { return };
    HUNTERS.with(|hunters| {
        for hunter in hunters {
            let mut found = Findings::default();
            hunter.judge(&drawn, "bytes", &mut found);
            assert!(found.which.is_empty(), "{:#?}", found.which);
        }
    });
});
