//! Tests that each test which the threat model names exists.

use std::path::Path;

const MODEL: &str = include_str!("../SECURITY.md");

/// The names between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_row_of_the_threat_model_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = MODEL.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.split(" | ").collect();
        let [who, _, _, tests] = cells[..] else {
            panic!("not four cells: {line}");
        };
        (who != "who").then_some((line, tests))
    });
    let mut seen = 0;
    for (line, tests) in rows {
        // The name of a file follows the names of the tests in this file.
        let mut rest = tests;
        while let Some((names, after)) = rest.split_once(" (") {
            let (file, after) = after.split_once(')').unwrap();
            let code = std::fs::read_to_string(root.join(file));
            let code = code.unwrap_or_else(|error| panic!("{file}: {error}: {line}"));
            let names = quoted(names);
            assert!(!names.is_empty(), "{line}");
            for name in names {
                let defined = format!("fn {name}(");
                assert!(code.contains(&defined), "{name} is not in {file}");
                seen += 1;
            }
            rest = after;
        }
        assert_eq!(rest.trim_end_matches([' ', '|']), "", "{line}");
    }
    assert!(seen > 25, "{seen}");
}
