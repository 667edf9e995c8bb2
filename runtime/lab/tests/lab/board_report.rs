//! Tests `elsa-lab board-report` with small results of a board day.

use super::{Desk, assert_alone};
use std::fs;

/// Writes the results of a day into the folder `name`: the beginning of its records, its other steps, and its files.
fn day(desk: &Desk, name: &str, steps: &[(&str, &str)], files: &[(&str, &str)]) {
    let folder = desk.path(name);
    fs::create_dir_all(&folder).unwrap();
    let run = "{\"what\":\"run\",\"release\":\"r\",\"target\":\"host\",\"at\":1,\"root\":true,\"emulated\":false,\
               \"quick\":false}\n";
    let mut text = run.to_owned();
    for (id, result) in steps {
        text += &format!("{{\"what\":\"begin\",\"id\":\"{id}\",\"release\":\"r\",\"at\":1}}\n");
        text += &format!(
            "{{\"what\":\"step\",\"id\":\"{id}\",\"release\":\"r\",\"at\":2,\"seconds\":7,\"status\":0,\
             \"result\":\"{result}\"}}\n"
        );
        fs::write(folder.join(format!("{id}.out")), "").unwrap();
    }
    fs::write(folder.join("steps.jsonl"), text).unwrap();
    for (file, text) in files {
        fs::write(folder.join(file), text).unwrap();
    }
}

const ROW: &str = "{\"what\":\"bench\",\"shape\":\"1,1,64,64,64\",\"dtype\":\"f32\",\"method\":\"elsa\",\
                   \"backend\":\"neon\",\"kernel\":\"k<script>\",\"p50_ms\":0.25,\"clean\":true}\n";
const SOAKED: &str = "{\"what\":\"soaked\",\"t_s\":10.0,\"calls\":100,\"missed\":3,\"p50_ms\":1.0,\"p99_ms\":2.0,\
                      \"max_ms\":3.0,\"shape\":\"1,1,64,64,64\",\"rate_hz\":30.0,\"histogram\":[[1.0,97]]}\n";

#[test]
fn good_results_are_reported_on_paper_and_page() {
    let desk = Desk::new();
    let rails = "0.0\t/d/in_power0_input\t1000\n1.0\t/d/in_power0_input\t1000\n";
    let busy: String = (0..=20).map(|i| format!("{}.0\t/d/in_power0_input\t3000\n", 100 + i)).collect();
    let cell = "{\"what\":\"bench\",\"backend\":\"neon\",\"energy_net_mj\":190.0}\n";
    let soak = format!("{SOAKED}{cell}");
    day(
        &desk,
        "day",
        &[
            ("info", "done"),
            ("grid-cpu", "done"),
            ("kernels", "done"),
            ("load-cold", "done"),
            ("tensorrt", "done"),
            ("idle", "done"),
            ("energy-cpu", "done"),
        ],
        &[
            ("system.out", "kernel=Linux\n"),
            ("info.out", "{\"what\":\"info\",\"machine\":{\"target\":\"host\",\"total\":[\"VDD_IN\"]}}\n"),
            ("grid-cpu.out", ROW),
            ("kernels.out", "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n"),
            (
                "load-cold.out",
                "{\"what\":\"warmup\",\"loaded\":[{\"name\":\"k1\",\"load_ms\":12.0,\"registers\":168,\
                 \"local_bytes\":24},{\"name\":\"k2\",\"load_ms\":8.0,\"registers\":32,\"local_bytes\":0}]}\n",
            ),
            (
                "tensorrt.out",
                "[I] log\n{\"what\":\"peer\",\"peer\":\"TensorRT\",\"on\":\"GPU\",\"shape\":\"s\",\"elsa_ms\":0.5,\
                 \"peer_ms\":0.75}\n",
            ),
            ("idle.rails.tsv", rails),
            ("energy-cpu.rails.tsv", busy.as_str()),
            ("energy-cpu.out", soak.as_str()),
            ("sensors.tsv", "/d/rail_name_0\tVDD_IN\n/sys/class/hwmon/hwmon0/name\tother\n"),
        ],
    );
    let text = desk.ok("board-report day --html page.html");
    // (3000 - 1000) mW for 10 s in 100 calls.
    for words in [
        "12 passed, 0 failed",
        "200.000 mJ by the readings",
        "they agree",
        "0.2500",
        "release of the folder",
        "spilled registers: k1.",
        "1.500",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let page = fs::read_to_string(desk.path("page.html")).unwrap();
    assert_alone(&page);
    assert!(page.contains("Board day: host") && page.contains("0.2500"), "{page}");
}

#[test]
fn failures_and_damage_have_a_status() {
    let desk = Desk::new();
    day(
        &desk,
        "failed",
        &[("info", "done"), ("verify", "failed")],
        &[("verify.err", "first\nwhy it failed\n")],
    );
    let output = desk.call("board-report failed");
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8(output.stdout).unwrap().contains("why it failed"));

    day(&desk, "cut", &[("info", "done")], &[]);
    let records = desk.path("cut/steps.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    fs::write(
        &records,
        text + "{\"what\":\"begin\",\"id\":\"soak\",\"release\":\"r\",\"at\":1}\n{\"what\":\"st",
    )
    .unwrap();
    let output = desk.call("board-report cut");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(
        text.contains("1 lines are not JSON") && text.contains("soak: began and has not ended"),
        "{text}"
    );
    desk.refused("board-report nowhere", &["DIR: nowhere: no record of a run"]);
}

