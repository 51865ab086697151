//! Asks the admin interface of a node for the session of an account.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock_checker::Fact;
use distlock_kickout::{Generation, Uid};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::node::ADMIN_TOKEN;
use crate::chaos::history::now;

/// Time-out for the answer of a node, which may be stopped or without a store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks a node for the session of an account.
///
/// # Errors
/// Returns an error if the node cannot be reached or cannot answer.
pub(super) async fn look_up(node: SocketAddr, uid: &Uid) -> Result<Fact> {
    let from_us = now();
    let answer = timeout(ANSWER_TIMEOUT, get_json(node, &format!("/v1/users/{uid}"))).await??;
    let record = &answer["record"];
    let slots = record["slots"].as_object();
    let mut slots = slots.into_iter().flat_map(serde_json::Map::values);
    let session = slots.find_map(|slot| serde_json::from_value(slot["session"].clone()).ok());
    Ok(Fact::Lookup {
        uid: uid.clone(),
        from_us,
        to_us: now(),
        r#gen: Generation::new(record["gen"].as_u64().unwrap_or_default()),
        session,
    })
}

/// Sends a GET request with the administrator's token, and returns the JSON of a successful answer.
async fn get_json(node: SocketAddr, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(node).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {node}\r\nconnection: close\r\n\
         authorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("an incomplete answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(serde_json::from_str(body)?)
}
