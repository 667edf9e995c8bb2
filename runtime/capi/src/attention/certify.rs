//! Certificates of runs: bounds on the error of the last run in a workspace.

use crate::fault::call;
use crate::growing::Room;
use crate::objects::{WORKSPACES, lock};
use crate::operator::workspace_of;
use crate::pointer::aligned;
use crate::text::{self, Text};
use crate::types::*;
use elsa_core::attention::run_certificate::RunCertificate;
use elsa_runtime::Attention;

fn certified(c: &RunCertificate<'_>) -> elsa_certified {
    let claim = c.claim();
    let reason = claim.as_ref().map_or_else(|why| Text::of(why), |_| Text::new());
    let bound = |of: f64| if claim.is_ok() { of } else { f64::NAN };
    elsa_certified {
        size: size_of::<elsa_certified>(),
        claims: u32::from(claim.is_ok()),
        flags: c.measured.flags.bits(),
        keys: c.certificate.keys,
        channels: c.channels().len(),
        bound: bound(c.prior.relative),
        likely: bound(c.prior.likely),
        absolute: c.largest_absolute().unwrap_or(f64::NAN),
        query_norm: c.measured.query,
        key_norm: c.measured.key,
        added: c.measured.added,
        value: c.measured.value,
        kernel: text::name(c.certificate.executed.kernel),
        reason: reason.chars(),
    }
}

/// Writes a bound on the error of the last run in a workspace, proven for the arithmetic of the plan and the tensors of
/// the run. The plan must have been created with the option certify. The call waits for a run that is pending on a GPU.
/// It returns ELSA_STATUS_UNSUPPORTED if the last run used another plan, if it failed, or if there was none.
///
/// absolute receives one number for each channel of the output, at most count numbers: an upper bound on the error of
/// every element in the channel, or NaN if nothing is claimed. absolute may be null if count is 0.
///
/// # Safety
/// value is null or valid for writes, and nothing else uses it during the call (*write*); absolute is writable for
/// count numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_certified(
    workspace: elsa_workspace,
    value: *mut elsa_certified,
    absolute: *mut f64,
    count: usize,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("value", value) }?;
        if count > 0 {
            aligned("absolute", absolute)?;
        }
        let workspace = WORKSPACES.get(workspace.id)?;
        let mut workspace = lock(&workspace)?;
        let found = workspace_of::<Attention>(&mut workspace)?.certificate()?;
        for channel in 0..count.min(found.channels().len()) {
            // SAFETY: absolute is writable for count numbers (clause of this function), and channel < count.
            unsafe { absolute.add(channel).write(found.absolute(channel).unwrap_or(f64::NAN)) };
        }
        room.fill(certified(&found));
        Ok(())
    })
}
