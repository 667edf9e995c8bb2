//! A problem with its data.

use super::data::{Data, MaskData};
use super::params::Params;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, Inputs, MaskView, Operand, Problem, Spec};
use elsa_core::view::View;

/// A problem with its data.
#[derive(Clone)]
pub struct Case {
    /// Name of the case, for messages.
    pub name: String,
    /// Parameters that the case was built from; they do not reflect later changes to the data.
    pub params: Params,
    /// The problem, not yet checked.
    pub spec: Spec,
    /// Elements of the query view.
    pub q: Data,
    /// Elements of the key view.
    pub k: Data,
    /// Elements of the value view.
    pub v: Data,
    /// Elements of the past keys and values.
    pub past: Option<(Data, Data)>,
    /// Elements of the mask.
    pub mask: Option<MaskData>,
    /// Elements of the dense bias, or entries of the bias table.
    pub bias: Option<Data>,
    /// Index of the table entry for each query and key.
    pub bias_index: Option<Vec<i64>>,
    /// Number of valid keys in each sequence.
    pub lengths: Option<Vec<i64>>,
    /// Cumulative lengths of the packed sequences: of their queries and of their keys.
    pub cu: Option<(Vec<i64>, Vec<i64>)>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:?}", self.name, self.params)?;
        if let Some(lengths) = &self.lengths {
            write!(f, ", key lengths {lengths:?}")?;
        }
        Ok(())
    }
}

impl Case {
    /// Checks the problem.
    ///
    /// # Panics
    /// Panics if the problem is refused.
    #[must_use]
    pub fn problem(&self) -> Problem {
        made(self.spec.check())
    }

