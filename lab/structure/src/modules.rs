//! The modules of one library or program, and the imports between its files.
//!
//! An import goes from a file to the file that defines the item; re-exports, aliases and globs are
//! followed to that file. `pub use` is an import as well. The module reads words and groups, and
//! knows little of Rust's grammar: every word that may name an item counts. Tests are left out,
//! because a test may name everything that it tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    iter::Peekable,
    path::{Path, PathBuf},
    vec::IntoIter,
};

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// By importing file and imported file, relative to the crate root's folder: the imported names.
pub(crate) type Imports = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The segments of a path, for example `["crate", "engine", "Queue"]`.
type Segments = Vec<String>;

/// A module, and the item of it, if a path names one.
type Target = (usize, Option<String>);

/// The index of the crate root among the modules.
const ROOT: usize = 0;

/// The words that stand before the name of an item.
const ITEMS: [&str; 8] = [
    "const", "enum", "fn", "static", "struct", "trait", "type", "union",
];

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// By name in scope: the path behind it.
    aliases: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
    mentions: BTreeSet<Segments>,
}

enum Token {
    /// A word, or several with `::` between them.
    Path(Segments),
    Group(Delimiter, Vec<Token>),
    Mark(char),
    /// The attribute of an item that only tests have.
    ForTests,
}

/// Returns all imports between the files of the crate with this root.
pub(crate) fn imports(root: &Path) -> Result<Imports> {
    let folder = root.parent().context("a crate root is in a folder")?;
    let mut modules = vec![Module::default()];
    read_file(&mut modules, ROOT, root, folder)?;
    let mut found = Imports::new();
    for (index, module) in modules.iter().enumerate() {
        for path in &module.mentions {
            let Some((target, item)) = resolve(&modules, index, path, &mut BTreeSet::new()) else {
                continue;
            };
            let (from, to) = (&module.file, &modules[target].file);
            if from != to {
                let relative = |file: &PathBuf| file.strip_prefix(folder).map(Path::to_owned);
                let names = found.entry((relative(from)?, relative(to)?)).or_default();
                names.extend(item.or(path.last().cloned()));
            }
        }
    }
    Ok(found)
}

/// Reads a file as the content of `module`. The files of its child modules are in `folder`.
fn read_file(modules: &mut Vec<Module>, module: usize, path: &Path, folder: &Path) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} is missing", path.display()))?;
    let stream = text.parse::<TokenStream>();
    let stream = stream.map_err(|error| anyhow!("{} is not Rust: {error}", path.display()))?;
    path.clone_into(&mut modules[module].file);
    read_tokens(modules, module, tokens_of(stream), folder)
}

/// Joins the words of each path.
fn tokens_of(stream: TokenStream) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut colons = 0;
    for tree in stream {
        match tree {
            TokenTree::Punct(mark) if mark.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(word) => {
                let word = word.to_string().trim_start_matches("r#").to_owned();
                match tokens.last_mut() {
                    Some(Token::Path(path)) if colons == 2 => path.push(word),
                    _ => tokens.push(Token::Path(vec![word])),
                }
            }
            TokenTree::Group(group) => {
                let text = group.stream().to_string().replace(' ', "");
                // Code under a `cfg` with `any` or `not` counts as code of the product.
                let for_tests = text == "cfg(test)" || text.starts_with("cfg(all(test,");
                tokens.push(match for_tests {
                    true => Token::ForTests,
                    false => Token::Group(group.delimiter(), tokens_of(group.stream())),
                });
            }
            TokenTree::Punct(mark) => tokens.push(Token::Mark(mark.as_char())),
            TokenTree::Literal(_) => {}
        }
        colons = 0;
    }
    tokens
}

/// Reads the items of a module, or a part of an item.
fn read_tokens(
    modules: &mut Vec<Module>,
    module: usize,
    tokens: Vec<Token>,
    folder: &Path,
) -> Result<()> {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            Token::ForTests => {
                let is_end = |token: &Token| {
                    matches!(
                        token,
                        Token::Mark(';' | ',') | Token::Group(Delimiter::Brace, _)
                    )
                };
                tokens.find(is_end);
            }
            // The name of a field or a method.
            Token::Mark('.') => {
                tokens.next_if(|token| matches!(token, Token::Path(path) if path.len() == 1));
            }
            Token::Mark(_) => {}
            Token::Group(_, inner) => read_tokens(modules, module, inner, folder)?,
            Token::Path(path) => match (path[0].as_str(), tokens.peek()) {
                ("use", _) => read_use(&mut modules[module], &mut tokens, &Segments::new()),
                ("mod", Some(Token::Path(name))) => {
                    let name = name[0].clone();
                    tokens.next();
                    read_module(modules, module, name, tokens.next(), folder)?;
                }
                (word, Some(Token::Path(name))) if ITEMS.contains(&word) => {
                    modules[module].items.insert(name[0].clone());
                }
                _ => {
                    modules[module].mentions.insert(path);
                }
            },
        }
    }
    Ok(())
}

