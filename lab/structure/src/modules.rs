//! The modules of one library or program, and the imports between its files.
//!
//! An import goes from a file to the file that defines the item; re-exports are followed to that
//! file. `mod` and `pub use` are no imports, so a file that only declares and re-exports is in no
//! circle. Tests are left out, because a test may name everything that it tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Item, ItemMod, ItemUse, Meta, UseTree, Visibility,
    visit::{self, Visit},
};

/// By importing file and imported file, relative to the crate root's folder: the imported names.
pub(crate) type Imports = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The segments of a path, for example `["crate", "engine", "Queue"]`.
type Segments = Vec<String>;

/// The index of the crate root among the modules.
const ROOT: usize = 0;

/// Longest chain of re-exports that is followed to an item. A longer chain is a circle.
const LONGEST_CHAIN: usize = 32;

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// By name in scope: the path behind it.
    aliases: BTreeMap<String, Segments>,
    mentions: Vec<Segments>,
}

/// Returns all imports between the files of the crate with this root.
pub(crate) fn imports(root: &Path) -> Result<Imports> {
    let folder = root.parent().context("a crate root is in a folder")?;
    let mut modules = vec![Module::default()];
    read_file(&mut modules, ROOT, root, folder)?;
    let mut found = Imports::new();
    for (index, module) in modules.iter().enumerate() {
        for path in &module.mentions {
            let Some((target, _)) = resolve(&modules, index, path, 0) else {
                continue;
            };
            let (from, to) = (&module.file, &modules[target].file);
            if from != to {
                let relative = |file: &PathBuf| file.strip_prefix(folder).map(Path::to_owned);
                let name = path.last().cloned().unwrap_or_default();
                let names = found.entry((relative(from)?, relative(to)?)).or_default();
                names.insert(name);
            }
        }
    }
    Ok(found)
}

/// Reads a file as the content of `module`. The files of its child modules are in `folder`.
fn read_file(modules: &mut Vec<Module>, module: usize, path: &Path, folder: &Path) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} is missing", path.display()))?;
    let parsed =
        syn::parse_file(&text).with_context(|| format!("{} is not Rust", path.display()))?;
    path.clone_into(&mut modules[module].file);
    read_items(modules, module, &parsed.items, folder)
}

fn read_items(
    modules: &mut Vec<Module>,
    module: usize,
    items: &[Item],
    folder: &Path,
) -> Result<()> {
    for item in items {
        match item {
            item if is_for_tests(item) => {}
            Item::Mod(item) => read_module(modules, module, item, folder)?,
            item => {
                if let Item::Use(item) = item {
                    let mut leaves = Vec::new();
                    leaves_of(&item.tree, &mut Vec::new(), &mut leaves);
                    modules[module].aliases.extend(leaves);
                }
                let is_re_export = matches!(
                    item,
                    Item::Use(ItemUse { vis, .. }) if !matches!(vis, Visibility::Inherited)
                );
                if !is_re_export {
                    let mut mentions = Mentions::default();
                    mentions.visit_item(item);
                    modules[module].mentions.extend(mentions.paths);
                }
            }
        }
    }
    Ok(())
}

/// Reads a child module: its items in the same file, or its own file below `folder`.
fn read_module(
    modules: &mut Vec<Module>,
    parent: usize,
    item: &ItemMod,
    folder: &Path,
) -> Result<()> {
    let name = item.ident.to_string();
    let (below, flat) = (folder.join(&name), folder.join(format!("{name}.rs")));
    let child = modules.len();
    modules.push(Module {
        file: modules[parent].file.clone(),
        parent: Some(parent),
        ..Module::default()
    });
    modules[parent].children.insert(name, child);
    if let Some((_, items)) = &item.content {
        read_items(modules, child, items, &below)
    } else if flat.is_file() {
        read_file(modules, child, &flat, &below)
    } else {
        read_file(modules, child, &below.join("mod.rs"), &below)
    }
}

