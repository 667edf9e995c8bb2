//! Links the library so that it stays loaded. ONNX Runtime unloads a library with the last session that uses it, but the
//! engines serve the whole process: their threads run the library's code, and a GPU keeps their kernels.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
