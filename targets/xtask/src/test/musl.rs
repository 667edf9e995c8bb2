//! Builds the C library for musl, a C library of Linux for static programs, and links a program with it that contains
//! everything it needs.

use super::links::{CONSUMER, says_ok};
use crate::boards::slice::Slice;
use crate::boards::{check, library};
use crate::files::{bytes, empty};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};

/// Rust's target triple.
const TRIPLE: &str = "x86_64-unknown-linux-musl";
/// The same platform, in the format of zig's own drivers.
const PLATFORM: &str = "x86_64-linux-musl";

/// Builds the library, links the program and runs it. Does nothing on other machines than x86-64.
pub fn musl(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    setup::target(tree, TRIPLE)?;
    let (zig, home) = (setup::zig(tree)?, tree.target.join("links/musl"));
    // A static program cannot open a GPU's driver.
    let slice = Slice::named(tree, &["files", "gradients", "linear", "series", "stream"])?;
    let abi = slice.abi(tree)?;
    let run = Run::new(tree, "cargo-zigbuild build --profile slice -p elsa-capi --no-default-features");
    let run = run.arg("--features").arg(slice.joined(",")).arg("--target").arg(TRIPLE).front(zig.clone());
    run.run().text("musl: building the library")?;
    empty(&home)?;
    let cargos = tree.target.join(TRIPLE).join("slice/libelsa.a");
    let archive = library::enclosed(tree, &abi, &cargos, &home)?;
    ran.note("musl, libelsa.a: exports", check::globals(&bytes(&archive)?, &abi));
    let program = home.join("with");
    let run = Run::new(tree, "").arg(zig.join("python")).args("-m ziglang cc -target").arg(PLATFORM);
    let run = run.args("-static -std=c99 -O2 -I runtime/capi/include -o").arg(&program);
    let run = run.arg(tree.root.join(CONSUMER).join("with.c")).arg(&archive);
    run.args("-Wl,--gc-sections -lunwind -lm").run().text("musl: linking")?;
    let needed = check::needed(&bytes(&program)?)?;
    let found = if needed.is_empty() { Ok("inside".to_owned()) } else { Err(format!("{needed:?}")) };
    ran.note("musl: every library", found);
    says_ok(ran, "musl: run", Run::new(tree, "").arg(&program));
    Ok(())
}
