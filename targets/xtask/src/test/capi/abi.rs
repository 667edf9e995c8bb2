//! `cargo xtask abi`, and a part of the stage `arm`: the list of everything that programs have compiled into them: functions, constants, and the layout of every struct.
//!
//! `runtime/capi/abi.txt` is the list of `elsa.h` as it stands, one fact a line; `--write` writes it. Every
//! folder `tests/capi/abi-MAJOR.MINOR` holds the header and the list of a release; `--release` makes the one of
//! the header's numbers. Whatever a release of the same major number lists is listed for ever: structs that begin with
//! their size may grow at their end, and nothing else may change.

use super::header::Header;
use super::programs::{Compilers, WARNINGS};
use crate::boards::library::Abi;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The header.
pub const HEADER: &str = "runtime/capi/include/elsa.h";
const LIST: &str = "runtime/capi/abi.txt";
/// Where the least sizes are declared.
pub const LEAST: &str = "runtime/capi/src/growing.rs";
const RELEASES: &str = "tests/capi";
const OPENING: &str = "\
# The ABI of elsa.h on 64-bit Linux, the same on x86-64 and AArch64. One fact a line:
#   constant NAME VALUE
#   number NAME TYPE
#   callback DECLARATION
#   struct NAME ALIGNMENT; growing where it begins with its size, otherwise frozen
#   bytes NAME SIZE; that of a growing struct rises
#   least NAME SIZE: the smallest that a caller may set; it never rises
#   field STRUCT OFFSET SIZE DECLARATION
#   function DECLARATION
#   symbol NAME VERSION, of the shared library
# cargo xtask abi --write writes it.
";

/// What is written.
#[derive(Clone, Copy, Default, clap::Args)]
pub struct Write {
    /// Write the list of the header as it is.
    #[arg(long)]
    write: bool,
    /// Make the folder of a release with the numbers of the header.
    #[arg(long)]
    release: bool,
}

/// `cargo xtask abi`.
pub fn run(tree: &Tree, write: Write) -> Result<(), String> {
    let ran = Ran::of("checks", |ran| check(tree, ran, write));
    if ran.faults.is_empty() { Ok(()) } else { Err(ran.faults.join("\n       ")) }
}

/// Compares the list of the header with the committed one and with those of the releases.
pub fn check(tree: &Tree, ran: &mut Ran, write: Write) -> Result<(), String> {
    let home = super::programs::home(tree, "abi")?;
    let text = read(&tree.root.join(HEADER))?;
    let header = Header::parse(&text)?;
    let versions = Abi::read(tree)?.functions;
    let source = program(&header, &read(&tree.root.join(LEAST))?, &versions)?;
    let lists = measured(tree, &source, &home)?;
    let list = format!("{OPENING}{}", lists.host);
    ran.note(
        "the ABI of both architectures",
        differences(&lists.host, &lists.board, "x86-64 and AArch64 differ"),
    );
    ran.note("structs that grow", gapless(&list));

    let (major, minor) = (number(&list, "ELSA_ABI_MAJOR")?, number(&list, "ELSA_ABI_MINOR")?);
    let path = tree.root.join(LIST);
    if write.write {
        fs::write(&path, &list).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if write.release {
        let folder = tree.root.join(RELEASES).join(format!("abi-{major}.{minor}"));
        let make = || {
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("elsa.h"), &text)?;
            fs::write(folder.join("abi.txt"), &list)
        };
        make().map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let advice = format!("{LIST}: not the list of {HEADER}; cargo xtask abi --write writes it");
    ran.note("the committed list", differences(&read(&path)?, &list, &advice));
    for release in releases(tree)?.iter().filter(|release| release.major == major) {
        let name = format!("additions since {release}");
        let released = read(&release.folder.join("abi.txt"))?;
        ran.note(&name, additions(&released, &list, release.minor == minor));
    }
    Ok(())
}

/// The text of a file.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What is kept of a released ABI.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// `ELSA_ABI_MAJOR`.
    pub major: u64,
    /// `ELSA_ABI_MINOR`.
    pub minor: u64,
    /// The folder with its header, its list and its client.
    pub folder: PathBuf,
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ABI {}.{}", self.major, self.minor)
    }
}

