//! Tests of the commands without a test file of their own: tickets, inspect, list, force-release,
//! doctor, migrate, conformance, completions, man.

use std::{collections::HashSet, ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::support::{Home, SOON, finish};

#[test]
fn a_script_takes_renews_and_releases_with_a_ticket() {
    let home = Home::new();
    let taken = home.run([
        "acquire", "deploy", "--ttl", "1m", "--holder", "ci", "--meta", "build 7",
    ]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let ticket = taken.stdout.trim().to_owned();
    let seen = home.inspect("deploy");
    assert_eq!(
        (&seen["state"], &seen["holder"], &seen["meta"]),
        (&"held".into(), &"ci".into(), &"build 7".into())
    );
    home.run(["run", "deploy", "-n", "--", "true"])
        .assert_failed(75, "ci");

    // The ticket is given on standard input, and then in the environment.
    let renewed = finish(
        &mut home.distlock(["renew", "--ttl", "2m", "--json"]),
        &ticket,
    );
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert_eq!(renewed.json()["ttl_ms"], 120_000);
    assert!(home.inspect("deploy")["expires_in_ms"].as_u64().unwrap() > 60_000);
    let again = finish(home.distlock(["renew"]).env("DISTLOCK_TICKET", &ticket), "");
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:?}");
    let released = finish(
        home.distlock(["release"]).env("DISTLOCK_TICKET", &ticket),
        "",
    );
    assert_eq!(released.code, 0, "{released:?}");
    assert_eq!(home.inspect("deploy")["state"], "free");
}

#[test]
fn the_json_of_acquire_is_accepted_as_a_ticket() {
    let home = Home::new();
    let taken = home.run(["acquire", "deploy", "--ttl", "1m", "--json"]);
    let json = taken.json();
    assert_eq!(json["name"], "deploy");
    assert_eq!(json["token"], home.inspect("deploy")["token"]);
    let released = finish(&mut home.distlock(["release", "--json"]), &taken.stdout);
    assert_eq!(released.json()["released"], true, "{released:?}");
}

#[test]
fn a_lock_is_shown_with_the_documented_fields() {
    let home = Home::new();
    let fields = [
        "name",
        "kind",
        "state",
        "holder",
        "meta",
        "token",
        "epoch",
        "acquired_at",
        "expires_in_ms",
        "waiters",
    ];
    let free = home.inspect("job");
    assert_eq!(free.as_object().unwrap().len(), fields.len(), "{free}");
    assert!(
        fields.iter().all(|field| free.get(field).is_some()),
        "{free}"
    );
    assert_eq!(
        (&free["state"], &free["holder"], &free["token"]),
        (&"free".into(), &().into(), &().into())
    );

    let _holder = home.hold("job", &["--holder", "me"], "sleep 60");
    let held = home.inspect("job");
    assert_eq!(
        (&held["state"], &held["holder"]),
        (&"held".into(), &"me".into()),
        "{held}"
    );
    assert!(held["token"].as_u64().unwrap() > 0);
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 30_000);
    let at: jiff::Timestamp = held["acquired_at"].as_str().unwrap().parse().unwrap();
    let age = jiff::Timestamp::now().duration_since(at);
    assert!(age.as_secs().abs() < 60, "{held}");
    let text = home.run(["inspect", "job"]);
    assert!(
        text.stdout.starts_with("job: held by me since 20"),
        "{text:?}"
    );
}

#[test]
fn held_locks_are_listed_one_object_a_line() {
    let home = Home::new();
    for name in ["order:2", "order:1", "other"] {
        let taken = home.run(["acquire", name, "--ttl", "1m"]);
        assert_eq!(taken.code, 0, "{taken:?}");
    }
    let listed = home.run(["list", "order:", "--json"]);
    let names: Vec<_> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone())
        .collect();
    assert_eq!(names, ["order:1", "order:2"]);
    let table = home.run(["list"]);
    assert_eq!(table.stdout.lines().count(), 4, "{table:?}");
    let nothing = home.run(["list", "zzz"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (0, ""));
    let says = "no lock is held whose name starts with \"zzz\"";
    assert!(nothing.stderr.contains(says), "{nothing:?}");
    let nothing = home.run(["list", "zzz", "--json"]);
    assert_eq!((nothing.stdout.as_str(), nothing.stderr.as_str()), ("", ""));
}

