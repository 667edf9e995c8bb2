//! What a stage is asked for.

/// What a stage is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Only what an inner loop needs.
    pub fast: bool,
    /// How long the fuzz targets and the hunt take together.
    pub minutes: u64,
}
