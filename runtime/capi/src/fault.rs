//! Status and message of a failed call.

use crate::text::Text;
use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError as Refused;
use elsa_runtime::{BindError, DeviceError, PlanError, RunError, StreamError, in_default_float_environment};
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum length of a message, without the terminating zero.
const MESSAGE: usize = 1023;

thread_local! {
    static LAST: RefCell<Text<{ MESSAGE + 1 }>> = const { RefCell::new(Text::new()) };
}

/// Message of this thread's last failed call; empty if there was none.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr())).unwrap_or(c"".as_ptr())
}

/// Status of a failed call. The functions that create a fault store its message; [`last`] returns the message on the same
/// thread.
#[derive(Debug)]
pub(crate) struct Fault {
    pub status: elsa_status,
}

impl Fault {
    pub(crate) fn new(status: elsa_status, what: &dyn fmt::Display) -> Fault {
        // The text is formatted before the cell is borrowed, because formatting may itself store a message.
        let text = Text::of(what);
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = text;
            }
        });
        Fault { status }
    }

    pub(crate) fn argument(what: fmt::Arguments<'_>) -> Fault {
        Fault::new(ELSA_STATUS_ARGUMENT, &what)
    }

    pub(crate) fn null(argument: &str) -> Fault {
        Fault::argument(format_args!("{argument}: null; allowed: an address"))
    }
}

impl From<ArgumentError> for Fault {
    fn from(e: ArgumentError) -> Fault {
        Fault::new(ELSA_STATUS_ARGUMENT, &e)
    }
}

fn device(e: &DeviceError) -> elsa_status {
    match e {
        DeviceError::Memory { .. } | DeviceError::HostMemory { .. } => ELSA_STATUS_MEMORY,
        DeviceError::NoLibrary
        | DeviceError::Symbol { .. }
        | DeviceError::TooOld { .. }
        | DeviceError::NoKernel { .. }
        | DeviceError::NoContext
        | DeviceError::Forked => ELSA_STATUS_UNSUPPORTED,
        DeviceError::Ordinal { .. } => ELSA_STATUS_ARGUMENT,
        _ => ELSA_STATUS_DEVICE,
    }
}

impl From<DeviceError> for Fault {
    fn from(e: DeviceError) -> Fault {
        Fault::new(device(&e), &e)
    }
}

impl From<PlanError> for Fault {
    fn from(e: PlanError) -> Fault {
        let status = match &e {
            PlanError::Refused(
                Refused::Budget { .. }
                | Refused::PartsBudget { .. }
                | Refused::HostBudget { .. }
                | Refused::Memory { .. },
            )
            | PlanError::Beyond { .. }
            | PlanError::TaskMemory { .. } => ELSA_STATUS_MEMORY,
            PlanError::Refused(
                Refused::Block { .. }
                | Refused::Chunk { .. }
                | Refused::Parts { .. }
                | Refused::Option { .. },
            ) => ELSA_STATUS_ARGUMENT,
            PlanError::Refused(_) => ELSA_STATUS_UNSUPPORTED,
            PlanError::Device(e) => device(e),
            PlanError::Unusable { reason } => device(reason),
            PlanError::Option(_)
            | PlanError::Task(_)
            | PlanError::BackendName(_)
            | PlanError::ThreadName { .. }
            | PlanError::CoreRange { .. }
            | PlanError::Core { .. }
            | PlanError::Lent { .. }
            | PlanError::Null { .. }
            | PlanError::Extent { .. }
            | PlanError::Room { .. }
            | PlanError::Alignment { .. }
            | PlanError::Address { .. }
            | PlanError::DeviceShort { .. }
            | PlanError::NoPlan
            | PlanError::OtherGpu => ELSA_STATUS_ARGUMENT,
            PlanError::OnDevice
            | PlanError::OnHost { .. }
            | PlanError::NotOnGpu { .. }
            | PlanError::NotStreamed { .. }
            | PlanError::BackendAbsent { .. }
            | PlanError::Priority { .. }
            | PlanError::Placement { .. } => ELSA_STATUS_UNSUPPORTED,
            _ => ELSA_STATUS_DEVICE,
        };
        Fault::new(status, &e)
    }
}

impl From<BindError> for Fault {
    fn from(e: BindError) -> Fault {
        let status = match &e {
            BindError::Device(e) => device(e),
            BindError::Budget { .. } => ELSA_STATUS_MEMORY,
            BindError::NotOnDevice { .. } => ELSA_STATUS_UNSUPPORTED,
            _ => ELSA_STATUS_ARGUMENT,
        };
        Fault::new(status, &e)
    }
}

impl From<RunError> for Fault {
    fn from(e: RunError) -> Fault {
        let status = match &e {
            RunError::Panicked => ELSA_STATUS_PANIC,
            RunError::Cancelled => ELSA_STATUS_CANCELLED,
            RunError::Device(e) => device(e),
            RunError::Memory(e) => return e.clone().into(),
            RunError::Bind(e) => return e.clone().into(),
            RunError::NoRun | RunError::Exact => ELSA_STATUS_UNSUPPORTED,
            _ => ELSA_STATUS_DEVICE,
        };
        Fault::new(status, &e)
    }
}

impl From<StreamError> for Fault {
    fn from(e: StreamError) -> Fault {
        let status = match e {
            StreamError::Run(e) => return e.into(),
            StreamError::Plan(e) => return e.into(),
            StreamError::Argument(_) | StreamError::Unit { .. } => ELSA_STATUS_ARGUMENT,
            StreamError::NoGpu | StreamError::Unsupported { .. } => ELSA_STATUS_UNSUPPORTED,
            StreamError::Memory { .. } | StreamError::Limit { .. } | StreamError::Budget { .. } => {
                ELSA_STATUS_MEMORY
            }
            _ => ELSA_STATUS_DEVICE,
        };
        Fault::new(status, &e)
    }
}

#[cfg(feature = "inject")]
thread_local! {
    pub(crate) static PANIC_NEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs the body of an ABI function in the default floating-point environment. Catches panics, and keeps the message
/// of a failure for [`last`].
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> elsa_status {
    let body = || in_default_float_environment(body);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "inject")]
        if PANIC_NEXT.try_with(std::cell::Cell::take).unwrap_or(false) {
            panic!("requested by elsa_test_panic_next");
        }
        body()
    }));
    match caught {
        Ok(Ok(())) => ELSA_STATUS_OK,
        Ok(Err(fault)) => fault.status,
        Err(payload) => {
            let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
                (Some(text), _) => *text,
                (_, Some(text)) => text.as_str(),
                _ => "of an unknown kind",
            };
            let fault = Fault::new(ELSA_STATUS_PANIC, &format_args!("panic: {text}"));
            // Dropping the payload may panic, too. The payload of that second panic is leaked.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
            fault.status
        }
    }
}
