//! `cargo xtask peers`: the benchmarks beside other libraries, and pictures of what they print.

use crate::setup;
use crate::shell::{Run, Tree};
use plotters::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Tokens of the pictures' shapes when none is named: one head, d = 64.
const TOKENS: [usize; 10] = [64, 100, 196, 324, 576, 900, 1024, 1600, 2304, 4096];
const SIZE: (u32, u32) = (760, 460);

/// Makes the environment, runs the benchmark with `arguments`, of which a first `linear` is that of linear attention, and
/// draws into `plot`.
pub fn run(tree: &Tree, plot: Option<&Path>, arguments: &[String]) -> Result<(), String> {
    let python = setup::peers(tree)?;
    let (bench, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "linear" => ("linear", rest),
        _ => ("peers", arguments),
    };
    let mut run = Run::new(tree, "cargo bench --quiet -p elsa-edge --bench").arg(bench).arg("--");
    run = run.env("ELSA_PEERS_PYTHON", python);
    for argument in arguments {
        run = run.arg(argument);
    }
    if plot.is_some() {
        if !arguments.iter().any(|argument| argument == "--json") {
            run = run.arg("--json");
        }
        if bench == "peers" && !arguments.iter().any(|argument| argument.contains(',')) {
            for n in TOKENS {
                run = run.arg(format!("1,1,{n},{n},64"));
            }
        }
    }
    let out = run.run();
    // Measurements before a failure are drawn, too.
    let measured = if out.ok { Ok(()) } else { Err(format!("the benchmark: {}", out.how)) };
    let Some(dir) = plot else { return measured };
    let series = series(&out.stdout);
    if series.is_empty() {
        measured?;
        return Err("no two shapes differ only in their tokens: nothing to draw".to_owned());
    }
    crate::files::folder(dir)?;
    for (name, family) in series {
        let (what, axis, ratio) = family.axes();
        for (what, axis, lines) in [(what, axis, &family.rates), ("ratio", ratio, &family.ratios)] {
            let path = dir.join(format!("{what}-{name}.svg"));
            draw(&path, &family.title, axis, lines)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}", path.display());
        }
    }
    measured
}

/// Points `(tokens, value)` by the name of who was measured.
type Lines = BTreeMap<String, Vec<(f64, f64)>>;

/// Shapes that differ only in their tokens.
#[derive(Default)]
struct Family {
    title: String,
    /// Whether it is of linear attention, whose speed is the time of a token in a head.
    linear: bool,
    rates: Lines,
    ratios: Lines,
}

impl Family {
    /// The name of the first picture, its axis, and the axis of the second.
    fn axes(&self) -> (&'static str, &'static str, &'static str) {
        if self.linear {
            ("ns", "ns per token and head", "times as fast as a peer")
        } else {
            ("gflops", "GFLOP/s", "times as fast as the best peer")
        }
    }
}

