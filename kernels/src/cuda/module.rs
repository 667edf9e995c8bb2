//! The modules of the GPU kernels, as written by the build script. They contain PTX, and also a cubin if the build was
//! given one.

use super::kernel::{Ptx, Target};

/// Builds the table entry of a kernel from the kernel's name and role. The code comes from the module of this name.
macro_rules! kernel {
    ($name:literal, $role:expr) => {{
        const MODULE: &$crate::cuda::module::Module = $crate::cuda::module::module($name);
        $crate::cuda::kernel::GpuKernel { name: $name, ptx: MODULE.ptx, cubin: MODULE.cubin, role: $role }
    }};
}
pub(super) use kernel;

/// PTX of a kernel, and its cubin if the build has one.
pub(super) struct Module {
    name: &'static str,
    pub(super) ptx: Ptx,
    pub(super) cubin: Option<&'static [u8]>,
}

const MODULES: &[Module] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Returns the module of the kernel `name`. The build fails if the module does not exist.
pub(super) const fn module(name: &str) -> &'static Module {
    let mut i = 0;
    while i < MODULES.len() {
        if same(MODULES[i].name, name) {
            return &MODULES[i];
        }
        i += 1;
    }
    panic!("no module of that name in kernels/ptx")
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
