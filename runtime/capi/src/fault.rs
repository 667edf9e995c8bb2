//! Status and message of a call that does nothing.

use crate::types::*;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::plan::ChooseError as Refused;
use elsa_runtime::{BindError, DeviceError, EngineError, PlanError, RunError};
use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a message, without its end.
const MESSAGE: usize = 1023;

/// Text of a fixed size that ends in a zero byte, and is cut where it would be longer.
#[derive(Debug)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Text<N> {
        Text { bytes: [0; N], len: 0 }
    }

    pub(crate) fn of(what: &dyn fmt::Display) -> Text<N> {
        let mut text = Text::new();
        // Writing never fails; a Display that does leaves what it has written.
        let _ = write!(text, "{what}");
        text
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub(crate) fn chars(&self) -> [c_char; N] {
        self.bytes.map(|b| b as c_char)
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            let c = if c == '\0' { ' ' } else { c };
            // The last byte stays zero.
            if self.len + c.len_utf8() >= N {
                return Ok(());
            }
            c.encode_utf8(&mut self.bytes[self.len..]);
            self.len += c.len_utf8();
        }
        Ok(())
    }
}

thread_local! {
    static LAST: RefCell<Text<{ MESSAGE + 1 }>> = const { RefCell::new(Text::new()) };
}

/// The message of the last call of this thread that did nothing; empty where there was none.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |text| text.as_ptr())).unwrap_or(c"".as_ptr())
}

/// Why a call does nothing. Its message is the thread's [`last`] from the moment that it is made.
#[derive(Debug)]
pub(crate) struct Fault {
    pub status: elsa_status,
}

impl Fault {
    pub(crate) fn new(status: elsa_status, what: &dyn fmt::Display) -> Fault {
        // Written first and kept then, since a Display may call back.
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
        | DeviceError::NoContext => ELSA_STATUS_UNSUPPORTED,
        DeviceError::Ordinal { .. } => ELSA_STATUS_ARGUMENT,
        _ => ELSA_STATUS_DEVICE,
    }
}

impl From<EngineError> for Fault {
    fn from(e: EngineError) -> Fault {
        let status = match &e {
            EngineError::BackendAbsent { .. } => ELSA_STATUS_UNSUPPORTED,
            EngineError::Device { reason } => device(reason),
            EngineError::Spawn { .. } => ELSA_STATUS_DEVICE,
            _ => ELSA_STATUS_ARGUMENT,
        };
        Fault::new(status, &e)
    }
}

impl From<PlanError> for Fault {
    fn from(e: PlanError) -> Fault {
        let status = match &e {
            PlanError::Refused(Refused::Budget { .. } | Refused::Memory { .. }) => ELSA_STATUS_MEMORY,
            PlanError::Refused(Refused::Block { .. }) => ELSA_STATUS_ARGUMENT,
            PlanError::Refused(_) => ELSA_STATUS_UNSUPPORTED,
            PlanError::Device(e) => device(e),
            PlanError::Room { .. } => ELSA_STATUS_ARGUMENT,
            PlanError::OnDevice => ELSA_STATUS_UNSUPPORTED,
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
            RunError::Device(e) => device(e),
            _ => ELSA_STATUS_DEVICE,
        };
        Fault::new(status, &e)
    }
}

#[cfg(feature = "inject")]
thread_local! {
    pub(crate) static PANIC_NEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs the body of a function of the ABI: panics end here, and what goes wrong is kept for [`last`].
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> elsa_status {
    let caught = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(feature = "inject")]
        if PANIC_NEXT.try_with(std::cell::Cell::take).unwrap_or(false) {
            panic!("asked for by elsa_test_panic_next");
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
            // A payload whose drop panics must not do so here; what that gives is left alone.
            if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(second);
            }
            fault.status
        }
    }
}
