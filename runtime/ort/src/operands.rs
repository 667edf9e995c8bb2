//! The inputs and outputs of the operator.

/// Number of inputs of the operator.
pub(crate) const INPUTS: usize = 8;
/// Number of outputs of the operator.
pub(crate) const OUTPUTS: usize = 3;

/// The inputs in the order of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    Query,
    Key,
    Value,
    Mask,
    BiasTable,
    PastKey,
    PastValue,
    KeyLengths,
}

impl Input {
    pub const ALL: [Input; INPUTS] = [
        Input::Query,
        Input::Key,
        Input::Value,
        Input::Mask,
        Input::BiasTable,
        Input::PastKey,
        Input::PastValue,
        Input::KeyLengths,
    ];

    /// Returns the name of the input.
    pub const fn name(self) -> &'static str {
        match self {
            Input::Query => "Q",
            Input::Key => "K",
            Input::Value => "V",
            Input::Mask => "mask",
            Input::BiasTable => "bias_table",
            Input::PastKey => "past_key",
            Input::PastValue => "past_value",
            Input::KeyLengths => "kv_lengths",
        }
    }
}
