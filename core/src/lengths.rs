//! Checks lists of lengths supplied with the data of a call.

use crate::argument::ArgumentError;

/// Checks cumulative lengths: `sequences + 1` entries that start at zero, never decrease, and end at `total`.
pub(crate) fn cumulative(
    argument: &'static str,
    list: &[i64],
    sequences: usize,
    total: i64,
) -> Result<(), ArgumentError> {
    use ArgumentError as E;
    if list.len().checked_sub(1) != Some(sequences) {
        let (of, allowed) = ("one more than the sequences", sequences.saturating_add(1));
        return Err(E::Mismatch { argument, axis: "entries", found: list.len(), allowed, of });
    }
    let mut before = 0;
    for (index, &found) in list.iter().enumerate() {
        let (min, max) = match index {
            0 => (0, 0),
            i if i == sequences => (total, total),
            _ => (before, total),
        };
        if found < min || found > max {
            return Err(E::Length { argument, index, found, min, max });
        }
        before = found;
    }
    Ok(())
}
