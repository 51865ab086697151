//! Short runs of two controls and their twins. `distlock-lab chaos --controls` runs all controls.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

fn controls(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock-lab"))
        .args(["chaos", "--controls"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn two_controls_violate_exclusion_where_distlock_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let only = [
        "--only",
        "set-nx-del,hash-mod",
        "--seconds",
        "5",
        "--out",
        out,
    ];
    let output = controls(&[&only[..], &["--seed", "20260101"]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("controls.json")).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let figure = |side: &str, name: &str| row[side][name].as_u64().unwrap();
        assert!(figure("figures", "violations") > 0, "{row}");
        assert!(figure("figures", "longest_overlap_us") > 0, "{row}");
        assert!(row["figures"]["fenced_lost"].is_null(), "{row}");
        assert_eq!(figure("twin", "violations"), 0, "{row}");
        assert_eq!(figure("twin", "longest_overlap_us"), 0, "{row}");
        for side in ["figures", "twin"] {
            assert!(figure(side, "grants") > 0 && figure(side, "faults") > 0);
        }
        let command = row["command"].as_str().unwrap();
        assert!(
            said.contains(command) && read("report.md").contains(command),
            "{said}"
        );
    }
}

#[test]
fn unknown_controls_and_unsuitable_faults_are_refused() {
    // The first name is a planted bug, and the second name does not exist.
    for wrong in ["fails-open", "papyrus"] {
        let output = controls(&["--only", wrong]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(wrong), "{errors}");
    }
    let output = controls(&["--only", "get-lock", "--faults", "forget-scripts"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("get-lock can have none"), "{errors}");
}
