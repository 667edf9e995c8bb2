//! The options of the command line.

use elsa_core::linear::{Form, Rule};
use elsa_runtime::Backend;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why the benchmark ends.
pub type Failure = Box<dyn std::error::Error>;

/// Tokens and head sizes that are measured of every rule where nothing is named, with four heads.
const TOKENS: [usize; 7] = [1, 16, 64, 256, 1024, 2048, 4096];
const DIMS: [usize; 2] = [64, 128];
const HEADS: usize = 4;

/// A problem: a rule over `heads` heads of keys and values of size `dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub rule: Rule,
    pub heads: usize,
    pub tokens: usize,
    pub dim: usize,
    /// Whether each dim of the keys has a gate of its own.
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

/// How measurements are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Columns of text.
    Columns,
    /// One JSON object per line.
    Json,
    /// The rows of a table in Markdown.
    Markdown,
}

/// What is measured, and how.
#[derive(Debug)]
pub struct Request {
    pub threads: usize,
    pub rounds: usize,
    slice: Option<Duration>,
    pub backend: Option<Backend>,
    pub form: Option<Form>,
    pub chunk: Option<usize>,
    pub output: Output,
    pub cells: Vec<Cell>,
}

impl Request {
    /// Reads the arguments behind the name of the program.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, Failure> {
        let mut request = Request {
            threads: 1,
            rounds: 15,
            slice: None,
            backend: None,
            form: None,
            chunk: None,
            output: Output::Columns,
            cells: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: no value"));
            match arg.as_str() {
                "--threads" => request.threads = number(&arg, &value()?)?,
                "--rounds" => request.rounds = number(&arg, &value()?)?,
                "--slice" => request.slice = Some(Duration::from_millis(number(&arg, &value()?)? as u64)),
                "--backend" => request.backend = Some(value()?.parse()?),
                "--form" => {
                    let name = value()?;
                    let form = Form::ALL.into_iter().find(|form| form.name() == name);
                    let names = Form::ALL.map(Form::name).join(", ");
                    request.form = Some(form.ok_or(format!("--form: '{name}'; allowed: {names}"))?);
                }
                "--chunk" => request.chunk = Some(number(&arg, &value()?)?),
                "--json" => request.output = Output::Json,
                "--markdown" => request.output = Output::Markdown,
                // Cargo passes this to every benchmark.
                "--bench" => {}
                flag if flag.starts_with('-') => {
                    let flags =
                        "--threads, --rounds, --slice, --backend, --form, --chunk, --json, --markdown";
                    return Err(format!("{flag}: unexpected; allowed: {flags}, and problems").into());
                }
                cell => request.cells.push(cell.parse()?),
            }
        }
        if request.cells.is_empty() {
            let sizes = DIMS.into_iter().flat_map(|dim| TOKENS.map(|tokens| (dim, tokens)));
            request.cells = sizes
                .flat_map(|(dim, tokens)| {
                    Rule::ALL.map(|rule| Cell { rule, heads: HEADS, tokens, dim, per_dim: false })
                })
                .collect();
        }
        Ok(request)
    }

    /// Length of a slice. Pools of several threads need longer to reach their speed.
    pub fn slice(&self) -> Duration {
        self.slice.unwrap_or(Duration::from_millis(if self.threads == 1 { 6 } else { 20 }))
    }
}

fn number(flag: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{flag}: '{text}'; allowed: a whole number from 1"))
}
