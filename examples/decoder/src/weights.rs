//! A file of random weights, stored layer by layer, and its reader.

use crate::error::{Error, zeros};
use crate::layer::{Sizes, Weight};
use elsa_core::random::Random;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file with the weights of all layers.
#[derive(Debug)]
pub struct Weights {
    file: File,
    path: PathBuf,
    sizes: Sizes,
    layers: usize,
}

/// Returns `count` random numbers whose variance is one.
///
/// # Errors
/// Returns an error if the system refuses the memory.
pub fn noise(seed: u64, count: usize) -> Result<Vec<f32>, Error> {
    let mut random = Random::new(seed);
    let mut data = zeros("tokens", count)?;
    data.iter_mut().for_each(|x| *x = random.signed() * 3f32.sqrt());
    Ok(data)
}

impl Weights {
    /// Writes random weights for `layers` layers to an unnamed file in `folder`. The file disappears with the process.
    ///
    /// Matrices have the variance `1 / inputs`, so that values keep their magnitude from layer to layer. The scales of
    /// norms are near one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn random(folder: &Path, sizes: Sizes, layers: usize) -> Result<Weights, Error> {
        let failed = |source| Error::Weights { path: folder.to_path_buf(), source };
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, &file);
        let mut random = Random::new(7);
        for _ in 0..layers {
            for weight in Weight::ALL {
                let [rows, columns] = weight.shape(&sizes);
                let spread = (3.0 / rows as f32).sqrt();
                let norm = matches!(weight, Weight::AttentionNorm | Weight::MlpNorm);
                for _ in 0..rows * columns {
                    let x = if norm { 1.0 + 0.1 * random.signed() } else { spread * random.signed() };
                    out.write_all(&x.to_le_bytes()).map_err(failed)?;
                }
            }
        }
        out.flush().map_err(failed)?;
        drop(out);
        Ok(Weights { file, path: folder.to_path_buf(), sizes, layers })
    }

    /// Returns the sizes of a layer.
    #[must_use]
    pub const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the number of layers.
    #[must_use]
    pub const fn layers(&self) -> usize {
        self.layers
    }

    /// Returns the size of a layer's weights in bytes.
    #[must_use]
    pub fn layer_bytes(&self) -> usize {
        self.sizes.elements() * size_of::<f32>()
    }

    /// Reads the weights of layer `layer` into `to`, and returns their size in bytes.
    ///
    /// # Errors
    /// Returns an error if reading fails or the file ends early.
    pub fn read(&self, layer: usize, to: &mut [f32]) -> Result<u64, Error> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(to);
        let offset = (layer as u64).saturating_mul(self.layer_bytes() as u64);
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|source| Error::Weights { path: self.path.clone(), source })?;
        Ok(bytes.len() as u64)
    }

    /// Drops the file from the system's cache, so that the next reads access the storage device.
    ///
    /// # Errors
    /// Returns an error if the system does not drop the file.
    pub fn forget(&self) -> Result<(), Error> {
        let failed = |source: std::io::Error| Error::Weights { path: self.path.clone(), source };
        self.file.sync_data().map_err(failed)?;
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| failed(e.into()))
    }
}