    /// Borrows the data.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.q.elements(), self.k.elements(), self.v.elements());
        inputs.past_key = self.past.as_ref().map(|x| x.0.elements());
        inputs.past_value = self.past.as_ref().map(|x| x.1.elements());
        inputs.mask = self.mask.as_ref().map(MaskData::elements);
        inputs.bias = self.bias.as_ref().map(Data::elements);
        inputs.bias_index = self.bias_index.as_deref();
        inputs.lengths.keys = self.lengths.as_deref();
        inputs.lengths.cu_seqlens_q = self.cu.as_ref().map(|x| &x.0[..]);
        inputs.lengths.cu_seqlens_k = self.cu.as_ref().map(|x| &x.1[..]);
        inputs
    }

    /// Returns the bytes of an input as a file stores them; `None` if the case does not have it.
    #[must_use]
    pub fn file(&self, operand: Operand) -> Option<Vec<u8>> {
        Some(match operand {
            Operand::Query => self.q.bytes(),
            Operand::Key => self.k.bytes(),
            Operand::Value => self.v.bytes(),
            Operand::PastKey => self.past.as_ref()?.0.bytes(),
            Operand::PastValue => self.past.as_ref()?.1.bytes(),
            Operand::Mask => match self.mask.as_ref()? {
                MaskData::Bool(x) => x.clone(),
                MaskData::Additive(x) => x.bytes(),
            },
            Operand::Bias => self.bias.as_ref()?.bytes(),
            Operand::BiasIndex => self.bias_index.as_ref()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => return None,
        })
    }

    /// Returns the present keys and values that a run must write: the past rows of each sequence, followed by its new rows.
    #[must_use]
    pub fn naive_present(&self) -> Option<(Data, Data)> {
        let (pk, pv) = self.spec.present_key.zip(self.spec.present_value)?;
        let joined = |to: &View, past_view: Option<View>, past: Option<&Data>, view: &View, new: &Data| {
            let mut out = Data::filled(self.spec.dtype, to.extent(), 0.0);
            let before = past_view.map_or(0, |v| v.tokens());
            for (b, h, t) in tokens(to) {
                for x in 0..to.dim() {
                    let element = match (&past_view, past) {
                        (Some(view), Some(past)) if t < before => past.get(view.row(b, h, t) + x),
                        _ => new.get(view.row(b, h, t - before) + x),
                    };
                    out.set(to.row(b, h, t) + x, element);
                }
            }
            out
        };
        let past = self.past.as_ref();
        Some((
            joined(&pk, self.spec.past_key, past.map(|x| &x.0), &self.spec.key, &self.k),
            joined(&pv, self.spec.past_value, past.map(|x| &x.1), &self.spec.value, &self.v),
        ))
    }

    /// Renames the case.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Case {
        self.name = name.into();
        self
    }

    /// Returns the same problem with only the first `n` queries of every sequence. `None` for packed sequences, for
    /// windows, and if there are at most `n` queries.
    #[must_use]
    pub fn first_queries(&self, n: usize) -> Option<Case> {
        let before = self.spec.query.tokens();
        if self.spec.packed.is_some() || self.spec.windows.is_some() || before <= n {
            return None;
        }
        let mut case = self.clone().named(format!("{}, {n} of the queries", self.name));
        let shorter = |view: View| {
            let [b, h, _, d] = view.shape();
            made(View::new("q", [b, h, n, d], view.strides()))
        };
        case.spec.query = shorter(case.spec.query);
        case.spec.output = shorter(case.spec.output);
        if let (Some(view), Some(data)) = (self.spec.mask, &self.mask)
            && !view.same_for_all_queries()
        {
            let [b, h, _, k] = view.shape();
            case.spec.mask = Some(made(MaskView::dense(view.kind(), &[b, h, n, k])));
            case.mask = Some(match data {
                MaskData::Bool(x) => {
                    let rows = x.iter().enumerate().filter(|(i, _)| i / k % before < n);
                    MaskData::Bool(rows.map(|(_, x)| *x).collect())
                }
                MaskData::Additive(x) => MaskData::Additive(first_rows(x, k, before, n)),
            });
        }
        if let (Some(BiasView::Dense(view)), Some(data)) = (self.spec.bias, &self.bias)
            && !view.same_for_all_queries()
        {
            let [b, h, _, k] = view.shape();
            case.spec.bias = Some(BiasView::Dense(made(MaskView::dense(view.kind(), &[b, h, n, k]))));
            case.bias = Some(first_rows(data, k, before, n));
        }
        if let Some(index) = &mut case.bias_index {
            index.truncate(index.len() / before * n);
        }
        Some(case)
    }

    /// Writes `value` into every element of the new key `token`, for all heads of sequence `batch`.
    pub fn fill_key(&mut self, batch: usize, token: usize, value: f32) {
        for h in 0..self.spec.key.heads() {
            let at = self.spec.key.row(batch, h, token);
            (0..self.spec.key.dim()).for_each(|x| self.k.set(at + x, value));
        }
    }

    /// Writes `value` into every element of the new value `token`, for all heads of sequence `batch`.
    pub fn fill_value(&mut self, batch: usize, token: usize, value: f32) {
        for h in 0..self.spec.value.heads() {
            let at = self.spec.value.row(batch, h, token);
            (0..self.spec.value.dim()).for_each(|x| self.v.set(at + x, value));
        }
    }
}

/// Returns the first `n` of the `rows` rows in each head, as elements without gaps. A row has `width` elements.
fn first_rows(data: &Data, width: usize, rows: usize, n: usize) -> Data {
    let kept: Vec<f32> = (0..data.len()).filter(|i| i / width % rows < n).map(|i| data.get(i)).collect();
    let mut fewer = Data::filled(data.elements().dtype(), kept.len(), 0.0);
    kept.iter().enumerate().for_each(|(i, x)| fewer.set(i, *x));
    fewer
}

fn tokens(view: &View) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let [batch, heads, n, _] = view.shape();
    (0..batch).flat_map(move |b| (0..heads).flat_map(move |h| (0..n).map(move |t| (b, h, t))))
}

/// Returns the value of a result, or panics with its error.
pub(super) fn made<T>(result: Result<T, ArgumentError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}
