//! The README's table of features names every feature of the library, with the true number of
//! crates: a program pays for each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

const README: &str = include_str!("../README.md");
const MANIFEST: &str = include_str!("../Cargo.toml");

/// The most crates that a program with this feature may need.
const BOUNDS: [(&str, usize); 2] = [("memory", 60), ("redis", 100)];

/// The rows of the table: the features to build with, and the number of crates.
fn rows() -> BTreeMap<Vec<String>, usize> {
    let (_, table) = README.split_once("| feature | adds | crates |\n").unwrap();
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let [_, features, _, crates, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("not three cells: {row}");
        };
        let features = features.split('`').skip(1).step_by(2).map(str::to_owned);
        (features.collect(), crates.trim().parse().unwrap())
    })
    .collect()
}

/// The number of crates in the tree of the library with these features.
fn count_crates(features: &[String]) -> usize {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "-p",
            "distlock",
            "-e",
            "normal,build",
        ])
        // The numbers of other platforms differ.
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .args(["--no-default-features", "--features", &features.join(",")])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let tree = String::from_utf8(output.stdout).unwrap();
    // A crate appears once for each path to it, with or without further marks.
    let crates = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    crates.collect::<BTreeSet<_>>().len()
}

#[test]
fn the_table_of_features_has_the_true_number_of_crates() {
    let rows = rows();
    let counted: BTreeMap<_, _> = rows
        .keys()
        .map(|features| (features.clone(), count_crates(features)))
        .collect();
    assert_eq!(rows, counted);
    for (feature, most) in BOUNDS {
        let crates = rows[&vec![feature.to_owned()]];
        assert!(
            crates <= most,
            "{feature}: {crates} crates, and {most} are allowed"
        );
    }
}

#[test]
fn the_table_of_features_names_every_feature() {
    let manifest: toml::Table = toml::from_str(MANIFEST).unwrap();
    let known = manifest["features"].as_table().unwrap().keys();
    // Nobody enables this one by name.
    let known = known.filter(|name| *name != "default");
    let named = rows().into_keys().map(|features| features[0].clone());
    assert_eq!(
        named.collect::<BTreeSet<_>>(),
        known.cloned().collect::<BTreeSet<_>>()
    );
}
