//! Parameters of a stage.

/// Parameters of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Runs only the part for an inner loop.
    pub fast: bool,
    /// Minutes that the fuzz targets and the hunt take together.
    pub minutes: u64,
}
