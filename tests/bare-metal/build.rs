//! Passes the memory map of the board to the linker; does nothing for a machine with an operating system.

fn main() {
    println!("cargo::rerun-if-changed=memory.x");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_TARGET_OS").is_some_and(|os| os == "none") {
        let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
        println!("cargo::rustc-link-search={here}");
        println!("cargo::rustc-link-arg-bins=-Tlink.x");
    }
}
