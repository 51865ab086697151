//! The board of Grafana and the alert rules of `deploy/`, on a Prometheus that scrapes three nodes
//! and a lock server under load: first without a fault, then with the faults.
//!
//! A test has no minutes. Prometheus loads a copy of the rules in which a minute of a range is a
//! second, for one scrape per second instead of per minute, and in which each `for` is divided by
//! [`FOR_DIVISOR`]. `tests/alerts.rs` has the times as they are.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::post};
use distlock::{Locker, Target};
use distlock_harness::{
    Direction, FaultProxy, Pki, eventually_async, free_port,
    servers::{
        prometheus::{Prometheus, Scraped},
        redis::RedisServer,
    },
};
use distlock_kickout::Uid;
use futures_util::future::join_all;
use hyper::Request;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::{
    client::State,
    http::get,
    scenarios::start,
    serve, strangers,
    world::{ADMIN_TOKEN, CONFIG, Node, SOON, World, pause},
};

const BOARD: &str = include_str!("../../deploy/grafana-board.json");
const RULES: &str = include_str!("../../deploy/prometheus-alerts.yaml");
const ROWS: [&str; 5] = [
    "Locks",
    "Stores",
    "Gateway",
    "Lock server",
    "Processes of gateway nodes and lock servers",
];
/// What an expression ends with that shows 0 before its metric exists.
const OR_ZERO: &str = " or vector(0)";

/// By how much each `for` is shorter here. Ranges are 60 times shorter.
const FOR_DIVISOR: u32 = 300;
const NODES: [&str; 2] = ["n1", "n2"];
/// The node that is killed. It has a longer lease, so that its sessions stay unknown meanwhile.
const DEAD: &str = "n3";
const LONG_LEASE: Duration = Duration::from_secs(60);
/// Renewals of such a lease come each 2 s. One that is answered this long after the one before
/// leaves less than a quarter of the lease, and does not lose it.
const LEASE: Duration = Duration::from_secs(6);
const LATE: Duration = Duration::from_millis(4900);
/// The link to the store is this slow before it is cut, so that most of a login's time passes while
/// it holds the account's lock.
const SLOW: Duration = Duration::from_millis(30);
/// A release waits for 5 s before it goes on in the background. Then the alert has its own time.
const CUT_FOR: Duration = Duration::from_secs(15);
/// Until an alert without a `for` fires: a few scrapes and evaluations.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// The logins that a node with a bad link to its store gets at the same time.
const AT_ONCE: usize = 4;
/// The scrapes of each process without an alert.
const QUIET_SCRAPES: u32 = 8;

/// Alerts, and the processes for which they must fire after the faults of this test. One process is
/// enough. An alert that sums over processes names none of them.
const FIRE: [(&str, &[&str]); 12] = [
    // The link of a node to its store: silent for a while, slow, and then cut.
    ("DistlockRenewalsLate", &["n2"]),
    ("DistlockReleasesUnconfirmed", &["n2"]),
    ("DistlockRenewalsFail", &["n2"]),
    ("DistlockLockLost", &["n2"]),
    ("DistlockNodeFenced", &["n2"]),
    ("DistlockLoginsFail", &["n2"]),
    ("DistlockAcquireErrors", &[""]),
    // Somebody holds the lock of an account.
    ("DistlockContention", &[""]),
    // A node is killed while an account is logged in there.
    ("DistlockRevocationsPending", &NODES),
    ("DistlockPeersUnreachable", &NODES),
    // A stranger calls the port for nodes.
    ("DistlockPeerCallsRefused", &["n1"]),
    // The receiver answers 410.
    ("DistlockHookEventsDropped", &NODES),
];
/// Alerts that may be pending for a moment without a fault: a sweep that sees a takeover on its way
/// counts the older session. The `for` of the rule is there for that.
const PEND: [&str; 1] = ["DistlockRevocationsPending"];
/// Alerts that only `tests/alerts.rs` tries, and the reasons.
const NOT_PROVOKED: [(&str, &str); 1] = [(
    "DistlockDuplicateSessions",
    "no fault that is known leads to two sessions in one slot; only a store that loses data may",
)];

