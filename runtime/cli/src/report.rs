//! Results on standard output, where several commands print the same.

use elsa_runtime::LoadedKernel;
use serde::Serialize;
use std::io::{Error, Result, Write};

/// Writes `value` as one line of JSON.
///
/// # Errors
/// A failing serializer or writer.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> Result<()> {
    writeln!(out, "{}", serde_json::to_string(value).map_err(Error::other)?)
}

/// A kernel that was loaded into the GPU.
#[derive(Debug, Serialize)]
pub struct Loaded {
    /// The kernel.
    pub name: &'static str,
    /// `cubin`, or `ptx`, which the driver has compiled.
    pub form: &'static str,
    /// Version of its PTX.
    pub ptx_isa: &'static str,
    /// Time that loading took.
    pub load_ms: f64,
}

impl From<LoadedKernel> for Loaded {
    fn from(kernel: LoadedKernel) -> Loaded {
        let LoadedKernel { name, form, isa, ms } = kernel;
        Loaded { name, form, ptx_isa: isa, load_ms: ms }
    }
}

/// Writes a line for each kernel.
///
/// # Errors
/// A failing writer.
pub fn loaded(out: &mut impl Write, kernels: &[Loaded]) -> Result<()> {
    for Loaded { name, form, ptx_isa, load_ms } in kernels {
        writeln!(out, "loaded    {name} from {form}, PTX ISA {ptx_isa}, in {load_ms:.1} ms")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_line() {
        let kernel = |name| Loaded { name, form: "ptx", ptx_isa: "6.5", load_ms: 12.34 };
        let mut out = Vec::new();
        loaded(&mut out, &[kernel("first"), kernel("second")]).unwrap();
        let line = |name| format!("loaded    {name} from ptx, PTX ISA 6.5, in 12.3 ms\n");
        assert_eq!(String::from_utf8(out).unwrap(), line("first") + &line("second"));
    }
}
