//! Builds and runs the first programs of the README as a reader would: in a new project, with the
//! lines that the README gives.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const README: &str = include_str!("../README.md");

/// The code block of this language with this number. The first block has the number 0.
fn block(language: &str, number: usize) -> &'static str {
    let fence = format!("```{language}\n");
    let rest = README.split(&fence).nth(number + 1);
    let (block, _) = rest.and_then(|it| it.split_once("```")).unwrap();
    block
}

/// The lines for `Cargo.toml`, with the path of this checkout.
fn dependencies(checkout: &Path) -> String {
    let lines = block("toml", 0);
    let path = "path = \"../distlock\"";
    assert!(lines.contains(path), "{lines}");
    lines.replace(
        path,
        &format!("path = {:?}", checkout.display().to_string()),
    )
}

fn cargo(project: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").expect("started by cargo"));
    // Variables of the build that runs this test must not apply to the reader's project.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG") || name == "RUSTFLAGS" || name == "CARGO_BUILD_TARGET" {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(project);
    cargo
}

/// The target folder of this build. The reader's program is built there, so that the next run of
/// the test is fast.
fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap().to_owned()
}

/// The profile of this workspace and of examples/custom_backend, as far as the program needs these
/// packages, so that all share what is built.
const PROFILE: &str = "
[profile.dev]
debug = false
[profile.dev.package]
hmac = { opt-level = 2 }
libsqlite3-sys = { opt-level = 2 }
sha2 = { opt-level = 2 }
sqlx-core = { opt-level = 1 }
tokio = { opt-level = 1 }
";

/// Runs a program in a new project. A warning fails the test, because a reader would see the
/// warning first.
fn run(program: &str) -> Output {
    let dependencies = dependencies(Path::new(env!("CARGO_MANIFEST_DIR")));
    let project = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(project.path().join(name), text).unwrap();
    fs::create_dir(project.path().join("src")).unwrap();
    write("src/main.rs", &format!("#![deny(warnings)]\n{program}"));
    // The project looks like a project of `cargo new`. It is a workspace of its own, because it is
    // in a folder for temporary files.
    let head = "[workspace]\n\n[package]\nname = \"readme\"\nversion = \"0.1.0\"\n\
                edition = \"2024\"\n\n[dependencies]\n";
    write("Cargo.toml", &format!("{head}{dependencies}{PROFILE}"));
    // With this lock file cargo uses the tested versions, which are available without a network.
    write("Cargo.lock", include_str!("../Cargo.lock"));
    cargo(project.path())
        .args(["run", "--quiet", "--offline"])
        .env("CARGO_TARGET_DIR", target())
        .output()
        .unwrap()
}

#[test]
fn the_first_two_programs_run_as_printed() {
    let done = run(block("rust", 0));
    let (said, told) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(done.status.success(), "{said}{told}");
    assert!(
        said.starts_with("mine, with fencing token ") && said.ends_with("released: Clean\n"),
        "{said}{told}"
    );

    // In the second program, the lines after `let guard` are replaced, because the README leaves
    // this work to the reader.
    let (head, rest) = block("rust", 0).split_once("    let guard").unwrap();
    let (_, tail) = rest.split_once("await);\n").unwrap();
    let done = run(&format!("{head}{}{tail}", block("rust", 1)));
    let told = String::from_utf8_lossy(&done.stderr);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.starts_with("mine, released: Clean"), "{said}{told}");
}
