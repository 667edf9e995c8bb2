//! Flags of the tool that correspond to the arguments in errors of the library.

use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError};

/// Returns the flag, without its dashes, for an argument named by its field in the C interface. Any other name is
/// returned unchanged.
#[must_use]
pub fn flag(argument: &'static str) -> &'static str {
    match argument {
        "past_k" => "past-k",
        "past_v" => "past-v",
        "present_k" => "present-k",
        "present_v" => "present-v",
        "key_lengths" => "kv-lens",
        "cu_seqlens_q" => "cu-seqlens-q",
        "cu_seqlens_k" => "cu-seqlens-k",
        "cu_seqlens" => "cu-seqlens",
        "past_state" => "past-state",
        "present_state" => "present-state",
        "bias_table" => "bias-table",
        "bias_index" => "bias-index",
        "bias_index or windows" => "bias-index or windows",
        "windows.size" => "windows",
        "windows.picture" => "picture",
        "windows.picture in windows" => "picture in windows",
        "windows.shift" => "shift",
        "window_left" | "window_right" => "window",
        "delta_bias" => "delta-bias",
        "states" => "a states",
        "d_out" => "d-out",
        "d_q" => "dq-out",
        "d_k" => "dk-out",
        "d_v" => "dv-out",
        "error_budget" => "error-budget",
        "rescale_threshold" => "rescale-threshold",
        "lse" => "lse-out",
        "key_total" | "query_total" => "tokens",
        "state_m" => "state-out m",
        "state_s" => "state-out s",
        "state_w" => "state-out w",
        name => name,
    }
}

/// Returns the message of an error about an argument. The message names the argument by its flag.
#[must_use]
pub fn problem(e: ArgumentError) -> String {
    e.renamed(flag).to_string()
}

/// Returns the message of an error about a plan. The message names arguments by their flags.
#[must_use]
pub fn plan(e: &PlanError) -> String {
    if let PlanError::Option(e) = e {
        return problem(*e);
    }
    e.to_string().replacen("host_budget", "host-budget", 1)
}

/// Returns the message of an error about the tensors of a call. The message names tensors by their flags.
#[must_use]
pub fn bind(e: &BindError) -> String {
    match e {
        BindError::Problem(e) => problem(*e),
        e => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::Operand;
    use elsa_core::linear;

    #[test]
    fn messages_name_flags() {
        let e = ArgumentError::Needs { argument: "past_k", other: "past_v" };
        assert_eq!(problem(e), "past-k: given without past-v; allowed: both or neither");
        let e = ArgumentError::Conflict { argument: "key_lengths", other: "cu_seqlens_q" };
        assert_eq!(bind(&e.into()), "kv-lens: given with cu-seqlens-q; allowed: one of the two");
        let workspace = BindError::Foreign;
        assert_eq!(bind(&workspace), workspace.to_string());
        for operand in Operand::ALL {
            assert!(!flag(operand.argument()).contains('_'), "{operand:?}");
        }
        for operand in linear::Operand::ALL {
            assert!(!flag(operand.argument()).contains('_'), "{operand:?}");
        }
    }
}
