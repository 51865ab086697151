//! Circles of folders, found in the imports between files.
//!
//! An import counts in the folder that its two files have in common, if the files are in different
//! subfolders there. A subfolder stands for everything below it. A file beside a subfolder may
//! import from it and be imported by it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use crate::modules::Imports;

/// The imports between the subfolders of one folder.
type Graph<'a> = BTreeMap<(PathBuf, PathBuf), Vec<(&'a Path, &'a Path, &'a BTreeSet<String>)>>;

/// Subfolders of one folder that reach each other through imports.
#[derive(Debug)]
pub(crate) struct Circle {
    pub(crate) folders: BTreeSet<PathBuf>,
    /// The imports that close the circle, one to a line.
    imports: String,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.folders.iter().map(|it| it.to_string_lossy()).collect();
        write!(f, "a circle of {}{}", nodes.join(", "), self.imports)
    }
}

/// Returns all circles of at least two folders.
pub(crate) fn circles(imports: &Imports) -> Vec<Circle> {
    let mut folders: BTreeMap<PathBuf, Graph<'_>> = BTreeMap::new();
    for ((from, to), names) in imports {
        let common: PathBuf = from
            .iter()
            .zip(to)
            .take_while(|(one, other)| one == other)
            .map(|(part, _)| part)
            .collect();
        let depth = common.iter().count() + 1;
        let is_below = |file: &Path| file.iter().count() > depth;
        if is_below(from) && is_below(to) {
            let folder = |file: &Path| file.iter().take(depth).collect();
            let graph = folders.entry(common).or_default();
            let edge = graph.entry((folder(from), folder(to))).or_default();
            edge.push((from, to, names));
        }
    }
    folders.values().flat_map(circles_of).collect()
}

fn circles_of(graph: &Graph<'_>) -> Vec<Circle> {
    let mut found: Vec<Circle> = Vec::new();
    for (start, _) in graph.keys() {
        let reached = reached_from(graph, start);
        let nodes: BTreeSet<PathBuf> = reached
            .into_iter()
            .filter(|node| reached_from(graph, node).contains(start))
            .collect();
        if !nodes.is_empty() && found.iter().all(|known| known.folders != nodes) {
            let mut imports = String::new();
            for ((from, to), files) in graph {
                if nodes.contains(from) && nodes.contains(to) {
                    for (from, to, names) in files {
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        let (from, to) = (from.display(), to.display());
                        imports += &format!("\n  {from} -> {to}: {}", names.join(", "));
                    }
                }
            }
            found.push(Circle {
                folders: nodes,
                imports,
            });
        }
    }
    found
}

fn reached_from(graph: &Graph<'_>, start: &Path) -> BTreeSet<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(node) = open.pop() {
        for (from, to) in graph.keys() {
            if *from == node && reached.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(imports: &[(&str, &str)]) -> Vec<Vec<String>> {
        let imports = imports
            .iter()
            .map(|(from, to)| ((from.into(), to.into()), BTreeSet::from(["Name".into()])))
            .collect();
        circles(&imports)
            .into_iter()
            .map(|it| {
                it.folders
                    .iter()
                    .map(|node| node.display().to_string())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn two_folders_that_import_each_other_form_a_circle_even_if_no_two_files_do() {
        assert_eq!(
            found(&[("a/x.rs", "b/y.rs"), ("b/z.rs", "a/w.rs")]),
            [["a", "b"]]
        );
    }

    #[test]
    fn a_circle_of_subfolders_is_found_where_they_are() {
        assert_eq!(
            found(&[
                ("a/b/x.rs", "a/c/y.rs"),
                ("a/c/y.rs", "a/d/z.rs"),
                ("a/d/e/z.rs", "a/b/x.rs"),
                ("a/b/x.rs", "f/x.rs"),
            ]),
            [["a/b", "a/c", "a/d"]]
        );
    }

    #[test]
    fn files_of_one_folder_and_files_beside_a_folder_may_import_each_other() {
        let imports = [
            ("a/x.rs", "a/y.rs"),
            ("a/y.rs", "a/x.rs"),
            ("b.rs", "a/x.rs"),
            ("a/x.rs", "b.rs"),
        ];
        assert_eq!(found(&imports), Vec::<Vec<String>>::new());
    }

    #[test]
    fn the_imports_that_close_a_circle_are_printed() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/planted/src/lib.rs");
        let imports = crate::modules::imports(Path::new(root)).expect("the planted package");
        let circles = circles(&imports);
        let [circle] = circles.as_slice() else {
            panic!("not one circle: {circles:?}");
        };
        assert_eq!(
            circle.to_string(),
            "a circle of hall, room\n  hall/first.rs -> room/second.rs: Second\n  \
             room/third.rs -> hall/first.rs: First"
        );
    }
}