/// The rules with shorter times.
fn scaled_rules() -> String {
    let mut rules = RULES.to_owned();
    for minutes in 1..=60 {
        let wait = minutes * 60_000 / FOR_DIVISOR;
        for (from, to) in [
            (format!("[{minutes}m]"), format!("[{minutes}s]")),
            (format!("offset {minutes}m)"), format!("offset {minutes}s)")),
            (format!("for: {minutes}m,"), format!("for: {wait}ms,")),
        ] {
            rules = rules.replace(&from, &to);
        }
    }
    // A time in another form would stay as long as it is.
    let other = rules.as_bytes().windows(3).find(|it| {
        it[0].is_ascii_digit() && b"mhdwy".contains(&it[1]) && !it[2].is_ascii_alphanumeric()
    });
    assert_eq!(other.map(String::from_utf8_lossy), None);
    rules
}

/// The receiver of the nodes' web hook. It answers 410 after `gone` was set.
async fn receive(gone: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answer = async move || {
        if gone.load(Ordering::Relaxed) {
            StatusCode::GONE
        } else {
            StatusCode::NO_CONTENT
        }
    };
    let router = Router::new().route("/", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Asks Prometheus, and returns the field `data` of the answer.
fn ask(prometheus: &Prometheus, path: &str, parameter: (&str, &str)) -> Value {
    let answer = tokio::task::block_in_place(|| prometheus.api(path, &[parameter]));
    let mut answer: Value = serde_json::from_str(&answer.unwrap()).unwrap();
    answer["data"].take()
}

/// An answer of a condition that asks Prometheus, which knows something new once per second.
async fn later(holds: bool) -> Option<()> {
    pause(Duration::from_millis(200)).await;
    holds.then_some(())
}

/// The values of a label in all series that a selector finds.
fn label_values(prometheus: &Prometheus, selector: &str, label: &str) -> BTreeSet<String> {
    let series = ask(prometheus, "series", ("match[]", selector));
    let series = series.as_array().unwrap().iter();
    series
        .map(|it| it[label].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Every alert that has been in this state, with its processes.
fn alerts(prometheus: &Prometheus, selector: &str) -> BTreeMap<String, BTreeSet<String>> {
    let names = label_values(prometheus, selector, "alertname").into_iter();
    names
        .map(|name| {
            let one = format!("{},alertname=\"{name}\"}}", selector.trim_end_matches('}'));
            let instances = label_values(prometheus, &one, "instance");
            (name, instances)
        })
        .collect()
}

fn fired(prometheus: &Prometheus) -> BTreeMap<String, BTreeSet<String>> {
    alerts(prometheus, "ALERTS{alertstate=\"firing\"}")
}

/// The board as Grafana reads it.
struct Board(Value);

impl Board {
    fn read() -> Self {
        Self(serde_json::from_str(BOARD).unwrap())
    }

    fn panels(&self) -> impl Iterator<Item = &Value> {
        let panels = self.0["panels"].as_array().unwrap().iter();
        panels.filter(|it| it["type"] != "row")
    }

    /// The title of each panel, and an expression of it, with the variables set to everything.
    fn expressions(&self) -> Vec<(&str, String)> {
        let of_panel = |panel: &'_ Value| -> Vec<String> {
            let targets = panel["targets"].as_array().unwrap().iter();
            targets
                .map(|it| with_variables(it["expr"].as_str().unwrap()))
                .collect()
        };
        self.panels()
            .flat_map(|panel| {
                let title = panel["title"].as_str().unwrap();
                of_panel(panel).into_iter().map(move |it| (title, it))
            })
            .collect()
    }

    /// The expressions that have no number now.
    fn without_data(&self, prometheus: &Prometheus, or_zero: bool) -> Vec<(&str, String)> {
        let mut empty = self.expressions();
        empty.retain_mut(|(_, expression)| {
            if !or_zero && let Some(bare) = expression.strip_suffix(OR_ZERO) {
                *expression = bare.to_owned();
            }
            let answer = ask(prometheus, "query", ("query", expression));
            let mut samples = answer["result"].as_array().unwrap().iter();
            !samples.any(|it| it["value"][1] != "NaN")
        });
        empty
    }

    /// Waits until every expression has a number.
    async fn wait_for_data(&self, prometheus: &Prometheus, or_zero: bool) {
        let mut empty = Vec::new();
        let shown = eventually_async("data in every panel", SOON, || {
            empty = self.without_data(prometheus, or_zero);
            later(empty.is_empty())
        });
        let shown = shown.await;
        assert!(shown.is_ok(), "these panels are empty: {empty:#?}");
    }
}

/// An expression with the board's variables set to everything.
fn with_variables(expression: &str) -> String {
    let set = expression.replace("$__rate_interval", "1m");
    let set = set.replace("$job", ".*").replace("$instance", ".*");
    assert!(!set.contains('$'), "{set}");
    set
}

#[test]
fn the_board_says_in_words_what_each_panel_shows() {
    let board = Board::read();
    let (mut ids, mut titles) = (BTreeSet::new(), BTreeSet::new());
    let mut rows = Vec::new();
    for panel in board.0["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let title = panel["title"].as_str().unwrap();
        assert!(titles.insert(title), "{title} is there twice");
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(
            panel["description"].as_str().unwrap().ends_with('.'),
            "{title}"
        );
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
        assert!(unit.is_some_and(|it| !it.is_empty()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let selectors = expression.matches('{').count();
            let chosen = expression.matches("{job=~\"$job\",instance=~\"$instance\"");
            assert_eq!(chosen.count(), selectors, "{title}: {expression}");
            assert!(target["legendFormat"].is_string(), "{title}");
        }
    }
    assert_eq!(rows, ROWS);
}

/// Devices of an account take over from each other on these nodes in turn, and write to it.
async fn take_over(world: &World, uid: &Uid, nodes: &[&str]) {
    let mut clients = VecDeque::new();
    for number in 0.. {
        // Two in a row on each node: a takeover on one node, and one across nodes.
        let node = nodes[number / 2 % nodes.len()];
        let device = format!("d{}", number % 3);
        let client = world.log_in(uid, &device, node).await;
        client.send(uid, &world.id(&format!("{node}-{number}")));
        pause(Duration::from_millis(100)).await;
        clients.push_back(client);
        // The one before last has got its notice.
        if clients.len() > 2 {
            clients.pop_front();
        }
    }
}

/// Logs in again and again, whatever the answer is.
async fn try_to_log_in(world: &World, uid: &Uid, node: &str) {
    loop {
        let mut client = world.client(uid, "pc", node).await;
        client.wait_for_answer().await;
        pause(Duration::from_millis(50)).await;
    }
}

/// Takes and frees a lock for ever.
async fn compete(locker: &Locker) {
    loop {
        let guard = locker.lock("job").wait(SOON).acquire().await.unwrap();
        pause(Duration::from_millis(20)).await;
        assert!(guard.release().await.is_clean());
    }
}

/// Waits until an alert has fired; `None` if it does not within this time.
async fn fires(prometheus: &Prometheus, alert: &str, within: Duration) -> Option<()> {
    let fired = || later(fired(prometheus).contains_key(alert));
    eventually_async(alert, within, fired).await.ok()
}

/// Waits until a counter of a node rises.
async fn wait_until_counted(node: &Node, counter: &str) {
    let value = async || {
        let metrics = get(node.admin, "/metrics").await;
        let line = metrics.lines().find(|line| line.starts_with(counter));
        line.unwrap_or_else(|| panic!("no {counter} in {metrics}"))
            .to_owned()
    };
    let before = value().await;
    let rises = async || (value().await != before).then_some(());
    eventually_async(counter, SOON, rises).await.unwrap();
}

/// Breaks the link between a node and its store in three ways: its answers come late, it is slow,
/// and it is cut.
async fn break_link(world: &World, prometheus: &Prometheus) {
    let n2 = world.node("n2");
    // A pause of the whole machine can make the renewal come too late for the lease.
    eventually_async("a late renewal", SOON * 2, async || {
        let renewals = "distlock_renew_total{backend=\"redis\",result=\"renewed\"}";
        wait_until_counted(n2, renewals).await;
        n2.store_link(|wire| wire.stop(Direction::ToClient));
        pause(LATE).await;
        n2.store_link(FaultProxy::pass);
        fires(prometheus, "DistlockRenewalsLate", SEEN_WITHIN).await
    })
    .await
    .unwrap();
    // A cut can find no login that holds a lock.
    eventually_async("releases without confirmation", SOON * 3, async || {
        n2.store_link(|wire| wire.delay(SLOW));
        wait_until_counted(n2, "distlock_login_total{result=\"admitted\"}").await;
        n2.store_link(FaultProxy::refuse);
        fires(prometheus, "DistlockReleasesUnconfirmed", CUT_FOR).await
    })
    .await
    .unwrap();
    // It stays cut.
}

/// Calls the port for other nodes without a token.
async fn call_as_a_stranger(world: &World) {
    let to = world.node("n1").peer;
    let calls = strangers::connect(0, to).await.unwrap();
    let request = Request::post(format!("http://{to}/distlock.v1.Peer/Kick"));
    let mut calls = calls.ready().await.unwrap();
    let (answer, _) = calls.send_request(request.body(()).unwrap(), true).unwrap();
    answer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_panel_shows_data_and_every_alert_fires_at_its_fault_alone() {
    let board = Board::read();
    let redis = tokio::task::block_in_place(RedisServer::start).unwrap();
    let url = format!("{}?request_timeout=8s", redis.url());
    let mut world = World::new("watched", &url).wired(&[redis.address()]);
    let gone = Arc::new(AtomicBool::new(false));
    let hook = receive(Arc::clone(&gone)).await;
    world.write("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    world.write(
        CONFIG,
        &format!(
            "[[gateway.hooks]]\nname = \"push\"\nurl = \"{hook}\"\nsecret_file = \"secret\"\n\
             allow_private = true\n"
        ),
    );
    world.rules.lock_wait = Duration::from_secs(1);
    world.rules.node_lease = LONG_LEASE;
    start(&mut world, &[DEAD]).await;
    world.rules.node_lease = LEASE;
    start(&mut world, &NODES).await;

    let (folder, pki) = (tempfile::tempdir().unwrap(), Pki::new().unwrap());
    let [listen, metrics] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port().unwrap()));
    let [cert, key, ca] = ["server.crt", "server.key", "ca.crt"].map(|it| pki.path(it));
    let [cert, key] = [&cert, &key].map(|it| it.to_str().unwrap());
    let tls = ["--tls-cert", cert, "--tls-key", key];
    let args = [&["--init", "--metrics-listen", &metrics], &tls[..]].concat();
    let _server = tokio::task::block_in_place(|| serve::spawn(&folder, &listen, &args));
    let locks = format!("distlocks://{listen}?tls_ca={}", ca.display());
    let lockers = join_all((0..2).map(|_| distlock::connect(Target::new(locks.as_str())))).await;
    let lockers: Vec<_> = lockers.into_iter().map(Result::unwrap).collect();

    let mut scraped = vec![Scraped {
        job: "locks",
        instance: "server",
        address: metrics.parse().unwrap(),
        token: None,
    }];
    scraped.extend(["n1", "n2", DEAD].map(|instance| Scraped {
        job: "gateway",
        instance,
        address: world.node(instance).admin,
        token: Some(ADMIN_TOKEN),
    }));
    let prometheus =
        tokio::task::block_in_place(|| Prometheus::start(&scraped, &scaled_rules())).unwrap();

    let [busy, lonely, stuck] = ["busy", "lonely", "stuck"].map(|name| world.uid(name));
    let tried: Vec<_> = (0..AT_ONCE)
        .map(|at| world.uid(&format!("u{at}")))
        .collect();
    let competing = || join_all(lockers.iter().map(compete));
    let _left = world.log_in(&lonely, "phone", DEAD).await;
    let scraped = format!("min(count_over_time(up[5m])) >= {QUIET_SCRAPES}");
    let fires_now = |alert: &str| fired(&prometheus).contains_key(alert);
    let quiet = async {
        eventually_async("scrapes", SOON, async || {
            let answer = ask(&prometheus, "query", ("query", &scraped));
            later(!answer["result"].as_array()?.is_empty()).await
        })
        .await
        .unwrap();
        board.wait_for_data(&prometheus, true).await;
        let up = ask(&prometheus, "query", ("query", "min(up)"));
        assert_eq!(up["result"][0]["value"][1], "1", "all are scraped");
        let mut none = alerts(&prometheus, "ALERTS{alertname!=\"\"}");
        none.retain(|alert, _| !PEND.contains(&alert.as_str()) || fires_now(alert));
        assert!(none.is_empty(), "alerts without a fault: {none:?}");
    };
    tokio::select! {
        () = quiet => {}
        () = take_over(&world, &busy, &NODES) => unreachable!("it takes over for ever"),
        _ = competing() => unreachable!("they compete for ever"),
    }

    world.kill(DEAD);
    gone.store(true, Ordering::Relaxed);
    let store = world.open().await;
    let _held = store
        .locker()
        .lock(format!("user/{stuck}"))
        .acquire()
        .await
        .unwrap();
    let mut new = world.client(&lonely, "pc", "n1").await;
    assert!(matches!(new.wait_for_answer().await, State::In(..)));
    call_as_a_stranger(&world).await;
    let faults = async {
        break_link(&world, &prometheus).await;
        let all: BTreeSet<_> = FIRE.iter().map(|(alert, _)| (*alert).to_owned()).collect();
        let mut missing = Vec::new();
        let fire = eventually_async("the alerts", SOON, || {
            let fired = fired(&prometheus);
            let silent = all.iter().filter(|it| !fired.contains_key(*it));
            missing = silent.cloned().collect();
            later(missing.is_empty())
        });
        let fire = fire.await;
        assert!(fire.is_ok(), "these did not fire: {missing:?}");
        board.wait_for_data(&prometheus, false).await;
    };
    let trying = || join_all(tried.iter().map(|uid| try_to_log_in(&world, uid, "n2")));
    tokio::select! {
        () = faults => {}
        () = take_over(&world, &busy, &["n1"]) => unreachable!("it takes over for ever"),
        () = try_to_log_in(&world, &stuck, "n1") => unreachable!("it tries for ever"),
        _ = trying() => unreachable!("they try for ever"),
        _ = competing() => unreachable!("they compete for ever"),
    }

    for (alert, instances) in fired(&prometheus) {
        let expected = FIRE.iter().find(|(name, _)| *name == alert);
        let (_, expected) = expected.unwrap_or_else(|| panic!("{alert} fired: {instances:?}"));
        let elsewhere = instances.iter().find(|it| !expected.contains(&it.as_str()));
        assert_eq!(elsewhere, None, "{alert} fired there, too");
    }
    check_names(&board, &prometheus);
}

/// Each alert is in one of the lists of this file, each metric of the board exists, and the board's
/// variables offer every process.
fn check_names(board: &Board, prometheus: &Prometheus) {
    let groups = ask(prometheus, "rules", ("type", "alert"));
    let rules = groups["groups"][0]["rules"].as_array().unwrap().iter();
    let rules: BTreeSet<_> = rules.map(|it| it["name"].as_str().unwrap()).collect();
    let listed = FIRE
        .iter()
        .map(|it| it.0)
        .chain(NOT_PROVOKED.map(|it| it.0));
    assert_eq!(rules, listed.collect());

    let known = ask(prometheus, "label/__name__/values", ("limit", "0"));
    let known: BTreeSet<_> = known
        .as_array()
        .unwrap()
        .iter()
        .map(Value::as_str)
        .collect();
    for (title, expression) in board.expressions() {
        let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let of_ours = |it: &&str| it.starts_with("distlock_") || it.starts_with("process_");
        let metrics: Vec<_> = words.filter(of_ours).collect();
        assert!(!metrics.is_empty(), "{title}: {expression}");
        for metric in metrics {
            assert!(
                known.contains(&Some(metric)),
                "{title}: there is no {metric}"
            );
        }
    }
    for variable in board.0["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else {
            continue;
        };
        let query = query.strip_prefix("label_values(").unwrap();
        let (selector, label) = query.strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        let values = label_values(prometheus, &with_variables(selector), label);
        let all: &[&str] = match label {
            "job" => &["gateway", "locks"],
            "instance" => &["n1", "n2", DEAD, "server"],
            _ => panic!("a variable {label}"),
        };
        assert!(values.iter().eq(all), "{label}: {values:?}");
    }
}
