//! Defines the parts that an operator of this library supplies: the names and types of its inputs and outputs, its
//! attributes, and the problem of a call. The rest is generic over [`Operation`]: tables, nodes, caches of plans, and calls.

use crate::api::TensorShape;
use crate::attributes::Node;
use crate::error::OperatorError;
use crate::shapes::{OUTPUTS, Shapes};
use crate::signature::Signature;
use crate::tensors::Addresses;
use elsa_runtime::operators::{Operator, Plan, Workspace};
use elsa_runtime::{Engine, PlanError};

/// Execution provider of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    Cuda,
}

/// The problem of a call, the places of its operands in the inputs, and the shapes of its outputs.
#[derive(Clone, Debug)]
pub(crate) struct Geometry<P, L = ()> {
    pub problem: P,
    pub placement: L,
    pub outputs: [TensorShape; OUTPUTS],
}

/// The problem of an operator.
pub(crate) type ProblemOf<O> = <<O as Operation>::Engine as Operator>::Problem;
/// The geometry of a call of an operator.
pub(crate) type GeometryOf<O> = Geometry<ProblemOf<O>, <O as Operation>::Placement>;
/// The inputs and outputs of a call in host memory.
pub(crate) type HostOf<'a, O> =
    (<<O as Operation>::Engine as Operator>::Inputs<'a>, <<O as Operation>::Engine as Operator>::Outputs<'a>);
/// The inputs and outputs of a call in device memory.
pub(crate) type DeviceOf<'a, O> = (
    <<O as Operation>::Engine as Operator>::DeviceInputs<'a>,
    <<O as Operation>::Engine as Operator>::DeviceOutputs,
);

/// An operator of this library.
pub(crate) trait Operation: Sized + 'static {
    /// The engine's operator, which computes the calls.
    type Engine: Operator;
    /// The attributes of a node. Each value has been checked against its allowed range.
    type Attributes;
    /// Places of the operands, for an operator whose operands do not begin where their inputs begin; otherwise `()`.
    type Placement;

    /// The name of the operator, and its inputs and outputs.
    const SIGNATURE: &'static Signature;

    /// Reads the attributes of a node.
    ///
    /// # Errors
    /// Returns an error if an attribute has the wrong type, is out of range, or requires another attribute that is
    /// missing.
    fn attributes(node: &impl Node) -> Result<Self::Attributes, OperatorError>;

    /// Derives the geometry of a call, and checks the shapes of its inputs.
    ///
    /// # Errors
    /// Returns an error that names the first input or attribute that does not match.
    fn geometry(attributes: &Self::Attributes, shapes: &Shapes) -> Result<GeometryOf<Self>, OperatorError>;

    /// Returns a copy of the shapes in which an empty batch is replaced by a batch of 1. Returns `None` if the batch is
    /// not empty, or if the operator needs no replacement.
    fn of_no_sequence(_: &Shapes) -> Option<Shapes> {
        None
    }

    /// Returns the name that an argument of the engine has in the operator.
    fn renamed(argument: &'static str) -> &'static str {
        argument
    }

    /// Checks that the outputs of a node agree with its attributes, its inputs and its provider. `shapes` states which
    /// outputs the runtime has allocated; the geometry may have counted outputs that the node omits.
    ///
    /// # Errors
    /// Returns an error that names an output.
    fn check_outputs(_: &Self::Attributes, _: Provider, _: &Shapes) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Plans a problem.
    ///
    /// # Errors
    /// Returns the errors of the engine.
    fn plan(
        engine: &Engine,
        attributes: &Self::Attributes,
        problem: &ProblemOf<Self>,
    ) -> Result<Plan<Self::Engine>, PlanError>;

    /// Returns the size in bytes of the workspace for calls of a plan. `shapes` states which outputs the calls have.
    fn workspace_bytes(plan: &Plan<Self::Engine>, _: &Shapes) -> usize {
        plan.workspace_bytes()
    }

    /// Writes outputs in host memory that a run leaves in its workspace.
    ///
    /// # Errors
    /// Returns the errors of the engine.
    ///
    /// # Safety
    /// - The caller keeps the clause *tensors* of [`crate::tensors`].
    unsafe fn finish(_: &mut Workspace<Self::Engine>, _: &Addresses<'_>) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Returns the tensors of a call in host memory.
    ///
    /// # Safety
    /// - The caller keeps the clause *tensors* of [`crate::tensors`].
    unsafe fn host<'a>(geometry: &'a GeometryOf<Self>, given: &Addresses<'a>) -> HostOf<'a, Self>;

    /// Returns the tensors of a call in device memory.
    ///
    /// # Safety
    /// - The caller keeps the clause *tensors* of [`crate::tensors`], for inputs in host memory.
    unsafe fn device<'a>(geometry: &'a GeometryOf<Self>, given: &Addresses<'a>) -> DeviceOf<'a, Self>;
}
