use super::{super::isolation::tests::assert_isolated, resp::Resp, server::READY_LIMIT, *};
use crate::eventually;

#[test]
fn a_crash_keeps_the_data_and_an_empty_restart_does_not() {
    let mut server = RedisServer::start().unwrap();
    assert_eq!(server.command(&["SET", "k", "v"]).unwrap(), "OK");
    let run = server.info("run_id").unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["GET", "k"]).unwrap(), "v");
    assert_ne!(server.info("run_id").unwrap(), run);
    server.restart_empty().unwrap();
    assert_eq!(server.command(&["GET", "k"]).unwrap(), "");
}

/// Checks that a server refuses commands of a client without a password and with a wrong password,
/// and that other users of this host cannot reach the server's files or processes.
fn assert_closed_to_strangers(server: &RedisServer) {
    let mut stranger = Resp::connect(server.address()).unwrap();
    for command in [&["PING"][..], &["INFO"], &["SHUTDOWN", "NOSAVE"]] {
        let said = stranger.ask(command).unwrap();
        assert!(said.starts_with("NOAUTH "), "{said}");
    }
    let said = stranger.ask(&["AUTH", "wrong"]).unwrap();
    assert!(said.starts_with("WRONGPASS "), "{said}");
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    let process = server.process.as_ref().unwrap();
    assert_isolated(process, server.folder(), server.password());
}

#[test]
fn no_other_user_of_this_host_can_use_a_server() {
    for flavour in [Flavour::Installed, Flavour::Redis8, Flavour::Valkey9] {
        assert_closed_to_strangers(&RedisServer::start_flavour(flavour, &[]).unwrap());
    }
    let server = RedisServer::start().unwrap();
    let replica = server.replica().unwrap();
    assert_closed_to_strangers(&replica);
    eventually("it replicates", READY_LIMIT, || {
        let link = replica.info("master_link_status");
        link.is_ok_and(|status| status == "up")
    })
    .unwrap();
}

#[test]
fn no_other_user_of_this_host_can_use_servers_that_belong_together() {
    let sentinels = RedisSentinels::start().unwrap();
    let group = [&sentinels.primary, &sentinels.replica];
    group
        .into_iter()
        .chain(&sentinels.sentinels)
        .for_each(assert_closed_to_strangers);
    // The sentinels' users at the other servers must have no known password either.
    let said = sentinels.primary.command_as("sentinel-0", "pw", &["PING"]);
    assert!(said.unwrap().starts_with("NOAUTH "));
    let cluster = RedisCluster::start(3, 0).unwrap();
    cluster.nodes.iter().for_each(assert_closed_to_strangers);
}

#[test]
fn a_test_can_choose_a_password_or_no_password() {
    let server = RedisServer::with(&["requirepass canary"]).unwrap();
    assert_eq!(server.password(), "canary");
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    let open = RedisServer::with(&["requirepass \"\""]).unwrap();
    assert_eq!(open.url(), format!("redis://{}", open.address()));
    let mut anybody = Resp::connect(open.address()).unwrap();
    assert_eq!(anybody.ask(&["PING"]).unwrap(), "PONG");
}
