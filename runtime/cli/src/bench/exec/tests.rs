//! Tests on trees of files that simulate a board. The program itself changes the power of the simulated rails.

use super::exec;
use crate::bench::args::BenchArgs;
use crate::error::Error;
use clap::Parser;
use elsa_board::Root;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Power of the idle board, and power while the program burns, in mW.
const POWERS: [f64; 2] = [5000.0, 10_000.0];
/// Power of the GPU's rail, which never changes, in mW.
const GPU: f64 = 1000.0;
/// Folder of the simulated chip's files.
const CHIP: &str = "sys/bus/i2c/devices/1-0040/hwmon/hwmon1";

/// A command line with the flags of `elsa bench`.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn put(folder: &Path, file: &str, contents: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

/// Writes a board with an input rail, two more rails, and a thermal zone. It reports neither clocks nor processes, so
/// nothing can disturb a program.
fn board(folder: &Path) {
    put(folder, "sys/bus/i2c/devices/1-0040/name", "ina3221\n");
    let rails = [("VDD_IN", "1000"), ("VDD_GPU", "200"), ("VDD_SOC", "300")];
    for (n, (name, milliamperes)) in (1..).zip(rails) {
        put(folder, &format!("{CHIP}/in{n}_label"), name);
        put(folder, &format!("{CHIP}/in{n}_input"), "5000\n");
        put(folder, &format!("{CHIP}/curr{n}_input"), milliamperes);
    }
    put(folder, &format!("{CHIP}/update_interval"), "10\n");
    put(folder, "sys/class/thermal/thermal_zone0/type", "tj\n");
    put(folder, "sys/class/thermal/thermal_zone0/temp", "41000\n");
}

/// Runs a command line whose files are in `folder`. In `flags`, `@name` stands for the path of the file `name` there.
/// The words after `--exec` are `program`.
fn run(folder: &Path, flags: &str, program: &[&str]) -> Result<(), Error> {
    let at = format!("{}/", folder.display());
    let flags = flags.split_whitespace().map(|word| word.replace('@', &at));
    let words = ["bench".to_owned()].into_iter().chain(flags).chain(["--exec".to_owned()]);
    let words = words.chain(program.iter().map(|word| (*word).to_owned()));
    let line = Line::try_parse_from(words).unwrap();
    let given: Vec<OsString> = program.iter().map(OsString::from).collect();
    assert_eq!(line.bench.exec, Some(given.clone()));
    exec(&line.bench, &given, &Root::new(folder))
}

/// Reads a table as one map for each row. Each map contains the values by the names of their columns.
fn table(path: &Path) -> Vec<HashMap<String, String>> {
    csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
}

fn number(row: &HashMap<String, String>, name: &str) -> f64 {
    row[name].parse().unwrap_or_else(|_| panic!("{name}: {row:?}"))
}

/// Checks a mean that a busy machine may sample late.
fn near(found: f64, expected: f64, of: f64, what: &str) {
    assert!((found - expected).abs() <= 0.2 * of, "{what}: {found}, not {expected}");
}

