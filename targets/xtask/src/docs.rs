//! `cargo xtask docs`: builds the guide with mdBook, and opens it in a browser.

use crate::setup;
use crate::shell::{Run, Tree};

/// Builds the guide in `target/guide`, and opens its first page in a browser if `open` is `true`.
///
/// # Errors
/// Returns an error if mdBook cannot be installed or refuses a page.
pub fn run(tree: &Tree, open: bool) -> Result<(), String> {
    let mdbook = setup::mdbook(tree)?;
    let run = Run::new(tree, "").arg(mdbook).arg("build").arg(tree.root.join("docs"));
    let run = run.arg("--dest-dir").arg(tree.target.join("guide"));
    let run = if open { run.arg("--open") } else { run };
    run.run().text("mdbook build")?;
    println!("{}", tree.target.join("guide/index.html").display());
    Ok(())
}
