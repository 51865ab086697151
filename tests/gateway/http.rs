//! Sends requests to the HTTP ports of a node.

use std::{io, net::SocketAddr};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::world::{ADMIN_TOKEN, SOON};

/// Sends a `GET`, and returns the whole answer with its head.
pub(crate) async fn get(to: SocketAddr, path: &str) -> String {
    try_get(to, path).await.unwrap()
}

/// As [`get`], for a node that may be unreachable.
pub(crate) async fn try_get(to: SocketAddr, path: &str) -> io::Result<String> {
    let token = format!("authorization: Bearer {ADMIN_TOKEN}\r\n");
    ask(to, &format!("GET {path}"), &token, "").await
}

/// Sends JSON in a `POST`, and returns the JSON of the answer.
pub(crate) async fn post(to: SocketAddr, path: &str, token: &str, body: &Value) -> Value {
    let headers = format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
    let answer = ask(to, &format!("POST {path}"), &headers, &body.to_string())
        .await
        .unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

async fn ask(to: SocketAddr, what: &str, headers: &str, body: &str) -> io::Result<String> {
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-length: \
        {length}\r\n{headers}\r\n{body}"
    );
    let asking = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        io::Result::Ok(answer)
    };
    tokio::time::timeout(SOON, asking).await.unwrap()
}
