//! Tests `elsa bench --compare` and `--spot` with hostile tables, and with closed outputs.
#![cfg(target_os = "linux")]

use crate::common::{Desk, lines, noise, said};
use std::fmt::Write;

const NAMES: &str = "workload,shape,dtype,method,backend,kernel,threads,samples,p50_ms,noise,clean";

fn table(desk: &Desk, name: &str, rows: impl Iterator<Item = (String, f64)>) {
    let mut text = format!("{NAMES}\n");
    for (shape, ms) in rows {
        writeln!(text, ",\"{shape}\",f32,elsa,avx2,k,1,9,{ms},0.01,true").unwrap();
    }
    std::fs::write(desk.path(name), text).unwrap();
}

/// Checks that the time to compare two tables is not quadratic in the number of rows. Comparing every pair of rows
/// would mean 1.6 billion comparisons of five texts each, which would take minutes.
#[test]
fn many_rows_are_compared_by_name() {
    let desk = Desk::new();
    let rows = 40_000;
    let shape = |i: usize| format!("1,1,{i},{i},64");
    table(&desk, "a.csv", (0..rows).map(|i| (shape(i), 1.0)));
    // The second table has the rows in reverse order, a new row in front, and one row twice. Of this row, the first
    // value counts.
    let other = (0..rows).rev().map(|i| (shape(i), if i == 7 { 2.0 } else { 1.0 }));
    table(&desk, "b.csv", std::iter::once(("new".into(), 1.0)).chain(other).chain([(shape(3), 1.0)]));
    let output = desk.call("bench --compare @a.csv @b.csv --json");
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let lines = lines(&output.stdout);
    let count = |key: &str, value: &str| lines.iter().filter(|line| line[key] == value).count();
    assert_eq!((lines.len(), count("verdict", "slower"), count("verdict", "same")), (rows + 2, 1, rows));
    let slower = lines.iter().find(|line| line["verdict"] == "slower").unwrap();
    assert_eq!((&slower["shape"], &slower["ratio"]), (&"1,1,7,7,64".into(), &2.0.into()));
    assert_eq!(lines.iter().find(|line| line["what"] == "alone").unwrap()["shape"], "new");
}

#[test]
fn long_names_are_printed_without_their_width() {
    let desk = Desk::new();
    for length in [65_535, 65_536, 1_000_000] {
        table(&desk, "long.csv", [("x".repeat(length), 1.0), ("short".into(), 1.0)].into_iter());
        for more in ["", " --json"] {
            let text = desk.ok(&format!("bench --compare @long.csv @long.csv{more}"));
            assert!(
                text.contains(&"x".repeat(length)) && text.len() < length + 2000,
                "{length}: {}",
                text.len()
            );
        }
    }
}

#[test]
fn what_is_no_file_is_neither_read_nor_waited_for() {
    let desk = Desk::new();
    table(&desk, "good.csv", [("s".into(), 1.0)].into_iter());
    let pipe = desk.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::fs::create_dir(desk.path("spot")).unwrap();
    let refused = |line: &str, words: &[&str]| {
        let output = desk.call(line);
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.lines().count() == 1, "{line}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{line}: {text}");
    };
    for path in ["/dev/zero", "@pipe", "@spot", "/dev/stdin"] {
        refused(&format!("bench --compare @good.csv {path}"), &["--compare: ", "not a regular file"]);
        refused(&format!("bench --compare {path} @good.csv"), &["--compare: ", "not a regular file"]);
    }
    let sparse = std::fs::File::create(desk.path("huge.csv")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    refused("bench --compare @good.csv @huge.csv", &["--compare: ", "huge.csv", "more than 67108864 bytes"]);
    for target in ["/dev/zero", "../pipe"] {
        let link = desk.path("spot/20261126T000000Z-host.csv");
        std::os::unix::fs::symlink(target, &link).unwrap();
        refused("bench --spot @spot --threads 1", &["--spot: ", "not a regular file"]);
        std::fs::remove_file(link).unwrap();
    }
    // A pipe without a reader is refused as an output of any flag.
    for name in ["q", "k", "v"] {
        desk.f32(&format!("{name}.npy"), &[1, 1, 4, 4], &noise(1, 16));
    }
    let run = "run --q @q.npy --k @k.npy --v @v.npy";
    for line in [
        format!("{run} --out @pipe"),
        format!("{run} --out @y.npy --lse-out @pipe"),
        format!("{run} --out @y.npy --state-out @pipe"),
        format!("{run} --out @pipe --host-budget 256MiB"),
        "verify --q @q.npy --k @k.npy --v @v.npy --html @pipe".into(),
        "bench --shape 1,1,4,4,4 --seconds 0.01 --csv @pipe".into(),
    ] {
        refused(&line, &["pipe: cannot be written: a pipe or a device that nothing reads"]);
        assert!(!desk.path("y.npy").exists());
    }
    // The pipe receives the complete file if it has a reader.
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
    desk.ok(&format!("{run} --out @y.npy"));
    loop {
        let output = desk.call(&format!("{run} --out @pipe"));
        if output.status.success() {
            break;
        }
        assert!(said(&output).contains("nothing reads"), "{}", said(&output));
    }
    assert_eq!(reader.join().unwrap(), std::fs::read(desk.path("y.npy")).unwrap());
}