/// The releases, in order.
pub fn releases(tree: &Tree) -> Result<Vec<Release>, String> {
    let dir = tree.root.join(RELEASES);
    let fault = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut releases = Vec::new();
    for entry in fs::read_dir(&dir).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let release = name.strip_prefix("abi-").and_then(|name| {
            let (major, minor) = name.split_once('.')?;
            Some(Release { major: major.parse().ok()?, minor: minor.parse().ok()?, folder: path })
        });
        releases.extend(release);
    }
    releases.sort();
    Ok(releases)
}

/// The lists of both architectures.
struct Lists {
    host: String,
    board: String,
}

/// Has the compilers of this machine and of the boards tell the list.
fn measured(tree: &Tree, source: &str, home: &Path) -> Result<Lists, String> {
    let boards = Compilers::boards(tree)?;
    let file = home.join("abi.c");
    fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let compile = |compiler: &str, program: &Path| {
        let run = Run::new(tree, compiler).args(&format!("-std=c11 {WARNINGS} -I runtime/capi/include -o"));
        run.arg(program).arg(&file).run().text("the list of the ABI, compiling")
    };
    let (host, board) = (home.join("abi-host"), home.join("abi-board"));
    compile(&Compilers::gcc().c, &host)?;
    compile(&boards.c, &board)?;
    let tell = |run: Run, program: &Path| run.arg(program).quiet().run().text("the list of the ABI");
    Ok(Lists {
        host: tell(Run::new(tree, ""), &host)?,
        board: tell(Run::new(tree, &setup::emulator()), &board)?,
    })
}

/// A program that prints the list of a header, as its compiler sees it.
fn program(header: &Header, growing: &str, versions: &BTreeMap<String, String>) -> Result<String, String> {
    let mut lines = Vec::new();
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    // The version rises with every release, whatever the ABI does.
    for name in header.constants.iter().filter(|name| !name.starts_with("ELSA_VERSION_")) {
        lines.push(format!("printf(\"constant {name} %lld\\n\", (long long)({name}));"));
    }
    for (name, of) in &header.numbers {
        lines.push(format!("puts(\"number {name} {of}\");"));
    }
    for callback in &header.callbacks {
        lines.push(format!("puts(\"callback {}\");", quoted(callback)));
    }
    let least = least(growing)?;
    for of in &header.structs {
        let name = &of.name;
        let kind = if of.grows() { "growing" } else { "frozen" };
        lines.push(format!("printf(\"struct {name} %zu {kind}\\n\", _Alignof({name}));"));
        lines.push(format!("printf(\"bytes {name} %zu\\n\", sizeof({name}));"));
        match (of.grows(), least.iter().find(|(known, _)| known == name)) {
            (true, Some((_, bytes))) => lines.push(format!("printf(\"least {name} %zu\\n\", {bytes});")),
            (true, None) => {
                return Err(format!("{name}: begins with its size, and {LEAST} does not list it"));
            }
            (false, Some(_)) => {
                return Err(format!("{name}: {LEAST} lists it, and it does not begin with its size"));
            }
            (false, None) => {}
        }
        for field in &of.fields {
            let text = quoted(&field.declaration);
            let place = format!("offsetof({name}, {})", field.name);
            let bytes = format!("sizeof((({name} *)0)->{})", field.name);
            lines.push(format!("printf(\"field {name} %zu %zu {text}\\n\", {place}, {bytes});"));
        }
    }
    for (_, function) in &header.functions {
        lines.push(format!("puts(\"function {}\");", quoted(function)));
    }
    lines.extend(versions.iter().map(|(name, node)| format!("puts(\"symbol {name} {node}\");")));
    let body = lines.join("\n    ");
    Ok(format!(
        "#include \"elsa.h\"\n\n#include <stdio.h>\n\nint main(void) {{\n    {body}\n    return 0;\n}}\n"
    ))
}

