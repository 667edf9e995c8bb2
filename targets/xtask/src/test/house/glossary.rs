//! Checks that a word of the glossary names one type: no second struct, enum or union has the name.

use super::shared::without_tests;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;

/// The heading above the glossary.
const WORDS: &str = "## Words";

/// Folders whose types are not part of the product.
const APART: [&str; 3] = ["tests", "examples", "benches"];

/// Returns the type names that the words of a document's glossary would have. The first column of the table contains
/// the words, separated by commas.
fn names(text: &str) -> Vec<String> {
    let below = text.lines().skip_while(|line| *line != WORDS).skip(1);
    let rows = below.take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix('|'));
    let words = rows.flat_map(|row| row.split('|').next().unwrap_or_default().split(','));
    let is_words = |words: &&str| !words.is_empty() && words.chars().all(|c| c.is_alphanumeric() || c == ' ');
    let name = |words: &str| {
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        words.split(' ').map(capital).collect::<String>()
    };
    words.map(str::trim).filter(is_words).map(name).collect()
}

/// Adds the names of the structs, enums and unions that the code defines outside of tests.
fn defined(stream: TokenStream, names: &mut Vec<String>) {
    let mut tokens = without_tests(stream).into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "struct" || word == "enum" || word == "union" => {
                if let Some(TokenTree::Ident(name)) = tokens.peek() {
                    names.push(name.to_string());
                }
            }
            TokenTree::Group(group) => defined(group.stream(), names),
            _ => {}
        }
    }
}

/// Finds names in the document's glossary that several types share. Returns the number of names, and the faults.
pub fn shared_names(document: &str, text: &str, files: &[(String, String)]) -> (usize, Vec<String>) {
    let words = names(text);
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in files {
        if !path.ends_with(".rs") || path.split('/').any(|part| APART.contains(&part)) {
            continue;
        }
        let mut found = Vec::new();
        // `claims::rooms` reports files that are not Rust.
        defined(text.parse().unwrap_or_default(), &mut found);
        for word in words.iter().filter(|word| found.contains(word)) {
            let times = found.iter().filter(|name| *name == word).count();
            places.entry(word).or_default().extend(vec![path.as_str(); times]);
        }
    }
    let mut faults = Vec::new();
    if words.is_empty() {
        faults.push(format!("{document}: no glossary below '{WORDS}'"));
    }
    for (word, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
        let places = places.join(", ");
        faults.push(format!(
            "{word}: a word of the glossary in {document} names a type in each of {places}; allowed: one type"
        ));
    }
    (words.len(), faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A\n| tensor | x |\n## Words\n| word | meaning |\n|---|---|\n| tile | x |\n| mask, bias | x |\n\
        | weight scale | x |\n| base-2 units | x |\n## Next\n| view | x |\n";

    #[test]
    fn the_first_column_has_the_words() {
        assert_eq!(names(TEXT), ["Word", "Tile", "Mask", "Bias", "WeightScale"]);
    }

    #[test]
    fn a_second_type_is_found() {
        let found = |files: &[(&str, &str)]| {
            let owned: Vec<_> = files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
            shared_names("A.md", TEXT, &owned).1
        };
        let one = ("a/b.rs", "pub struct Tile { a: u8 } impl Tile { fn f() {} } use c::Tile as Other;");
        let fault = |places: &str| {
            [format!(
                "Tile: a word of the glossary in A.md names a type in each of {places}; allowed: one type"
            )]
        };
        assert!(found(&[one, ("c.rs", "#[cfg(test)]\nmod x { struct Tile; }\nstruct Mask;")]).is_empty());
        assert!(found(&[one, ("a/tests/c.rs", "struct Tile;"), ("c.py", "struct Tile")]).is_empty());
        for second in ["struct Tile;", "enum Tile {}", "mod x { pub(super) union Tile { a: u8 } }"] {
            assert_eq!(found(&[one, ("c.rs", second)]), fault("a/b.rs, c.rs"), "{second}");
        }
        assert_eq!(found(&[("c.rs", "fn f() { struct Tile; } struct Tile;")]), fault("c.rs, c.rs"));
        assert_eq!(shared_names("A.md", "# A", &[]).1, ["A.md: no glossary below '## Words'"]);
    }
}
