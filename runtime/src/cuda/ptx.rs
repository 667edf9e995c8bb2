//! Unpacks a kernel's compressed PTX to text.

use crate::error::DeviceError;
use elsa_kernels::cuda::group::{Header, PARAMETERS, checksum, window};
use elsa_kernels::cuda::registers::{self, CLASSES};
use elsa_kernels::cuda::{GpuKernel, Ptx};
use lzma_rust2::LzmaReader;
use std::io::{self, ErrorKind, Read};

/// Returns the PTX text of a kernel, with a terminating zero byte.
///
/// # Errors
/// Returns [`DeviceError::Damaged`] if a compressed group differs from the one that was built, and
/// [`DeviceError::HostMemory`] if the system refuses memory for the text.
pub fn text(kernel: &GpuKernel) -> Result<Vec<u8>, DeviceError> {
    let Ptx { bytes, .. } = kernel.ptx;
    let damaged = || DeviceError::Damaged { kernel: kernel.name };
    let mut text = Vec::new();
    text.try_reserve_exact(bytes).map_err(|_| DeviceError::HostMemory { bytes })?;
    let group = inflate_group(&kernel.ptx).map_err(|error| match error.kind() {
        ErrorKind::OutOfMemory => DeviceError::HostMemory { bytes },
        _ => damaged(),
    })?;
    let packed = group.get(kernel.ptx.start..).and_then(|rest| rest.get(..kernel.ptx.packed));
    packed.and_then(|packed| unpack(packed, &mut text)).ok_or_else(damaged)?;
    if text.len() == bytes && text.last() == Some(&0) { Ok(text) } else { Err(damaged()) }
}

/// Returns the text of a module's group.
fn inflate_group(ptx: &Ptx) -> io::Result<Vec<u8>> {
    let dictionary = if ptx.dictionary.is_empty() { Vec::new() } else { inflate(ptx.dictionary, &[])? };
    inflate(ptx.group, &dictionary)
}

