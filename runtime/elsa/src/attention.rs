//! Softmax attention: masks, biases, windows, caches, gradients and certificates.
//!
//! [`Engine::attention`](crate::Engine::attention) computes a single call; [`Engine::plan`](crate::Engine::plan)
//! creates a [`Plan`] for repeated calls.

#[doc(inline)]
pub use elsa_core::attention::plan::{CpuChoice, CpuDivision, Division, GpuChoice, Method, TensorCores};
#[doc(inline)]
pub use elsa_core::attention::{
    Alignment, BiasView, Chunk, InputTensors, Inputs, LARGEST_FACTOR, Lengths, MASK_LIMIT, MaskElements,
    MaskKind, MaskView, Operand, Operands, OutputTensors, Outputs, Problem, Sequence, Spec, StateOut,
    StateTensors, TableView, Window, Windows,
};
#[doc(inline)]
pub use elsa_runtime::{
    Attention, Bound, DeviceBound, DeviceInputs, DeviceOutputs, Plan, PlanOptions, RefusedBlocks, Tuned,
    TunedFile, TunedShape, Tuning, Workspace,
};

/// Gradients of attention, on the CPU.
pub mod backward {
    #[doc(inline)]
    pub use elsa_core::attention::backward::{
        BackwardInputs as Inputs, BackwardProblem as Problem, BackwardSpec as Spec, Gradients, Operand,
        Operands, Statistics, Structure,
    };
    #[doc(inline)]
    pub use elsa_runtime::{
        Backward, BackwardBound as Bound, BackwardPlan as Plan, BackwardPlanOptions as PlanOptions,
        BackwardWorkspace as Workspace,
    };
}

/// Bounds on the error of an output, computed from the plan alone or from the tensors of a run.
pub mod certificate {
    #[doc(inline)]
    pub use elsa_core::attention::certificate::{Certificate, Executed, Order};
    #[doc(inline)]
    pub use elsa_core::attention::run_certificate::{NoClaim, RunCertificate};
}

/// Orders in which blocks are visited, and rules for skipping blocks.
pub mod traversal {
    #[doc(inline)]
    pub use elsa_core::attention::traversal::{
        First, KeySide, LEAST_QUERIES, Movers, Order, QuerySide, Schedule, Shares, Skip, Spoilt, TABLE_3,
        TABLE_4, TraversalReport,
    };
    #[doc(inline)]
    pub use elsa_runtime::Traversed;
}
