//! Checks that the headers of `include/elsa` are those that cbindgen generates from this crate.
//! `ELSA_WRITE_HEADER=1` writes them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Source files with the declarations of the headers, in the order in which the functions appear in the headers.
const SOURCES: [&str; 37] = [
    "types/numbers",
    "types/engine",
    "types/problem",
    "types/data",
    "types/info",
    "types/stream",
    "types/task",
    "types/files",
    "types/gradients",
    "types/gradients_task",
    "types/linear",
    "types/series",
    "library",
    "log",
    "view",
    "attention/mask",
    "engine",
    "buffer",
    "attention/plan",
    "plan",
    "workspace",
    "attention/run",
    "attention/bound",
    "bound",
    "attention/certify",
    "attention/left_out",
    "attention/refused",
    "attention/states",
    "stream/calls",
    "task/calls",
    "files/calls",
    "gradients/calls",
    "gradients_task/calls",
    "gradients_task/merge",
    "linear/calls",
    "linear/certify",
    "series/calls",
];

/// Part of `elsa.h` that users may also include alone.
struct Part {
    name: &'static str,
    what: &'static str,
    /// Names of the headers that this one includes.
    over: &'static [&'static str],
    /// Prefixes, without `elsa_`, of the types and functions in this header. A constant is in the header of its type.
    begins: &'static [&'static str],
}

/// Header with the types and functions that no other part contains.
const COMMON: Part =
    Part { name: "common", what: "what all operators share", over: &[], begins: &["mask_kind"] };
/// The parts. A name belongs to the first part with a prefix of it.
const PARTS: [Part; 9] = [
    COMMON,
    Part {
        name: "gradients_task",
        what: "tasks of gradients of softmax attention, for several boards",
        over: &["gradients", "task"],
        begins: &["gradients_merge", "gradients_shares", "gradients_task"],
    },
    Part {
        name: "attention",
        what: "softmax attention",
        over: &["common"],
        begins: &[
            "bind",
            "bound_set",
            "causal",
            "certificate",
            "chunk",
            "inputs",
            "mask",
            "method",
            "outputs",
            "partial",
            "plan_certificate",
            "plan_create",
            "plan_options",
            "problem",
            "run",
            "schedule",
            "states",
            "table",
            "windows",
        ],
    },
    Part {
        name: "stream",
        what: "softmax attention over tensors that callbacks fill and take, part by part",
        over: &["attention"],
        begins: &["operand", "rows", "stream"],
    },
    Part {
        name: "gradients",
        what: "gradients of softmax attention",
        over: &["attention"],
        begins: &["gradients"],
    },
    Part {
        name: "linear",
        what: "linear attention",
        over: &["common"],
        begins: &["direction", "form", "linear", "rule"],
    },
    Part {
        name: "series",
        what: "operators that treat every channel by itself",
        over: &["common"],
        begins: &["convolution", "gate", "recurrence", "selective", "series", "taps"],
    },
    // Before `task`, whose prefix begins these names too.
    Part {
        name: "files",
        what: "files of the states of tasks of quorums, and their merge",
        over: &["task"],
        begins: &["task_file", "task_files", "task_merged"],
    },
    Part {
        name: "task",
        what: "tasks of quorums, parts of softmax attention for several boards",
        over: &["attention"],
        begins: &["task"],
    },
];

/// Returns the name of the part that contains a type or a function.
fn part(name: &str) -> &'static str {
    let begins = |part: &Part| {
        let rest = |begin| name.strip_prefix("elsa_")?.strip_prefix(begin);
        part.begins
            .iter()
            .any(|begin| rest(*begin).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
    };
    PARTS.iter().find(|part| begins(part)).unwrap_or(&COMMON).name
}

/// Declaration on a line of the sources.
enum Declared<'a> {
    Function(&'a str),
    Type(&'a str),
    Constant(&'a str, &'a str),
}

impl<'a> Declared<'a> {
    fn read(line: &'a str) -> Option<Declared<'a>> {
        let rest = line.strip_prefix("pub ")?;
        let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
        let (kind, rest) = rest.strip_prefix("extern \"C\" ").unwrap_or(rest).split_once(' ')?;
        let (name, after) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric() && c != '_')?);
        match kind {
            "fn" => Some(Declared::Function(name)),
            "struct" | "type" => Some(Declared::Type(name)),
            "const" => Some(Declared::Constant(name, after.strip_prefix(": ")?.split_once(" =")?.0)),
            _ => None,
        }
    }

    fn name(&self) -> &'a str {
        match *self {
            Declared::Function(name) | Declared::Type(name) | Declared::Constant(name, _) => name,
        }
    }

    fn part(&self) -> &'static str {
        match *self {
            Declared::Function(name) | Declared::Type(name) => part(name),
            Declared::Constant(_, of) => part(of),
        }
    }
}

