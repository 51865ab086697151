//! Runs every target over its corpus without a fuzzer. Proves that `TARGETS`, `fuzz/corpus` and
//! `fuzz/libfuzzer` contain the same targets.

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use distlock_fuzz_targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_of_the_corpus_passes_its_target() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        let inputs = files(&fuzz().join("corpus").join(name));
        assert!(inputs.len() >= 5, "{name}: only {} inputs", inputs.len());
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
                broken.push(input);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn each_target_has_a_binary_and_a_corpus() {
    let manifest = fs::read_to_string(fuzz().join("libfuzzer/Cargo.toml")).unwrap();
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(targets.len() >= 10 && targets.len() == TARGETS.len());
    let named = |folder: &str| -> BTreeSet<String> {
        let stems = files(&fuzz().join(folder)).into_iter();
        stems
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(named("corpus"), targets);
    assert_eq!(named("libfuzzer/fuzz_targets"), targets);
    for name in &targets {
        assert!(
            manifest.contains(&format!("[[bin]]\nname = \"{name}\"\n")),
            "{name}"
        );
        let shim =
            fs::read_to_string(fuzz().join(format!("libfuzzer/fuzz_targets/{name}.rs"))).unwrap();
        assert!(
            shim.contains(&format!("distlock_fuzz_targets::{name}(data)")),
            "{shim}"
        );
    }
}
