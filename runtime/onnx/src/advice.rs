//! Changes of a model that would let the rewriter replace an attention.

/// Parts of reasons, each with the change that would help.
const ADVICE: [(&str, &str); 27] = [
    (
        "does not follow from the model",
        "write the shapes of all tensors into the model, with onnx.shape_inference",
    ),
    (
        "do not follow from the model",
        "write the shapes of all tensors into the model, with onnx.shape_inference",
    ),
    ("an output of the model", "export the model without this output"),
    ("and nowhere else", "export the model without the other readers of the weights"),
    ("some of which stay", "export the model without the other readers of the scores"),
    ("read the states of its chunks", "export the model without its last states"),
    ("read the states of its tokens", "export the model without its last states"),
    ("in a subgraph or a function", "export without control flow, or inline functions with onnx.inliner"),
    ("which is not one number", "multiply the queries by this factor instead of the scores"),
    ("several free axes and cannot", "fix the sizes of the mask's dynamic axes, all but one"),
    ("f32 or f16, are replaced", "export queries, keys and values in one type, f32 or f16"),
    ("which the operator does not return", "export the model without this output"),
    (
        "where new keys are written",
        "export the decoder with MultiHeadAttention, or Attention of opset 23, and rotations before it",
    ),
    ("rotates queries and keys", "rotate queries and keys by nodes before the attention"),
    ("fills in place", "export with a cache that grows instead of a shared buffer"),
    ("on the diagonal of", "give the diagonal in attn_mask instead of is_causal"),
    ("whether a soft cap", "export the attention as separate nodes, at opset 22 or before"),
    ("a part of a larger mask", "give the mask of the attended keys as attention_bias"),
    ("is not taken over", "save the model before ONNX Runtime fuses its nodes, or export without this input"),
    ("not the last of", "export the softmax over the last axis of the scores"),
    ("its values are scaled", "multiply the output by this factor instead of the values"),
    ("within the soft cap", "add the mask after the soft cap"),
    ("scaled after it is applied", "scale the scores before the mask is added"),
    ("without broadcasting", "expand keys and values to the axes of the queries"),
    ("queries takes", "fix the dynamic axes, or attend fewer tokens at a time"),
    ("sizes of its free axes only", "fix the sizes of the dynamic axes"),
    ("along several axes", "reshape the other axes into the batch or the channels"),
];

/// Returns the change of the model that would help if an attention stays for the reason `words`.
#[must_use]
pub fn help(words: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(part, _)| words.contains(part)).map(|(_, help)| *help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_part_of_a_reason() {
        let sources = [
            include_str!("change.rs"),
            include_str!("find.rs"),
            include_str!("forms.rs"),
            include_str!("chunks.rs"),
            include_str!("fused.rs"),
            include_str!("lib.rs"),
            include_str!("prove.rs"),
            include_str!("scan.rs"),
            include_str!("single.rs"),
            include_str!("stepwise.rs"),
        ];
        for (part, help) in ADVICE {
            assert!(sources.iter().any(|source| source.contains(part)), "{part}");
            assert_eq!(super::help(part), Some(help), "{part}");
        }
        assert_eq!(super::help("its scores come from no product of queries and keys"), None);
    }
}
