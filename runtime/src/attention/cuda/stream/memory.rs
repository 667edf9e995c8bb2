//! The memory of a stream: one buffer on the device and one in page-locked host memory. If both buffers have an area,
//! it is copied between them.

use crate::cuda::driver::{Context, DeviceBuffer, PinnedBuffer};
use crate::error::DeviceError;
use std::sync::Arc;

/// An area of a stream's memory, named by its contents. Areas with an index exist twice, so that one chunk is computed
/// while the next one is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Queries of the resident block, `[batch][head][token][head_dim]`.
    Query,
    /// Output of the resident block, `[batch][head][token][value_dim]`.
    Output,
    /// Log-sum-exp of the resident block, `[batch][head][token]`.
    Lse,
    /// References of the resident block's states.
    Reference,
    /// Sums of the resident block's states.
    Sum,
    /// Weighted sums of the resident block's states.
    Weighted,
    /// The table of sequences of a chunk.
    Table(usize),
    /// Keys of a chunk.
    Key(usize),
    /// Values of a chunk.
    Value(usize),
    /// The mask for a block of queries and a chunk of keys, `[batch][head][query][key]`; broadcast axes have one
    /// element.
    Mask(usize),
    /// The bias for a block of queries and a chunk of keys, in the layout of the mask.
    Bias(usize),
    /// The index into a table, for a block of queries and a chunk of keys, `[query][key]`.
    Index(usize),
    /// The table of relative positions, `[entry][head]`.
    Positions,
    /// References and sums of the partial states of a chunk.
    PartialMs,
    /// Weighted sums of the partial states of a chunk.
    PartialW,
    /// References and sums of the states that wait to be merged.
    PendingMs,
    /// Weighted sums of the states that wait to be merged.
    PendingW,
}

/// Number of areas.
const AREAS: usize = 23;
const ALL: [Area; AREAS] = [
    Area::Query,
    Area::Output,
    Area::Lse,
    Area::Reference,
    Area::Sum,
    Area::Weighted,
    Area::Table(0),
    Area::Table(1),
    Area::Key(0),
    Area::Key(1),
    Area::Value(0),
    Area::Value(1),
    Area::Mask(0),
    Area::Mask(1),
    Area::Bias(0),
    Area::Bias(1),
    Area::Index(0),
    Area::Index(1),
    Area::Positions,
    Area::PartialMs,
    Area::PartialW,
    Area::PendingMs,
    Area::PendingW,
];

impl Area {
    /// Returns `true` if only kernels use the area.
    pub const fn is_inner(self) -> bool {
        matches!(self, Area::PartialMs | Area::PartialW | Area::PendingMs | Area::PendingW)
    }

    /// Returns `true` if the area contains keys or values.
    pub const fn is_chunk(self) -> bool {
        matches!(self, Area::Key(_) | Area::Value(_))
    }
}

/// Offsets of areas in a buffer. Each offset is a multiple of 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaOffsets {
    /// Offset and size in bytes of each area, in the order of [`ALL`]; `None` if the buffer does not have the area.
    at: [Option<(usize, usize)>; AREAS],
    /// Total number of bytes.
    pub bytes: usize,
}

impl AreaOffsets {
    /// Lays out the areas for which `size` returns a number of bytes. Returns `None` if the total overflows.
    pub fn of(mut size: impl FnMut(Area) -> Option<usize>) -> Option<AreaOffsets> {
        let (mut at, mut bytes) = ([None; AREAS], 0usize);
        for (area, at) in ALL.into_iter().zip(&mut at) {
            if let Some(len) = size(area) {
                *at = Some((bytes, len));
                bytes = bytes.checked_add(len)?.checked_next_multiple_of(256)?;
            }
        }
        (bytes <= isize::MAX as usize).then_some(AreaOffsets { at, bytes })
    }

    /// Returns the offset and the size of an area in bytes; `None` if the buffer does not have the area.
    pub fn area(&self, area: Area) -> Option<(usize, usize)> {
        ALL.iter().zip(&self.at).find_map(|(of, at)| at.filter(|_| *of == area))
    }
}

/// The buffers of a stream.
#[derive(Debug)]
pub struct Memory {
    layouts: [AreaOffsets; 2],
    device: DeviceBuffer,
    pinned: PinnedBuffer,
    /// Device address of the page-locked memory.
    mapped: u64,
}

impl Memory {
    /// Allocates both buffers. Writes to all of the page-locked buffer, so that the system maps every page.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn new(
        context: &Arc<Context>,
        device: AreaOffsets,
        pinned: AreaOffsets,
    ) -> Result<Memory, DeviceError> {
        let on_device = DeviceBuffer::new(context, device.bytes)?;
        let on_host = PinnedBuffer::new(context, pinned.bytes)?;
        let mapped = on_host.device_address().unwrap_or(0);
        Ok(Memory { layouts: [device, pinned], device: on_device, pinned: on_host, mapped })
    }

    /// Returns the device address of an area: in device memory if it is there, otherwise in page-locked memory. Returns
    /// zero if neither buffer has the area.
    pub fn on_device(&self, area: Area) -> u64 {
        let at = |base: u64, (offset, _): (usize, usize)| if base == 0 { 0 } else { base + offset as u64 };
        match (self.layouts[0].area(area), self.layouts[1].area(area)) {
            (Some(place), _) => at(self.device.address(), place),
            (None, Some(place)) => at(self.mapped, place),
            (None, None) => 0,
        }
    }

    /// Returns the host address and the size of an area; `None` if only the device buffer has it.
    pub fn on_host(&self, area: Area) -> Option<(*mut u8, usize)> {
        let (offset, len) = self.layouts[1].area(area)?;
        Some((self.pinned.data().wrapping_add(offset), len))
    }

    /// Returns `true` if both buffers have the area, so it is copied from one to the other.
    pub fn is_copied(&self, area: Area) -> bool {
        self.layouts[0].area(area).is_some() && self.layouts[1].area(area).is_some()
    }

    /// Returns the size in bytes of the device buffer and of the page-locked buffer.
    pub const fn bytes(&self) -> [usize; 2] {
        [self.layouts[0].bytes, self.layouts[1].bytes]
    }

    /// Frees both buffers.
    ///
    /// # Errors
    /// Returns the first error that the driver reports.
    pub fn close(self) -> Result<(), DeviceError> {
        let closed = [self.device.close(), self.pinned.close()];
        closed.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_lie_apart() {
        let mut sizes = (0..).map(|number| number * 100);
        let layout = AreaOffsets::of(|area| sizes.next().filter(|_| area != Area::Lse)).unwrap();
        let mut end = 0;
        for (number, area) in ALL.into_iter().enumerate() {
            let Some((offset, len)) = layout.area(area) else {
                assert_eq!(area, Area::Lse);
                continue;
            };
            assert!(offset >= end && offset.is_multiple_of(256) && len == number * 100, "{area:?}");
            end = offset + len;
        }
        assert!(layout.bytes >= end);
        assert_eq!(AreaOffsets::of(|_| Some(usize::MAX / 2)), None);
    }
}
