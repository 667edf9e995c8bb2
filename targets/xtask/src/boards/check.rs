//! Reads built artefacts and refuses those that do not load, run or fit on a board.
//!
//! | check | refuses |
//! |---|---|
//! | machine | a file for another processor |
//! | symbol versions | versions beyond the board's C library, and versions of a C++ runtime |
//! | libraries | a `DT_NEEDED` other than the C library's own libraries, libgcc_s and the loader |
//! | driver symbols | undefined `cu…`: the driver is opened at run time, so that a board without one can start the program |
//! | name | a shared library without a `DT_SONAME`, or with a wrong `DT_SONAME` |
//! | exports | a library that exports names beyond the functions of `elsa.map`, lacks a function, or has one in another version |
//! | entry | a library for a host, such as ONNX Runtime, that exports anything but its one function |
//! | paths | paths of the build machine |
//! | instructions | encodings beyond ARMv8.0-A, apart from the functions of `targets/exceptions.txt` |
//! | PTX | modules beyond the driver's PTX ISA or the board's GPU, and missing kernels of `required.txt` |
//! | cubins | files without the GPU kernels that were assembled for the board |
//! | size | a stripped binary for a board above [`BINARY`], without cubins; a static library that adds more than [`ADDED`] to a C program |
//!
//! A check that passes returns its finding in words. A check that fails returns the fault. `super::bad` tests each
//! check with an artefact that the check must reject.
//!
//! The disassembler is restricted to ARMv8.0-A, so that newer instructions become `<unknown>`. It needs symbols to find
//! the boundaries between functions, and between functions and data tables. So instructions are checked before
//! stripping.

use self::group::Header;
use super::library::Abi;
use super::target::Target;
use crate::files;
use crate::gpu::ptx;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Required, Version};
use lzma_rust2::LzmaReader;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

#[path = "../../../../kernels/src/cuda/group.rs"]
pub mod group;

/// Maximum size of a stripped binary in bytes.
pub const BINARY: u64 = 4_549_500;
/// Additional size of the tool for a board whose GPU has Tensor Cores, with the modules for them.
pub const TENSOR_CORES: u64 = 310_000;
/// Number of bytes that the verb backward may add to a tool.
pub const GRADIENTS: u64 = 150_000;
/// Largest number of bytes that the static library may add to a stripped C program.
pub const ADDED: u64 = 3_000_000;

/// Libraries that a program may need. A program may also need the loader, which [`libraries`] recognises by the start
/// of its name.
const LIBRARIES: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1"];
const LOADERS: [&str; 2] = ["ld-linux-aarch64.so", "ld-linux-x86-64.so"];

/// Result of a check: its finding in words, or the fault.
pub type Found = Result<String, String>;

type Elf<'a> = ElfFile64<'a, object::Endianness>;