#[test]
fn two_days_compare_in_bits_and_speed() {
    let desk = Desk::new();
    let steps = [("info", "done"), ("bits-cpu", "done"), ("grid-cpu", "done")];
    day(&desk, "a", &steps, &[("bits-cpu.out", "neon x 1\nneon y 2\n"), ("grid-cpu.out", ROW)]);
    let slower = ROW.replace("0.25", "0.5");
    day(&desk, "b", &steps, &[("bits-cpu.out", "neon x 1\nneon y 3\n"), ("grid-cpu.out", slower.as_str())]);
    let text = desk.ok("board-report a b");
    for words in ["1 of 2 kernels gave the same bits", "not among the other results: neon y 2", "2.000"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn masks_streams_and_states_have_tables() {
    let desk = Desk::new();
    let row = |shape: &str, ms: &str| ROW.replace("1,1,64,64,64", shape).replace("0.25", ms);
    let masks = row("4,8,64,64,64", "0.25") + &row("4,8,64,64,64,causal", "0.15");
    let run = |ms: f64| {
        format!(
            "{{\"what\":\"run\",\"backend\":\"neon\",\"shape\":{{\"batch\":1,\"heads\":1,\"queries\":16,\
             \"keys\":2048,\"dim\":64}},\"total_ms\":{ms},\"read_ms\":1.5,\"chunk_keys\":512}}\n"
        )
    };
    let streams = run(30.0) + &run(8.0) + &run(10.0) + &row("1,1,16,2048,64", "5.0");
    let slower = ROW.replace("0.25", "0.5");
    day(
        &desk,
        "day",
        &[
            ("info", "done"),
            ("masks-cpu", "done"),
            ("streams-cpu", "done"),
            ("grid-cpu", "done"),
            ("other-mode-grid-cpu", "done"),
            ("locked-grid-gpu", "skipped"),
            ("other-mode-grid-gpu", "absent"),
        ],
        &[
            ("masks-cpu.out", masks.as_str()),
            ("streams-cpu.out", streams.as_str()),
            ("grid-cpu.out", ROW),
            ("other-mode-grid-cpu.out", slower.as_str()),
            ("locked-grid-gpu.err", "30 minutes are used up\n"),
            ("other-mode-grid-gpu.err", "nvpmodel: no other mode\n"),
        ],
    );
    let records = desk.path("day/steps.jsonl");
    let text = fs::read_to_string(&records).unwrap();
    fs::write(&records, text.replace("\"host\"", "\"jetson-tx2\"")).unwrap();
    let text = desk.ok("board-report day");
    // A row of the section that follows the title.
    let row = |title: &str, words: &[&str]| {
        let section = text.split("\n== ").find_map(|section| section.strip_prefix(title)).unwrap_or_default();
        let found = section.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "{title}: {words:?}: {text}");
    };
    row("Masks", &["masks-cpu", "none", "0.2500", "1.000"]);
    row("Masks", &["masks-cpu", "causal", "0.1500", "0.600"]);
    row("Streams", &["streams-cpu", "1,1,16,2048,64", "512", "10.000", "1.500", "5.000", "0.500"]);
    row("Power modes and clocks", &["grid-cpu", "1,1,64,64,64", "0.2500", "0.5000"]);
    row("The day", &["No time was left for 1 steps"]);
    row("What remains unknown", &["the paper's grid with fixed clocks", "skipped: 30 minutes are used up"]);
    row("What remains unknown", &["the paper's grid in another", "absent: nvpmodel: no other mode"]);
}
