//! The workspace: all the memory that a run works in.

use elsa_core::attention::Sequence;
use elsa_core::attention::plan::WorkspaceLayout;

/// Where the singles are.
#[derive(Debug)]
enum Floats {
    Owned(Vec<f32>),
    /// Memory of the caller's, for as long as the workspace lives (clause *lent* of [`Workspace::lent`]).
    Lent {
        data: *mut f32,
        len: usize,
    },
}

// SAFETY: lent memory is used by nobody else (*lent*), so that it may go to another thread as a vector may.
unsafe impl Send for Floats {}
// SAFETY: a shared workspace gives nobody access to its singles.
unsafe impl Sync for Floats {}

/// Memory that a plan's runs work in. One workspace serves one run at a time.
#[derive(Debug)]
pub struct Workspace {
    floats: Floats,
    /// Geometry of the bound sequences, and the first unit of each with the total at the end.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) units: Vec<usize>,
}

impl Workspace {
    /// Allocates what `layout` measures and room for `sequences`; none when the system refuses.
    pub(crate) fn new(layout: &WorkspaceLayout, sequences: usize) -> Option<Workspace> {
        let mut floats: Vec<f32> = Vec::new();
        floats.try_reserve_exact(layout.singles()).ok()?;
        floats.resize(layout.singles(), 0.0);
        Workspace::with(Floats::Owned(floats), sequences)
    }

    /// Takes memory of the caller's for the singles, and clears it; none when it is too short, or the system refuses
    /// the tables.
    ///
    /// # Safety
    /// - *lent*: `memory` is writable for `bytes` bytes, and nobody else uses it until the workspace is dropped.
    pub(crate) unsafe fn lent(
        layout: &WorkspaceLayout,
        sequences: usize,
        memory: *mut u8,
        bytes: usize,
    ) -> Option<Workspace> {
        let skip = memory.align_offset(align_of::<f32>());
        let len = bytes.checked_sub(skip)? / size_of::<f32>();
        if memory.is_null() || len < layout.singles() {
            return None;
        }
        let data = memory.wrapping_add(skip).cast::<f32>();
        // SAFETY: `len` singles from the first aligned one on lie in the memory (*lent*); zero bytes are zeros.
        unsafe { data.write_bytes(0, len) };
        Workspace::with(Floats::Lent { data, len }, sequences)
    }

    fn with(floats: Floats, sequences: usize) -> Option<Workspace> {
        let mut table = Vec::new();
        table.try_reserve_exact(sequences).ok()?;
        let mut units = Vec::new();
        units.try_reserve_exact(sequences.checked_add(1)?).ok()?;
        Some(Workspace { floats, sequences: table, units })
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> usize {
        self.singles() * 4
            + self.sequences.capacity() * size_of::<Sequence>()
            + self.units.capacity() * size_of::<usize>()
    }

    fn singles(&self) -> usize {
        match &self.floats {
            Floats::Owned(floats) => floats.len(),
            Floats::Lent { len, .. } => *len,
        }
    }

    /// Sequences that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.sequences.capacity().min(self.units.capacity().saturating_sub(1))
    }

    /// The first single on a line of 64 bytes, and how many follow.
    pub(crate) fn lines(&mut self) -> (*mut f32, usize) {
        let p = match &mut self.floats {
            Floats::Owned(floats) => floats.as_mut_ptr(),
            Floats::Lent { data, .. } => *data,
        };
        let skip = p.align_offset(64).min(self.singles());
        (p.wrapping_add(skip), self.singles() - skip)
    }
}
