//! Checks that `elsa.map`, the version script with which `cargo xtask build` links, lists the functions of `elsa.h` and
//! the ABI version, and that `abi.txt` lists the fields of the structs in the order of the header.

use std::collections::BTreeSet;
use std::path::Path;

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text of the headers that `elsa.h` includes, in the order of their inclusion.
fn headers() -> String {
    let umbrella = read("include/elsa.h");
    let included = umbrella.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    included.map(|header| read(&format!("include/{header}"))).collect()
}

/// Returns the names of the functions that the header only declares. Their declarations begin at the start of a line;
/// functions that the header defines begin with `static` and are left out.
fn declared(header: &str) -> BTreeSet<&str> {
    let lines = header.lines().filter(|line| !line.starts_with([' ', '#', '/', '}']));
    let lines = lines.filter(|line| !line.starts_with("static ") && !line.starts_with("typedef "));
    let before = lines.filter_map(|line| line.split_once('(').map(|(before, _)| before));
    let names = before.filter_map(|before| before.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("elsa_") && *name != "elsa_test_panic_next").collect()
}

#[test]
fn the_version_script_names_the_functions_of_the_header() {
    let (header, map) = (headers(), read("elsa.map"));
    let declared = declared(&header);
    assert!(declared.contains("elsa_run") && declared.contains("elsa_last_error"), "{declared:?}");
    assert!(!declared.contains("elsa_problem_init"), "a function of the header itself");
    let lines = map.lines().map(str::trim);
    let named: BTreeSet<&str> =
        lines.filter_map(|line| line.strip_suffix(';')).filter(|x| x.starts_with("elsa_")).collect();
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (declared.difference(&named).collect(), named.difference(&declared).collect());
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "elsa.map: missing {missing:?}, not in elsa.h {unknown:?}"
    );
}

#[test]
fn the_version_script_has_the_number_of_the_abi() {
    let map = read("elsa.map");
    let nodes: Vec<&str> = map.lines().filter_map(|line| Some(line.split_once('{')?.0.trim())).collect();
    let number = format!("ELSA_{}.{}", elsa::ELSA_ABI_MAJOR, elsa::ELSA_ABI_MINOR);
    assert_eq!(nodes, [number], "elsa.map");
}

/// Returns the fields of the header's structs in the order of the header, each preceded by the name of its struct.
fn fields(header: &str) -> Vec<String> {
    let without_comments = |text: &str| {
        let pieces = text.split("/*").map(|piece| piece.split_once("*/").map_or(piece, |(_, code)| code));
        pieces.collect::<String>()
    };
    let code = without_comments(header);
    let structs = code.split("typedef struct {").skip(1).filter_map(|rest| rest.split_once('}'));
    let mut all = Vec::new();
    for (body, rest) in structs {
        let name = rest.split(';').next().unwrap_or_default().trim();
        let declared = body.split(';').map(|field| field.split_whitespace().collect::<Vec<_>>().join(" "));
        all.extend(declared.filter(|field| !field.is_empty()).map(|field| format!("{name} {field}")));
    }
    all
}

#[test]
fn the_list_of_the_abi_has_the_fields_of_the_header_in_its_order() {
    let (header, list) = (headers(), read("abi.txt"));
    let declared = fields(&header);
    // A line has the name of the struct, the offset, the size and the declaration.
    let listed = list.lines().filter_map(|line| line.strip_prefix("field ")?.split_once(' '));
    let listed = listed.filter_map(|(name, rest)| Some((name, rest.splitn(3, ' ').nth(2)?)));
    let listed: Vec<String> = listed.map(|(name, field)| format!("{name} {field}")).collect();
    assert!(declared.len() > 100, "{} fields", declared.len());
    let differ = declared.iter().zip(&listed).find(|(declared, listed)| declared != listed);
    assert_eq!(differ, None, "elsa.h and abi.txt");
    assert_eq!(declared.len(), listed.len());
}
