//! Reads the modules of a crate from its source.
//!
//! Code under `#[cfg(test)]` and modules called `tests` are left out. Every other `cfg` counts as true, so that one
//! machine sees the code of all.

use super::modules::{Import, Mention, Module, Scope};
use super::tokens;
use proc_macro2::{Span, TokenStream};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility};

/// Reads a source file; nothing where it does not exist.
pub type Source<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The modules of the crate with this root file, the root first.
///
/// # Errors
/// A file that is missing or does not parse.
pub fn read(source: Source, root: &Path) -> Result<Vec<Module>, String> {
    let mut modules = Vec::new();
    let dir = root.parent().unwrap_or(Path::new("")).to_owned();
    Reader { source, modules: &mut modules, module: 0, scope: 0, dir }.file(
        root,
        "crate".to_owned(),
        None,
    )?;
    Ok(modules)
}

/// Whether the item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    fn implies(meta: &Meta) -> bool {
        match meta {
            Meta::Path(path) => path.is_ident("test"),
            Meta::List(list) if list.path.is_ident("all") => Punctuated::<Meta, Token![,]>::parse_terminated
                .parse2(list.tokens.clone())
                .is_ok_and(|all| all.iter().any(implies)),
            _ => false,
        }
    }
    let cfg = |attribute: &&Attribute| attribute.path().is_ident("cfg");
    attributes.iter().filter(cfg).any(|cfg| cfg.parse_args::<Meta>().is_ok_and(|meta| implies(&meta)))
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// The attributes of an item.
fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(x) => &x.attrs,
        Item::Enum(x) => &x.attrs,
        Item::Fn(x) => &x.attrs,
        Item::ForeignMod(x) => &x.attrs,
        Item::Impl(x) => &x.attrs,
        Item::Macro(x) => &x.attrs,
        Item::Mod(x) => &x.attrs,
        Item::Static(x) => &x.attrs,
        Item::Struct(x) => &x.attrs,
        Item::Trait(x) => &x.attrs,
        Item::Type(x) => &x.attrs,
        Item::Union(x) => &x.attrs,
        Item::Use(x) => &x.attrs,
        _ => &[],
    }
}

/// The name that an item defines.
fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(x) => &x.ident,
        Item::Enum(x) => &x.ident,
        Item::Fn(x) => &x.sig.ident,
        Item::Macro(x) => x.ident.as_ref()?,
        Item::Static(x) => &x.ident,
        Item::Struct(x) => &x.ident,
        Item::Trait(x) => &x.ident,
        Item::TraitAlias(x) => &x.ident,
        Item::Type(x) => &x.ident,
        Item::Union(x) => &x.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Reads one module after the other.
struct Reader<'a> {
    source: Source<'a>,
    modules: &'a mut Vec<Module>,
    module: usize,
    scope: usize,
    /// The folder in which files of child modules lie.
    dir: PathBuf,
}

