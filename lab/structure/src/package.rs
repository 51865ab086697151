//! The modules of one library or program of a package, and the imports between its files.
//!
//! An edge goes from a file to the file that defines the imported item; re-exports are followed to
//! that file. `mod` and `pub use` make no edge, so a file that only declares and re-exports is in
//! no circle. Tests are left out, because a test may name everything that it tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use proc_macro2::TokenStream;
use syn::{
    Attribute, Item, ItemFn, ItemMod, ItemUse, Meta, Visibility,
    spanned::Spanned as _,
    visit::{self, Visit},
};

use crate::{
    circles::Circle,
    paths::{self, Import, Segments},
};

/// Longest chain of imports and re-exports that is followed to an item. A longer chain is a circle
/// of re-exports, or an import of another crate.
const DEEPEST_CHAIN: usize = 32;

/// The index of the crate root among the modules.
const ROOT: usize = 0;

/// The modules of a library or a program of a package.
#[derive(Debug, Default)]
pub(crate) struct Package {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
    edges: BTreeMap<usize, BTreeSet<usize>>,
    /// By edge: the names that the first file imports from the second file.
    reasons: BTreeMap<(usize, usize), BTreeSet<String>>,
    code_lines: usize,
    longest: Longest,
}

#[derive(Debug, Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    private_imports: Vec<Import>,
    public_imports: Vec<Import>,
    mentions: Vec<Segments>,
}

/// The function with the most lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Longest {
    pub(crate) lines: usize,
    pub(crate) name: String,
}

/// The target of a path: a module, or an item in the file with this index.
#[derive(Clone, Copy, Debug)]
enum Target {
    Module(usize),
    ItemIn(usize),
}

impl Package {
    /// Reads `src/lib.rs` and `src/main.rs` of the package in `folder`, if these files exist.
    /// Programs in other files are not read.
    pub(crate) fn read_all(folder: &Path) -> Result<Vec<Self>> {
        ["src/lib.rs", "src/main.rs"]
            .map(|root| folder.join(root))
            .into_iter()
            .filter(|root| root.is_file())
            .map(|root| Self::read(&root))
            .collect()
    }

    fn read(root: &Path) -> Result<Self> {
        let mut package = Self::default();
        package.modules.push(Module::default());
        let folder = root
            .parent()
            .context("a crate root is in a folder")?
            .to_owned();
        package.read_file(root, &folder, ROOT)?;
        package.connect();
        Ok(package)
    }

    pub(crate) fn edges(&self) -> &BTreeMap<usize, BTreeSet<usize>> {
        &self.edges
    }

    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    pub(crate) fn code_lines(&self) -> usize {
        self.code_lines
    }

    pub(crate) fn longest(&self) -> &Longest {
        &self.longest
    }

    /// Describes the files of a circle, and the imports that close the circle.
    pub(crate) fn describe(&self, circle: &Circle) -> String {
        let inside: BTreeSet<usize> = circle.files.iter().copied().collect();
        let mut text = format!("a circle of {} files", inside.len());
        for (&(from, to), names) in &self.reasons {
            if inside.contains(&from) && inside.contains(&to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                text.push_str(&format!(
                    "\n  {} -> {}: {}",
                    self.files[from].display(),
                    self.files[to].display(),
                    names.join(", ")
                ));
            }
        }
        text
    }

