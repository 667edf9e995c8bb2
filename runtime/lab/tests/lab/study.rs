//! Tests `elsa-lab study`: the tables of its page contain the numbers of a case that was computed by hand, and bad
//! requests are refused.

use super::{Desk, assert_alone};
use elsa_cli::picture::faults;
use std::fs::File;
use std::io::BufWriter;

/// Number of key blocks, of 64 keys each.
const BLOCKS: usize = 3;

/// Writes a tensor of shape `[tokens, dim]`.
fn write(desk: &Desk, name: &str, dim: usize, numbers: &[f32]) {
    use npyz::WriterBuilder;
    let file = BufWriter::new(File::create(desk.path(name)).unwrap());
    let options =
        npyz::WriteOptions::new().default_dtype().shape(&[(numbers.len() / dim) as u64, dim as u64]);
    let mut writer = options.writer(file).begin_nd().unwrap();
    writer.extend(numbers.iter().copied()).unwrap();
    writer.finish().unwrap();
}

/// Creates the input files of one head. Its scores, in base-2 units, are 0 in the first block of keys and −20 in the
/// other blocks. The value of key `j` is `j`.
fn desk() -> Desk {
    let desk = Desk::new();
    let keys = 64 * BLOCKS;
    let k: Vec<f32> = (0..keys).map(|j| if j < 64 { 0.0 } else { -20.0 }).collect();
    let v: Vec<f32> = (0..keys).map(|j| j as f32).collect();
    write(&desk, "q.npy", 1, &[1.0; 64]);
    write(&desk, "k.npy", 1, &k);
    write(&desk, "v.npy", 1, &v);
    desk
}

const LINE: &str = "study --q q.npy --k k.npy --v v.npy --scale 0.693147180559945";

/// Extracts the cells of one table of the page, row by row, without the header.
fn table(page: &str, id: &str) -> Vec<Vec<String>> {
    let from = page.split(&format!("<table data-table=\"{id}\">")).nth(1).unwrap_or_else(|| panic!("{id}"));
    let body = from.split("</table>").next().unwrap().split("<tbody>").nth(1).unwrap();
    let rows = body.split("<tr>").skip(1);
    rows.map(|row| {
        let cells = row.split("<td").skip(1);
        cells.map(|cell| cell.split_once('>').unwrap().1.split("</td>").next().unwrap().into()).collect()
    })
    .collect()
}

#[test]
fn a_study_has_every_table_and_the_numbers_of_its_case() {
    let desk = desk();
    assert_eq!(desk.ok(&format!("{LINE} --html study.html")), "");
    assert_eq!(desk.list(), ["k.npy", "q.npy", "study.html", "v.npy"]);
    let page = std::fs::read_to_string(desk.path("study.html")).unwrap();
    assert_alone(&page);
    // Figure 1 shows the head sizes 1, 32, 64 and 128.
    for (id, rows) in [("1", 11), ("figure-1", 12), ("3", 10), ("4", 21), ("budgets", 6)] {
        let found = table(&page, id);
        assert_eq!(found.len(), rows, "table {id}");
        assert!(
            found.iter().all(|row| row.len() == found[0].len() && row.len() > 6),
            "table {id}: {found:?}"
        );
    }
    for words in [
        "1 heads, 64 queries, 192 keys, d 1, d_v 1, f32. All 1 tiles of 64 rows were run.",
        "at most 191.000.",
        "Bounds were computed of 64 rows for each schedule: 0 of their components lie beyond the bound.",
        "Table 2 scores language models of 8 to 30 billion parameters",
        "over all rows: sink 100.0 %, own 0.0 %, middle 0.0 %",
        "on average 1.00 of queries",
        "No tile of more than one block has it at: own, middle.",
        "is one of a row that was not sampled, whose bound is another",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.matches("<svg").count() >= 8, "{}", page.matches("<svg").count());
    assert_eq!(faults(&page), [""; 0]);
    // Each group of bars has its name.
    for name in ["AVX-512", "AVX2", "NEON"] {
        assert_eq!(page.matches(&format!(">{name}</text>")).count(), 1, "{name}");
    }

    // A block with scores of −20 has 2^-20 of the first block's weight. Every λ and budget here skips both such blocks.
    let (kept, block) = (1.0f64, (-20.0f64).exp2());
    let share = 2.0 * block / (kept + 2.0 * block);
    // The first block's values are 0 to 63.
    let exact = (31.5 + block * (95.5 + 159.5)) / (kept + 2.0 * block);
    let off = format!("{:.2e}", exact - 31.5);
    let fourth = table(&page, "4");
    assert_eq!((&fourth[0][3..5], &fourth[0][8][..]), (&["0.0 %".to_owned(), "0.0 %".to_owned()][..], "0"));
    for row in fourth[1..].iter().chain(&table(&page, "budgets")[2..]) {
        // The last seven columns follow the columns for the article's numbers or for the gate.
        let [worst, mean, spread, bound, error] =
            [7, 6, 5, 4, 3].map(|from_end| row[row.len() - from_end].parse::<f64>().unwrap());
        assert!((worst / share - 1.0).abs() < 0.01 && (mean / share - 1.0).abs() < 0.01, "{row:?}");
        assert!((spread / (share * 191.0) - 1.0).abs() < 0.01 && bound >= error, "{row:?}");
        assert_eq!(row[row.len() - 3], off, "{row:?}");
        assert_eq!(row.iter().filter(|cell| *cell == "66.7 %").count(), 2, "{row:?}");
    }
    // λ skips two of three blocks, so the exponentials of all 64 by 192 weights take 7/3 operations per weight.
    let first = table(&page, "1");
    let of = |part: &str| first.iter().find(|row| row[0].starts_with(part)).unwrap()[1..].to_vec();
    assert_eq!(of("exponential"), ["7.000", "7.000", "7.000", "7.000", "2.333", "7.000"]);
    assert_eq!(of("products with values"), ["1.000", "1.000", "1.000", "1.000", "0.333", "0.333"]);
    // VFA seeks the largest score only in the first block, which contains the sink and the tile's own keys.
    assert_eq!(of("largest score"), ["1.000", "1.000", "0.000", "0.333", "1.000", "1.000"]);
}

