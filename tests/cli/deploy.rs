//! The files of `deploy/` for systemd and Kubernetes: systemd and the schemas of Kubernetes read
//! them, and a node is started, drained and stopped as they say.

use std::{os::unix::net::UnixDatagram, process::Command, time::Duration};

use distlock_harness::{Process, Signal};
use serde_json::Value;

use crate::{
    PROGRAM,
    gateway::{KEY, log_in_and_stay, mint_token, start_node},
    support::{Home, SOON, finish},
};

const UNIT: &str = include_str!("../../deploy/distlock-gateway.service");
const MANIFESTS: &str = include_str!("../../deploy/kubernetes.yaml");
const ADMIN: &str = "the token of administrators";
/// The time that a node with the default settings takes for its own end, after TERM.
const OWN_END: Duration = Duration::from_secs(7);

/// The values of a setting of the unit.
fn settings(name: &str) -> Vec<&'static str> {
    let lines = UNIT.lines().filter_map(|line| line.split_once('='));
    lines.filter(|it| it.0 == name).map(|it| it.1).collect()
}

fn only_setting(name: &str) -> &'static str {
    let [value] = settings(name)[..] else {
        panic!("{name} is not there once");
    };
    value
}

/// The words of a command after the program.
fn words(command: &str) -> Vec<&str> {
    let mut words = command.trim_start_matches('-').split(' ');
    assert_eq!(words.next(), Some("/usr/local/bin/distlock"), "{command}");
    words.collect()
}

fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').unwrap_or(text);
    Duration::from_secs(number.parse().unwrap())
}

/// The value of `--wait` in the words of a drain.
fn longest_drain<'a>(words: impl IntoIterator<Item = &'a str>) -> Duration {
    seconds(
        words
            .into_iter()
            .skip_while(|it| *it != "--wait")
            .nth(1)
            .unwrap(),
    )
}

#[test]
fn systemd_accepts_the_unit() {
    let home = Home::new();
    let unit = UNIT.replace("/usr/local/bin/distlock", PROGRAM);
    let file = home.write("distlock-gateway.service", &unit);
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(file);
    let verified = finish(verify.current_dir(home.path(".")), "");
    let about_it = |line: &&str| line.contains("distlock-gateway");
    let told: Vec<_> = verified.stderr.lines().filter(about_it).collect();
    assert!(told.is_empty() && verified.code == 0, "{verified:?}");
}

/// No systemd runs here: the test does what systemd does with the lines of the unit.
#[test]
fn a_node_starts_drains_and_ends_as_the_unit_says() {
    let home = Home::new();
    let tokens = home.write("tokens", "ops operate a-token-of-an-administrator\n");
    let notify = home.path("notify");
    let told = UnixDatagram::bind(&notify).unwrap();
    told.set_read_timeout(Some(SOON)).unwrap();
    let next = || {
        let mut text = [0; 256];
        let read = told.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..read]).into_owned()
    };
    let mut node = home.distlock(words(only_setting("ExecStart")));
    node.env("DISTLOCK_GATEWAY_NODE", "n1")
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN_FILE", &tokens)
        .env("NOTIFY_SOCKET", &notify);
    let (mut node, ready) = start_on_free_ports(&mut node);
    assert_eq!(only_setting("Type"), "notify");
    assert_eq!(next(), "READY=1\n");

    assert_eq!(only_setting("ExecReload"), "/bin/kill -HUP $MAINPID");
    node.signal(Signal::HUP).unwrap();
    let reloaded = node.wait_for_line(SOON, |line| line.contains("were read again"));
    reloaded.unwrap();

    let stop = words(only_setting("ExecStop"));
    let longest = longest_drain(stop.iter().copied());
    assert!(seconds(only_setting("TimeoutStopSec")) >= longest + OWN_END);
    drain_with_a_client(&home, &ready, &stop);
    node.signal(Signal::TERM).unwrap();
    assert!(node.wait(OWN_END).unwrap().success(), "{}", node.output());
    assert_eq!(next(), "STOPPING=1\n");
}

/// Adds free ports to a node's command, and starts it.
fn start_on_free_ports(node: &mut Command) -> (Process, Value) {
    for listener in ["LISTEN", "PEER_LISTEN", "ADMIN_LISTEN"] {
        node.env(format!("DISTLOCK_GATEWAY_{listener}"), "127.0.0.1:0");
    }
    start_node(node)
}

/// Runs the command of a drain while a client is logged in. The command waits for its end.
fn drain_with_a_client(home: &Home, ready: &Value, words: &[&str]) {
    let (client, runtime) = log_in_and_stay(ready, &mint_token(home, KEY));
    let url = format!("http://{}", ready["admin_listen"].as_str().unwrap());
    let drain = |words: &[&str]| {
        let mut drain = home.distlock(words);
        drain
            .env("DISTLOCK_GATEWAY_ADMIN", &url)
            .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN);
        finish(&mut drain, "")
    };
    let drained = drain(words);
    assert_eq!(
        (drained.code, drained.stdout.as_str()),
        (0, "node n1 is draining, 0 sessions left\n"),
        "{drained:?}"
    );
    drop((client, runtime));
}

