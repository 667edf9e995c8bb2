//! The PTX of a kernel as text.

use crate::error::DeviceError;
use elsa_kernels::cuda::GpuKernel;
use lzma_rust2::LzipReader;
use std::io::{ErrorKind, Read};

/// The PTX of a kernel, with the zero that ends it.
///
/// # Errors
/// [`DeviceError::Damaged`] if its stream is not the one that was built, [`DeviceError::HostMemory`] if the system
/// refuses memory for it.
pub fn text(kernel: &GpuKernel) -> Result<Vec<u8>, DeviceError> {
    let bytes = kernel.ptx.bytes;
    let mut text = Vec::new();
    text.try_reserve_exact(bytes).map_err(|_| DeviceError::HostMemory { bytes })?;
    text.resize(bytes, 0);
    let damaged = DeviceError::Damaged { kernel: kernel.name };
    let mut reader = LzipReader::new(kernel.ptx.lzip);
    let read = reader.read_exact(&mut text).and_then(|()| reader.read(&mut [0]));
    match read {
        // Its end was reached, where the sum of the text stands.
        Ok(0) if text.last() == Some(&0) => Ok(text),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(DeviceError::HostMemory { bytes }),
        _ => Err(damaged),
    }
}

#[cfg(feature = "cuda")]
#[cfg(test)]
mod tests {
    use super::*;
    use elsa_kernels::cuda::{GPU_KERNELS, Ptx};
    use std::sync::LazyLock;

    /// The kernel with the shortest module.
    fn shortest() -> GpuKernel {
        *GPU_KERNELS.iter().min_by_key(|kernel| kernel.ptx.bytes).unwrap()
    }

    /// Its stream with one bit flipped, and in which byte. Streams live as long as the program.
    static FLIPPED: LazyLock<Vec<(usize, Vec<u8>)>> = LazyLock::new(|| {
        let lzip = shortest().ptx.lzip;
        let step = lzip.len() / 64;
        // Whole but for the size of its dictionary, which may be larger than needed.
        let places = (0..lzip.len()).step_by(step).filter(|at| *at != 5);
        places
            .map(|at| {
                let mut flipped = lzip.to_vec();
                flipped[at] ^= 0x10;
                (at, flipped)
            })
            .collect()
    });

    #[test]
    #[cfg_attr(miri, ignore = "inflates long, and nothing unsafe")]
    fn a_module_is_the_text_that_was_generated() {
        let kernel = shortest();
        let file = format!("{}/../kernels/ptx/sm_53/{}.ptx", env!("CARGO_MANIFEST_DIR"), kernel.name);
        let mut wanted = std::fs::read(file).unwrap();
        wanted.push(0);
        assert_eq!(text(&kernel).unwrap(), wanted);
        assert!(kernel.ptx.lzip.len() < wanted.len() / 2);
    }

    #[test]
    #[cfg_attr(miri, ignore = "inflates long, and nothing unsafe")]
    fn damaged_streams_are_refused() {
        let kernel = shortest();
        let refused = |what: &str, ptx: Ptx| {
            let found = text(&GpuKernel { ptx, ..kernel });
            assert_eq!(found, Err(DeviceError::Damaged { kernel: kernel.name }), "{what}");
        };
        let whole = kernel.ptx;
        refused("nothing", Ptx { lzip: &[], ..whole });
        refused("cut short", Ptx { lzip: &whole.lzip[..whole.lzip.len() - 1], ..whole });
        refused("longer than told", Ptx { bytes: whole.bytes - 1, ..whole });
        refused("shorter than told", Ptx { bytes: whole.bytes + 1, ..whole });
        for (at, lzip) in FLIPPED.iter() {
            refused(&format!("byte {at}"), Ptx { lzip, ..whole });
        }
    }
}
