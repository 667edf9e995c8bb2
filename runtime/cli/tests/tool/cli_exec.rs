//! Tests `elsa bench --exec` through the binary, on this machine. The tests of the module itself use simulated boards.

use crate::common::{Desk, elsa, emulated, lines, said, tool, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Requires exit status 0 or 5. Status 5 means that concurrent tests disturbed the program.
fn require_done(output: &Output) {
    assert!(matches!(output.status.code(), Some(0 | 5)), "{:?}: {}", output.status, said(output));
}

/// Returns the rows among the records that a call printed. All lines are records.
fn rows(output: &[u8]) -> Vec<Value> {
    lines(output).into_iter().filter(|line| line["what"] == "exec").collect()
}

#[test]
fn records_are_alone_on_standard_output() {
    // A child of the program burns, and the program waits for it.
    let burn =
        "echo from the program; (i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done) & wait; sleep 0.3";
    let output = elsa(&["bench", "--json", "--exec", "sh", "-c", burn, "--json"]);
    require_done(&output);
    assert!(said(&output).contains("from the program\n"), "{}", said(&output));
    let records = lines(&output.stdout);
    let kinds: Vec<&str> = records.iter().map(|record| record["what"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("start", "end"));
    let rows = rows(&output.stdout);
    let row = &rows[0];
    assert_eq!((rows.len(), &row["phase"], &row["program"]), (1, &Value::Null, &"sh".into()));
    assert_eq!((&row["exit_status"], &row["signal"]), (&0.into(), &Value::Null));
    let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let used = number("user_s") + number("system_s");
    assert!(used > 0.01 && number("seconds") > 0.3 && number("peak_bytes") > 1e5, "{row}");
    // The program and the tool are not a load of others.
    if !emulated() && !row["cpu_s"].is_null() {
        assert!((number("cpu_s") - used).abs() <= 0.1 + 0.5 * used, "{row}");
    }
    let end = &records[records.len() - 1];
    assert_eq!((&end["cells"], end["clean_cells"] == 1), (&1.into(), row["clean"] == true));
}

#[test]
fn the_rows_follow_the_output_of_the_program() {
    let output = elsa(&["bench", "--exec", "sh", "-c", "echo from the program"]);
    require_done(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("from the program\n") < at("\nphase ") && at("\nphase ") < at("\nwhole run "), "{text}");
    assert!(at("\nwhole run ") < at("      sh: exit status 0; CPU "), "{text}");
    assert!(!text.contains("batch"), "{text}");
}

#[test]
fn phases_come_from_standard_input() {
    let words = tool();
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        // The input of the program is empty, so cat ends at once and reads no mark.
        .args(["bench", "--json", "--marks", "-", "--exec", "sh", "-c", "cat; sleep 2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n\ntwo").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    require_done(&output);
    let rows = rows(&output.stdout);
    let names: Vec<&str> = rows.iter().map(|row| row["phase"].as_str().unwrap_or("-")).collect();
    assert_eq!(names, ["start", "one", "two", "-"]);
    let begin = |row: &Value| row["begin_s"].as_f64().unwrap();
    assert!(rows[..3].windows(2).all(|pair| begin(&pair[0]) <= begin(&pair[1])), "{rows:?}");
    assert!(begin(&rows[3]) <= begin(&rows[0]) && rows[2]["seconds"].as_f64() > Some(1.0), "{rows:?}");
}

#[test]
fn a_signal_goes_to_the_program_and_the_rows_are_written() {
    let desk = Desk::new();
    let script = desk.path("program.sh");
    let program = "trap 'echo caught; exit 7' TERM\n: > \"$1\"\nwhile :; do sleep 0.05; done\n";
    std::fs::write(&script, program).unwrap();
    let mut child = desk.start("", "bench --csv @a.csv --exec sh @program.sh @ready");
    wait_for("the program", || desk.path("ready").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{text}{}", said(&output));
    assert!(text.contains("caught\n") && text.contains("sh: exit status 7; CPU "), "{text}");
    assert!(said(&output).ends_with("elsa: --exec: sh: exit status 7\n"), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(desk.path("a.csv")).unwrap().lines().count(), 2);
}

#[test]
fn an_interrupt_of_the_terminal_reaches_the_program_once() {
    let desk = Desk::new();
    let program =
        "trap 'echo caught >> \"$1\"' INT\n: > \"$2\"\nwhile [ ! -e \"$3\" ]; do sleep 0.05; done\nexit 7\n";
    std::fs::write(desk.path("program.sh"), program).unwrap();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(name).unwrap();
    // The terminal becomes that of a new session, with the tool in its foreground.
    let child = Command::new("env")
        .args(["--default-signal", "setsid", "--ctty"])
        .args(tool())
        .args(desk.words("bench --exec sh @program.sh @caught @ready @stop"))
        .stdin(slave)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the program", || desk.path("ready").exists());
    let mut master = File::from(master);
    master.write_all(b"\x03").unwrap();
    wait_for("the interrupt", || desk.path("caught").exists());
    // A second interrupt, which the tool would have passed on, arrives in this time.
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(desk.path("stop"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(desk.path("caught")).unwrap(), "caught\n");
    assert!(String::from_utf8_lossy(&output.stdout).contains("sh: exit status 7; CPU "));
}

#[test]
fn nonsense_is_refused() {
    let desk = Desk::new();
    // An emulator starts a program before it knows whether it exists.
    if !emulated() {
        let parts = "--exec: |/none/program|No such file|allowed: a program in PATH";
        desk.refuse_all([("bench --exec /none/program -x", parts)]);
    }
    desk.refuse_all([("bench --exec", "--exec: no value")]);
    for flag in ["--shape 1,1,4,4,4", "--soak 1s", "--backend scalar", "--seconds 1", "--heads 1", "--save"] {
        let name = flag.split(' ').next().unwrap();
        desk.refuses(&format!("bench {flag} --exec true"), &[name, "--exec", "allowed: one of the two"]);
    }
    std::fs::write(desk.path("file"), "kept").unwrap();
    desk.refuses("bench --marks @file --exec true", &["--marks: ", "file: not a named pipe", "allowed"]);
    desk.refuses("bench --marks @none/marks --exec true", &["--marks: ", "No such file"]);
    let output = desk.call("bench --marks @marks");
    assert!(output.status.code() == Some(2) && said(&output).contains("--exec"), "{}", said(&output));
}
