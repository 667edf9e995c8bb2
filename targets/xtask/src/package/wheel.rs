//! Wheels, packed and audited by the projects `wheel` and `auditwheel` of the Python Packaging Authority.
//!
//! A wheel contains the package `elsa`, with both libraries, and the tool as a script:
//!
//! | wheel | for |
//! |---|---|
//! | `cp38-abi3-manylinux` | CPython 3.8 and later, with the compiled module |
//! | `py3-none-manylinux` | Python 3.6 and later on x86-64 |
//! | `py3-none-linux` | Python 3.6 and later on aarch64: the pip of JetPack 4.6 accepts no other tag |

use super::release::{ABOUT, Release, VERSION, copy, permit};
use crate::boards::build;
use crate::files;
use crate::setup;
use elsa_targets::Version;
use std::path::{Path, PathBuf};

/// Lets `python -m elsa` print the library and its back ends.
const MAIN: &str = "from elsa import _main\n\n_main()\n";

/// Makes the wheels in the folder `to`. Returns their paths.
pub fn make(release: &Release, to: &Path) -> Result<Vec<PathBuf>, String> {
    let python = setup::wheel(release.tree)?;
    let machine = release.target.machine();
    let Version { major, minor } = release.glibc;
    let manylinux = format!("manylinux_{major}_{minor}_{machine}");
    let old = if machine == "aarch64" { format!("linux_{machine}") } else { manylinux.clone() };
    let module = release.work.join("_elsa.abi3.so");
    let compiled = build::module(release.tree, release.target.build(), &module)?;
    let wheels = compiled.then_some(("cp38-abi3", &manylinux, ">=3.8"));
    let mut made = Vec::new();
    for (tag, platform, pythons) in wheels.into_iter().chain([("py3-none", &old, ">=3.6")]) {
        let tag = format!("{tag}-{platform}");
        let root = release.work.join(&tag);
        let package = root.join("elsa");
        for (from, to) in [
            ("share/python/elsa.py", "elsa/__init__.py"),
            ("share/python/elsa_modules/distributed.py", "elsa/distributed.py"),
            ("lib/libelsa_ort.so", "elsa/libelsa_ort.so"),
            ("bin/elsa", &format!("elsa_edge-{VERSION}.data/scripts/elsa")),
        ] {
            copy(release.tree, &release.dist.join(from), &root.join(to))?;
        }
        // A wheel contains no links.
        let library = release.dist.join("lib/libelsa.so.1").canonicalize();
        let library = library.map_err(files::at(&release.dist.join("lib/libelsa.so.1")))?;
        copy(release.tree, &library, &package.join("libelsa.so.1"))?;
        for (from, to) in [("elsa.pyi", "__init__.pyi"), ("elsa_modules/distributed.pyi", "distributed.pyi")]
        {
            copy(release.tree, &release.tree.root.join("runtime/python").join(from), &package.join(to))?;
        }
        files::write(&package.join("__main__.py"), MAIN)?;
        files::write(&package.join("py.typed"), "")?;
        if tag.starts_with("cp38") {
            copy(release.tree, &module, &root.join("_elsa.abi3.so"))?;
        }
        let info = root.join(format!("elsa_edge-{VERSION}.dist-info"));
        copy(release.tree, &release.dist.join("share/licences"), &info.join("licences"))?;
        let wheel = format!(
            "Wheel-Version: 1.0\nGenerator: cargo xtask package\nRoot-Is-Purelib: false\nTag: {tag}\n"
        );
        files::write(&info.join("WHEEL"), wheel)?;
        let metadata = format!(
            "Metadata-Version: 2.1\nName: elsa-edge\nVersion: {VERSION}\nSummary: {ABOUT}\n\
             License: MIT OR Apache-2.0\nRequires-Python: {pythons}\n\n\
             Attention on arrays of numpy and tensors of torch; `python -m elsa` prints the back ends.\n"
        );
        files::write(&info.join("METADATA"), metadata)?;
        permit(&root)?;
        let run = release.run("").arg(&python).args("-m wheel pack").arg(&root).arg("--dest-dir").arg(to);
        run.run().text(&format!("wheel pack {}", root.display()))?;
        let path = to.join(format!("elsa_edge-{VERSION}-{tag}.whl"));
        audit(release, &python, &path)?;
        made.push(path);
    }
    Ok(made)
}

/// Requires that auditwheel accepts a wheel for the version of the C library that its packages name.
fn audit(release: &Release, python: &Path, path: &Path) -> Result<(), String> {
    let what = format!("auditwheel show {}", path.display());
    let text = release.run("").arg(python).args("-m auditwheel show").arg(path).run().text(&what)?;
    let found = oldest(&text).ok_or_else(|| format!("{what}: {text}"))?;
    let glibc = release.glibc;
    if found <= glibc { Ok(()) } else { Err(format!("{what}: needs glibc {found}; allowed: up to {glibc}")) }
}

/// Returns the version of glibc in the platform tag that auditwheel prints. It breaks lines anywhere.
fn oldest(text: &str) -> Option<Version> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, after) = text.split_once("is consistent with the following platform tag: \"manylinux_")?;
    let mut numbers = after.split('_');
    Some(Version { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_is_read_from_broken_lines() {
        let told = "\na-1-py3-none-linux_aarch64.whl is consistent\nwith the following platform tag:\n\"manylinux_2_27_aarch64\".\n";
        assert_eq!(oldest(told), Some(Version { major: 2, minor: 27 }));
        assert_eq!(oldest("is consistent with the following platform tag: \"linux_aarch64\""), None);
    }
}
