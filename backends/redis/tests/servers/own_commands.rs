//! Connections for commands of a caller's own.

use crate::common::SOON;
use distlock_core::{ErrorKind, Result};
use distlock_harness::{eventually_async, servers::redis::RedisServer};
use distlock_redis::own_commands::{Connections, Request};

async fn write(connections: &Connections) -> Result<()> {
    let mut connection = connections.take().await?;
    let written = redis::cmd("SET")
        .arg(connections.key("a"))
        .arg("1")
        .exec_async(&mut connection)
        .await;
    written.map_err(|error| connections.handle_error(error, Request::Change))?;
    connections.give_back(connection);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_left_at_once_and_a_replica_is_refused() {
    let server = RedisServer::start().unwrap();
    let connections = Connections::new(&server.url()).unwrap();
    let both = [
        connections.take().await.unwrap(),
        connections.take().await.unwrap(),
    ];
    both.into_iter()
        .for_each(|connection| connections.give_back(connection));
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    // The first refusal is that of the write, on a connection from the pool. It empties the pool,
    // so the second one is that of a new connection.
    for says in ["or was demoted", "connect to that"] {
        let refused = write(&connections).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    // After a failed attempt there is a pause before the next one.
    eventually_async("the server serves again", SOON, || async {
        write(&connections).await.ok()
    })
    .await
    .unwrap();
}
