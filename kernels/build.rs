//! Generates the table of GPU modules. It contains compressed PTX, and optionally cubins, which are already assembled.
//!
//! The PTX of `ptx/sm_53` and `ptx/sm_80` is compressed, because its text would otherwise be half of a program's size. Before
//! compression the text is packed as the module `registers` describes. Several modules are compressed together as a
//! `group`, because they have much text in common. The first group is the dictionary of all others.
//!
//! The environment variable `ELSA_CUBIN_DIR` names a folder of `NAME.cubin` files that are assembled for the GPU of the
//! target board. These files are added to the table. If the variable is unset or empty, the table contains only PTX.
//! Without the feature `cuda` there is no table. With `--cfg elsa_without="sm80"` the table has no module for Tensor Cores, for boards
//! whose GPU has none.

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(elsa_without, values(\"sm80\"))");
    match modules::write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("cargo::error={fault}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod modules {
    /// Does nothing, because without the feature `cuda` there is no table.
    pub fn write() -> Result<(), String> {
        Ok(())
    }
}

#[cfg(feature = "cuda")]
#[allow(dead_code, reason = "this script only writes groups")]
#[path = "src/cuda/group.rs"]
mod group;

#[cfg(feature = "cuda")]
#[path = "src/cuda/registers.rs"]
mod registers;

#[cfg(feature = "cuda")]
mod modules {
    use super::{group, registers};
    use lzma_rust2::{LzmaOptions, LzmaWriter};
    use std::collections::HashMap;
    use std::env;
    use std::fmt::Write as _;
    use std::fs;
    use std::io::{self, Write as _};
    use std::path::{Path, PathBuf};

    const CUBINS: &str = "ELSA_CUBIN_DIR";
    /// Compression level: the highest one.
    const LEVEL: u32 = 9;
    /// Modules of the dictionary: attention in three variants and one linear rule. Loading any other module decompresses
    /// them too. A fifth module would make the groups 1 % smaller.
    const DICTIONARY: &[&str] = &[
        "attention_f32_d32_q32k64__sm53_exp2_approx",
        "attention_f32_d256_q32k64__sm53_exp2_approx_within",
        "attention_f16_d64_q64k64__sm53_exp2_approx_half2_c16",
        "linear_walk_head_d128__sm53",
    ];
    /// Value of [`DICTIONARY`] for a debug build: a short module, because the tests load modules a few hundred times.
    const DICTIONARY_IN_DEBUG: &[&str] = &["merge_f32_s4__sm53"];
    /// Largest total size in bytes of packed modules that are compressed together. Loading one module decompresses its
    /// group.
    const TOGETHER: usize = 500_000;
    /// Value of [`TOGETHER`] for a debug build. Smaller groups compress less well, but load faster, and the tests load
    /// modules a few hundred times.
    const TOGETHER_IN_DEBUG: usize = 100_000;

    /// Folders of modules, each with its [`Target`] as a Rust expression.
    const FIRST: (&str, &str) = ("ptx/sm_53", "Target { capability: (5, 3), level: None }");
    const TENSOR: (&str, &str) = ("ptx/sm_80", "Target { capability: (8, 0), level: Some(1) }");
    /// [`Target`] of modules of the second folder whose names end like this.
    const HALVES: (&str, &str) = ("_halves", "Target { capability: (8, 0), level: None }");

    /// Writes the groups of compressed modules, and the table as a Rust expression.
    pub fn write() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed={CUBINS}");
        let out = PathBuf::from(variable("OUT_DIR")?);
        let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let without = env::var("CARGO_CFG_ELSA_WITHOUT").is_ok_and(|all| all.split(',').any(|x| x == "sm80"));
        let (together, dictionary) = match variable("PROFILE")?.to_str() {
            Some("debug") => (TOGETHER_IN_DEBUG, DICTIONARY_IN_DEBUG),
            _ => (TOGETHER, DICTIONARY),
        };
        let cubins = env::var_os(CUBINS).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let cubins = match &cubins {
            Some(folder) => files(folder, "cubin").map_err(|fault| format!("{CUBINS}: {fault}"))?,
            None => Vec::new(),
        };
        // `table` will contain the table of modules, and `groups` a static for each group of modules that are
        // compressed together.
        let (mut table, mut groups) = (String::new(), String::new());
        let (mut group, mut number) = (Vec::new(), 0);
        // The text of the dictionary, once its group is complete.
        let mut first = Vec::new();
        let mut paths = Vec::new();
        for (folder, target) in [FIRST].into_iter().chain((!without).then_some(TENSOR)) {
            paths.extend(files(&root.join(folder), "ptx")?.into_iter().map(|path| (path, target)));
        }
        let place = |(path, _): &(PathBuf, &str)| {
            let is_name = |name: &&str| path.file_stem().is_some_and(|stem| stem == *name);
            dictionary.iter().position(is_name).unwrap_or(dictionary.len())
        };
        paths.sort_by_key(place);
        if let Some(missing) =
            dictionary.iter().zip(&paths).find(|(name, (path, _))| path.file_stem() != Some(name.as_ref()))
        {
            return Err(format!("{}: no PTX; allowed: names in {}", missing.0, FIRST.0));
        }
        for (_, target) in paths.iter_mut().filter(|(path, _)| stem_ends(path, HALVES.0)) {
            *target = HALVES.1;
        }
        for (at, (path, target)) in paths.iter().enumerate() {
            let fault = |error| format!("{}: {error}", path.display());
            let mut text = fs::read_to_string(path).map_err(fault)?;
            let version = text.lines().find_map(|line| line.strip_prefix(".version "));
            let isa = version.ok_or_else(|| format!("{}: no .version", path.display()))?.trim().to_owned();
            text.push('\0');
            let name = path.file_stem().unwrap_or_default();
            let cubin = cubins.iter().find(|cubin| cubin.file_stem() == Some(name));
            let cubin = cubin.map_or("None".to_owned(), |path| format!("Some(include_bytes!({path:?}))"));
            let fault = |fault| format!("{}: {fault}", path.display());
            let text = renumbered(text.as_bytes()).map_err(fault)?;
            let packed = packed(&text).map_err(fault)?;
            let is_full = !group.is_empty() && group.len() + packed.len() > together;
            if at == dictionary.len() || (at > dictionary.len() && is_full) {
                groups += &store(&out, number, &group, &first)?;
                if number == 0 {
                    first.clone_from(&group);
                }
                group.clear();
                number += 1;
            }
            let known = if number == 0 { "[]" } else { "GROUP_0" };
            writeln!(
                table,
                "Module {{ name: {:?}, ptx: Ptx {{ isa: {isa:?}, target: {target}, bytes: {}, group: &GROUP_{number}, \
                 dictionary: &{known}, start: {}, packed: {} }}, cubin: {cubin} }},",
                name.to_string_lossy(),
                text.len(),
                group.len(),
                packed.len(),
            )
            .map_err(|error| error.to_string())?;
            group.extend(packed);
        }
        groups += &store(&out, number, &group, &first)?;
        let path = out.join("modules.rs");
        fs::write(&path, format!("{{\n{groups}&[\n{table}]\n}}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn stem_ends(path: &Path, ending: &str) -> bool {
        path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with(ending))
    }

    /// Renumbers the registers of each class in the order of their first appearance.
    fn renumbered(text: &[u8]) -> Result<Vec<u8>, String> {
        let mut numbers = registers::CLASSES.map(|_| HashMap::new());
        let number = |class: usize, old: Option<u32>| {
            let old = old.ok_or("a register without a number; allowed: a letter and a number")?;
            let numbers = &mut numbers[class];
            let next = numbers.len() as u32;
            Ok::<_, &str>(Some(*numbers.entry(old).or_insert(next)))
        };
        rewritten(text, number)
    }

    /// Packs a text by replacing the number of each register by its position among the recently used registers. The
    /// registers must be numbered in the order of their first appearance.
    fn packed(text: &[u8]) -> Result<Vec<u8>, String> {
        // The registers of each class, with the most recently named register last.
        let mut recent = registers::CLASSES.map(|_| Vec::new());
        let place = |class: usize, number: Option<u32>| {
            let recent = &mut recent[class];
            let place = recent.iter().rev().position(|known| *known == number);
            if let Some(place) = place {
                recent.remove(recent.len() - 1 - place);
            }
            recent.push(number);
            Ok::<_, &str>(place.map(|place| place as u32))
        };
        rewritten(text, place)
    }

    fn rewritten<'a>(
        text: &[u8],
        number: impl FnMut(usize, Option<u32>) -> Result<Option<u32>, &'a str>,
    ) -> Result<Vec<u8>, String> {
        let mut new = Vec::new();
        registers::rewrite(text, number, |piece| new.extend_from_slice(piece))?;
        Ok(new)
    }

    /// Compresses a group of modules to a file, and returns the Rust code of a static that includes the file.
    fn store(out: &Path, number: usize, text: &[u8], dictionary: &[u8]) -> Result<String, String> {
        let path = out.join(format!("group_{number}.lzma"));
        let fault = |error| format!("{}: {error}", path.display());
        let bytes = compress(text, dictionary).map_err(fault)?;
        fs::write(&path, &bytes).map_err(fault)?;
        Ok(format!("static GROUP_{number}: [u8; {}] = *include_bytes!({path:?});\n", bytes.len()))
    }

    /// Compresses a text to a group.
    fn compress(text: &[u8], dictionary: &[u8]) -> io::Result<Vec<u8>> {
        let mut options = LzmaOptions::with_preset(LEVEL);
        [options.lc, options.lp, options.pb] = group::PARAMETERS;
        options.dict_size = group::window(dictionary.len(), text.len());
        options.preset_dict = Some(dictionary.to_vec());
        let mut writer = LzmaWriter::new_no_header(Vec::new(), &options, false)?;
        writer.write_all(text)?;
        let stream = writer.finish()?;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
        let (stream_len, text_len) = (length(&stream)?, length(text)?);
        let header = group::Header { stream: stream_len, text: text_len, checksum: group::checksum(text) };
        Ok([&header.bytes()[..], &stream].concat())
    }

    fn variable(name: &str) -> Result<std::ffi::OsString, String> {
        env::var_os(name).ok_or_else(|| format!("{name}: not set; allowed: as cargo sets it"))
    }

    /// Returns the sorted paths of the files in `folder` whose names end in `.{ending}`. Returns an error if there is
    /// no such file.
    fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
        println!("cargo::rerun-if-changed={}", folder.display());
        let fault = |error| format!("{}: {error}", folder.display());
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(fault)? {
            paths.push(entry.map_err(fault)?.path().canonicalize().map_err(fault)?);
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == ending));
        paths.sort();
        if paths.is_empty() {
            return Err(format!("no .{ending} in {}; allowed: a folder of NAME.{ending}", folder.display()));
        }
        Ok(paths)
    }
}
