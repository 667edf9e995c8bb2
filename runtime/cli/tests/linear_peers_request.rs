//! The command line of the benchmark of linear attention beside other libraries (`benches/linear`), which no test harness
//! builds.
#![allow(clippy::unwrap_used)]

#[path = "../benches/linear/request.rs"]
mod request;

use elsa_core::linear::{Form, Rule};
use elsa_runtime::Backend;
use request::{Cell, Output, Request};
use std::time::Duration;

fn parse(line: &str) -> Result<Request, String> {
    Request::parse(line.split_whitespace().map(str::to_owned)).map_err(|refused| refused.to_string())
}

#[test]
fn flags_and_problems_are_taken() {
    let plain = parse("--bench").unwrap();
    assert_eq!((plain.threads, plain.rounds, plain.cells.len()), (1, 15, 4 * 2 * 7));
    assert_eq!((plain.slice(), plain.form, plain.output), (Duration::from_millis(6), None, Output::Columns));
    let line =
        "--threads 2 --rounds 7 --backend avx2 --form fused-chunk --chunk 16 --json gated,8,256,64,per-dim";
    let request = parse(line).unwrap();
    assert_eq!((request.threads, request.rounds, request.backend), (2, 7, Some(Backend::AVX2)));
    assert_eq!(
        (request.form, request.chunk, request.output),
        (Some(Form::FusedChunk), Some(16), Output::Json)
    );
    let cell = Cell { rule: Rule::Gated, heads: 8, tokens: 256, dim: 64, per_dim: true };
    assert_eq!((request.cells, cell.to_string()), (vec![cell], "gated,8,256,64,per-dim".to_owned()));
    assert_eq!(parse("--slice 3 --markdown").unwrap().slice(), Duration::from_millis(3));
    assert_eq!(parse("delta,4,1,128").unwrap().cells[0].to_string(), "delta,4,1,128");
}

#[test]
fn every_refusal_names_its_argument() {
    for (line, words) in [
        ("--threads 0", "--threads: '0'; allowed: a whole number from 1"),
        ("--form lines", "--form: 'lines'; allowed: recurrent, chunk, fused-chunk, parallel, scan"),
        ("--rounds", "--rounds: no value"),
        ("--round 3", "--round: unexpected; allowed: --threads, --rounds"),
        ("delta,4,16", "'delta,4,16'; allowed: RULE,HEADS,TOKENS,D"),
        ("delta,4,16,64,per-dim", "'delta,4,16,64,per-dim'; allowed: "),
        ("gate,4,16,64", "'gate,4,16,64'; allowed: "),
        ("gated,4,0,64", "'gated,4,0,64'; allowed: "),
    ] {
        let refused = parse(line).unwrap_err();
        assert!(refused.contains(words) && refused.lines().count() == 1, "{line}: {refused}");
    }
}
