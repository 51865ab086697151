//! The tool over Postgres: the demo, a lock held by a process, and the errors when something is
//! wrong.

use distlock_harness::{Process, servers::postgres::PostgresServer};

use crate::support::{Finished, Home, SOON, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

#[test]
fn the_demo_passes_and_leaves_nothing() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    let mut run = Process::spawn(&mut home.bare(["demo", "--backend", &server.url()])).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    let records = "SELECT count(*) FROM distributed_record WHERE NOT deleted";
    assert_eq!(server.sql(records).unwrap(), "0", "{output}");
    let held = "SELECT lock_name FROM distributed_lock WHERE holder_id IS NOT NULL";
    // The lease of the killed node must be removed, too.
    assert_eq!(server.sql(held).unwrap(), "", "{output}");
}

#[test]
fn a_lock_is_shown_with_its_holder_and_passes_on() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    let url = server.url();
    let refused = run(&home, &format!("{url}?migrate=false"), &["list"]);
    refused.assert_failed(78, "run `distlock migrate`");
    let made = run(&home, &format!("{url}?migrate=false"), &["migrate"]);
    assert_eq!(made.code, 0, "{made:?}");
    let taken = ["acquire", "job", "--ttl", "1m", "--holder", "me"];
    let taken = run(&home, &url, &taken);
    assert_eq!(taken.code, 0, "{taken:?}");
    let shown = run(&home, &url, &["inspect", "job", "--json"]).json();
    assert_eq!(
        (&shown["state"], &shown["holder"]),
        (&"held".into(), &"me".into())
    );
    let busy = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    busy.assert_failed(75, "me");
    let ticket = taken.stdout.trim();
    let released = finish(home.bare(["release"]).env("DISTLOCK_BACKEND", &url), ticket);
    assert_eq!(released.code, 0, "{released:?}");
    let ran = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    let wrong = server.url_as("app", "canary");
    let denied = run(&home, &wrong, &["list"]);
    denied.assert_failed(77, "refused the user or the password");
    assert!(!denied.stderr.contains("canary"), "{denied:?}");
}

/// The driver panics at an answer that is cut short. Only the resulting error is printed.
#[test]
fn a_panic_of_the_driver_is_an_error_and_prints_nothing() {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut startup = [0; 1024];
            let _ = stream.read(&mut startup);
            // The message lacks the method of authentication.
            let _ = stream.write_all(b"R\0\0\0\x04");
            let _ = stream.read(&mut startup);
        }
    });
    let home = Home::new();
    let url = format!("postgres://u@{at}/d?sslmode=disable");
    let done = run(&home, &url, &["list"]);
    done.assert_failed(69, "a packet was not understood");
    assert!(!done.stderr.contains("panicked"), "{done:?}");
    let list = ["list"];
    let mut logged = home.bare(list);
    logged
        .env("DISTLOCK_BACKEND", &url)
        .env("DISTLOCK_LOG", "debug");
    let logged = finish(&mut logged, "");
    assert!(logged.stderr.contains("a panic was caught"), "{logged:?}");
}
