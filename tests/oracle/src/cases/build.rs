//! Builds a case from parameters: views, and data from a seeded generator.

use super::case::{Case, made};
use super::data::{Data, MaskData};
use super::params::{BiasParams, MaskParams, Params};
use crate::random::seeded;
use elsa_core::attention::{BiasView, MaskKind, MaskView, Spec, TableView};
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};

impl Params {
    /// Builds the case of these parameters.
    ///
    /// # Panics
    /// Panics if the parameters do not describe a valid problem.
    #[must_use]
    pub fn build(&self, name: impl Into<String>) -> Case {
        let mut random = seeded(self.seed);
        let (mut batch, mut queries, mut keys) = (self.batch, self.queries, self.keys);
        let mut cu = None;
        if let Some(lens) = &self.packed {
            let sums = |part: fn(&(usize, usize)) -> usize| {
                let mut list = vec![0i64];
                for x in lens {
                    list.push(list[list.len() - 1] + part(x) as i64);
                }
                list
            };
            let (q, k) = (sums(|x| x.0), sums(|x| x.1));
            (batch, queries, keys) = (1, q[lens.len()] as usize, k[lens.len()] as usize);
            cu = Some((q, k));
        }
        let past_len = self.past.unwrap_or(0);
        let mut key = self.view("k", batch, self.kv_heads, keys, self.d);
        let mut value = self.view("v", batch, self.kv_heads, keys, self.dv);
        if self.shared_keys {
            for view in [&mut key, &mut value] {
                let [_, h, n, d] = view.strides();
                *view = made(View::new("shared", view.shape(), [0, h, n, d]));
            }
        }
        let mut spec = Spec::new(
            self.dtype,
            self.view("q", batch, self.heads, queries, self.d),
            key,
            value,
            self.view("out", batch, self.heads, queries, self.dv),
        );
        let cache = |n, d| made(View::dense("cache", Layout::Bhnd, &[batch, self.kv_heads, n, d], None));
        if self.past.is_some() {
            spec.past_key = Some(cache(past_len, self.d));
            spec.past_value = Some(cache(past_len, self.dv));
        }
        if self.present {
            spec.present_key = Some(cache(past_len + keys, self.d));
            spec.present_value = Some(cache(past_len + keys, self.dv));
        }
        spec.scale = self.scale;
        spec.causal = self.causal;
        spec.window = self.window;
        spec.softcap = self.softcap;
        spec.key_lengths = self.lengths;
        spec.packed = self.packed.as_ref().map(Vec::len);
        spec.short_mask = true;
        spec.mask = self.mask.as_ref().map(|m| made(MaskView::dense(m.kind, &m.dims)));
        spec.windows = self.windows;
        spec.bias = self.bias.as_ref().map(|bias| match *bias {
            BiasParams::Dense(ref m) => BiasView::Dense(made(MaskView::dense(m.kind, &m.dims))),
            BiasParams::Table { dtype, entries, .. } => BiasView::Table(TableView {
                dtype,
                entries: entries.or(self.windows.map(|windows| windows.entries())).unwrap_or(1),
                heads: self.heads,
                indexed: entries.is_some(),
            }),
        });
        let mut tensor = |view: &View, gain: f32| {
            let mut data = Data::filled(self.dtype, view.extent(), f32::NAN);
            each_row(view, |row| {
                for x in 0..view.dim() {
                    data.set(row + x, random.normal() * gain);
                }
            });
            data
        };
        let q = tensor(&spec.query, self.gain);
        let k = tensor(&spec.key, 1.0);
        let v = tensor(&spec.value, 1.0);
        let past = spec.past_key.zip(spec.past_value).map(|(k, v)| (tensor(&k, 1.0), tensor(&v, 1.0)));
        let mask = self.mask.as_ref().map(|m| m.data(&mut random));
        let lengths =
            self.lengths.then(|| (0..batch).map(|_| random.below(past_len + keys + 1) as i64).collect());
        let bias = self.bias.as_ref().zip(spec.bias).map(|(bias, view)| match *bias {
            BiasParams::Dense(ref m) => additive(m.kind, view.extent(), m.density, &mut random),
            BiasParams::Table { dtype, density, .. } => {
                additive(MaskKind::Additive(dtype), view.extent(), density, &mut random)
            }
        });
        let bias_index = match spec.bias {
            Some(BiasView::Table(TableView { entries, indexed: true, .. })) => {
                Some((0..queries * (past_len + keys)).map(|_| random.below(entries) as i64).collect())
            }
            _ => None,
        };
        let (name, params) = (name.into(), self.clone());
        let case = Case { name, params, spec, q, k, v, past, mask, bias, bias_index, lengths, cu };
        made(case.inputs().check(&case.problem()));
        case
    }

    fn view(&self, argument: &'static str, b: usize, h: usize, n: usize, d: usize) -> View {
        made(match (self.layout, self.pad) {
            (Layout::Bhnd, 0) => View::dense(argument, Layout::Bhnd, &[b, h, n, d], None),
            (Layout::Bnhd, 0) => View::dense(argument, Layout::Bnhd, &[b, n, h, d], None),
            (Layout::Bnc, 0) => View::dense(argument, Layout::Bnc, &[b, n, h * d], Some(h)),
            (Layout::Bhnd, pad) => {
                View::new(argument, [b, h, n, d], [h * n * (d + pad), n * (d + pad), d + pad, 1])
            }
            (_, pad) => View::new(argument, [b, h, n, d], [n * (h * d + pad), d, h * d + pad, 1]),
        })
    }
}

impl MaskParams {
    fn data(&self, random: &mut Random) -> MaskData {
        let len = self.dims.iter().product();
        match self.kind {
            // Every byte other than zero means true.
            MaskKind::Bool => MaskData::Bool(
                (0..len)
                    .map(|_| if random.unit() < self.density { 1 + random.below(255) as u8 } else { 0 })
                    .collect(),
            ),
            kind => MaskData::Additive(additive(kind, len, self.density, random)),
        }
    }
}

/// Draws `len` additive elements. A fraction `density` of them is finite; the others are `−∞`. If `kind` is not
/// additive, the elements are f32.
fn additive(kind: MaskKind, len: usize, density: f64, random: &mut Random) -> Data {
    let dtype = match kind {
        MaskKind::Additive(dtype) => dtype,
        MaskKind::Bool => DType::F32,
    };
    let mut data = Data::filled(dtype, len, 0.0);
    for x in 0..len {
        let attended = random.unit() < density;
        data.set(x, if attended { 2.0 * random.normal() } else { f32::NEG_INFINITY });
    }
    data
}

/// Calls `visit` with the index of the first element of every row, in the order of batch, head and token.
pub fn each_row(view: &View, mut visit: impl FnMut(usize)) {
    for b in 0..view.batch() {
        for h in 0..view.heads() {
            for t in 0..view.tokens() {
                visit(view.row(b, h, t));
            }
        }
    }
}
