//! Parses the JSON form of a certificate and compares it with the certificate.

use elsa_core::attention::certificate::{Certificate, Executed, Order};
use elsa_core::dtype::DType;
use serde_json::{Value, json};

#[test]
fn json_is_what_the_certificate_holds() {
    // The JSON parser may be off by one in the last digit of an f64.
    let same = |json: &Value, want: f64| (json.as_f64().unwrap() - want).abs() <= 4e-16 * want;
    let executed = Executed {
        kernel: "some_kernel",
        block: 64,
        segment_blocks: 8,
        merge_depth: 7,
        additions: 519,
        into_s: 500,
        into_w: 519,
        chain: 32,
        chain_depth: 3,
        fused: true,
        exp2_relative: 1.7e-7,
        half_chain: 16,
        split: true,
        one_product: true,
        order: Order::ANY,
    };
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for keys in [0, 1, 64, 900, 65_536] {
            let c = Certificate::new(dtype, keys, executed);
            let line = c.to_string();
            assert!(!line.contains('\n'));
            let json: Value = serde_json::from_str(&line).unwrap();
            assert!(json["leaves_out"].as_array().unwrap().len() >= 3);
            let exact = json!({
                "claim": "published", "rigorous": false, "relative_to": "norm2(y)", "dtype": dtype.name(),
                "keys": keys, "published_depth": c.published_depth, "covers_additions": false,
            });
            let of_executed = json!({
                "kernel": "some_kernel", "block": 64, "segment_blocks": 8, "merge_depth": 7, "additions": 519,
                "into_s": 500, "into_w": 519, "chain": 32, "chain_depth": 3, "fused": true, "half_chain": 16, "split": true,
                "one_product": true,
            });
            for (found, wanted) in [(&json, exact), (&json["executed"], of_executed)] {
                wanted.as_object().unwrap().iter().for_each(|(name, want)| assert_eq!(&found[name], want));
            }
            for (found, want) in [
                (&json["unit_roundoff"], 2f64.powi(-24)),
                (&json["published_bound"], 2f64.powi(-24) * c.published_depth as f64),
                (&json["output_rounding"], c.output_rounding),
                (&json["executed"]["exp2_relative"], 1.7e-7),
            ] {
                assert!(same(found, want), "{found}, not {want}");
            }
        }
    }
}
