//! Back ends and their names.

use elsa_core::profile::InstructionSet;
use std::fmt;
use std::str::FromStr;

/// A back end: the processor that computes, and its instruction set if it is a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The CPU, with the kernels of an instruction set.
    Cpu(InstructionSet),
    /// An NVIDIA GPU.
    Cuda,
}

impl Backend {
    /// The CPU without vector instructions.
    pub const SCALAR: Backend = Backend::Cpu(InstructionSet::Scalar);
    /// The CPU with ARMv8.0 Advanced SIMD.
    pub const NEON: Backend = Backend::Cpu(InstructionSet::Neon);
    /// The CPU with AVX2, FMA and F16C.
    pub const AVX2: Backend = Backend::Cpu(InstructionSet::Avx2);
    /// The CPU with AVX-512 F and DQ.
    pub const AVX512: Backend = Backend::Cpu(InstructionSet::Avx512);

    /// Every back end, in order of preference: first the GPU, then the CPU with each instruction set from the fastest
    /// to the slowest.
    pub const ALL: [Backend; 1 + InstructionSet::ALL.len()] = {
        let mut all = [Backend::Cuda; 1 + InstructionSet::ALL.len()];
        let mut i = 0;
        while i < InstructionSet::ALL.len() {
            all[1 + i] = Backend::Cpu(InstructionSet::ALL[i]);
            i += 1;
        }
        all
    };

    /// Returns the name: `scalar`, `neon`, `avx2`, `avx512` or `cuda`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu(set) => set.name(),
            Backend::Cuda => "cuda",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a string that is not the name of a back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend {
    /// The unknown name.
    pub found: String,
}

impl UnknownBackend {
    /// Returns the error message without the name of the argument in front, so that callers can put another name there.
    pub(crate) fn choice(&self) -> String {
        let names: Vec<&str> = Backend::ALL.iter().rev().map(|backend| backend.name()).collect();
        format!("'{}'; allowed: auto, {}", self.found, names.join(", "))
    }
}

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend: {}", self.choice())
    }
}

impl std::error::Error for UnknownBackend {}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Backend, UnknownBackend> {
        let named = Backend::ALL.into_iter().find(|backend| backend.name() == name);
        named.ok_or_else(|| UnknownBackend { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_back_ends_are_one_to_one() {
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
        }
        let unknown = "sse".parse::<Backend>().unwrap_err().to_string();
        assert_eq!(unknown, "backend: 'sse'; allowed: auto, scalar, neon, avx2, avx512, cuda");
        let variable = crate::PlanError::from(UnknownBackend { found: "sse".into() }).to_string();
        assert!(variable.starts_with("ELSA_BACKEND: 'sse'; allowed: auto, scalar"), "{variable}");
    }
}
