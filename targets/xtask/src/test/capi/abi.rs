//! `cargo xtask abi`, also a part of the stage `arm`: lists the parts of `elsa.h` that are compiled into programs (functions,
//! constants, and the layout of every struct). The list is compared with `runtime/capi/abi.txt`, which has one fact per line.
//! `--write` writes that file.

use super::header::Header;
use super::programs::{Compilers, WARNINGS};
use crate::boards::library::Abi;
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

const LIST: &str = "runtime/capi/abi.txt";
const OPENING: &str = "\
# The ABI of elsa.h on 64-bit Linux, the same on x86-64 and AArch64. One fact a line:
#   constant NAME VALUE
#   number NAME TYPE
#   callback DECLARATION
#   struct NAME ALIGNMENT; growing where it begins with its size, otherwise frozen
#   bytes NAME SIZE
#   field STRUCT OFFSET SIZE DECLARATION
#   function DECLARATION
#   symbol NAME VERSION, of the shared library
# cargo xtask abi --write writes it.
";

/// Arguments of the comparison.
#[derive(Clone, Copy, Default, clap::Args)]
pub struct Write {
    /// Write the list of the current header.
    #[arg(long)]
    write: bool,
}

/// Runs `cargo xtask abi`.
pub fn run(tree: &Tree, write: Write) -> Result<(), String> {
    let ran = Ran::of("checks", |ran| check(tree, ran, write));
    if ran.faults.is_empty() { Ok(()) } else { Err(ran.faults.join("\n       ")) }
}

/// Compares the list of the header with the committed list.
pub fn check(tree: &Tree, ran: &mut Ran, write: Write) -> Result<(), String> {
    let home = super::programs::home(tree, "abi")?;
    let source = program(&Header::read(tree)?, &Abi::read(tree)?);
    let lists = measured(tree, &source, &home)?;
    let list = format!("{OPENING}{}", lists.host);
    ran.note(
        "the ABI of both architectures",
        differences(&lists.host, &lists.board, "x86-64 and AArch64 differ"),
    );
    ran.note("structs that grow", gapless(&list));

    let path = tree.root.join(LIST);
    if write.write {
        files::write(&path, &list)?;
    }
    let advice = format!("{LIST}: not the list of elsa.h; cargo xtask abi --write writes it");
    ran.note("the committed list", differences(&files::text(&path)?, &list, &advice));
    Ok(())
}

/// The lists that two programs print: one compiled for this machine, and one compiled for the boards.
struct Lists {
    host: String,
    board: String,
}

/// Compiles `source` for this machine and for the boards, and runs both programs, which print the lists.
fn measured(tree: &Tree, source: &str, home: &Path) -> Result<Lists, String> {
    let boards = Compilers::boards(tree)?;
    let file = home.join("abi.c");
    files::write(&file, source)?;
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

/// Returns the C source of a program that prints the list for `header`, with the values and layouts that the compiler
/// uses.
fn program(header: &Header, abi: &Abi) -> String {
    let mut lines = Vec::new();
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    // The version rises with every release, regardless of the ABI.
    for name in header.constants.iter().filter(|name| !name.starts_with("ELSA_VERSION_")) {
        lines.push(format!("printf(\"constant {name} %lld\\n\", (long long)({name}));"));
    }
    for (name, of) in &header.numbers {
        lines.push(format!("puts(\"number {name} {of}\");"));
    }
    for callback in &header.callbacks {
        lines.push(format!("puts(\"callback {}\");", quoted(callback)));
    }
    for of in &header.structs {
        let name = &of.name;
        let kind = if of.grows() { "growing" } else { "frozen" };
        lines.push(format!("printf(\"struct {name} %zu {kind}\\n\", _Alignof({name}));"));
        lines.push(format!("printf(\"bytes {name} %zu\\n\", sizeof({name}));"));
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
    let node = abi.node();
    lines.extend(abi.functions.iter().map(|name| format!("puts(\"symbol {name} {node}\");")));
    let body = lines.join("\n    ");
    format!("#include \"elsa.h\"\n\n#include <stdio.h>\n\nint main(void) {{\n    {body}\n    return 0;\n}}\n")
}

/// Returns the facts in a list: its lines, except comments and empty lines.
fn facts(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// Returns the number of facts if both lists have the same facts; otherwise the facts that only one list has.
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

/// Checks that extensible structs have no gap between fields and no padding at the end. A caller may leave any value in a
/// padding byte. A longer version of the struct, however, requires that the bytes after the end of this version are zero.
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

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "# A list.\nconstant ELSA_MOST 4\nstruct elsa_a 8 growing\n\
        bytes elsa_a 24\nfield elsa_a 0 8 size_t size\nfield elsa_a 8 4 uint32_t x\n\
        field elsa_a 12 4 uint32_t y\nfield elsa_a 16 8 size_t z\nfunction void elsa_f(int)\nfunction void elsa_g(void)\n";

    #[test]
    fn padding_is_found() {
        assert!(gapless(LISTED).is_ok());
        assert!(gapless(&LISTED.replace("field elsa_a 12 4 uint32_t y\n", "")).is_err());
        assert!(gapless(&LISTED.replace("bytes elsa_a 24", "bytes elsa_a 32")).is_err());
        assert!(gapless("struct elsa_a 8 frozen\n").is_err());
    }
}
