//! Tests `elsa-lab bench-series`: every way of every cell is run, and all errors are within their bounds.

use super::Desk;
use serde_json::Value;

#[test]
fn ways_to_compute_an_operator_are_measured_beside_each_other() {
    let desk = Desk::new();
    let common = "bench-series --backend scalar --threads 1 --seconds 0.001 --lengths 20,3 --channels 5";
    let lines = desk.ok(&format!("{common} --batch 2 --parts 1,4,4 --json"));
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let forms = |operator: &str, tokens: u64| -> Vec<String> {
        let of = rows.iter().filter(|row| row["operator"] == operator && row["tokens"] == tokens);
        of.map(|row| row["form"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(forms("recurrence", 20), ["1 part", "4 parts"]);
    // A recurrence has at most as many parts as tokens.
    assert_eq!(forms("recurrence", 3), ["1 part", "3 parts"]);
    assert_eq!(forms("selective", 20), ["1 part"], "the CPU passes tokens once");
    let mut methods = forms("conv", 20);
    methods.sort_unstable();
    assert_eq!(methods, ["direct", "fft"]);
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("p25_ms") > 0.0 && number("p25_ms") <= number("p50_ms"), "{row}");
        assert!(number("p50_ms") <= number("p75_ms") && number("worst") <= 1.0, "{row}");
        let each = number("p50_ms") * 1e6 / (10.0 * number("tokens"));
        assert!((number("ns_per_element") / each - 1.0).abs() < 1e-9, "{row}");
    }
    assert_eq!(rows.iter().filter(|row| row["chosen"] == true).count(), 6, "{lines}");
    let table = desk.ok(&format!("{common} --operator conv --taps 3"));
    assert!(table.starts_with("conv of 3, f32, batch 1, channels 5, scalar, threads 1\n"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains('*')).count(), 2, "{table}");
}
