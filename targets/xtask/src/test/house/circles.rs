//! Finds which modules use each other, and circles among them.
//!
//! A module uses another if an import or a path in its code names an item that the other defines. A re-exported item counts for
//! the module that defines it. Four things are not uses: `mod child;`, the re-export of an item that a descendant defines, a
//! method call, and the import of a module (the paths that start with it count instead). Inside a macro's body, the import of a
//! module counts too, because the paths that start with it may be in the body of another macro.
//!
//! `cargo modules --acyclic` is no replacement: it does not read paths in function bodies, it does not count the import of
//! an item as a use of the item's module, and installing it compiles rust-analyzer.

use super::read::{Import, Mention, Module};
use std::collections::{BTreeMap, BTreeSet};

/// The module or item to which a path refers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// A module.
    Module(usize),
    /// An item that this module defines.
    Item(usize),
}

/// One module's use of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// First place of the use in the source, as `file:line`.
    pub place: String,
    /// Path of the used item, as written at `place`.
    pub path: String,
}

/// The uses of modules by other modules. A key consists of the index of the module that names an item, and the index of
/// the module that defines the item.
pub type Uses = BTreeMap<(usize, usize), Use>;

/// Modules that use each other, directly or through other modules.
#[derive(Debug)]
pub struct Circle {
    /// Paths of the modules.
    pub modules: Vec<String>,
    /// One line for each use between these modules.
    pub uses: Vec<String>,
}

/// Names that are being looked up, each with its module. If a lookup needs one of these names again, the lookup finds
/// nothing.
type Open = Vec<(usize, String)>;

struct Names<'a> {
    modules: &'a [Module],
    /// For the name of each macro, the modules that define the macro.
    macros: BTreeMap<&'a str, Vec<usize>>,
}

impl Names<'_> {
    /// Returns the meaning of `name` inside a module; `None` if the name is not visible in the module.
    fn lookup(&self, m: usize, name: &str, open: &mut Open) -> Option<Vec<Target>> {
        if open.iter().any(|(module, seen)| *module == m && seen == name) {
            return None;
        }
        open.push((m, name.to_owned()));
        let module = &self.modules[m];
        let children = module.children.iter().filter(|(child, _)| child == name);
        let mut found: Vec<Target> = children.map(|(_, child)| Target::Module(*child)).collect();
        if module.items.contains(name) {
            found.push(Target::Item(m));
        }
        // Definitions of a module hide names from a glob.
        let imported = self.imported(m, 0, name, found.is_empty(), open);
        open.pop();
        match imported {
            Some(imported) => found.extend(imported),
            None if found.is_empty() => return None,
            None => {}
        }
        Some(found)
    }

    /// Resolves a name with the imports of one scope. If no import has the name and `globs` is `true`, also tries the
    /// glob imports.
    fn imported(
        &self,
        m: usize,
        scope: usize,
        name: &str,
        globs: bool,
        open: &mut Open,
    ) -> Option<Vec<Target>> {
        let imports = &self.modules[m].scopes[scope].imports;
        let mut found = None;
        for import in imports.iter().filter(|import| import.name.as_deref() == Some(name)) {
            let targets: &mut Vec<Target> = found.get_or_insert_default();
            targets.extend(self.resolve(m, 0, &import.path, open).unwrap_or_default());
        }
        if found.is_some() || !globs {
            return found;
        }
        self.by_globs(m, scope, name, open)
    }

    /// Resolves a name with the glob imports of one scope.
    fn by_globs(&self, m: usize, scope: usize, name: &str, open: &mut Open) -> Option<Vec<Target>> {
        let mut found: Option<Vec<Target>> = None;
        for glob in self.modules[m].scopes[scope].imports.iter().filter(|import| import.name.is_none()) {
            for target in self.resolve(m, 0, &glob.path, open).unwrap_or_default() {
                let Target::Module(other) = target else { continue };
                if let Some(targets) = self.lookup(other, name, open) {
                    found.get_or_insert_default().extend(targets);
                }
            }
        }
        found
    }

    /// Resolves a path in code. A name that may be a variable counts only if a glob import brings it into scope; other imports
    /// always count.
    fn mentioned(&self, m: usize, mention: &Mention) -> Option<Vec<Target>> {
        match &mention.path[..] {
            [name] if mention.variable => {
                let local = self.modules[m].scopes[mention.scope].locals.contains(name);
                if local { None } else { self.by_globs(m, 0, name, &mut Open::new()) }
            }
            [name] if mention.call => {
                self.resolve(m, mention.scope, &mention.path, &mut Open::new()).or_else(|| self.textual(name))
            }
            path => self.resolve(m, mention.scope, path, &mut Open::new()),
        }
    }

    /// Resolves a path that occurs in a scope of a module. The result is empty if the path starts outside this crate.
    fn resolve(&self, m: usize, scope: usize, path: &[String], open: &mut Open) -> Option<Vec<Target>> {
        let (first, rest) = path.split_first()?;
        let mut targets = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(m)],
            "super" => vec![Target::Module(self.modules[m].parent?)],
            name => self.start(m, scope, name, rest.is_empty(), open)?,
        };
        for name in rest {
            // A name may denote both a module and a function. Only the module can be followed by another name.
            if targets.iter().any(|target| matches!(target, Target::Module(_))) {
                targets.retain(|target| matches!(target, Target::Module(_)));
            }
            let step = |target: Target| match target {
                Target::Module(at) if name == "super" => {
                    self.modules[at].parent.map(Target::Module).into_iter().collect()
                }
                Target::Module(_) if name == "self" => vec![target],
                // Items that a macro generates in a module are not visible.
                Target::Module(at) => self.lookup(at, name, open).unwrap_or_else(|| vec![Target::Item(at)]),
                Target::Item(_) => vec![target],
            };
            targets = targets.into_iter().flat_map(step).collect();
        }
        Some(targets)
    }

    /// Resolves the first name of a path: in the scope of an item, then in the module.
    fn start(&self, m: usize, scope: usize, name: &str, alone: bool, open: &mut Open) -> Option<Vec<Target>> {
        if scope > 0 {
            // A variable can only be a path of a single name.
            if alone && self.modules[m].scopes[scope].locals.contains(name) {
                return Some(Vec::new());
            }
            if let Some(found) = self.imported(m, scope, name, true, open) {
                return Some(found);
            }
        }
        self.lookup(m, name, open)
    }

    /// Returns the module that defines a macro which is called without importing its name; `None` if no module or several
    /// modules define it.
    fn textual(&self, name: &str) -> Option<Vec<Target>> {
        match self.macros.get(name).map(Vec::as_slice) {
            Some(&[only]) => Some(vec![Target::Item(only)]),
            _ => None,
        }
    }

    fn descends(&self, mut module: usize, ancestor: usize) -> bool {
        while let Some(parent) = self.modules[module].parent {
            if parent == ancestor {
                return true;
            }
            module = parent;
        }
        false
    }

    /// Returns the modules that define the items of an import.
    fn uses_of_import(&self, m: usize, scope: usize, import: &Import) -> Vec<usize> {
        let targets = self.resolve(m, 0, &import.path, &mut Open::new()).unwrap_or_default();
        // If the import names a module, the paths in the code show which items of the module are used, or whether the name
        // means a function instead.
        let of_modules = targets.iter().filter_map(|target| match target {
            Target::Module(module) => Some(*module),
            Target::Item(_) => None,
        });
        let of_modules: Vec<usize> = of_modules.collect();
        if !of_modules.is_empty() {
            return if import.expanded && import.name.is_some() { of_modules } else { Vec::new() };
        }
        let handed_on = |def: usize| scope == 0 && import.reexport && self.descends(def, m);
        let defs = targets.into_iter().filter_map(|target| match target {
            Target::Item(def) if !handed_on(def) => Some(def),
            _ => None,
        });
        defs.collect()
    }
}

