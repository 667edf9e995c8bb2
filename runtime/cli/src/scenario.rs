//! The built-in tensors of `elsa verify`.

use crate::error::Error;
use crate::random::Random;
use crate::shape::Shape;
use clap::Arg;
use elsa_core::attention::{
    Alignment, BiasView, Inputs, MaskElements, MaskKind, MaskView, Problem, Spec, TableView, Window, Windows,
};
use elsa_core::dtype::DType;
use elsa_files::Buffer;

/// Description of the scenarios for help texts.
pub const HELP: &str = "\
Scenarios: regular is 8 heads, 1,024 tokens, d = 64, standard normal; long is 65,536 keys, 256 queries, d = 64;
stress has scores that overflow a naive exponential, one dominant key, values that cancel, masks, causal,
windows of a rolled picture with a table of relative positions; sink is causal, 2 heads, 1,024 tokens, d = 64, with
scores that are large at the first key and near the diagonal.";

/// Marks the flag of a tensor as required unless `--scenario` selects other tensors.
#[must_use]
pub fn required(flag: Arg) -> Arg {
    flag.required_unless_present("scenario")
}

/// A set of built-in tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Eight heads and 1,024 tokens, with standard normal tensors.
    Regular,
    /// One head and 65,536 keys, with standard normal tensors.
    Long,
    /// Six problems: scores that overflow, one dominant key, values that cancel, a mask, a causal window, and windows
    /// of a picture.
    Stress,
    /// Scores that are large at the first key and near the diagonal, as in many language models.
    Sink,
}

/// A built-in problem with its data.
pub struct Case {
    /// Name.
    pub name: &'static str,
    /// The problem.
    pub problem: Problem,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    mask: Option<Vec<u8>>,
    table: Option<Buffer>,
    kv_lens: Option<Vec<i64>>,
}

impl Case {
    /// Returns the input tensors of a call, and the lengths of its sequences.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.q.elements(), self.k.elements(), self.v.elements());
        inputs.mask = self.mask.as_deref().map(MaskElements::Bool);
        inputs.bias = self.table.as_ref().map(Buffer::elements);
        inputs.lengths.keys = self.kv_lens.as_deref();
        inputs
    }
}

fn spec(heads: usize, queries: usize, keys: usize, dim: usize) -> Result<Spec, Error> {
    Shape::plain(1, heads, queries, keys, dim).spec(DType::F32)
}

/// Overwrites some dims of the queries and keys of a head: two dims for each frequency `ω`, beginning with dim 1. These
/// dims add `near · mean cos(ω (i − j))` to the score of query `i` and key `j`. The mean is over `frequencies`. The
/// added number is `near` on the diagonal, and less at a greater distance from it. The other dims keep their numbers.
fn local(q: &mut [f32], k: &mut [f32], near: f64, frequencies: &[f64]) {
    let size = (8.0 * near / frequencies.len() as f64).sqrt();
    for side in [q, k] {
        for (i, token) in side.chunks_mut(64).enumerate() {
            for (pair, frequency) in token[1..].chunks_mut(2).zip(frequencies) {
                let (sin, cos) = (frequency * i as f64).sin_cos();
                pair.copy_from_slice(&[(size * cos) as f32, (size * sin) as f32]);
            }
        }
    }
}

impl Scenario {
    /// Every scenario with its name.
    pub const ALL: [(&str, Scenario); 4] = [
        ("regular", Scenario::Regular),
        ("long", Scenario::Long),
        ("stress", Scenario::Stress),
        ("sink", Scenario::Sink),
    ];

