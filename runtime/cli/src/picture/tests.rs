//! No text of a picture overlaps another text or leaves the picture, and every colour is in the legend.

use super::*;

/// A title that is wider than a picture.
const TITLE: &str = "gated-delta per head, forward, f32, batch 1, heads 8, d 128, avx512 with 16 threads";

/// Ranges of the numbers on an axis.
const RANGES: [[f64; 2]; 9] = [
    [1.0, 1e10],
    [1.0, 4096.0],
    [197.0, 1370.0],
    [12_345.0, 3e13],
    [1e-9, 1e9],
    [0.9999, 1.0001],
    [-5.0, 5.0],
    [7e4, 5e9],
    [3e-7, 4e-7],
];

/// Returns axes of every kind and quantity.
fn axes() -> impl Iterator<Item = Axis> {
    let quantities = [Quantity::Number, Quantity::Seconds, Quantity::Bytes];
    quantities
        .into_iter()
        .flat_map(|quantity| [Axis::linear("keys"), Axis::log("keys")].map(|axis| axis.of(quantity)))
}

/// Draws two curves that fill both ranges; `None` if a logarithmic axis has a range with negative numbers.
fn drawn(axes: [Axis; 2], x: [f64; 2], y: [f64; 2]) -> Option<Picture> {
    let point = |x, y| Point { x, y, band: Some((y, y)), tip: String::new() };
    let rises = Raw::new("fused-chunk, 0.5 of the tensors", [point(x[0], y[0]), point(x[1], y[1])]);
    let falls = Raw::new("quorums", [point(x[0], y[1]), point(x[1], y[0])]);
    let noise = Raw { faint: true, ..Raw::new("noise", [point(x[0], y[0])]) };
    chart(TITLE.to_owned(), axes, vec![rises, falls, noise], true)
}

#[test]
fn no_text_of_a_chart_overlaps_or_leaves() {
    let mut count = 0;
    for (x, y) in axes().flat_map(|x| axes().map(move |y| (x, y))) {
        for (place, range) in RANGES.into_iter().enumerate() {
            // The other axis has another range in each turn.
            let picture = drawn([x, y], range, RANGES[(place + count) % RANGES.len()]);
            let Some(picture) = picture else { continue };
            let label = format!("{:?} {range:?} {:?}", [x, y], picture.labels());
            assert!(picture.x_ticks.len() >= 2 && picture.y_ticks.len() >= 2, "{label}");
            assert_eq!(faults(&sheet("", &[(picture, Vec::new())]).unwrap()), [""; 0], "{label}");
            count += 1;
        }
    }
    assert!(count > 200, "{count}");
}

#[test]
fn no_text_of_a_sheet_overlaps_or_leaves() {
    let long =
        "recurrent is faster than fused-chunk from 46 tokens, and on this machine also than all others <>&";
    let picture = |title: &str| {
        let axes = [Axis::log("tokens"), Axis::log("ns per token and head")];
        let mut picture = drawn(axes, RANGES[1], RANGES[3]).unwrap();
        title.clone_into(&mut picture.title);
        picture
    };
    let mut named = picture("short");
    named.legend = ["recurrent", "chunk", "fused-chunk", "quadratic", "scan", long, "last"]
        .map(str::to_owned)
        .into_iter()
        .enumerate()
        .collect();
    let notes = vec![long.to_owned(), "a note".to_owned()];
    let drawn = [(picture(TITLE), notes.clone()), (named, notes), (picture("third"), Vec::new())];
    let text = sheet("<label>", &drawn).unwrap();
    assert_eq!(faults(&text), [""; 0], "{text}");
    // The title has several lines, and each colour of a legend is as strong as its curve.
    let titles = text.matches("class=\"title\"").count();
    assert!(titles > 3 && !text.contains(TITLE), "{text}");
    assert!(text.contains("gated-delta per head, forward,"), "{text}");
    assert_eq!(text.matches("class=\"key k").count(), 3 + 7 + 3, "{text}");
    let key = text.lines().find(|line| line.starts_with(".key ")).unwrap();
    assert!(!key.contains("opacity"), "{key}");
    assert!(!text.contains("<label>") && !text.contains("<>"), "{text}");
}

#[test]
fn no_text_of_a_map_overlaps_or_leaves() {
    for of in [[1, 1], [1, 3], [65536, 1], [197, 1 << 20], [2, 2]] {
        let mut map = HeatMap::new(of[0], of[1]);
        map.cells[0][0] = 1.0;
        let picture = map.picture(TITLE.into(), ["keys", "queries"], "legend".into(), |x| x).unwrap();
        assert_eq!(faults(&sheet("", &[(picture, Vec::new())]).unwrap()), [""; 0], "{of:?}");
    }
}

#[test]
fn groups_of_marks_have_labels_below_them() {
    let tick = |at, label: &str| Tick { at, label: label.to_owned() };
    let mut picture = Picture::new("Groups".into(), ["head size", "percent"], vec![tick(BOTTOM, "100")]);
    let height = picture.height();
    picture.x_ticks = vec![tick(80.0, "64"), tick(120.0, "128"), tick(200.0, "64"), tick(240.0, "128")];
    picture.x_groups = vec![tick(100.0, "AVX-512"), tick(220.0, "NEON")];
    assert!(picture.height() > height + 20.0);
    let labels = picture.labels();
    let at =
        |text: &str| labels.iter().find(|label| label.text == text).map(|label| (label.x, label.y)).unwrap();
    assert!(at("AVX-512").0 == 100.0 && at("AVX-512").1 > at("64").1 && at("head size").1 > at("NEON").1);
    assert_eq!(faults(&sheet("", &[(picture, Vec::new())]).unwrap()), [""; 0]);
}
