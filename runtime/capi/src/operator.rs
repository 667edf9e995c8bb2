//! Functions that all operators share. The trait [`Called`] captures the differences between operators; the handling of
//! handles, structs and tensors is generic over it.

use crate::buffer::{Held, held};
use crate::convert;
use crate::engine::ENGINES;
use crate::fault::Fault;
use crate::growing::{Growing, Room, bytes, take, take_or_default};
use crate::objects::{AnyBoundCall, AnyPlan, AnyWorkspace, BOUND_CALLS, PLANS, Typed, WORKSPACES, lock};
use crate::pointer::{aligned, put};
use crate::text::{self, Text};
use crate::types::*;
use elsa_runtime::operators::{Addresses, LengthsOf, Operator, Plan, Workspace};
use elsa_runtime::{Engine, RawEvent, RawStream, Report, RunError, Trust};
use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Operator of the runtime, as exposed by the C interface.
pub(crate) trait Called: Operator {
    /// Name of the operator, for messages.
    const NAME: &'static str;
    /// Name of the C function that creates plans of the operator, for messages.
    const CREATE: &'static str;
    /// C struct that describes a problem.
    type Described: Growing;
    /// C struct of the options of a plan.
    type Options: Growing + Default;
    /// C struct of the input tensors.
    type Read: Growing;
    /// C struct of the output tensors.
    type Written: Growing;
    /// Optional argument of a call in addition to its tensors: the chunk for attention, nothing for other operators.
    type Part: Copy + Default;
    /// Element types of tensors, for an operator whose problem does not determine them; `()` for other operators.
    type Types: Send + Sync + 'static;

    /// Creates a plan.
    fn create(
        engine: &Engine,
        problem: &Self::Described,
        options: &Self::Options,
    ) -> Result<PlanOf<Self>, Fault>;

    /// Returns the workspace size that runs of a plan need if they output states, in bytes.
    fn state_workspace_bytes(plan: &Plan<Self>) -> usize {
        plan.workspace_bytes()
    }

    /// Returns [`elsa_plan_info::tensor_cores`].
    fn tensor_cores(_plan: &Plan<Self>) -> elsa_tensor_cores {
        ELSA_TENSOR_CORES_OFF
    }

    /// Warms up a plan in a workspace.
    fn warm(plan: &Plan<Self>, workspace: &mut Workspace<Self>) -> Result<Report, RunError>;

    /// Returns the addresses of all tensors and lists that `read` and `written` name.
    fn addresses(read: &Self::Read, written: &Self::Written) -> impl Iterator<Item = usize>;

    /// Returns `true` if `read` names a list of lengths.
    fn has_lists(_read: &Self::Read) -> bool {
        false
    }

    /// Returns the CUDA events that a run on device tensors waits for and records. An event is null if `read` or
    /// `written` names none.
    fn events(_read: &Self::Read, _written: &Self::Written) -> [*mut c_void; 2] {
        [ptr::null_mut(); 2]
    }

    /// Checks tensors in host memory.
    ///
    /// # Safety
    /// The caller keeps the crate's clause *tensors*, for `'a`.
    unsafe fn host<'a>(
        plan: &PlanOf<Self>,
        read: &Self::Read,
        written: &Self::Written,
        part: Self::Part,
    ) -> Result<(Self::Inputs<'a>, Self::Outputs<'a>), Fault>;

    /// Returns the lengths of a call whose tensors [`Called::host`] has checked. Checks the entries of all lists, because
    /// the caller may have changed them since then.
    ///
    /// # Safety
    /// The crate's clause *tensors* holds for `'a`.
    unsafe fn lists<'a>(plan: &PlanOf<Self>, read: &Self::Read) -> Result<LengthsOf<'a, Self>, Fault>;

    /// Checks tensors in GPU memory, except whether their memory is on the device.
    ///
    /// # Safety
    /// For `'a`, all entries of the lists of lengths in `read` are readable and nothing writes to them.
    unsafe fn device<'a>(
        plan: &PlanOf<Self>,
        read: &Self::Read,
        written: &Self::Written,
    ) -> Result<(Self::DeviceInputs<'a>, Self::DeviceOutputs), Fault>;
}

/// A plan of the operator `O`.
pub(crate) type PlanOf<O> = Typed<O, <O as Called>::Types>;

