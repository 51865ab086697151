//! HAProxy and nginx with the configurations of `deploy/`, in front of two nodes that are restarted
//! one after the other while up to 2,000 clients are logged in.
//!
//! The tests change only ports, paths and the nodes' addresses in the shipped files
//! ([`substitute`]), so that private proxies run without root.

use std::{collections::BTreeMap, fs, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock_checker::Fact;
use distlock_harness::{
    Pki, free_port,
    servers::{
        redis::RedisServer,
        web_proxy::{WebProxy, WebProxyKind},
    },
};
use distlock_kickout::Uid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    crowd::{Crowd, Way},
    scenarios::start,
    world::{ADMIN_TOKEN, SOON, World, login_token, now_us},
};

const HAPROXY: &str = include_str!("../../deploy/haproxy.cfg");
const NGINX: &str = include_str!("../../deploy/nginx.conf");
const NGINX_STREAM: &str = include_str!("../../deploy/nginx-stream.conf");

const NODES: [&str; 2] = ["n1", "n2"];
const CLIENTS: usize = 2000;
/// Clients that a stopped node sends elsewhere at once. A drained node sends them one by one, so
/// there may be more of them.
const CLIENTS_AT_ONCE: usize = 500;
/// Sessions that a drain ends each second. The nodes, the proxy and the clients share the machine,
/// and the nodes and clients are built without optimisation. With HAProxy, whose connections by TLS
/// cost more, two cores are busy at the higher rate.
const RATE: &str = "200";
const RATE_WITH_HAPROXY: &str = "80";
/// Accounts whose user takes out a second device while the first node is restarted.
const RIVALS: usize = 100;
/// The most connections of one address: fewer than clients, and more than come at the same time. So
/// all clients find a place only if the nodes count them by their own addresses.
const MAX_PER_ADDRESS: &str = "400";
/// The documented time in which a client is back.
const BACK: Duration = Duration::from_secs(5);

/// Replaces texts of a shipped file, each of which must be there.
fn substitute(file: &str, replacements: &[(&str, String)]) -> Result<String> {
    let mut text = file.to_owned();
    for (from, to) in replacements {
        ensure!(text.contains(from), "the shipped file has no {from:?}");
        text = text.replace(from, to);
    }
    Ok(text)
}

/// Two nodes with TLS, the authority of all certificates, and the store.
struct Site {
    world: World,
    pki: Pki,
    _redis: RedisServer,
}

