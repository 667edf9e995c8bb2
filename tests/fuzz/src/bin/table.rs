//! Parses arbitrary bytes as two tables of `elsa bench`, separated by the first zero byte, and compares them. The
//! result is a report of limited size, or a refusal.
#![no_main]
#![forbid(unsafe_code)]

use elsa_cli::bench::{changes, rows};
use elsa_cli::foreign::Shown;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    // Two tables, separated by the first zero.
    let (one, other) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, bytes),
    };
    let (Ok(one), Ok(other)) = (rows(one), rows(other)) else { return };
    let paths = [Path::new("a.csv"), Path::new("b.csv")];
    for json in [false, true] {
        let mut out = Vec::new();
        // The result is ignored: rows that became slower are an error, too.
        let _ = changes(&mut Shown::new(&mut out, false), paths, [&one, &other], json);
        let text = String::from_utf8(out).expect("text");
        if json {
            assert!(text.lines().count() >= one.len().max(other.len()));
        }
        assert!(text.len() < 4096 + 8 * bytes.len() + 1024 * (one.len() + other.len()), "{}", text.len());
    }
    assert!(!one.is_empty() && !other.is_empty());
});
