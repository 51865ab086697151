//! Records in another store than the locks: where they are found, mistakes in naming that store,
//! and the commands that look at both stores.

use distlock_harness::{
    Process,
    servers::{postgres::PostgresServer, redis::RedisServer},
};

use crate::support::{Finished, Home, SOON, finish};

/// A call of the tool, with the locks in the store of this home.
fn run(home: &Home, variables: &[(&str, &str)], args: &[&str]) -> Finished {
    let mut command = home.distlock(args);
    finish(command.envs(variables.iter().copied()), "")
}

/// Whether the records of a store remember that token 41 was seen for `nightly`.
fn remembers(home: &Home, url: &str) -> bool {
    let check = [
        "fence",
        "check",
        "nightly",
        "--token",
        "40",
        "--backend",
        url,
    ];
    let done = finish(&mut home.bare(check), "");
    assert!([0, 76].contains(&done.code), "{done:?}");
    done.code == 76
}

const FENCE: [&str; 6] = ["fence", "nightly", "--token", "41", "--", "true"];

#[test]
fn a_flag_comes_before_the_variable_and_the_variable_before_the_file() {
    let sources = ["file", "variable", "flag"];
    for given in 1..=sources.len() {
        let home = Home::new();
        let urls = sources.map(|name| format!("sqlite:{}", home.path(name).display()));
        let text = format!("[records]\nurl = \"{}\"\n", urls[0]);
        let file = home.write("distlock.toml", &text);
        let mut args = vec!["--config", file.to_str().unwrap()];
        let mut variables = Vec::new();
        if given > 1 {
            variables.push(("DISTLOCK_RECORDS", urls[1].as_str()));
        }
        if given > 2 {
            args.extend(["--records", &urls[2]]);
        }
        args.extend(FENCE);
        let done = run(&home, &variables, &args);
        assert_eq!(done.code, 0, "{done:?}");
        for (at, url) in urls.iter().enumerate() {
            assert_eq!(remembers(&home, url), at + 1 == given, "{url}: {done:?}");
        }
        let locks = format!("sqlite:{}", home.store().display());
        assert!(!remembers(&home, &locks), "beside the locks: {done:?}");
    }
    // Without such a store, the records are beside the locks. An empty variable counts as unset.
    let home = Home::new();
    let done = run(&home, &[("DISTLOCK_RECORDS", "")], &FENCE);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(remembers(
        &home,
        &format!("sqlite:{}", home.store().display())
    ));
}

#[test]
fn a_wrong_store_of_the_records_is_refused_by_its_place() {
    let home = Home::new();
    for (url, says) in [
        ("sqllite:x.db", "did you mean sqlite:?"),
        ("hunter2", "is not a backend URL"),
        ("sqlite:x.db?banana=1", "unknown option `banana` for sqlite"),
        ("sqlite:x.db?migrate=true&migrate=true", "given twice"),
        ("mysql://bob:hunter2@h", "names no database"),
        ("redis://bob:hunter2@h?db=x", "is no number of a database"),
        ("memory:", "its records would be lost"),
    ] {
        let file = home.write("distlock.toml", &format!("\n[records]\nurl = \"{url}\"\n"));
        let file = file.to_str().unwrap();
        let at = format!("{file}:3:7");
        for (variables, args, place) in [
            (None, vec!["--records", url], "--records"),
            (Some(("DISTLOCK_RECORDS", url)), vec![], "DISTLOCK_RECORDS"),
            (None, vec!["--config", file], at.as_str()),
        ] {
            let args = [&args[..], &FENCE].concat();
            let done = run(&home, variables.as_slice(), &args);
            done.assert_failed(78, says);
            assert!(done.stderr.contains(place), "{place} in {done:?}");
            assert!(!done.stderr.contains("hunter2"), "{done:?}");
        }
    }
    for (text, says) in [
        ("[records]\n", ":1:2: [records] has no `url`"),
        (
            "[record]\nurl = \"memory:\"",
            ":1:2: unknown key `record`: did you mean `records`?",
        ),
        (
            "[records]\nurl = \"sqlite:x.db\"\nreap_after = \"1\"",
            ":3:1: sqlite: option `reap_after`",
        ),
    ] {
        let file = home.write("distlock.toml", text);
        let args = [&["--config", file.to_str().unwrap()][..], &FENCE].concat();
        run(&home, &[], &args).assert_failed(78, says);
    }
    let twice = ["--records", "sqlite:a", "--records", "sqlite:b", "list"];
    run(&home, &[], &twice).assert_failed(64, "cannot be used multiple times");
    // The members of no store are listed like this, and each error is masked.
    let list = "[backend]\nurl = \"sqlite:x.db\"\nmembers = [\"a=redis://:hunter2@h\", \"b=c:\"]";
    let file = home.write("distlock.toml", list);
    let done = finish(
        &mut home.bare(["--config", file.to_str().unwrap(), "list"]),
        "",
    );
    done.assert_failed(78, ":3:12: unknown option `members` for sqlite");
    assert!(!done.stderr.contains("hunter2"), "{done:?}");
}

