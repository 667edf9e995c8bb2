//! The options of the command line.

use clap::{Args, Parser, Subcommand};
use elsa_cli::shape::Shape;
use elsa_core::dtype::DType;
use elsa_core::linear::{Form, Rule};
use elsa_runtime::Backend;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Error that ends the benchmark.
pub type Failure = Box<dyn std::error::Error>;

/// Sets of shapes by name. The first is the default.
const SETS: [(&str, &[&str], &[&str]); 4] = [
    (
        "plain",
        &[
            "1,1,64,64,64",
            "1,1,196,196,64",
            "1,12,196,196,64",
            "1,1,900,900,64",
            "1,8,1024,1024,64",
            "1,1,4096,4096,64",
            "1,8,1024,1024,128",
            "1,8,1024,1024,32",
            "1,16,1041,1041,64",
            "1,32,1,4096,128",
            "64,3,49,49,32",
        ],
        &[""],
    ),
    (
        "masks",
        &["1,12,197,197,64", "64,3,49,49,32", "4,12,256,256,32", "1,12,900,900,64"],
        &["float", "bias", "batch", "row", "bool", "padding", "true"],
    ),
    // Shapes with a causal mask, with shared key heads, or with both, as in encoders, prefill and decoding.
    (
        "causal",
        &[
            "1,12,197,197,64,causal",
            "1,8,1024,1024,64,causal",
            "1,8,1024,1024,64,causal,window=128:0",
            "1,32,512,512,128,kv=8",
            "1,32,512,512,128,kv=8,causal",
            "1,32,1,4096,128,kv=8",
        ],
        &[""],
    ),
    // The stages of Swin-T for a picture of 224 x 224. The last stage has one window, which is never shifted.
    (
        "swin",
        &[
            "64,3,49,49,32,swin=56x56:3",
            "16,6,49,49,32,swin=28x28:3",
            "4,12,49,49,32,swin=14x14:3",
            "1,24,49,49,32,swin=7x7",
        ],
        &[""],
    ),
];
/// Default numbers of tokens for plots. Each plotted shape has one head of size 64.
const DRAWN: [usize; 10] = [64, 100, 196, 324, 576, 900, 1024, 1600, 2304, 4096];

/// Default shapes of calls by layer.
const LAYERED: [&str; 5] = ["1,1,1,1,64", "1,1,4,4,64", "1,1,16,16,64", "1,1,64,64,64", "1,12,197,197,64"];

/// Default numbers of tokens of linear attention. Each number is combined with each head size in [`DIMS`] and each
/// rule, for four heads.
const TOKENS: [usize; 7] = [1, 16, 64, 256, 1024, 2048, 4096];
const DIMS: [usize; 2] = [64, 128];
const HEADS: usize = 4;

/// Command line of the comparison.
#[derive(Debug, Parser)]
pub struct Request {
    #[command(flatten)]
    pub common: Common,
    /// Element type of attention.
    #[arg(long, default_value = "f32", value_parser = dtype)]
    pub dtype: DType,
    /// Shapes as `elsa bench --shape` takes them, and the sets plain, masks, causal and swin.
    shapes: Vec<String>,
    #[command(subcommand)]
    pub operator: Option<Operator>,
}

/// Operator to measure instead of attention.
#[derive(Debug, Subcommand)]
pub enum Operator {
    /// Linear attention.
    Linear(Linear),
    /// The time that each layer of this library adds to a call.
    Layers(Layers),
}

/// Options of the layers of a call.
#[derive(Debug, Args)]
pub struct Layers {
    /// Shapes without masks, as `elsa bench --shape` takes them.
    shapes: Vec<String>,
}

/// Options of linear attention.
#[derive(Debug, Args)]
pub struct Linear {
    /// A form of this library.
    #[arg(long, value_parser = form)]
    pub form: Option<Form>,
    /// Tokens of a chunk of that form.
    #[arg(long)]
    pub chunk: Option<usize>,
    /// Problems: RULE,HEADS,TOKENS,D or RULE,HEADS,TOKENS,D,per-dim.
    cells: Vec<Cell>,
}

/// Options of every benchmark.
#[derive(Debug, Args)]
pub struct Common {
    /// Threads of every library.
    #[arg(long, global = true, default_value = "1", value_parser = whole)]
    pub threads: usize,
    /// Rounds in which each job has a slice of time: 25, or 15 of linear attention.
    #[arg(long, global = true, value_parser = whole)]
    pub rounds: Option<usize>,
    /// Milliseconds of a slice.
    #[arg(long, global = true, value_parser = whole)]
    slice: Option<usize>,
    /// Back end of this library.
    #[arg(long, global = true)]
    pub backend: Option<Backend>,
    /// Print one JSON object per line.
    #[arg(long, global = true, conflicts_with = "markdown")]
    pub json: bool,
    /// Print the rows of a table in Markdown.
    #[arg(long, global = true)]
    pub markdown: bool,
    /// Draw speeds and ratios against the number of tokens into this folder.
    #[arg(long, global = true, value_name = "DIR")]
    pub plot: Option<PathBuf>,
    /// Cargo passes this to every benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,
}

impl Common {
    /// Returns `true` if measurements are printed as columns of text.
    pub const fn columns(&self) -> bool {
        !self.json && !self.markdown
    }

