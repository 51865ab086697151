//! Strangers at the port for other nodes: the memory that strangers make a node use has a bound.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock_harness::eventually_async;
use futures_util::{
    StreamExt as _,
    future::{join_all, try_join_all},
    stream,
};
use h2::client::SendRequest;
use hyper::{Request, body::Bytes};
use rustix::process::{Resource, Rlimit};
use tokio::net::TcpSocket;

use crate::world::{SOON, World};

/// The number of connections without a token that a node allows.
const STRANGERS: u8 = 255;
/// Calls of each stranger: more than one connection may have in flight.
const CALLS: usize = 200;

/// Connects a stranger to the port for other nodes.
pub(crate) async fn connect(number: u8, to: SocketAddr) -> Result<SendRequest<Bytes>> {
    let socket = TcpSocket::new_v4()?;
    // The strangers come from several addresses, so that the limit for all addresses applies, not
    // the limit for one address.
    socket.bind(([127, 1, number / 32, 1], 0).into())?;
    let stream = socket.connect(to).await?;
    let (calls, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    Ok(calls)
}

/// Opens as many calls as the node allows, with the longest allowed heads and bodies, and reads no
/// answer.
async fn open_many_calls(calls: &mut SendRequest<Bytes>, to: SocketAddr) -> Result<()> {
    for _ in 0..CALLS {
        let ready = tokio::time::timeout(Duration::from_millis(200), calls.clone().ready()).await;
        let Ok(Ok(ready)) = ready else { break };
        *calls = ready;
        let request = Request::post(format!("http://{to}/distlock.v1.Peer/Kick"))
            .header("content-type", "application/grpc")
            .header("x-long", "x".repeat(12_000))
            .body(())?;
        let Ok((_, mut body)) = calls.send_request(request, false) else {
            break;
        };
        let _ = body.send_data(Bytes::from(vec![0; 16_384]), false);
    }
    Ok(())
}

/// The resident memory of a process, in bytes.
fn resident_bytes(id: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kib.context("VmRSS")?.parse::<u64>()? * 1024)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cost_a_node_no_more_than_64_mb() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let mut world = World::new("strangers", &url);
    world.start("n1").await?;
    world.start("n2").await?;
    let anna = world.uid("anna");
    // The nodes connect to each other before the strangers come.
    let first = world.log_in(&anna, "phone", "n1").await;
    let second = world.log_in(&anna, "pc", "n2").await;
    let (to, id) = (world.node("n1").peer, world.node("n1").process.id());
    let before = resident_bytes(id)?;
    // All connect before the first of them sends much. On a slow machine the node would otherwise
    // send the first strangers away before the last ones come.
    let strangers = join_all((0..STRANGERS).map(|number| connect(number, to))).await;
    let mut strangers: Vec<_> = strangers.into_iter().filter_map(Result::ok).collect();
    let connected = strangers.len();
    ensure!(connected > 200, "{connected} were connected");
    let calls = strangers.iter_mut().map(|it| open_many_calls(it, to));
    try_join_all(calls).await?;
    let mut most = 0;
    eventually_async("the strangers are sent away", SOON, || {
        most = resident_bytes(id).unwrap_or(u64::MAX).max(most);
        let established = count_established(to.port());
        async move { (established < 10).then_some(()) }
    })
    .await?;
    let cost = most.saturating_sub(before);
    ensure!(cost < 64_000_000, "{connected} strangers cost {cost} bytes");
    // The nodes still reach each other.
    let third = world.log_in(&anna, "phone", "n1").await;
    drop((first, second, third));
    Ok(())
}

/// The node has its default limits on connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_connections_of_one_address_block_no_other_login() -> Result<()> {
    let files = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: files.maximum,
        ..files
    };
    rustix::process::setrlimit(Resource::Nofile, most)?;
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let mut world = World::new("crowd", &url);
    // On a slow machine the logins take longer than the default time-out of a stranger.
    world.set("login_timeout", "60s");
    world.start("n1").await?;
    let to = world.node("n1").listen;
    let hangs = async |_| {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, 2], 0).into())?;
        socket.connect(to).await
    };
    // The node resets connections beyond its limit, many of them while they connect.
    let crowd = stream::iter(0..5000).map(hangs).buffered(100);
    let crowd: Vec<_> = crowd.collect().await;
    let hanging = count_established(to.port());
    ensure!(hanging > 500, "{hanging} of them hang");
    let mut clients = Vec::new();
    for number in 0..40 {
        let uid = world.uid(&format!("u{number}"));
        clients.push(world.log_in(&uid, "phone", "n1").await);
    }
    let still = count_established(to.port());
    ensure!(still > 500, "{still} of them hang when everybody is in");
    drop((crowd, clients));
    Ok(())
}

/// Counts the established connections to a port of this host.
fn count_established(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|fields| {
            fields.get(1).is_some_and(|local| local.ends_with(&port))
                && fields.get(3) == Some(&"01")
        })
        .count()
}
