//! Bad input gets a clear message and the documented exit code, and changes nothing.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use serde_json::Value;

use crate::support::{Home, finish};

/// Every command that takes a lock name, with `NAME` in its place.
const NAMED: [&[&str]; 4] = [
    &["run", "NAME", "--", "touch", "ran"],
    &["acquire", "NAME", "--ttl", "5s"],
    &["inspect", "NAME"],
    &["force-release", "NAME", "--token", "1"],
];

fn with_name<'a>(line: &'a [&'a str], name: &'a OsStr) -> Vec<&'a OsStr> {
    line.iter()
        .map(|word| {
            if *word == "NAME" {
                name
            } else {
                OsStr::new(word)
            }
        })
        .collect()
}

#[test]
fn names_that_break_a_rule_are_refused_before_any_io() {
    let home = Home::new();
    let long = "x".repeat(256);
    let wide = "é".repeat(128);
    for (name, says) in [
        (OsStr::new(""), "is empty"),
        (OsStr::new(&long), "256 bytes long: at most 255"),
        (OsStr::new(&wide), "256 bytes long: at most 255"),
        (OsStr::new("a\nb"), "control character at byte 1"),
        (OsStr::new("\x1b[31m"), "control character at byte 0"),
        (OsStr::new("a\u{85}b"), "control character"),
        (OsStr::from_bytes(b"caf\xe9"), "not UTF-8"),
        (OsStr::from_bytes(b"\xff\xfe"), "not UTF-8"),
    ] {
        for line in NAMED {
            let done = home.run(with_name(line, name));
            done.assert_failed(64, says);
            assert!(
                !done.stderr.contains('\x1b'),
                "escape sequences are not passed on: {done:?}"
            );
        }
    }
    assert_eq!(home.files(), [""; 0], "before any I/O");
}

#[test]
fn names_that_look_odd_are_accepted() {
    let home = Home::new();
    let long = "x".repeat(255);
    for name in [
        "/",
        "..",
        "a b ",
        "%41",
        "'; drop table distributed_lock; --",
        "*",
        "{a}",
        "é",
        "\"",
        &long,
    ] {
        let done = home.run(["run", "--", name, "true"]);
        assert_eq!(done.code, 64, "a name after -- is the command: {done:?}");
        let done = home.run([
            "run",
            name,
            "--",
            "sh",
            "-c",
            "printf %s \"$DISTLOCK_NAME\"",
        ]);
        assert_eq!((done.code, done.stdout.as_str()), (0, name), "{done:?}");
        assert_eq!(home.inspect(name)["name"], name);
    }
    home.run(["list", OsStr::from_bytes(b"\xff").to_str().unwrap_or("-")]);
}

#[test]
fn invalid_ttls_are_refused() {
    let home = Home::new();
    for (ttl, says) in [
        ("0", "has no unit"),
        ("5", "has no unit: did you mean 5s or 5ms?"),
        ("0s", "outside 1 ms to 24 h"),
        ("25h", "outside 1 ms to 24 h"),
        ("24h1ms", "outside 1 ms to 24 h"),
        ("5d", "outside 1 ms to 24 h"),
        ("1.5s", "unknown unit"),
        ("", "is empty"),
        ("five", "whole numbers with units"),
        ("-5s", "whole numbers with units"),
        ("99999999999999999999s", "too large"),
        ("18446744073709551615h", "too large"),
    ] {
        for line in [
            vec!["acquire", "job", "--ttl", ttl],
            vec!["run", "job", "--ttl", ttl, "--", "touch", "ran"],
        ] {
            home.run(line).assert_failed(64, says);
        }
    }
    home.run(["acquire", "job"]).assert_failed(64, "--ttl");
    home.run(["acquire", "job", "--ttl=-5s"])
        .assert_failed(64, "-5s");
    assert!(!home.path("ran").exists());
    if home.store().exists() {
        assert_eq!(home.inspect("job")["state"], "free");
    }
}

