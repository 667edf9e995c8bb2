//! Tests `elsa bench` through the binary. Tests run concurrently and the machine is therefore not quiet, so exit status
//! 5 is accepted.

use crate::common::{Busy, Desk, bench, cells, elsa, lines, tool};
use serde_json::Value;

const FIELDS: [&str; 32] = [
    "what",
    "backend",
    "kernel",
    "method",
    "dtype",
    "batch",
    "heads",
    "kv_heads",
    "queries",
    "n",
    "d",
    "shape",
    "samples",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "max_ms",
    "cold_ms",
    "gflops",
    "tokens_per_s",
    "workspace_bytes",
    "alloc_bytes",
    "speedup_vs_math",
    "rel_l2",
    "certified",
    "threads",
    "stable",
    "clean",
    "marks",
    "emulated",
    "power_readings",
    "throttled",
];
/// Fields that are null if the shape does not define them.
const SEMANTICS: [&str; 5] = ["causal", "window", "mask", "windows", "workload"];
/// Fields that are null if there are too few pairs of slices, if a method was not measured, or if there is no GPU.
const METHOD: [&str; 9] = [
    "ratio_low",
    "ratio_high",
    "noise",
    "differs",
    "speedup_vs_rows",
    "packing_ms",
    "enqueue_p50_ms",
    "wait_p50_ms",
    "device_p50_ms",
];
/// Fields that are null if the board does not report them.
const BOARD: [&str; 10] = [
    "energy_mj",
    "energy_net_mj",
    "power_mw",
    "idle_power_mw",
    "power_quantum_mw",
    "temp_c",
    "temp_zone",
    "gpu_mhz",
    "cpu_mhz",
    "emc_mhz",
];