/// Checks each manifest against the schemas of Kubernetes, and prints them as JSON.
const CHECK: &str = "\
import json, sys, yaml, kubernetes_validate
manifests = list(yaml.safe_load_all(sys.stdin))
for manifest in manifests:
    for version in ('1.27', '1.37'):
        kubernetes_validate.validate(manifest, version, strict=True)
print(json.dumps(manifests))
";

/// The manifests, after the check.
fn checked_manifests(home: &Home) -> Vec<Value> {
    let venv = home.path("venv");
    let mut make = Command::new("python3");
    let made = finish(make.args(["-m", "venv"]).arg(&venv), "");
    assert_eq!(
        made.code, 0,
        "{made:?} (Debian: apt-get install python3-venv)"
    );
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet"]);
    pip.args(["--disable-pip-version-check", "kubernetes-validate==1.37.0"]);
    let installed = finish(&mut pip, "");
    assert_eq!(installed.code, 0, "{installed:?}");
    let mut python = Command::new(venv.join("bin/python"));
    let checked = finish(python.args(["-c", CHECK]), MANIFESTS);
    assert_eq!(checked.code, 0, "{checked:?}");
    serde_json::from_str(&checked.stdout).unwrap()
}

#[test]
fn kubernetes_accepts_the_manifests_and_a_node_runs_as_they_say() {
    let home = Home::new();
    let manifests = checked_manifests(&home);
    let manifest = |kind: &str| manifests.iter().find(|it| it["kind"] == kind).unwrap();
    let pod = &manifest("Deployment")["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(
        &manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        labels
    );
    let service = &manifest("Service")["spec"];
    assert_eq!(&service["selector"], labels);

    // The schemas allow a port that the container does not name, and one at which no node listens.
    let ports = container["ports"].as_array().unwrap();
    let number = |name: &Value| {
        let port = ports.iter().find(|it| it["name"] == *name);
        port.unwrap_or_else(|| panic!("no port {name}"))["containerPort"].to_string()
    };
    number(&service["ports"][0]["targetPort"]);
    for probe in ["readinessProbe", "startupProbe", "livenessProbe"] {
        let mut members = container[probe].as_object().unwrap().values();
        number(&members.find(|it| it["port"].is_string()).unwrap()["port"]);
    }
    let listens = |variable: &str| {
        let mut variables = container["env"].as_array().unwrap().iter();
        let variable = variables.find(|it| it["name"] == variable).unwrap();
        variable["value"].as_str().unwrap()
    };
    for (name, variable) in [("clients", "LISTEN"), ("nodes", "PEER_LISTEN")] {
        let address = listens(&format!("DISTLOCK_GATEWAY_{variable}"));
        assert_eq!(address, format!("0.0.0.0:{}", number(&name.into())));
    }

    let texts = |words: &Value| -> Vec<String> {
        let words = words.as_array().unwrap().iter();
        words.map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let mut node = home.distlock(texts(&container["args"]));
    let secret = &manifest("Secret")["stringData"];
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap();
        let key = variable["valueFrom"]["secretKeyRef"]["key"].as_str();
        if let Some(key) = key {
            assert!(secret[key].is_string(), "{name}: no {key} in the Secret");
        }
        match name {
            "DISTLOCK_GATEWAY_NODE" => node.env(name, "n1"),
            "DISTLOCK_GATEWAY_TOKEN_KEY" => node.env(name, KEY),
            "DISTLOCK_GATEWAY_ADMIN_TOKEN" => node.env(name, ADMIN),
            "DISTLOCK_GATEWAY_PEER_ADVERTISE" => node.env(name, "127.0.0.1:7431"),
            // The store of this test.
            "DISTLOCK_BACKEND" | "POD_IP" => &mut node,
            _ => node.env(name, variable["value"].as_str().unwrap()),
        };
    }
    let (mut node, ready) = start_on_free_ports(&mut node);
    let probe = &container["readinessProbe"]["httpGet"];
    let health = format!(
        "http://{}{}",
        ready["listen"].as_str().unwrap(),
        probe["path"].as_str().unwrap()
    );
    let is_ready = || {
        let mut curl = Command::new("curl");
        finish(curl.args(["--fail", "--silent", &health]), "").code == 0
    };
    assert!(is_ready());

    let stop = texts(&container["lifecycle"]["preStop"]["exec"]["command"]);
    let words: Vec<_> = stop.iter().map(String::as_str).collect();
    let (program, words) = words.split_first().unwrap();
    assert_eq!(*program, "distlock");
    let grace = pod["spec"]["terminationGracePeriodSeconds"]
        .as_u64()
        .unwrap();
    let longest = longest_drain(words.iter().copied());
    assert!(Duration::from_secs(grace) >= longest + OWN_END);
    drain_with_a_client(&home, &ready, words);
    assert!(!is_ready(), "a draining node gets no client");
    node.signal(Signal::TERM).unwrap();
    assert!(node.wait(OWN_END).unwrap().success(), "{}", node.output());
}
