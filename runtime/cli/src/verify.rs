//! stub
use crate::error::Error;
/// stub
pub const HELP: &str = "";
/// stub
pub fn verify(_: &crate::args::VerifyArgs) -> Result<(), Error> {
    Ok(())
}
