//! The plans behind the handles.

use crate::handles::Table;
use elsa_core::dtype::DType;
use elsa_runtime::{ConvolutionPlan, LinearPlan, Plan, RecurrencePlan, SelectivePlan};

pub(crate) static PLANS: Table<Planned> = Table::new("plan");

/// A plan whose problem does not fix the element types of the tensors, with the types that the caller has chosen.
#[derive(Debug)]
pub(crate) struct Typed<P> {
    pub plan: P,
    /// Element type of most tensors.
    pub dtype: DType,
    /// Element type of gates or time steps.
    pub gate: DType,
}

/// A plan of one of the operators.
#[derive(Debug)]
pub(crate) enum Planned {
    Attention(Box<Plan>),
    Linear(Box<LinearPlan>),
    Recurrence(Box<Typed<RecurrencePlan>>),
    Selective(Box<Typed<SelectivePlan>>),
    Convolution(Box<Typed<ConvolutionPlan>>),
}

/// Evaluates `$call` with `$plan` bound to the runtime's plan, whichever operator it belongs to.
macro_rules! of_any {
    ($planned:expr, $plan:ident => $call:expr) => {
        match $planned {
            $crate::planned::Planned::Attention($plan) => $call,
            $crate::planned::Planned::Linear($plan) => $call,
            $crate::planned::Planned::Recurrence(typed) => {
                let $plan = &typed.plan;
                $call
            }
            $crate::planned::Planned::Selective(typed) => {
                let $plan = &typed.plan;
                $call
            }
            $crate::planned::Planned::Convolution(typed) => {
                let $plan = &typed.plan;
                $call
            }
        }
    };
}
pub(crate) use of_any;

impl Planned {
    /// Returns the name of the operator, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Planned::Attention(_) => "attention",
            Planned::Linear(_) => "linear attention",
            Planned::Recurrence(_) => "a recurrence",
            Planned::Selective(_) => "a selective scan",
            Planned::Convolution(_) => "a convolution",
        }
    }
}
