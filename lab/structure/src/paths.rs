//! Finds the paths in Rust code, such as `crate::engine::Queue`, as lists of segments. The paths
//! stay as they are written: this module never looks up their targets.

use proc_macro2::{TokenStream, TokenTree};
use syn::UseTree;

/// The segments of a path, for example `["crate", "engine", "Queue"]`.
pub(crate) type Segments = Vec<String>;

/// One imported name of a `use` declaration.
#[derive(Debug)]
pub(crate) struct Import {
    /// The name in scope. `None` means a glob.
    pub(crate) name: Option<String>,
    pub(crate) path: Segments,
}

/// Returns the imports of a `use` declaration.
pub(crate) fn imports(tree: &UseTree) -> Vec<Import> {
    let mut found = Vec::new();
    collect_imports(tree, &mut Vec::new(), &mut found);
    found
}

fn collect_imports(tree: &UseTree, before: &mut Segments, found: &mut Vec<Import>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            collect_imports(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                collect_imports(tree, before, found);
            }
        }
        UseTree::Glob(_) => found.push(Import {
            name: None,
            path: before.clone(),
        }),
        UseTree::Name(name) => found.push(leaf(before, &name.ident.to_string(), None)),
        UseTree::Rename(rename) => {
            let name = rename.rename.to_string();
            found.push(leaf(before, &rename.ident.to_string(), Some(name)));
        }
    }
}

/// Returns the import of one name. For example, `use a::b::{self}` imports `b`.
fn leaf(before: &[String], last: &str, renamed: Option<String>) -> Import {
    let mut path = before.to_vec();
    if last != "self" || path.is_empty() {
        path.push(last.to_owned());
    }
    Import {
        name: renamed.or_else(|| path.last().cloned()),
        path,
    }
}

/// Collects each path and each single name in a piece of code, also inside macro calls.
///
/// Names after a dot are fields and methods, which are left out. A file can call a method without
/// an import from the file that defines the method.
pub(crate) fn mentions(tokens: TokenStream, found: &mut Vec<Segments>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => {
                mentions(group.stream(), found);
                at += 1;
            }
            TokenTree::Ident(_) if is_member(&tokens, at) => at += 1,
            TokenTree::Ident(first) => {
                let mut path = vec![first.to_string()];
                at += 1;
                while let Some(next) = next_segment(&tokens, at) {
                    path.push(next);
                    at += 3;
                }
                found.push(path);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
        }
    }
}

/// Tells whether the name at `at` follows a single dot or the quote of a lifetime.
fn is_member(tokens: &[TokenTree], at: usize) -> bool {
    let is = |back: usize, mark: char| {
        at.checked_sub(back).is_some_and(
            |before| matches!(&tokens[before], TokenTree::Punct(punct) if punct.as_char() == mark),
        )
    };
    is(1, '\'') || (is(1, '.') && !is(2, '.'))
}

fn next_segment(tokens: &[TokenTree], at: usize) -> Option<String> {
    let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ':');
    match tokens.get(at..at + 3)? {
        [first, second, TokenTree::Ident(name)] if colon(first) && colon(second) => {
            Some(name.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentioned(code: &str) -> Vec<String> {
        let mut found = Vec::new();
        mentions(code.parse().expect("tokens"), &mut found);
        found.into_iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_are_found_in_calls_types_and_macros() {
        assert_eq!(
            mentioned("crate::a::run(b::C { d: vec![super::E] })"),
            ["crate::a::run", "b::C", "d", "vec", "super::E"]
        );
    }

    #[test]
    fn members_and_lifetimes_are_left_out_and_ends_of_ranges_are_not() {
        assert_eq!(mentioned("a.b().c; &'d x; 0..LIMIT"), ["a", "x", "LIMIT"]);
    }

    #[test]
    fn each_leaf_of_a_use_is_an_import() {
        let item: syn::ItemUse =
            syn::parse_str("use crate::a::{self, B as C, d::*, e::F};").expect("a use");
        let leaves: Vec<_> = imports(&item.tree)
            .into_iter()
            .map(|import| (import.name.unwrap_or_default(), import.path.join("::")))
            .collect();
        let expected = [
            ("a", "crate::a"),
            ("C", "crate::a::B"),
            ("", "crate::a::d"),
            ("F", "crate::a::e::F"),
        ];
        assert_eq!(
            leaves,
            expected.map(|(name, path)| (name.to_owned(), path.to_owned()))
        );
    }
}
