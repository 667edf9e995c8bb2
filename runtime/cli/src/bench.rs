//! stub
use crate::error::Error;
/// stub
pub const HELP: &str = "";
/// stub
pub fn bench(_: &crate::args::BenchArgs) -> Result<(), Error> {
    Ok(())
}
