//! Programs that find the library through its packages: CMake, the oldest and the system's, and pkg-config.

use super::programs::WARNINGS;
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::path::Path;

/// Runs a program that must print `ok`.
fn says_ok(ran: &mut Ran, run: Run) {
    let line = run.line();
    let out = run.run();
    let ok = out.ok && out.stdout.trim() == "ok";
    ran.add(&line, ok, u64::from(ok), u64::from(!ok));
}

/// A program through the CMake package, static and shared, by the `cmake` of that folder or the system's.
pub fn with_cmake(
    tree: &Tree,
    ran: &mut Ran,
    dist: &Path,
    home: &Path,
    cmake: Option<&Path>,
) -> Result<(), String> {
    let program = cmake.map_or_else(|| "cmake".into(), |folder| folder.join("cmake"));
    let name = if cmake.is_some() { "oldest-cmake" } else { "cmake" };
    for shared in ["OFF", "ON"] {
        let dir = home.join(format!("{name}-{shared}"));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let make = Run::new(tree, "")
            .arg(&program)
            .arg(tree.root.join("targets/xtask/consumer"))
            .arg("-DCMAKE_BUILD_TYPE=Release")
            .arg(format!("-DELSA_SHARED={shared}"))
            .arg(format!("-DCMAKE_PREFIX_PATH={}", dist.display()))
            .dir(&dir);
        let build = Run::new(tree, "").arg(&program).args("--build").arg(&dir);
        if !make.machine().run().ok || !build.machine().run().ok {
            return Err(format!("{}: CMake does not find or link the package", dir.display()));
        }
        says_ok(ran, Run::new(tree, "").arg(dir.join("with")));
    }
    Ok(())
}

/// The same through pkg-config.
pub fn with_pkg_config(tree: &Tree, ran: &mut Ran, dist: &Path, home: &Path) -> Result<(), String> {
    let ask = |what: &str| {
        let run = Run::new(tree, &format!("pkg-config {what} elsa"));
        let out = run.env("PKG_CONFIG_PATH", dist.join("lib/pkgconfig")).quiet().run();
        if out.ok { Ok(out.stdout.trim().to_owned()) } else { Err(format!("pkg-config: {}", out.stderr)) }
    };
    let (flags, libraries, all) = (ask("--cflags")?, ask("--libs")?, ask("--static --libs")?);
    // A static link names the archive: with the shared library beside it, -lelsa would take that.
    let all = all.replace("-lelsa", "-l:libelsa.a");
    for (name, link) in [("shared", libraries), ("static", all)] {
        let program = home.join(format!("pkg-config-{name}"));
        let run =
            Run::new(tree, &format!("gcc -std=c99 {WARNINGS} {flags} targets/xtask/consumer/with.c -o"));
        if !run.arg(&program).args(&link).args("-lm").run().ok {
            return Err(format!("the {name} link with the flags of pkg-config does not work"));
        }
        says_ok(ran, Run::new(tree, "").arg(&program).env("LD_LIBRARY_PATH", dist.join("lib")));
    }
    Ok(())
}
