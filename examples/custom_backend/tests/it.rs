//! Tests of the backend: the whole conformance suite, error messages and help texts, and the tool.

use std::{process::Command, sync::Arc};

use custom_backend::FolderDriver;
use distlock::{ErrorKind, Registry};
use distlock_conformance::{Options, Status, Subject, Workers, run_with};

const TOOL: &str = env!("CARGO_BIN_EXE_distlock-with-folders");

fn registry() -> Registry {
    Registry::builtin().with(FolderDriver)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_of_the_conformance_suite_passes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("folder:{}", folder.path().display());
    let registry = Arc::new(registry());
    let opened = url.clone();
    let open = move || {
        let (registry, url) = (Arc::clone(&registry), opened.clone());
        async move { registry.open(url).await }
    };
    let subject = Subject::connect("folder", open).await.unwrap();
    let subject = subject.with_workers(Workers::new(TOOL, ["conformance-worker"], url));
    let results = run_with(&subject, &Options::default(), |_| {}).await;
    let failed: Vec<_> = results
        .iter()
        .filter(|result| result.status == Status::Failed)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = results.iter().filter(|it| it.status == Status::Passed);
    assert!(passed.count() > 100);
}

#[tokio::test]
async fn errors_and_help_texts_name_the_scheme_and_refuse_options() {
    let error = registry().open("foldr:/tmp/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(
        error.to_string().contains("did you mean folder:?"),
        "{error}"
    );
    let error = registry().open("folder:/tmp/x?reap=1h").await.unwrap_err();
    assert!(
        error.to_string().contains("unknown option `reap`"),
        "{error}"
    );
    let help = Command::new(TOOL).arg("--help").output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("folder:PATH"));
}

#[test]
fn a_lock_that_the_tool_holds_in_a_folder_is_busy_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("folder:{}", folder.path().join("locks").display());
    let tool = |words: &[&str]| {
        let mut command = Command::new(TOOL);
        command.env("DISTLOCK_BACKEND", &url).args(words);
        command.output().unwrap()
    };
    let inner = format!("DISTLOCK_BACKEND={url} {TOOL} run nightly -n -- true; echo $?");
    let run = tool(&["run", "nightly", "--", "sh", "-c", &inner]);
    assert_eq!(run.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&run.stdout).trim(),
        "75",
        "busy inside"
    );
    assert_eq!(
        tool(&["run", "nightly", "-n", "--", "true"]).status.code(),
        Some(0)
    );
    assert_eq!(tool(&["doctor"]).status.code(), Some(0));
}