    /// Reads a file as the content of `module`. The files of its child modules are in `folder`.
    fn read_file(&mut self, path: &Path, folder: &Path, module: usize) -> Result<()> {
        let text =
            fs::read_to_string(path).with_context(|| format!("{} is missing", path.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("{} is not Rust", path.display()))?;
        let file = self.files.len();
        self.files.push(path.to_owned());
        self.modules[module].file = file;
        let mut tested = BTreeSet::new();
        self.read_items(&parsed.items, folder, module, &mut tested)?;
        self.code_lines += text
            .lines()
            .enumerate()
            .filter(|(index, line)| {
                let line = line.trim();
                !line.is_empty() && !line.starts_with("//") && !tested.contains(&(index + 1))
            })
            .count();
        Ok(())
    }

    /// Reads the items of `module`. Adds the numbers of the lines of tests to `tested`.
    fn read_items(
        &mut self,
        items: &[Item],
        folder: &Path,
        module: usize,
        tested: &mut BTreeSet<usize>,
    ) -> Result<()> {
        for item in items {
            if attributes(item).iter().any(is_for_tests) {
                tested.extend(item.span().start().line..=item.span().end().line);
                continue;
            }
            match item {
                Item::Mod(item) => self.read_module(item, folder, module, tested)?,
                Item::Use(item) => self.add_imports(item, module),
                item => self.add_item(item, module),
            }
        }
        Ok(())
    }

    /// Reads a child module: its items in the same file, or its own file below `folder`.
    fn read_module(
        &mut self,
        item: &ItemMod,
        folder: &Path,
        parent: usize,
        tested: &mut BTreeSet<usize>,
    ) -> Result<()> {
        let name = item.ident.to_string();
        let child = self.modules.len();
        let file = self.modules[parent].file;
        self.modules.push(Module {
            file,
            parent: Some(parent),
            ..Module::default()
        });
        self.modules[parent].children.insert(name.clone(), child);
        let below = folder.join(&name);
        if let Some((_, items)) = &item.content {
            return self.read_items(items, &below, child, tested);
        }
        if let Some(path) = path_attribute(&item.attrs) {
            return self.read_file(&folder.join(path), folder, child);
        }
        let flat = folder.join(format!("{name}.rs"));
        let path = if flat.is_file() {
            flat
        } else {
            below.join("mod.rs")
        };
        self.read_file(&path, &below, child)
    }

    fn add_imports(&mut self, item: &ItemUse, module: usize) {
        let module = &mut self.modules[module];
        let list = match item.vis {
            Visibility::Inherited => &mut module.private_imports,
            _ => &mut module.public_imports,
        };
        list.extend(paths::imports(&item.tree));
    }

    fn add_item(&mut self, item: &Item, module: usize) {
        let mut functions = Functions::default();
        functions.visit_item(item);
        if functions.longest.lines > self.longest.lines {
            self.longest = functions.longest;
        }
        let module = &mut self.modules[module];
        module.private_imports.extend(functions.imports);
        module.items.extend(defined_name(item));
        paths::mentions(tokens(item), &mut module.mentions);
    }

    /// Makes the edges. All modules must be known, because a path may name a module of a later
    /// file.
    fn connect(&mut self) {
        let mut reasons: BTreeMap<(usize, usize), BTreeSet<String>> = BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            let imported = module
                .private_imports
                .iter()
                .filter(|import| import.name.is_some());
            for path in imported.map(|import| &import.path).chain(&module.mentions) {
                if let Some(Target::ItemIn(file)) = self.resolve(index, path, 0)
                    && file != module.file
                {
                    let name = path.last().cloned().unwrap_or_default();
                    reasons.entry((module.file, file)).or_default().insert(name);
                }
            }
        }
        for &(from, to) in reasons.keys() {
            self.edges.entry(from).or_default().insert(to);
        }
        self.reasons = reasons;
    }