    /// Builds the problems of the scenario, with their data.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn cases(self) -> Result<Vec<Case>, Error> {
        let mut random = Random::new(1);
        let mut make = |name, spec: Spec, q_scale: f64| -> Result<Case, Error> {
            let q = random.normals("scenario", DType::F32, spec.query.extent(), q_scale)?;
            let k = random.normals("scenario", DType::F32, spec.key.extent(), 1.0)?;
            let v = random.normals("scenario", DType::F32, spec.value.extent(), 1.0)?;
            Ok(Case { name, problem: spec.check()?, q, k, v, mask: None, table: None, kv_lens: None })
        };
        match self {
            Scenario::Regular => Ok(vec![make("regular", spec(8, 1024, 1024, 64)?, 1.0)?]),
            Scenario::Long => Ok(vec![make("long", spec(1, 256, 65_536, 64)?, 1.0)?]),
            Scenario::Stress => {
                // Scores with a standard deviation of 64 and maxima near 250: exp overflows f32 above 88.7.
                let overflow = make("overflow", spec(2, 128, 768, 64)?, 64.0)?;

                // Every query and one key have the same large component, so this key has score 72 and nearly all of the
                // weight.
                let mut dominant = make("dominant", spec(2, 128, 768, 64)?, 1.0)?;
                if let (Buffer::F32(q), Buffer::F32(k)) = (&mut dominant.q, &mut dominant.k) {
                    for row in q.chunks_mut(64) {
                        row[0] = 24.0;
                    }
                    for head in k.chunks_mut(768 * 64) {
                        head[517 * 64] = 24.0;
                    }
                }

                // Pairs of equal keys have values of opposite sign, which cancel except for a small remainder.
                let mut cancelling = make("cancelling", spec(2, 128, 768, 64)?, 1.0)?;
                if let (Buffer::F32(k), Buffer::F32(v)) = (&mut cancelling.k, &mut cancelling.v) {
                    for (keys, values) in k.chunks_mut(128).zip(v.chunks_mut(128)) {
                        let ((k0, k1), (v0, v1)) = (keys.split_at_mut(64), values.split_at_mut(64));
                        k1.copy_from_slice(k0);
                        for (a, b) in v0.iter_mut().zip(v1) {
                            let small = *b * 1e-3;
                            *a *= 1e3;
                            *b = small - *a;
                        }
                    }
                }

                // A boolean mask with a row that attends nothing, and with a NaN key that no row attends.
                let mut masked_spec = spec(2, 128, 768, 64)?;
                masked_spec.mask = Some(MaskView::dense(MaskKind::Bool, &[128, 768])?);
                let mut masked = make("masked", masked_spec, 1.0)?;
                let mut bits = Random::new(3);
                let mut mask: Vec<u8> = (0..128 * 768).map(|_| u8::from(bits.uniform() < 0.3)).collect();
                mask[5 * 768..6 * 768].fill(0);
                for row in mask.chunks_mut(768) {
                    row[300] = 0;
                }
                masked.mask = Some(mask);
                if let (Buffer::F32(k), Buffer::F32(v)) = (&mut masked.k, &mut masked.v) {
                    k[300 * 64..301 * 64].fill(f32::NAN);
                    v[300 * 64..301 * 64].fill(f32::NAN);
                }

                // A causal problem with a window, a soft cap, and fewer valid keys than the tensor has.
                let mut causal_spec = spec(2, 512, 768, 64)?;
                causal_spec.causal = Some(Alignment::BottomRight);
                causal_spec.window = Window { left: Some(200), right: None };
                causal_spec.softcap = Some(30.0);
                causal_spec.key_lengths = true;
                let mut causal = make("causal", causal_spec, 8.0)?;
                causal.kv_lens = Some(vec![701]);

                // Two pictures of 14 by 21 tokens, in windows of 7 by 7 that are shifted by 3 in both directions.
                let windows = Windows { picture: [14, 21], size: [7, 7], shift: [3, 3] };
                let (heads, entries) = (2, windows.entries());
                let shape = Shape::plain(2 * windows.count(), heads, 49, 49, 32);
                let mut windowed_spec = shape.spec(DType::F32)?;
                let table = TableView { dtype: DType::F32, entries, heads, indexed: false };
                (windowed_spec.windows, windowed_spec.bias) = (Some(windows), Some(BiasView::Table(table)));
                let mut windowed = make("windowed", windowed_spec, 2.0)?;
                let mut random = Random::new(5);
                windowed.table = Some(random.normals("scenario", DType::F32, entries * heads, 2.0)?);
                Ok(vec![overflow, dominant, cancelling, masked, causal, windowed])
            }
            Scenario::Sink => {
                let tokens = 1024;
                let mut sink_spec = spec(2, tokens, tokens, 64)?;
                sink_spec.causal = Some(Alignment::BottomRight);
                let mut sink = make("sink", sink_spec, 1.0)?;
                if let (Buffer::F32(q), Buffer::F32(k)) = (&mut sink.q, &mut sink.k) {
                    let heads = q.chunks_mut(tokens * 64).zip(k.chunks_mut(tokens * 64));
                    // For each head: the score at the first key, the score on the diagonal, and the width of the
                    // diagonal. Scores are in natural-log units, and the width is in tokens.
                    for ((q, k), [first, near, width]) in heads.zip([[7.0, 8.0, 16.0], [6.0, 10.0, 48.0]]) {
                        let mut random = Random::new(7);
                        local(q, k, near, &[(); 24].map(|()| random.normal() / width));
                        // The scores are scaled by 1/8, so the components are larger by this factor.
                        let large = (8.0 * first).sqrt() as f32;
                        for (i, (query, key)) in q.chunks_mut(64).zip(k.chunks_mut(64)).enumerate() {
                            query[0] = large;
                            key[0] = if i == 0 { large } else { 0.0 };
                        }
                    }
                }
                Ok(vec![sink])
            }
        }
    }
}
