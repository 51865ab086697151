//! The files of `deploy/` for systemd and Kubernetes: systemd and the schemas of Kubernetes read
//! them, and jobs, candidates and nodes are started, drained and stopped as they say.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use distlock_harness::{Process, Signal};
use serde_json::Value;

use crate::{
    PROGRAM,
    gateway::{KEY, log_in_and_stay, mint_token, start_node},
    support::{Home, NotifySocket, SOON, finish},
};

/// The folder of all units.
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
const UNIT: &str = include_str!("../../deploy/distlock-gateway.service");
const JOB: &str = include_str!("../../deploy/distlock-job@.service");
const ELECTED: &str = include_str!("../../deploy/distlock-elected@.service");
const MANIFESTS: &str = include_str!("../../deploy/kubernetes.yaml");
const SERVER: &str = include_str!("../../deploy/kubernetes-server.yaml");
const JOBS: &str = include_str!("../../deploy/kubernetes-jobs.yaml");
const ADMIN: &str = "the token of administrators";
/// The time that a node with the default settings takes for its own end, after TERM.
const OWN_END: Duration = Duration::from_secs(7);

/// The value of a setting that a unit has once.
fn only_setting_of<'a>(unit: &'a str, name: &str) -> &'a str {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    let values: Vec<_> = lines.filter(|it| it.0 == name).map(|it| it.1).collect();
    let [value] = values[..] else {
        panic!("{name} is not there once");
    };
    value
}

fn only_setting(name: &str) -> &'static str {
    only_setting_of(UNIT, name)
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
fn systemd_accepts_the_units() {
    let home = Home::new();
    let mut units = Vec::new();
    for file in fs::read_dir(DEPLOY).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if [".service", ".socket", ".timer"]
            .iter()
            .any(|it| name.ends_with(it))
        {
            let unit = fs::read_to_string(&path).unwrap();
            units.push(home.write(name, &unit.replace("/usr/local/bin/distlock", PROGRAM)));
        }
    }
    assert_eq!(units.len(), 6, "{units:?}");
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(units);
    let verified = finish(verify.current_dir(home.path(".")), "");
    let about_them = |line: &&str| line.contains("distlock-");
    let told: Vec<_> = verified.stderr.lines().filter(about_them).collect();
    assert!(told.is_empty() && verified.code == 0, "{verified:?}");
}

/// The call of a unit's `ExecStart` for the instance `report`, whose program is a script here.
fn call_of(home: &Home, unit: &str, script: &str) -> Command {
    let program = home.write("report", &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let start = only_setting_of(unit, "ExecStart");
    let start = start.replace("/usr/local/lib/distlock/%i", program.to_str().unwrap());
    let start = start.replace("%i", "report");
    // systemd gives the variable of the line above as one word.
    let start = start.replace("${EVERY}", "1h");
    home.distlock(words(&start))
}

/// The units name these files, which `scripts/release` packs.
#[test]
fn the_configuration_of_the_units_names_no_store_yet() {
    for (unit, file) in [
        (JOB, "jobs.toml"),
        (ELECTED, "jobs.toml"),
        (UNIT, "gateway.toml"),
    ] {
        let setting = format!("DISTLOCK_CONFIG=/etc/distlock/{file}");
        assert!(unit.contains(&setting), "{unit}");
        let home = Home::new();
        let mut run = home.bare(["run", "report", "--every", "1h", "--", "true"]);
        run.env("DISTLOCK_CONFIG", format!("{DEPLOY}/{file}"));
        let refused = finish(&mut run, "");
        assert_eq!(refused.code, 78, "{refused:?}");
        assert!(refused.stderr.contains("no store is named"), "{refused:?}");
    }
    assert_eq!(only_setting("EnvironmentFile"), "/etc/distlock/gateway.env");
    assert!(fs::exists(format!("{DEPLOY}/gateway.env")).unwrap());
}

#[test]
fn a_job_runs_once_as_its_unit_says() {
    assert_eq!(only_setting_of(JOB, "Type"), "oneshot");
    assert!(JOB.contains("\nEnvironment=EVERY=1h\n"), "{JOB}");
    let home = Home::new();
    let ran = finish(&mut call_of(&home, JOB, "echo ran"), "");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "ran\n"), "{ran:?}");
    let again = finish(&mut call_of(&home, JOB, "echo ran"), "");
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:?}");
}

#[test]
fn a_candidate_is_a_started_service_as_its_unit_says() {
    assert_eq!(only_setting_of(ELECTED, "Type"), "notify");
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let script = "echo leads; exec sleep 60";
    let mut first = Process::spawn(&mut call_of(&home, ELECTED, script)).unwrap();
    first.wait_for_line(SOON, |line| line == "leads").unwrap();
    let mut second = call_of(&home, ELECTED, script);
    let mut second = Process::spawn(second.env("NOTIFY_SOCKET", &told.path)).unwrap();
    let status = "STATUS=waiting for \"election/report\"";
    assert_eq!(told.next(), format!("READY=1\n{status}\n"));
    for candidate in [&mut second, &mut first] {
        candidate.signal(Signal::TERM).unwrap();
        assert!(
            candidate
                .wait(SOON)
                .unwrap()
                .code()
                .is_some_and(|it| it >= 128)
        );
    }
}

