//! The tool over a quorum of three Redis servers: the steps of an operator, the demo, and the exit
//! codes for wrong members.

use distlock_harness::{
    Process, eventually,
    servers::{postgres::PostgresServer, redis::RedisServer},
};
use serde_json::Value;

use crate::support::{Finished, Home, SOON, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

fn servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start().unwrap()).collect()
}

/// The URL of a quorum of these members, with the names a, b, c and so on.
fn url_of(members: &[String], max_lease: &str) -> String {
    let named = "abcdefg".chars().zip(members);
    let members = named.map(|(name, url)| format!("member={name}={url}&"));
    format!(
        "quorum:?{}max_lease={max_lease}",
        members.collect::<String>()
    )
}

fn url_of_servers(servers: &[RedisServer], max_lease: &str) -> String {
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    url_of(&urls, max_lease)
}

/// A configuration file with this backend.
fn config_of(home: &Home, url: &str) -> String {
    let path = home.path("to.toml");
    std::fs::write(&path, format!("[backend]\nurl = \"{url}\"\n")).unwrap();
    path.display().to_string()
}

fn show(home: &Home, url: &str) -> (i32, Vec<Value>) {
    let shown = run(home, url, &["quorum", "show", "--json"]);
    let lines = shown.stdout.lines();
    let members = lines.map(|line| serde_json::from_str(line).unwrap());
    (shown.code, members.collect())
}

