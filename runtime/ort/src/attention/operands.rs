//! The inputs of the operator.

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

impl From<Input> for usize {
    /// Returns the index of the input.
    fn from(input: Input) -> usize {
        input as usize
    }
}
