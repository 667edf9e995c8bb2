//! What a plan claims about its answers.
use elsa_runtime::Plan;
/// The certificate of a plan as one line of JSON.
#[must_use]
pub fn certificate_line(_plan: &Plan) -> String {
    "{}".into()
}
