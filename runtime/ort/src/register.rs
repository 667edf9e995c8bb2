//! Registration: which runtime it is, and which operators it gets.

use crate::api::{Api, NEWEST};
use crate::engines;
use crate::error::OperatorError;
use crate::host::Exceptions;
use crate::kernel::Provider;
use crate::operator::{CUDA, Operator, WITH_INFERENCE, WITH_STATUS};
use ort_sys::{OrtApiBase, OrtSessionOptions};
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

/// The oldest version of the interface that has everything that is called without asking.
const OLDEST: u32 = 10;
/// The variable of the environment that says which element type the outputs have, for runtimes that cannot infer it.
const TYPE: &str = "ELSA_ORT_TYPE";

/// The operators of a version of the runtime, which are never freed, because sessions keep their addresses.
struct Registered {
    version: u32,
    output: i32,
    api: Api,
    operators: &'static [Operator; 2],
}

static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// The functions of a runtime of `version` for which operators are registered.
pub(crate) fn known(version: u32) -> Option<Api> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|known| known.version == version).map(|known| known.api)
}

/// The number after the first point of a runtime's version, whose major number is 1.
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

/// The functions of the runtime, for the newest version that both know, and the runtime's own version.
///
/// # Safety
/// `base` is the table that ONNX Runtime hands to `RegisterCustomOps`.
pub(crate) unsafe fn api(base: *const OrtApiBase) -> Option<(Api, String)> {
    // SAFETY: the clause of this function: the text ends with a zero, and `GetApi` answers any version.
    unsafe {
        let text = ((*base).GetVersionString)();
        let text = if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() };
        let newest = minor(&text).unwrap_or(1).clamp(1, NEWEST);
        [newest, 1].into_iter().find_map(|version| {
            let table = ((*base).GetApi)(version);
            (!table.is_null()).then(|| (Api::new(table, version), text.clone()))
        })
    }
}

/// The element type of the outputs on a runtime that cannot infer it.
fn output() -> Result<i32, OperatorError> {
    match std::env::var(TYPE).as_deref() {
        Err(_) | Ok("" | "f32") => Ok(1),
        Ok("f16") => Ok(10),
        Ok(found) => Err(OperatorError::Value { argument: TYPE, found: found.into(), allowed: "f32 or f16" }),
    }
}

/// Adds the operators to the options of a session.
///
/// # Safety
/// *handle* of [`Api`], for `options`.
pub(crate) unsafe fn register(
    api: &Api,
    found: &str,
    options: *mut OrtSessionOptions,
) -> Result<(), OperatorError> {
    let version = api.version();
    if version < OLDEST {
        return Err(OperatorError::Runtime { found: found.into() });
    }
    let exceptions = Exceptions::find();
    if version < WITH_STATUS && exceptions.is_none() {
        let allowed = "one that has loaded libstdc++.so.6, or version 1.16 or newer";
        let found = format!("version {found} without the GNU C++ library");
        return Err(OperatorError::Value { argument: "ONNX Runtime", found, allowed });
    }
    // SAFETY: the clause of this function.
    if let Some(threads) = unsafe { api.configuration(options, c"elsa.threads")? } {
        engines::configure(&threads)?;
    }
    let output = if version < WITH_INFERENCE { output()? } else { 0 };
    let cuda = api.has_provider(CUDA)?;
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = registered.iter().find(|known| known.version == version && known.output == output);
    let operators = match known {
        Some(known) => known.operators,
        None => {
            let new = |provider| Operator::new(version, provider, output, exceptions);
            let operators: &'static [Operator; 2] = Box::leak(Box::new([new(Provider::Cpu), new(Provider::Cuda)]));
            registered.push(Registered { version, output, api: *api, operators });
            operators
        }
    };
    drop(registered);
    let tables = operators.iter().map(Operator::table).take(if cuda { 2 } else { 1 });
    // SAFETY: the clause of this function; the operators are never freed.
    unsafe { api.add_domain(options, c"ai.elsa", tables) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
