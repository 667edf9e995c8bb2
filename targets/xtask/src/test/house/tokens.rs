//! Paths in the tokens of a macro, which no parser of Rust reads.

use super::modules::Import;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// What the tokens name.
#[derive(Default)]
pub struct Found {
    /// Paths, whether each calls a macro, and their lines. `$crate` is `crate`.
    pub paths: Vec<(Vec<String>, bool, usize)>,
    /// What they import.
    pub imports: Vec<Import>,
    /// What they declare.
    pub locals: BTreeSet<String>,
}

/// Reads the tokens of a macro's arguments, or of its body: there `self` and `super` are those of the caller and
/// are left out.
pub fn scan(stream: &TokenStream, body: bool) -> Found {
    let mut found = Found::default();
    walk(stream, &mut found);
    let of_caller = |path: &[String]| body && path.first().is_some_and(|x| x == "self" || x == "super");
    found.paths.retain(|(path, ..)| !of_caller(path));
    found.imports.retain(|import| !of_caller(&import.path));
    found
}

/// Keywords before a name that they declare.
const DECLARING: [&str; 10] =
    ["let", "mut", "fn", "mod", "struct", "enum", "trait", "type", "const", "static"];

fn is(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Whether `::` starts at `i`.
fn colons(tokens: &[TokenTree], i: usize) -> bool {
    is(tokens.get(i), ':') && is(tokens.get(i + 1), ':')
}

/// The path that starts at `i`, and the position behind it: behind its last `::` where no name follows that.
fn path(tokens: &[TokenTree], mut i: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(ident)) = tokens.get(i) {
        path.push(ident.to_string());
        i += 1;
        if !colons(tokens, i) {
            break;
        }
        i += 2;
    }
    (path, i)
}

fn walk(stream: &TokenStream, found: &mut Found) {
    let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
    let before = |i: usize, n: usize| i.checked_sub(n).and_then(|i| tokens.get(i));
    let mut i = 0;
    while let Some(token) = tokens.get(i) {
        let ident = match token {
            TokenTree::Group(group) => {
                walk(&group.stream(), found);
                i += 1;
                continue;
            }
            TokenTree::Ident(ident) => ident,
            _ => {
                i += 1;
                continue;
            }
        };
        let line = ident.span().start().line;
        if ident == "use" {
            let end = (i..tokens.len()).find(|&i| is(tokens.get(i), ';')).unwrap_or(tokens.len());
            import(&tokens[i + 1..end], &[], line, found);
            i = end;
            continue;
        }
        let (names, next) = path(&tokens, i);
        let declared =
            matches!(before(i, 1), Some(TokenTree::Ident(word)) if DECLARING.iter().any(|x| word == x));
        // A field or method, a lifetime, a parameter of the macro, a path from outside or behind generics.
        let member = is(before(i, 1), '.') && !is(before(i, 2), '.');
        let other = is(before(i, 1), '\'') || (is(before(i, 1), '$') && ident != "crate");
        let outside = is(before(i, 1), ':') && is(before(i, 2), ':');
        // A field with its value, or a variable with its type.
        let label = names.len() == 1 && is(tokens.get(next), ':');
        if declared {
            found.locals.insert(ident.to_string());
        } else if !(member || other || outside || label) {
            found.paths.push((names, is(tokens.get(next), '!'), line));
        }
        i = next;
    }
}

/// The tokens between `use` and `;`, or those of a part of a group.
fn import(tokens: &[TokenTree], prefix: &[String], line: usize, found: &mut Found) {
    let start = usize::from(is(tokens.first(), '$'));
    let (names, next) = path(tokens, start);
    let full = [prefix, &names].concat();
    let mut add = |path: Vec<String>, name: Option<String>| {
        found.imports.push(Import { path, name, reexport: false, expanded: true, line });
    };
    match tokens.get(next) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner.split(|token| is(Some(token), ',')).for_each(|part| import(part, &full, line, found));
        }
        Some(TokenTree::Punct(punct)) if punct.as_char() == '*' => add(full, None),
        // `name as other`: the loop over names has stopped at `as`.
        Some(TokenTree::Ident(word)) if word == "as" => {
            add(full, tokens.get(next + 1).map(ToString::to_string));
        }
        _ if names.is_empty() => {}
        _ if names.last().is_some_and(|last| last == "self") => {
            add(prefix.to_vec(), prefix.last().cloned());
        }
        _ => add(full, names.last().cloned()),
    }
}
