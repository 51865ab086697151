//! Tests of the services in `docker/compose.yaml`, and of the image. The tests start no container
//! engine, and check only the text of the files.

use std::collections::{BTreeMap, BTreeSet};

const COMPOSE: &str = include_str!("../docker/compose.yaml");
const DOCKERFILE: &str = include_str!("../docker/Dockerfile");

/// The lines of each service, with the lines that the service inherits from anchors.
fn services() -> BTreeMap<&'static str, Vec<&'static str>> {
    let whole: Vec<_> = COMPOSE.lines().collect();
    let top = blocks(&whole, "");
    let anchors: BTreeMap<_, _> = top
        .iter()
        .filter_map(|(head, body)| Some((head.split_once('&')?.1, body)))
        .collect();
    let services = blocks(&top["services:"], "  ").into_iter();
    services
        .map(|(head, mut lines)| {
            let mut at = 0;
            while let Some(line) = lines.get(at) {
                if let Some(anchor) = line.trim().strip_prefix("<<: *") {
                    lines.extend(anchors[anchor]);
                }
                at += 1;
            }
            (head.trim_end_matches(':'), lines)
        })
        .collect()
}

/// The lines below each line that has exactly this indentation.
fn blocks<'a>(lines: &[&'a str], indent: &str) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut blocks = BTreeMap::<_, Vec<_>>::new();
    let mut head = None;
    for &line in lines {
        match line.strip_prefix(indent) {
            Some(line) if line.starts_with(|c: char| c.is_ascii_alphabetic()) => head = Some(line),
            _ => blocks
                .entry(head.unwrap_or_default())
                .or_default()
                .push(line),
        }
    }
    blocks
}

/// The value of the only line of a service that starts with `about`.
fn value_of<'a>(service: &[&'a str], about: &str) -> &'a str {
    let said: Vec<_> = service
        .iter()
        .filter_map(|line| line.trim().strip_prefix(about))
        .collect();
    assert_eq!(said.len(), 1, "{about} {service:?}");
    said[0].trim_matches([' ', '"'])
}

/// The ports of a service that the host can reach.
fn ports(service: &[&str]) -> Vec<u16> {
    let mut ports = Vec::new();
    for line in service {
        // These ports belong to a service on a network of its own.
        for published in line.split("127.0.0.1:").skip(1) {
            if let Some((port, inside)) = published.split_once(':')
                && inside.starts_with(|c: char| c.is_ascii_digit())
            {
                ports.extend(port.parse::<u16>());
            }
        }
        // This port belongs to a service on the network of the host.
        if let Some(port) = line.trim().strip_prefix("PORT: ") {
            ports.extend(port.trim_matches('"').parse::<u16>());
        }
    }
    ports
}

#[test]
fn the_three_zookeeper_servers_know_each_other() {
    let services = services();
    let names: Vec<_> = services
        .keys()
        .filter(|name| name.starts_with("zookeeper"))
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let (mut ids, mut reached, mut data) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for name in &names {
        let service = &services[*name];
        let own = value_of(service, "ZOO_MY_ID:");
        ids.insert(own);
        reached.extend(ports(service));
        data.insert(service.iter().find(|line| line.ends_with(":/data")));
        assert!(value_of(service, "image:").starts_with("zookeeper:"));
        // At these addresses the service looks for the ensemble. One of them is its own address.
        let at = service.iter().position(|line| line.contains("ZOO_SERVERS"));
        let list = service[at.expect("has a list") + 1..].iter();
        let listed = list.map_while(|line| line.trim().strip_prefix("server."));
        let listed: String = listed.map(|line| format!("server.{line} ")).collect();
        assert_eq!(listed.matches("server.").count(), 3, "{listed}");
        for other in &names {
            let id = value_of(&services[*other], "ZOO_MY_ID:");
            assert!(
                listed.contains(&format!("server.{id}={other}:")),
                "{name} does not know {other}: {listed}"
            );
        }
    }
    assert_eq!(
        (ids.len(), reached.len(), data.len()),
        (3, 3, 3),
        "each has an id, a port and a volume of its own"
    );
}

#[test]
fn there_is_a_server_of_every_other_kind() {
    let services = services();
    for (name, image) in [
        ("server", "distlock"),
        ("redis", "redis:"),
        ("valkey", "valkey/valkey:"),
        ("redis-primary", "redis:"),
        ("redis-replica", "redis:"),
        ("redis-sentinel-1", "redis:"),
        ("redis-sentinel-2", "redis:"),
        ("redis-sentinel-3", "redis:"),
        ("redis-shard-1", "redis:"),
        ("redis-shard-2", "redis:"),
        ("redis-shard-3", "redis:"),
        ("mysql", "mysql:9"),
        ("mariadb", "mariadb:10.11"),
        ("postgres", "postgres:15"),
    ] {
        let service = services.get(name);
        let service = service.unwrap_or_else(|| panic!("no {name} in {:?}", services.keys()));
        // The service's own line comes before the inherited lines.
        let said = service
            .iter()
            .find_map(|line| line.trim().strip_prefix("image: "))
            .unwrap_or_else(|| panic!("{name} has no image"));
        assert!(said.starts_with(image), "{name}: {said}");
    }
}

/// A test in tests/cli/gateway.rs runs the health check of the image.
#[test]
fn nodes_have_a_health_check_and_the_image_has_authorities() {
    for (name, service) in services() {
        let asked = "test: [CMD, distlock, gateway, health]";
        let asks = service.iter().any(|line| line.trim() == asked);
        assert_eq!(asks, name.starts_with("node-"), "{name}");
    }
    let (_, image) = DOCKERFILE.rsplit_once("\nFROM ").expect("has two stages");
    assert!(image.contains("--no-install-recommends ca-certificates"));
}

/// The comment at the head of the file advises these addresses.
#[test]
fn the_advised_addresses_are_those_of_the_services() {
    let mut reached = BTreeMap::new();
    for (name, service) in services() {
        for port in ports(&service) {
            if let Some(other) = reached.insert(port, name) {
                panic!("{name} and {other} are both at {port}");
            }
        }
    }
    let mut schemes = BTreeSet::new();
    for line in COMPOSE.lines().take_while(|line| line.starts_with('#')) {
        let Some((scheme, rest)) = line.trim_start_matches(['#', ' ']).split_once("://") else {
            continue;
        };
        schemes.insert(scheme);
        let (body, _) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = body.rsplit('@').next().expect("has hosts");
        for host in hosts.split(',') {
            let port = host.strip_prefix("127.0.0.1:").expect("is on this host");
            let port = port.parse().expect("is a port");
            assert!(reached.contains_key(&port), "nobody is at {line}");
        }
    }
    let all = [
        "distlock",
        "mariadb",
        "mysql",
        "postgres",
        "redis",
        "redis+cluster",
        "redis+sentinel",
        "zookeeper",
    ];
    assert_eq!(schemes, BTreeSet::from(all));
}
