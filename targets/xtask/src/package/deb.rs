//! Debian packages, by dpkg-deb.
//!
//! Libraries are in the folder of their architecture, such as `/usr/lib/aarch64-linux-gnu`, so that packages for two
//! architectures can be installed together. Each package needs glibc from the version on for which the files are
//! linked. That version is written here and not derived from the machine that builds.

use super::release::{ABOUT, Release, VERSION, copy, permit};
use crate::boards::build;
use crate::boards::library::Abi;
use crate::files::{self, at};
use crate::setup;
use crate::shell::Run;
use std::fs;
use std::path::{Path, PathBuf};

/// A Debian package.
struct Package {
    name: String,
    section: &'static str,
    /// `true` for libraries and headers, whose packages for two architectures can be installed together.
    same: bool,
    /// Packages that it needs, in addition to the C library.
    depends: String,
    /// The content, after "exact FP32 attention on edge boards - ".
    about: &'static str,
    /// The description, in lines that begin with a space.
    text: &'static str,
    /// Files and folders: the path in the built folder, and the path in the package. In the latter, `@` stands for the
    /// folder of the architecture.
    files: Vec<(String, String)>,
}

/// Returns the packages. `abi` determines the names of the shared library.
fn packages(abi: &Abi) -> [Package; 4] {
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    let [(soname, _), (link, _)] = abi.links();
    let library = |name: &str| pair(&format!("lib/{name}"), &format!("usr/lib/@/{name}"));
    let name = format!("libelsa{}", abi.major);
    [
        Package {
            name: "elsa-edge".to_owned(),
            section: "science",
            same: false,
            depends: String::new(),
            about: "tool",
            text: " The tool elsa computes attention over tensors in files, verifies answers\n \
                   against exact ones, and measures latency, memory and accuracy.",
            files: vec![pair("bin/elsa", "usr/bin/elsa")],
        },
        Package {
            name: name.clone(),
            section: "libs",
            same: true,
            depends: String::new(),
            about: "library",
            text: " The shared library computes softmax attention, linear attention and scans on\n \
                   the processor, and on an NVIDIA GPU if its driver is installed.",
            files: vec![library(&abi.file()), library(&soname)],
        },
        Package {
            name: "libelsa-dev".to_owned(),
            section: "libdevel",
            same: true,
            depends: format!(", {name} (= {VERSION})"),
            about: "development files",
            text: " This package contains the headers for C and C++, the static library, and\n \
                   packages for CMake and pkg-config.",
            files: vec![pair("include", "usr/include"), library("libelsa.a"), library(&link)],
        },
        Package {
            name: "libelsa-onnxruntime".to_owned(),
            section: "libs",
            same: true,
            depends: String::new(),
            about: "operators of ONNX Runtime",
            text: " The library elsa/libelsa_ort.so adds the operators of this project to ONNX\n \
                   Runtime. The tool of the package elsa-edge replaces the attention of a model\n \
                   by these operators.",
            files: vec![pair("lib/libelsa_ort.so", "usr/lib/@/elsa/libelsa_ort.so")],
        },
    ]
}

/// Makes the Debian packages in the folder `to`. Returns their paths.
pub fn make(release: &Release, to: &Path) -> Result<Vec<PathBuf>, String> {
    setup::program(release.tree, "dpkg-deb", "dpkg")?;
    let abi = Abi::read(release.tree)?;
    let machine = release.target.machine();
    let architecture = match machine {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => return Err(format!("{other}: no Debian packages; allowed: x86_64, aarch64")),
    };
    let folder = format!("{machine}-linux-gnu");
    let mut made = Vec::new();
    for package in packages(&abi) {
        let root = release.work.join(&package.name);
        for (from, to) in &package.files {
            copy(release.tree, &release.dist.join(from), &root.join(to.replace('@', &folder)))?;
        }
        match package.name.as_str() {
            "elsa-edge" => pages(release, &root)?,
            "libelsa-dev" => {
                build::describe(release.tree, &abi, "../..", &root.join("usr/lib").join(&folder))?
            }
            _ => {}
        }
        documents(release, &package.name, &root.join("usr/share/doc").join(&package.name))?;
        control(release, &package, &abi, architecture, &root)?;
        permit(&root)?;
        let path = to.join(format!("{}_{VERSION}_{architecture}.deb", package.name));
        // Old releases of Ubuntu read only this compression.
        let run = release.run("dpkg-deb --root-owner-group -Zxz --build").arg(&root).arg(&path);
        run.run().text(&path.display().to_string())?;
        made.push(path);
    }
    Ok(made)
}