impl Site {
    /// Starts the nodes, which learn the clients' addresses in this way.
    async fn start(name: &str, client_address: &str) -> Result<Self> {
        let files = getrlimit(Resource::Nofile);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: files.maximum,
                ..files
            },
        )?;
        let redis = tokio::task::block_in_place(RedisServer::start)?;
        let pki = Pki::new()?;
        pki.sign_for("node", "DNS:gateway.internal,IP:127.0.0.1")?;
        let bundle = ["server.crt", "server.key"].map(|it| fs::read_to_string(pki.path(it)));
        let [certificate, key] = bundle;
        fs::write(pki.path("gateway.pem"), certificate? + &key?)?;
        let mut world = World::new(name, &redis.url());
        for (key, file) in [("tls_cert", "node.crt"), ("tls_key", "node.key")] {
            let path = pki.path(file);
            world.set(key, path.to_str().context("a path of UTF-8")?);
        }
        world.set("client_address", client_address);
        world.set("max_per_address", MAX_PER_ADDRESS);
        // As the shipped configuration of nginx says.
        world.set("max_pending_per_address", "4096");
        world.rules = distlock_checker::Rules::default();
        for node in NODES {
            let address = || anyhow::Ok((Ipv4Addr::LOCALHOST, free_port()?).into());
            // Plain TCP has no header of its own that could name the client.
            let framed = client_address == "proxy_protocol";
            let framed = framed.then(address).transpose()?;
            world.fixed.insert(node.to_owned(), (address()?, framed));
        }
        start(&mut world, &NODES).await;
        Ok(Self {
            world,
            pki,
            _redis: redis,
        })
    }

    /// The address of a node for WebSockets.
    fn listen(&self, node: &str) -> String {
        self.world.fixed[node].0.to_string()
    }

    /// The address of a node for plain TCP.
    fn tcp_listen(&self, node: &str) -> String {
        let (_, address) = self.world.fixed[node];
        address.expect("this site has plain TCP").to_string()
    }

    /// The same, for HAProxy, which asks for the health at the other port.
    fn checked_tcp(&self, node: &str) -> String {
        let port = self.world.fixed[node].0.port();
        format!("{} check port {port}", self.tcp_listen(node))
    }

    /// Starts HAProxy with the shipped file.
    fn haproxy(&self) -> Result<WebProxy> {
        let files = ["gateway.pem", "ca.crt"].map(|it| self.pki.path(it));
        let configure = |folder: &Path, ports: &[u16]| {
            let path = |file: &str| folder.join(file).display().to_string();
            substitute(
                HAPROXY,
                &[
                    (":443 ", format!("127.0.0.1:{} ", ports[0])),
                    ("bind :7433 ", format!("bind 127.0.0.1:{} ", ports[1])),
                    ("/etc/haproxy/gateway.pem", path("gateway.pem")),
                    ("/etc/haproxy/nodes-ca.pem", path("ca.crt")),
                    ("10.0.0.11:7430", self.listen("n1")),
                    ("10.0.0.12:7430", self.listen("n2")),
                    ("10.0.0.11:7433 check port 7430", self.checked_tcp("n1")),
                    ("10.0.0.12:7433 check port 7430", self.checked_tcp("n2")),
                ],
            )
        };
        tokio::task::block_in_place(|| WebProxy::start(WebProxyKind::HaProxy, &files, 2, configure))
    }

    /// Starts nginx with one of the shipped files, on this many ports.
    fn nginx(&self, file: &str, ports: usize) -> Result<WebProxy> {
        let files = ["gateway.pem", "ca.crt"].map(|it| self.pki.path(it));
        let configure = |folder: &Path, ports: &[u16]| {
            let path = |file: &str| folder.join(file).display().to_string();
            let mut replacements = vec![
                ("/etc/nginx/gateway.pem", path("gateway.pem")),
                ("/etc/nginx/nodes-ca.pem", path("ca.crt")),
                ("/run/nginx.pid", path("pid")),
                ("/var/log/nginx/error.log", "stderr".to_owned()),
                ("listen 443 ", format!("listen 127.0.0.1:{} ", ports[0])),
                ("10.0.0.11:7430", self.listen("n1")),
                ("10.0.0.12:7430", self.listen("n2")),
            ];
            if let [_, tcp] = ports {
                replacements.extend([
                    ("listen 7433 ", format!("listen 127.0.0.1:{tcp} ")),
                    ("10.0.0.11:7433", self.tcp_listen("n1")),
                    ("10.0.0.12:7433", self.tcp_listen("n2")),
                ]);
            } else {
                replacements.push(("/var/log/nginx/access.log", path("access.log")));
                replacements.push(("/var/lib/nginx/", path("")));
            }
            substitute(file, &replacements)
        };
        tokio::task::block_in_place(|| {
            WebProxy::start(WebProxyKind::Nginx, &files, ports, configure)
        })
    }

    /// Drains a node as an administrator does: by the command of the documentation.
    fn drain(&self, node: &str, rate: &str) -> Result<()> {
        let admin = format!("https://{}", self.world.node(node).admin);
        let mut drain = self.world.tool(&self.world.url);
        drain
            .args(["gateway", "drain", "--rate", rate, "--wait", "60s"])
            .args(["--admin", &admin])
            .env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("SSL_CERT_FILE", self.pki.path("ca.crt"));
        let drained = tokio::task::block_in_place(|| drain.output())?;
        ensure!(drained.status.success(), "{drained:?}");
        Ok(())
    }

    /// Restarts both nodes, one after the other, with all clients logged in. Each node is drained
    /// before it is stopped, if there is a rate for that.
    async fn restart_both(&mut self, way: &Way, drain: Option<&str>) -> Result<()> {
        let clients = drain.map_or(CLIENTS_AT_ONCE, |_| CLIENTS);
        let uids: Vec<Uid> = (0..clients)
            .map(|at| self.world.uid(&format!("u{at}")))
            .collect();
        let probe = self.world.uid("probe");
        let mut crowd = Crowd::start(way, uids.clone()).await?;
        for (node, other) in [("n1", "n2"), ("n2", "n1")] {
            let other = &self.world.node(other).name;
            way.wait_until_it_leads_to(other, &probe).await?;
            if node == "n1" {
                crowd.add_rivals(RIVALS);
            }
            if let Some(rate) = drain {
                self.drain(node, rate)?;
            }
            self.world.stop(node)?;
            crowd.wait_until_all_are_in(BACK * 2).await?;
            self.world.start(node).await?;
        }
        self.judge(&crowd, &uids).await
    }

    /// Checks the clients, the directory, and everything that the nodes have reported.
    async fn judge(&self, crowd: &Crowd, uids: &[Uid]) -> Result<()> {
        let figures = crowd.summary();
        #[expect(clippy::print_stderr, reason = "figures for whoever asks for them")]
        {
            eprintln!("{figures}");
        }
        // A busy machine has its delay in addition, as in all these tests.
        let busy = self.world.promises().slack - self.world.rules.slack;
        let late = crowd.longest_return();
        ensure!(
            late < BACK + busy,
            "a client was away for {late:?} ({busy:?} busy): {figures}"
        );
        let sessions = crowd.sessions()?;
        ensure!(
            sessions.len() == uids.len(),
            "{} are in: {figures}",
            sessions.len()
        );
        // The second devices took over; nothing else may end a client for good.
        let taken = BTreeMap::from([(1, RIVALS)]);
        ensure!(crowd.codes() == taken, "{:?}", crowd.codes());
        let store = self.world.open().await;
        for uid in uids {
            let record = self.world.record(&store, uid).await.context("a record")?;
            let named: Vec<_> = record.sessions().map(|(_, session)| session).collect();
            ensure!(named == [sessions[uid]], "{uid}: {named:?}");
            self.world.fact(Fact::Quiet {
                uid: uid.clone(),
                at_us: now_us(),
            });
        }
        store.close().await;
        let report = self.world.check_nodes().await?;
        let looked = report.looked_at(distlock_checker::Invariant::I1);
        ensure!(looked > uids.len(), "{looked} sessions were compared");
        Ok(())
    }
}

