//! Computes small attention problems with generated inputs, without an allocator.
//!
//! Inputs come from integer arithmetic and exact scalings, so that they have the same bits everywhere. The
//! comparison then covers only the arithmetic of `elsa-core`.

use elsa_core::argument::ArgumentError;
use elsa_core::attention::scalar;
use elsa_core::attention::{Alignment, Inputs, Outputs, Problem, Spec, Window};
use elsa_core::attention::{BiasView, MaskElements, MaskKind, MaskView, TableView, Windows};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};

/// Head size of queries and keys.
const D: usize = 8;
/// Head size of values.
const DV: usize = 6;
/// Number of query heads, which share one key head.
const HEADS: usize = 2;
/// Largest number of queries in a case.
const QUERIES: usize = 9;
/// Largest number of keys in a case, enough for more than two segments of the merge tree.
const KEYS: usize = 1100;

/// Number of rows and of columns in a window.
const SIDE: usize = 3;
/// Description of the table of biases for relative positions.
const TABLE: TableView =
    TableView { dtype: DType::F32, entries: (2 * SIDE - 1) * (2 * SIDE - 1), heads: HEADS, indexed: false };

/// Shape and options of one attention problem.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    queries: usize,
    keys: usize,
    causal: Option<Alignment>,
    window: Window,
    softcap: Option<f32>,
    masked: bool,
    /// `true` for a shifted window of `SIDE × SIDE` tokens with a table of relative positions.
    windowed: bool,
    /// Power of two that multiplies the first key; a large one gives scores that overflow a naive exponential.
    first_key: f32,
}

const PLAIN: Case = Case {
    name: "plain",
    queries: 5,
    keys: 13,
    causal: None,
    window: Window { left: None, right: None },
    softcap: None,
    masked: false,
    windowed: false,
    first_key: 1.0,
};

const CASES: [Case; 11] = [
    PLAIN,
    Case { name: "causal", queries: 9, keys: 9, causal: Some(Alignment::TopLeft), ..PLAIN },
    Case { name: "decode", queries: 2, causal: Some(Alignment::BottomRight), ..PLAIN },
    Case { name: "window", queries: 8, keys: 11, window: Window { left: Some(2), right: Some(1) }, ..PLAIN },
    Case { name: "masked", masked: true, ..PLAIN },
    Case { name: "shifted", queries: SIDE * SIDE, keys: SIDE * SIDE, windowed: true, ..PLAIN },
    Case { name: "softcap", softcap: Some(2.5), ..PLAIN },
    Case { name: "overflow", first_key: 4096.0, ..PLAIN },
    Case { name: "long", queries: 2, keys: KEYS, ..PLAIN },
    Case { name: "one", queries: 1, keys: 1, ..PLAIN },
    Case { name: "empty", queries: 3, keys: 0, ..PLAIN },
];

/// Computes every case and calls `row` for each result. The arguments are the name of the case, the kind of result (`y`
/// for an output row, `lse` for the log-sum-exp of all rows), and the numbers. A refused problem has a single row
/// called `refused`, without numbers.
pub fn run(mut row: impl FnMut(&str, &str, &[f32])) {
    for (seed, case) in (1..).zip(CASES) {
        let mut query = [0.0; HEADS * QUERIES * D];
        let mut key = [0.0; KEYS * D];
        let mut value = [0.0; KEYS * DV];
        let mut mask = [0u8; QUERIES * KEYS];
        let mut random = Random::new(seed);
        for x in query.iter_mut().chain(&mut key).chain(&mut value) {
            *x = 2.0 * random.signed();
        }
        for (i, x) in mask.iter_mut().enumerate() {
            // Query row 1 attends no key.
            *x = u8::from(random.signed() > 0.0 && i / case.keys.max(1) != 1);
        }
        for x in &mut key[..D] {
            *x *= case.first_key;
        }
        let mut out = [0.0; HEADS * QUERIES * DV];
        let mut lse = [0.0; HEADS * QUERIES];
        let (queries, keys) = (case.queries, case.keys);
        let mut inputs = Inputs::new(
            Elements::F32(&query[..HEADS * queries * D]),
            Elements::F32(&key[..keys * D]),
            Elements::F32(&value[..keys * DV]),
        );
        if case.masked {
            inputs.mask = Some(MaskElements::Bool(&mask[..queries * keys]));
        }
        let rows = HEADS * queries;
        // The entries of the table may have any values, so it uses elements of the keys.
        if case.windowed {
            inputs.bias = Some(Elements::F32(&key[KEYS * D - TABLE.entries * HEADS..]));
        }
        match problem(&case)
            .and_then(|problem| compute(&problem, &inputs, &mut out[..rows * DV], &mut lse[..rows]))
        {
            Ok(()) => {
                for y in out[..rows * DV].chunks_exact(DV) {
                    row(case.name, "y", y);
                }
                row(case.name, "lse", &lse[..rows]);
            }
            Err(_) => row(case.name, "refused", &[]),
        }
    }
}

fn problem(case: &Case) -> Result<Problem, ArgumentError> {
    let dense =
        |argument, heads, tokens, dim| View::dense(argument, Layout::Bhnd, &[1, heads, tokens, dim], None);
    let mut spec = Spec::new(
        DType::F32,
        dense("q", HEADS, case.queries, D)?,
        dense("k", 1, case.keys, D)?,
        dense("v", 1, case.keys, DV)?,
        dense("out", HEADS, case.queries, DV)?,
    );
    spec.causal = case.causal;
    spec.window = case.window;
    spec.softcap = case.softcap;
    if case.masked {
        spec.mask = Some(MaskView::dense(MaskKind::Bool, &[case.queries, case.keys])?);
    }
    if case.windowed {
        spec.windows = Some(Windows { picture: [SIDE; 2], size: [SIDE; 2], shift: [1, 1] });
        spec.bias = Some(BiasView::Table(TABLE));
    }
    spec.check()
}

/// Computes output rows `[batch, heads, queries, d_v]` and their log-sum-exps.
fn compute(
    problem: &Problem,
    inputs: &Inputs<'_>,
    out: &mut [f32],
    lse: &mut [f32],
) -> Result<(), ArgumentError> {
    // Room for the levels of the merge tree over `KEYS` keys.
    let mut scratch = [0.0; D + 8 * DV];
    let mut outputs = Outputs::new(ElementsMut::F32(out));
    outputs.lse = Some(lse);
    scalar::run(problem, inputs, &mut outputs, &mut scratch)
}
