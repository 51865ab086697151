//! The tool over MariaDB and MySQL: the demo, the tables, and the errors when tables are missing.

use distlock_harness::{
    Process,
    servers::mysql::{MySqlServer, Product},
};

use crate::support::{Home, SOON, finish};

#[test]
fn the_demo_passes_and_leaves_no_record() {
    for product in Product::ALL {
        let (home, server) = (Home::new(), MySqlServer::start(product).unwrap());
        let mut run = Process::spawn(&mut home.bare(["demo", "--backend", &server.url()])).unwrap();
        let status = run.wait(SOON * 6).unwrap();
        let output = run.output();
        assert_eq!(status.code(), Some(0), "{product:?}: {output}");
        assert!(output.contains("all 7 scenes passed"), "{output}");
        let left = "SELECT COUNT(*) FROM distributed_record WHERE deleted = 0";
        assert_eq!(server.sql(left).unwrap(), "0", "{output}");
    }
}

#[test]
fn missing_tables_are_made_by_the_command_that_the_error_names() {
    let (home, server) = (Home::new(), MySqlServer::start(Product::MariaDb).unwrap());
    let run = |args: &[&str], url: &str| finish(home.bare(args).env("DISTLOCK_BACKEND", url), "");
    let strict = format!("{}&migrate=false", server.url());
    let refused = run(&["list"], &strict);
    refused.assert_failed(78, "run `distlock migrate`");
    let migrated = run(&["migrate"], &strict);
    assert_eq!(migrated.code, 0, "{migrated:?}");
    let taken = run(&["run", "job", "-n", "--", "echo", "ran"], &strict);
    assert_eq!((taken.code, &*taken.stdout), (0, "ran\n"), "{taken:?}");
    let healthy = run(&["doctor"], &strict);
    assert_eq!(healthy.code, 0, "{healthy:?}");
    assert!(healthy.stdout.contains("MariaDB 10."), "{healthy:?}");
}

/// Runs the cases of the suite that use worker processes, as a user would.
#[test]
fn processes_exclude_each_other() {
    for product in Product::ALL {
        let (home, server) = (Home::new(), MySqlServer::start(product).unwrap());
        let mut suite = home.bare(["conformance", "--filter", "process"]);
        suite.env("DISTLOCK_BACKEND", server.url());
        let mut run = Process::spawn(&mut suite).unwrap();
        let status = run.wait(SOON * 6).unwrap();
        assert_eq!(status.code(), Some(0), "{product:?}: {}", run.output());
    }
}

/// A table without its unique key would grant the same lock twice.
#[test]
fn a_table_without_its_unique_key_is_78_and_locks_nothing() {
    for product in Product::ALL {
        let (home, server) = (Home::new(), MySqlServer::start(product).unwrap());
        let url = server.url();
        let migrated = finish(home.bare(["migrate"]).env("DISTLOCK_BACKEND", &url), "");
        assert_eq!(migrated.code, 0, "{product:?}: {migrated:?}");
        let drop_key = "ALTER TABLE distributed_lock DROP PRIMARY KEY";
        server.sql(drop_key).unwrap();
        let run = ["run", "job", "--wait", "0", "--", "echo", "ran"];
        let refused = finish(home.bare(run).env("DISTLOCK_BACKEND", &url), "");
        assert_eq!(refused.stdout, "", "{product:?}: {refused:?}");
        refused.assert_failed(78, "the unique key of distributed_lock is missing");
    }
}