/// A client on plain TCP gets in through the proxy. A header of the PROXY protocol that a client
/// sends by itself changes nothing: the node takes it for a bad frame.
async fn plain_tcp_passes_and_a_false_header_does_not(site: &mut Site, way: &Way) -> Result<()> {
    let uid = site.world.uid("framed");
    let login = json!({
        "type": "login",
        "token": login_token(&uid),
        "device": "phone",
        "class": "",
        "intent": "login",
    });
    let body = login.to_string();
    let length = u16::try_from(body.len())?.to_be_bytes();
    let frame = [&1_u16.to_be_bytes(), &length, body.as_bytes()].concat();
    let answer = first_frame(way, &frame).await?;
    ensure!(answer["type"] == "login_ok", "{answer}");
    let forged = b"PROXY TCP4 192.0.2.7 192.0.2.8 51000 443\r\n";
    let answer = first_frame(way, &[forged, frame.as_slice()].concat()).await?;
    ensure!(answer["code"] == "bad_frame", "{answer}");
    Ok(())
}

/// Sends bytes on plain TCP, and returns the first frame of the answer.
async fn first_frame(way: &Way, bytes: &[u8]) -> Result<Value> {
    let mut stream = way.open(Ipv4Addr::new(127, 8, 0, 1)).await?;
    stream.write_all(bytes).await?;
    let mut head = [0; 4];
    let reading = async {
        stream.read_exact(&mut head).await?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
        stream.read_exact(&mut body).await?;
        anyhow::Ok(serde_json::from_slice(&body)?)
    };
    tokio::time::timeout(SOON, reading).await?
}

/// Sends the head of a request with something before it, and returns the status of the answer.
async fn status(way: &Way, before: &str, path: &str) -> Result<String> {
    let mut stream = way.open(Ipv4Addr::new(127, 8, 0, 2)).await?;
    let head = format!("{before}GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut status = [0; 12];
    tokio::time::timeout(SOON, stream.read_exact(&mut status)).await??;
    Ok(String::from_utf8_lossy(&status[9..]).into_owned())
}

/// Other paths than `/ws` end at the proxy, and so does a header of the PROXY protocol that a
/// client sends by itself.
async fn only_websockets_pass(way: &Way) -> Result<()> {
    for path in ["/", "/healthz", "/ws/../healthz"] {
        ensure!(status(way, "", path).await? == "404", "{path}");
    }
    let forged = "PROXY TCP4 192.0.2.7 192.0.2.8 51000 443\r\n";
    ensure!(status(way, forged, "/ws").await? == "400");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_moves_2000_clients_while_both_nodes_restart() -> Result<()> {
    let mut site = Site::start("haproxy", "proxy_protocol").await?;
    let proxy = site.haproxy()?;
    let way = Way::new(proxy.address(0), &site.pki)?;
    let framed = Way::new(proxy.address(1), &site.pki)?;
    let outcome = async {
        only_websockets_pass(&way).await?;
        plain_tcp_passes_and_a_false_header_does_not(&mut site, &framed).await?;
        site.restart_both(&way, Some(RATE_WITH_HAPROXY)).await
    };
    Box::pin(outcome).await.with_context(|| proxy.output())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_moves_2000_clients_while_both_nodes_restart() -> Result<()> {
    let mut site = Site::start("nginx", "forwarded_for").await?;
    let proxy = site.nginx(NGINX, 1)?;
    let way = Way::new(proxy.address(0), &site.pki)?;
    let outcome = async {
        only_websockets_pass(&way).await?;
        site.restart_both(&way, Some(RATE)).await
    };
    Box::pin(outcome).await.with_context(|| proxy.output())
}

/// nginx does not see here that a node drains, so the nodes are stopped without a drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_with_the_proxy_header_moves_500_clients_while_both_nodes_restart() -> Result<()> {
    let mut site = Site::start("stream", "proxy_protocol").await?;
    let proxy = site.nginx(NGINX_STREAM, 2)?;
    let way = Way::new(proxy.address(0), &site.pki)?;
    let framed = Way::new(proxy.address(1), &site.pki)?;
    let outcome = async {
        plain_tcp_passes_and_a_false_header_does_not(&mut site, &framed).await?;
        site.restart_both(&way, None).await
    };
    Box::pin(outcome).await.with_context(|| proxy.output())
}
