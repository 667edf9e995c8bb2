//! The inputs and outputs of the operator.

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
    QueryBounds,
    KeyBounds,
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
            Input::QueryBounds => "cu_seqlens_q",
            Input::KeyBounds => "cu_seqlens_k",
        }
    }
}

/// The outputs in the order of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Y,
    PresentKey,
    PresentValue,
    LogSumExp,
    StateReference,
    StateSum,
    StateWeighted,
    LeftOut,
}

impl Output {
    /// The outputs that contain past and new keys, and past and new values.
    pub const PRESENT: [Output; 2] = [Output::PresentKey, Output::PresentValue];
    /// The outputs that form the states of the rows. A node has all of them or none.
    pub const STATES: [Output; 3] = [Output::StateReference, Output::StateSum, Output::StateWeighted];

    /// Returns the name of the output.
    pub const fn name(self) -> &'static str {
        match self {
            Output::Y => "Y",
            Output::PresentKey => "present_key",
            Output::PresentValue => "present_value",
            Output::LogSumExp => "lse",
            Output::StateReference => "state_m",
            Output::StateSum => "state_s",
            Output::StateWeighted => "state_w",
            Output::LeftOut => "left_out",
        }
    }
}

impl From<Input> for usize {
    /// Returns the index of the input.
    fn from(input: Input) -> usize {
        input as usize
    }
}
