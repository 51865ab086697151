//! Tests of the backend outside of this workspace, examples/custom_backend. These tests build and
//! test it as its author would, in its own workspace.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The folder of the example.
fn package_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/custom_backend")
}

/// The packages of a lock file that come from a registry, each with its version.
fn locked_packages(file: &Path) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(file).unwrap();
    let lock: toml::Table = toml::from_str(&text).unwrap();
    let packages = lock["package"].as_array().unwrap().iter();
    packages
        .filter(|package| package.get("source").is_some())
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap().to_owned();
            (text("name"), text("version"))
        })
        .collect()
}

/// Other versions would be built a second time, and the tests would use versions that no other test
/// uses.
#[test]
fn the_custom_backend_is_locked_to_the_versions_of_this_workspace() {
    let own = locked_packages(&package_folder().join("Cargo.lock"));
    let ours = locked_packages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock"));
    let other: Vec<_> = own.difference(&ours).collect();
    assert!(
        other.is_empty(),
        "copy Cargo.lock to examples/custom_backend and build there: {other:?}"
    );
}

#[test]
fn the_custom_backend_passes_the_suite_and_makes_a_tool() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env::var_os("CARGO").expect("started by cargo"));
    for (name, _) in env::vars_os() {
        // Variables of the package that runs this test must not apply to the example.
        if name.to_string_lossy().starts_with("CARGO_PKG") {
            cargo.env_remove(name);
        }
    }
    let done = cargo
        .current_dir(package_folder())
        .args(["test", "--quiet", "--offline", "--locked"])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(done.status.success(), "{said}{told}");
    assert!(said.contains("3 passed"), "{said}{told}");
}