#[test]
fn invalid_values_of_flags_are_refused() {
    let home = Home::new();
    for (line, says) in [
        (
            vec!["run", "job", "--wait", "5", "--", "true"],
            "has no unit",
        ),
        (vec!["run", "job", "--wait", "soon", "--", "true"], "soon"),
        (
            vec!["run", "job", "--wait", "-1s", "--", "true"],
            "whole numbers with units",
        ),
        (
            vec!["run", "job", "-n", "--wait", "1s", "--", "true"],
            "cannot be used with",
        ),
        (vec!["run", "job", "-E", "256", "--", "true"], "256"),
        (
            vec!["run", "job", "-E", "abc", "--", "true"],
            "a whole number from 0 to 255",
        ),
        (
            vec!["run", "job", "--holder", "a\tb", "--", "true"],
            "--holder: ",
        ),
        (vec!["rnu", "job"], "did you mean 'run'?"),
        (
            vec!["run", "job", "--kill-after", "20s", "--", "true"],
            "more than half of the TTL",
        ),
        (
            vec!["run", "job", "--min-hold", "25h", "--", "true"],
            "over 24 h",
        ),
        (
            vec!["run", "job", "--holder", "", "--", "true"],
            "holder label is empty",
        ),
        (vec!["run", "job"], "CMD"),
        (vec!["run", "job", "true"], "true"),
        (vec!["force-release", "job"], "--token"),
        (
            vec!["force-release", "job", "--token", "0"],
            "outside 1 to 2^53",
        ),
        (
            vec!["force-release", "job", "--token", "9007199254740992"],
            "outside 1 to 2^53",
        ),
        (
            vec!["force-release", "job", "--token", "x"],
            "a token is a whole number",
        ),
        (
            vec!["force-release", "job", "--token", "-1"],
            "a token is a whole number",
        ),
    ] {
        home.run(line).assert_failed(64, says);
    }
    let long = "x".repeat(129);
    home.run(["run", "job", "--holder", &long, "--", "true"])
        .assert_failed(64, "at most 128");
    let long = "x".repeat(4097);
    home.run(["run", "job", "--meta", &long, "--", "true"])
        .assert_failed(64, "at most 4096");
}

#[test]
fn unknown_commands_and_flags_get_a_suggestion() {
    let home = Home::new();
    home.run(["aquire", "job"]).assert_failed(64, "acquire");
    home.run(["list", "--jsn"]).assert_failed(64, "--json");
    home.run(["inspect", "a", "b"]).assert_failed(64, "'b'");
    home.run::<&str>([]).assert_failed(64, "Usage");
    assert_eq!(home.files(), [""; 0]);
}

#[test]
fn urls_with_an_unknown_scheme_or_option_are_refused() {
    let home = Home::new();
    let file = home.store();
    let sqlite = |query: &str| format!("sqlite:{}?{query}", file.display());
    for (url, says) in [
        ("", "no backend is given"),
        ("/tmp/locks.db", "has no scheme"),
        ("hunter2", "has no scheme"),
        ("redis://a\u{1}b", "is no host"),
        (&format!("redis://{}", "a".repeat(50_000)), "is no host"),
        ("kv+zookeeper://127.0.0.1:1/locks", "do not tell their age"),
        ("sqllite:x.db", "did you mean sqlite:?"),
        ("ftp://h/x", "unknown backend scheme \"ftp:\""),
        ("mysql://bob:hunter2@h", "names no database"),
        ("postgres://bob:hunter2@h", "names no database"),
        (
            "redis://:hunter2@db.example",
            "write rediss:// instead of redis://",
        ),
        (
            "redis+cluster://:hunter2@db.example",
            "set the option `tls` to `disable`",
        ),
        (
            "mysql://bob:hunter2@db.example/d?ssl-mode=PREFERRED",
            "would go to \"db.example\" in clear",
        ),
        (
            "postgres://bob:hunter2@db.example/d?sslmode=prefer",
            "would go to \"db.example\" in clear",
        ),
        (
            "zookeeper://bob:hunter2@db.example/app",
            "by the option `tls_ca`",
        ),
        (
            "etcd://h1:2379",
            "unknown backend scheme \"etcd:\": known are distlock:, distlocks:, kv+URL, mariadb:",
        ),
        ("sqlite:", "path of the SQLite file is empty"),
        ("sqlite::memory:", "use the backend `memory:`"),
        (
            &sqlite("reap_afer=1h"),
            "unknown option `reap_afer` for sqlite: did you mean `reap_after`?",
        ),
        (
            &sqlite("banana=1"),
            "unknown option `banana` for sqlite: known are busy_timeout",
        ),
        (
            "redis://h?banana=1",
            "unknown option `banana` for redis: known are connect_timeout, db, password,",
        ),
        (&sqlite("reap_after=1"), "reap_after"),
        (&sqlite("migrate=maybe"), "migrate"),
        (&sqlite("migrate=true&migrate=true"), "given twice"),
        (
            &sqlite("connect_timeout=5"),
            "`connect_timeout` = \"5\": duration \"5\" has no unit",
        ),
    ] {
        // The URL is given in a flag, and then in a variable.
        let by_flag = finish(&mut home.bare(["--backend", url, "list"]), "");
        by_flag.assert_failed(78, says);
        assert!(!by_flag.stderr.contains("hunter2"), "{by_flag:?}");
        assert!(by_flag.stderr.contains("--backend"), "{by_flag:?}");
        if !url.is_empty() {
            let by_variable = finish(home.bare(["list"]).env("DISTLOCK_BACKEND", url), "");
            by_variable.assert_failed(78, says);
            assert!(!by_variable.stderr.contains("hunter2"), "{by_variable:?}");
            let named = by_variable.stderr.contains("DISTLOCK_BACKEND");
            assert!(named, "{by_variable:?}");
        }
    }
    assert_eq!(home.files(), [""; 0], "nothing was created");
}

