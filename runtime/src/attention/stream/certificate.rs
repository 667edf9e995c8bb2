//! The certificate of a streamed run.

use crate::attention::certify;
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::certified::Certified;

/// What a streamed run measured of its tensors while they passed.
#[derive(Clone, Debug)]
pub struct StreamCertificate {
    problem: Problem,
    certificate: Certificate,
    record: Vec<f32>,
    fallback: bool,
}

impl StreamCertificate {
    /// The certificate of a run of `problem` that executed what `certificate` says and left `record`. `fallback` says
    /// whether it took the place of a GPU's. Returns `None` if the record is none.
    pub(super) fn new(
        problem: &Problem,
        certificate: Certificate,
        record: Vec<f32>,
        fallback: bool,
    ) -> Option<StreamCertificate> {
        certify::certified(problem, certificate, &record, fallback)?;
        Some(StreamCertificate { problem: *problem, certificate, record, fallback })
    }

    /// How wrong the answer may be. It is the certificate of a run in memory, number by number.
    #[must_use]
    pub fn certified(&self) -> Option<Certified<'_>> {
        certify::certified(&self.problem, self.certificate, &self.record, self.fallback)
    }
}
