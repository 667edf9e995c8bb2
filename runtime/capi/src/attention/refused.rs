//! Count of the blocks of rows that the last run in a workspace refused on Tensor Cores.

use crate::fault::call;
use crate::objects::{WORKSPACES, lock};
use crate::operator::workspace_of;
use crate::pointer::{aligned, put};
use crate::types::*;
use elsa_runtime::Attention;

/// Reports how many blocks of rows the last run in a workspace had on Tensor Cores, and how many of them the guard
/// refused, so that f32 products computed them. A block has rows of one head of one sequence. Both numbers are 0 if the
/// last run was not on Tensor Cores, if it failed, or if there was none. The call waits for a run that is pending on a
/// GPU; only this call reads the counts from the GPU.
///
/// # Safety
/// refused and blocks are null or valid for writes, and nothing else uses them during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_refused_blocks(
    workspace: elsa_workspace,
    refused: *mut usize,
    blocks: *mut usize,
) -> elsa_status {
    call(|| {
        aligned("refused", refused)?;
        aligned("blocks", blocks)?;
        let workspace = WORKSPACES.get(workspace.id)?;
        let mut workspace = lock(&workspace)?;
        let found = workspace_of::<Attention>(&mut workspace)?.refused_blocks()?;
        let found = found.map_or([0, 0], |found| [found.refused, found.blocks]);
        // SAFETY: the caller keeps the clause *write*.
        unsafe {
            put(refused, found[0]);
            put(blocks, found[1]);
        }
        Ok(())
    })
}
