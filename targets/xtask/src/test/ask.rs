//! Parameters of a stage.

/// Parameters of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// `true` to run only the checks that developers repeat after every change.
    pub fast: bool,
    /// Total minutes for the fuzz targets and the hunt.
    pub minutes: u64,
}