fn parse(bytes: &[u8]) -> Result<Elf<'_>, String> {
    ElfFile64::parse(bytes).map_err(|error| format!("not a 64-bit ELF file: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refuse(bad: impl IntoIterator<Item = String>, allowed: &str) -> Result<(), String> {
    let bad: Vec<String> = bad.into_iter().collect();
    if bad.is_empty() { Ok(()) } else { Err(format!("{}; allowed: {allowed}", bad.join(", "))) }
}

/// Checks that the file is for the target's processor.
pub fn machine(bytes: &[u8], target: &Target) -> Found {
    let (found, wanted) = (parse(bytes)?.architecture(), target.architecture());
    if found == wanted { Ok(format!("{found:?}")) } else { Err(format!("{found:?}; allowed: {wanted:?}")) }
}

/// Checks that the file needs no symbol version of the C library above `glibc`, and no symbol version of another system
/// library.
pub fn symbol_versions(bytes: &[u8], glibc: Version) -> Found {
    let fault = |error: object::Error| format!("symbol versions: {error}");
    let file = parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut names = BTreeSet::new();
    if let Some((needs, link)) = sections.gnu_verneed(endian, bytes).map_err(fault)? {
        let strings = sections.strings(endian, bytes, link).map_err(fault)?;
        for need in needs {
            let (file, versions) = need.map_err(fault)?;
            // This project's own library is shipped together with the file, so its symbol versions are always
            // available.
            if text(file.file(endian, strings).map_err(fault)?).starts_with("libelsa.so.") {
                continue;
            }
            for version in versions {
                names.insert(text(version.map_err(fault)?.name(endian, strings).map_err(fault)?));
            }
        }
    }
    // Versions of the C library have up to three numbers. The third number is ignored, because it never decides a
    // comparison.
    let number = |name: &str| {
        let mut parts = name.strip_prefix("GLIBC_")?.splitn(3, '.');
        format!("{}.{}", parts.next()?, parts.next()?).parse::<Version>().ok()
    };
    let newest = names.iter().filter_map(|name| number(name)).max();
    let bad = names.iter().filter(|name| number(name).is_none_or(|version| version > glibc)).cloned();
    refuse(bad, &format!("GLIBC_ up to {glibc}"))?;
    newest
        .map(|version| format!("GLIBC_{version} at most"))
        .ok_or_else(|| "no symbol version is needed".to_owned())
}

/// Returns the strings of all entries with this tag in the file's dynamic section.
fn dynamic(bytes: &[u8], tag: i64) -> Result<BTreeSet<String>, String> {
    let fault = |error: object::Error| format!("dynamic section: {error}");
    let table = parse(bytes)?.elf_dynamic_table().map_err(fault)?;
    let names = table.iter().filter(|entry| entry.tag == tag);
    names.map(|entry| table.string(entry).map(text).map_err(fault)).collect()
}

/// Returns the names of the libraries that the loader must find for this file.
pub fn needed(bytes: &[u8]) -> Result<BTreeSet<String>, String> {
    dynamic(bytes, DT_NEEDED)
}

/// Checks that the file needs no libraries other than [`LIBRARIES`] and the loader.
pub fn libraries(bytes: &[u8]) -> Found {
    let names = needed(bytes)?;
    let known =
        |name: &str| LIBRARIES.contains(&name) || LOADERS.iter().any(|loader| name.starts_with(loader));
    refuse(names.iter().filter(|name| !known(name)).cloned(), &LIBRARIES.join(", "))?;
    Ok(names.into_iter().collect::<Vec<_>>().join(" "))
}

/// Checks that a shared library has the name `wanted`, under which dependent programs load it.
pub fn soname(bytes: &[u8], wanted: &str) -> Found {
    let names = dynamic(bytes, DT_SONAME)?;
    refuse(names.iter().filter(|name| *name != wanted).cloned(), wanted)?;
    names.into_iter().next().ok_or_else(|| format!("none; allowed: {wanted}"))
}

/// Checks that a program loads this project's shared library by its name `soname`, and that the program searches for
/// this library only in the folder of the program.
pub fn needs(bytes: &[u8], soname: &str) -> Found {
    let names = needed(bytes)?;
    let ours = names.iter().filter(|name| name.contains("elsa"));
    refuse(ours.filter(|name| *name != soname).cloned(), soname)?;
    let places = dynamic(bytes, DT_RUNPATH)?.into_iter().chain(dynamic(bytes, DT_RPATH)?);
    refuse(places.filter(|place| place != "$ORIGIN"), "$ORIGIN")?;
    if names.contains(soname) {
        Ok(soname.to_owned())
    } else {
        Err(format!("{}; allowed: {soname} among them", names.into_iter().collect::<Vec<_>>().join(" ")))
    }
}

/// Returns whether a name looks like a function of the driver: it begins with `cu` and a capital letter.
fn is_driver(name: &str) -> bool {
    name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Calls `each` with every object file of an archive.
fn members(bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
    let fault = |error: object::Error| format!("archive: {error}");
    for member in object::read::archive::ArchiveFile::parse(bytes).map_err(fault)?.members() {
        let data = member.map_err(fault)?.data(bytes).map_err(fault)?;
        // An archive also contains members that are not for the linker, such as Rust's metadata.
        if data.starts_with(&object::elf::ELFMAG) {
            each(data)?;
        }
    }
    Ok(())
}

/// Checks that no function of the driver is undefined. In a static library, a name is undefined if no member defines
/// it.
pub fn driver_symbols(bytes: &[u8]) -> Found {
    let (mut undefined, mut defined) = (BTreeSet::new(), BTreeSet::new());
    let mut add = |bytes: &[u8]| -> Result<(), String> {
        let file = parse(bytes)?;
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let name = text(symbol.name_bytes().unwrap_or_default());
            let set = if symbol.is_undefined() { &mut undefined } else { &mut defined };
            set.insert(name);
        }
        Ok(())
    };
    if bytes.starts_with(&object::archive::MAGIC) {
        members(bytes, add)?;
    } else {
        add(bytes)?;
    }
    let undefined: Vec<&String> = undefined.difference(&defined).collect();
    refuse(undefined.iter().filter(|name| is_driver(name)).map(|name| (*name).clone()), "no undefined cu…")?;
    if undefined.is_empty() {
        Err("no undefined symbol at all".to_owned())
    } else {
        Ok(format!("none of {}", undefined.len()))
    }
}

/// Checks that a library exports exactly the names `wanted`, which are the functions of the interface. `found` are the
/// names that it exports.
fn compare(found: &BTreeSet<String>, wanted: &BTreeSet<String>) -> Found {
    let (alien, absent) = (found.difference(wanted), wanted.difference(found));
    let bad = alien.cloned().chain(absent.map(|name| format!("no {name}")));
    refuse(bad, "the functions of elsa.map")?;
    Ok(format!("{} functions", found.len()))
}

/// Returns the names that a shared library exports, each with its version, which may be empty.
fn exported(bytes: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let fault = |error: object::Error| format!("exports: {error}");
    let file = parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let versions = sections.versions(endian, bytes).map_err(fault)?;
    let mut found = BTreeMap::new();
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global()) {
        let version = match &versions {
            Some(all) => all.version(all.version_index(endian, symbol.index())).map_err(fault)?,
            None => None,
        };
        let version = version.map_or_else(String::new, |version| text(version.name()));
        found.insert(text(symbol.name_bytes().map_err(fault)?), version);
    }
    Ok(found)
}