    /// Follows a path that the module `from` names. `None` means that the search finds no module
    /// and no item of this package. For example, the path names a local variable or another crate.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Target> {
        if depth > DEEPEST_CHAIN {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(ROOT),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            name => self.look_up(from, name, depth)?,
        };
        for segment in rest {
            target = match target {
                Target::ItemIn(_) => return Some(target),
                Target::Module(module) if segment == "super" => {
                    Target::Module(self.modules[module].parent?)
                }
                Target::Module(module) => self.look_up(module, segment, depth)?,
            };
        }
        Some(target)
    }

    /// Finds a name in a module: an item, a child module or an import.
    fn look_up(&self, module: usize, name: &str, depth: usize) -> Option<Target> {
        let scope = &self.modules[module];
        if scope.items.contains(name) {
            return Some(Target::ItemIn(scope.file));
        }
        if let Some(&child) = scope.children.get(name) {
            return Some(Target::Module(child));
        }
        let imports = || scope.private_imports.iter().chain(&scope.public_imports);
        let named = imports().find(|import| import.name.as_deref() == Some(name));
        if let Some(import) = named {
            // `use serde;` names no module of this package, so the search reaches this import
            // again. The limit on the depth ends the search.
            return self.resolve(module, &import.path, depth + 1);
        }
        let mut globs = imports().filter(|import| import.name.is_none());
        globs.find_map(|glob| match self.resolve(module, &glob.path, depth + 1)? {
            Target::Module(source) if source != module => self.look_up(source, name, depth + 1),
            _ => None,
        })
    }
}

/// Collects the longest function of an item, and the imports inside its functions.
#[derive(Default)]
struct Functions {
    longest: Longest,
    imports: Vec<Import>,
}

impl Functions {
    fn measure(&mut self, name: &syn::Ident, span: proc_macro2::Span) {
        let lines = span.end().line + 1 - span.start().line;
        if lines > self.longest.lines {
            self.longest = Longest {
                lines,
                name: name.to_string(),
            };
        }
    }
}

impl<'a> Visit<'a> for Functions {
    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        self.measure(
            &item.sig.ident,
            item.sig
                .span()
                .join(item.block.span())
                .unwrap_or(item.span()),
        );
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.measure(
            &item.sig.ident,
            item.sig
                .span()
                .join(item.block.span())
                .unwrap_or(item.span()),
        );
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.imports.extend(paths::imports(&item.tree));
    }
}

fn tokens(item: &Item) -> TokenStream {
    quote::ToTokens::to_token_stream(item)
}

fn defined_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
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
    }
}

/// Tells whether an attribute is `cfg(test)` or `cfg(all(test, ..))`. Code under a `cfg` with `any`
/// or `not` counts as code of the product.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else {
        return false;
    };
    let mut names = Vec::new();
    paths::mentions(list.tokens.clone(), &mut names);
    let has = |name: &str| names.iter().any(|path| path.as_slice() == [name]);
    list.path.is_ident("cfg") && has("test") && !has("any") && !has("not")
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(literal) => match &literal.lit {
                    syn::Lit::Str(text) => Some(text.value()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circles::circles;

    fn planted() -> Package {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted");
        Package::read_all(&folder)
            .expect("the planted package")
            .remove(0)
    }

    /// Returns the names of the files in a circle, without their folders.
    fn names(package: &Package, circle: &Circle) -> Vec<String> {
        let name = |&file: &usize| package.files[file].file_name().map(ToOwned::to_owned);
        let names = circle.files.iter().filter_map(name);
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_planted_circle_is_found_through_re_exports_and_inline_paths() {
        let package = planted();
        let found = circles(package.edges());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            names(&package, &found[0]),
            ["first.rs", "second.rs", "third.rs"]
        );
        let text = package.describe(&found[0]);
        assert!(text.starts_with("a circle of 3 files"), "{text}");
        assert!(
            text.contains("third.rs -> ") && text.contains("first.rs: First"),
            "{text}"
        );
    }

    #[test]
    fn tests_and_declarations_make_no_edge() {
        let package = planted();
        assert!(
            package.edges().values().flatten().all(|&file| file != 0),
            "{package:?}"
        );
        assert!(
            package
                .files()
                .iter()
                .all(|file| !file.ends_with("tests.rs"))
        );
    }

    #[test]
    fn lines_of_code_are_counted_without_comments_and_tests() {
        assert_eq!(planted().code_lines(), 19);
    }

    #[test]
    fn the_longest_function_is_reported_with_its_line_count() {
        let package = planted();
        assert_eq!(
            (package.longest().name.as_str(), package.longest().lines),
            ("long", 5)
        );
    }
}