#[test]
fn memory_is_refused_for_commands_whose_lock_would_exclude_nobody() {
    let home = Home::new();
    for line in [
        vec!["run", "job", "--", "touch", "ran"],
        vec!["acquire", "job", "--ttl", "5s"],
        vec!["inspect", "job"],
        vec!["list"],
        vec!["force-release", "job", "--token", "1"],
        vec!["demo"],
    ] {
        let mut command = home.bare(["--backend", "memory:"]);
        finish(command.args(line), "").assert_failed(78, "would lock nothing");
    }
    assert_eq!(home.files(), [""; 0]);
}

#[test]
fn errors_of_the_configuration_name_file_line_and_key() {
    let home = Home::new();
    for (text, at, says) in [
        ("[backend\nurl = 1", ":1:", "not valid TOML"),
        (
            "\n[bakend]\nurl = \"memory:\"",
            ":2:2:",
            "unknown key `bakend`: did you mean `backend`?",
        ),
        (
            "[backend]\nulr = \"memory:\"",
            ":2:1:",
            "unknown key `ulr` in [backend]: did you mean `url`?",
        ),
        (
            "[backend]\nurl = \"sqlite:x.db\"\nreap_afer = \"1h\"",
            ":3:1:",
            "unknown option `reap_afer` for sqlite: did you mean `reap_after`?",
        ),
        (
            "[backend]\nurl = \"sqlite:x.db\"\nreap_after = \"1\"",
            ":3:1:",
            "`reap_after`",
        ),
        (
            "[backend]\nurl = \"sqlite:x.db?banana=1\"",
            ":2:7:",
            "unknown option `banana` for sqlite",
        ),
        (
            "[backend]\nurl = \"sqlite:x.db?connect_timeout=5\"",
            ":2:7:",
            "`connect_timeout` = \"5\"",
        ),
        (
            "[backend]\nurl = \"redis://h?db=1&banana=1\"",
            ":2:7:",
            "unknown option `banana` for redis",
        ),
        (
            "[backend]\nurl = \"sqllite:x.db\"",
            ":2:7:",
            "did you mean sqlite:?",
        ),
        (
            "[backend]\nurl = \"mysql://bob:hunter2@h\"",
            ":2:7:",
            "names no database",
        ),
        (
            "[backend]\nurl = \"mysql://bob:hunter2@h\" oops",
            ":2:",
            "not valid TOML",
        ),
        (
            "[backend]\nurl = \"sqlite:x.db?reap_after=1h\"\nreap_after = \"1h\"",
            ":3:1",
            "given twice",
        ),
    ] {
        let file = home.write("distlock.toml", text);
        let file = file.to_str().unwrap();
        let by_flag = finish(&mut home.bare(["list", "--config", file]), "");
        let by_variable = finish(home.bare(["list"]).env("DISTLOCK_CONFIG", file), "");
        for done in [by_flag, by_variable] {
            done.assert_failed(78, says);
            assert!(done.stderr.contains(&format!("{file}{at}")), "{done:?}");
            assert!(!done.stderr.contains("hunter2"), "{done:?}");
        }
    }
    let file = home.write("distlock.toml", "[gateway]\nnod = \"n1\"");
    let token = [
        "gateway",
        "token",
        "--uid",
        "alice",
        "--config",
        file.to_str().unwrap(),
    ];
    finish(&mut home.bare(token), "").assert_failed(
        78,
        ":2:1: unknown key `nod` in [gateway]: did you mean `node`?",
    );
    assert_eq!(home.files(), ["distlock.toml"], "nothing was created");
}