/// Returns the names that a shared library exports.
pub fn defined(bytes: &[u8]) -> Result<BTreeSet<String>, String> {
    Ok(exported(bytes)?.into_keys().collect())
}

/// Checks that a shared library exports exactly the functions of the interface, with the interface's symbol version.
pub fn exports(bytes: &[u8], abi: &Abi) -> Found {
    let shown = |(name, version): (String, String)| {
        if version.is_empty() { name } else { format!("{name}@{version}") }
    };
    let wanted = abi.functions.iter().map(|name| format!("{name}@{}", abi.node())).collect();
    compare(&exported(bytes)?.into_iter().map(shown).collect(), &wanted)
}

/// Checks that `function` is the only export of a library that host programs load by its path.
pub fn entry(bytes: &[u8], function: &str) -> Found {
    let found = defined(bytes)?;
    refuse(found.iter().filter(|name| *name != function).cloned(), function)?;
    if found.is_empty() { Err(format!("none; allowed: {function}")) } else { Ok(function.to_owned()) }
}

/// Checks that the global names in an archive are exactly the functions of the interface. A program that links the
/// archive gets all global names, and a plugin would export them.
pub fn globals(bytes: &[u8], abi: &Abi) -> Found {
    let mut found = BTreeSet::new();
    members(bytes, |bytes| {
        let symbols = parse(bytes)?;
        let given = symbols.symbols().filter(|symbol| symbol.is_definition() && !symbol.is_local());
        found.extend(given.map(|symbol| text(symbol.name_bytes().unwrap_or_default())));
        Ok(())
    })?;
    compare(&found, &abi.functions)
}

/// Checks that a file contains none of the paths `private` of this machine. A longer path that begins with one of these
/// paths is also refused.
pub fn paths(bytes: &[u8], private: &[String]) -> Found {
    let inside = |path: &str| {
        memchr::memmem::find_iter(bytes, path).find(|start| {
            let next = bytes.get(start + path.len()).copied().unwrap_or(0);
            !(next.is_ascii_alphanumeric() || b"_-.".contains(&next))
        })
    };
    let shown = |path: &String| {
        let start = inside(path)?;
        let rest = &bytes[start..bytes.len().min(start + 200)];
        let end = rest.iter().position(|byte| !byte.is_ascii_graphic()).unwrap_or(rest.len());
        Some(text(&rest[..end]))
    };
    refuse(private.iter().filter_map(shown).collect::<BTreeSet<_>>(), "no path of the machine that builds")?;
    if private.is_empty() {
        Err("no path to look for".to_owned())
    } else {
        Ok(format!("none of {}", private.len()))
    }
}

/// Patterns for the names of functions that may contain instructions beyond ARMv8.0-A.
pub struct Exceptions(Vec<String>);

impl Exceptions {
    /// Reads `targets/exceptions.txt`.
    pub fn read(tree: &Tree) -> Result<Exceptions, String> {
        let path = tree.root.join("targets/exceptions.txt");
        let text = files::text(&path)?;
        Exceptions::parse(&text)
    }