    /// Returns the length of a slice. The default is longer for several threads, because a pool needs longer to reach
    /// its full speed.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(self.slice.unwrap_or(if self.threads == 1 { 6 } else { 20 }) as u64)
    }
}

impl Request {
    /// Returns the shapes of attention that are measured.
    pub fn shapes(&self) -> Result<Vec<Shape>, Failure> {
        let mut texts: Vec<String> = Vec::new();
        for text in &self.shapes {
            match SETS.iter().find(|(name, ..)| text == name) {
                Some(set) => texts.extend(of_set(set)),
                None if text.contains(',') => texts.push(text.clone()),
                None => {
                    let names = SETS.map(|(name, ..)| name).join(", ");
                    return Err(format!("'{text}'; allowed: a shape, {names}").into());
                }
            }
        }
        if texts.is_empty() && self.common.plot.is_some() {
            texts.extend(DRAWN.map(|n| format!("1,1,{n},{n},64")));
        } else if texts.is_empty() {
            texts.extend(of_set(&SETS[0]));
        }
        texts.into_iter().map(dense).collect()
    }

    /// Returns `None` if the peers are not restricted to an instruction set. Otherwise returns the name of the set, and
    /// the environment variables that restrict PyTorch and its matrix product to it.
    pub fn isa(&self) -> Option<(&'static str, [(&'static str, &'static str); 3])> {
        let avx2 = [
            ("ATEN_CPU_CAPABILITY", "avx2"),
            ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        ];
        (self.common.backend == Some(Backend::AVX2)).then_some(("avx2", avx2))
    }
}

impl Layers {
    /// Returns the shapes whose calls are measured.
    pub fn shapes(&self) -> Result<Vec<Shape>, Failure> {
        if self.shapes.is_empty() {
            return LAYERED.map(|text| dense(text.to_owned())).into_iter().collect();
        }
        let plain = |text: &String| match dense(text.clone())? {
            shape if shape.parts().is_empty() && shape.heads == shape.kv_heads => Ok(shape),
            _ => Err(format!("'{text}'; allowed: a shape without a mask").into()),
        };
        self.shapes.iter().map(plain).collect()
    }
}

impl Linear {
    /// Returns the problems that are measured.
    pub fn cells(&self) -> Vec<Cell> {
        if !self.cells.is_empty() {
            return self.cells.clone();
        }
        let sizes = DIMS.into_iter().flat_map(|dim| TOKENS.map(|tokens| (dim, tokens)));
        let of =
            |(dim, tokens)| Rule::ALL.map(|rule| Cell { rule, heads: HEADS, tokens, dim, per_dim: false });
        sizes.flat_map(of).collect()
    }
}

/// Returns the shape that `text` names, unless its sequences are packed.
fn dense(text: String) -> Result<Shape, Failure> {
    let shape: Shape = text.parse().map_err(|refused| format!("'{text}': {refused}"))?;
    let packed = format!("'{text}': packed sequences; allowed: dense ones");
    if shape.packed.is_some() { Err(packed.into()) } else { Ok(shape) }
}

/// Returns the shapes of a set: each shape in its first list combined with each mask in its second list.
fn of_set((_, shapes, masks): &(&str, &[&str], &[&str])) -> Vec<String> {
    let text = |shape: &str, mask: &str| match mask {
        "" => shape.to_owned(),
        mask => format!("{shape},mask={mask}"),
    };
    shapes.iter().flat_map(|shape| masks.iter().map(|mask| text(shape, mask))).collect()
}

/// A problem of linear attention: a rule over `heads` heads of keys and values of size `dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub rule: Rule,
    pub heads: usize,
    pub tokens: usize,
    pub dim: usize,
    /// `true` if each dim of the keys has its own gate.
    pub per_dim: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { rule, heads, tokens, dim, per_dim } = self;
        let gates = if *per_dim { ",per-dim" } else { "" };
        write!(f, "{},{heads},{tokens},{dim}{gates}", rule.name())
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Cell, String> {
        let refused = || format!("'{text}'; allowed: RULE,HEADS,TOKENS,D or RULE,HEADS,TOKENS,D,per-dim");
        let words: Vec<&str> = text.split(',').collect();
        let (&[rule, heads, tokens, dim], rest) = words.split_first_chunk().ok_or_else(refused)?;
        let rule = Rule::ALL.into_iter().find(|found| found.name() == rule).ok_or_else(refused)?;
        let per_dim = match rest {
            [] => false,
            ["per-dim"] if rule.is_gated() => true,
            _ => return Err(refused()),
        };
        let [heads, tokens, dim] =
            [heads, tokens, dim].map(|text| text.parse().ok().filter(|number| *number > 0));
        match (heads, tokens, dim) {
            (Some(heads), Some(tokens), Some(dim)) => Ok(Cell { rule, heads, tokens, dim, per_dim }),
            _ => Err(refused()),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "allowed: a whole number from 1".to_owned())
}

fn dtype(text: &str) -> Result<DType, String> {
    let all = [DType::F32, DType::F16, DType::Bf16];
    all.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| "allowed: f32, f16, bf16".to_owned())
}

fn form(text: &str) -> Result<Form, String> {
    let found = Form::ALL.into_iter().find(|form| form.name() == text);
    found.ok_or_else(|| format!("allowed: {}", Form::ALL.map(Form::name).join(", ")))
}