#[test]
fn records_that_are_shared_need_a_named_store_for_the_locks() {
    let home = Home::new();
    let records = format!("sqlite:{}", home.path("records.db").display());
    let line = [&["--records", &records][..], &FENCE].concat();
    let unnamed = finish(&mut home.bare(&line), "");
    unnamed.assert_failed(
        78,
        "--records: the records have a store of their own, and no store",
    );
    assert!(!remembers(&home, &records));
    let own = [&["--user"], &line[..]].concat();
    let own = finish(&mut home.bare(&own), "");
    assert_eq!(own.code, 0, "{own:?}");
    assert!(remembers(&home, &records));
}

#[test]
fn what_means_nothing_is_said() {
    let home = Home::new();
    let records = format!("sqlite:{}", home.path("records.db").display());
    let misspelled = run(&home, &[("DISTLOCK_RECORD", &records)], &["list"]);
    assert_eq!(misspelled.code, 0, "{misspelled:?}");
    let says = "DISTLOCK_RECORD means nothing here: did you mean DISTLOCK_RECORDS?";
    assert!(misspelled.stderr.contains(says), "{misspelled:?}");
    let secret = "redis://u:hunter2@127.0.0.1:1";
    let shown = run(&home, &[], &["--records", secret, "list"]);
    assert!(
        shown.stderr.contains("use DISTLOCK_RECORDS or a"),
        "{shown:?}"
    );
    assert!(!shown.stderr.contains("hunter2"), "{shown:?}");
    let gate = ["fence", "check", "a", "--token", "1", "--file", "gate"];
    let both = [&gate[..], &["--records", &records]].concat();
    run(&home, &[], &both).assert_failed(64, "exclude each other");
    let asked = ["gateway", "nodes", "--records", &records];
    run(&home, &[], &asked).assert_failed(64, "'--records <URL>' says nothing here");
    let recipes = ["demo", "recipes", "--records", &records];
    run(&home, &[], &recipes).assert_failed(64, "plays on a store of its own");
    let memory = ["demo", "--records", "memory:"];
    run(&home, &[], &memory).assert_failed(78, "could not share it");
}

