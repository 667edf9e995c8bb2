//! The head sizes at which plans of linear attention change from the recurrence to chunks: the crossovers.

use elsa_core::linear::plan::{ChunksFrom, Crossovers};
use elsa_core::linear::{Gates, Rule};
use serde::Serialize;
use std::fmt;

/// The crossover of a rule. Plans use the recurrence for head sizes below the crossover, and chunks for all other head
/// sizes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Crossover {
    rule: &'static str,
    per_dim: bool,
    /// Smallest head size of keys for which chunks are faster; `None` if the recurrence is always faster.
    chunks_from: Option<usize>,
    /// Number of tokens that a kernel processes in one pass over a state.
    pass: usize,
    /// `true` if the crossover is predicted, not measured on a processor of this kind.
    predicted: bool,
}

impl Crossover {
    /// Returns the crossovers of all rules. A rule with gates has one crossover for gates per head and one for gates
    /// per dim.
    #[must_use]
    pub fn all(crossovers: &Crossovers) -> Vec<Crossover> {
        let of = |rule: Rule, gates| {
            let ChunksFrom { head_size, pass } = crossovers.crossover(rule, gates);
            let chunks_from = (head_size != usize::MAX).then_some(head_size);
            let predicted = crossovers.predicted;
            Crossover { rule: rule.name(), per_dim: gates == Gates::PerDim, chunks_from, pass, predicted }
        };
        let gates =
            |rule: Rule| if rule.is_gated() { &[Gates::PerHead, Gates::PerDim][..] } else { &[Gates::None] };
        Rule::ALL.into_iter().flat_map(|rule| gates(rule).iter().map(move |gates| of(rule, *gates))).collect()
    }

    /// Formats all crossovers as one line.
    #[must_use]
    pub fn line(all: &[Crossover]) -> String {
        let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
        let predicted = all.iter().any(|crossover| crossover.predicted);
        format!(
            "chunks instead of the recurrence from head size: {}{}",
            shown.join(", "),
            if predicted { " (predicted)" } else { "" }
        )
    }
}

impl fmt::Display for Crossover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates = if self.per_dim { " per dim" } else { "" };
        match self.chunks_from {
            Some(size) => write!(f, "{}{gates} {size}", self.rule),
            None => write!(f, "{}{gates} none", self.rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::profile::InstructionSet;

    #[test]
    fn every_rule_has_its_crossover() {
        let mut crossovers = Crossovers::MEASURED;
        crossovers.plain = ChunksFrom { head_size: 96, pass: 16 };
        crossovers.delta_per_dim = ChunksFrom { head_size: usize::MAX, pass: 16 };
        let all = Crossover::all(&crossovers);
        let shown: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 6);
        assert_eq!([&shown[0], &shown[1], &shown[5]], ["linear 96", "gated 96", "gated-delta per dim none"]);
        assert_eq!(all[5].chunks_from, None);
        assert!(Crossover::line(&all).ends_with("gated-delta per dim none"));
        let predicted = Crossover::line(&Crossover::all(&Crossovers::of(InstructionSet::Neon)));
        assert!(predicted.ends_with("linear none, gated none, gated per dim none, delta none, gated-delta none, gated-delta per dim none (predicted)"), "{predicted}");
    }
}
