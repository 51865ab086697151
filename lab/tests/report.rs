//! The published pages equal the pages made from their data, and the data supports the README's
//! claims.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/robustness");

/// Returns the files of the data, relative to the report.
fn data() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["", "runs", "gateways", "planted"] {
        for entry in fs::read_dir(Path::new(PUBLISHED).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "json") {
                files.push(path.strip_prefix(PUBLISHED).unwrap().to_owned());
            }
        }
    }
    files
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(Path::new(PUBLISHED).join(file)).unwrap()).unwrap()
}

#[test]
fn the_published_pages_equal_the_pages_made_from_their_data() {
    let folder = tempfile::tempdir().unwrap();
    for file in data() {
        let copy = folder.path().join(&file);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(Path::new(PUBLISHED).join(&file), copy).unwrap();
    }
    let status = Command::new(env!("CARGO_BIN_EXE_distlock-lab"))
        .args(["report", "--out"])
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    for page in ["report.md", "report.html", "recovery.svg"] {
        let made = fs::read_to_string(folder.path().join(page)).unwrap();
        let published = fs::read_to_string(Path::new(PUBLISHED).join(page)).unwrap();
        assert!(made == published, "{page}: run distlock-lab report");
    }
}

#[test]
fn the_published_data_shows_what_the_readme_claims() {
    let of_folder = |folder: &str| {
        let files = data().into_iter().filter(|it| it.starts_with(folder));
        files.map(|it| read(&it)).collect::<Vec<_>>()
    };
    let (mut operations, mut faults) = (0, 0);
    for command in of_folder("runs") {
        for run in command["runs"].as_array().unwrap() {
            operations += run["operations"].as_u64().unwrap();
            let of_run = run["faults"].as_object().unwrap().values();
            faults += of_run.map(|it| it.as_u64().unwrap()).sum::<u64>();
            assert_eq!(run["fenced_lost"], 0, "{run}");
            assert_eq!(run["broken"], Value::Array(Vec::new()), "{run}");
            let command = run["command"].as_str().unwrap();
            assert!(command.contains("--seed"), "{command}");
        }
    }
    assert!(operations >= 1_000_000, "{operations} operations");
    assert!(faults >= 2_000, "{faults} faults");
    for gateways in of_folder("gateways") {
        assert_eq!(gateways["broken"], Value::Array(Vec::new()), "{gateways}");
    }
    for planted in of_folder("planted") {
        for bug in planted["bugs"].as_array().unwrap() {
            assert!(bug["found"].is_string(), "{bug}");
            assert_eq!(bug["twin_is_clean"], true, "{bug}");
        }
    }
    let controls = read(Path::new("controls.json"));
    for row in controls["rows"].as_array().unwrap() {
        assert!(row["figures"]["violations"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["twin"]["violations"], 0, "{row}");
    }
    assert!(read(Path::new("simulation.json"))["broken"].is_null());
}
