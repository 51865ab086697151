//! The server at the address is not MySQL, or its answers were damaged on the way.

use std::net::SocketAddr;

use distlock_harness::servers::mysql::Product;
use fastrand::Rng;

use crate::{
    garbage::{FakeProtocol, opening_at_fake_servers, operations_amid_garbage},
    mysql, start,
};

const MYSQL: FakeProtocol = FakeProtocol {
    greeting,
    reply,
    name: "MySQL",
};

/// A URL with short time-outs.
fn impatient(at: &str) -> String {
    format!("{at}?ssl-mode=DISABLED&connect_timeout=1s&statement_timeout=200ms")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_server_causes_no_internal_error() {
    let url = |address| impatient(&format!("mysql://root@{address}/distlock"));
    opening_at_fake_servers(MYSQL, |address: SocketAddr| async move {
        mysql(&url(address)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_leaves_an_operation_unknown() {
    let server = start(Product::MariaDb);
    mysql(&server.url()).await.unwrap();
    let account = |address| server.account_at(address);
    operations_amid_garbage(server.address(), |address| async move {
        let url = impatient(&format!("mysql://{}/distlock", account(address)));
        mysql(&url).await.map(|store| store.lock())
    })
    .await;
}

fn packet(number: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    [&length[..3], &[number], payload].concat()
}

/// The server's first message, in version 10 of MySQL's handshake.
fn greeting(rng: &mut Rng) -> Vec<u8> {
    let mut payload = vec![10];
    payload.extend(b"8.0.36\0");
    payload.extend([1, 0, 0, 0]);
    payload.extend([7; 8]);
    payload.push(0);
    payload.extend([0xff, 0xf7, 0xff, 2, 0, 0xff, 0x81, 21]);
    payload.extend([0; 10]);
    payload.extend([7; 12]);
    payload.push(0);
    let plugins: [&[u8]; 3] = [
        b"mysql_native_password\0",
        b"caching_sha2_password\0",
        b"sha256_password\0",
    ];
    payload.extend(plugins[rng.usize(..3)]);
    packet(0, &payload)
}

/// A random answer to any request.
fn reply(rng: &mut Rng, request: &[u8]) -> Vec<u8> {
    let next = request.get(3).map_or(1, |number| number.wrapping_add(1));
    let ok = [0, 0, 0, 2, 0, 0, 0];
    match rng.u8(..10) {
        0..3 => packet(next, &ok),
        3 => packet(next, b"\xff\x34\x12#HY000what is this"),
        4 => packet(next, b"\xfemysql_native_password\0aaaaaaaaaaaaaaaaaaaa\0"),
        5 => packet(next, &[1, rng.u8(..)]),
        8.. => packet(next, &nonsense(rng)),
        _ => {
            let column = b"\x03def\0\0\0\x01a\0\x0c\x3f\0\x14\0\0\0\x08\0\0\0\0\0";
            [
                packet(next, &[1]),
                packet(next.wrapping_add(1), column),
                packet(next.wrapping_add(2), &[0xfe, 0, 0, 2, 0]),
                packet(next.wrapping_add(3), b"\x013"),
                packet(next.wrapping_add(4), &[0xfe, 0, 0, 2, 0]),
            ]
            .concat()
        }
    }
}

fn nonsense(rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rng.usize(1..24)).map(|_| rng.u8(..)).collect();
    bytes[0] = [0, 1, 2, 0xfb, 0xfe, 0xff][rng.usize(..6)];
    bytes
}
