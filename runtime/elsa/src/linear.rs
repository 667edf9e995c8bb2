//! Linear attention: a state of fixed size that a rule updates token by token.
//!
//! [`Engine::linear`](crate::Engine::linear) computes a single call;
//! [`Engine::linear_plan`](crate::Engine::linear_plan) creates a [`Plan`] for repeated calls.

#[doc(inline)]
pub use elsa_core::linear::bound::Executed;
#[doc(inline)]
pub use elsa_core::linear::plan::Choice;
#[doc(inline)]
pub use elsa_core::linear::{
    Direction, Form, Gates, InputTensors, Inputs, Operand, Operands, OutputTensors, Outputs, Problem, Rule,
    Sequence, Spec,
};
#[doc(inline)]
pub use elsa_runtime::{
    Linear, LinearBound as Bound, LinearCertificate as Certificate, LinearDeviceBound as DeviceBound,
    LinearDeviceInputs as DeviceInputs, LinearDeviceOutputs as DeviceOutputs, LinearDivision as Division,
    LinearGpuChoice as GpuChoice, LinearPlan as Plan, LinearPlanOptions as PlanOptions,
    LinearWorkspace as Workspace,
};
