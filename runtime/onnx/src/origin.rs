//! Origin of a tensor: a product of two tensors, or a node through which no shape follows.

use super::find::{LONGEST, Reason, Site};

impl Site<'_> {
    /// Explains why the shape of `name` is unknown. The explanation names the tensor at which unknown shapes begin.
    /// Either no node produces this tensor, or the node that produces it reads only tensors of known shape.
    #[must_use]
    pub fn unknown_shape(&self, name: &str) -> Reason {
        let mut name = name;
        for _ in 0..LONGEST {
            let Some((_, node)) = self.producer(name) else { break };
            let unknown = |name: &&String| !name.is_empty() && self.symbols.shape(name).is_none();
            match node.inputs.iter().find(unknown) {
                Some(input) => name = input,
                None => {
                    let full =
                        if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
                    return format!(
                        "the shape of its scores does not follow from the model: that of '{name}', made by {full}{}, is not known",
                        node.op
                    );
                }
            }
        }
        format!("the shape of its scores does not follow from the model: that of '{name}' is not declared")
    }

    /// Returns `true` if `name` is computed, through elementwise and layout nodes, from a matrix product of two
    /// non-constant tensors.
    #[must_use]
    pub fn is_product(&self, name: &str) -> bool {
        let mut work = vec![name];
        for _ in 0..LONGEST {
            let Some((_, node)) = work.pop().and_then(|name| self.producer(name)) else { continue };
            if ["MatMul", "Einsum"].iter().any(|op| node.is(op)) {
                if node.inputs.iter().all(|name| !self.known(name)) {
                    return true;
                }
                continue;
            }
            let through = [
                "Add",
                "Sub",
                "Mul",
                "Div",
                "Where",
                "Cast",
                "Reshape",
                "Transpose",
                "Max",
                "Min",
                "Clip",
                "Tanh",
                "Sigmoid",
                "Squeeze",
                "Unsqueeze",
                "Identity",
                "Concat",
                "Slice",
                "Pad",
                "Expand",
                "Neg",
                "Abs",
                "Exp",
                "Relu",
            ];
            if !through.iter().any(|op| node.is(op)) {
                continue;
            }
            work.extend(node.inputs.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
        false
    }
}
