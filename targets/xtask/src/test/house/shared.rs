//! Checks that shared code names no operator, as ARCHITECTURE.md says.

use super::files::spans;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// First words of the sentence in ARCHITECTURE.md that lists the files that may name operators.
const EXCEPT: &str = "Shared files name no operator, except";

/// Source folders of the crates that have a separate module for each operator.
const CRATES: [&str; 3] = ["core/src/", "kernels/src/", "runtime/src/"];

/// Names of the operators' modules.
const OPERATORS: [&str; 3] = ["attention", "linear", "series"];

/// Returns whether a file is in the module of an operator.
fn is_room(path: &str) -> bool {
    path.split('/').any(|part| OPERATORS.contains(&part.trim_end_matches(".rs")))
}

/// Returns the tokens of code without the items that only tests compile.
pub fn without_tests(stream: TokenStream) -> Vec<TokenTree> {
    let mut rest = Vec::new();
    let mut tokens = stream.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_hash = matches!(&token, TokenTree::Punct(hash) if hash.as_char() == '#');
        let is_test = is_hash
            && matches!(
                tokens.peek(),
                Some(TokenTree::Group(of)) if of.stream().to_string().replace(' ', "") == "cfg(test)"
            );
        let ends = |token: &TokenTree| match token {
            TokenTree::Group(body) => body.delimiter() == Delimiter::Brace,
            TokenTree::Punct(mark) => mark.as_char() == ';',
            _ => false,
        };
        if is_test {
            tokens.by_ref().find(ends);
        } else {
            rest.push(token);
        }
    }
    rest
}

/// Returns the first operator whose module occurs in a path of the code. Ignores items that only tests compile.
fn named(stream: TokenStream) -> Option<&'static str> {
    let mut tokens = without_tests(stream).into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) => {
                let is_path = matches!(
                    tokens.peek(),
                    Some(TokenTree::Punct(mark)) if mark.as_char() == ':' && mark.spacing() == Spacing::Joint
                );
                let operator = OPERATORS.into_iter().find(|operator| word == *operator);
                if is_path && operator.is_some() {
                    return operator;
                }
            }
            TokenTree::Group(group) => {
                if let Some(operator) = named(group.stream()) {
                    return Some(operator);
                }
            }
            _ => {}
        }
    }
    None
}

/// Finds shared files that name an operator but are not in the document's list, and files in the list that name no
/// operator.
pub fn shared(document: &str, text: &str, files: &[(String, String)]) -> Vec<String> {
    let Some((_, list)) = text.split_once(EXCEPT) else {
        return vec![format!("{document}: has no '{EXCEPT}'")];
    };
    let list = list.split("\n\n").next().unwrap_or_default();
    let spans = spans(list).into_iter().map(|(_, span)| span);
    let excepted: Vec<&str> = spans.filter(|span| span.contains('/')).collect();
    let mut faults = Vec::new();
    let mut naming = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs") && !is_room(path)) {
        if !CRATES.iter().any(|folder| path.starts_with(folder)) || path.ends_with("src/lib.rs") {
            continue;
        }
        let Some(operator) = text.parse().ok().and_then(named) else { continue };
        naming.push(path.as_str());
        if !excepted.contains(&path.as_str()) {
            faults.push(format!("{path}: names {operator}; allowed: in what {document} excepts"));
        }
    }
    let idle = excepted.iter().filter(|path| !naming.contains(path));
    faults.extend(idle.map(|path| format!("{document}: `{path}` is excepted and names no operator")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_file_that_names_an_operator_is_found() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let text =
            "Shared files name no operator, except `core/src/a.rs` and `core/src/b.rs`.\n\n`core/src/c.rs`";
        let files = [
            file("core/src/a.rs", "use crate::linear::Rule;"),
            file(
                "core/src/c.rs",
                "struct S { attention: u8 } fn f() { let linear = 1; g(linear, x.series) } // crate::series::S",
            ),
            file(
                "core/src/d.rs",
                "#[cfg(test)]\nmod tests { use crate::linear::Rule; }\nfn f() { crate::series::run() }",
            ),
            file("core/src/linear/e.rs", "use crate::attention::Problem;"),
            file("tests/src/f.rs", "use elsa_core::attention::Problem;"),
        ];
        let found = shared("house.md", text, &files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("core/src/d.rs: names series; "), "{found:?}");
        assert_eq!(found[1], "house.md: `core/src/b.rs` is excepted and names no operator");
    }
}