/// The families of at least two shapes in the benchmark's lines, by the name of their pictures.
fn series(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if line["what"] == "linear-peers" {
            linear(&mut families, &line);
            continue;
        }
        let numbers =
            line["shape"].as_array().map(|x| x.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
        let Some(&[b, h, q, k, d]) = numbers.as_deref() else { continue };
        let (Some(threads), Some(dtype)) = (line["threads"].as_u64(), line["dtype"].as_str()) else {
            continue;
        };
        let Some(kernel) = line["kernel"].as_str() else { continue };
        if line["what"] != "peers" || q != k {
            continue;
        }
        let parts = line["parts"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let parts: String = parts.map(|part| format!(", {part}")).collect();
        let name = format!("b{b}-h{h}-d{d}-{dtype}-t{threads}{}", parts.replace(", ", "-"));
        let family = families.entry(name.replace(['=', ':'], "-")).or_default();
        family.title = format!("batch {b}, heads {h}, d {d}, {dtype}, {threads} thread(s){parts}: {kernel}");
        let mut add = |lines: fn(&mut Family) -> &mut Lines, name: &str, value: &Value| {
            if let Some(value) = value.as_f64() {
                lines(family).entry(name.to_owned()).or_default().push((k as f64, value));
            }
        };
        add(|family| &mut family.rates, "elsa", &line["gflops"]);
        add(|family| &mut family.ratios, "elsa / best peer", &line["to_best_peer"]);
        add(|family| &mut family.ratios, "elsa / sgemm", &line["to_sgemm"]);
        for (name, peer) in line["peers"].as_object().into_iter().flatten() {
            add(|family| &mut family.rates, name, &peer["gflops"]);
        }
    }
    for family in families.values_mut() {
        for points in family.rates.values_mut().chain(family.ratios.values_mut()) {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.dedup_by_key(|point| point.0);
        }
    }
    families.retain(|_, family| family.rates.values().any(|points| points.len() > 1));
    families
}

/// Adds a line of the benchmark of linear attention.
fn linear(families: &mut BTreeMap<String, Family>, line: &Value) {
    let number = |name: &str| line[name].as_u64();
    let (Some(heads), Some(tokens), Some(d), Some(threads)) =
        (number("heads"), number("tokens"), number("d"), number("threads"))
    else {
        return;
    };
    let Some(rule) = line["rule"].as_str() else { return };
    let gates = if line["per_dim"] == true { "-per-dim" } else { "" };
    let family = families.entry(format!("linear-{rule}{gates}-h{heads}-d{d}-t{threads}")).or_default();
    family.linear = true;
    family.title = format!("{rule}{gates}, {heads} heads, d {d}, {threads} thread(s)");
    let mut add = |lines: fn(&mut Family) -> &mut Lines, name: &str, value: &Value| {
        if let Some(value) = value.as_f64() {
            lines(family).entry(name.to_owned()).or_default().push((tokens as f64, value));
        }
    };
    add(|family| &mut family.rates, "elsa", &line["ns"][1]);
    for (name, peer) in line["peers"].as_object().into_iter().flatten() {
        add(|family| &mut family.rates, name, &peer["ns"][1]);
        add(|family| &mut family.ratios, &format!("elsa / {name}"), &peer["ratio"][1]);
    }
}

/// One picture: the lines over tokens on a logarithmic axis.
fn draw(path: &Path, title: &str, axis: &str, lines: &Lines) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.values().flatten();
    let edge = |pick: fn(f64, f64) -> f64, start: f64| points().map(|point| point.0).fold(start, pick);
    let (left, right) = (edge(f64::min, f64::INFINITY), edge(f64::max, 0.0));
    let top = 1.1 * points().map(|point| point.1).fold(0.0, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((left..right).log_scale(), 0.0..top)?;
    chart.configure_mesh().x_desc("tokens").y_desc(axis).x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let style = Palette99::pick(i).stroke_width(if name.starts_with("elsa") { 3 } else { 1 });
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_one_family_make_a_picture() {
        let line = |h: u64, q: u64, k: u64, parts: &str| {
            format!(
                r#"{{"what":"peers","kernel":"x","threads":1,"dtype":"f32","shape":[1,{h},{q},{k},64],"parts":[{parts}],"gflops":{k},
                "to_best_peer":1.5,"to_sgemm":null,"peers":{{"torch":{{"gflops":2.0}}}}}}"#
            )
            .replace('\n', " ")
        };
        let text = [
            line(1, 900, 900, ""),
            line(1, 64, 64, ""),
            line(8, 64, 64, ""),
            line(1, 1, 64, ""),
            "rubbish".to_owned(),
        ];
        let masked = [64, 81].map(|n| line(1, n, n, r#""causal","window=9:-1""#));
        let found = series(&[&text[..], &masked[..]].concat().join("\n"));
        let masked = "b1-h1-d64-f32-t1-causal-window-9--1";
        assert_eq!(found.keys().collect::<Vec<_>>(), ["b1-h1-d64-f32-t1", masked]);
        assert!(
            found[masked].title.contains("1 thread(s), causal, window=9:-1: x"),
            "{}",
            found[masked].title
        );
        let family = &found["b1-h1-d64-f32-t1"];
        assert_eq!(family.rates["elsa"], [(64.0, 64.0), (900.0, 900.0)]);
        assert_eq!(family.rates["torch"], [(64.0, 2.0), (900.0, 2.0)]);
        assert_eq!(family.ratios.keys().collect::<Vec<_>>(), ["elsa / best peer"]);

        let of = |tokens: u64| {
            format!(
                r#"{{"what":"linear-peers","rule":"delta","per_dim":false,"heads":4,"tokens":{tokens},"d":64,"threads":1,"ns":[1,2,3],"peers":{{"ggml":{{"ns":[3,6,9],"ratio":[2,3,4]}}}}}}"#
            )
        };
        let found = series(&[of(16), of(64)].join("\n"));
        let linear = &found["linear-delta-h4-d64-t1"];
        assert_eq!(linear.rates["elsa"], [(16.0, 2.0), (64.0, 2.0)]);
        assert_eq!(linear.ratios["elsa / ggml"], [(16.0, 3.0), (64.0, 3.0)]);
        assert_eq!((linear.axes().0, family.axes().0), ("ns", "gflops"));

        let tree = Tree::find().unwrap();
        let path = tree.target.join("picture-of-a-test.svg");
        draw(&path, &family.title, "GFLOP/s", &family.rates).unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for part in ["<svg", "polyline", "torch", "elsa", "GFLOP/s", "tokens", &family.title] {
            assert!(picture.contains(part), "{part}");
        }
    }
}