#[test]
fn an_operator_makes_a_quorum_and_sees_who_votes() {
    let (home, mut servers) = (Home::new(), servers(3));
    let url = url_of_servers(&servers, "2s");
    let (code, blank) = show(&home, &url);
    assert_eq!(code, 69, "{blank:?}");
    assert!(
        blank.iter().all(|it| it["votes_in_ms"].is_null()),
        "{blank:?}"
    );
    let made = run(&home, &url, &["quorum", "init"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(made.stdout.matches(" yes").count(), 3, "{made:?}");
    for server in &servers {
        assert!(!made.stdout.contains(server.password()), "{made:?}");
    }
    let ran = run(&home, &url, &["run", "job", "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    // The processes of the suite open the records too.
    let records = format!("sqlite:{}", home.path("records.db").display());
    let suite = [
        "conformance",
        "--filter",
        "never_overlap",
        "--records",
        &records,
    ];
    let suite = run(&home, &url, &suite);
    assert_eq!(suite.code, 0, "{suite:?}");

    servers[0].kill();
    let (code, shown) = show(&home, &url);
    assert_eq!(code, 0, "{shown:?}");
    let error = shown[0]["error"].as_str().unwrap();
    assert!(error.contains("member \"a\""), "{error}");
    assert_eq!(
        (&shown[1]["votes_in_ms"], &shown[1]["name"]),
        (&0.into(), &"b".into())
    );
    let doctor = run(&home, &url, &["doctor", "--json"]).json();
    let findings = doctor["findings"].as_array().unwrap();
    let majority = findings
        .iter()
        .find(|it| it["check"] == "majority")
        .unwrap();
    assert_eq!(majority["verdict"], "warn", "{doctor}");
    let ran = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");

    servers[1].kill();
    assert_eq!(show(&home, &url).0, 69);
    let ran = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    ran.assert_failed(69, "member \"");

    // Both come back: the one with its data, the other without.
    servers[0].restart().unwrap();
    servers[1].restart_empty().unwrap();
    let admitted = run(&home, &url, &["quorum", "readmit"]);
    assert_eq!(admitted.code, 0, "{admitted:?}");
    eventually("all members vote", SOON, || {
        let (_, members) = show(&home, &url);
        members.iter().all(|it| it["votes_in_ms"] == 0)
    })
    .unwrap();
    let ran = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_move_ends_the_clients_of_the_old_list_with_78() {
    let (home, servers) = (Home::new(), servers(4));
    let (old, new) = (
        url_of_servers(&servers[..3], "2s"),
        url_of_servers(&servers[..3], "2s").replace("member=c=", "member=d="),
    );
    let new = new.replace(&servers[2].url(), &servers[3].url());
    let made = run(&home, &old, &["quorum", "init"]);
    assert_eq!(made.code, 0, "{made:?}");
    let to = config_of(&home, &new);
    let moved = run(&home, &old, &["quorum", "reconfigure", "--to", &to]);
    assert_eq!(moved.code, 0, "{moved:?}");
    let refused = run(&home, &old, &["run", "job", "-n", "--", "true"]);
    refused.assert_failed(78, "was written for other members");
    eventually("the new members vote", SOON, || show(&home, &new).0 == 0).unwrap();
    let ran = run(&home, &new, &["run", "job", "-n", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn wrong_members_end_with_78_and_show_no_password() {
    let home = Home::new();
    // Nothing is sent there.
    let good = |port: u16| format!("redis://:hunter2@127.0.0.1:{port}");
    let three = |third: &str| [good(1), good(2), third.to_owned()];
    let of = |members: &[String]| url_of(members, "60s");
    for (url, says) in [
        (of(&three("")[..2]), "2 are given"),
        (
            of(&[three(&good(3)).to_vec(), vec![good(4)]].concat()),
            "4 are given",
        ),
        (
            of(&three(&good(1))),
            "members \"a\" and \"c\" are one server",
        ),
        (
            of(&three(&good(3))).replace("member=c=", "member=b="),
            "the name \"b\" is given twice",
        ),
        (
            of(&three("zookeeper://u:hunter2@h")),
            "member \"c\": an ensemble of ZooKeeper",
        ),
        (
            of(&three("redis%2Bcluster://u:hunter2@h")),
            "member \"c\": a marker is on one shard",
        ),
        (
            of(&three("kv%2Bredis://u:hunter2@h")),
            "member \"c\": a lock over records",
        ),
        (of(&three("redis://u:hunter2@h?banana=1")), "member \"c\""),
        (url_of(&three(&good(3)), "999ms"), "max_lease"),
        (url_of(&three(&good(3)), "25h"), "max_lease"),
    ] {
        for args in [
            &["list"][..],
            &["doctor"],
            &["quorum", "init"],
            &["quorum", "show"],
            &["quorum", "readmit"],
        ] {
            let done = run(&home, &url, args);
            done.assert_failed(78, says);
            assert!(!done.stderr.contains("hunter2"), "{done:?}");
        }
        let from = of(&three(&good(3)));
        for (to, code, says) in [
            (config_of(&home, &url), 78, says),
            (url, 64, "--to names a configuration file"),
        ] {
            let done = run(&home, &from, &["quorum", "reconfigure", "--to", &to]);
            done.assert_failed(code, says);
            assert!(!done.stderr.contains("hunter2"), "{done:?}");
        }
    }
    let other = run(&home, "redis://:hunter2@h", &["quorum", "show"]);
    assert_eq!(other.code, 78, "{other:?}");
    assert!(!other.stderr.contains("hunter2"), "{other:?}");
}

#[test]
fn members_that_fit_no_quorum_end_with_78_and_blank_ones_with_69() {
    let (home, servers) = (Home::new(), servers(3));
    let url = url_of_servers(&servers, "60s");
    let waits = run(&home, &url, &["run", "job", "-n", "--", "true"]);
    waits.assert_failed(69, "`distlock quorum init");
    // What a first client has written is known, so the operator says that nothing was granted.
    let made = run(&home, &url, &["quorum", "init", "--new"]);
    assert_eq!(made.code, 0, "{made:?}");
    let others = url_of_servers(&servers, "30s");
    for args in [&["list"][..], &["quorum", "init"], &["quorum", "readmit"]] {
        let refused = run(&home, &others, args);
        refused.assert_failed(78, "member \"a\"");
        assert!(refused.stderr.contains("another max_lease"), "{refused:?}");
        assert!(
            !refused.stderr.contains(servers[0].password()),
            "{refused:?}"
        );
    }
    // Tables are missing at a member, and one command makes them.
    let database = PostgresServer::with(&["fsync=on"]).unwrap();
    let members = [
        servers[0].url(),
        servers[1].url(),
        format!("{}?migrate=false", database.url()),
    ];
    let url = url_of(&members, "60s");
    let refused = run(&home, &url, &["list"]);
    refused.assert_failed(78, "member \"c\"");
    assert!(refused.stderr.contains("`distlock migrate"), "{refused:?}");
    let made = run(&home, &url, &["migrate"]);
    assert_eq!(made.code, 0, "{made:?}");
}

/// Two gateway processes with their locks on the quorum and their records elsewhere, and real
/// clients.
fn demo(home: &Home, records: &str) -> String {
    let servers = servers(3);
    let url = url_of_servers(&servers, "60s");
    let made = run(home, &url, &["quorum", "init"]);
    assert_eq!(made.code, 0, "{made:?}");
    let args = ["demo", "--backend", &url, "--records", records];
    let mut demo = Process::spawn(&mut home.bare(args)).unwrap();
    let status = demo.wait(SOON * 6).unwrap();
    let output = demo.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    let held = run(home, &url, &["list", "--json"]);
    assert_eq!((held.code, held.stdout.as_str()), (0, ""), "{held:?}");
    output
}

#[test]
fn the_demo_passes_with_records_in_a_file() {
    let home = Home::new();
    let output = demo(&home, &format!("sqlite:{}", home.store().display()));
    let left = "DELETE FROM distributed_record WHERE deleted = 0";
    assert_eq!(home.sql(left), 0, "{output}");
    assert_ne!(home.sql("DELETE FROM distributed_record"), 0, "{output}");
    assert_eq!(home.sql("DELETE FROM distributed_lock"), 0, "{output}");
}

#[test]
fn the_demo_passes_with_records_in_postgres() {
    let (home, records) = (Home::new(), PostgresServer::start().unwrap());
    let output = demo(&home, &records.url());
    let count = |what: &str| {
        records
            .sql(&format!("SELECT count(*) FROM {what}"))
            .unwrap()
    };
    assert_ne!(count("distributed_record"), "0", "{output}");
    assert_eq!(
        count("distributed_record WHERE NOT deleted"),
        "0",
        "{output}"
    );
    assert_eq!(count("distributed_lock"), "0", "{output}");
}