impl Reader<'_> {
    /// Adds an empty module and makes it the present one.
    fn add(&mut self, path: String, file: &Path, parent: Option<usize>) {
        (self.module, self.scope) = (self.modules.len(), 0);
        self.modules.push(Module {
            path,
            file: file.to_owned(),
            parent,
            children: Vec::new(),
            items: BTreeSet::new(),
            macros: BTreeSet::new(),
            scopes: vec![Scope::default()],
            mentions: Vec::new(),
        });
    }

    /// Reads the module that a file holds.
    fn file(mut self, file: &Path, path: String, parent: Option<usize>) -> Result<(), String> {
        let text = (self.source)(file).ok_or_else(|| format!("{}: no such file", file.display()))?;
        let syntax = syn::parse_file(&text)
            .map_err(|error| format!("{}:{}: {error}", file.display(), error.span().start().line))?;
        if is_test(&syntax.attrs) {
            return Ok(());
        }
        self.add(path, file, parent);
        self.items(&syntax.items)
    }

    fn items(&mut self, items: &[Item]) -> Result<(), String> {
        for item in items {
            match item {
                Item::Mod(module) if is_test(&module.attrs) || module.ident == "tests" => {}
                Item::Mod(module) => self.child(module)?,
                _ => self.visit_item(item),
            }
        }
        Ok(())
    }

    /// Reads a module that the present one declares.
    fn child(&mut self, item: &syn::ItemMod) -> Result<(), String> {
        let (parent, name) = (self.module, item.ident.to_string());
        let path = format!("{}::{name}", self.modules[parent].path);
        let declarer = self.modules[parent].file.clone();
        let next = self.modules.len();
        if let Some((_, items)) = &item.content {
            let mut child = self.inside(self.dir.join(&name));
            child.add(path, &declarer, Some(parent));
            child.items(items)?;
        } else {
            let folder = self.dir.join(&name);
            let (file, dir) = match path_attribute(&item.attrs) {
                Some(named) => {
                    let file = declarer.parent().unwrap_or(Path::new("")).join(named);
                    let dir = file.parent().unwrap_or(Path::new("")).to_owned();
                    (file, dir)
                }
                None => {
                    let flat = self.dir.join(format!("{name}.rs"));
                    let file = if (self.source)(&flat).is_some() { flat } else { folder.join("mod.rs") };
                    (file, folder)
                }
            };
            self.inside(dir).file(&file, path, Some(parent))?;
        }
        // A file that is for tests only adds nothing.
        if self.modules.len() > next {
            self.modules[parent].children.push((name, next));
        }
        Ok(())
    }

    fn inside(&mut self, dir: PathBuf) -> Reader<'_> {
        Reader { source: self.source, modules: self.modules, module: 0, scope: 0, dir }
    }

    fn here(&mut self) -> &mut Module {
        &mut self.modules[self.module]
    }

    fn mention(&mut self, path: Vec<String>, call: bool, line: usize) {
        let scope = self.scope;
        self.here().mentions.push(Mention { scope, path, call, line });
    }

    /// Takes a path of the syntax tree down; one that starts with `::` leads to another crate.
    fn path(&mut self, path: &syn::Path, call: bool) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mention(names, call, first.ident.span().start().line);
        }
    }

    fn local(&mut self, name: String) {
        let scope = self.scope;
        self.here().scopes[scope].locals.insert(name);
    }

    /// Does `work` in a new scope inside the present one.
    fn scoped(&mut self, work: impl FnOnce(&mut Self)) {
        let outer = self.scope;
        let scopes = &mut self.here().scopes;
        scopes.push(Scope { outer: Some(outer), ..Scope::default() });
        self.scope = scopes.len() - 1;
        work(self);
        self.scope = outer;
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String], reexport: bool) {
        let scope = self.scope;
        let mut add = |mut path: Vec<String>, name: Option<String>, span: Span| {
            let own = path.last().is_some_and(|last| last == "self") && path.len() > 1;
            if own {
                path.pop();
            }
            let name =
                name.map(|name| if own && name == "self" { path[path.len() - 1].clone() } else { name });
            let line = span.start().line;
            self.modules[self.module].scopes[scope].imports.push(Import {
                path,
                name,
                reexport,
                expanded: false,
                line,
            });
        };
        let with = |ident: &syn::Ident| [prefix, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), reexport),
            UseTree::Name(name) => add(with(&name.ident), Some(name.ident.to_string()), name.ident.span()),
            UseTree::Rename(name) => add(with(&name.ident), Some(name.rename.to_string()), name.ident.span()),
            UseTree::Glob(glob) => add(prefix.to_vec(), None, glob.star_token.span),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix, reexport)),
        }
    }

    /// Names in the arguments or in the body of a macro.
    fn tokens(&mut self, stream: &TokenStream, body: bool) {
        self.scoped(|reader| {
            let found = tokens::scan(stream, body);
            for (path, call, line) in found.paths {
                reader.mention(path, call, line);
            }
            let scope = reader.scope;
            let here = &mut reader.here().scopes[scope];
            here.imports.extend(found.imports);
            here.locals.extend(found.locals);
        });
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        if let Some(name) = name(item) {
            if self.scope == 0 {
                self.here().items.insert(name);
            } else {
                self.local(name);
            }
        }
        match item {
            Item::Use(item) if item.leading_colon.is_none() => {
                let reexport = !matches!(item.vis, Visibility::Inherited);
                self.import(&item.tree, &[], reexport);
            }
            // A module inside a function.
            Item::Use(_) | Item::Mod(_) => {}
            Item::Macro(item) if item.ident.is_some() => {
                if let (Some(name), 0) = (&item.ident, self.scope) {
                    let name = name.to_string();
                    self.here().macros.insert(name);
                }
                self.tokens(&item.mac.tokens, true);
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_foreign_item(&mut self, item: &'ast syn::ForeignItem) {
        let name = match item {
            syn::ForeignItem::Fn(x) => &x.sig.ident,
            syn::ForeignItem::Static(x) => &x.ident,
            syn::ForeignItem::Type(x) => &x.ident,
            _ => return,
        };
        let name = name.to_string();
        self.here().items.insert(name);
        visit::visit_foreign_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.scoped(|reader| visit::visit_item_fn(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.scoped(|reader| visit::visit_impl_item_fn(reader, item));
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.scoped(|reader| visit::visit_trait_item_fn(reader, item));
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        let name = pattern.ident.to_string();
        // A capital starts the name of a constant or of a variant without fields.
        if name.starts_with(char::is_uppercase) {
            self.mention(vec![name], false, pattern.ident.span().start().line);
        } else {
            self.local(name);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path, false);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.path(&call.path, true);
        self.tokens(&call.tokens, false);
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
