//! Tests windows of an image, biases, and tables of relative positions through the binary. Outputs are compared with
//! each other, and with attention in f64 that uses explicit masks and biases. Some requests must be refused.

use crate::common::{Desk, Sizes, attention, count, distance, elsa_with, emulated, noise};
use half::bf16;
use serde_json::Value;

/// Height and width in tokens of each of the two images. Each image is divided into four windows of 2 by 3 tokens.
const PICTURE: [usize; 2] = [4, 6];
const WINDOW: [usize; 2] = [2, 3];
const SHIFT: [usize; 2] = [1, 2];
const WINDOWS: usize = 4;
const TOKENS: usize = 6;
const HEADS: usize = 3;
const ENTRIES: usize = 3 * 5;
const N: Sizes = Sizes { b: 2 * WINDOWS, h: HEADS, hk: HEADS, nq: TOKENS, nk: TOKENS, d: 8, dv: 8 };

const FILES: &str = "--q @q.npy --k @k.npy --v @v.npy";
const GRID: &str = "--windows 2x3 --picture 4x6";

/// Returns the row of the table that belongs to the relative position of query token `i` and key token `j` of a window.
fn entry(i: usize, j: usize) -> usize {
    let [down, right] = [i / 3 + 1 - j / 3, i % 3 + 2 - j % 3];
    down * 5 + right
}

/// Returns, for each axis, whether the shift has rolled token `token` of window `w` around the edge of the image.
fn region(w: usize, token: usize, shift: [usize; 2]) -> [bool; 2] {
    let at = [w / 2 * WINDOW[0] + token / 3, w % 2 * WINDOW[1] + token % 3];
    [0, 1].map(|axis| shift[axis] > 0 && at[axis] >= PICTURE[axis] - shift[axis])
}

struct Case {
    desk: Desk,
    data: [Vec<f32>; 3],
    table: Vec<f32>,
}

impl Case {
    fn new() -> Case {
        let data = [1, 2, 3].map(|seed| noise(seed, count(&N.q())).iter().map(|x| x * 2.0).collect());
        let case = Case { desk: Desk::new(), data, table: noise(4, ENTRIES * HEADS) };
        for (name, data) in ["q", "k", "v"].into_iter().zip(&case.data) {
            case.desk.f32(&format!("{name}.npy"), &N.q(), data);
        }
        case.desk.f32("table.npy", &[ENTRIES, HEADS], &case.table);
        case
    }

    /// Computes the output for a table and a shift from the definition.
    fn expected(&self, table: &[f32], shift: [usize; 2]) -> Vec<f64> {
        let [q, k, v] = &self.data;
        let score = |b: usize, h: usize, i: usize, j: usize, s: f64| {
            let same = region(b % WINDOWS, i, shift) == region(b % WINDOWS, j, shift);
            if same { s + f64::from(table[entry(i, j) * HEADS + h]) } else { f64::NEG_INFINITY }
        };
        attention(N, N.scale(), [q, k, v], score).y
    }

    fn run(&self, flags: &str) -> Vec<f32> {
        self.desk.ok(&format!("run {FILES} --out @y.npy {flags}"));
        let (shape, y) = self.desk.read("y.npy");
        assert_eq!(shape, N.out());
        y
    }

    /// Returns the relative distance between the output with `flags` and the expected output for the case's table and
    /// the given shift.
    fn from(&self, flags: &str, shift: [usize; 2]) -> f64 {
        distance(&self.run(flags), &self.expected(&self.table, shift))
    }
}

