//! Registers the operators: identifies the runtime and passes it the tables that it supports.

use crate::api::{Api, NEWEST};
use crate::attention::Attention;
use crate::engines;
use crate::error::OperatorError;
use crate::host::Exceptions;
use crate::linear::LinearAttention;
use crate::operation::Provider;
use crate::operator::{CUDA, Operator, WITH_STATUS};
use crate::series::{Conv, Recurrence, SelectiveScan};
use ort_sys::{OrtApiBase, OrtSessionOptions};
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

/// Oldest version of the interface with all functions that this library calls unconditionally.
const OLDEST: u32 = 10;
/// First version of the runtime that accepts one table for each element type of an operator.
const WITH_TYPES: u32 = 18;
/// Environment variable with the element type of the outputs, for runtimes that cannot infer it.
const TYPE: &str = "ELSA_ORT_TYPE";

/// The operators that were registered for one version of the interface. They are never freed, because sessions keep
/// their addresses.
struct Registered {
    version: u32,
    outputs: &'static [i32],
    operators: &'static [Operator],
}

/// Creates an operator for a version of the runtime, a provider, and an element type.
type Make = fn(u32, Provider, i32, bool, Option<Exceptions>) -> Operator;

/// The operators of this library.
const OPERATORS: [Make; 5] = [
    Operator::new::<Attention>,
    Operator::new::<LinearAttention>,
    Operator::new::<Recurrence>,
    Operator::new::<SelectiveScan>,
    Operator::new::<Conv>,
];

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// The runtime that registers the operators.
pub(crate) struct Runtime {
    /// Functions of the newest version that both the runtime and this library know.
    pub api: Api,
    /// Version that the runtime reports.
    name: String,
    /// Minor number of the version that the runtime reports.
    minor: u32,
}

/// Returns the minor number of a version `1.x`; `u32::MAX` for a larger major number; `None` for other texts.
fn minor(version: &str) -> Option<u32> {
    let mut parts = version.split('.');
    let major: u32 = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    match major {
        0 => None,
        1 => Some(minor),
        _ => Some(u32::MAX),
    }
}

/// Identifies the runtime.
///
/// # Safety
/// `base` is the table that ONNX Runtime passes to `RegisterCustomOps`.
pub(crate) unsafe fn runtime(base: *const OrtApiBase) -> Option<Runtime> {
    // SAFETY: the clause of this function: the text ends with a zero, and `GetApi` accepts any version.
    unsafe {
        let text = ((*base).GetVersionString)();
        let name =
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
        let minor = minor(&name).unwrap_or(1);
        let (version, table) = [minor.clamp(1, NEWEST), 1]
            .map(|version| (version, ((*base).GetApi)(version)))
            .into_iter()
            .find(|(_, table)| !table.is_null())?;
        Some(Runtime { api: Api::new(table, version), name, minor })
    }
}

/// Returns the element types of the outputs, one for each table. A runtime older than 1.18 accepts a single table; the
/// environment variable selects the type for this table.
fn outputs(minor: u32) -> Result<&'static [i32], OperatorError> {
    if minor >= WITH_TYPES {
        return Ok(&[1, 10]);
    }
    match std::env::var(TYPE).as_deref() {
        Err(_) | Ok("" | "f32") => Ok(&[1]),
        Ok("f16") => Ok(&[10]),
        Ok(found) => Err(OperatorError::Value { argument: TYPE, found: found.into(), allowed: "f32 or f16" }),
    }
}