/// Generates the `_init` functions of a part: one for each struct that begins with its size and whose memory the
/// program provides.
fn initialisers(sources: &str, part: &Part) -> String {
    let mut text = String::new();
    let structs = sources.split("\npub struct ").skip(1).filter_map(|rest| rest.split_once(" {"));
    for (name, body) in structs.filter(|(name, _)| self::part(name) == part.name && *name != "elsa_rows") {
        let first = body.lines().find(|line| line.starts_with("    pub "));
        if first != Some("    pub size: usize,") {
            continue;
        }
        let argument = name.rsplit('_').next().unwrap_or(name);
        let _ = write!(
            text,
            "
static inline void {name}_init({name} *{argument}) {{
    memset({argument}, 0, sizeof *{argument});
    {argument}->size = sizeof *{argument};
}}
"
        );
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "
/*
 Functions that clear a struct and set its size. They are compiled into the program, so the size is that of the
 program's header.
 */
{text}"
    )
}

/// Generates the header of a part.
fn generated(root: &Path, sources: &[(PathBuf, String)], part: &Part) -> Result<String, String> {
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml"))?;
    let guard = format!("ELSA_{}_H", part.name.to_uppercase());
    config.header = Some(format!(
        "/* elsa: {}; see elsa.h. Generated by cbindgen from runtime/capi; do not edit. */\n\n#ifndef {guard}\n#define {guard}",
        part.what
    ));
    config.includes.extend(part.over.iter().map(|over| format!("{over}.h")));
    if part.over.is_empty() {
        config.sys_includes.extend(["stddef.h", "stdint.h", "string.h"].map(str::to_owned));
    }
    let all: String = sources.iter().map(|(_, text)| text.as_str()).collect();
    for declared in all.lines().filter_map(Declared::read) {
        let name = declared.name().to_owned();
        match declared {
            _ if declared.part() != part.name => config.export.exclude.push(name),
            Declared::Type(_) => config.export.include.push(name),
            _ => {}
        }
    }
    config.trailer = Some(format!("{}\n#endif /* {guard} */\n", initialisers(&all, part)));
    let mut builder = cbindgen::Builder::new().with_config(config);
    for (path, _) in sources {
        builder = builder.with_src(path);
    }
    let mut text = Vec::new();
    builder.generate().map_err(|error| error.to_string())?.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

#[test]
fn the_headers_are_generated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = |file: &str| root.join("src").join(file).with_extension("rs");
    let sources = SOURCES.map(|file| (path(file), std::fs::read_to_string(path(file)).unwrap()));
    let umbrella = std::fs::read_to_string(root.join("include/elsa.h")).unwrap();
    for part in &PARTS {
        let text = generated(root, &sources, part).unwrap();
        let path = root.join("include/elsa").join(part.name).with_extension("h");
        if std::env::var_os("ELSA_WRITE_HEADER").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(text.contains("\nelsa_status elsa_"), "{}: functions are missing", part.name);
        let committed = std::fs::read_to_string(&path).unwrap();
        assert!(
            committed == text,
            "{}: not what cbindgen makes; ELSA_WRITE_HEADER=1 writes it",
            path.display()
        );
        assert!(umbrella.contains(&format!("#include \"elsa/{}.h\"\n", part.name)), "elsa.h: {}", part.name);
    }
}

#[test]
fn the_versions_are_those_of_the_package() {
    let version = [elsa::ELSA_VERSION_MAJOR, elsa::ELSA_VERSION_MINOR, elsa::ELSA_VERSION_PATCH];
    assert_eq!(version.map(|number| number.to_string()).join("."), env!("CARGO_PKG_VERSION"));
    assert_eq!(elsa::elsa_abi_version(), elsa::ELSA_ABI_MAJOR << 16 | elsa::ELSA_ABI_MINOR);
}
