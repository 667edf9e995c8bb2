//! Descriptions of a call's input files for error messages. Each description contains a flag, and the path, type and
//! shape of its tensor.

use crate::error::Error;
use crate::flag::flag;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Spec;

/// Pairs of a flag and a description of the tensor that the flag names.
#[derive(Default)]
pub struct Files(Vec<(&'static str, String)>);

impl Files {
    /// Adds the description of the tensor that the flag `argument` names.
    pub fn add(&mut self, argument: &'static str, path: &str, dtype: &str, shape: &[usize]) {
        self.0.push((argument, format!("--{argument} {path}: {dtype} {shape:?}")));
    }

    /// Returns the description of the tensor that the flag `argument` names, or `None` if none was added.
    #[must_use]
    pub fn of(&self, argument: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| *of == argument).map(|(_, words)| words.as_str())
    }

    /// Converts `fault` to an error whose message also describes the tensors that the fault concerns.
    #[must_use]
    pub fn explain(&self, fault: ArgumentError) -> Error {
        let advice = match fault {
            ArgumentError::Groups { .. } => {
                "; --layout names the order of the axes, such as bnhd, or bnc with --heads".to_owned()
            }
            _ => String::new(),
        };
        self.with(fault, advice, None)
    }

    /// Converts a fault in `spec` to an error like [`Files::explain`]. If the shape of a mask or bias is wrong, the
    /// message also contains the shape of the scores. If the mask looks like a padding mask, the message also contains
    /// advice.
    #[must_use]
    pub fn explain_spec(&self, fault: ArgumentError, spec: &Spec) -> Error {
        let ArgumentError::MaskShape { argument, .. } = fault else { return self.explain(fault) };
        let past = spec.past_tokens();
        let keys = spec.key.tokens().saturating_add(past);
        let (batch, queries) = (spec.query.batch(), spec.query.tokens());
        let scores = [batch, spec.query.heads(), queries, keys];
        // In a padding mask of shape [batch, keys] or [batch, queries, keys], the axis of the batch is in the position
        // of the axis of heads or queries.
        let padding = match spec.mask.filter(|_| argument == "mask").map(|mask| mask.shape()) {
            Some([1, 1, b, n]) if b == batch && n == keys => Some([batch, 1, 1, keys]),
            Some([1, b, q, n]) if b == batch && n == keys && (q == 1 || q == queries) => {
                Some([batch, 1, q, keys])
            }
            _ => None,
        };
        let advice = padding.map_or_else(String::new, |shape| {
            format!("; a mask for each sequence of the batch, such as padding, has the shape {shape:?}")
        });
        self.with(fault, advice, Some(format!("scores: {scores:?}")))
    }

    fn with(&self, fault: ArgumentError, advice: String, more: Option<String>) -> Error {
        use ArgumentError as E;
        let fault = fault.renamed(flag);
        let (argument, other) = match fault {
            E::Groups { .. } => ("k", "q"),
            E::MaskShape { argument, .. } => (argument, ""),
            E::Mismatch { argument, of, .. } => match of {
                "q with v" | "the batch" => (argument, "q"),
                _ => (argument, of),
            },
            E::Type { argument, .. } => (argument, "q"),
            E::Multiple { argument, of, .. } => (argument, of),
            E::Rank { argument, .. }
            | E::TooLarge { argument, .. }
            | E::HeadsMissing { argument }
            | E::HeadsDoNotDivide { argument, .. }
            | E::Zero { argument, .. }
            | E::Length { argument, .. } => (argument, ""),
            E::Conflict { argument, other } | E::Needs { argument, other } => (argument, other),
            _ => return Error::Problem(fault),
        };
        let files = [self.of(argument), self.of(other).filter(|_| other != argument)];
        let words: Vec<&str> = files.into_iter().flatten().chain(more.as_deref()).collect();
        if words.is_empty() {
            return Error::Problem(fault);
        }
        Error::Tensors { fault, advice, files: words.join(", ") }
    }
}
