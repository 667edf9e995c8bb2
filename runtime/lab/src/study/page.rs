//! Renders studies as one self-contained page: tables, curves, bars and a map.

use super::maxima::Site;
use super::measure::Study;
use super::operations::{ISAS, Operations};
use super::places::TILE;
use super::tables::{self, Shown, rate};
use super::tokens::{BLOCK, Side, Spread};
use askama::Template;
use elsa_cli::chart::{Chart, Point, Raw, SIZE, Scale, Tick, chart};
use elsa_cli::error::Error;
use elsa_cli::picture::{Bar, FRAME, Picture};

/// Explanation of why the article's table 2 has no counterpart.
const TABLE_2: &str = "Table 2 scores language models of 8 to 30 billion parameters on seven benchmarks. It cannot be \
    repeated on given tensors, and is left out. What a schedule does to an answer stands in tables 3 and 4, as its bound and \
    its error.";

/// Template variables of a case.
struct Case<'a> {
    study: &'a Study,
    sampled: String,
    judged: String,
    /// Tables, each with the pictures and curves that precede it.
    parts: Vec<(Vec<Picture>, Vec<Chart>, Shown)>,
    /// Figures without a table.
    figures: Vec<Figure>,
}

/// Counterpart of a figure of the article.
struct Figure {
    title: &'static str,
    words: String,
    pictures: Vec<Picture>,
    charts: Vec<Chart>,
}

/// Template variables of the page.
#[derive(Template)]
#[template(path = "study.html")]
struct Page<'a> {
    version: &'static str,
    table_2: &'static str,
    cases: Vec<Case<'a>>,
    width: f64,
    height: f64,
}

