//! Tests the report of `elsa run --tensor-cores` through the binary, on the back end that the environment names.

use crate::common::{Desk, Sizes};
use serde_json::Value;

const N: Sizes = Sizes { b: 2, h: 4, hk: 4, nq: 19, nk: 45, d: 16, dv: 16 };

/// Checks that a run on Tensor Cores reports the blocks of rows that they refuse, and that other runs report nothing.
#[test]
fn tensor_cores_report_what_they_refuse() {
    let desk = Desk::new();
    let [_, _, mut v] = desk.qkv(N, 1.0);
    let line = "run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --tensor-cores always";
    let report =
        || -> Value { serde_json::from_slice(&desk.call(&format!("{line} --json")).stdout).unwrap() };
    let on = report()["kernel"].as_str().unwrap().contains("_split");
    let blocks = N.b * N.h;
    let expected = |refused: usize| match on {
        true => serde_json::json!({ "refused": refused, "blocks": blocks }),
        false => Value::Null,
    };
    assert_eq!(report()["tensor_cores"], expected(0));
    // A channel of the first head is tiny compared with the others.
    (0..N.nk).for_each(|j| v[j * N.dv + 5] *= 1e-9);
    desk.f32("v.npy", &N.v(), &v);
    assert_eq!(report()["tensor_cores"], expected(1));
    let said = String::from_utf8(desk.call(line).stdout).unwrap();
    let words = format!("Tensor Cores; f32 products for 1 of {blocks} blocks of rows");
    assert_eq!(said.lines().any(|line| line == words), on, "{said}");
}