/// Returns every use of a module by another module.
pub fn uses(modules: &[Module]) -> Uses {
    let mut macros: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (m, module) in modules.iter().enumerate() {
        for name in &module.macros {
            macros.entry(name).or_default().push(m);
        }
    }
    let names = Names { modules, macros };
    let mut uses = Uses::new();
    for (m, module) in modules.iter().enumerate() {
        let mut add = |def: usize, path: &[String], line: usize| {
            if def != m {
                let place = format!("{}:{line}", module.file.display());
                uses.entry((m, def)).or_insert_with(|| Use { place, path: path.join("::") });
            }
        };
        for (scope, held) in module.scopes.iter().enumerate() {
            for import in &held.imports {
                for def in names.uses_of_import(m, scope, import) {
                    add(def, &import.path, import.line);
                }
            }
        }
        for mention in &module.mentions {
            for target in names.mentioned(m, mention).unwrap_or_default() {
                if let Target::Item(def) = target {
                    add(def, &mention.path, mention.line);
                }
            }
        }
    }
    uses
}

/// Returns the circles among the modules of a crate.
pub fn circles(modules: &[Module]) -> Vec<Circle> {
    let uses = uses(modules);
    let reach: Vec<BTreeSet<usize>> = (0..modules.len())
        .map(|start| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(m) = open.pop() {
                let next =
                    uses.keys().filter(|(from, to)| *from == m && !seen.contains(to)).map(|(_, to)| *to);
                let next: Vec<usize> = next.collect();
                seen.extend(&next);
                open.extend(next);
            }
            seen
        })
        .collect();
    let mut done: BTreeSet<usize> = BTreeSet::new();
    let mut circles = Vec::new();
    for m in 0..modules.len() {
        if !reach[m].contains(&m) || done.contains(&m) {
            continue;
        }
        let group: Vec<usize> = (0..modules.len())
            .filter(|&other| reach[m].contains(&other) && reach[other].contains(&m))
            .collect();
        done.extend(&group);
        let inside = uses.iter().filter(|((from, to), _)| group.contains(from) && group.contains(to));
        circles.push(Circle {
            modules: group.iter().map(|&m| modules[m].path.clone()).collect(),
            uses: inside
                .map(|((from, to), found)| {
                    let (from, to) = (&modules[*from].path, &modules[*to].path);
                    format!("{}: {from} uses {to}: {}", found.place, found.path)
                })
                .collect(),
        });
    }
    circles
}