    fn parse(text: &str) -> Result<Exceptions, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pattern = |line: &str| {
            let (pattern, reason) = line.split_once(": ")?;
            (!pattern.is_empty() && !reason.trim().is_empty()).then(|| pattern.to_owned())
        };
        let wrong = |line: &str| format!("exceptions.txt: {line}; allowed: NAME: REASON");
        let patterns: Result<_, String> =
            lines.map(|line| pattern(line).ok_or_else(|| wrong(line))).collect();
        Ok(Exceptions(patterns?))
    }

    fn covers(&self, function: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, function))
    }
}

/// Returns whether `text` matches `pattern`. In the pattern, a star matches any string.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Reads llvm-objdump's listing. Returns the functions in which the listing marks an instruction as unknown, except the
/// functions in `exceptions`. Also returns the total number of instructions.
fn newer(listing: &str, exceptions: &Exceptions) -> (BTreeSet<String>, u64) {
    let (mut found, mut instructions, mut function) = (BTreeSet::new(), 0, "");
    for line in listing.lines() {
        if !line.starts_with(' ') {
            // `0000000000001000 <name>:`
            if let Some((_, name)) = line.split_once(" <") {
                function = name.strip_suffix(">:").unwrap_or(name);
            }
        } else if line.contains(":\t") || line.contains(": \t") || line.contains(":      \t") {
            instructions += 1;
            if line.trim_end().ends_with("<unknown>") && !exceptions.covers(function) {
                found.insert(function.to_owned());
            }
        }
    }
    (found, instructions)
}

/// Checks that a file with symbols contains no instructions beyond ARMv8.0-A, apart from the exceptions. The boards
/// share one build, so files with equal contents are checked only once.
pub fn instructions(tree: &Tree, path: &Path, exceptions: &Exceptions) -> Found {
    static SEEN: Mutex<Vec<(Vec<u8>, Found)>> = Mutex::new(Vec::new());
    let bytes = files::bytes(path)?;
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = seen.iter().find(|(known, _)| *known == bytes) {
        return found.clone();
    }
    let found = disassembled(tree, path, &bytes, exceptions);
    seen.push((bytes, found.clone()));
    found
}

fn disassembled(tree: &Tree, path: &Path, bytes: &[u8], exceptions: &Exceptions) -> Found {
    let symbols = |bytes: &[u8]| parse(bytes).map(|file| file.symbols().next().is_some());
    if !symbols(bytes)? {
        return Err("has no symbols; allowed: a file before stripping".to_owned());
    }
    let out = Run::new(tree, "")
        .arg(setup::llvm(tree)?.join("llvm-objdump"))
        .args("--disassemble --demangle --no-show-raw-insn --triple=aarch64-linux-gnu --mattr=+v8a")
        .arg(path)
        .quiet()
        .run();
    if !out.ok {
        return Err(format!("llvm-objdump: {}: {}", out.how, out.stderr.trim()));
    }
    let (found, instructions) = newer(&out.stdout, exceptions);
    let found = found.into_iter().map(|function| format!("newer instructions in {function}"));
    refuse(found, "ARMv8.0-A, and what targets/exceptions.txt names")?;
    if instructions == 0 { Err("no instructions at all".to_owned()) } else { Ok(format!("{instructions}")) }
}

/// A PTX module inside a file.
#[derive(Debug, PartialEq, Eq)]
struct Module {
    version: Version,
    /// Compute capability that the module targets: 6.2 for `sm_62`.
    target: Version,
    entries: Vec<String>,
}

/// Returns the text of a group, if `dictionary` is the text of its dictionary and the group is not damaged.
fn inflated(header: &Header, stream: &[u8], dictionary: &[u8]) -> Option<Vec<u8>> {
    let ([lc, lp, pb], window) = (group::PARAMETERS, group::window(dictionary.len(), header.text as usize));
    let length = u64::from(header.text);
    let mut text = Vec::new();
    LzmaReader::new(stream, length, lc, lp, pb, window, Some(dictionary))
        .and_then(|reader| reader.take(length).read_to_end(&mut text))
        .ok()?;
    (text.len() == header.text as usize && group::checksum(&text) == header.checksum).then_some(text)
}