#[test]
fn a_forced_release_needs_the_token_that_was_seen() {
    let home = Home::new();
    home.run(["force-release", "job", "--token", "7"])
        .assert_failed(76, "is free");
    let taken = home.run(["acquire", "job", "--ttl", "1m", "--json"]).json();
    let token = taken["token"].as_u64().unwrap();
    home.run(["force-release", "job", "--token", &(token - 1).to_string()])
        .assert_failed(76, &format!("is held with token {token}"));
    assert_eq!(home.inspect("job")["state"], "held");
    let forced = home.run([
        "force-release",
        "job",
        "--token",
        &token.to_string(),
        "--json",
    ]);
    assert_eq!(forced.json()["released"], true, "{forced:?}");
    assert_eq!(home.inspect("job")["state"], "free");
}

#[test]
fn doctor_reports_the_server_and_its_findings() {
    let home = Home::new();
    let done = home.run(["doctor", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let json = done.json();
    assert!(
        json["server"].as_str().unwrap().contains("SQLite"),
        "{json}"
    );
    assert!(!json["findings"].as_array().unwrap().is_empty(), "{json}");
    assert_ne!(json["verdict"], "fail", "{json}");
    let text = home.run(["doctor"]);
    assert!(text.stdout.contains("VERDICT"), "{text:?}");
}

#[test]
fn migrate_creates_the_tables_once() {
    let home = Home::new();
    let first = home.run(["migrate", "--json"]);
    assert_eq!(first.code, 0, "{first:?}");
    assert_eq!(
        first.json()["applied"].as_array().unwrap().len(),
        1,
        "{first:?}"
    );
    let second = home.run(["migrate"]);
    assert!(second.stdout.contains("up to date"), "{second:?}");
    let none = finish(&mut home.bare(["migrate", "--backend", "memory:"]), "");
    assert!(none.stdout.contains("no tables"), "{none:?}");
}

#[test]
fn the_error_for_a_store_without_tables_advises_migrate() {
    let home = Home::new();
    let url = format!("sqlite:{}?migrate=false", home.store().display());
    let done = home.run(["--backend", &url, "acquire", "job", "--ttl", "5s"]);
    assert_ne!(done.code, 0, "{done:?}");
    assert!(done.stderr.contains("distlock migrate"), "{done:?}");
}

#[test]
fn conformance_runs_chosen_cases_and_reports_each_result() {
    let home = Home::new();
    let done = home.run(["conformance", "--filter", "fencing::", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let results: Vec<serde_json::Value> = done
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!results.is_empty());
    // On SQLite, tokens rise for each name only. So that case must count neither as failed nor as
    // passed.
    let global = "fencing::token_rises_over_all_names";
    for result in &results {
        let (status, says_why) = match result["name"] == global {
            true => ("not_applicable", true),
            false => ("passed", false),
        };
        assert_eq!(result["status"], status, "{result}");
        assert_eq!(result["detail"].is_string(), says_why, "{result}");
    }
    assert!(results.iter().any(|result| result["name"] == global));
    let table = home.run(["conformance", "--filter", "fencing::"]);
    assert!(table.stdout.contains("passed"), "{table:?}");
    assert!(table.stdout.contains("n/a"), "{table:?}");
    assert!(
        table.stderr.contains("0 failed, 1 not applicable"),
        "{table:?}"
    );
    home.run(["conformance", "--filter", "no such case"])
        .assert_failed(64, "no case");
    let listed = home.run(["conformance", "--list"]);
    assert!(listed.stdout.lines().count() >= 60, "{listed:?}");
}

#[test]
fn completions_and_manual_are_generated() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = home.run(["completions", shell]);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stdout.contains("force-release"), "{shell}");
        assert!(!done.stdout.contains("conformance-worker"), "{shell}");
    }
    let bash = home.run(["completions", "bash"]).stdout;
    let script = home.write("completion.bash", &bash);
    let mut check = std::process::Command::new("bash");
    check.arg("-n").arg(script);
    assert_eq!(finish(&mut check, "").code, 0);
    home.run(["completions", "tcsh"]).assert_failed(64, "tcsh");

    for words in [vec![], vec!["run"], vec!["gateway", "run"]] {
        let done = home.run([vec!["man"], words.clone()].concat());
        assert!(done.stdout.starts_with(".ie"), "{done:?}");
        assert!(
            done.stdout.contains(&format!(
                "distlock{}",
                words
                    .iter()
                    .map(|word| format!("\\-{word}"))
                    .collect::<String>()
            )),
            "{done:?}"
        );
    }
    let page = home.run(["man", "run"]).stdout;
    for part in [
        "\n.SH SYNOPSIS\n\\fBdistlock run\\fR [OPTIONS] <NAME> \\-\\- <CMD>...\n",
        "\n.SH \"EXIT CODES\"\n",
        "\n.SH \"EXAMPLES\"\n.nf\n  distlock run nightly",
    ] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    let (on, off) = (
        page.matches("\n.nf\n").count(),
        page.matches("\n.fi\n").count(),
    );
    assert_eq!(
        (on, off),
        (3, 3),
        "what is not to be filled, and its end: {page}"
    );
    home.run(["man", "rnu"])
        .assert_failed(64, "did you mean run?");
    assert_eq!(home.run(["man", "--dir", "share/man1"]).code, 0);
    let at = |name: &str| home.path("share/man1").join(name);
    assert!(at("distlock-force-release.1").is_file());
    let written = std::fs::read_to_string(at("distlock-run.1")).unwrap();
    assert_eq!(written, page);
    assert!(at("distlock-gateway-token.1").is_file());
    assert!(!at("distlock-help.1").exists());
}