/// Compresses a file, without its name and time.
fn compress(release: &Release, path: &Path) -> Result<(), String> {
    release.run("gzip -9nf").arg(path).run().text(&path.display().to_string()).map(|_| ())
}

/// Writes the completions and the man pages of the tool.
fn pages(release: &Release, root: &Path) -> Result<(), String> {
    let made = release.work.join("pages");
    let run = Run::new(release.tree, "cargo run --quiet -p elsa-cli --example pages --").arg(&made);
    run.run().text("completions and man pages")?;
    let share = root.join("usr/share");
    for entry in fs::read_dir(&made).map_err(at(&made))? {
        let name = entry.map_err(at(&made))?.file_name().to_string_lossy().into_owned();
        let to = match name.as_str() {
            "elsa.bash" => "bash-completion/completions/elsa".to_owned(),
            "_elsa" => "zsh/vendor-completions/_elsa".to_owned(),
            "elsa.fish" => "fish/vendor_completions.d/elsa.fish".to_owned(),
            page => format!("man/man1/{page}"),
        };
        copy(release.tree, &made.join(&name), &share.join(&to))?;
        if to.starts_with("man/") {
            compress(release, &share.join(&to))?;
        }
    }
    Ok(())
}

/// Writes the licences and the list of changes.
fn documents(release: &Release, name: &str, doc: &Path) -> Result<(), String> {
    let mit = files::text(&release.tree.root.join("LICENSE-MIT"))?;
    let third = doc.join("THIRD-PARTY.txt");
    copy(release.tree, &release.dist.join("share/licences/THIRD-PARTY.txt"), &third)?;
    compress(release, &third)?;
    let copyright = format!(
        "elsa-edge, {ABOUT}: MIT or Apache-2.0, at your option.\n\n\
         On Debian systems, the text of the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n\
         THIRD-PARTY.txt.gz contains the licences of all linked packages. The MIT licence:\n\n{mit}"
    );
    files::write(&doc.join("copyright"), copyright)?;
    let (maintainer, date) = (&release.maintainer, &release.date);
    let changes = format!(
        "elsa-edge ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}; CHANGELOG.md lists the changes.\n\n \
         -- {maintainer}  {date}\n"
    );
    let path = doc.join("changelog");
    files::write(&path, changes)?;
    compress(release, &path).map_err(|fault| format!("{name}: {fault}"))
}

/// Writes the files that dpkg reads.
fn control(
    release: &Release,
    package: &Package,
    abi: &Abi,
    architecture: &str,
    root: &Path,
) -> Result<(), String> {
    let list = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    let sums = release.run("sh -c").arg(list).dir(root).run().text("md5sum")?;
    let size = release.run("du -ks").arg(root.join("usr")).run().text("du")?;
    let size = size.split_whitespace().next().unwrap_or_default().to_owned();
    let Package { name, section, depends, about, text, .. } = package;
    let (glibc, maintainer) = (release.glibc, &release.maintainer);
    let same = if package.same { "Multi-Arch: same\n" } else { "" };
    let control = format!(
        "Package: {name}\nSource: elsa-edge\nVersion: {VERSION}\nArchitecture: {architecture}\n{same}\
         Maintainer: {maintainer}\nInstalled-Size: {size}\nDepends: libc6 (>= {glibc}){depends}\n\
         Section: {section}\nPriority: optional\nDescription: {ABOUT} - {about}\n{text}\n"
    );
    let dir = root.join("DEBIAN");
    files::write(&dir.join("control"), control)?;
    files::write(&dir.join("md5sums"), sums)?;
    if *name == format!("libelsa{}", abi.major) {
        files::write(&dir.join("shlibs"), format!("libelsa {} {name} (>= {VERSION})\n", abi.major))?;
        files::write(&dir.join("triggers"), "activate-noawait ldconfig\n")?;
    }
    Ok(())
}
