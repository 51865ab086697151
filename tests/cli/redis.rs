//! The tool over Redis: the demo, a lock held by a process, and the errors when a URL is wrong.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use distlock_harness::{
    Direction, FaultProxy, Process, Signal,
    servers::redis::{RedisCluster, RedisSentinels, RedisServer},
};

use crate::support::{Finished, Home, SOON, assert_success_without_release, finish};

fn run(home: &Home, url: &str, args: &[&str]) -> Finished {
    finish(home.bare(args).env("DISTLOCK_BACKEND", url), "")
}

#[test]
fn the_demo_passes_and_leaves_nothing() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let mut run = Process::spawn(&mut home.bare(["demo", "--backend", &server.url()])).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    assert_eq!(
        server.command(&["KEYS", "*:record:*"]).unwrap(),
        "",
        "{output}"
    );
    // The lease of the killed node must be removed, too.
    assert_eq!(
        server.command(&["KEYS", "*:lock:*"]).unwrap(),
        "",
        "{output}"
    );
}

#[test]
fn a_lock_is_shown_with_its_holder_and_passes_on() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let taken = run(
        &home,
        &url,
        &["acquire", "job", "--ttl", "1m", "--holder", "me"],
    );
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
}

#[test]
fn the_stores_password_is_shown_nowhere() {
    let home = Home::new();
    let server = RedisServer::with(&["requirepass canary"]).unwrap();
    let url = format!("redis://:canary@{}", server.address());
    let config = home.write("distlock.toml", &format!("[backend]\nurl = \"{url}\"\n"));
    // The script prints the arguments that `ps` shows, and the environment of the command.
    let script = "tr '\\0' ' ' < /proc/$PPID/cmdline; tr '\\0' ' ' < /proc/$$/cmdline; env";
    let run = ["run", "job", "--", "sh", "-c", script];
    let mut by_file = home.bare(["--config", config.to_str().unwrap()]);
    let mut by_variable = home.bare(run);
    by_variable.env("DISTLOCK_BACKEND", url);
    for run in [by_file.args(run), &mut by_variable] {
        let done = finish(run.env("DISTLOCK_LOG", "trace"), "");
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stdout.contains("DISTLOCK_TOKEN"), "{done:?}");
        assert!(done.stderr.contains("acquired"), "{done:?}");
        for shown in [&done.stdout, &done.stderr] {
            assert!(!shown.contains("canary"), "{done:?}");
        }
    }
}

#[test]
fn a_wrong_url_is_refused_soon_with_its_code_and_no_secret() {
    let home = Home::new();
    let server = RedisServer::with(&["requirepass secret"]).unwrap();
    let replica = RedisServer::with(&["replicaof 127.0.0.1 1"]).unwrap();
    let cluster = RedisCluster::start(3, 0).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let (at, node) = (server.address().to_string(), cluster.nodes[0].url());
    let plain_for_tls = if cfg!(feature = "tls") {
        (69, &*at)
    } else {
        (78, "tls")
    };
    for (url, code, says) in [
        (format!("redis://{at}"), 77, "refused the credentials"),
        (format!("redis://:canary@{at}"), 77, &*at),
        (
            format!("redis://{at}?password=canary"),
            77,
            "refused the credentials",
        ),
        (format!("redis://:secret@{at}/99"), 78, "DB index"),
        (format!("redis://:canary@{at}?prefx=a"), 78, "`prefix`"),
        (format!("redis://:canary@{at}?db=x"), 78, "`db`"),
        (
            format!("rediss://:canary@{at}"),
            plain_for_tls.0,
            plain_for_tls.1,
        ),
        (replica.url(), 69, "replica"),
        (node, 78, "redis+cluster://"),
        (format!("redis://:canary@{silent}"), 69, &*silent),
    ] {
        assert_refused(&home, &url, code, &[says]);
    }
}

