//! Creates the engines of the process: one for the CPU, and one for each CUDA context in which a session computes. If
//! the runtime lends its threads, the CPU engine starts no threads of its own.

use crate::error::OperatorError;
use crate::host;
use elsa_runtime::{Backend, CudaContext, CudaOptions, Engine, EngineOptions, Fallback, InstructionSet};
use std::sync::{Mutex, PoisonError};

/// Environment variable with the number of threads of the engine.
const VARIABLE: &str = "ELSA_THREADS";
/// Entry of a session's configuration with the number of threads of the engine.
const ENTRY: &str = "elsa.threads";

struct Engines {
    /// Number of threads that a session's configuration requests.
    threads: Option<usize>,
    cpu: Option<Engine>,
    /// Engine for a runtime that lends its threads.
    lent: Option<Engine>,
    /// Engines of the CUDA provider, each with the address of its CUDA context.
    cuda: Vec<(usize, Engine)>,
}

static ENGINES: Mutex<Engines> =
    Mutex::new(Engines { threads: None, cpu: None, lent: None, cuda: Vec::new() });

/// Parses a number of threads.
fn parsed(argument: &'static str, text: &str) -> Result<usize, OperatorError> {
    match text.parse() {
        Ok(threads) if threads > 0 => Ok(threads),
        _ => {
            let allowed = "a whole number from 1 on";
            Err(OperatorError::Value { argument, found: format!("{text:?}"), allowed })
        }
    }
}

/// Records the number of threads that a session's configuration requests. All sessions of the process share the engine,
/// which starts with the first node; after that, a session may request only the number of threads that the engine
/// already has.
///
/// # Errors
/// Returns an error if the text is not a number, or if the engine already runs with another number of threads.
pub(crate) fn configure(text: &str) -> Result<(), OperatorError> {
    let threads = parsed(ENTRY, text)?;
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    match engines.lent.as_ref().or(engines.cpu.as_ref()) {
        Some(engine) if engine.threads() != threads => Err(OperatorError::Value {
            argument: ENTRY,
            found: format!("{threads}, but the engine of the process runs with {}", engine.threads()),
            allowed: "the same in all sessions of a process",
        }),
        _ => {
            engines.threads = Some(threads);
            Ok(())
        }
    }
}

fn options(threads: Option<usize>) -> Result<EngineOptions, OperatorError> {
    let threads = match (threads, std::env::var(VARIABLE)) {
        (Some(threads), _) => Some(threads),
        (None, Ok(text)) if !text.is_empty() => Some(parsed(VARIABLE, &text)?),
        _ => None,
    };
    Ok(EngineOptions::default().threads(threads))
}

/// Returns the engine of the CPU provider. `lent` selects the engine that computes on threads of the runtime. The
/// environment variable `ELSA_BACKEND` selects the engine's back end, which may be a GPU; the default is the fastest
/// instruction set of the CPU.
///
/// # Errors
/// Returns an error if the engine cannot start.
pub(crate) fn cpu(lent: bool) -> Result<Engine, OperatorError> {
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = if lent { &engines.lent } else { &engines.cpu } {
        return Ok(engine.clone());
    }
    let named = std::env::var("ELSA_BACKEND").is_ok_and(|name| !name.is_empty() && name != "auto");
    let mut options = options(engines.threads)?;
    if !named {
        options.backend =
            InstructionSet::ALL.into_iter().map(Backend::Cpu).find(|backend| backend.is_present());
    }
    options.host = lent.then(crate::lent::threads);
    let engine = Engine::new(&options)?;
    *(if lent { &mut engines.lent } else { &mut engines.cpu }) = Some(engine.clone());
    Ok(engine)
}

/// Returns the engine of the CUDA provider for the current CUDA context of this thread.
///
/// # Errors
/// Returns an error if the thread has no current context, or if the engine cannot start in it.
pub(crate) fn cuda() -> Result<Engine, OperatorError> {
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    let current = host::current_context();
    if let Some((_, engine)) = engines.cuda.iter().find(|(context, _)| Some(*context) == current) {
        return Ok(engine.clone());
    }
    // The engine has no fallback, because the CPU cannot read the provider's device memory.
    let options = EngineOptions::default().backend(Backend::Cuda).threads(1).fallback(Fallback::Fail);
    let engine = Engine::new(&options.cuda(CudaOptions::default().context(CudaContext::Current)))?;
    if let Some(context) = current {
        engines.cuda.push((context, engine.clone()));
    }
    Ok(engine)
}