/// Adds the operators to the options of a session.
///
/// # Safety
/// - The caller keeps the clause *handle* of [`Api`], for `options`.
pub(crate) unsafe fn register(
    runtime: &Runtime,
    options: *mut OrtSessionOptions,
) -> Result<(), OperatorError> {
    let Runtime { api, name, minor } = runtime;
    let version = api.version();
    if version < OLDEST {
        return Err(OperatorError::Runtime { found: name.clone() });
    }
    let exceptions = Exceptions::find();
    if version < WITH_STATUS && exceptions.is_none() {
        let allowed = "one that has loaded libstdc++.so.6, or version 1.16 or newer";
        let found = format!("version {name} without the GNU C++ library");
        return Err(OperatorError::Value { argument: "ONNX Runtime", found, allowed });
    }
    // SAFETY: the clause of this function.
    if let Some(threads) = unsafe { api.configuration(options, c"elsa.threads")? } {
        engines::configure(&threads)?;
    }
    let outputs = outputs(*minor)?;
    let cuda = api.has_provider(CUDA)?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = registered.iter().find(|known| known.version == version && known.outputs == outputs);
    let operators = match known {
        Some(known) => known.operators,
        None => {
            let typed = outputs.len() > 1;
            let mut new = Vec::new();
            for make in OPERATORS {
                for provider in [Provider::Cpu, Provider::Cuda] {
                    new.extend(outputs.iter().map(|of| make(version, provider, *of, typed, exceptions)));
                }
            }
            let operators: &'static [Operator] = Vec::leak(new);
            registered.push(Registered { version, outputs, operators });
            operators
        }
    };
    drop(registered);
    let tables = operators.iter().filter(|of| cuda || of.provider() == Provider::Cpu).map(Operator::table);
    // SAFETY: the clause of this function; the operators are never freed.
    unsafe { api.add_domain(options, c"ai.elsa", tables) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ort_sys::{OrtApi, OrtErrorCode, OrtStatusPtr};
    use std::cell::RefCell;
    use std::ffi::{CString, c_char};
    use std::mem::MaybeUninit;
    use std::ptr;

    thread_local! {
        /// The table that [`old_api`] returns. `SAID` is the message of the last status.
        static TABLE: RefCell<*const OrtApi> = const { RefCell::new(ptr::null()) };
        static SAID: RefCell<CString> = RefCell::default();
    }

    unsafe extern "system" fn old_api(version: u32) -> *const OrtApi {
        if version <= 9 { TABLE.with_borrow(|table| *table) } else { ptr::null() }
    }

    unsafe extern "system" fn old_version() -> *const c_char {
        c"1.9.0".as_ptr()
    }

    unsafe extern "system" fn say(_: OrtErrorCode, message: *const c_char) -> OrtStatusPtr {
        // SAFETY: the caller's text ends with a zero.
        SAID.set(unsafe { CStr::from_ptr(message) }.to_owned());
        OrtStatusPtr(ptr::without_provenance_mut(1))
    }

    /// Registers with a table that contains only `CreateStatus`, the only function that may be called.
    #[test]
    fn a_runtime_that_is_too_old_is_told_so() {
        let mut table = MaybeUninit::<OrtApi>::uninit();
        // SAFETY: the field is in memory that lives until the end of the test.
        unsafe { (&raw mut (*table.as_mut_ptr()).CreateStatus).write(say) };
        TABLE.set(table.as_ptr());
        let base = OrtApiBase { GetApi: old_api, GetVersionString: old_version };
        // SAFETY: the options are not used, because the version is checked first.
        let status = unsafe { crate::RegisterCustomOps(ptr::null_mut(), &raw const base) };
        assert!(!status.0.is_null());
        let wanted = c"ONNX Runtime: version 1.9.0; allowed: 1.10 or newer";
        SAID.with_borrow(|said| assert_eq!(said.as_c_str(), wanted));
        // SAFETY: as above.
        assert!(unsafe { crate::RegisterCustomOps(ptr::null_mut(), ptr::null()) }.0.is_null());
    }

    #[test]
    fn versions_are_read() {
        for (text, want) in [
            ("1.10.0", Some(10)),
            ("1.9.1", Some(9)),
            ("1.22.0-dev+abc", Some(22)),
            ("2.0.0", Some(u32::MAX)),
            ("0.5.0", None),
            ("", None),
            ("1", None),
            ("one.two", None),
        ] {
            assert_eq!(minor(text), want, "{text}");
        }
    }
}