/// Checks that a command with a wrong URL ends soon with this code, that the message names the
/// fault and its place, and that it shows no secret.
fn assert_refused(home: &Home, url: &str, code: i32, says: &[&str]) {
    let sign = if url.contains('?') { '&' } else { '?' };
    let start = Instant::now();
    let done = run(home, &format!("{url}{sign}connect_timeout=2s"), &["list"]);
    // The time to start a process on a busy machine does not count.
    assert!(
        start.elapsed() < Duration::from_secs(2 + 1) + SOON / 10,
        "{url}: {done:?}"
    );
    for word in says {
        done.assert_failed(code, word);
    }
    assert!(!done.stderr.contains("canary"), "{done:?}");
    assert!(!done.stderr.contains("secret"), "{done:?}");
}

/// An address without a server, the address of a server that never answers, and the listener of
/// that server.
fn closed_and_silent_addresses() -> (String, String, TcpListener) {
    let at = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
    let gone = at(&TcpListener::bind("127.0.0.1:0").unwrap());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    (gone, at(&silent), silent)
}

#[test]
fn wrong_urls_of_sentinels_are_refused_with_their_code() {
    let (home, servers) = (Home::new(), RedisSentinels::start().unwrap());
    let (gone, silent, _listens) = closed_and_silent_addresses();
    let primary = servers.primary.address().to_string();
    let sentinel = servers.sentinels[0].address().to_string();
    // The sentinel names a primary that never answers.
    let (_, port) = silent.rsplit_once(':').unwrap();
    let monitor = ["SENTINEL", "MONITOR", "mute", "127.0.0.1", port, "2"];
    assert_eq!(servers.sentinels[0].command(&monitor).unwrap(), "OK");
    let closed = servers.sentinels[2].address().to_string();
    let close = ["ACL", "SETUSER", "default", "resetpass", ">secret"];
    assert_eq!(servers.sentinels[2].command(&close).unwrap(), "OK");
    let wrong = "sentinel_user=nobody&sentinel_password=canary";
    let right = format!("sentinel_password={}", servers.sentinels[0].password());
    let refused = |url: &str, code, says: &[&str]| {
        assert_refused(&home, &format!("redis+sentinel://{url}"), code, says);
    };
    let of_primary = ["refused the credentials", &primary];
    refused(
        &format!("nobody:canary@{sentinel}/mymaster?{right}"),
        77,
        &of_primary,
    );
    let option = "`sentinel_password`";
    refused(
        &format!("{sentinel}/mymaster?{wrong}"),
        77,
        &[option, &sentinel],
    );
    refused(&format!("{closed}/mymaster"), 77, &[option, &closed]);
    let absent = format!(":canary@{gone}/mymaster");
    refused(&absent, 69, &["cannot connect", &gone]);
    let late = ["did not answer in time", &silent];
    refused(&format!(":canary@{silent}/mymaster"), 69, &late);
    refused(
        &format!("{sentinel}/mute?password=canary&{right}"),
        69,
        &late,
    );
    refused(
        &format!("{sentinel}/nothing?password=canary&{right}"),
        69,
        &["knows no primary of the name nothing", &sentinel],
    );
    refused(
        &format!(":canary@{primary}/mymaster?{right}"),
        69,
        &["is no sentinel", &primary],
    );
}

#[test]
fn wrong_urls_of_clusters_are_refused_with_their_code() {
    let (home, servers) = (Home::new(), RedisCluster::start(3, 0).unwrap());
    let (gone, silent, _listens) = closed_and_silent_addresses();
    let other = RedisServer::start().unwrap();
    let node = servers.nodes[0].address().to_string();
    let alone = other.address().to_string();
    let refused = |url: &str, code, says: &[&str]| {
        assert_refused(&home, &format!("redis+cluster://{url}"), code, says);
    };
    let unknown = ["refused the credentials", &node];
    refused(&format!("nobody:canary@{node}"), 77, &unknown);
    refused(&format!(":canary@{gone}"), 69, &["cannot connect", &gone]);
    let late = "did not answer in time";
    refused(&format!(":canary@{silent}"), 69, &[late, &silent]);
    let known = other.password();
    refused(&format!(":{known}@{alone}"), 78, &["redis://", &alone]);
    // One shard of three is stopped.
    servers.nodes[1].signal(Signal::STOP).unwrap();
    let mute = servers.nodes[1].address().to_string();
    let known = servers.password();
    refused(&format!("{node}?password={known}"), 69, &[late, &mute]);
}

