//! Device profile (stand-in).
/// Stand-in.
#[derive(Clone, Copy, Debug)]
pub struct DeviceProfile;
