//! The command line of the benchmark beside other libraries (`benches/peers`), which no test harness builds.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../benches/peers/request.rs"]
mod request;

use elsa_core::dtype::DType;
use elsa_runtime::Backend;
use request::{Form, Request};
use std::time::Duration;

fn parse(line: &str) -> Result<Request, String> {
    Request::parse(line.split_whitespace().map(str::to_owned)).map_err(|refused| refused.to_string())
}

#[test]
fn flags_and_shapes_are_taken() {
    let plain = parse("--bench").unwrap();
    assert_eq!((plain.threads, plain.rounds, plain.dtype, plain.shapes.len()), (1, 25, DType::F32, 11));
    assert_eq!((plain.slice(), plain.isa()), (Duration::from_millis(6), None));
    let shapes = "2,8,64,64,32,kv=2,causal,mask=bias 64,3,49,49,32,swin=56x56:3";
    let line = format!("--threads 2 --rounds 7 --dtype bf16 --backend avx2 --json {shapes}");
    let request = parse(&line).unwrap();
    assert_eq!(
        (request.threads, request.rounds, request.dtype, request.form),
        (2, 7, DType::Bf16, Form::Json)
    );
    let written: Vec<String> = request.shapes.iter().map(ToString::to_string).collect();
    assert_eq!((written.join(" "), request.backend), (shapes.to_owned(), Some(Backend::AVX2)));
    assert_eq!((request.slice(), request.isa().unwrap().0), (Duration::from_millis(20), "avx2"));
    let masks = parse("masks swin --markdown").unwrap();
    let last = masks.shapes[27].to_string();
    assert_eq!((masks.shapes.len(), last.as_str()), (4 * 7 + 4, "1,12,900,900,64,mask=true"));
    assert_eq!((masks.form, parse("causal").unwrap().shapes.len()), (Form::Markdown, 6));
    assert_eq!(parse("--slice 3").unwrap().slice(), Duration::from_millis(3));
}

#[test]
fn every_refusal_names_its_argument() {
    for (line, words) in [
        ("--threads 0", "--threads: '0'; allowed: a whole number from 1"),
        ("--rounds x", "--rounds: 'x'; allowed: a whole number from 1"),
        ("--slice 0", "--slice: '0'; allowed: a whole number from 1"),
        ("--rounds", "--rounds: no value"),
        ("--dtype f64", "--dtype: 'f64'; allowed: f32, f16, bf16"),
        ("swim", "'swim'; allowed: a shape, plain, masks, causal, swin"),
        ("--round 3", "--round: unexpected; allowed: --threads, --rounds"),
        ("1,2,3,4", "'1,2,3,4': D: missing; allowed: B,H,NQ,NK,D"),
        ("1,2,3,4,5,mask=bol", "mask: 'bol'; allowed: bool, true, padding"),
        ("2,1,16,16,8,swin=8x8", "swin: 2 sequences; allowed: a multiple of the 4 windows"),
    ] {
        let refused = parse(line).unwrap_err();
        assert!(refused.contains(words) && refused.lines().count() == 1, "{line}: {refused}");
    }
}
