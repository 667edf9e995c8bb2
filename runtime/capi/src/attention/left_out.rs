//! Report of the keys that the last run in a workspace left out.

use crate::fault::call;
use crate::growing::Room;
use crate::objects::{WORKSPACES, lock};
use crate::operator::workspace_of;
use crate::pointer::aligned;
use crate::types::*;
use elsa_runtime::{Attention, Traversed};

fn left_out(t: &Traversed<'_>) -> elsa_left_out {
    let (report, shares) = (&t.report, &t.shares);
    elsa_left_out {
        size: size_of::<elsa_left_out>(),
        tile_rows: t.tile.rows,
        block_keys: t.tile.keys,
        rows: report.accepted + report.recomputed,
        blocks: report.blocks,
        skipped_blocks: report.skipped_blocks,
        unseen_blocks: report.unseen_blocks,
        row_blocks: report.row_blocks,
        skipped_row_blocks: report.skipped_row_blocks,
        worst: shares.worst,
        p99: shares.p99,
        mean: shares.mean,
    }
}

/// Reports the keys that the last run in a workspace left out. The plan must have been created with an error budget or a
/// schedule other than ELSA_SCHEDULE_EXACT. The call waits for a run that is pending on a GPU, and allocates nothing. It
/// returns ELSA_STATUS_UNSUPPORTED if the last run had neither, if it failed, or if there was none.
///
/// share receives one number for each row of the output, [batch, heads, queries], at most count numbers: an upper bound
/// on the share of the row's weights that was left out; 0 for rows that belong to no sequence. share may be null if
/// count is 0.
///
/// # Safety
/// value is null or valid for writes, and nothing else uses it during the call (*write*); share is writable for count
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_left_out(
    workspace: elsa_workspace,
    value: *mut elsa_left_out,
    share: *mut f32,
    count: usize,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("value", value) }?;
        if count > 0 {
            aligned("share", share)?;
        }
        let workspace = WORKSPACES.get(workspace.id)?;
        let mut workspace = lock(&workspace)?;
        let found = workspace_of::<Attention>(&mut workspace)?.traversed()?;
        for (row, of) in found.share.iter().take(count).enumerate() {
            // SAFETY: share is writable for count numbers (clause of this function), and row < count.
            unsafe { share.add(row).write(*of) };
        }
        room.fill(left_out(&found));
        Ok(())
    })
}
