//! Circles of folders, found in the imports between files.
//!
//! An import counts in the folder that its two files have in common, if the files are in different
//! subfolders there. A subfolder stands for everything below it. A file beside a subfolder may
//! import from it and be imported by it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::modules::Imports;

/// By importing folder and imported folder: the imports, one to a line.
type Edges = BTreeMap<(PathBuf, PathBuf), String>;

/// Returns all circles of at least two folders, each with the imports that close it.
pub(crate) fn circles(imports: &Imports) -> BTreeMap<BTreeSet<PathBuf>, String> {
    let mut edges = Edges::new();
    for ((from, to), names) in imports {
        let common = from.iter().zip(to).take_while(|(one, other)| one == other);
        let depth = common.count() + 1;
        if from.iter().count() > depth && to.iter().count() > depth {
            let folder = |file: &Path| file.iter().take(depth).collect();
            let lines = edges.entry((folder(from), folder(to))).or_default();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (from, to) = (from.display(), to.display());
            *lines += &format!("\n  {from} -> {to}: {}", names.join(", "));
        }
    }
    let mut circles = BTreeMap::new();
    for (start, _) in edges.keys() {
        let mut folders = reached_from(&edges, start);
        folders.retain(|folder| reached_from(&edges, folder).contains(start));
        if !folders.is_empty() {
            let is_inside =
                |(from, to): &(PathBuf, PathBuf)| folders.contains(from) && folders.contains(to);
            let lines = edges.iter().filter(|(edge, _)| is_inside(edge));
            let lines = lines.map(|(_, lines)| lines.as_str()).collect();
            circles.insert(folders, lines);
        }
    }
    circles
}

fn reached_from(edges: &Edges, start: &Path) -> BTreeSet<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for (from, to) in edges.keys() {
            if from == node && reached.insert(to.clone()) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(imports: &[(&str, &str)]) -> Vec<String> {
        let imports = imports
            .iter()
            .map(|(from, to)| ((from.into(), to.into()), BTreeSet::from(["Name".into()])))
            .collect();
        circles(&imports).into_keys().map(|it| names(&it)).collect()
    }

    fn names(folders: &BTreeSet<PathBuf>) -> String {
        let names: Vec<_> = folders.iter().map(|it| it.to_string_lossy()).collect();
        names.join(" ")
    }

    #[test]
    fn two_folders_that_import_each_other_form_a_circle_even_if_no_two_files_do() {
        let imports = [("a/x.rs", "b/y.rs"), ("b/z.rs", "a/w.rs")];
        assert_eq!(found(&imports), ["a b"]);
    }

    #[test]
    fn a_circle_of_subfolders_is_found_where_they_are() {
        let imports = [
            ("a/b/x.rs", "a/c/y.rs"),
            ("a/c/y.rs", "a/d/z.rs"),
            ("a/d/e/z.rs", "a/b/x.rs"),
            ("a/b/x.rs", "f/x.rs"),
        ];
        assert_eq!(found(&imports), ["a/b a/c a/d"]);
    }

    #[test]
    fn files_of_one_folder_and_files_beside_a_folder_may_import_each_other() {
        let imports = [
            ("a/x.rs", "a/y.rs"),
            ("a/y.rs", "a/x.rs"),
            ("b.rs", "a/x.rs"),
            ("a/x.rs", "b.rs"),
        ];
        assert!(found(&imports).is_empty());
    }

    /// The planted package has one circle for each form of an import, and no other circle.
    #[test]
    fn each_form_of_an_import_closes_a_circle() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted/src/lib.rs");
        let imports = crate::modules::imports(Path::new(root)).expect("the planted package");
        let circles = circles(&imports);
        let found: Vec<_> = circles
            .iter()
            .map(|(folders, lines)| format!("{}{lines}", names(folders)))
            .collect();
        assert_eq!(
            found,
            [
                "alias_one alias_two\n  alias_one/key.rs -> alias_two/door.rs: Door\n  \
                 alias_two/door.rs -> alias_one/key.rs: Key",
                "glob_one glob_two\n  glob_one/key.rs -> glob_two/door.rs: Lock\n  \
                 glob_two/door.rs -> glob_one/key.rs: GlobKey",
                "hall room\n  hall/first.rs -> room/second.rs: Second\n  \
                 room/third.rs -> hall/first.rs: First",
                "re_export_one re_export_two\n  re_export_one/mod.rs -> re_export_two/mod.rs: \
                 Gate\n  re_export_two/mod.rs -> re_export_one/mod.rs: Fence",
            ]
        );
    }
}