#[test]
fn a_table_in_shifted_windows_has_the_answer_of_the_definition() {
    let case = Case::new();
    let table = "--bias-table @table.npy";
    for shift in [SHIFT, [1, 0], [0, 1], [0, 0]] {
        let flags = format!("{table} {GRID} --shift {},{}", shift[0], shift[1]);
        let near = case.from(&flags, shift);
        assert!(near < 1e-6, "{flags}: {near:e}");
        let far = case.from(&flags, [shift[0], (shift[1] + 1) % 3]);
        assert!(far > 1e-2, "{flags}: makes no difference, {far:e}");
    }
    // The picture makes no difference without a shift, and may be left out.
    for flags in [format!("{table} {GRID}"), format!("{table} --windows 2x3")] {
        assert!(case.from(&flags, [0, 0]) < 1e-6, "{flags}");
    }
    // A change in one entry of one head must change the output.
    let mut other = case.table.clone();
    other[7 * HEADS + 1] += 1.0;
    case.desk.f32("other.npy", &[ENTRIES, HEADS], &other);
    let y = case.run(&format!("--bias-table @other.npy {GRID} --shift 1,2"));
    assert!(distance(&y, &case.expected(&other, SHIFT)) < 1e-6);
    assert!(distance(&y, &case.expected(&case.table, SHIFT)) > 1e-3);
    // The table may have another type than the tensors.
    let narrow: Vec<bf16> = case.table.iter().map(|&x| bf16::from_f32(x)).collect();
    let wide: Vec<f32> = narrow.iter().map(|x| x.to_f32()).collect();
    let bits: Vec<u8> = bytemuck::cast_slice::<bf16, u8>(&narrow).to_vec();
    let header = format!(
        r#"{{"t":{{"dtype":"BF16","shape":[{ENTRIES},{HEADS}],"data_offsets":[0,{}]}}}}"#,
        bits.len()
    );
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bits].concat();
    std::fs::write(case.desk.path("t.safetensors"), file).unwrap();
    let y = case.run(&format!("--bias-table @t.safetensors#t {GRID} --shift 1,2"));
    assert!(distance(&y, &case.expected(&wide, SHIFT)) < 1e-6);
}

#[test]
fn masks_of_windows_biases_and_indices_say_the_same() {
    let case = Case::new();
    let pairs = || (0..TOKENS * TOKENS).map(|at| (at / TOKENS, at % TOKENS));
    let mask: Vec<bool> = (0..WINDOWS)
        .flat_map(|w| pairs().map(move |(i, j)| region(w, i, SHIFT) == region(w, j, SHIFT)))
        .collect();
    let bias: Vec<f32> = (0..HEADS)
        .flat_map(|h| pairs().map(move |(i, j)| (h, entry(i, j))))
        .map(|(h, e)| case.table[e * HEADS + h])
        .collect();
    let index: Vec<i64> = pairs().map(|(i, j)| entry(i, j) as i64).collect();
    // The masks of the four windows apply to both images. Eight masks, one for each sequence, have the same meaning.
    case.desk.bool("mask.npy", &[WINDOWS, 1, TOKENS, TOKENS], &mask);
    case.desk.bool("all.npy", &[2 * WINDOWS, 1, TOKENS, TOKENS], &[&mask[..], &mask].concat());
    case.desk.f32("bias.npy", &[HEADS, TOKENS, TOKENS], &bias);
    case.desk.npy("index.npy", "<i8", &[TOKENS, TOKENS], bytemuck::cast_slice(&index));
    let short: Vec<i32> = index.iter().map(|&e| e as i32).collect();
    case.desk.npy("short.npy", "<i4", &[TOKENS, TOKENS], bytemuck::cast_slice(&short));
    for flags in [
        "--mask @mask.npy --bias @bias.npy".to_owned(),
        "--mask @all.npy --bias @bias.npy".to_owned(),
        "--mask @mask.npy --bias-table @table.npy --bias-index @index.npy".to_owned(),
        "--mask @mask.npy --bias-table @table.npy --bias-index @short.npy".to_owned(),
        format!("--bias @bias.npy {GRID} --shift 1,2"),
        format!("--bias-table @table.npy --bias-index @index.npy {GRID} --shift 1,2"),
        format!("--mask @mask.npy --bias-table @table.npy {GRID} --shift 1,2"),
    ] {
        let near = case.from(&flags, SHIFT);
        assert!(near < 1e-6, "{flags}: {near:e}");
    }
    assert!(case.from("--mask @mask.npy", SHIFT) > 1e-2);
    assert!(case.from("--bias @bias.npy", SHIFT) > 1e-2);
    // Another table entry for one pair of tokens must change the output.
    let mut other = index;
    other[7] = 0;
    case.desk.npy("index.npy", "<i8", &[TOKENS, TOKENS], bytemuck::cast_slice(&other));
    assert!(case.from("--mask @mask.npy --bias-table @table.npy --bias-index @index.npy", SHIFT) > 1e-4);
}