/// Reads a child module: its items in the group behind its name, or its own file below `folder`.
fn read_module(
    modules: &mut Vec<Module>,
    parent: usize,
    name: String,
    behind: Option<Token>,
    folder: &Path,
) -> Result<()> {
    let (below, flat) = (folder.join(&name), folder.join(format!("{name}.rs")));
    let child = modules.len();
    modules.push(Module {
        file: modules[parent].file.clone(),
        parent: Some(parent),
        ..Module::default()
    });
    modules[parent].children.insert(name, child);
    match behind {
        Some(Token::Group(_, items)) => read_tokens(modules, child, items, &below),
        _ if flat.is_file() => read_file(modules, child, &flat, &below),
        _ => read_file(modules, child, &below.join("mod.rs"), &below),
    }
}

/// Reads the names that a `use` brings into scope, up to its end. `before` is the path before a
/// group.
fn read_use(module: &mut Module, tokens: &mut Peekable<IntoIter<Token>>, before: &Segments) {
    let mut path = before.clone();
    let mut name = None;
    while let Some(token) = tokens.next() {
        match token {
            Token::Path(word) if word == ["as"] => {
                name = tokens.next().and_then(|token| match token {
                    Token::Path(word) => word.into_iter().next(),
                    _ => None,
                });
            }
            Token::Path(words) => path.extend(words),
            Token::Group(_, group) => {
                read_use(module, &mut group.into_iter().peekable(), &path);
                path.clear();
            }
            Token::Mark('*') => module.globs.push(std::mem::take(&mut path)),
            Token::ForTests => {}
            Token::Mark(mark) => {
                add_import(
                    module,
                    std::mem::replace(&mut path, before.clone()),
                    name.take(),
                );
                if mark == ';' {
                    return;
                }
            }
        }
    }
    add_import(module, path, name);
}

/// Adds a path that a `use` brings into scope, under another name if `name` is one.
fn add_import(module: &mut Module, mut path: Segments, name: Option<String>) {
    // `use a::b::{self}` imports `b`.
    path.pop_if(|last| *last == "self");
    if let Some(last) = path.last() {
        let name = name.unwrap_or_else(|| last.clone());
        module.aliases.insert(name, path.clone());
        module.mentions.insert(path);
    }
}

/// Follows a path that the module `from` names. `None` means a path to another crate, or a word
/// that names no item. `seen` holds what was looked up, because a glob may lead back to its own
/// module.
fn resolve(
    modules: &[Module],
    from: usize,
    path: &[String],
    seen: &mut BTreeSet<(usize, String)>,
) -> Option<Target> {
    let mut found = (from, None);
    for (at, segment) in path.iter().enumerate() {
        found = match (segment.as_str(), at) {
            ("crate", 0) => (ROOT, None),
            ("self", 0) => (from, None),
            ("super", _) => (modules[found.0].parent?, None),
            (name, 0) => look_up(modules, from, name, seen)?,
            // A macro may have made the item.
            (name, _) => look_up(modules, found.0, name, seen)
                .unwrap_or_else(|| (found.0, Some(name.to_owned()))),
        };
        if found.1.is_some() {
            break;
        }
    }
    Some(found)
}

/// Looks a name up in the scope of a module.
fn look_up(
    modules: &[Module],
    index: usize,
    name: &str,
    seen: &mut BTreeSet<(usize, String)>,
) -> Option<Target> {
    let module = &modules[index];
    if let Some(&child) = module.children.get(name) {
        return Some((child, None));
    }
    if !seen.insert((index, name.to_owned())) {
        return None;
    }
    let alias = module.aliases.get(name);
    if let Some(found) = alias.and_then(|path| resolve(modules, index, path, seen)) {
        return Some(found);
    }
    if module.items.contains(name) {
        return Some((index, Some(name.to_owned())));
    }
    let mut globs = module.globs.iter();
    globs.find_map(|path| match resolve(modules, index, path, seen)? {
        (target, None) => look_up(modules, target, name, seen),
        // The variants of an enum.
        (_, Some(_)) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_attributes_are_read_from_tokens() {
        let tokens = |code: &str| tokens_of(code.parse().expect("tokens"));
        let mut modules = vec![Module::default()];
        let code = "#[cfg(test)] use a::b; #[cfg(any(test, fuzzing))] use c::{d as e, f::{self}};
            fn run() { vec![x.y(), crate::g::run(super::E { h: i::j })] }";
        read_tokens(&mut modules, ROOT, tokens(code), Path::new("")).expect("no module");
        let module = &modules[ROOT];
        let long = module.mentions.iter().filter(|path| path.len() > 1);
        let long: Vec<String> = long.map(|path| path.join("::")).collect();
        assert_eq!(long, ["c::d", "c::f", "crate::g::run", "i::j", "super::E"]);
        assert!(!module.mentions.contains(&vec!["y".to_owned()]));
        assert_eq!(module.aliases.keys().collect::<Vec<_>>(), ["e", "f"]);
        assert_eq!(module.items.iter().collect::<Vec<_>>(), ["run"]);
    }
}
