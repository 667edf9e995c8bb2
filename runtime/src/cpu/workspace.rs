//! The workspace: all the memory that a run works in.

use elsa_core::plan::Layout;
use elsa_core::problem::Sequence;

/// Memory that a plan's runs work in. One workspace serves one run at a time.
#[derive(Debug)]
pub struct Workspace {
    floats: Vec<f32>,
    /// Geometry of the bound sequences, and the first unit of each with the total at the end.
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) units: Vec<usize>,
}

impl Workspace {
    /// Allocates what `layout` measures and room for `sequences`; none when the system refuses.
    pub(crate) fn new(layout: &Layout, sequences: usize) -> Option<Workspace> {
        let mut floats: Vec<f32> = Vec::new();
        floats.try_reserve_exact(layout.singles()).ok()?;
        floats.resize(layout.singles(), 0.0);
        let mut table = Vec::new();
        table.try_reserve_exact(sequences).ok()?;
        let mut units = Vec::new();
        units.try_reserve_exact(sequences.checked_add(1)?).ok()?;
        Some(Workspace { floats, sequences: table, units })
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> usize {
        self.floats.len() * 4
            + self.sequences.capacity() * size_of::<Sequence>()
            + self.units.capacity() * size_of::<usize>()
    }

    /// Sequences that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.sequences.capacity().min(self.units.capacity().saturating_sub(1))
    }

    /// The first single on a line of 64 bytes, and how many follow.
    pub(crate) fn lines(&mut self) -> (*mut f32, usize) {
        let p = self.floats.as_mut_ptr();
        let skip = p.align_offset(64).min(self.floats.len());
        (p.wrapping_add(skip), self.floats.len() - skip)
    }
}