/// These files would block the tool: a file that never ends, and a pipe that nobody writes to.
#[test]
fn a_file_that_is_too_large_or_no_regular_file_is_not_read() {
    let home = Home::new();
    let large = home.write("large.toml", "");
    let file = std::fs::File::options().write(true).open(&large).unwrap();
    file.set_len(2 << 30).unwrap();
    let pipe = large.with_file_name("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for (path, says) in [
        (large.as_path(), "more than 1048576 bytes"),
        (&pipe, "no regular file"),
        (large.parent().unwrap(), "no regular file"),
        (std::path::Path::new("/dev/zero"), "no regular file"),
    ] {
        let done = home.run(["list", "--config", path.to_str().unwrap()]);
        done.assert_failed(78, says);
        assert!(done.stderr.contains(path.to_str().unwrap()), "{done:?}");
    }
}

#[test]
fn invalid_exit_codes_are_refused() {
    let home = Home::new();
    for (flag, more) in [("-E", &[][..]), ("--every-exit-code", &["--every", "1h"])] {
        let line = [&["run", "job", flag, "-1"], more, &["--", "true"]].concat();
        home.run(line)
            .assert_failed(64, "a whole number from 0 to 255");
    }
}

#[test]
fn a_later_source_of_the_backend_replaces_an_earlier_one() {
    let home = Home::new();
    let (in_file, in_variable, in_flag) = (
        home.path("file.db"),
        home.path("variable.db"),
        home.path("flag.db"),
    );
    let url = |path: &std::path::Path| format!("sqlite:{}", path.display());
    let config = home.write(
        "distlock.toml",
        &format!(
            "[backend]\nurl = \"{}\"\nreap_after = \"2h\"\n",
            url(&in_file)
        ),
    );
    let mut command = home.bare(["list"]);
    command.env("DISTLOCK_CONFIG", &config);
    assert_eq!(finish(&mut command, "").code, 0);
    assert!(in_file.exists() && !in_variable.exists());
    command.env("DISTLOCK_BACKEND", url(&in_variable));
    assert_eq!(finish(&mut command, "").code, 0);
    assert!(in_variable.exists() && !in_flag.exists());
    command.args(["--backend", &url(&in_flag)]);
    assert_eq!(finish(&mut command, "").code, 0);
    assert!(in_flag.exists());
}

