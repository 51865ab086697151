//! Circles in a graph of files: its strongly connected components.

use std::collections::{BTreeMap, BTreeSet};

/// The files of one circle, by index. Each file reaches each other file through imports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    pub(crate) files: Vec<usize>,
}

/// Returns all circles of at least two files, the largest first.
///
/// The algorithm is Tarjan's ("Depth-First Search and Linear Graph Algorithms", 1972).
pub(crate) fn circles(edges: &BTreeMap<usize, BTreeSet<usize>>) -> Vec<Circle> {
    let mut search = Search::new(edges);
    for &file in edges.keys() {
        if !search.order.contains_key(&file) {
            search.visit(file);
        }
    }
    search
        .found
        .sort_by_key(|circle| std::cmp::Reverse(circle.files.len()));
    search.found
}

struct Search<'a> {
    edges: &'a BTreeMap<usize, BTreeSet<usize>>,
    order: BTreeMap<usize, usize>,
    lowest: BTreeMap<usize, usize>,
    path: Vec<usize>,
    found: Vec<Circle>,
}

impl<'a> Search<'a> {
    fn new(edges: &'a BTreeMap<usize, BTreeSet<usize>>) -> Self {
        Self {
            edges,
            order: BTreeMap::new(),
            lowest: BTreeMap::new(),
            path: Vec::new(),
            found: Vec::new(),
        }
    }

    fn visit(&mut self, file: usize) {
        let own = self.order.len();
        self.order.insert(file, own);
        self.lowest.insert(file, own);
        self.path.push(file);
        for &next in self.edges.get(&file).into_iter().flatten() {
            let reached = match self.order.get(&next) {
                None => {
                    self.visit(next);
                    self.lowest[&next]
                }
                Some(&seen) if self.path.contains(&next) => seen,
                Some(_) => continue,
            };
            let lowest = self.lowest[&file].min(reached);
            self.lowest.insert(file, lowest);
        }
        if self.lowest[&file] == own {
            let start = self.path.iter().position(|&on| on == file).unwrap_or(0);
            let mut files = self.path.split_off(start);
            if files.len() > 1 {
                files.sort_unstable();
                self.found.push(Circle { files });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(usize, usize)]) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut graph: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for &(from, to) in edges {
            graph.entry(from).or_default().insert(to);
        }
        graph
    }

    fn found(edges: &[(usize, usize)]) -> Vec<Vec<usize>> {
        circles(&graph(edges))
            .into_iter()
            .map(|circle| circle.files)
            .collect()
    }

    #[test]
    fn an_acyclic_graph_has_no_circle() {
        assert_eq!(found(&[(0, 1), (0, 2), (1, 2)]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn two_circles_joined_by_one_import_are_reported_separately() {
        assert_eq!(
            found(&[(0, 1), (1, 0), (1, 2), (2, 3), (3, 4), (4, 2)]),
            [vec![2, 3, 4], vec![0, 1]]
        );
    }

    #[test]
    fn a_file_that_imports_from_itself_is_no_circle() {
        assert_eq!(found(&[(0, 0)]), Vec::<Vec<usize>>::new());
    }
}
