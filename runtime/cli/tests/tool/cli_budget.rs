//! Tests `elsa run --host-budget`: the budget that a refusal names is sufficient for the same command.
#![cfg(target_os = "linux")]

use crate::cli_stream::needed;
use crate::common::{Desk, elsa_with, emulated, noise, said};
use elsa_core::random::Random;

/// Returns the budget that a refusal of `line` names, and checks that it is sufficient.
fn is_enough(desk: &Desk, line: &str) -> usize {
    let refused = desk.call(&format!("{line} --host-budget 1"));
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{line}: {text}");
    let budget = needed(&text).unwrap_or_else(|| panic!("{line}: {text}"));
    let output = desk.call(&format!("{line} --host-budget {budget} --json"));
    assert!(output.status.success(), "{line}: {budget} bytes: {}", said(&output));
    // The report is the last line, because a certificate comes before it.
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(report["peak_rss_bytes"].as_u64().unwrap() <= budget as u64, "{line}: {report}");
    budget
}

#[test]
fn the_number_that_a_refusal_names_is_enough() {
    if emulated() {
        return;
    }
    let desk = Desk::new();
    let mut random = Random::new(7);
    let mut draw = |from: usize, to: usize| from + random.below(to - from + 1);
    for case in 0..32 {
        let (b, kv, group) = (draw(1, 3), draw(1, 3), draw(1, 3));
        let (h, n, m, d, dv) = (kv * group, draw(1, 400), draw(1, 900), draw(1, 40), draw(1, 40));
        let put = |name: &str, shape: [usize; 4], seed| {
            let data = noise(seed, shape.iter().product());
            match case % 4 {
                1 => desk.npy(
                    name,
                    "<f8",
                    &shape,
                    bytemuck::cast_slice(&data.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()),
                ),
                2 => std::fs::write(
                    desk.path(name),
                    crate::common::npy("<f4", "True", &shape, bytemuck::cast_slice(&data)),
                )
                .unwrap(),
                _ => desk.f32(name, &shape, &data),
            }
        };
        put("q.npy", [b, h, n, d], case);
        put("k.npy", [b, kv, m, d], case + 1);
        put("v.npy", [b, kv, m, dv], case + 2);
        desk.f32("mask.npy", &[n, m], &noise(3, n * m));
        desk.i64("lens.npy", &vec![m as i64 / 2 + 1; b]);
        let mut line = format!("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --threads {}", draw(1, 3));
        for (flags, one_of) in [
            (" --mask @mask.npy", 3),
            (" --kv-lens @lens.npy", 3),
            (" --causal", 2),
            (" --state-out @s.npz", 3),
            (" --lse-out @lse.npy", 2),
            (" --present-k @pk.npy", 4),
            (" --resume", 2),
            (" --eta 0.2", 3),
        ] {
            if draw(1, one_of) == 1 {
                line += flags;
            }
        }
        if !line.contains("resume") && draw(1, 3) == 1 {
            line += " --certificate";
        }
        is_enough(&desk, &line);
    }
}

/// Checks a resumed run, which keeps the units recorded in its journal. The memory that its refusal names must be
/// sufficient. The refusal must also name the memory that a new run would need.
#[test]
fn a_run_that_goes_on_names_what_a_new_one_needs_too() {
    if emulated() {
        return;
    }
    let desk = Desk::new();
    desk.f32("q.npy", &[1, 4, 3000, 16], &noise(1, 4 * 3000 * 16));
    desk.f32("k.npy", &[1, 2, 2000, 16], &noise(2, 2 * 2000 * 16));
    desk.f32("v.npy", &[1, 2, 2000, 16], &noise(3, 2 * 2000 * 16));
    let line = "run --q @q.npy --k @k.npy --v @v.npy --threads 2 --out @y.npy --resume";
    let fresh = is_enough(&desk, line);
    let large = fresh + (6 << 20);
    let kill = || {
        let words = desk.words(&format!("{line} --host-budget {large}"));
        assert!(!elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", "1")]).status.success());
    };
    kill();
    let refused = desk.call(&format!("{line} --host-budget 1"));
    let text = said(&refused);
    let journal = needed(&text).unwrap();
    let anew: usize = text.split(", or ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(text.contains("as the journal divides it") && journal > anew, "{text}");
    let output = desk.call(&format!("{line} --host-budget {journal}"));
    assert!(output.status.success() && said(&output).contains("goes on"), "{}", said(&output));
    kill();
    std::fs::remove_file(desk.path("y.npy.elsa-journal")).unwrap();
    let output = desk.call(&format!("{line} --host-budget {anew}"));
    assert!(output.status.success(), "{anew}: {}", said(&output));
}
