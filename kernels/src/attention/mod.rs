//! The attention micro-kernels, written once over [`Lanes`](crate::lanes::Lanes).
//!
//! **The formula.** For a tile of query rows and a block of keys, with the state `(m, S, W)` of each row before the
//! block:
//!
//! ```text
//! naive:  for each row i:
//!             for each key j:  s[j] = q_i · k_j
//!             m' = max(m, max s);  p[j] = 2^(s[j] − m');  rescale S and W by 2^(m − m')
//!             S += Σ p[j];  W += Σ p[j] v_j
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Lanes hold queries.* A tile is `V` vectors of `N` rows, so its width is `V · N`; queries are transposed to
//!    `[dim][width]`. Scores `S^T[key][row] = K · Q^T` and output `O^T[dim][row] += V^T · P^T` are then the same
//!    product `C[R][V] += a(r, k) · B[k][V]` with a broadcast scalar `a` (`product.rs`). Maximum, sum and
//!    rescaling never cross lanes, and a row's arithmetic does not depend on its neighbours or on the tile.
//! 2. *References lag behind and are integers.* A row's reference changes only when a score exceeds it by more than
//!    [`HEADROOM`](elsa_core::state::HEADROOM), and the new reference is an integer. Rescaling is therefore rare and
//!    exact (`softmax`).
//! 3. *Sums are chains of bounded length.* A score is summed in chains of `product::CHAIN` dims. The output of a block
//!    is summed in a register over the block's keys, and this sum is then added to the segment's sum. Segments merge in
//!    a tree. The error grows with the lengths of these chains and not with the number of keys.
//! 4. *The weight of a masked key is set to zero by selection.* The weight of an attended key may also be zero, if its
//!    score is far below the reference. If the values of a masked block contain a NaN or an infinity, a slow product
//!    skips the keys whose bias is `−∞` (`values`).
//! 5. *Few queries use another kernel.* With one query a tile would fill only one lane. The other kernel places a row's
//!    dims and keys in the lanes (`row`).
//!
//! | module | purpose |
//! |---|---|
//! | `kernel` | the operands of a kernel, its operations and entry points |
//! | `scores`, `modify` | `q · k`, then soft cap and bias |
//! | `softmax` | references, weights, sums of weights |
//! | `mask`, `combine` | masks as the bias of a tile, and additions to this bias |
//! | `values` | the weighted sum of the values |
//! | `vectors` | the operations on tiles of whole vectors: the step composed of the modules above, merge and finish |
//! | `row`, `shared` | the operations on one row, and the products of rows that share their keys |
//! | `within` | steps within an error budget |
//! | [`backward`] | gradients |

pub(crate) mod ahead;
pub mod backward;
pub(crate) mod combine;
pub(crate) mod instance;
pub(crate) mod kernel;
pub(crate) mod mask;
pub(crate) mod measure;
pub(crate) mod modify;
pub(crate) mod row;
pub(crate) mod scores;
pub(crate) mod shared;
pub(crate) mod softmax;
pub(crate) mod values;
pub(crate) mod vectors;
pub(crate) mod within;

pub use combine::SideTile;
pub use kernel::{Ahead, Block, Budget, Entries, Kernel, RowStep, Sums, Tile, TileOps};
pub use mask::{MaskTile, Seen};
pub use measure::{Measure, MeasuredRows};
pub use row::OneRow;
pub use values::is_tiny;
pub use vectors::Vectors;
