//! Other versions than that of the distribution: what the doctor says of Valkey 9 and Redis 8, and
//! answers of servers before Redis 7.

use std::time::Duration;

use crate::common::{redis, request, take};
use distlock_core::{ErrorKind, Verdict};
use distlock_harness::{
    FaultProxy,
    servers::redis::{Flavour, RedisServer},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_knows_newer_servers() {
    for (flavour, name) in [(Flavour::Valkey9, "Valkey "), (Flavour::Redis8, "Redis ")] {
        let server = RedisServer::start_flavour(flavour, &["appendfsync always"]).unwrap();
        let store = redis(&server.url()).await.unwrap();
        let health = store.lock().health().await.unwrap();
        assert!(health.server.starts_with(name), "{health:?}");
        for found in &health.findings {
            assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
        }
        assert!(health.epoch.is_some());
    }
}

/// The connections of clients that speak RESP3, as this library does.
fn connections(server: &RedisServer) -> Vec<String> {
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    let ours = clients.lines().filter(|client| client.contains("resp=3"));
    ours.filter_map(|client| client.split(' ').next().map(str::to_owned))
        .collect()
}

/// Before Redis 7, a server nests the refusal of a script's command in another refusal.
#[tokio::test(flavor = "multi_thread")]
async fn nested_refusals_of_scripts_are_recognised() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let store = redis(&server.url_at(proxy.address())).await.unwrap();
    let lock = store.lock();
    let wanted = request("a", Duration::from_secs(60));
    // The script is loaded first, so that the replaced reply is the reply to the script.
    take(&*lock, &wanted).await;
    for (says, kind, is_left) in [
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            ErrorKind::LimitExceeded,
            false,
        ),
        (
            "READONLY You can't write against a read only replica.",
            ErrorKind::Unavailable,
            true,
        ),
    ] {
        let before = connections(&server);
        assert_eq!(before.len(), 1);
        proxy.replace_one_reply(format!(
            "-ERR Error running script (call to f_1028a5dba704e1d8a01fd96efeba25bb78f62df2): \
             @user_script:9: @user_script: 9: -{says}\r\n"
        ));
        let error = lock.try_acquire(&wanted).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.to_string().contains("script"), "{error}");
        take(&*lock, &wanted).await;
        assert_eq!(connections(&server) != before, is_left, "{says}");
    }
}