#[test]
fn logs_go_to_standard_error_in_the_wanted_form() {
    let home = Home::new();
    let mut list = home.distlock(["list", "--json", "--log-format", "json"]);
    let done = finish(list.env("DISTLOCK_LOG", "trace"), "");
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    for line in done.stderr.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}"));
    }
    let wrong = finish(
        home.distlock(["list"]).env("DISTLOCK_LOG", "distlock=loud"),
        "",
    );
    wrong.assert_failed(78, "DISTLOCK_LOG is \"distlock=loud\"");
    let not_text = OsStr::from_bytes(b"debug\xff");
    let wrong = finish(home.distlock(["list"]).env("DISTLOCK_LOG", not_text), "");
    wrong.assert_failed(78, "DISTLOCK_LOG is not UTF-8");
}

#[test]
fn the_error_is_the_last_line_after_warnings_and_logs() {
    let home = Home::new();
    let mut inspect = home.bare(["inspect", "job", "--backend", "sqlite:/nowhere/locks.db"]);
    // The name of this variable is close to a variable of the tool. The warning about it comes
    // first.
    inspect.env("DISTLOCK_LOGS", "");
    let done = finish(inspect.env("DISTLOCK_LOG", "trace"), "");
    let said: Vec<_> = done.stderr.lines().collect();
    let (first, last) = (said[0], said[said.len() - 1]);
    assert!(first.contains("DISTLOCK_LOGS means nothing"), "{done:?}");
    assert!(last.starts_with("distlock: error: "), "{done:?}");
}

#[test]
fn all_of_many_warnings_are_printed() {
    let home = Home::new();
    let mut list = home.bare(["list", "--backend", "nothing:"]);
    let mut misspelled = Vec::new();
    for known in [
        "DISTLOCK_BACKEND",
        "DISTLOCK_CONFIG",
        "DISTLOCK_HOLDER",
        "DISTLOCK_SYSTEM_FOLDER",
        "DISTLOCK_TICKET",
        "DISTLOCK_TOKEN",
    ] {
        for at in "DISTLOCK_".len()..known.len() {
            for letter in 'a'..='z' {
                let mut name = known.to_owned();
                name.replace_range(at..=at, &letter.to_string());
                misspelled.push(name);
            }
        }
    }
    list.envs(misspelled.iter().map(|name| (name, "1")));
    let done = finish(&mut list, "");
    assert_eq!(done.code, 78);
    assert!(done.stderr.len() > 1 << 16, "a pipe holds that much");
    let told: HashSet<_> = done.stderr.split_whitespace().collect();
    for name in &misspelled {
        assert!(told.contains(&**name), "{name}");
    }
    let last = done.stderr.lines().last().unwrap();
    assert!(last.starts_with("distlock: error: "), "{last}");
    assert!(done.stderr.ends_with('\n'));
}

#[test]
fn a_lock_expires_by_itself_when_its_ticket_is_not_renewed() {
    let home = Home::new();
    let ticket = home.run(["acquire", "job", "--ttl", "300ms"]).stdout;
    distlock_harness::eventually("the lock is free", SOON, || {
        home.inspect("job")["state"] == "free"
    })
    .unwrap();
    for command in ["renew", "release"] {
        finish(&mut home.distlock([command]), &ticket).assert_failed(76, "ticket");
    }
}

#[test]
fn a_name_with_control_characters_is_escaped_except_in_json() {
    let home = Home::new();
    let name = "pay\u{202e}lla";
    assert_eq!(home.run(["acquire", name, "--ttl", "1m"]).code, 0);
    for line in [vec!["list"], vec!["inspect", name]] {
        let shown = home.run(&line);
        assert!(shown.stdout.contains("pay\\u{202e}lla"), "{shown:?}");
        assert!(!shown.stdout.contains('\u{202e}'), "{shown:?}");
        let json = home.run([line, vec!["--json"]].concat());
        assert_eq!(json.json()["name"], name);
    }
}