impl<O: Called> AnyPlan for PlanOf<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn info(&self) -> elsa_plan_info {
        let plan = &self.plan;
        let reason = plan.refusal().map_or_else(Text::new, |reason| Text::of(reason));
        elsa_plan_info {
            size: size_of::<elsa_plan_info>(),
            backend: convert::backend_number(plan.backend()),
            fallback: u32::from(plan.refusal().is_some()),
            workspace_bytes: plan.workspace_bytes(),
            staging_bytes: plan.staging_bytes(),
            kernel: text::name(plan.kernel()),
            state_workspace_bytes: O::state_workspace_bytes(plan),
            reason: reason.chars(),
            tensor_cores: O::tensor_cores(plan),
            reserved: 0,
        }
    }

    fn shared(&self, plans: &[Arc<dyn AnyPlan>]) -> Result<AnyWorkspace, Fault> {
        let plans = plans.iter().map(|plan| Ok(&plan_of::<O>(plan.as_ref())?.plan));
        let plans = plans.collect::<Result<Vec<_>, Fault>>()?;
        Ok(any_workspace::<O>(Workspace::shared(&plans)?))
    }

    unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<AnyWorkspace, Fault> {
        // SAFETY: the caller keeps the clause *lent*.
        Ok(any_workspace::<O>(unsafe { self.plan.workspace_in(memory, bytes) }?))
    }

    unsafe fn workspace_on_device(&self, memory: u64, bytes: usize) -> Result<AnyWorkspace, Fault> {
        // SAFETY: the caller keeps the clause *lent*.
        Ok(any_workspace::<O>(unsafe { self.plan.workspace_on_device(memory, bytes) }?))
    }

    fn warm(&self, workspace: &mut AnyWorkspace) -> Result<(), Fault> {
        O::warm(&self.plan, workspace_of::<O>(workspace)?)?;
        Ok(())
    }
}

fn any_workspace<O: Called>(workspace: Workspace<O>) -> AnyWorkspace {
    AnyWorkspace { name: O::NAME, workspace: Box::new(workspace), trust: Trust::default() }
}

/// Returns `plan` in the type of the operator `O`; `None` if it belongs to another operator.
pub(crate) fn plan_if<O: Called>(plan: &dyn AnyPlan) -> Option<&PlanOf<O>> {
    let plan: &dyn Any = plan;
    plan.downcast_ref()
}

/// Returns `plan` in the type of the operator `O`, or an error if it belongs to another operator.
pub(crate) fn plan_of<O: Called>(plan: &dyn AnyPlan) -> Result<&PlanOf<O>, Fault> {
    plan_if::<O>(plan).ok_or_else(|| {
        let (found, create) = (plan.name(), O::CREATE);
        Fault::argument(format_args!("plan: of {found}; allowed: one of {create}"))
    })
}

/// Returns `workspace` in the type of the operator `O`, or an error if it belongs to another operator.
pub(crate) fn workspace_of<O: Called>(workspace: &mut AnyWorkspace) -> Result<&mut Workspace<O>, Fault> {
    let (found, create) = (workspace.name, O::CREATE);
    workspace.workspace.downcast_mut().ok_or_else(|| {
        Fault::argument(format_args!("workspace: of a plan of {found}; allowed: of one of {create}"))
    })
}

/// Tensors of a bound call, checked against the problem of its plan.
struct BoundTensors<O: Called> {
    /// The struct that names the lists of lengths. Each run reads the lists again.
    read: O::Read,
    addresses: Addresses<O>,
    /// Keeps the buffers of the tensors alive.
    _held: Held,
}

/// Plan, workspace and tensors of a bound call.
struct BoundCall<O: Called> {
    plan: Arc<dyn AnyPlan>,
    workspace: Arc<Mutex<AnyWorkspace>>,
    /// A run locks the workspace first.
    given: Mutex<BoundTensors<O>>,
}

// SAFETY: the memory is valid and nothing else uses it, whichever thread runs the bound call (clause *tensors* of the
// function that bound the tensors).
unsafe impl<O: Called> Send for BoundCall<O> {}
// SAFETY: the same clause holds, and a run holds the lock of the workspace.
unsafe impl<O: Called> Sync for BoundCall<O> {}

impl<O: Called> AnyBoundCall for BoundCall<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    unsafe fn run(&self, room: Option<Room<elsa_report>>) -> Result<(), Fault> {
        let plan = plan_of::<O>(&*self.plan)?;
        let mut workspace = lock(&self.workspace)?;
        let workspace = workspace_of::<O>(&mut workspace)?;
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller keeps the clause *tensors*. `given` has checked the addresses, and `lists` checks what may
        // have changed since then (*checked*).
        let done = unsafe { plan.plan.run_at(O::lists(plan, &given.read)?, &given.addresses, workspace) }?;
        fill(room, plan, &done);
        Ok(())
    }
}

impl<O: Called> BoundCall<O> {
    /// Replaces the tensors.
    ///
    /// # Safety
    /// The crate's clause *tensors* for every later run.
    unsafe fn set(&self, read: O::Read, written: &O::Written) -> Result<(), Fault> {
        let mut workspace = lock(&self.workspace)?;
        // SAFETY: the caller keeps the clause *tensors*.
        let given = unsafe { given::<O>(&*self.plan, &mut workspace, read, written) }?;
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = given;
        Ok(())
    }
}