/// Structs that grow with their least sizes as C writes them, from the list in the library's source.
pub fn least(growing: &str) -> Result<Vec<(String, String)>, String> {
    let (_, list) = growing.split_once("\ngrowing! {\n").ok_or_else(|| format!("{LEAST}: no list"))?;
    let (list, _) = list.split_once('}').ok_or_else(|| format!("{LEAST}: no end of the list"))?;
    let entry = |line: &str| {
        let (name, size) = line.trim().strip_suffix(';')?.split_once(", ")?;
        let field = size.strip_prefix("offset_of!").map(|place| format!("offsetof{place}"));
        let whole = || size.strip_prefix("size_of::<")?.strip_suffix(">()").map(|of| format!("sizeof({of})"));
        Some((name.to_owned(), field.or_else(whole)?))
    };
    let wrong = |line: &str| {
        format!("{LEAST}: {line}; allowed: NAME, offset_of!(NAME, FIELD); or size_of::<NAME>();")
    };
    list.lines().map(|line| entry(line).ok_or_else(|| wrong(line))).collect()
}

/// The facts of a list.
fn facts(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// The number at the end of the fact about a constant.
fn number(list: &str, name: &str) -> Result<u64, String> {
    let start = format!("constant {name} ");
    let value = facts(list).find_map(|fact| fact.strip_prefix(&start)?.parse().ok());
    value.ok_or_else(|| format!("{name}: not in {HEADER}"))
}

/// The number of facts, where two lists have the same ones; otherwise the facts that only one of them has.
fn differences(old: &str, new: &str, what: &str) -> Result<String, String> {
    let only = |a: &str, b: &str, sign: &str| {
        let there: Vec<&str> = facts(b).collect();
        facts(a)
            .filter(|fact| !there.contains(fact))
            .map(|fact| format!("\n  {sign} {fact}"))
            .collect::<String>()
    };
    let found = only(old, new, "-") + &only(new, old, "+");
    if found.is_empty() { Ok(format!("{} facts", facts(new).count())) } else { Err(format!("{what}{found}")) }
}

/// That the fields of structs that grow follow each other without a gap, and end with the struct: a byte that belongs
/// to no field could hold anything, and a longer struct must be zero where an older one ends.
fn gapless(list: &str) -> Result<String, String> {
    let mut count = 0;
    for fact in facts(list) {
        let Some(name) = fact.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" growing")) else {
            continue;
        };
        let name = name.split(' ').next().unwrap_or_default();
        let mut end = 0;
        let start = format!("field {name} ");
        for field in facts(list).filter_map(|fact| fact.strip_prefix(&start)) {
            let mut words = field.splitn(3, ' ');
            let mut next = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(offset), Some(bytes)) = (next(), next()) else { return Err(format!("{start}{field}")) };
            if offset != end {
                return Err(format!(
                    "{start}{field}: {} bytes of padding before it; allowed: none",
                    offset - end
                ));
            }
            end = offset + bytes;
        }
        if !facts(list).any(|fact| fact == format!("bytes {name} {end}")) {
            return Err(format!("{name}: padding after byte {end}; allowed: none"));
        }
        count += 1;
    }
    if count == 0 { Err("no struct grows".to_owned()) } else { Ok(format!("{count} without padding")) }
}

/// What a fact is about: the part of it that stays when it changes.
fn subject(fact: &str) -> &str {
    let end = if fact.starts_with("function ") || fact.starts_with("callback ") {
        fact.rfind('(')
    } else {
        let words = if fact.starts_with("field ") { 3 } else { 2 };
        fact.match_indices(' ').nth(words - 1).map(|(at, _)| at)
    };
    end.map_or(fact, |end| &fact[..end])
}

