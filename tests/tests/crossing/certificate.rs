//! Parses the JSON form of a certificate and compares it with the certificate.

use elsa_core::attention::certificate::{Certificate, Executed, Order};
use elsa_core::dtype::DType;

#[test]
fn json_is_what_the_certificate_holds() {
    // The JSON parser may be off by one in the last digit of an f64.
    let same = |json: &serde_json::Value, want: f64| (json.as_f64().unwrap() - want).abs() <= 4e-16 * want;
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
        order: Order::ANY,
    };
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for keys in [0, 1, 64, 900, 65_536] {
            let c = Certificate::new(dtype, keys, executed);
            let line = c.to_string();
            assert!(!line.contains('\n'));
            let json: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(json["claim"], "published");
            assert_eq!(json["rigorous"], false);
            assert_eq!(json["relative_to"], "norm2(y)");
            assert!(json["leaves_out"].as_array().unwrap().len() >= 3);
            assert_eq!(json["dtype"], dtype.name());
            assert_eq!(json["keys"], keys);
            assert!(same(&json["unit_roundoff"], 2f64.powi(-24)));
            assert_eq!(json["published_depth"], c.published_depth);
            assert!(same(&json["published_bound"], 2f64.powi(-24) * c.published_depth as f64));
            assert!(same(&json["output_rounding"], c.output_rounding));
            assert_eq!(json["executed"]["block"], 64);
            assert_eq!(json["executed"]["segment_blocks"], 8);
            assert_eq!(json["executed"]["merge_depth"], 7);
            assert_eq!(json["executed"]["additions"], 519);
            assert_eq!(json["executed"]["half_chain"], 16);
            assert_eq!(json["executed"]["kernel"], "some_kernel");
            assert_eq!(
                (&json["executed"]["into_s"], &json["executed"]["into_w"]),
                (&500.into(), &519.into())
            );
            assert_eq!(
                (&json["executed"]["chain"], &json["executed"]["chain_depth"]),
                (&32.into(), &3.into())
            );
            assert_eq!(json["executed"]["fused"], true);
            assert!(same(&json["executed"]["exp2_relative"], 1.7e-7));
            assert_eq!(json["covers_additions"], false);
        }
    }
}
