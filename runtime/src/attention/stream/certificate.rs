//! The certificate of a streamed run.

use crate::attention::certify;
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::certified::Certified;

/// Measurements of the tensors of a streamed run.
#[derive(Clone, Debug)]
pub struct StreamCertificate {
    problem: Problem,
    certificate: Certificate,
    record: Vec<f32>,
    fallback: bool,
}

impl StreamCertificate {
    /// Creates the certificate of a run of `problem` that executed what `certificate` states and left `record`.
    /// `fallback` says that it replaced a GPU's run. Returns `None` if the record is empty.
    pub(super) fn new(
        problem: &Problem,
        certificate: Certificate,
        record: Vec<f32>,
        fallback: bool,
    ) -> Option<StreamCertificate> {
        certify::certified(problem, certificate, &record, fallback)?;
        Some(StreamCertificate { problem: *problem, certificate, record, fallback })
    }

    /// Returns a bound of the error of the answer. It equals the certificate of an in-memory run, number by number.
    #[must_use]
    pub fn certified(&self) -> Option<Certified<'_>> {
        certify::certified(&self.problem, self.certificate, &self.record, self.fallback)
    }
}
