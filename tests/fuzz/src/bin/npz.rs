//! Reads arbitrary bytes as a `.npz` file with any member name. The result is a tensor whose number of elements matches
//! its shape, or a typed error.
#![no_main]

use elsa_files::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["q", "k", ""] {
        elsa_fuzz::reads(bytes, Format::Npz, Some(name));
    }
});