/// Checks the tensors of a bound call, and that they can be bound to the plan and the workspace.
///
/// # Safety
/// The crate's clause *tensors*.
unsafe fn given<O: Called>(
    plan: &dyn AnyPlan,
    workspace: &mut AnyWorkspace,
    read: O::Read,
    written: &O::Written,
) -> Result<BoundTensors<O>, Fault> {
    let (plan, workspace) = (plan_of::<O>(plan)?, workspace_of::<O>(workspace)?);
    let held = hold::<O>(&read, written);
    // SAFETY: the caller keeps the clause *tensors*, and `addresses` has checked the addresses (*checked*).
    unsafe {
        let addresses = addresses::<O>(plan, &read, written)?;
        can_bind(plan, O::lists(plan, &read)?, &addresses, workspace)?;
        Ok(BoundTensors { read, addresses, _held: held })
    }
}

/// Checks the tensors of a bound call and returns their addresses. This function and [`can_bind`] are separate because
/// tensors and calls bound by the runtime are large, and a call must stay within `ELSA_STACK_BYTES`.
///
/// # Safety
/// The crate's clause *tensors*.
#[inline(never)]
unsafe fn addresses<O: Called>(
    plan: &PlanOf<O>,
    read: &O::Read,
    written: &O::Written,
) -> Result<Addresses<O>, Fault> {
    // SAFETY: the caller keeps the clause *tensors*.
    let (inputs, outputs) = unsafe { O::host(plan, read, written, O::Part::default()) }?;
    Ok(plan.plan.addresses(inputs, outputs)?)
}

/// Checks that tensors can be bound to the plan and the workspace.
///
/// # Safety
/// The clauses of [`Plan::can_bind_at`].
#[inline(never)]
unsafe fn can_bind<'a, O: Called>(
    plan: &'a PlanOf<O>,
    lengths: LengthsOf<'a, O>,
    addresses: &Addresses<O>,
    workspace: &'a mut Workspace<O>,
) -> Result<(), Fault> {
    // SAFETY: the caller keeps the clauses *checked* and *memory*.
    unsafe { plan.plan.can_bind_at(lengths, addresses, workspace) }?;
    Ok(())
}

/// Retains every buffer in which a tensor or a list begins.
fn hold<O: Called>(read: &O::Read, written: &O::Written) -> Held {
    held(O::addresses(read, written))
}

/// Writes the report of a run if the caller has provided room for it. It is separate, because a report is large, too.
#[inline(never)]
fn fill<O: Called>(room: Option<Room<elsa_report>>, plan: &PlanOf<O>, report: &Report) {
    let Some(room) = room else { return };
    let reason = report.fallback.as_ref().map_or_else(Text::new, |reason| Text::of(reason));
    room.fill(elsa_report {
        size: size_of::<elsa_report>(),
        backend: convert::backend_number(report.backend),
        fallback: u32::from(report.fallback.is_some()),
        workers: report.workers,
        copied_bytes: report.copied,
        kernel: text::name(plan.plan.kernel_of(report.backend)),
        reason: reason.chars(),
    });
}

/// Creates a plan.
///
/// # Safety
/// The caller keeps the crate's clauses *read* and *write*.
pub(crate) unsafe fn create<O: Called>(
    engine: elsa_engine,
    problem: *const O::Described,
    options: *const O::Options,
    plan: *mut elsa_plan,
) -> Result<(), Fault> {
    aligned("plan", plan)?;
    let engine = ENGINES.get(engine.id)?;
    // SAFETY: the caller keeps the clause *read*.
    let (problem, options) = unsafe { (take("problem", problem)?, take_or_default("options", options)?) };
    let id = PLANS.insert(Arc::new(O::create(&engine, &problem, &options)?))?;
    // SAFETY: the caller keeps the clause *write*.
    unsafe { put(plan, elsa_plan { id }) };
    Ok(())
}

/// Checks the tensors of a call, runs the plan over them, waits, and writes the report if `room` has a place for it.
///
/// # Safety
/// The caller keeps the crate's clause *tensors*.
pub(crate) unsafe fn over<O: Called>(
    plan: &dyn AnyPlan,
    workspace: &Mutex<AnyWorkspace>,
    read: &O::Read,
    written: &O::Written,
    part: O::Part,
    room: Option<Room<elsa_report>>,
) -> Result<(), Fault> {
    let (plan, mut workspace) = (plan_of::<O>(plan)?, lock(workspace)?);
    let workspace = workspace_of::<O>(&mut workspace)?;
    let _held = hold::<O>(read, written);
    // SAFETY: the caller keeps the clause *tensors*.
    let (inputs, outputs) = unsafe { O::host(plan, read, written, part) }?;
    let done = plan.plan.run(inputs, outputs, workspace)?;
    fill(room, plan, &done);
    Ok(())
}

