//! Renders studies as one self-contained page: tables, curves, bars and a map.

use super::maxima::Site;
use super::measure::Study;
use super::operations::{ISAS, Operations};
use super::places::TILE;
use super::tables::{self, Shown, rate};
use super::tokens::{BLOCK, Side, Spread};
use askama::Template;
use elsa_cli::error::Error;
use elsa_cli::picture::{Axis, BOTTOM, Bar, Picture, Point, Raw, Scale, TOP, Tick, chart};

/// Explanation of why the article's table 2 has no counterpart.
const TABLE_2: &str = "Table 2 scores language models of 8 to 30 billion parameters on seven benchmarks. It cannot be \
    repeated on given tensors, and is left out. What a schedule does to an answer stands in tables 3 and 4, as its bound and \
    its error.";

/// Template variables of a case.
struct Case<'a> {
    study: &'a Study,
    sampled: String,
    judged: String,
    /// Tables, each with the pictures that precede it.
    parts: Vec<(Vec<Picture>, Shown)>,
    /// Figures without a table.
    figures: Vec<Figure>,
}

/// Counterpart of a figure of the article.
struct Figure {
    title: &'static str,
    words: String,
    pictures: Vec<Picture>,
}

/// Template variables of the page.
#[derive(Template)]
#[template(path = "study.html")]
struct Page<'a> {
    version: &'static str,
    table_2: &'static str,
    cases: Vec<Case<'a>>,
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
            (Vec::new(), tables::operations(study)),
            (vec![parts(study)], tables::shares(study)),
            (Vec::new(), tables::third(study)),
            (Vec::new(), tables::fourth(study)),
            (Vec::new(), tables::budgets(study)),
        ],
        figures: vec![stability(study), similarity(study), norms(study), maxima(study)],
    }
}

/// Draws figure 1: the operations by purpose, in one bar for each combination of instruction set and head size. The
/// bars of an instruction set are a group.
fn parts(study: &Study) -> Picture {
    let y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
        .map(|share| Tick { at: BOTTOM - share * (BOTTOM - TOP), label: format!("{:.0}", share * 100.0) });
    let title = "Operations of the exact kernel".to_owned();
    let mut picture = Picture::new(title, ["head size", "percent"], y_ticks.into());
    let [left, top, right, bottom] = picture.area;
    let dims = tables::dims(study);
    let group = (right - left) / ISAS.len() as f64;
    let width = group / (dims.len() as f64 + 0.25);
    for (i, isa) in ISAS.into_iter().enumerate() {
        let middle = left + (i as f64 + 0.5) * group;
        picture.x_groups.push(Tick { at: middle, label: isa.name.to_owned() });
        for (j, d) in dims.iter().enumerate() {
            let operations = Operations::exact(isa, *d, *d);
            let (all, mut below) = (operations.total(), 0.0);
            let x = middle + (j as f64 - dims.len() as f64 / 2.0) * width;
            for (color, (part, size)) in kinds(&operations).into_iter().enumerate() {
                let height = size / all * (bottom - top);
                picture.bars.push(Bar {
                    x: x + 0.1 * width,
                    y: bottom - below - height,
                    width: 0.8 * width,
                    height,
                    color,
                    tip: format!("{} {d}: {part} {size}, {}", isa.name, rate(size / all)),
                });
                below += height;
            }
            picture.x_ticks.push(Tick { at: x + 0.5 * width, label: d.to_string() });
        }
    }
    picture.legend = kinds(&Operations::default()).into_iter().map(|x| x.0.to_owned()).enumerate().collect();
    picture
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
    }
}

/// Draws the histogram of figure 2; returns `None` if no row attends a key.
fn settled(study: &Study) -> Option<Picture> {
    let blocks = study.maxima.stable.keys().next_back()? + 1;
    let most = *study.maxima.stable.values().max()?;
    let y = Scale::of(Axis::linear("rows"), [0.0, most as f64].into_iter(), BOTTOM, TOP)?;
    let title = "Running maximum settles in block".to_owned();
    let mut picture = Picture::new(title, ["block of keys", "rows"], y.ticks());
    let [left, _, right, _] = picture.area;
    let width = (right - left) / blocks as f64;
    let bars = study.maxima.stable.iter().map(|(block, rows)| Bar {
        x: left + *block as f64 * width,
        y: y.at(*rows as f64),
        width: (0.9 * width).max(0.3),
        height: y.at(0.0) - y.at(*rows as f64),
        color: 0,
        tip: format!("block {block}: {rows} rows"),
    });
    picture.bars = bars.collect();
    let ticks = [0, (blocks - 1) / 2, blocks - 1];
    picture.x_ticks =
        ticks.map(|block| Tick { at: left + (block as f64 + 0.5) * width, label: block.to_string() }).into();
    picture.x_ticks.dedup();
    picture.legend = vec![(0, "rows".to_owned())];
    Some(picture)
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
    [x_name, y_name]: [&'static str; 2],
    of: impl Fn(&Side) -> &Vec<Spread>,
) -> Vec<Picture> {
    let sides = [("queries", &study.sides[0]), ("keys", &study.sides[1])];
    let one = |(name, side): (&str, &Side)| {
        let axes = [Axis::linear(x_name), Axis::linear(y_name)];
        chart(format!("{y_name} of {name}"), axes, vec![curve(name, of(side))], false)
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
        pictures: both(study, ["block", "similarity"], |side| &side.similarity),
    }
}

/// Draws figure 4: norms of tokens.
fn norms(study: &Study) -> Figure {
    Figure {
        title: "Figure 4: norms of tokens",
        words: "Euclidean norms by token: the mean over heads, and the band from the least to the largest. The longest tokens \
                decide the largest scores."
            .to_owned(),
        pictures: both(study, ["token", "norm"], |side| &side.norms),
    }
}

/// Draws figure 5: for each site of the largest score, the block maxima of one tile whose largest score is at that
/// site.
fn maxima(study: &Study) -> Figure {
    let mut pictures = Vec::new();
    let mut none = Vec::new();
    let axes = [Axis::linear("block of keys"), Axis::linear("score")];
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
        pictures.extend(chart(title, axes, vec![raw], true));
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
        pictures,
    }
}