#[test]
fn a_password_on_the_command_line_is_warned_about_and_never_shown() {
    let home = Home::new();
    let done = finish(
        &mut home.bare(["--backend", "mysql://bob:hunter2@h", "list"]),
        "",
    );
    assert!(done.stderr.contains("can be read by everybody"), "{done:?}");
    let quoted = finish(
        &mut home.bare(["--bakend=mysql://bob:hunter2@h", "list"]),
        "",
    );
    for done in [done, quoted] {
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
}

#[test]
fn a_file_with_a_secret_that_others_can_read_is_warned_about() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
    let home = Home::new();
    for (key, mode, warns) in [
        ("token_key", 0o644, true),
        ("token_key", 0o640, true),
        ("token_key", 0o600, false),
        ("token_key_also", 0o640, true),
    ] {
        let file = home.write("distlock.toml", &format!("[gateway]\n{key} = \"hunter2\""));
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let done = home.run(["list", "--config", file.to_str().unwrap()]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(
            done.stderr.contains("others can read it"),
            warns,
            "{mode:o}: {done:?}"
        );
        assert!(!done.stderr.contains("hunter2"), "{done:?}");
    }
    // There is only one warning, even from a command that reads the file twice.
    let text = "[gateway]\nnode = \"n1\"\ntoken_key = \"a key that is long enough for HS256\"";
    let file = home.write("distlock.toml", text);
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let node = ["gateway", "run", "--backend", "nothing:", "--config"];
    let done = finish(home.bare(node).arg(file), "");
    done.assert_failed(78, "unknown backend scheme");
    let warnings = done.stderr.matches("others can read it").count();
    assert_eq!(warnings, 1, "{done:?}");
}

/// A user who writes the file chooses the store of root's jobs, and the programs that root asks.
#[test]
fn root_is_warned_of_a_file_that_another_user_can_write() {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = Home::new();
    for (owner, mode, warns) in [(0, 0o644, false), (0, 0o664, true), (54_321, 0o600, true)] {
        let file = home.write("distlock.toml", "[backend]\nurl = \"memory:\"\n");
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        let done = home.run(["list", "--config", file.to_str().unwrap()]);
        let warned = done.stderr.contains("another user can write");
        assert_eq!(warned, warns, "{owner} {mode:o}: {done:?}");
    }
}

#[test]
fn invalid_tickets_are_refused_and_change_nothing() {
    let home = Home::new();
    let good = home.run(["acquire", "job", "--ttl", "1m"]).stdout;
    let good = good.trim();
    let before = stable(&home.inspect("job"));
    let cut = &good[..good.len() - 4];
    let changed = format!("{}{}", &good[..good.len() - 4], "AAAA");
    for ticket in [
        "",
        "garbage",
        "dlt1.",
        "{}",
        "{\"ticket\": 5}",
        "{\"ticket\": \"x\"}",
        "{",
        cut,
        &changed,
    ] {
        for command in ["renew", "release"] {
            let done = finish(&mut home.distlock([command]), ticket);
            done.assert_failed(64, "ticket");
            assert!(
                ticket.len() < 8 || !done.stderr.contains(ticket),
                "a ticket is a secret: {done:?}"
            );
        }
    }
    let bytes = finish(
        home.distlock(["release"])
            .env("DISTLOCK_TICKET", OsStr::from_bytes(b"\xff")),
        "",
    );
    bytes.assert_failed(64, "not UTF-8");
    assert_eq!(stable(&home.inspect("job")), before);
}

#[test]
fn used_tickets_and_those_of_another_grant_are_refused() {
    let home = Home::new();
    let old = home.run(["acquire", "job", "--ttl", "1m"]).stdout;
    assert_eq!(finish(&mut home.distlock(["release"]), &old).code, 0);
    let new = home
        .run(["acquire", "job", "--ttl", "1m", "--holder", "the next one"])
        .stdout;
    let before = stable(&home.inspect("job"));
    for command in ["renew", "release"] {
        finish(&mut home.distlock([command]), &old).assert_failed(76, "the ticket");
    }
    assert_eq!(
        stable(&home.inspect("job")),
        before,
        "the next holder's lock was not touched"
    );
    // The other store does not know this ticket.
    let elsewhere = format!("sqlite:{}", home.path("other.db").display());
    finish(
        &mut home.distlock(["release", "--backend", &elsewhere]),
        &new,
    )
    .assert_failed(76, "ticket");
    assert_eq!(finish(&mut home.distlock(["release"]), &new).code, 0);
}

/// The fields of a lock that must not change: all but the remaining time.
fn stable(lock: &Value) -> Value {
    let mut lock = lock.clone();
    lock["expires_in_ms"] = Value::Null;
    lock
}

/// URLs with a missing colon or `@`, or with a password that is not escaped.
#[test]
fn a_password_in_a_mistyped_url_is_never_shown() {
    let home = Home::new();
    for (url, says) in [
        ("postgres//u:canary@h/x", "has no scheme"),
        ("redis//u:canary@h", "has no scheme"),
        ("//u:canary@h", "has no scheme"),
        ("u:canary@h", "unknown backend scheme"),
        ("postgres:/u:canary@h/x", "not a URL of a server"),
        ("redis:/u:canary@h", "`//`"),
        ("redis://u:ab?canary@127.0.0.1:1", "an `@` after its `?`"),
        ("redis://u:ab?c=canary@127.0.0.1:1", "%3F"),
        ("redis+sentinel://u:ab?canary@127.0.0.1:1/m", "%3F"),
        ("postgres://u:ab?canary@127.0.0.1:1/x", "%3F"),
        ("mysql://u:ab?canary@127.0.0.1:1/x", "%3F"),
        ("zookeeper://u:ab?canary@127.0.0.1:1/x", "%3F"),
        ("redis://u:ab?canary", "end with `@`"),
        ("redis://u:ab/canary", "end with `@`"),
        ("redis://u:canaryhost:6379", "end with `@`"),
        ("redis+cluster://u:canaryhost:6379,h2", "end with `@`"),
        ("postgres://u:canaryhost:5432/x", "end with `@`"),
        ("mysql://u:canaryhost/x", "end with `@`"),
        ("zookeeper://u:canaryhost:2181/x", "end with `@`"),
        ("redis://h#canary", "no host, host:port"),
        ("redis://[canary", "no host, host:port"),
        ("redis://h/canary", "number of a database"),
        ("redis+cluster://h/canary", "database 0 only"),
        ("zookeeper://h1,canary!/x", "no server"),
    ] {
        let file = home.write("distlock.toml", &format!("[backend]\nurl = \"{url}\""));
        let file = file.to_str().unwrap();
        let by_flag = finish(&mut home.bare(["--backend", url, "list"]), "");
        let by_variable = finish(home.bare(["list"]).env("DISTLOCK_BACKEND", url), "");
        let by_file = finish(&mut home.bare(["list", "--config", file]), "");
        for (done, place) in [
            (by_flag, "--backend: "),
            (by_variable, "DISTLOCK_BACKEND: "),
            (by_file, "distlock.toml:2:7: "),
        ] {
            done.assert_failed(78, says);
            assert!(done.stderr.contains(place), "{done:?}");
            assert!(!done.stderr.contains("canary"), "{done:?}");
        }
        // Here the URL is given in the place of the command.
        if url.contains("u:") {
            let misplaced = finish(&mut home.bare([url, "list"]), "");
            misplaced.assert_failed(64, "");
            assert!(!misplaced.stderr.contains("canary"), "{misplaced:?}");
        }
    }
}

#[test]
fn connect_timeout_has_the_same_limits_for_every_store() {
    let home = Home::new();
    for url in [
        "sqlite:x.db",
        "redis://h",
        "postgres://h/x",
        "zookeeper://h/x",
    ] {
        let text = format!("[backend]\nurl = \"{url}\"\nconnect_timeout = \"0s\"");
        let file = home.write("distlock.toml", &text);
        let done = finish(
            &mut home.bare(["list", "--config", file.to_str().unwrap()]),
            "",
        );
        done.assert_failed(78, "outside 100ms to 60s");
        assert!(done.stderr.contains("distlock.toml:3:1: "), "{done:?}");
    }
}

/// Errors about a file name the option and the file. They come before any request to a server.
#[cfg(feature = "tls")]
#[test]
fn files_for_tls_that_cannot_be_used_are_78_and_named() {
    use distlock_harness::Pki;

    let (home, pki, other) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let text = home.write("text.pem", "no certificate");
    let begin = |what: &str| format!("-----BEGIN {what}-----\nc2VjcmV0\n-----END {what}-----\n");
    let broken = home.write("broken.crt", &begin("CERTIFICATE"));
    let broken_key = home.write("broken.key", &begin("PRIVATE KEY"));
    let (missing, foreign) = (home.path("missing.pem"), other.path("client.key"));
    let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| pki.path(name));
    for (url, options) in [
        ("rediss://127.0.0.1:1?", ["tls_ca", "tls_cert", "tls_key"]),
        (
            "mysql://u@127.0.0.1:1/d?ssl-mode=VERIFY_CA&",
            ["ssl-ca", "ssl-cert", "ssl-key"],
        ),
        (
            "postgres://u@127.0.0.1:1/d?sslmode=verify-ca&",
            ["sslrootcert", "sslcert", "sslkey"],
        ),
        (
            "zookeeper://127.0.0.1:1/app?",
            ["tls_ca", "tls_cert", "tls_key"],
        ),
    ] {
        for (at, file, says) in [
            (0, &missing, "cannot read"),
            (0, &text, "holds no certificate in PEM form"),
            (0, &broken, "holds a certificate that cannot be used"),
            (1, &missing, "cannot read"),
            (1, &text, "holds no certificate in PEM form"),
            (1, &broken, "holds a certificate that cannot be used"),
            (2, &missing, "cannot read"),
            (2, &text, "holds no private key in PEM form"),
            (2, &broken_key, "holds a private key that cannot be used"),
            (2, &foreign, "holds another private key than that of"),
        ] {
            let mut files = [&ca, &cert, &key];
            files[at] = file;
            let files = options
                .iter()
                .zip(files)
                .map(|(option, file)| format!("{option}={}", file.display()));
            let url = format!("{url}{}", files.collect::<Vec<_>>().join("&"));
            let done = finish(home.bare(["list"]).env("DISTLOCK_BACKEND", &url), "");
            done.assert_failed(78, says);
            done.assert_failed(78, &format!("option `{}`", options[at]));
            done.assert_failed(78, &file.display().to_string());
            assert!(!done.stderr.contains("c2Vj"), "{done:?}");
        }
    }
}

#[test]
fn a_second_backend_is_refused() {
    let home = Home::new();
    let twice = ["list", "--backend", "memory:", "--backend", "memory:"];
    finish(&mut home.bare(twice), "").assert_failed(64, "multiple times");
}
