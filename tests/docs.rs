//! Tests of the documentation: the main items have an example that a caller can copy, and the named
//! versions of drivers are the versions in use.

use std::{collections::BTreeSet, fs, path::Path};

/// Reads a file of this checkout.
fn read_file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads a `Cargo.toml`.
fn read_manifest(path: &str) -> toml::Table {
    toml::from_str(&read_file(path)).unwrap()
}

/// The documentation comment of the item whose line starts with `item`.
fn documentation(source: &str, item: &str) -> String {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let found = lines.iter().position(|line| line.starts_with(item));
    let at = found.unwrap_or_else(|| panic!("{item:?} is not there"));
    let above = lines[..at].iter().rev();
    let mut docs: Vec<_> = above
        .take_while(|line| line.starts_with("///") || line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("///"))
        .collect();
    docs.reverse();
    docs.join("\n")
}

/// The code of the first example that rustdoc compiles.
fn example(docs: &str) -> Option<String> {
    let mut lines = docs.lines().map(str::trim);
    while let Some(fence) = lines.find(|line| line.starts_with("```")) {
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        if matches!(fence, "```" | "```no_run") {
            return Some(block.join("\n"));
        }
    }
    None
}

#[test]
fn the_main_items_have_an_example_that_callers_can_copy() {
    for (file, item) in [
        ("crates/core/src/client/builder.rs", "pub async fn run<"),
        (
            "crates/core/src/client/builder.rs",
            "pub struct LockBuilder",
        ),
        ("crates/core/src/clock.rs", "pub struct ManualClock"),
        ("crates/core/src/fence/file.rs", "pub struct FencedFile"),
        ("crates/core/src/fence/guard.rs", "pub struct FenceGuard"),
        ("crates/core/src/client/guard.rs", "pub struct Guard "),
        ("crates/core/src/client/locker.rs", "pub fn lock_all<"),
        ("crates/core/src/client/locker.rs", "pub struct Locker "),
        ("crates/core/src/client/scope.rs", "pub struct Scope"),
        ("crates/core/src/types/ticket.rs", "pub struct Ticket"),
        ("src/config/file.rs", "pub struct Config"),
        ("src/connect.rs", "pub async fn connect("),
        ("src/connect.rs", "pub async fn open("),
        ("src/fence.rs", "pub use distlock_redis::fence as redis;"),
        ("src/fence.rs", "pub use distlock_sql::fence::mysql;"),
        ("src/fence.rs", "pub use distlock_sql::fence::postgres;"),
        ("src/fence.rs", "pub use distlock_sql::fence::sqlite;"),
        (
            "src/fence.rs",
            "pub use distlock_zookeeper::fence as zookeeper;",
        ),
    ] {
        let example = example(&documentation(&read_file(file), item));
        let example = example.unwrap_or_else(|| panic!("{item}: no example"));
        assert!(example.contains("distlock::"), "{item}: {example}");
        // The packages behind the library are no dependencies of a caller, so an example must not
        // name them.
        assert!(!example.contains("distlock_"), "{item}: {example}");
    }
}

#[test]
fn the_page_names_the_drivers_of_the_fence_helpers_with_their_versions() {
    let page = read_file("src/fence.rs");
    let root = read_manifest("Cargo.toml");
    let mut helpers = Vec::new();
    for row in page.lines().filter(|row| row.starts_with("//! | [`")) {
        let [_, helper, _, line, _] = row.split('`').collect::<Vec<_>>()[..] else {
            panic!("not two cells: {row}");
        };
        helpers.push(helper.to_owned());
        let line: toml::Table = toml::from_str(line).unwrap();
        let (driver, told) = line.iter().next().unwrap();
        let used = &root["workspace"]["dependencies"][driver];
        assert_eq!(told["version"], used["version"], "{row}");
        assert_eq!(
            told.get("default-features"),
            used.get("default-features"),
            "{row}"
        );
        // The feature of a backend must enable all features that its helper needs.
        let folder = if driver == "sqlx" { "sql" } else { helper };
        let backend = read_manifest(&format!("backends/{folder}/Cargo.toml"));
        let brought = backend["features"].get(helper);
        for feature in told["features"].as_array().unwrap() {
            let by_backend = format!("{driver}/{}", feature.as_str().unwrap());
            let by_backend = brought.is_some_and(|all| {
                let mut all = all.as_array().unwrap().iter();
                all.any(|one| one.as_str() == Some(&by_backend))
            });
            let always = used["features"].as_array().unwrap().contains(feature);
            assert!(by_backend || always, "{row}: {feature}");
        }
    }
    assert_eq!(
        helpers,
        ["mysql", "postgres", "sqlite", "redis", "zookeeper"]
    );
}

#[test]
fn the_dependencies_of_the_guide_are_those_of_its_snippets() {
    let guide = read_file("docs/guide.md");
    let (_, block) = guide.split_once("```toml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let block: toml::Table = toml::from_str(block).unwrap();
    let listed = block["dependencies"].as_table().unwrap();
    let root = read_manifest("Cargo.toml");
    for (name, line) in listed {
        let used = &root["workspace"]["dependencies"][name];
        let version = |line: &toml::Value| {
            let version = line.get("version").unwrap_or(line).as_str();
            version.map(str::to_owned)
        };
        let (told, used) = (version(line), version(used).unwrap());
        // The packages of this checkout have a path.
        let told = told.or_else(|| Some(used.clone()).filter(|_| line.get("path").is_some()));
        assert!(used.starts_with(&told.unwrap()), "{name}: {used}");
    }
    // Every crate that a snippet of the guide or of the recipes names.
    let both = guide + &read_file("docs/recipes.md");
    let snippets = both.split("```rust").skip(1);
    let named: BTreeSet<_> = snippets
        .flat_map(|rest| rest.split("```").next().unwrap().split("::"))
        .filter_map(|before| {
            before
                .rsplit(|it: char| !it.is_alphanumeric() && it != '_')
                .next()
        })
        .filter(|name| {
            root["workspace"]["dependencies"]
                .get(name.replace('_', "-"))
                .is_some()
        })
        .map(|name| name.replace('_', "-"))
        .collect();
    assert_eq!(named, listed.keys().cloned().collect());
}
