//! Tests `elsa run --host-budget --resume`. A run must resume a killed run where that run stopped, and must refuse to
//! resume a killed run that differs from it.
#![cfg(target_os = "linux")]

use crate::cli_stream::{INPUTS, desk, same, same_states, within};
use crate::common::{elsa_with, emulated, noise, said};
use std::os::unix::process::ExitStatusExt;

#[test]
fn a_run_into_safetensors_goes_on_where_it_was_killed() {
    if emulated() {
        return;
    }
    let desk = desk(3600, 1200);
    let line = format!("run {INPUTS} --causal");
    let into = |name: &str| format!("--out @{name}.safetensors#y --lse-out @{name}.safetensors#lse");
    for name in ["a.safetensors", "b.safetensors"] {
        desk.safetensors(name, &[("old", safetensors::Dtype::F64, &[3], &[7; 24])]);
    }
    let before = std::fs::read(desk.path("b.safetensors")).unwrap();
    desk.ok(&format!("{line} {}", into("a")));
    let line = format!("{line} {} --eta 0.1 --resume", into("b"));
    let (report, budget) = within(&desk, &format!("{line} --json"), 1_600_000);
    let line = format!("{line} --host-budget {budget}");
    // A process that uses less memory at its start keeps more rows, and so has fewer parts.
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let parts = report["parts"].as_u64().unwrap();
    assert!(parts >= 8, "{parts} parts");
    let words = desk.words(&line);
    let target = desk.path("b.safetensors");
    for at in ["1".to_owned(), (parts / 2).to_string()] {
        std::fs::write(&target, &before).unwrap();
        assert!(!elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", &at)]).status.success());
        assert_eq!(std::fs::read(&target).unwrap(), before);
        let output = elsa_with(&words, &[]);
        assert!(output.status.success() && said(&output).contains("goes on after"), "{}", said(&output));
        same(&desk, "a.safetensors", "b.safetensors");
        assert!(!desk.list().iter().any(|name| name.contains("elsa")), "{:?}", desk.list());
    }
    // The file with the kept tensors is replaced between the kill and the next run.
    std::fs::write(&target, &before).unwrap();
    assert!(!elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", "2")]).status.success());
    std::fs::write(&target, [&before[..], b""].concat()).unwrap();
    let output = elsa_with(&words, &[]);
    assert!(output.status.code() == Some(2) && said(&output).contains("another run"), "{}", said(&output));
}

#[test]
fn a_run_goes_on_where_it_was_killed() {
    if emulated() {
        return;
    }
    let desk = desk(3600, 1200);
    let line = format!("run {INPUTS} --causal --state-out @s.npz");
    desk.ok(&format!("{} --out @y0.npy", line.replace("@s.", "@s0.")));
    let line = format!("{line} --out @y.npy --eta 0.1 --resume");
    let (report, budget) = within(&desk, &format!("{line} --json"), 1_600_000);
    let line = format!("{line} --host-budget {budget}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["units"].as_u64().unwrap() >= 4, "{report}");
    let parts = report["parts"].as_u64().unwrap();
    let step = (parts / 4 + 2).to_string();
    let words = desk.words(&format!("{line} --json"));
    let mut killed_at = 0;
    for at in 1..=parts {
        for name in ["y.npy", "s.npz"] {
            std::fs::remove_file(desk.path(name)).unwrap();
        }
        let killed = elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", &at.to_string())]);
        if killed.status.success() {
            // A process that uses less memory at its start than the first process did keeps more rows resident. Its run
            // therefore has fewer parts.
            let report: serde_json::Value = serde_json::from_slice(&killed.stdout).unwrap();
            assert!(report["parts"].as_u64().unwrap() < at, "{at} of {parts}: {}", said(&killed));
            same(&desk, "y.npy", "y0.npy");
            continue;
        }
        killed_at += 1;
        assert!(killed.status.signal().is_some(), "{at} of {parts}: {}", said(&killed));
        assert!(!desk.path("y.npy").exists() && desk.path("y.npy.elsa-journal").exists());
        let output = elsa_with(&words, &[]);
        assert!(output.status.success(), "{at} of {parts}: {}", said(&output));
        assert!(said(&output).contains("goes on after"), "{}", said(&output));
        same(&desk, "y.npy", "y0.npy");
        same_states(&desk, "s.npz", "s0.npz");
        assert!(!desk.list().iter().any(|name| name.contains("elsa")), "{:?}", desk.list());
    }
    assert!(killed_at >= 5, "killed {killed_at} times of {parts}");
    // The run is killed and resumed repeatedly, and each time it must advance a little.
    let mut kills = 0;
    while !elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", &step)]).status.success() {
        kills += 1;
        assert!(kills < parts, "it does not go on");
    }
    same(&desk, "y.npy", "y0.npy");
}

#[test]
fn foreign_journals_are_refused() {
    if emulated() {
        return;
    }
    let desk = desk(3600, 1200);
    let line = format!("run {INPUTS} --out @y.npy --eta 0.1 --resume");
    let (_, budget) = within(&desk, &line, 1_600_000);
    std::fs::remove_file(desk.path("y.npy")).unwrap();
    let line = format!("{line} --host-budget {budget}");
    let words = desk.words(&line);
    let kill = || assert!(!elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", "5")]).status.success());
    kill();
    let refused = |line: &str, word: &str| {
        let output = desk.call(line);
        let text = said(&output);
        assert!(
            output.status.code() == Some(2) && text.contains("--resume") && text.contains(word),
            "{text}"
        );
        assert!(!desk.path("y.npy").exists());
    };
    // A resume is refused for another problem, other inputs, a damaged journal, or another file in place of the output.
    refused(&format!("{line} --causal"), "another run");
    desk.f32("k.npy", &[1, 2, 1200, 16], &noise(9, 2 * 1200 * 16));
    refused(&line, "another run (k ");
    std::fs::remove_file(desk.path("y.npy.elsa-journal")).unwrap();
    kill();
    let journal = desk.path("y.npy.elsa-journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    assert!(text.contains("unit 0\n"), "{text}");
    std::fs::write(&journal, text.replace("unit 0\n", "unit 1\n")).unwrap();
    refused(&line, "in order");
    std::fs::write(&journal, &text).unwrap();
    std::fs::write(desk.path("y.npy.elsa-part"), b"short").unwrap();
    refused(&line, "not the file");
    std::fs::remove_file(&journal).unwrap();
    desk.ok(&line);
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn a_gpu_goes_on_where_it_was_killed() {
    let desk = desk(300, 1500);
    desk.f32("pk.npy", &[1, 2, 100, 16], &noise(5, 2 * 100 * 16));
    desk.f32("pv.npy", &[1, 2, 100, 8], &noise(6, 2 * 100 * 8));
    let line = format!(
        "run {INPUTS} --past-k @pk.npy --past-v @pv.npy --causal=bottom-right --backend cuda --fallback fail --out @y.npy \
         --present-k @p.npy --state-out @s.npz --host-budget 8GiB --device-budget 400000 --resume --json"
    );
    let report = desk.json(&line);
    let (units, parts) = (report["units"].as_u64().unwrap(), report["parts"].as_u64().unwrap());
    // Both key heads are copied to the present tensor, chunk by chunk, before the first block is computed.
    let copied = 2 * 1600u64.div_ceil(report["chunk_keys"].as_u64().unwrap());
    assert!(units >= 4 && parts > units - 2, "{report}");
    for name in ["y.npy", "p.npy", "s.npz"] {
        std::fs::rename(desk.path(name), desk.path(&format!("whole-{name}"))).unwrap();
    }
    let words = desk.words(&line);
    for at in [3, copied + parts / 2, copied + parts] {
        let killed = elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", &at.to_string())]);
        assert!(killed.status.signal().is_some(), "{at} of {parts}: {}", said(&killed));
        assert!(!desk.path("y.npy").exists() && desk.path("y.npy.elsa-journal").exists());
        // A larger budget changes neither units nor bits.
        let output = desk.call(&line.replace("400000", "4000000"));
        assert!(output.status.success(), "{at} of {parts}: {}", said(&output));
        assert!(said(&output).contains("goes on after"), "{}", said(&output));
        for name in ["y.npy", "p.npy", "s.npz"] {
            let compare = if name == "s.npz" { same_states } else { same };
            compare(&desk, name, &format!("whole-{name}"));
            std::fs::remove_file(desk.path(name)).unwrap();
        }
        assert!(!desk.list().iter().any(|name| name.contains("elsa")), "{:?}", desk.list());
    }
    // The CPU cannot resume from the journal of a run on a GPU. A budget that is too small for the chunks in the
    // journal is refused.
    assert!(!elsa_with(&words, &[("ELSA_TEST_ABORT_AFTER", "6")]).status.success());
    let output = desk.call(&line.replace("--backend cuda --fallback fail", "--backend scalar"));
    assert!(output.status.code() == Some(2) && said(&output).contains("another run"), "{}", said(&output));
    let output = desk.call(&line.replace("400000", "40000"));
    assert!(
        output.status.code() == Some(2) && said(&output).contains("--device-budget: 40000 bytes"),
        "{}",
        said(&output)
    );
    assert!(!desk.path("y.npy").exists());
    desk.ok(&line);
    same(&desk, "y.npy", "whole-y.npy");
}