#[test]
fn bench_prints_every_field_for_every_shape_and_method() {
    let output = bench(&[
        "--json",
        "--seconds",
        "0.02",
        "--threads",
        "2",
        "--shape",
        "1,2,33,70,16",
        "--shape",
        "2,1,5,9,64",
    ]);
    let records = lines(&output.stdout);
    let kinds: Vec<&str> = records.iter().map(|record| record["what"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("start", "end"));
    assert_eq!((records[0]["cores"].is_u64(), &records[records.len() - 1]["cells"]), (true, &4.into()));
    let all = cells(&output.stdout);
    assert_eq!(all.len(), 4);
    for (record, (method, n, d)) in
        all.iter().zip([("elsa", 70, 16), ("math", 70, 16), ("elsa", 9, 64), ("math", 9, 64)])
    {
        assert_eq!((&record["method"], &record["n"], &record["d"]), (&method.into(), &n.into(), &d.into()));
        for field in FIELDS {
            assert!(!record[field].is_null(), "{field}: {record}");
        }
        for field in SEMANTICS.into_iter().chain(METHOD).chain(BOARD) {
            assert!(record.as_object().unwrap().contains_key(field), "{field}");
        }
        let count = FIELDS.len() + SEMANTICS.len() + METHOD.len() + BOARD.len();
        assert_eq!((record.as_object().unwrap().len(), &record["threads"]), (count, &2.into()));
        assert!(["seen", "not seen", "cannot be told"].contains(&record["throttled"].as_str().unwrap()));
        for field in ["enqueue_p50_ms", "wait_p50_ms", "device_p50_ms"] {
            assert_eq!(record[field].is_number(), record["backend"] == "cuda", "{field}");
        }
        let number = |field: &str| record[field].as_f64().unwrap();
        assert!(number("samples") > 0.0 && number("p50_ms") > 0.0 && number("cold_ms") > 0.0);
        assert!(number("p50_ms") <= number("p90_ms") && number("p90_ms") <= number("p99_ms"));
        assert!(number("p99_ms") <= number("max_ms"));
        assert_eq!(number("alloc_bytes"), 0.0, "{record}");
        assert!(number("rel_l2") > 0.0 && number("rel_l2") < 1e-6, "{record}");
        let flops = 4.0 * number("batch") * number("heads") * number("n") * number("d");
        let queries = if n == 70 { 33.0 } else { 5.0 };
        let gflops = flops * queries / (number("p50_ms") * 1e6);
        assert!((number("gflops") / gflops - 1.0).abs() < 1e-9);
        let tokens = number("batch") * queries / (number("p50_ms") * 1e-3);
        assert!((number("tokens_per_s") / tokens - 1.0).abs() < 1e-9);
    }
}

#[test]
fn the_wide_table_names_every_row_and_ends_in_the_form_of_the_paper() {
    let forms = ["1,1,64,64,64", "1,1,64,64,64,mask=padding", "1,1,64,64,64,mask=bias", "1,2,64,64,64"];
    let mut args = vec!["--wide", "--seconds", "0.01", "--dtype", "f16"];
    args.extend(forms.iter().flat_map(|shape| ["--shape", *shape]));
    let text = String::from_utf8(bench(&args).stdout).unwrap();
    // The columns are batch, heads, queries, keys, d, form, type, method, back end and threads.
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> =
        text.lines().map(words).filter(|row| row.len() > 9 && row[0] == "1" && row[4] == "64").collect();
    let found: Vec<Vec<&str>> =
        rows.iter().map(|row| [1, 2, 3, 5, 7].iter().map(|at| row[*at].as_str()).collect()).collect();
    let wanted: Vec<Vec<&str>> = [("1", "-"), ("1", "mask=padding"), ("1", "mask=bias"), ("2", "-")]
        .into_iter()
        .flat_map(|(heads, form)| ["elsa", "math"].map(|method| vec![heads, "64", "64", form, method]))
        .collect();
    assert_eq!(found, wanted, "{text}");
    assert!(rows.iter().all(|row| row[6] == "f16" && row[9].parse::<u32>().is_ok()), "{text}");
    assert!(rows.iter().all(|row| row.last().unwrap().starts_with("attention_")), "{text}");
    let table: Vec<Vec<String>> =
        text.lines().skip_while(|line| !line.starts_with("f16, batch 1, 1 head,")).map(words).collect();
    assert!(table[1].contains(&"padded".to_owned()) && table[1].contains(&"biased".to_owned()), "{text}");
    // The row has the tokens and the times of math and elsa; the last three columns are padded, biased and workspace.
    let ms = |word: &String| word.parse::<f64>().is_ok_and(|ms| ms > 0.0);
    let row = &table[2];
    assert!(row[0] == "64" && row[1..3].iter().chain(&row[row.len() - 3..]).all(ms), "{row:?}");
    assert_eq!((table[3][0].as_str(), table[3][1].as_str(), table.len()), ("100", "-", 15), "{text}");
    assert!(text.trim_end().lines().last().unwrap().starts_with("8 cells, "), "{text}");
}

#[test]
fn the_short_table_has_a_row_of_80_columns_for_each_shape() {
    let shapes = ["1,2,33,70,16", "64,3,49,49,32,swin=56x56:3"];
    let mut args = vec!["--seconds", "0.01", "--dtype", "bf16"];
    args.extend(shapes.iter().flat_map(|shape| ["--shape", *shape]));
    let output = bench(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut marked = false;
    for (shape, row) in shapes.iter().zip(text.lines().skip(3)) {
        assert!(row.starts_with(&format!("{shape} bf16 ")) && row.len() <= 80, "{text}");
        // The columns after the shape and the type are math, elsa, ratio, and the peak memory with its unit.
        let words: Vec<&str> = row.split_whitespace().skip(2).collect();
        let number = |word: &str| word.trim_end_matches('~').parse::<f64>().is_ok_and(|x| x > 0.0);
        assert!(words[..4].iter().all(|word| number(word)) && words[4].ends_with('B'), "{text}");
        marked |= words.get(5).is_some_and(|mark| mark.starts_with('*'));
    }
    assert_eq!(marked, text.contains("\n* "), "{text}");
    assert!(text.contains("\ncomputed by ") && !text.contains('\u{1b}'), "{text}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code() == Some(5), said.contains("--wait waits for a quiet machine"), "{said}");
}

#[test]
fn a_table_is_saved_only_in_a_checkout_or_in_a_folder_that_is_named() {
    let desk = Desk::new();
    let mut command = std::process::Command::new(&tool()[0]);
    let words = "bench --seconds 0.01 --shape 1,1,4,4,4 --save";
    command.args(&tool()[1..]).args(words.split(' ')).current_dir(desk.0.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("--save DIR"), "{said}");
    assert!(desk.list().is_empty() && output.stdout.is_empty(), "{:?}", desk.list());
}

#[test]
fn bench_measures_every_form_of_a_shape() {
    let forms = [
        ("2,4,13,70,16,mask=bool", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=true", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=padding", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=float", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=bias", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=batch", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=row", [2, 4, 4, 13]),
        ("2,4,13,70,16,kv=2,causal,mask=bias", [2, 4, 2, 13]),
        ("1,4,70,70,16,kv=1,causal=bottom-right,window=9:-1", [1, 4, 1, 70]),
        ("6,2,16,16,8,swin=8x12:1", [6, 2, 2, 16]),
    ];
    let mut args = vec!["--json", "--seconds", "0.01"];
    args.extend(forms.iter().flat_map(|(shape, _)| ["--shape", *shape]));
    let all = cells(&bench(&args).stdout);
    assert_eq!(all.len(), 2 * forms.len());
    for (records, (shape, sizes)) in all.chunks(2).zip(forms) {
        for record in records {
            assert_eq!(record["shape"], shape);
            let found =
                ["batch", "heads", "kv_heads", "queries"].map(|field| record[field].as_u64().unwrap());
            assert_eq!(found, sizes, "{record}");
            assert_eq!(record["mask"].as_str(), shape.split_once("mask=").map(|(_, form)| form));
            assert_eq!((&record["certified"], &record["alloc_bytes"]), (&true.into(), &0.into()), "{record}");
        }
        // Both methods compute the same data, so both are close to the oracle.
        let [elsa, math] = [0, 1].map(|i| records[i]["rel_l2"].as_f64().unwrap());
        assert!(elsa > 0.0 && elsa < 1e-6 && math > 0.0 && math < 1e-6, "{shape}: {elsa} {math}");
    }
    let causal = |i: usize| (all[i]["causal"].clone(), all[i]["window"].clone());
    assert_eq!(causal(0), (Value::Null, Value::Null));
    assert_eq!(causal(14), ("top-left".into(), Value::Null));
    assert_eq!(causal(16), ("bottom-right".into(), vec![9, -1].into()));
    assert_eq!(all[16]["windows"], Value::Null);
    let grid = serde_json::json!({ "picture": [8, 12], "size": [4, 4], "shift": [1, 1] });
    assert_eq!(all[18]["windows"], grid);
}

#[test]
fn bench_measures_one_method_when_asked() {
    let output = bench(&["--json", "--seconds", "0.01", "--method", "elsa", "--shape", "1,1,4,4,4"]);
    let all = cells(&output.stdout);
    assert_eq!((all.len(), &all[0]["method"], &all[0]["speedup_vs_math"]), (1, &"elsa".into(), &Value::Null));
}

#[test]
fn a_baseline_of_one_row_at_a_time_needs_no_other_library() {
    let line =
        "--seconds 0.02 --threads 2 --method all --shape 2,4,35,70,16,kv=2,causal=bottom-right,mask=padding";
    let words: Vec<&str> = line.split(' ').collect();
    let all = cells(&bench(&[&["--json"][..], &words[..]].concat()).stdout);
    let methods: Vec<&str> = all.iter().map(|row| row["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["elsa", "math", "rows"]);
    for row in &all {
        assert!(row["rel_l2"].as_f64().unwrap() < 1e-6 && row["alloc_bytes"] == 0, "{row}");
        assert!(row["speedup_vs_rows"].as_f64().unwrap() > 0.0, "{row}");
    }
    let rows = &all[2];
    assert_eq!((&rows["speedup_vs_rows"], &rows["backend"]), (&1.0.into(), &"scalar".into()));
    assert_eq!((&rows["threads"], &rows["workspace_bytes"]), (&2.into(), &(2 * 32 * 4).into()));
    assert!(rows["ratio_low"].is_null() && rows["speedup_vs_math"].is_number(), "{rows}");
    let text = String::from_utf8(bench(&words).stdout).unwrap();
    let below = text.lines().find(|line| line.starts_with("  rows: ")).unwrap();
    assert!(below.ends_with(" times elsa"), "{text}");

    let packed = elsa(&["bench", "--method", "rows", "--shape", "4,2,24,24,8,packed=6"]);
    let said = String::from_utf8_lossy(&packed.stderr);
    let named = said.contains("--method: rows with packed sequences; allowed: elsa");
    assert!(packed.status.code() == Some(2) && named, "{said}");
}

#[test]
fn bench_refuses_nonsense() {
    let desk = Desk::new();
    for [flag, value, part] in [
        ["--shape", "1,2,3,4", "D: missing"],
        ["--shape", "1,0,3,4,5", "H: '0'"],
        ["--shape", "1,4,3,4,5,kv=3", "kv: '3'"],
        ["--shape", "1,2,3,4,5,mask=flot", "mask: 'flot'"],
        ["--shape", "3,2,16,16,8,swin=8x8", "swin: 3 sequences"],
        [
            "--shape",
            "1,1,4000000000,4000000000,64,mask=bool",
            "[1, 1, 4000000000, 4000000000] cannot be indexed",
        ],
        ["--shape", "2,1,8,8,8,packed=9", "packed: '9'"],
        ["--shape", "vit", "'vit'; allowed: vit-b16-224, "],
        ["--workload", "vit-b16", "did you mean vit-b16-224?"],
        ["--workload", "swin", "allowed: vit-b16-224, "],
        ["--warmup", "-1", "milliseconds"],
        ["--iterations", "0", "from 1"],
        ["--soak", "10", "10m"],
        ["--csv", "/dev/null/a.csv", "cannot be written"],
        ["--html", "/", "a folder"],
        ["--save", "/dev/null/x", "cannot be written"],
        ["--seconds", "-1", "seconds"],
        ["--heads", "0", "from 1"],
        ["--dtype", "f64", "bf16"],
    ] {
        desk.refuses(&format!("bench {flag} {value}"), &[flag, part, "allowed"]);
    }
}

#[test]
fn a_shape_beyond_all_memory_is_an_error() {
    // The keys would need about a thousand terabytes. The size does not overflow, but the system refuses the memory.
    let output = elsa(&["bench", "--shape", "1,1,1,4000000000000,64"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(3), 1), "{text}");
    assert!(text.contains("memory") && text.contains("shape"), "{text}");
}

#[test]
fn workloads_are_measured_by_name() {
    let output = bench(&[
        "--json",
        "--seconds",
        "0.005",
        "--workload",
        "bert-sst2",
        "--shape",
        "4,2,24,24,8,packed=6",
    ]);
    let all = cells(&output.stdout);
    let found: Vec<[&str; 3]> = all
        .iter()
        .map(|row| ["workload", "shape", "method"].map(|field| row[field].as_str().unwrap_or("-")))
        .collect();
    // The method math does not support packed sequences.
    let sst2 = "8,12,64,64,64,mask=padding";
    assert_eq!(
        found,
        [["-", "4,2,24,24,8,packed=6", "elsa"], ["bert-sst2", sst2, "elsa"], ["bert-sst2", sst2, "math"]]
    );
    assert!(all.iter().all(|row| row["certified"] == true), "{all:?}");
    let packing = |row: &Value| row["packing_ms"].as_f64().is_some_and(|ms| ms > 0.0);
    assert_eq!(packing(&all[0]), all[0]["backend"] != "cuda", "{}", all[0]);
    assert!(all[1]["packing_ms"].is_null(), "{}", all[1]);
    // The four sequences have 6, 24, 12 and 18 tokens.
    let gflops = 4.0 * 2.0 * 8.0 * (36 + 576 + 144 + 324) as f64 / (all[0]["p50_ms"].as_f64().unwrap() * 1e6);
    assert!((all[0]["gflops"].as_f64().unwrap() / gflops - 1.0).abs() < 1e-9);
}

#[test]
fn the_files_say_what_the_records_say() {
    let desk = Desk::new();
    let line = "bench --json --seconds 0.02 --iterations 7 --warmup 1 --shape 1,1,32,32,8 --shape 1,1,16,16,8 \
        --csv @a.csv --html @a.html --export @a.json --save @kept";
    let output = desk.call(line);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = cells(&output.stdout);
    let read = |name: &str| std::fs::read_to_string(desk.path(name)).unwrap();
    let table = read("a.csv");
    assert_eq!(table.lines().count(), 1 + rows.len(), "{table}");
    let kept: Vec<String> = desk.list().into_iter().filter(|name| name != "kept").collect();
    assert_eq!(kept, ["a.csv", "a.html", "a.json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    for name in &kept {
        assert!(said.contains(&format!("wrote {}\n", desk.path(name).display())), "{said}");
    }
    let mut kept: Vec<_> =
        std::fs::read_dir(desk.path("kept")).unwrap().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    // Nothing is saved if other programs disturbed every cell.
    if rows.iter().any(|row| row["clean"] == true) {
        assert_eq!((kept.len(), std::fs::read_to_string(&kept[0]).unwrap()), (2, table));
        assert!(said.contains(&format!("wrote {} and ", kept[0].display())), "{said}");
        let start: Value = serde_json::from_str(&std::fs::read_to_string(&kept[1]).unwrap()).unwrap();
        assert_eq!(start, lines(&output.stdout)[0]);
    } else {
        assert!(kept.is_empty() && said.contains("--save: nothing was saved"), "{kept:?} {said}");
    }

    let page = read("a.html");
    for part in ["</html>", "<svg", "percentile(99%)", rows[0]["kernel"].as_str().unwrap(), "1,1,16,16,8"] {
        assert!(page.contains(part), "{part}");
    }
    let calls: Vec<Value> = serde_json::from_str(&read("a.json")).unwrap();
    for row in &rows {
        let name = format!("{} f32 {}", row["shape"].as_str().unwrap(), row["method"].as_str().unwrap());
        let of: Vec<&Value> = calls.iter().filter(|call| call["name"] == name).collect();
        assert_eq!(of.len() as u64, row["samples"].as_u64().unwrap(), "{name}");
        assert!(of.len() >= 7, "{name}");
        let mut last = 0.0;
        for call in of {
            let number = |field: &str| call[field].as_f64().unwrap();
            assert!(number("startComputeMs") >= last - 1e-9 && number("computeMs") > 0.0, "{call}");
            last = number("endComputeMs");
        }
    }

    // A table compared with itself shows no change.
    let same = desk.call("bench --compare @a.csv @a.csv");
    assert_eq!(same.status.code(), Some(0), "{}", String::from_utf8_lossy(&same.stderr));
}

#[test]
fn a_table_that_became_slower_is_told_by_the_status() {
    let desk = Desk::new();
    let header = "workload,shape,dtype,method,backend,kernel,threads,samples,p50_ms,noise,clean";
    let table = |rows: &[(&str, f64, bool)]| {
        let row = |(shape, ms, clean): &(&str, f64, bool)| {
            format!(",\"1,1,{shape},64\",f32,elsa,avx2,k,2,9,{ms},0.02,{clean}\n")
        };
        format!("{header}\n{}", rows.iter().map(row).collect::<String>())
    };
    std::fs::write(
        desk.path("a.csv"),
        table(&[("64,64", 1.0, true), ("9,9", 1.0, true), ("7,7", 1.0, true)]),
    )
    .unwrap();
    std::fs::write(
        desk.path("b.csv"),
        table(&[("64,64", 1.2, true), ("9,9", 0.5, true), ("7,7", 9.0, false)]),
    )
    .unwrap();
    std::fs::write(desk.path("c.csv"), table(&[("64,64", 1.03, true), ("8,8", 1.0, true)])).unwrap();
    let call = |line: &str| {
        let output = desk.call(line);
        let text = [output.stdout, output.stderr].map(|x| String::from_utf8(x).unwrap()).concat();
        (output.status.code(), text)
    };
    let (status, text) = call("bench --compare @a.csv @b.csv");
    assert_eq!(status, Some(4), "{text}");
    assert!(text.contains("1 slower, 1 faster, 0 same, 1 cannot be told"), "{text}");
    assert!(text.contains("+20.0 %") && text.contains("slower: 1 of 3 rows"), "{text}");
    let (status, text) = call("bench --compare @b.csv @a.csv --json");
    let verdicts: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    assert_eq!((status, verdicts.len(), &verdicts[0]["verdict"]), (Some(4), 3, &"faster".into()), "{text}");
    let (status, text) = call("bench --compare @a.csv @c.csv");
    assert!(status == Some(0) && text.contains("1 same") && text.matches("only in").count() == 3, "{text}");
    for line in [
        "bench --compare @a.csv @none.csv",
        "bench --compare @a.csv",
        "bench --compare @a.csv @c.csv --shape 1,1,4,4,4",
    ] {
        let (status, text) = call(line);
        assert!(status == Some(2) && text.contains("--compare"), "{line}: {text}");
    }
    std::fs::write(desk.path("d.csv"), "shape\n\"<1>\"\n").unwrap();
    let (status, text) = call("bench --compare @a.csv @d.csv");
    assert!(status == Some(2) && text.contains("d.csv: not a table of elsa bench"), "{text}");
}

#[test]
fn a_soak_meets_its_rate_and_tells_each_stretch() {
    let desk = Desk::new();
    let output = desk.call("bench --json --soak 0.4s --rate 200 --shape 1,1,16,16,8 --html @a.html");
    assert!(matches!(output.status.code(), Some(0 | 5)), "{}", String::from_utf8_lossy(&output.stderr));
    let all = lines(&output.stdout);
    let of = |what: &str| all.iter().filter(|line| line["what"] == what).collect::<Vec<_>>();
    let (stretches, whole, cell) = (of("soak"), of("soaked")[0], of("bench")[0]);
    let sum = |field: &str| stretches.iter().map(|line| line[field].as_u64().unwrap()).sum::<u64>();
    assert!((2..=16).contains(&stretches.len()), "{}", stretches.len());
    // There are 80 ticks, and each either has a call or is missed.
    let ticks = sum("calls") + sum("missed");
    assert!((79..=81).contains(&ticks) && sum("calls") > 0, "{ticks}");
    assert_eq!(
        (whole["calls"].as_u64(), whole["missed"].as_u64()),
        (Some(sum("calls")), Some(sum("missed")))
    );
    assert_eq!((&cell["samples"], &whole["alloc_bytes"]), (&whole["calls"], &0.into()));
    let histogram = whole["histogram"].as_array().unwrap();
    assert_eq!(histogram.iter().map(|step| step[1].as_u64().unwrap()).sum::<u64>(), sum("calls"));
    for line in stretches.iter().filter(|line| line["calls"] != 0) {
        let number = |field: &str| line[field].as_f64().unwrap();
        assert!(number("p50_ms") > 0.0 && number("p50_ms") <= number("max_ms") && number("rss_bytes") > 0.0);
    }
    assert!(whole["drift"].as_f64().is_some_and(|drift| drift > 0.0), "{whole}");
    assert!(std::fs::read_to_string(desk.path("a.html")).unwrap().contains("</html>"));
    // No call is fast enough for this rate, so most ticks are missed. No tick may be counted twice.
    let output = desk.call("bench --json --soak 0.1s --rate 1000000 --shape 1,1,64,64,64");
    let all = lines(&output.stdout);
    let whole = all.iter().find(|line| line["what"] == "soaked").unwrap();
    let [calls, missed] = ["calls", "missed"].map(|field| whole[field].as_u64().unwrap());
    assert!(missed > calls && (99_999..=100_001).contains(&(calls + missed)), "{calls} {missed}");
}

#[test]
fn a_soak_in_real_time_runs_or_names_the_limit_that_forbids_it() {
    let desk = Desk::new();
    let line = "bench --force --json --soak 0.1s --rate 100 --shape 1,1,16,16,8 --priority 5 --lock-memory";
    let output = desk.call(line);
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 5) => assert!(lines(&output.stdout).iter().any(|line| line["what"] == "soaked")),
        status => {
            let named = text.contains("--priority: 5: ") && text.contains("RLIMIT_RTPRIO");
            let named = named || text.contains("--lock-memory: ") && text.contains("RLIMIT_MEMLOCK");
            assert!(status == Some(3) && named && output.stdout.is_empty(), "{text}");
        }
    }
    for (flags, part) in [
        ("--priority 100", "--priority: 100; allowed: 1 to 99"),
        ("--priority 0", "--priority: 0; allowed: 1 to 99"),
        ("--priority high", "--priority"),
        ("--cores 0,1024", "--cores: 1024; allowed: numbers below 1024"),
        ("--cores 0,x", "--cores"),
    ] {
        desk.refuses(&format!("bench --soak 1s --csv @a.csv {flags}"), &[part, "allowed"]);
    }
}

#[test]
fn a_spot_check_without_a_table_says_how_to_make_one() {
    let desk = Desk::new();
    let call = |line: &str| {
        let output = desk.call(line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = call("bench --spot @kept");
    assert!(status == Some(2) && said.contains("--spot: ") && said.contains("elsa bench --save "), "{said}");
    std::fs::create_dir(desk.path("kept")).unwrap();
    std::fs::write(desk.path("kept/2026-01-02.csv"), "no table").unwrap();
    let (status, said) = call("bench --spot @kept");
    assert!(status == Some(2) && said.contains("2026-01-02.csv: not a table of elsa bench"), "{said}");
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "the load that disturbs is that of the host, whatever the emulator says"
)]
fn a_disturbed_cell_has_its_numbers_with_reason_and_cure() {
    let _busy = Busy::with(2);
    let desk = Desk::new();
    let line = "bench --json --seconds 0.5 --method elsa --shape 1,1,16,16,8 --csv @a.csv --html @a.html --save @kept";
    let output = desk.call(line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("the cell is not clean; ") && said.contains("--wait"), "{said}");
    assert!(said.contains("--save: nothing was saved, because no row is clean"), "{said}");
    assert_eq!(std::fs::read_dir(desk.path("kept")).unwrap().count(), 0);
    let row = &cells(&output.stdout)[0];
    assert!(row["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["clean"] == false, "{row}");
    let mark = row["marks"][0].as_str().unwrap();
    assert!(mark.starts_with("others take ") && mark.contains("; close "), "{mark}");
    let page = std::fs::read_to_string(desk.path("a.html")).unwrap();
    assert!(page.contains("others take "), "{page}");
    // A disturbed row proves nothing, so it cannot be compared.
    let same = desk.call("bench --compare @a.csv @a.csv");
    let text = String::from_utf8(same.stdout).unwrap();
    assert!(same.status.success() && text.contains("1 cannot be told"), "{text}");
    // The short table marks the row and gives the reason once.
    let text = String::from_utf8(desk.call("bench --seconds 0.5 --shape 1,1,16,16,8").stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("1,1,16,16,8 f32 ")).unwrap();
    assert!(row.ends_with(" *") && text.matches("\n* 2 cells: others take ").count() == 1, "{text}");
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "the load that disturbs is that of the host, not of the emulator"
)]
fn a_wait_names_its_reason_and_its_end() {
    let spin = || {
        let mut command = std::process::Command::new("timeout");
        command.args(["3", "sh", "-c", "while :; do :; done"]).spawn().unwrap()
    };
    let mut busy = [spin(), spin()];
    let output =
        Desk::new().call("bench --wait --force --json --seconds 0.01 --method elsa --shape 1,1,4,4,4");
    busy.iter_mut().for_each(|child| drop(child.wait()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{said}");
    let waits = "--wait: waits up to 60 s for a quiet machine: others take ";
    // Concurrent tests may keep the machine busy.
    let ends = ["--wait: quiet after ", "--wait: the machine is still busy after 60 s"];
    assert!(said.contains(waits) && ends.iter().any(|end| said.contains(end)), "{said}");
    assert!(cells(&output.stdout)[0]["clean"].is_boolean());
}

/// Checks that both methods run on the same device, which may be a GPU, and that the report contains the ratio of their
/// times.
#[test]
fn both_methods_have_a_ratio_wherever_they_run() {
    let shape = ["bench", "--shape", "1,2,70,70,8", "--seconds", "0.01", "--warmup", "0", "--json"];
    let out = elsa(&shape);
    let rows = cells(&out.stdout);
    assert_eq!(rows.iter().map(|row| row["method"].as_str().unwrap()).collect::<Vec<_>>(), ["elsa", "math"]);
    assert_eq!(rows[0]["backend"], rows[1]["backend"]);
    for row in &rows {
        assert!(row["speedup_vs_math"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        assert_eq!(row["backend"] == "cuda", row["device_p50_ms"].is_number(), "{row}");
    }
}
