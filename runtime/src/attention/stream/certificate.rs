//! The certificate of a streamed run.

use crate::attention::certify;
use elsa_core::attention::Problem;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::run_certificate::RunCertificate;

/// Measurements of a streamed run's tensors, from which its certificate is computed.
#[derive(Clone, Debug)]
pub struct StreamCertificate {
    problem: Problem,
    certificate: Certificate,
    record: Vec<f32>,
    fallback: bool,
}

impl StreamCertificate {
    /// Creates the certificate of a run of `problem` from `record`, which contains the measurements of the run.
    /// `certificate` describes the run's arithmetic. `fallback` is `true` if the CPU computed in place of a GPU.
    /// Returns `None` if the record is too short.
    pub(super) fn new(
        problem: &Problem,
        certificate: Certificate,
        record: Vec<f32>,
        fallback: bool,
    ) -> Option<StreamCertificate> {
        certify::certificate(problem, certificate, &record, fallback)?;
        Some(StreamCertificate { problem: *problem, certificate, record, fallback })
    }

    /// Returns a bound on the error of the output. Every number of the returned value equals that of an in-memory run.
    #[must_use]
    pub fn certificate(&self) -> Option<RunCertificate<'_>> {
        certify::certificate(&self.problem, self.certificate, &self.record, self.fallback)
    }
}
