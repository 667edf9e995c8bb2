//! Tests `elsa-lab depth-curve`: the growth of additions and bounds with the number of keys, and refused requests.

use super::Desk;
use elsa_cli::picture::faults;
use serde_json::Value;

#[test]
fn curves_show_the_order_of_additions() {
    let desk = Desk::new();
    let text = desk.ok("depth-curve --keys 2048 --json --html page.html");
    let steps: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 12);
    let of = |schedule: &str, keys: usize, field: &str| {
        let step = steps.iter().find(|step| step["schedule"] == schedule && step["keys"] == keys).unwrap();
        step[field].as_f64().unwrap()
    };
    let grown = |schedule: &str, field: &str| of(schedule, 2048, field) / of(schedule, 256, field);
    assert!((7.9..8.1).contains(&grown("fold", "additions")) && grown("fold", "bound") > 5.0);
    assert!((1.3..1.4).contains(&grown("tree", "additions")) && grown("tree", "bound") < 1.3);
    assert!(grown("two-level", "bound") < 1.5 && grown("fold", "repeated") > 5.0);
    for schedule in ["fold", "two-level", "tree"] {
        assert!(of(schedule, 2048, "random") < of(schedule, 2048, "bound"));
        assert!(of(schedule, 2048, "constant") < of(schedule, 2048, "bound"));
    }
    let page = std::fs::read_to_string(desk.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("two-level") && !page.contains("NaN"), "{page}");
    assert_eq!(faults(&page), [""; 0]);
}

#[test]
fn lengths_and_flags_without_a_meaning_are_refused() {
    for (line, words) in [
        ("--keys 255", "--keys: '255'; allowed: a whole number from 256 to 1048576"),
        ("--keys 256 --half-scores", "--half-scores: given, and all tensors are f32"),
        ("--keys 256 --error-budget 0.1", "--error-budget: unexpected argument"),
    ] {
        Desk::new().refused(&format!("depth-curve {line}"), &[words]);
    }
}
