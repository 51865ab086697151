//! The server at the address is not Postgres, or its answers were damaged on the way.

use std::net::SocketAddr;

use distlock_harness::servers::postgres::PostgresServer;
use fastrand::Rng;

use crate::{
    garbage::{FakeProtocol, opening_at_fake_servers, operations_amid_garbage},
    open, try_open,
};

const POSTGRES: FakeProtocol = FakeProtocol {
    greeting: |_| Vec::new(),
    reply,
    name: "Postgres",
};

/// A URL with short time-outs.
fn impatient(at: &str) -> String {
    format!("{at}?sslmode=disable&connect_timeout=1s&statement_timeout=200ms")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_server_causes_no_internal_error() {
    let url = |address| impatient(&format!("postgres://postgres@{address}/distlock"));
    opening_at_fake_servers(POSTGRES, |address: SocketAddr| async move {
        try_open(&url(address)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_leaves_an_operation_unknown() {
    let server = PostgresServer::start().unwrap();
    open(&server.url()).await;
    let url = |address| impatient(&server.url_at(address));
    operations_amid_garbage(server.address(), |address| async move {
        try_open(&url(address)).await.map(|store| store.lock())
    })
    .await;
}

fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 4).unwrap().to_be_bytes();
    [&[kind], &length[..], payload].concat()
}

/// A random answer to any request.
fn reply(rng: &mut Rng, request: &[u8]) -> Vec<u8> {
    let ready = message(b'Z', b"I");
    if request.first() == Some(&0) {
        let login: &[u8] = match rng.u8(..6) {
            0 => &[0, 0, 0, 3],
            1 => &[0, 0, 0, 5, 1, 2, 3, 4],
            2 => b"\0\0\0\x0aSCRAM-SHA-256\0\0",
            _ => &[0; 4],
        };
        return [
            message(b'R', login),
            message(b'S', b"server_version\x0016.1\0"),
            message(b'K', &[0, 0, 0, 7, 1, 2, 3, 4]),
            ready,
        ]
        .concat();
    }
    let column = b"\0\x01a\0\0\0\0\0\0\0\0\0\0\x14\0\x08\xff\xff\xff\xff\0\0";
    match rng.u8(..9) {
        6.. => {
            let kind = b"RSKZETDC12tA"[rng.usize(..12)];
            let bytes: Vec<u8> = (0..rng.usize(..24)).map(|_| rng.u8(..)).collect();
            message(kind, &bytes)
        }
        0 => [
            message(b'E', b"SERROR\0VERROR\0CZ9999\0Mwhat is this\0\0"),
            ready,
        ]
        .concat(),
        1 => [message(b'C', b"SET\0"), ready].concat(),
        2 => [message(b'1', b""), message(b't', b"\0\0"), ready].concat(),
        3 => message(b'A', b"\0\0\0\x07channel\0payload\0"),
        _ => [
            message(b'1', b""),
            message(b't', b"\0\0"),
            message(b'T', column),
            ready.clone(),
            message(b'2', b""),
            message(b'T', column),
            message(b'D', b"\0\x01\0\0\0\x013"),
            message(b'C', b"SELECT 1\0"),
            ready,
        ]
        .concat(),
    }
}