/// Runs a plan, given by its handle, over the tensors of a call. The report may be null.
///
/// # Safety
/// The caller keeps the crate's clauses *read*, *write* and *tensors*.
pub(crate) unsafe fn run<O: Called>(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const O::Read,
    outputs: *const O::Written,
    report: *mut elsa_report,
) -> Result<(), Fault> {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    let (room, inputs, outputs) =
        unsafe { (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?) };
    let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
    // SAFETY: the caller keeps the clause *tensors*.
    unsafe { over::<O>(&*plan, &workspace, &inputs, &outputs, O::Part::default(), room) }
}

/// Runs a plan over tensors in GPU memory. If `stream` is null, the run uses its own stream and the call waits for it.
/// The report may be null.
///
/// # Safety
/// The caller keeps the crate's clauses *read* and *write*, and *tensors* until the stream has been waited for. `stream`
/// and each event of the inputs and outputs is null or has not been destroyed.
pub(crate) unsafe fn run_device<O: Called>(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const O::Read,
    outputs: *const O::Written,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> Result<(), Fault> {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    let (room, inputs, outputs) =
        unsafe { (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?) };
    let number = plan.id.to_ne_bytes();
    let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
    let (plan, mut workspace) = (plan_of::<O>(&*plan)?, lock(&workspace)?);
    let trust = workspace.trust;
    let workspace = workspace_of::<O>(&mut workspace)?;
    let _held = hold::<O>(&inputs, &outputs);
    // SAFETY: the caller keeps the clause *tensors*, the one on the stream and the events, and that of
    // elsa_workspace_trust. `device` rejects outputs that overlap. A handle names one plan only.
    unsafe {
        let event = |event: *mut c_void| (!event.is_null()).then(|| RawEvent::new(event));
        let [ready, completed] = O::events(&inputs, &outputs).map(event);
        let own = stream.is_null();
        let stream = (!own).then(|| RawStream::new(stream));
        // The integers of a list may change between two calls that name it.
        let key = [number.as_slice(), bytes(&inputs), bytes(&outputs)];
        let key = (!O::has_lists(&inputs)).then_some(key.as_slice());
        let tensors = || O::device(plan, &inputs, &outputs);
        let mut bound = plan.plan.bind_device_keyed(key, tensors, stream, trust, workspace)?;
        if let Some(event) = ready {
            bound.follow(event)?;
        }
        let done = bound.run().and_then(|report| {
            completed.map_or(Ok(()), |event| bound.mark(event))?;
            Ok(report)
        });
        // The call waits even if the run failed, because a failed run may have enqueued part of its work.
        let waited = if own { bound.wait() } else { Ok(()) };
        let done = done?;
        waited?;
        fill(room, plan, &done);
    }
    Ok(())
}

/// Binds tensors to a plan and a workspace, and checks them.
///
/// # Safety
/// The caller keeps the crate's clauses *read* and *write*, and *tensors* for every run.
pub(crate) unsafe fn bind<O: Called>(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const O::Read,
    outputs: *const O::Written,
    bound: *mut elsa_bound,
) -> Result<(), Fault> {
    aligned("bound", bound)?;
    let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
    // SAFETY: the caller keeps the clause *read*.
    let (inputs, outputs) = unsafe { (take("inputs", inputs)?, take("outputs", outputs)?) };
    // SAFETY: the caller keeps the clause *tensors*.
    let given = unsafe { given::<O>(&*plan, &mut *lock(&workspace)?, inputs, &outputs) }?;
    let call = BoundCall::<O> { plan, workspace, given: Mutex::new(given) };
    let id = BOUND_CALLS.insert(Arc::new(call))?;
    // SAFETY: the caller keeps the clause *write*.
    unsafe { put(bound, elsa_bound { id }) };
    Ok(())
}

/// Replaces the tensors of a bound call, given by its handle.
///
/// # Safety
/// The crate's clause *read*, and *tensors* for every later run.
pub(crate) unsafe fn set<O: Called>(
    bound: elsa_bound,
    inputs: *const O::Read,
    outputs: *const O::Written,
) -> Result<(), Fault> {
    let call = BOUND_CALLS.get(bound.id)?;
    let any: &dyn Any = &*call;
    let (found, create) = (call.name(), O::CREATE);
    let call: &BoundCall<O> = any
        .downcast_ref()
        .ok_or_else(|| Fault::argument(format_args!("bound: of {found}; allowed: of a plan of {create}")))?;
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    unsafe { call.set(take("inputs", inputs)?, &take("outputs", outputs)?) }
}