/// Renders the page for `studies`.
///
/// # Errors
/// Returns an error if the template fails. The page is rendered in memory, so no I/O can fail.
pub fn page(studies: &[Study]) -> Result<String, Error> {
    let page = Page {
        version: env!("CARGO_PKG_VERSION"),
        table_2: TABLE_2,
        cases: studies.iter().map(case).collect(),
        width: SIZE.0,
        height: SIZE.1,
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

fn case(study: &Study) -> Case<'_> {
    let [tiles, of_tiles] = study.tiles;
    let [rows, of_rows] = study.rows;
    let most = study.outcomes.iter().map(|x| x.errors.bounded).max().unwrap_or(0);
    let beyond: u64 = study.outcomes.iter().map(|x| x.errors.beyond).sum();
    let judged = format!(
        "Bounds were computed of {most} rows for each schedule: {beyond} of their components lie beyond the bound."
    );
    let sampled = if tiles == of_tiles {
        format!("All {of_tiles} tiles of {} rows were run.", TILE.rows)
    } else {
        format!(
            "All {of_tiles} tiles would take too long: {tiles} of them were run, evenly spread, {rows} of {of_rows} rows."
        )
    };
    Case {
        study,
        judged,
        sampled,
        parts: vec![
            (Vec::new(), Vec::new(), tables::operations(study)),
            (vec![parts(study)], Vec::new(), tables::shares(study)),
            (Vec::new(), Vec::new(), tables::third(study)),
            (Vec::new(), Vec::new(), tables::fourth(study)),
            (Vec::new(), Vec::new(), tables::budgets(study)),
        ],
        figures: vec![stability(study), similarity(study), norms(study), maxima(study)],
    }
}

/// Draws figure 1: the operations by purpose, in one bar for each combination of instruction set and head size.
fn parts(study: &Study) -> Picture {
    let bars: Vec<(String, Operations)> = ISAS
        .into_iter()
        .flat_map(|isa| {
            let of = move |d| (format!("{} {d}", isa.name), Operations::exact(isa, d, d));
            tables::dims(study).into_iter().map(of)
        })
        .collect();
    let [left, top, right, bottom] = FRAME;
    let width = (right - left) / bars.len() as f64;
    let (mut drawn, mut ticks) = (Vec::new(), Vec::new());
    for (i, (name, operations)) in bars.iter().enumerate() {
        let (all, mut below) = (operations.total(), 0.0);
        let x = left + (i as f64 + 0.1) * width;
        for (color, (part, size)) in kinds(operations).into_iter().enumerate() {
            let height = size / all * (bottom - top);
            drawn.push(Bar {
                x,
                y: bottom - below - height,
                width: 0.8 * width,
                height,
                color,
                tip: format!("{name}: {part} {size}, {}", rate(size / all)),
            });
            below += height;
        }
        let label = name.rsplit(' ').next().unwrap_or_default().to_owned();
        ticks.push(Tick { at: left + (i as f64 + 0.5) * width, label });
    }
    let y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
        .map(|share| Tick { at: bottom - share * (bottom - top), label: format!("{:.0}", share * 100.0) });
    Picture {
        title: "Operations of the exact kernel: AVX-512, AVX2, NEON".to_owned(),
        x_name: "head size".to_owned(),
        y_name: "percent".to_owned(),
        x_ticks: ticks,
        y_ticks: y_ticks.into(),
        bars: drawn,
        shades: Vec::new(),
        frame: FRAME,
        legend: kinds(&Operations::default()).into_iter().map(|x| x.0.to_owned()).enumerate().collect(),
    }
}

/// Returns the segments of one bar of figure 1, from bottom to top. Each segment has a name and a number of operations.
fn kinds(x: &Operations) -> [(&'static str, f64); 5] {
    [
        ("products with keys", x.keys),
        ("products with values", x.values),
        ("exponential and sum", x.exponential + x.sum),
        ("floor and subtraction", x.floor + x.subtraction),
        ("maximum", x.maximum),
    ]
}

/// Draws figure 2: where the running maximum settles, and a map of P.
fn stability(study: &Study) -> Figure {
    let maxima = &study.maxima;
    let all = maxima.rows().max(1);
    let shares: Vec<String> = Site::ALL
        .into_iter()
        .map(|site| format!("{} {}", site.name(), rate(maxima.sites[site as usize] as f64 / all as f64)))
        .collect();
    // The colour scale covers four factors of ten below the largest probability.
    let most = study.map.most();
    let title = "P of the first head".to_owned();
    let legend = format!("{most:.1e}, and a quarter less of the colour for each factor of ten below");
    let map = study.map.picture(title, ["keys", "queries"], legend, |p| 1.0 + (p / most).log10() / 4.0);
    Figure {
        title: "Figure 2: where the running maximum settles, and where the weights are",
        words: format!(
            "The block of {} keys in which the running maximum of a row reaches its last value, in the order of the keys, \
             over all rows: {}. Own blocks lie on the diagonal of a tile.",
            TILE.keys,
            shares.join(", ")
        ),
        pictures: [settled(study), map].into_iter().flatten().collect(),
        charts: Vec::new(),
    }
}

/// Draws the histogram of figure 2; returns `None` if no row attends a key.
fn settled(study: &Study) -> Option<Picture> {
    let [left, top, right, bottom] = FRAME;
    let blocks = study.maxima.stable.keys().next_back()? + 1;
    let most = *study.maxima.stable.values().max()?;
    let y = Scale::of([0.0, most as f64].into_iter(), false, bottom, top)?;
    let width = (right - left) / blocks as f64;
    let bars = study.maxima.stable.iter().map(|(block, rows)| Bar {
        x: left + *block as f64 * width,
        y: y.at(*rows as f64),
        width: (0.9 * width).max(0.3),
        height: y.at(0.0) - y.at(*rows as f64),
        color: 0,
        tip: format!("block {block}: {rows} rows"),
    });
    let ticks = [0, (blocks - 1) / 2, blocks - 1];
    let mut x_ticks: Vec<Tick> =
        ticks.map(|block| Tick { at: left + (block as f64 + 0.5) * width, label: block.to_string() }).into();
    x_ticks.dedup();
    Some(Picture {
        title: "Running maximum settles in block".to_owned(),
        x_name: "block of keys".to_owned(),
        y_name: "rows".to_owned(),
        x_ticks,
        y_ticks: y.ticks(6),
        bars: bars.collect(),
        shades: Vec::new(),
        frame: FRAME,
        legend: vec![(0, "rows".to_owned())],
    })
}

/// Draws a curve of means with a band from the smallest to the largest value.
fn curve(name: &str, points: &[Spread]) -> Raw {
    let point = |x: &Spread| Point {
        x: x.at as f64,
        y: x.mean,
        band: Some((x.low, x.high)),
        tip: format!("{}: {:.3}, from {:.3} to {:.3}", x.at, x.mean, x.low, x.high),
    };
    Raw::new(name, points.iter().map(point))
}

/// Draws one chart for the queries and one for the keys. `of` returns the values of a chart.
fn both(
    study: &Study,
    names: (&'static str, &'static str),
    of: impl Fn(&Side) -> &Vec<Spread>,
) -> Vec<Chart> {
    let sides = [("queries", &study.sides[0]), ("keys", &study.sides[1])];
    let one = |(name, side): (&str, &Side)| {
        chart(format!("{} of {name}", names.1), names, (false, false), vec![curve(name, of(side))], false)
    };
    sides.into_iter().filter_map(one).collect()
}

/// Draws figure 3: similarity of the tokens within a block.
fn similarity(study: &Study) -> Figure {
    let [q, k] = &study.sides;
    Figure {
        title: "Figure 3: similarity within blocks",
        words: format!(
            "mean(X Xᵀ) / max(X Xᵀ) of blocks of {BLOCK} tokens, over heads: on average {:.2} of queries and {:.2} of keys (the \
             article has about 0.6). One means that one vector could stand for all.",
            q.mean_similarity, k.mean_similarity
        ),
        pictures: Vec::new(),
        charts: both(study, ("block", "similarity"), |side| &side.similarity),
    }
}

/// Draws figure 4: norms of tokens.
fn norms(study: &Study) -> Figure {
    Figure {
        title: "Figure 4: norms of tokens",
        words: "Euclidean norms by token: the mean over heads, and the band from the least to the largest. The longest tokens \
                decide the largest scores."
            .to_owned(),
        pictures: Vec::new(),
        charts: both(study, ("token", "norm"), |side| &side.norms),
    }
}

/// Draws figure 5: for each site of the largest score, the block maxima of one tile whose largest score is at that
/// site.
fn maxima(study: &Study) -> Figure {
    let mut charts = Vec::new();
    let mut none = Vec::new();
    for site in Site::ALL {
        let Some(peak) = &study.maxima.peaks[site as usize] else {
            none.push(site.name());
            continue;
        };
        let place = &peak.place;
        let points = peak.maxima.iter().filter(|(_, score)| score.is_finite());
        let points = points
            .map(|(block, score)| Point::new(*block as f64, *score, format!("block {block}: {score:.3}")));
        let name =
            format!("head {}, rows {} to {}", place.head, place.rows.start, place.rows.end.saturating_sub(1));
        let raw = Raw::new(name, points);
        let title = format!("largest score: {}", site.name());
        charts.extend(chart(title, ("block of keys", "score"), (false, false), vec![raw], true));
    }
    let missing = match none.as_slice() {
        [] => String::new(),
        none => format!(" No tile of more than one block has it at: {}.", none.join(", ")),
    };
    Figure {
        title: "Figure 5: block maxima",
        words: format!(
            "The largest score of each block of keys, over the rows of a tile, for the first tile whose largest score lies at \
             the sink, in an own block, and between them.{missing} A frozen reference that has not seen the last kind is too low."
        ),
        pictures: Vec::new(),
        charts,
    }
}
