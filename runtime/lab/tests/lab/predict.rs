//! Tests `elsa-lab predict`: the default grid compared with the paper, other shapes and boards, and refused requests.

use super::Desk;
use serde_json::Value;

/// Parses the JSON lines of a prediction.
fn predicted(arguments: &str) -> Vec<Value> {
    let text = Desk::new().ok(&format!("predict --json --board {arguments}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_default_grid_stands_beside_the_paper() {
    let rows = predicted("jetson-tx2");
    assert_eq!(rows.len(), 24);
    let mut last = 0.0;
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((row["what"].as_str(), row["measured"].as_bool()), (Some("prediction"), Some(false)));
        assert_eq!(row["dtype"].as_str(), Some(if index < 12 { "f32" } else { "f16" }));
        let of = |key: &str| row[key].as_f64().unwrap();
        let parts = of("attention_ms") + row["merge_ms"].as_f64().unwrap_or(0.0);
        assert!((parts - of("predicted_ms")).abs() < 1e-9 && of("predicted_ms") > 0.01, "{row}");
        // The paper's times are longer than the multiply-adds alone would take.
        assert!(of("paper_elsa_ms") < of("paper_math_ms"), "{row}");
        if index % 12 > 0 {
            assert!(of("paper_elsa_ms") > last, "{row}");
        }
        last = of("paper_elsa_ms");
    }
    assert_eq!(
        (rows[0]["paper_elsa_ms"].as_f64(), rows[23]["paper_elsa_ms"].as_f64()),
        (Some(0.69), Some(129.74))
    );
    assert_eq!(
        (rows[11]["shape"].as_str(), rows[11]["paper_elsa_ms"].as_f64()),
        (Some("1,1,900,900,64"), Some(131.14))
    );
}

#[test]
fn shapes_and_other_boards_have_no_figures_of_the_paper() {
    let of = |board| predicted(&format!("{board} --shape 1,8,1024,1024,64 --shape 2,4,100,100,32,causal"));
    // Two multiprocessors at 1,300 MHz, two at 998 MHz, and one at 921 MHz.
    let boards = [of("jetson-tx2"), of("jetson-tx1"), of("jetson-nano")];
    assert_eq!(boards.each_ref().map(Vec::len), [2; 3]);
    for pair in boards.windows(2) {
        for (here, there) in pair[0].iter().zip(&pair[1]) {
            assert!(here["paper_elsa_ms"].is_null() && there["paper_elsa_ms"].is_null());
            assert!(there["predicted_ms"].as_f64() > here["predicted_ms"].as_f64(), "{here} {there}");
        }
    }
    let nano = predicted("jetson-nano --dtype f32");
    assert!(nano.len() == 12 && nano.iter().all(|row| row["paper_elsa_ms"].is_null()));
}

#[test]
fn the_text_says_that_nothing_was_measured() {
    let text = Desk::new().ok("predict --board jetson-tx2 --dtype f32");
    assert!(text.starts_with("prediction, not measured: NVIDIA Jetson TX2"), "{text}");
    assert!(text.lines().count() == 14 && text.contains("131.14") && text.contains("predicted ms"), "{text}");
}

#[test]
fn linear_attention_has_the_time_of_each_form() {
    let rows = predicted("jetson-tx2 --heads 8 --linear gated --linear delta");
    assert_eq!(rows.len(), 12);
    for row in &rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert_eq!((row["measured"].as_bool(), row["heads"].as_u64()), (Some(false), Some(8)));
        assert!(of("recurrent_ms") > of("fused_chunk_ms") && of("chunk_ms") > 0.01, "{row}");
        assert_eq!(
            (row["chosen"].as_str(), of("chosen_ms")),
            (Some("fused-chunk"), of("fused_chunk_ms")),
            "{row}"
        );
    }
    let text = Desk::new().ok("predict --board jetson-tx2 --heads 8 --linear linear");
    assert!(text.starts_with("prediction, not measured: NVIDIA Jetson TX2"), "{text}");
    assert!(text.lines().count() == 8 && text.contains("fused-chunk ms"), "{text}");
}

#[test]
fn what_cannot_be_predicted_is_refused() {
    let cases: [(&str, &[&str]); 8] = [
        ("jetson-tx3", &["jetson-tx3", "jetson-tx2", "jetson-nano", "jetson-tx1", "jetson-orin"]),
        ("jetson-orin", &["jetson-orin", "not known"]),
        ("jetson-tx2 --shape 1,1,64,64,64,mask=float", &["mask", "allowed"]),
        ("jetson-orin --linear gated", &["jetson-orin", "not known"]),
        ("jetson-tx2 --linear tanh", &["tanh", "gated-dim"]),
        ("jetson-tx2 --linear gated --dtype f16", &["--linear", "--dtype"]),
        ("jetson-tx2 --shape 1,1,64,64,1024", &["1024", "allowed"]),
        (
            "jetson-tx2 --csv x.csv",
            &["--csv: unexpected argument; allowed: what elsa-lab predict --help lists"],
        ),
    ];
    for (arguments, wanted) in cases {
        Desk::new().refused(&format!("predict --board {arguments}"), wanted);
    }
}
