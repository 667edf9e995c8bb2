//! `include/elsa.h` is what cbindgen makes of this crate. `ELSA_WRITE_HEADER=1` writes it.

use std::path::Path;

/// The files that declare something of the header, in its order.
const SOURCES: [&str; 23] = [
    "types/numbers",
    "types/engine",
    "types/problem",
    "types/data",
    "types/info",
    "types/stream",
    "types/linear",
    "types/series",
    "library",
    "log",
    "view",
    "mask",
    "engine",
    "buffer",
    "plan",
    "workspace",
    "run",
    "bound",
    "certify",
    "states",
    "stream",
    "linear",
    "series",
];

#[test]
fn the_header_is_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in SOURCES {
        builder = builder.with_src(root.join("src").join(file).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let path = root.join("include/elsa.h");
    if std::env::var_os("ELSA_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert!(text.contains("elsa_status elsa_run("), "functions are missing");
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(committed == text, "{}: not what cbindgen makes; ELSA_WRITE_HEADER=1 writes it", path.display());
}

#[test]
fn the_versions_are_those_of_the_package() {
    let version = [elsa::ELSA_VERSION_MAJOR, elsa::ELSA_VERSION_MINOR, elsa::ELSA_VERSION_PATCH];
    assert_eq!(version.map(|number| number.to_string()).join("."), env!("CARGO_PKG_VERSION"));
    assert_eq!(elsa::elsa_abi_version(), elsa::ELSA_ABI_MAJOR << 16 | elsa::ELSA_ABI_MINOR);
}
