//! Operators on tensors of tokens and channels. They process each channel independently.

#[doc(inline)]
pub use elsa_core::series::plan::SeriesChoice as Choice;
#[doc(inline)]
pub use elsa_core::series::{OutputTensors, Outputs, Series};
#[doc(inline)]
pub use elsa_runtime::{
    DeviceElements, SeriesDeviceOutputs as DeviceOutputs, SeriesDivision as Division,
    SeriesGpuChoice as GpuChoice,
};

/// The recurrence `h_t = a_t h_{t−1} + b_t`, planned by [`Engine::recurrence_plan`](crate::Engine::recurrence_plan).
pub mod recurrence {
    #[doc(inline)]
    pub use elsa_core::series::recurrence::{Gate, InputTensors, Inputs, Operand, Operands, Problem, Spec};
    #[doc(inline)]
    pub use elsa_runtime::{
        Recurrence, RecurrenceBound as Bound, RecurrenceDeviceInputs as DeviceInputs,
        RecurrenceOptions as PlanOptions, RecurrencePlan as Plan, RecurrenceWorkspace as Workspace,
    };
}

/// Mamba's selective scan, planned by [`Engine::selective_plan`](crate::Engine::selective_plan).
pub mod selective {
    #[doc(inline)]
    pub use elsa_core::series::selective::{
        Coefficient, InputTensors, Inputs, MAX_STATES, Operand, Operands, Problem, Spec,
    };
    #[doc(inline)]
    pub use elsa_runtime::{
        Selective, SelectiveBound as Bound, SelectiveDeviceInputs as DeviceInputs,
        SelectiveOptions as PlanOptions, SelectivePlan as Plan, SelectiveWorkspace as Workspace,
    };
}

/// The causal convolution, planned by [`Engine::convolution_plan`](crate::Engine::convolution_plan).
pub mod convolution {
    #[doc(inline)]
    pub use elsa_core::series::convolution::{
        InputTensors, Inputs, Method, Operand, Operands, Problem, Spec, Taps,
    };
    #[doc(inline)]
    pub use elsa_runtime::{
        Convolution, ConvolutionBound as Bound, ConvolutionDeviceInputs as DeviceInputs,
        ConvolutionOptions as PlanOptions, ConvolutionPlan as Plan, ConvolutionWorkspace as Workspace,
    };
}