/// That a list only adds to that of a release; where it bears the release's own minor number, that it adds nothing.
fn additions(released: &str, list: &str, same_minor: bool) -> Result<String, String> {
    let major = "a change that is not an addition breaks programs that were compiled before: undo it, or raise ELSA_ABI_MAJOR";
    let value =
        |fact: &str| fact.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
    for old in facts(released) {
        // What may differ: the minor number, the size of a struct that grows, and what may be left out of it.
        let subject = subject(old);
        let now = || facts(list).find(|fact| self::subject(fact) == subject);
        let name = subject.split(' ').nth(1).unwrap_or_default();
        let grows = || {
            facts(list).any(|fact| fact.starts_with(&format!("struct {name} ")) && fact.ends_with(" growing"))
        };
        let kept = if subject == "constant ELSA_ABI_MINOR" {
            now().is_some()
        } else if subject.starts_with("bytes ") && grows() {
            now().is_some_and(|now| value(now) >= value(old))
        } else if subject.starts_with("least ") {
            now().is_some_and(|now| value(now) <= value(old))
        } else {
            facts(list).any(|fact| fact == old)
        };
        if !kept {
            let now = now().map_or("gone".to_owned(), |now| format!("now {now}"));
            return Err(format!("{old}: {now}; {major}"));
        }
    }
    let new: Vec<&str> = facts(list).filter(|fact| !facts(released).any(|old| old == *fact)).collect();
    match new.first() {
        Some(fact) if same_minor => Err(format!("{fact}: an addition; raise ELSA_ABI_MINOR")),
        _ => Ok(format!("{} facts kept, {} added or grown", facts(released).count(), new.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASED: &str = "# A list.\nconstant ELSA_ABI_MINOR 0\nconstant ELSA_MOST 4\nstruct elsa_a 8 growing\n\
        bytes elsa_a 24\nleast elsa_a 16\nfield elsa_a 0 8 size_t size\nfield elsa_a 8 4 uint32_t x\n\
        field elsa_a 12 4 uint32_t y\nfield elsa_a 16 8 size_t z\nfunction void elsa_f(int)\nfunction void elsa_g(void)\n";

    #[test]
    fn an_addition_is_told_from_a_change() {
        let with = |from: &str, to: &str| {
            assert!(RELEASED.contains(from), "{from}");
            RELEASED.replace(from, to)
        };
        assert!(additions(RELEASED, RELEASED, true).is_ok());
        let swapped = with("8 4 uint32_t x", "8 4 uint32_t w").replace("12 4 uint32_t y", "12 4 uint32_t x");
        let broken = [
            swapped,
            with("function void elsa_g(void)\n", ""),
            with("elsa_f(int)", "elsa_f(long)"),
            with("ELSA_MOST 4", "ELSA_MOST 5"),
            with("least elsa_a 16", "least elsa_a 24"),
            with("bytes elsa_a 24", "bytes elsa_a 16"),
            with("uint32_t y", "int32_t y"),
        ];
        for list in broken {
            let fault = additions(RELEASED, &list, false).unwrap_err();
            assert!(fault.contains("raise ELSA_ABI_MAJOR"), "{fault}");
        }
        let grown = with("bytes elsa_a 24", "bytes elsa_a 32") + "field elsa_a 24 8 size_t news\n";
        assert!(additions(RELEASED, &grown.replace("MINOR 0", "MINOR 1"), false).is_ok());
        assert!(additions(RELEASED, &grown, true).unwrap_err().contains("raise ELSA_ABI_MINOR"));
        assert!(additions(RELEASED, &with("least elsa_a 16", "least elsa_a 8"), false).is_ok());
        // A struct without a size does not grow.
        let frozen = RELEASED.replace(" growing", " frozen");
        assert!(additions(&frozen, &grown.replace(" growing", " frozen"), false).is_err());
    }

    #[test]
    fn padding_is_found() {
        assert!(gapless(RELEASED).is_ok());
        assert!(gapless(&RELEASED.replace("field elsa_a 12 4 uint32_t y\n", "")).is_err());
        assert!(gapless(&RELEASED.replace("bytes elsa_a 24", "bytes elsa_a 32")).is_err());
        assert!(gapless("struct elsa_a 8 frozen\n").is_err());
    }

    #[test]
    fn least_sizes_are_read_from_the_source() {
        let text = "x\ngrowing! {\n    elsa_a, offset_of!(elsa_a, y);\n    elsa_b, size_of::<elsa_b>();\n}\n";
        let read = least(text).unwrap();
        assert_eq!(read[0], ("elsa_a".to_owned(), "offsetof(elsa_a, y)".to_owned()));
        assert_eq!(read[1].1, "sizeof(elsa_b)");
        assert!(least("nothing").is_err());
        assert!(least(&text.replace("size_of::<elsa_b>()", "24")).is_err());
    }
}