#[test]
fn the_energy_of_phases_is_that_of_the_rails() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    board(folder);
    let (marks, current, zone) = (
        folder.join("marks"),
        folder.join(CHIP).join("curr1_input"),
        folder.join("sys/class/thermal/thermal_zone0/temp"),
    );
    let script = "echo burn > \"$1\"; echo 2000 > \"$2\"; echo 45000 > \"$3\"; i=0
        while [ $i -lt 2000 ]; do i=$((i + 1)); done; sleep $4
        echo rest > \"$1\"; echo 1000 > \"$2\"; echo 42000 > \"$3\"; sleep $4";
    let [marks, current, zone] = [&marks, &current, &zone].map(|path| path.to_str().unwrap());
    let flags = "--csv @a.csv --html @a.html --marks @marks";
    let mut rows = Vec::new();
    // A busy machine may take too few readings of a short phase for its energy.
    for seconds in ["2", "10"] {
        run(folder, flags, &["sh", "-c", script, "sh", marks, current, zone, seconds]).unwrap();
        assert!(!Path::new(marks).exists());
        rows = table(&folder.join("a.csv"));
        if rows[1..].iter().all(|row| !row["energy_mj"].is_empty()) {
            break;
        }
    }
    let names: Vec<&str> = rows.iter().map(|row| row["phase"].as_str()).collect();
    assert_eq!(names, ["start", "burn", "rest", ""]);
    let [idle_mw, burn_mw] = POWERS;
    let [_, burn, rest, whole] = &rows[..] else { panic!("{rows:?}") };
    for (row, mw) in [(burn, burn_mw), (rest, idle_mw)] {
        let seconds = number(row, "seconds");
        // A poll may see the mark of the first phase late.
        assert!((1.8..60.0).contains(&seconds), "{row:?}");
        near(number(row, "power_mw"), mw, idle_mw, &row["phase"]);
        near(number(row, "idle_power_mw"), idle_mw, idle_mw, "idle");
        let [energy, net] = ["energy_mj", "energy_net_mj"].map(|name| number(row, name));
        near(energy, mw * seconds, idle_mw * seconds, "energy");
        near(net, (mw - idle_mw) * seconds, idle_mw * seconds, "energy without idle");
        let rails: Value = serde_json::from_str(&row["rails"]).unwrap();
        assert_eq!((&rails[0]["name"], &rails[1]["name"]), (&"VDD_GPU".into(), &"VDD_SOC".into()));
        near(rails[0]["energy_mj"].as_f64().unwrap(), GPU * seconds, GPU * seconds, "rail");
        near(rails[0]["energy_net_mj"].as_f64().unwrap(), 0.0, GPU * seconds, "rail without idle");
        assert_eq!(
            (row["clean"].as_str(), row["exit_status"].as_str(), row["user_s"].as_str()),
            ("true", "", "")
        );
    }
    // The readings of the board exclude the idle second before the program.
    assert!(number(whole, "begin_s") >= 1.0);
    let parts: f64 = rows[..3].iter().map(|row| number(row, "seconds")).sum();
    near(number(whole, "seconds"), parts, parts, "seconds");
    near(number(whole, "energy_net_mj"), number(burn, "energy_net_mj"), burn_mw, "sum");
    assert_eq!((number(whole, "temp_c"), number(whole, "temp_last_c")), (45.0, 42.0));
    assert_eq!((number(burn, "temp_c"), number(rest, "temp_last_c")), (45.0, 42.0));
    assert_eq!((whole["program"].as_str(), whole["exit_status"].as_str()), ("sh", "0"));
    assert!(number(whole, "user_s") + number(whole, "system_s") > 0.0 && number(whole, "peak_bytes") > 1e5);
    let page = fs::read_to_string(folder.join("a.html")).unwrap();
    for part in ["burn", "rest", "whole run", "VDD_GPU ", "4 rows in ", "Temperature"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_program_that_fails_gives_its_status_and_its_rows() {
    let cases =
        [("exit 7", 7, "exit status 7", ["7", ""]), ("kill -9 $$", 128 + 9, "ended by signal 9", ["", "9"])];
    for (script, status, how, [exit, signal]) in cases {
        let folder = tempfile::tempdir().unwrap();
        let error = run(folder.path(), "--csv @a.csv", &["sh", "-c", script]).expect_err(script);
        assert_eq!((error.status(), error.line()), (status, format!("--exec: sh: {how}")));
        let rows = table(&folder.path().join("a.csv"));
        assert_eq!(
            (rows.len(), rows[0]["exit_status"].as_str(), rows[0]["signal"].as_str()),
            (1, exit, signal)
        );
        // The tree reports no power and no processes.
        let unknown = ["power_mw", "energy_mj", "load", "cpu_s", "temp_c"].map(|name| rows[0][name].as_str());
        assert_eq!(unknown, [""; 5]);
    }
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "an emulator starts a program before it knows whether it exists"
)]
fn a_program_that_does_not_exist_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "no-program", "text");
    for (program, reason) in [("@none", "No such file"), ("@no-program", "denied")] {
        let program = program.replace('@', &format!("{}/", folder.path().display()));
        let flags = "--csv @a.csv --html @a.html --marks @marks";
        let error = run(folder.path(), flags, &[program.as_str(), "-x"]).expect_err(&program);
        assert_eq!(error.status(), 2);
        let line = error.line();
        assert!(line.starts_with(&format!("--exec: {program}: ")) && line.contains(reason), "{line}");
        assert!(line.contains("; allowed: a program in PATH"), "{line}");
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["no-program"]);
    }
}

#[test]
fn marks_of_a_writer_that_vanishes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let marks = folder.path().join("marks");
    // The first writer ends within a line, and the second makes its mark just before the program ends.
    let script = "(printf 'one\\ntw' > \"$1\"); sleep 0.5; printf 'last' > \"$1\"";
    let program = ["sh", "-c", script, "sh", marks.to_str().unwrap()];
    run(folder.path(), "--csv @a.csv --marks @marks", &program).unwrap();
    let rows = table(&folder.path().join("a.csv"));
    let names: Vec<&str> = rows.iter().map(|row| row["phase"].as_str()).collect();
    assert_eq!(names, ["start", "one", "tw", "last", ""]);
    assert!(number(&rows[2], "seconds") > 0.4, "{rows:?}");
    // Without a mark there is only the whole run.
    run(folder.path(), "--csv @b.csv --marks @marks", &["true"]).unwrap();
    let rows = table(&folder.path().join("b.csv"));
    assert_eq!((rows.len(), rows[0]["phase"].as_str(), rows[0]["program"].as_str()), (1, "", "true"));
}