/// Returns the text of a group. `dictionary` is the text of the group's dictionary.
fn inflate(group: &[u8], dictionary: &[u8]) -> io::Result<Vec<u8>> {
    let (header, stream) = Header::split(group).ok_or(ErrorKind::InvalidData)?;
    let (length, [lc, lp, pb]) = (header.text as usize, PARAMETERS);
    let mut text = Vec::new();
    text.try_reserve_exact(length)?;
    let window = window(dictionary.len(), length);
    let reader = LzmaReader::new(stream, u64::from(header.text), lc, lp, pb, window, Some(dictionary))?;
    reader.take(u64::from(header.text)).read_to_end(&mut text)?;
    let whole = text.len() == length && checksum(&text) == header.checksum;
    if whole { Ok(text) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Unpacks a text: restores its register numbers and appends it to `text`, within the capacity of `text`. Returns
/// `None` if the text uses a register before its definition, or is longer than the capacity.
fn unpack(packed: &[u8], text: &mut Vec<u8>) -> Option<()> {
    // The registers of each class, in order of last use.
    let mut recent = CLASSES.map(|_| Vec::<u32>::new());
    let number = |class: usize, place: Option<u32>| {
        let recent = recent.get_mut(class).ok_or(())?;
        let last = recent.len();
        let Some(place) = place else {
            let next = u32::try_from(last).map_err(|_| ())?;
            recent.push(next);
            return Ok(Some(next));
        };
        let place = usize::try_from(place).ok().and_then(|place| last.checked_sub(1)?.checked_sub(place));
        let moved = recent.get_mut(place.ok_or(())?..).ok_or(())?;
        moved.rotate_left(1);
        Ok::<_, ()>(moved.last().copied())
    };
    let mut fits = true;
    let put = |piece: &[u8]| {
        fits &= piece.len() <= text.capacity() - text.len();
        if fits {
            text.extend_from_slice(piece);
        }
    };
    registers::rewrite(packed, number, put).ok().filter(|()| fits)
}

#[cfg(feature = "cuda")]
#[cfg(test)]
mod tests {
    use super::*;
    use elsa_kernels::cuda::GPU_KERNELS;
    use std::collections::HashMap;
    use std::sync::LazyLock;

    /// Returns a kernel whose module is not the first in its group, and whose group has a dictionary. Among all such
    /// kernels, it is the one with the shortest group.
    fn among_others() -> GpuKernel {
        let others =
            GPU_KERNELS.iter().filter(|kernel| kernel.ptx.start > 0 && !kernel.ptx.dictionary.is_empty());
        *others.min_by_key(|kernel| kernel.ptx.group.len()).unwrap()
    }

    /// Copies of a group in which one bit is flipped, each with the index of the byte that contains this bit.
    type Flipped = Vec<(usize, Vec<u8>)>;

    /// Copies of the group of [`among_others`], and copies of its dictionary. They live as long as the program.
    static FLIPPED: LazyLock<[Flipped; 2]> = LazyLock::new(|| {
        let ptx = among_others().ptx;
        [ptx.group, ptx.dictionary].map(|group| {
            let places = (0..Header::BYTES).chain((Header::BYTES..group.len()).step_by(group.len() / 24));
            let copy = |at| {
                let mut copy = group.to_vec();
                copy[at] ^= 0x10;
                (at, copy)
            };
            places.map(copy).collect()
        })
    });

    /// Splits a text into words and the text between them.
    fn pieces(text: &str) -> impl Iterator<Item = &str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._%$".contains(c);
        text.split_inclusive(move |c| !is_word(c)).flat_map(move |part| {
            let end = part.trim_end_matches(|c| !is_word(c)).len();
            [&part[..end], &part[end..]]
        })
    }

    /// Returns the class and the number of a register.
    fn register(word: &str) -> Option<(&str, usize)> {
        let (class, number) = word.split_at_checked(1)?;
        "prfdgh".contains(class).then(|| number.parse().ok().map(|number| (class, number))).flatten()
    }

    #[test]
    #[cfg_attr(miri, ignore = "inflates long, and nothing unsafe")]
    fn modules_are_the_texts_that_were_generated_but_for_the_order_of_registers() {
        for kernel in GPU_KERNELS {
            let (major, minor) = kernel.ptx.target.capability;
            let folder = format!("{}/../kernels/ptx/sm_{major}{minor}", env!("CARGO_MANIFEST_DIR"));
            let file = format!("{folder}/{}.ptx", kernel.name);
            let wanted = std::fs::read_to_string(file).unwrap() + "\0";
            let text = String::from_utf8(text(kernel).unwrap()).unwrap();
            assert_eq!(pieces(&text).count(), pieces(&wanted).count(), "{}", kernel.name);
            let mut numbers: HashMap<(&str, usize), usize> = HashMap::new();
            for (found, wanted) in pieces(&text).zip(pieces(&wanted)) {
                match (register(found), register(wanted)) {
                    (Some((class, found)), Some((same, wanted))) if class == same => {
                        assert_eq!(
                            *numbers.entry((class, wanted)).or_insert(found),
                            found,
                            "{}",
                            kernel.name
                        );
                    }
                    _ => assert_eq!(found, wanted, "{}", kernel.name),
                }
            }
            // No two registers were merged, and their numbers are below the declared count.
            for class in ["p", "r", "f", "d", "g", "h"] {
                let mut found: Vec<usize> =
                    numbers.iter().filter(|(key, _)| key.0 == class).map(|(_, number)| *number).collect();
                found.sort_unstable();
                assert!(found.iter().copied().eq(0..found.len()), "{}: {class}", kernel.name);
                let declared = wanted.split_once(&format!(" {class}<")).map_or(0, |(_, rest)| {
                    rest.split_once('>').and_then(|(count, _)| count.parse().ok()).unwrap()
                });
                assert!(found.len() <= declared, "{}: {class}: {} of {declared}", kernel.name, found.len());
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "inflates long, and nothing unsafe")]
    fn damaged_streams_are_refused() {
        let kernel = among_others();
        let whole = kernel.ptx;
        let refused = |what: &str, ptx: Ptx| {
            let found = text(&GpuKernel { ptx, ..kernel });
            assert!(
                found == Err(DeviceError::Damaged { kernel: kernel.name }),
                "{what} of {}",
                whole.group.len()
            );
        };
        refused("nothing", Ptx { group: &[], ..whole });
        refused("cut short", Ptx { group: &whole.group[..whole.group.len() - 1], ..whole });
        refused("without a dictionary", Ptx { dictionary: &[], ..whole });
        refused("with another dictionary", Ptx { dictionary: whole.group, ..whole });
        refused("longer than told", Ptx { bytes: whole.bytes - 1, ..whole });
        refused("shorter than told", Ptx { bytes: whole.bytes + 1, ..whole });
        refused("one byte early", Ptx { start: whole.start - 1, ..whole });
        refused("one byte late", Ptx { start: whole.start + 1, ..whole });
        refused("behind the end", Ptx { start: 1 << 30, ..whole });
        refused("too little", Ptx { packed: whole.packed - 1, ..whole });
        refused("too much", Ptx { packed: whole.packed + 1, ..whole });
        let wanted = text(&kernel).unwrap();
        let check = |what: &str, at: usize, bytes: usize, ptx: Ptx| {
            // The last bytes of a stream do not affect its text.
            let found = text(&GpuKernel { ptx, ..kernel });
            let padding = bytes - at <= 5 && found.as_ref() == Ok(&wanted);
            assert!(padding || found.is_err(), "{what}: byte {at} of {bytes}");
        };
        let [groups, dictionaries] = &*FLIPPED;
        for (at, group) in groups {
            check("group", *at, group.len(), Ptx { group, ..whole });
        }
        for (at, dictionary) in dictionaries {
            check("dictionary", *at, dictionary.len(), Ptx { dictionary, ..whole });
        }
    }
}

#[cfg(test)]
mod packed {
    use super::unpack;

    fn unpacked(packed: &str, room: usize) -> Option<String> {
        let mut text = Vec::new();
        text.reserve_exact(room);
        unpack(packed.as_bytes(), &mut text)?;
        Some(String::from_utf8(text).unwrap())
    }

    #[test]
    fn places_become_the_registers_that_stand_there() {
        let text = ".reg .f32 f<3>;add.f32 f0,f1,f1;mul.f32 f2,f0,f1;mov.f32 f0,r0;\0";
        let packed = ".reg .f32 f<3>;add.f32 f,f,f0;mul.f32 f,f2,f2;mov.f32 f1,r;\0";
        assert_eq!(unpacked(packed, text.len()).as_deref(), Some(text));
        assert_eq!(unpacked(packed, text.len() - 1), None);
        assert_eq!(unpacked("", 0).as_deref(), Some(""));
    }

    #[test]
    fn places_without_a_register_are_refused() {
        for wrong in ["f0", "f,f1", "r,f0", "f,f,f,f3", "f,f4294967295"] {
            assert_eq!(unpacked(wrong, 100), None, "{wrong}");
        }
    }
}