/// No systemd runs here: the test does what systemd does with the lines of the unit.
#[test]
fn a_node_starts_drains_and_ends_as_the_unit_says() {
    let home = Home::new();
    let tokens = home.write("tokens", "ops operate a-token-of-an-administrator\n");
    let told = NotifySocket::new(&home);
    let mut node = home.distlock(words(only_setting("ExecStart")));
    node.env("DISTLOCK_GATEWAY_NODE", "n1")
        .env("DISTLOCK_GATEWAY_TOKEN_KEY", KEY)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN)
        .env("DISTLOCK_GATEWAY_ADMIN_TOKEN_FILE", &tokens)
        .env("NOTIFY_SOCKET", &told.path);
    let (mut node, ready) = start_on_free_ports(&mut node);
    assert_eq!(only_setting("Type"), "notify");
    assert_eq!(told.next(), "READY=1\n");

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
    assert_eq!(told.next(), "STOPPING=1\n");
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

/// These manifests, after the check.
fn checked_manifests(home: &Home, manifests: &str) -> Vec<Value> {
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
    let checked = finish(python.args(["-c", CHECK]), manifests);
    assert_eq!(checked.code, 0, "{checked:?}");
    serde_json::from_str(&checked.stdout).unwrap()
}

/// The texts of a list.
fn texts(words: &Value) -> Vec<String> {
    let words = words.as_array().unwrap().iter();
    words.map(|it| it.as_str().unwrap().to_owned()).collect()
}

#[test]
fn kubernetes_accepts_a_server_and_jobs_and_they_run_as_the_manifests_say() {
    let home = Home::new();
    let manifests = checked_manifests(&home, &format!("{SERVER}---\n{JOBS}"));
    let manifest = |kind: &str| manifests.iter().find(|it| it["kind"] == kind).unwrap();

    let server = &manifest("StatefulSet")["spec"];
    assert_eq!(server["replicas"], 1, "two servers grant the same lock");
    let pod = &server["template"];
    let container = &pod["spec"]["containers"][0];
    let service = manifest("Service");
    assert_eq!(service["metadata"]["name"], server["serviceName"]);
    assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
    let port = &container["ports"][0];
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    assert_eq!(
        container["livenessProbe"]["tcpSocket"]["port"],
        port["name"]
    );
    for probe in ["readinessProbe", "startupProbe"] {
        assert_eq!(container[probe]["grpc"]["port"], port["containerPort"]);
    }
    let (state, key) = (home.path("server.state"), home.write("key", KEY));
    let args = texts(&container["args"]).join("\n");
    let args = args.replace(&format!("0.0.0.0:{}", port["containerPort"]), "127.0.0.1:0");
    let mounts = &container["volumeMounts"];
    let below = |at: usize| mounts[at]["mountPath"].as_str().unwrap();
    let args = args.replace(
        &format!("{}/server.state", below(0)),
        state.to_str().unwrap(),
    );
    let args = args.replace(&format!("{}/token-key", below(1)), key.to_str().unwrap());
    let mut serve = home.bare(args.split('\n'));
    let memory = &container["env"][0];
    serve.env(
        memory["name"].as_str().unwrap(),
        memory["value"].as_str().unwrap(),
    );
    let mut serve = Process::spawn(&mut serve).unwrap();
    let ready = serve.wait_for_line(SOON, |line| line.contains(r#""event":"ready""#));
    assert!(ready.unwrap().contains("127.0.0.1:"));
    serve.signal(Signal::TERM).unwrap();
    assert!(serve.wait(SOON).unwrap().success(), "{}", serve.output());
    assert!(state.exists());

    // The last word is the program of the image, for which a script stands here.
    let run = |pod: &Value, script: &str| {
        let mut words = texts(&pod["spec"]["containers"][0]["command"]);
        assert_eq!(words.remove(0), "distlock");
        words.pop();
        words.extend(["sh", "-c", script].map(str::to_owned));
        home.distlock(words)
    };
    let candidate = &manifest("Deployment")["spec"]["template"];
    let mut leader = run(candidate, "echo leads; exec sleep 60");
    let mut leader = Process::spawn(&mut leader).unwrap();
    leader.wait_for_line(SOON, |line| line == "leads").unwrap();
    leader.signal(Signal::TERM).unwrap();
    assert_eq!(leader.wait(SOON).unwrap().code(), Some(143));

    // The second pod of a run that failed runs it again, and the one of the next start does not.
    let job = &manifest("CronJob")["spec"]["jobTemplate"]["spec"]["template"];
    for (script, code, says) in [
        ("echo ran; exit 3", 3, "ran\n"),
        ("echo ran", 0, "ran\n"),
        ("echo ran", 0, ""),
    ] {
        let ran = finish(&mut run(job, script), "");
        assert_eq!((ran.code, ran.stdout.as_str()), (code, says), "{ran:?}");
    }
}

#[test]
fn kubernetes_accepts_the_manifests_and_a_node_runs_as_they_say() {
    let home = Home::new();
    let manifests = checked_manifests(&home, MANIFESTS);
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