/// Returns the texts of the groups of compressed PTX in `bytes` whose checksums are correct. The dictionary of a group
/// must be in `bytes` too.
fn unpacked(bytes: &[u8]) -> Vec<Vec<u8>> {
    let starts = memchr::memmem::find_iter(bytes, &group::MAGIC);
    let groups: Vec<_> = starts.filter_map(|start| Header::split(&bytes[start..])).collect();
    let (mut texts, mut others) = (Vec::new(), Vec::new());
    for (header, stream) in groups {
        match inflated(&header, stream, &[]) {
            Some(text) => texts.push(text),
            None => others.push((header, stream)),
        }
    }
    let find = |(header, stream): &(Header, &[u8])| {
        texts.iter().find_map(|dictionary| inflated(header, stream, dictionary))
    };
    let found: Vec<_> = others.iter().filter_map(find).collect();
    texts.extend(found);
    texts
}

/// Returns the compressed and the uncompressed PTX modules in the bytes of a file.
fn modules(bytes: &[u8]) -> Result<Vec<Module>, String> {
    let mut modules = plain(bytes)?;
    for text in unpacked(bytes) {
        modules.extend(plain(&text)?);
    }
    Ok(modules)
}

/// Returns the uncompressed PTX modules in `bytes`. Each begins with the directives `.version` and `.target`.
fn plain(bytes: &[u8]) -> Result<Vec<Module>, String> {
    let starts: Vec<usize> = memchr::memmem::find_iter(bytes, b".version ").collect();
    let mut modules = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(bytes.len());
        let part = &bytes[start..end];
        let part = text(&part[..memchr::memchr(0, part).unwrap_or(part.len())]);
        let mut words = part.split_whitespace().skip(1);
        let Some(Ok(version)) = words.next().map(str::parse::<Version>) else { continue };
        let target = match (words.next(), words.next()) {
            (Some(".target"), Some(name)) => {
                name.trim_end_matches(',').strip_prefix("sm_").and_then(capability)
            }
            _ => None,
        };
        let target =
            target.ok_or_else(|| format!("a PTX module of version {version} names no .target sm_NN"))?;
        let name = |after: &str| {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'));
            after[..end.unwrap_or(after.len())].to_owned()
        };
        let entries = part.split(".entry ").skip(1).map(|after| name(after.trim_start())).collect();
        modules.push(Module { version, target, entries });
    }
    Ok(modules)
}

/// Parses a compute capability without a dot: `62` is 6.2, and `100` is 10.0.
fn capability(digits: &str) -> Option<Version> {
    let number: u32 = digits.parse().ok()?;
    Some(Version { major: number / 10, minor: number % 10 })
}

/// Checks that no PTX module in a file needs a newer PTX ISA than `newest`, and that all required kernels run on `gpu`.
pub fn ptx(bytes: &[u8], newest: Option<Version>, gpu: Option<Version>, required: &[Required]) -> Found {
    let modules = modules(bytes)?;
    let isa = ptx::newest_isa(gpu.map_or(u32::MAX, |gpu| gpu.major * 10 + gpu.minor));
    let newest = newest.unwrap_or(Version { major: isa / 10, minor: isa % 10 });
    let late = modules.iter().filter(|module| module.version > newest);
    refuse(late.map(|module| format!("PTX of version {}", module.version)), &format!("up to {newest}"))?;
    let runs = |module: &&Module| gpu.is_none_or(|gpu| module.target <= gpu);
    let entries: BTreeSet<&str> =
        modules.iter().filter(runs).flat_map(|module| module.entries.iter().map(String::as_str)).collect();
    let absent = required.iter().filter_map(|required| match required {
        Required::Gpu(name) if !entries.contains(name.as_str()) => Some(name.clone()),
        _ => None,
    });
    let gpu = gpu.map_or_else(|| "any GPU".to_owned(), |gpu| format!("a GPU of capability {gpu}"));
    refuse(absent.map(|name| format!("no PTX of {name} for {gpu}")), "every kernel of required.txt")?;
    Ok(format!("{} modules, {} kernels for {gpu}", modules.len(), entries.len()))
}

/// Checks that the file contains the unchanged bytes of every GPU kernel that was assembled for the board.
pub fn cubins(bytes: &[u8], cubins: &[Vec<u8>]) -> Found {
    let found = cubins.iter().filter(|cubin| memchr::memmem::find(bytes, cubin).is_some()).count();
    let told = format!("{found} of {}", cubins.len());
    if found == cubins.len() { Ok(told) } else { Err(format!("{told} are in the file; allowed: all")) }
}