/// Follows a path that the module `from` names. The answer is the module that the path ends in, and
/// whether the path names an item of that module. `None` means a path to another crate.
fn resolve(
    modules: &[Module],
    from: usize,
    path: &[String],
    chain: usize,
) -> Option<(usize, bool)> {
    let (first, rest) = path.split_first()?;
    let mut module = match first.as_str() {
        "crate" => ROOT,
        "self" => from,
        "super" => modules[from].parent?,
        name => *modules[from].children.get(name)?,
    };
    for segment in rest {
        if segment == "super" {
            module = modules[module].parent?;
        } else if let Some(&child) = modules[module].children.get(segment) {
            module = child;
        } else if let Some(alias) = modules[module].aliases.get(segment)
            && chain < LONGEST_CHAIN
        {
            let (target, is_item) = resolve(modules, module, alias, chain + 1)?;
            if is_item {
                return Some((target, true));
            }
            module = target;
        } else {
            return Some((module, true));
        }
    }
    Some((module, false))
}

/// Collects the names that a `use` brings into scope, with their paths. A glob has the name `*`.
fn leaves_of(tree: &UseTree, before: &mut Segments, found: &mut Vec<(String, Segments)>) {
    let (last, name) = match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves_of(&path.tree, before, found);
            before.pop();
            return;
        }
        UseTree::Group(group) => {
            return group
                .items
                .iter()
                .for_each(|tree| leaves_of(tree, before, found));
        }
        UseTree::Glob(_) => ("self".to_owned(), "*".to_owned()),
        UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
    };
    // `use a::b::{self}` imports `b`.
    let mut path = before.clone();
    if last != "self" {
        path.push(last);
    }
    let name = if name == "self" {
        path.last().cloned().unwrap_or_default()
    } else {
        name
    };
    found.push((name, path));
}

/// Collects the paths in an item, also inside macro calls.
#[derive(Default)]
struct Mentions {
    paths: Vec<Segments>,
}

impl<'a> Visit<'a> for Mentions {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let mut leaves = Vec::new();
        leaves_of(&item.tree, &mut Vec::new(), &mut leaves);
        self.paths.extend(leaves.into_iter().map(|(_, path)| path));
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments = path.segments.iter();
        self.paths
            .push(segments.map(|it| it.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.visit_path(&call.path);
        mentions_in_tokens(call.tokens.clone(), &mut self.paths);
    }

    // `pub(crate)` imports nothing from the crate root.
    fn visit_visibility(&mut self, _: &'a Visibility) {}
}

fn mentions_in_tokens(tokens: TokenStream, found: &mut Vec<Segments>) {
    let mut path = Segments::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Ident(name) => {
                if colons != 2 {
                    found.push(std::mem::take(&mut path));
                }
                path.push(name.to_string());
                colons = 0;
            }
            token => {
                found.push(std::mem::take(&mut path));
                colons = 0;
                if let TokenTree::Group(group) = token {
                    mentions_in_tokens(group.stream(), found);
                }
            }
        }
    }
    found.push(path);
}

/// Tells whether an item stands under `cfg(test)` or `cfg(all(test, ..))`. Code under a `cfg` with
/// `any` or `not` counts as code of the product.
fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else {
            return false;
        };
        let mut names = Vec::new();
        mentions_in_tokens(list.tokens.clone(), &mut names);
        let has = |name: &str| names.iter().any(|path| path.as_slice() == [name]);
        list.path.is_ident("cfg") && has("test") && !has("any") && !has("not")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_followed_through_re_exports_and_inline_paths_and_tests_are_left_out() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted/src/lib.rs");
        let found: Vec<String> = imports(Path::new(root))
            .expect("the planted package")
            .into_iter()
            .map(|((from, to), names)| format!("{} {} {names:?}", from.display(), to.display()))
            .collect();
        assert_eq!(
            found,
            [
                r#"hall/first.rs room/second.rs {"Second"}"#,
                r#"room/second.rs room/third.rs {"Third"}"#,
                r#"room/third.rs hall/first.rs {"First"}"#,
            ]
        );
    }

    #[test]
    fn a_macro_call_mentions_paths_and_no_members_of_other_names() {
        let mut found = Vec::new();
        let code = "vec![a.b(), crate::a::run(super::E { f: g::h })]";
        mentions_in_tokens(code.parse().expect("tokens"), &mut found);
        let long = found.iter().filter(|path| path.len() > 1);
        let long: Vec<String> = long.map(|path| path.join("::")).collect();
        assert_eq!(long, ["crate::a::run", "super::E", "g::h"]);
    }
}
