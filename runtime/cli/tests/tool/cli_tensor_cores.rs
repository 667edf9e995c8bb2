//! Tests the report of `elsa run --tensor-cores` through the binary, on the back end that the environment names.

use crate::common::{Desk, Sizes, elsa};
use serde_json::Value;

const N: Sizes = Sizes { b: 2, h: 4, hk: 4, nq: 19, nk: 45, d: 16, dv: 16 };

/// Checks that a run on Tensor Cores reports the blocks of rows that they refuse, and that other runs report nothing.
#[test]
fn tensor_cores_report_what_they_refuse() {
    let desk = Desk::new();
    let [_, _, mut v] = desk.qkv(N, 1.0);
    let plain = v.clone();
    for (of, kernel, words) in
        [("always", "__sm80_split", ""), ("f16", "__sm80_f16", ", one f16 product each")]
    {
        let line = format!("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --tensor-cores {of}");
        let report =
            || -> Value { serde_json::from_slice(&desk.call(&format!("{line} --json")).stdout).unwrap() };
        let on = report()["kernel"].as_str().unwrap().contains(kernel);
        let blocks = N.b * N.h;
        let expected = |refused: usize| match on {
            true => serde_json::json!({ "refused": refused, "blocks": blocks, "one_product": of == "f16" }),
            false => Value::Null,
        };
        desk.f32("v.npy", &N.v(), &plain);
        assert_eq!(report()["tensor_cores"], expected(0));
        // A channel of the first head is tiny compared with the others.
        (0..N.nk).for_each(|j| v[j * N.dv + 5] = plain[j * N.dv + 5] * 1e-9);
        desk.f32("v.npy", &N.v(), &v);
        assert_eq!(report()["tensor_cores"], expected(1));
        let said = String::from_utf8(desk.call(&line).stdout).unwrap();
        let words = format!("Tensor Cores{words}; f32 products for 1 of {blocks} blocks of rows");
        assert_eq!(said.lines().any(|line| line == words), on, "{said}");
    }
}

/// Checks that `elsa verify` holds answers with one f16 product to the bound of their certificate.
#[test]
fn one_product_is_verified() {
    let output =
        elsa(&"verify --shape 1,2,70,130,64 --tensor-cores f16 --json".split(' ').collect::<Vec<_>>());
    let report = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(report.contains("\"one_product\":true"), report.contains("__sm80_f16"), "{report}");
}