/// Checks that a stripped file of `bytes` bytes is no larger than `most`.
pub fn size(bytes: u64, most: u64) -> Found {
    if bytes <= most { Ok(format!("{bytes} bytes")) } else { Err(format!("{bytes} bytes; allowed: {most}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boards::bad::compressed;

    #[test]
    fn unknown_encodings_are_charged_to_their_function() {
        let listing = "\nx:\tfile format elf64-littleaarch64\n\nDisassembly of section .text:\n\n\
            0000000000001000 <a::b(int)>:\n    1000:      \tret\n    1004:      \t<unknown>\n\n\
            0000000000001008 <__aarch64_cas4_acq>:\n    1008:      \t<unknown>\n";
        let none = Exceptions::parse("").unwrap();
        let (found, instructions) = newer(listing, &none);
        assert_eq!((found.len(), instructions), (2, 3));
        let some = Exceptions::parse("# why\n__aarch64_*: outlined\n").unwrap();
        assert_eq!(newer(listing, &some).0.into_iter().collect::<Vec<_>>(), ["a::b(int)"]);
        assert!(Exceptions::parse("__aarch64_*").is_err() && Exceptions::parse("x: ").is_err());
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("a*", "a") && matches("a*c", "abc") && matches("a<*>::b*", "a<x, y>::b(int)"));
        assert!(!matches("a", "ab") && !matches("a*c", "abcd") && !matches("b*", "ab"));
    }

    #[test]
    fn modules_are_found_between_other_bytes() {
        let module = |version: &str, target: &str, name: &str| {
            format!(
                "//\n.version {version}\n.target {target}\n.address_size 64\n.visible .entry {name}(\n\t.param\n)\0"
            )
        };
        let text = format!(
            "\u{1}.version of it\0{}\u{7}{}",
            module("6.5", "sm_62", "a"),
            module("6.4", "sm_53", "b")
        );
        let found = modules(text.as_bytes()).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].entries, ["a"]);
        assert_eq!((found[1].version.minor, found[1].target.major), (4, 5));
        let gpu = |name: &str| [Required::Gpu(name.to_owned())];
        let (old, tx2) = (Some("5.3".parse().unwrap()), Some("6.2".parse().unwrap()));
        assert!(ptx(text.as_bytes(), None, tx2, &gpu("a")).is_ok());
        assert!(ptx(text.as_bytes(), None, tx2, &gpu("c")).unwrap_err().contains("no PTX of c"));
        assert!(ptx(text.as_bytes(), None, old, &gpu("a")).unwrap_err().contains("no PTX of a"));
        assert!(ptx(text.as_bytes(), None, old, &gpu("b")).is_ok());
        assert!(ptx(module("7.0", "sm_62", "a").as_bytes(), None, tx2, &[]).unwrap_err().contains("7.0"));
        assert!(modules(b".version 6.5\n.address_size 64\0").is_err());
    }

    #[test]
    fn compressed_modules_are_found_whole() {
        // The body is long enough to be worth compressing.
        let body = "ret;\n".repeat(100);
        let module = format!(".version 6.5\n.target sm_62\n.visible .entry a()\n{{\n{body}}}\n\0");
        let group =
            |text: &str, dictionary: &str| compressed(text.as_bytes(), dictionary.as_bytes()).unwrap();
        let first = group(&module, "");
        assert!(first.len() < module.len() / 3);
        let before = b"ELSA-PTX of it";
        let file = [&before[..], &first, b"ELSA-PTX"].concat();
        let found = modules(&file).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].entries, ["a"]);
        assert_eq!(modules(&[&first[..], &first].concat()).unwrap().len(), 2);
        // The last bytes of a stream do not affect its text.
        for at in 0..first.len() - 5 {
            let mut file = file.clone();
            file[before.len() + at] ^= 1;
            assert_eq!(modules(&file).unwrap(), [], "{at}");
        }
        // A group whose dictionary comes later in the file.
        let other = module.replace("a()", "b()");
        let second = group(&other, &module);
        assert!(second.len() < first.len() && modules(&second).unwrap().is_empty());
        let found = modules(&[&second[..], &first].concat()).unwrap();
        assert_eq!(found.iter().map(|module| &module.entries[0][..]).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn cubins_are_looked_for_whole() {
        let cubins = [b"abc".to_vec(), b"de".to_vec()];
        assert_eq!(super::cubins(b"..abc.de", &cubins).as_deref(), Ok("2 of 2"));
        assert!(super::cubins(b"..abc.d", &cubins).unwrap_err().contains("1 of 2"));
    }

    #[test]
    fn driver_functions_are_told_by_their_names() {
        assert!(is_driver("cuInit") && is_driver("cuMemAlloc_v2"));
        assert!(
            !is_driver("cubic") && !is_driver("current") && !is_driver("elsa_cuInit") && !is_driver("cu")
        );
    }
}
