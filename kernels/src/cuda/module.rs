//! The modules of the GPU kernels: PTX, and cubins where the build was given some.

/// A kernel of a role, with its module.
macro_rules! kernel {
    ($name:literal, $role:expr) => {
        $crate::cuda::kernel::GpuKernel {
            name: $name,
            ptx: concat!(
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/ptx/sm_62/", $name, ".ptx")),
                "\0"
            ),
            cubin: $crate::cuda::module::cubin($name),
            role: $role,
        }
    };
}
pub(super) use kernel;

/// Cubins that the build was given, by name.
const CUBINS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/cubins.rs"));

/// The cubin of a kernel, where this build has one.
pub(super) const fn cubin(name: &str) -> Option<&'static [u8]> {
    let mut i = 0;
    while i < CUBINS.len() {
        if same(CUBINS[i].0, name) {
            return Some(CUBINS[i].1);
        }
        i += 1;
    }
    None
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
