//! The reader of `.npz` files: under any name, any bytes are a tensor with as many elements as its shape, or a typed
//! error.
#![no_main]

use elsa_files::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["q", "k", ""] {
        elsa_fuzz::reads(bytes, Format::Npz, Some(name));
    }
});