#[test]
fn windows_are_verified() {
    let case = Case::new();
    let flags = format!("{FILES} --bias-table @table.npy {GRID} --shift 1,2 --json");
    let text = case.desk.ok(&format!("verify {flags}"));
    // The first line is the case; the summary follows.
    let verdict: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(verdict["verdict"], "PASS");
    assert_eq!((verdict["rows"].as_u64(), verdict["p_rows"].as_u64()), (Some(144), Some(144)));
    let drift = verdict["p_rel_l2"]["total"].as_f64().unwrap();
    assert!(drift > 1e-9 && drift < 1e-6, "{drift:e}");
    let scalar = elsa_with(&case.desk.words(&format!("verify {flags}")), &[("ELSA_BACKEND", "scalar")]);
    assert!(scalar.status.success(), "{}", String::from_utf8_lossy(&scalar.stderr));
}

#[test]
fn what_does_not_fit_is_refused_by_flag() {
    let case = Case::new();
    let desk = &case.desk;
    desk.f32("entries.npy", &[ENTRIES - 1, HEADS], &case.table[HEADS..]);
    desk.f32("heads.npy", &[ENTRIES, HEADS - 1], &case.table[ENTRIES..]);
    desk.f32("none.npy", &[0, HEADS], &[]);
    desk.f32("flat.npy", &[ENTRIES * HEADS], &case.table);
    desk.f32("bias.npy", &[HEADS, TOKENS, TOKENS], &noise(5, HEADS * TOKENS * TOKENS));
    desk.f32("b3.npy", &[3, 1, 1, TOKENS], &noise(5, 3 * TOKENS));
    desk.f32("less.npy", &[TOKENS - 2], &noise(5, TOKENS - 2));
    desk.f32("r5.npy", &[1, 1, 1, 1, TOKENS], &noise(5, TOKENS));
    desk.bool("mask.npy", &[TOKENS - 1], &[true; TOKENS - 1]);
    desk.bool("m5.npy", &[5, 1, 1, TOKENS], &[true; 5 * TOKENS]);
    let index = |name: &str, shape: &[usize], at: usize, entry: i64| {
        let mut list = vec![0i64; count(shape)];
        list[at] = entry;
        desk.npy(name, "<i8", shape, bytemuck::cast_slice(&list));
    };
    index("index.npy", &[TOKENS, TOKENS], 0, 14);
    index("beyond.npy", &[TOKENS, TOKENS], 9, 15);
    index("below.npy", &[TOKENS, TOKENS], 35, -1);
    index("keys.npy", &[TOKENS, TOKENS - 1], 0, 0);
    index("line.npy", &[TOKENS * TOKENS], 0, 0);
    desk.i64("lens.npy", &[6; 8]);
    std::fs::write(desk.path("y.npy"), b"an earlier answer").unwrap();
    let swin = format!("--bias-table @table.npy {GRID}");
    let cases = [
        (
            format!("--bias-table @entries.npy {GRID}"),
            "--bias-table: entries of the table 14; allowed: 15, as windows has|entries.npy: f32 [14, 3]",
        ),
        (
            format!("--bias-table @heads.npy {GRID}"),
            "--bias-table: heads of the table 2; allowed: 3, as q has|heads.npy|q.npy",
        ),
        (
            format!("--bias-table @none.npy {GRID}"),
            "--bias-table: entries of the table 0; allowed: at least 1",
        ),
        (
            format!("--bias-table @flat.npy {GRID}"),
            "--bias-table: |flat.npy|rank 1, shape [45]; allowed: 2 (entries, heads)",
        ),
        (format!("--bias-table @index.npy {GRID}"), "--bias-table: |type i64; allowed: f32"),
        ("--bias-table @table.npy".into(), "--bias-table: given without bias-index or windows|table.npy"),
        (
            "--bias-index @index.npy".into(),
            "--bias-index: given without --bias-table; allowed: with --bias-table",
        ),
        ("--bias @bias.npy --bias-index @index.npy".into(), "--bias-index: given without --bias-table"),
        ("--bias @bias.npy --bias-table @table.npy".into(), "--bias|--bias-table|allowed: one of the two"),
        (
            "--bias-table @table.npy --bias-index @beyond.npy".into(),
            "--bias-index: entry 9 is 15; allowed: 0 to 14",
        ),
        (
            "--bias-table @table.npy --bias-index @below.npy".into(),
            "--bias-index: entry 35 is -1; allowed: 0 to 14",
        ),
        (
            "--bias-table @table.npy --bias-index @keys.npy".into(),
            "--bias-index: keys 5; allowed: 6, as k has|keys.npy: i64 [6, 5]",
        ),
        (
            "--bias-table @table.npy --bias-index @line.npy".into(),
            "--bias-index: |rank 1, shape [36]; allowed: 2 (queries, keys)",
        ),
        ("--bias-table @table.npy --bias-index @bias.npy".into(), "--bias-index: |type f32; allowed: i64"),
        ("--bias @b3.npy".into(), "--bias: batch 3; allowed: a divisor of 8|scores: [8, 3, 6, 6]"),
        ("--bias @mask.npy".into(), "--bias: |type bool; allowed: f32"),
        ("--bias @r5.npy".into(), "--bias: rank 5; allowed: 1 to 4"),
        ("--mask @m5.npy".into(), "--mask: batch 5; allowed: a divisor of 8|scores: [8, 3, 6, 6]"),
        ("--bias @less.npy".into(), "--bias: keys 4; allowed: 1 or 6|less.npy"),
        (format!("{swin} --shift 2,0"), "--shift: 2; allowed: 0 to 1"),
        (format!("{swin} --shift 1,-1"), "--shift: '1,-1'; allowed: A,B, both whole numbers not below 0"),
        (format!("{swin} --shift 1x1"), "--shift: '1x1'; allowed: A,B"),
        (
            "--windows 2x3 --picture 5x6".into(),
            "--picture: height 5; allowed: a multiple of 2, as windows has",
        ),
        (
            "--windows 2x3 --picture 6x6".into(),
            "--q: batch 8; allowed: a multiple of 6, as picture in windows has|q.npy: f32 [8, 3, 6, 8]",
        ),
        ("--windows 2x2".into(), "--windows: tokens 4; allowed: 6, as q has"),
        ("--windows 0x6".into(), "--windows: '0x6'; allowed: HxW, both whole numbers from 1"),
        ("--windows 99999999999999999999x1".into(), "--windows: |allowed: HxW"),
        ("--windows 4294967296x4294967296".into(), "--windows: tokens 18446744073709551615; allowed: 6"),
        ("--windows 2x3 --picture 4,6".into(), "--picture: '4,6'; allowed: HxW"),
        (
            "--windows 2x3 --shift 1,2".into(),
            "--shift: given without --picture; allowed: with --picture HxW, whose default is one window",
        ),
        ("--picture 4x6".into(), "--picture: given without --windows; allowed: with --windows"),
        ("--shift 1,2".into(), "--shift: given without --windows; allowed: with --windows"),
        (format!("{GRID} --causal"), "--windows: given with causal; allowed: one of the two"),
        (format!("{GRID} --window 3,3"), "--windows: given with window; allowed: one of the two"),
        (format!("{GRID} --kv-lens @lens.npy"), "--windows: given with kv-lens; allowed: one of the two"),
        (format!("{GRID} --past-k @k.npy --past-v @k.npy"), "--windows: "),
    ];
    // An emulated process takes long to start, so fewer cases are run.
    let (step, verbs) = if emulated() { (6, 1) } else { (1, 2) };
    for (flags, words) in cases.into_iter().step_by(step) {
        for verb in [format!("run {FILES} --out @y.npy"), format!("verify {FILES}")].iter().take(verbs) {
            desk.refuses(&format!("{verb} {flags}"), &words.split('|').collect::<Vec<_>>());
        }
    }
    let output = desk.call("verify --scenario stress --windows 2x3");
    assert_eq!(output.status.code(), Some(2));
}