#[test]
fn commands_without_records_work_while_the_store_of_the_records_is_away() {
    let home = Home::new();
    // Nothing listens there.
    let away = [("DISTLOCK_RECORDS", "redis://127.0.0.1:1?connect_timeout=1s")];
    for args in [
        &["run", "job", "--", "true"][..],
        &["list"],
        &["inspect", "job"],
    ] {
        let done = run(&home, &away, args);
        assert_eq!(done.code, 0, "{done:?}");
    }
    let taken = run(&home, &away, &["acquire", "job", "--ttl", "1m"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let mut release = home.distlock(["release"]);
    let released = finish(release.envs(away), taken.stdout.trim());
    assert_eq!(released.code, 0, "{released:?}");
    for args in [
        &FENCE[..],
        &["run", "job", "--every", "1h", "--", "true"],
        &["jobs"],
        &["doctor"],
    ] {
        run(&home, &away, args).assert_failed(69, "127.0.0.1:1");
    }
}

#[test]
fn the_doctor_and_migrate_look_at_both_stores() {
    let home = Home::new();
    let locks = format!("sqlite:{}", home.store().display());
    let records = format!("sqlite:{}", home.path("records.db").display());
    let variables = [("DISTLOCK_RECORDS", records.as_str())];
    let made = run(&home, &variables, &["migrate", "--json"]).json();
    assert_eq!(made["backend"], locks.as_str(), "{made}");
    assert_eq!(made["records"]["backend"], records.as_str(), "{made}");
    for made in [&made, &made["records"]] {
        assert!(made["version"].is_u64() && !made["applied"].as_array().unwrap().is_empty());
    }
    let again = run(&home, &variables, &["migrate"]);
    let lines: Vec<_> = again.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{again:?}");
    for (line, url) in lines.iter().zip([&locks, &records]) {
        assert!(
            line.starts_with(&format!("{url}: the tables are up to date")),
            "{again:?}"
        );
    }

    let json = run(&home, &variables, &["doctor", "--json"]).json();
    let other = &json["records"];
    assert_eq!(
        (&json["backend"], &other["backend"]),
        (&locks.as_str().into(), &records.as_str().into())
    );
    assert_ne!(json["epoch"], other["epoch"], "{json}");
    for one in [&json, other] {
        assert!(!one["findings"].as_array().unwrap().is_empty(), "{json}");
        assert_eq!(one["capabilities"]["backend"], "sqlite", "{json}");
        assert!(one["verdict"].is_string(), "{json}");
    }
    let text = run(&home, &variables, &["doctor"]);
    let heads: Vec<_> = text
        .stdout
        .lines()
        .filter(|line| line.contains(" at sqlite:"))
        .collect();
    assert_eq!(heads.len(), 2, "{text:?}");
    assert!(
        heads[0].starts_with("Locks: SQLite ") && heads[0].ends_with(&locks),
        "{heads:?}"
    );
    assert!(
        heads[1].starts_with("Records: SQLite ") && heads[1].ends_with(&records),
        "{heads:?}"
    );

    let one = run(&home, &[], &["doctor", "--json"]).json();
    assert!(one.get("records").is_none(), "{one}");
    let one = run(&home, &[], &["migrate", "--json"]).json();
    assert!(one.get("records").is_none(), "{one}");
}

#[test]
fn the_doctor_fails_if_one_of_two_stores_does_and_warns_of_locks_that_fewer_share() {
    let home = Home::new();
    let server = RedisServer::with(&["save \"\"", "appendonly no"]).unwrap();
    let url = server.url();
    let variables = [("DISTLOCK_RECORDS", url.as_str())];
    let done = run(&home, &variables, &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    let json = done.json();
    let records = &json["records"];
    assert_eq!(
        (&json["verdict"], &records["verdict"]),
        (&"fail".into(), &"fail".into())
    );
    let findings = records["findings"].as_array().unwrap();
    let reach = findings
        .iter()
        .find(|it| it["check"] == "shared locks")
        .unwrap();
    assert_eq!(reach["verdict"], "warn", "{reach}");
    let text = run(&home, &variables, &["doctor"]);
    assert!(text.stdout.contains("processes of one host"), "{text:?}");
}

/// Two gateway processes with their locks on Redis and their records in Postgres, and real clients.
#[test]
fn the_demo_passes_with_locks_on_redis_and_records_in_postgres() {
    let home = Home::new();
    let (locks, records) = (
        RedisServer::start().unwrap(),
        PostgresServer::start().unwrap(),
    );
    let args = [
        "demo",
        "--backend",
        &locks.url(),
        "--records",
        &records.url(),
    ];
    let mut run = Process::spawn(&mut home.bare(args)).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    assert!(
        output.contains(", with the records in postgres"),
        "{output}"
    );
    // Each kind was in its own store, and nothing is left.
    let count = |sql: &str| records.sql(sql).unwrap();
    assert_ne!(
        count("SELECT count(*) FROM distributed_record"),
        "0",
        "{output}"
    );
    assert_eq!(
        count("SELECT count(*) FROM distributed_record WHERE NOT deleted"),
        "0"
    );
    assert_eq!(
        count("SELECT count(*) FROM distributed_lock"),
        "0",
        "{output}"
    );
    for kind in ["lock", "record"] {
        let keys = locks.command(&["KEYS", &format!("*:{kind}:*")]).unwrap();
        assert_eq!(keys, "", "{output}");
    }
}

#[test]
fn the_demo_passes_with_locks_on_redis_and_records_in_a_file() {
    let (home, locks) = (Home::new(), RedisServer::start().unwrap());
    let records = format!("sqlite:{}", home.store().display());
    let args = ["demo", "--backend", &locks.url(), "--records", &records];
    let mut run = Process::spawn(&mut home.bare(args)).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    assert_eq!(
        home.sql("DELETE FROM distributed_record WHERE deleted = 0"),
        0
    );
    assert_ne!(home.sql("DELETE FROM distributed_record"), 0, "{output}");
    assert_eq!(home.sql("DELETE FROM distributed_lock"), 0, "{output}");
}