#[test]
fn labels_of_the_largest_heads_fit_below_their_bars() {
    let desk = Desk::new();
    for name in ["q.npy", "k.npy", "v.npy"] {
        let numbers: Vec<f32> = (0..256 * 64).map(|i| (i % 7) as f32 / 8.0).collect();
        write(&desk, name, 256, &numbers);
    }
    desk.ok("study --q q.npy --k k.npy --v v.npy --html study.html");
    let page = std::fs::read_to_string(desk.path("study.html")).unwrap();
    assert_eq!(page.matches(">256</text>").count(), 3);
    assert_eq!(faults(&page), [""; 0]);
}

#[test]
fn rows_that_half_precision_would_lose_are_counted() {
    let desk = desk();
    // The maximum is in the last block, 20 or 130 bits above the frozen references, which do not account for it.
    for (above, half, single) in [(20.0f32, "100.0 %", "0.0 %"), (130.0, "100.0 %", "100.0 %")] {
        let mut k = vec![0.0f32; 64 * BLOCKS];
        *k.last_mut().unwrap() = above;
        write(&desk, "k.npy", 1, &k);
        desk.ok(&format!("{LINE} --html study.html"));
        let page = std::fs::read_to_string(desk.path("study.html")).unwrap();
        let third = table(&page, "3");
        let of = |name: &str| third.iter().find(|row| row[0] == name).unwrap()[2..7].to_vec();
        assert_eq!(of("Baseline (FA2)"), ["0.0 %"; 5]);
        assert_eq!(of("VFA (w/o m-init)"), [half, "0.0 %", single, "0.0 %", single], "{above}");
        // The representative of the last block accounts for the maximum.
        assert_eq!(of("VFA (full, sabsmax)"), ["0.0 %"; 5]);
        assert!(page.contains("middle 100.0 %"), "{above}");
    }
}

#[test]
fn what_cannot_be_written_or_studied_is_refused() {
    let desk = desk();
    for (line, words) in [
        (format!("{LINE} --html none/page.html"), "--html: "),
        (format!("{LINE} --html ./k.npy"), "which --k reads; allowed: another file, or --force"),
        (LINE.into(), "--html: missing"),
        ("study --html page.html --q q.npy".into(), "--k, --v: missing; allowed: elsa-lab study --q <FILE>"),
        (format!("{LINE} --html page.html --scenario sink"), "given with --"),
    ] {
        desk.refused(&line, &[words]);
        assert_eq!(desk.list(), ["k.npy", "q.npy", "v.npy"]);
    }
}