#[cfg(feature = "tls")]
#[test]
fn wrong_urls_of_servers_with_tls_are_refused_with_their_code() {
    use distlock_harness::Pki;

    let (home, pki, other) = (Home::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let server = RedisServer::with_tls(pki.folder(), &["requirepass canary"]).unwrap();
    let sentinels = RedisSentinels::with_tls(pki.folder()).unwrap();
    let cluster = RedisCluster::with_tls(pki.folder(), 3).unwrap();
    let files = |pki: &Pki| {
        let file = |name| pki.path(name).display().to_string();
        let (ca, cert, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
        format!("password=canary&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
    };
    let (right, wrong) = (files(&pki), files(&other));
    let plain = server.url();
    let secured = plain.replace("redis://", "rediss://");
    let taken = run(&home, &format!("{secured}?{right}"), &["list"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let at = server.address().to_string();
    let (sentinels, cluster) = (sentinels.url(), cluster.url());
    let (certificate, tls) = ("certificate", "only one side uses TLS");
    // The message may name any of the servers.
    let any = "127.0.0.1:";
    for (url, what, at) in [
        (format!("{plain}?password=canary"), tls, &*at),
        (format!("{secured}?password=canary"), certificate, &at),
        (format!("{secured}?{wrong}"), certificate, &at),
        (format!("{sentinels}&tls=true&{wrong}"), certificate, any),
        (format!("{sentinels}&password=canary"), tls, any),
        (format!("{cluster}?tls=true&{wrong}"), certificate, any),
        (format!("{cluster}?password=canary"), tls, any),
    ] {
        assert_refused(&home, &url, 69, &[what, at]);
    }
}

/// A setting that weakens a promise is a warning, and one that breaks a promise is a failure.
#[test]
fn the_doctor_distinguishes_a_warning_from_a_failure() {
    let home = Home::new();
    let server = RedisServer::with(&["tracking-table-max-keys 10"]).unwrap();
    let at = server.address().to_string();
    let user = "ACL SETUSER poor on >canary ~distlock:* -@all +@read +@write +@scripting \
    +@connection +info +time";
    let words: Vec<_> = user.split(' ').collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
    let cases = [
        (server.url(), 0, "warn", "pushes"),
        (
            format!("redis://poor:canary@{at}"),
            0,
            "unknown",
            "persistence",
        ),
        (format!("redis://poor:canary@{at}"), 1, "fail", "rights"),
    ];
    for (url, code, verdict, check) in cases {
        if code == 1 {
            let deny = ["ACL", "SETUSER", "poor", "-set"];
            assert_eq!(server.command(&deny).unwrap(), "OK");
        }
        let done = run(&home, &url, &["doctor", "--json"]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(!done.stdout.contains("canary"), "{done:?}");
        let json = done.json();
        assert_eq!(json["verdict"], verdict, "{json}");
        let findings = json["findings"].as_array().unwrap();
        let found = findings.iter().find(|found| found["check"] == check);
        assert_eq!(found.unwrap()["verdict"], verdict, "{json}");
        let told = json["backend"].as_str().unwrap();
        assert!(told.contains(&at), "{json}");
        assert!(
            json["epoch"].as_str().unwrap().starts_with("redis-"),
            "{json}"
        );
        let text = run(&home, &url, &["doctor"]);
        assert_eq!(text.code, code, "{text:?}");
        let shown = if verdict == "fail" { "FAIL" } else { verdict };
        let mut lines = text.stdout.lines();
        let line = lines.find(|line| line.contains(check)).unwrap();
        assert!(line.contains(shown), "{text:?}");
    }
}

/// Such a server may delete a lock while its holder still trusts it.
#[test]
fn a_server_that_evicts_locks_fails_the_doctor_and_is_warned_of_once() {
    let home = Home::new();
    let server = RedisServer::with(&["maxmemory 100mb", "maxmemory-policy volatile-ttl"]).unwrap();
    let (at, url) = (server.address().to_string(), server.url());
    let done = run(&home, &url, &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_finding(&done, "eviction", "fail");
    for url in [url.clone(), format!("kv+{url}")] {
        for args in [
            &["run", "job", "--", "true"][..],
            &["acquire", "job", "--ttl", "1s"],
        ] {
            let done = run(&home, &url, args);
            assert_eq!(done.code, 0, "{done:?}");
            let warned = done
                .stderr
                .lines()
                .filter(|line| line.contains("noeviction"));
            let warned: Vec<_> = warned.collect();
            assert_eq!(warned.len(), 1, "{done:?}");
            assert!(
                warned[0].contains(&at) && warned[0].contains("volatile-ttl"),
                "{done:?}"
            );
        }
    }
    for setting in [["maxmemory", "0"], ["maxmemory-policy", "noeviction"]] {
        let set = ["CONFIG", "SET", setting[0], setting[1]];
        assert_eq!(server.command(&set).unwrap(), "OK");
        let done = run(&home, &url, &["run", "other", "--", "true"]);
        assert_eq!((done.code, &*done.stderr), (0, ""), "{done:?}");
    }
}

/// Such a server forgets every lock when it is restarted.
#[test]
fn the_doctor_fails_a_server_that_keeps_nothing_on_disk() {
    let (home, server) = (
        Home::new(),
        RedisServer::with(&["appendonly no", "save \"\""]).unwrap(),
    );
    let done = run(&home, &server.url(), &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    let said = assert_finding(&done, "persistence", "fail");
    assert!(said.contains("set appendonly yes"), "{said}");
}

/// Checks the verdict of the doctor on one check, and returns the text of the finding.
#[track_caller]
fn assert_finding(done: &Finished, check: &str, verdict: &str) -> String {
    let json = done.json();
    let mut findings = json["findings"].as_array().unwrap().iter();
    let found = findings.find(|found| found["check"] == check).unwrap();
    assert_eq!(found["verdict"], verdict, "{json}");
    found["detail"].as_str().unwrap().to_owned()
}

/// Such a server refuses new locks, and holders can still release.
#[test]
fn a_server_without_memory_fails_the_doctor_and_takes_releases() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let taken = run(&home, &url, &["acquire", "job", "--ttl", "1m"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    assert_eq!(server.command(&full).unwrap(), "OK");
    let refused = run(
        &home,
        &url,
        &["acquire", "other", "--ttl", "1m", "--wait", "0"],
    );
    refused.assert_failed(69, "is out of memory");
    let done = run(&home, &url, &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    let said = assert_finding(&done, "memory", "fail");
    assert!(said.contains("raise maxmemory"), "{said}");
    let ticket = taken.stdout.trim();
    for step in [&["renew", "--ttl", "1m"][..], &["release"]] {
        let done = finish(home.bare(step).env("DISTLOCK_BACKEND", &url), ticket);
        assert_eq!(done.code, 0, "{step:?}: {done:?}");
    }
    assert_eq!(server.command(&["KEYS", "*:lock:*"]).unwrap(), "");
}

/// Data of another program under the key of a lock is no lock, whatever its size and its first
/// bytes are.
#[test]
fn a_value_of_20_mb_is_corrupt_and_is_not_fetched() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let taken = run(&home, &url, &["acquire", "job", "--ttl", "10m"]);
    assert_eq!(taken.code, 0, "{taken:?}");
    let key = server.command(&["KEYS", "*:lock:job"]).unwrap();
    server
        .command(&["SETRANGE", &key, "20000000", "x"])
        .unwrap();
    let sent = || -> u64 {
        server
            .info("total_net_output_bytes")
            .unwrap()
            .parse()
            .unwrap()
    };
    let before = sent();
    for command in [
        &["acquire", "job", "--ttl", "1m", "--wait", "0"][..],
        &["run", "job", "--wait", "0", "--", "true"],
        &["inspect", "job"],
        &["list"],
    ] {
        let refused = run(&home, &url, command);
        refused.assert_failed(69, "that this library did not write");
    }
    assert!(sent() - before < 1_000_000, "it was fetched");
}

/// A script that fails in the middle may have changed something. The failure must not count as a
/// bug of the tool.
#[test]
fn an_unknown_answer_of_the_server_is_69_with_an_explanation() {
    let (home, server) = (
        Home::new(),
        RedisServer::with(&["rename-command SET \"\""]).unwrap(),
    );
    let acquire = ["acquire", "job", "--ttl", "1m", "--wait", "0"];
    let done = run(&home, &server.url(), &acquire);
    done.assert_failed(69, "Unknown Redis command called from script");
    done.assert_failed(69, "this answer is not known here");
    let done = run(&home, &server.url(), &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_finding(&done, "rights", "fail");
}

/// Names in the slots of the other servers can still be locked. The doctor and `list` name the
/// missing server.
#[test]
fn a_cluster_without_one_primary_serves_the_names_of_the_others() {
    let (home, mut servers) = (Home::new(), RedisCluster::start(3, 0).unwrap());
    for node in &servers.nodes {
        let serve = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        assert_eq!(node.command(&serve).unwrap(), "OK");
    }
    let url = servers.url();
    let mut names = (0..).map(|n| format!("job-{n}"));
    let (mut dead, mut alive) = (None, None);
    while dead.is_none() || alive.is_none() {
        let name = names.next().unwrap();
        let taken = run(&home, &url, &["acquire", &name, "--ttl", "10m"]);
        assert_eq!(taken.code, 0, "{taken:?}");
        let key = servers.nodes[1].command(&["KEYS", &format!("*:lock:{name}")]);
        let found = if key.unwrap().is_empty() {
            &mut alive
        } else {
            &mut dead
        };
        *found = Some((name, taken));
    }
    let gone = servers.nodes[1].address().to_string();
    servers.nodes[1].kill();
    let ((dead, _), (alive, taken)) = (dead.unwrap(), alive.unwrap());
    let ticket = taken.stdout.trim();
    let released = finish(home.bare(["release"]).env("DISTLOCK_BACKEND", &url), ticket);
    assert_eq!(released.code, 0, "{released:?}");
    let ran = run(&home, &url, &["run", &alive, "-n", "--", "echo", "ran"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    let refused = run(&home, &url, &["run", &dead, "-n", "--", "echo", "ran"]);
    refused.assert_failed(69, &gone);
    run(&home, &url, &["list"]).assert_failed(69, &gone);
    let done = run(&home, &url, &["doctor", "--json"]);
    assert_eq!(done.code, 1, "{done:?}");
    let said = assert_finding(&done, "slots", "fail");
    assert!(
        said.contains(&format!("{gone} cannot be reached")),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ended_inside_its_lease_succeeds_without_a_release() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let url = server.url_at(proxy.address());
    let cut = || {
        proxy.stop(Direction::ToServer);
        proxy.stop(Direction::ToClient);
    };
    // With a TTL of 4 s, at least 2.4 s of the lease are left when the store is cut off.
    assert_success_without_release(&home, &url, &["--ttl", "4s"], cut);
}
