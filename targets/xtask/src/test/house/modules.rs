//! A module of a crate: what it defines, imports and names.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// A `use` of one name, or of all names of a module.
pub struct Import {
    /// The path, with `crate`, `self` and `super` as they stand in the source.
    pub path: Vec<String>,
    /// The name that it brings into scope; nothing for a glob.
    pub name: Option<String>,
    /// Whether others may import it from here.
    pub reexport: bool,
    /// Whether a macro makes it.
    pub expanded: bool,
    /// The line of the source.
    pub line: usize,
}

/// A path in code.
pub struct Mention {
    /// The innermost scope around it.
    pub scope: usize,
    /// The path.
    pub path: Vec<String>,
    /// Whether it calls a macro.
    pub call: bool,
    /// The line of the source.
    pub line: usize,
}

/// Names that are visible in a module or in a function.
#[derive(Default)]
pub struct Scope {
    /// The scope around it; nothing for the module itself.
    pub outer: Option<usize>,
    /// Variables and items of a function.
    pub locals: BTreeSet<String>,
    /// What is imported there.
    pub imports: Vec<Import>,
}

/// A module.
pub struct Module {
    /// Its path, such as `crate::plan::choose`.
    pub path: String,
    /// The file that holds it.
    pub file: PathBuf,
    /// The module that declares it.
    pub parent: Option<usize>,
    /// The modules that it declares.
    pub children: Vec<(String, usize)>,
    /// The names that it defines.
    pub items: BTreeSet<String>,
    /// Those of them that are macros.
    pub macros: BTreeSet<String>,
    /// Its own scope first, then those of its functions.
    pub scopes: Vec<Scope>,
    /// The paths in its code.
    pub mentions: Vec<Mention>,
}
