//! Notes on the inputs of a run: the sizes of their axes, and warnings about unusual inputs.

use crate::error::Error;
use crate::flag::flag;
use crate::job::Job;
use crate::report::{count, object};
use elsa_core::attention::{Operand, Problem};
use elsa_core::dtype::Elements;
use elsa_core::view::View;
use serde::Serialize;

/// Largest number of heads that is usual in models.
const USUAL: usize = 64;

/// Names the sizes of queries, keys and values. Tensors with equal sizes are named together.
#[must_use]
pub fn axes(problem: &Problem) -> String {
    let spec = problem.spec();
    let mut groups: Vec<(Vec<&str>, [usize; 4])> = Vec::new();
    for (name, view) in [("q", &spec.query), ("k", &spec.key), ("v", &spec.value)] {
        match groups.iter_mut().find(|(_, shape)| *shape == view.shape()) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], view.shape())),
        }
    }
    let text = |(names, [batch, heads, tokens, dim]): &(Vec<&str>, [usize; 4])| {
        let names = match &names[..] {
            [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
            names => names.concat(),
        };
        format!("{names}: batch {batch}, heads {heads}, tokens {tokens}, dim {dim}")
    };
    groups.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Returns a warning if the axes of heads and tokens look exchanged: `query` has more heads than is usual, and more
/// heads than `keys`, the number of keys, and than its own tokens.
#[must_use]
pub fn exchanged(query: &View, keys: usize) -> Option<String> {
    let tokens = keys.max(query.tokens());
    (query.heads() > USUAL.max(tokens)).then(|| {
        format!(
            "warning: q has {} and {}, which may be exchanged; allowed: --layout bhnd, bnhd, or bnc with --heads",
            count(query.heads() as u64, "head"),
            count(tokens as u64, "token")
        )
    })
}

/// Returns a warning for each input tensor with NaN among its elements. Elements of masks are not counted.
///
/// # Errors
/// Returns the errors of [`Job::inputs`].
pub fn not_numbers(job: &Job) -> Result<Vec<String>, Error> {
    let inputs = job.inputs()?;
    let tensors = [
        (Operand::Query, Some(inputs.query)),
        (Operand::Key, Some(inputs.key)),
        (Operand::Value, Some(inputs.value)),
        (Operand::PastKey, inputs.past_key),
        (Operand::PastValue, inputs.past_value),
    ];
    let warning = |(operand, tensor): (Operand, Option<Elements<'_>>)| {
        let tensor = tensor?;
        let nans = nans(&tensor);
        (nans > 0).then(|| {
            let all = count(tensor.len() as u64, "element");
            let name = flag(operand.argument());
            format!("warning: {name}: NaN in {nans} of {all}; the rows that use them are NaN too")
        })
    };
    Ok(tensors.into_iter().filter_map(warning).collect())
}

/// Counts the elements that are NaN.
fn nans(elements: &Elements<'_>) -> usize {
    match elements {
        Elements::F32(x) => x.iter().filter(|x| x.is_nan()).count(),
        Elements::F16(x) => x.iter().filter(|x| x.is_nan()).count(),
        Elements::Bf16(x) => x.iter().filter(|x| x.is_nan()).count(),
    }
}

/// Returns the sizes of `problem` as `--json` prints them.
pub fn sizes(problem: &Problem) -> impl Serialize + use<> {
    object! {
        batch: problem.sequences(),
        heads: problem.heads(),
        kv_heads: problem.kv_heads(),
        queries: problem.spec().query.tokens(),
        keys: problem.keys(),
        dim: problem.head_dim(),
        value_dim: problem.value_dim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::Spec;
    use elsa_core::dtype::DType;
    use elsa_core::view::Layout;

    fn view(name: &'static str, shape: [usize; 4]) -> View {
        View::dense(name, Layout::Bhnd, &shape, None).unwrap()
    }

    fn problem([query, key, value]: [[usize; 4]; 3]) -> Problem {
        let [b, h, n, _] = query;
        let out = view("out", [b, h, n, value[3]]);
        Spec::new(DType::F32, view("q", query), view("k", key), view("v", value), out).check().unwrap()
    }

    #[test]
    fn axes_are_named_with_the_tensors_that_share_them() {
        let shape = [1, 12, 197, 64];
        assert_eq!(axes(&problem([shape; 3])), "q, k and v: batch 1, heads 12, tokens 197, dim 64");
        let keys = [2, 3, 9, 8];
        assert_eq!(
            axes(&problem([[2, 6, 5, 8], keys, keys])),
            "q: batch 2, heads 6, tokens 5, dim 8; k and v: batch 2, heads 3, tokens 9, dim 8"
        );
        assert_eq!(axes(&problem([[2, 3, 9, 8], keys, [2, 3, 9, 4]])).matches(';').count(), 1);
    }

    #[test]
    fn many_heads_of_few_tokens_look_exchanged() {
        let of = |heads, tokens, keys| exchanged(&view("q", [1, heads, tokens, 8]), keys);
        assert!(of(197, 12, 12).is_some_and(|text| text.contains("q has 197 heads and 12 tokens")));
        assert_eq!(of(197, 1, 1).map(|text| text.contains("1 token,")), Some(true));
        // Decoding with many heads, few heads of fewer tokens, and as many tokens as heads are usual.
        assert_eq!([of(128, 1, 4096), of(64, 2, 2), of(96, 96, 96)], [None, None, None]);
    }

    #[test]
    fn only_nan_counts() {
        let x = [f32::NAN, f32::INFINITY, 0.0, -f32::NAN];
        assert_eq!(nans(&Elements::F32(&x)), 2);
        assert_eq!(nans(&Elements::F16(&x.map(half::f16::from_f32))), 2);
        assert_eq!(nans(&Elements::Bf16(&x.map(half::bf16::from_f32))), 2);
    }
}
