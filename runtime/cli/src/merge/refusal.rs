//! Errors of a merge as errors of the tool, with advice on its commands.

use crate::error::Error;
use elsa_files::merge::MergeError;
use elsa_files::task::Kind;

impl From<MergeError> for Error {
    fn from(e: MergeError) -> Error {
        match e {
            MergeError::File(e) => e.into(),
            MergeError::Argument(e) => e.into(),
            MergeError::Plan(e) => e.into(),
            MergeError::Run { argument, found, allowed } => {
                Error::Argument { argument, found: format!("{found:?}"), allowed }
            }
            MergeError::Budget { argument, found, least } => Error::Argument {
                argument,
                found: found.to_string(),
                allowed: format!("at least {least} bytes"),
            },
            e => Error::States(format!("{e}{}", advice(&e))),
        }
    }
}

/// Returns the next step of the user, after a full stop; empty if the message names it.
fn advice(e: &MergeError) -> String {
    match e {
        MergeError::Tokens { .. } => {
            ". Compute again the one that is left from another run; --run-id names runs".to_owned()
        }
        MergeError::Missing { task, number, tasks, kind, whole } => {
            let quorum: Vec<String> = whole.quorum.iter().map(ToString::to_string).collect();
            let which = match number {
                Some(number) => format!("--task {number}/{tasks}"),
                None => format!("--task-path {task}"),
            };
            let (command, more, out) = match kind {
                Kind::States => ("run", "", "state-out"),
                Kind::Gradients => ("backward", " --d-out FILE --state FILE.npz", "shares-out"),
            };
            format!(
                ". Repeat it: elsa {command} --q FILE --k FILE --v FILE{more}{} --quorum {} {which} --{out} FILE.npz",
                whole.flags(),
                quorum.join(",")
            )
        }
        _ => String::new(),
    }
}
