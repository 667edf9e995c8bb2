//! Parameters that a case is built from.

use elsa_core::attention::{Alignment, MaskKind, Window, Windows};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;

/// The parameters of a mask.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskParams {
    /// Type of the elements: Boolean or additive.
    pub kind: MaskKind,
    /// Dimensions, aligned to `[batch, heads, q, k]` from the right.
    pub dims: Vec<usize>,
    /// Share of the elements that are attended.
    pub density: f64,
}

/// The parameters of a bias.
#[derive(Clone, Debug, PartialEq)]
pub enum BiasParams {
    /// A tensor that broadcasts like a mask.
    Dense(MaskParams),
    /// A table of relative positions, with an explicit index or with windows that determine the entry of each query and
    /// key.
    Table {
        /// Type of the table.
        dtype: DType,
        /// Number of table entries if an index names the entry of each pair; `None` if the windows determine the entry.
        entries: Option<usize>,
        /// Share of the table's elements that are not `−∞`.
        density: f64,
    },
}

/// All parameters of a case. The same parameters make the same case.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Seed of all data.
    pub seed: u64,
    /// Type of query, key, value, output, past and present.
    pub dtype: DType,
    /// Layout of query, key, value and output; past and present are always bhnd.
    pub layout: Layout,
    /// Number of padding elements between rows. In inputs, the padding contains NaN.
    pub pad: usize,
    /// Number of sequences in the batch; one if sequences are packed.
    pub batch: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key heads.
    pub kv_heads: usize,
    /// Number of query tokens per sequence; ignored if sequences are packed.
    pub queries: usize,
    /// Number of new key tokens per sequence; ignored if sequences are packed.
    pub keys: usize,
    /// Number of past key tokens per sequence; `None` without past keys and values.
    pub past: Option<usize>,
    /// `true` if the call writes present keys and values.
    pub present: bool,
    /// Head size of queries and keys.
    pub d: usize,
    /// Head size of values.
    pub dv: usize,
    /// Scale of the scores; `None` for the default, `1 / √d`.
    pub scale: Option<f32>,
    /// Alignment of the causal mask; `None` without causality.
    pub causal: Option<Alignment>,
    /// Window around the diagonal.
    pub window: Window,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// The mask, if the case has one.
    pub mask: Option<MaskParams>,
    /// The bias, if the case has one.
    pub bias: Option<BiasParams>,
    /// Windows of pictures, whose tokens are both queries and keys.
    pub windows: Option<Windows>,
    /// `true` if each sequence has its own number of valid keys.
    pub lengths: bool,
    /// Numbers of queries and keys of each packed sequence; `None` if sequences are not packed.
    pub packed: Option<Vec<(usize, usize)>>,
    /// `true` if all sequences of the batch share keys and values (stride zero).
    pub shared_keys: bool,
    /// Standard deviation of the queries; that of keys and values is one.
    pub gain: f32,
}

impl Params {
    /// Creates the parameters of plain attention in f32, with one sequence and one head.
    #[must_use]
    pub fn plain(queries: usize, keys: usize, d: usize, dv: usize) -> Params {
        Params {
            seed: 1,
            dtype: DType::F32,
            layout: Layout::Bhnd,
            pad: 0,
            batch: 1,
            heads: 1,
            kv_heads: 1,
            queries,
            keys,
            past: None,
            present: false,
            d,
            dv,
            scale: None,
            causal: None,
            window: Window::default(),
            softcap: None,
            mask: None,
            bias: None,
            windows: None,
            lengths: false,
            packed: None,
            shared_keys: false,
            gain: 1.0,
        }
    }

    /// Creates the parameters of plain attention in f32 within the windows of `pictures` pictures, with one head of size 8.
    #[must_use]
    pub fn windowed(windows: Windows, pictures: usize) -> Params {
        let tokens = windows.tokens();
        let plain = Params::plain(tokens, tokens, 8, 8);
        Params { batch: pictures * windows.count(), windows: Some(windows), ..plain }
    }
}
