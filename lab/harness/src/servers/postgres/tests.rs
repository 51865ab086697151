use std::{fs, process::Command, time::Duration};

use super::{
    super::isolation::tests::assert_isolated,
    installation::{DATABASE, binaries_folder},
    *,
};
use crate::eventually;

/// Checks that a server refuses clients over TCP without a password and with a wrong password.
/// `says` is the text of the second error.
pub(in crate::servers) fn assert_strangers_refused(port: u16, says: &str) {
    for user in ["postgres", "somebody"] {
        for password in [None, Some("postgres"), Some("wrong")] {
            let mut command = Command::new(binaries_folder().unwrap().join("psql"));
            command
                .args(["-X", "-w", "-h", "127.0.0.1", "-U", user, "-d", DATABASE])
                .args(["-p", &port.to_string(), "-c", "SELECT 1"])
                .env_remove("PGPASSWORD");
            if let Some(password) = password {
                command.env("PGPASSWORD", password);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{user}, {password:?}");
            let without = password.is_none() && said.contains("no password supplied");
            assert!(without || said.contains(says), "{said}");
        }
    }
}

#[test]
fn a_servers_own_clock_steps_forward_and_stays_ahead() {
    let mut server = PostgresServer::with_clock().unwrap();
    let ahead = |server: &PostgresServer| {
        let theirs = server.sql("SELECT extract(epoch FROM clock_timestamp())");
        let ours = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        theirs.unwrap().parse::<f64>().unwrap() - ours
    };
    assert!(ahead(&server).abs() < 1.0);
    server.put_clock_forward(Duration::from_secs(5)).unwrap();
    assert!((ahead(&server) - 5.0).abs() < 1.0, "{}", ahead(&server));
    server.restart().unwrap();
    assert!((ahead(&server) - 5.0).abs() < 1.0, "{}", ahead(&server));
}

#[test]
fn no_other_user_of_this_host_can_use_postgres() {
    let mut server = PostgresServer::start().unwrap();
    for _ in 0..2 {
        assert_strangers_refused(server.port, "password authentication failed");
        let process = server.process.as_ref().unwrap();
        let password = server.password.expose();
        assert_isolated(process, server.folder.path(), password);
        server.restart().unwrap();
    }
    let rules = server.sql("SELECT type, auth_method FROM pg_hba_file_rules");
    assert_eq!(rules.unwrap(), "local\ttrust\nhost\tscram-sha-256");
    let encrypted = "SELECT rolpassword LIKE 'SCRAM%' FROM pg_authid WHERE rolcanlogin";
    assert_eq!(server.sql(encrypted).unwrap(), "t");
    let other = PostgresServer::start().unwrap();
    assert_ne!(server.password, other.password);
}

#[test]
fn committed_data_survives_a_crash() {
    let mut server = PostgresServer::start().unwrap();
    server
        .sql("CREATE TABLE kept (n INT); INSERT INTO kept VALUES (1)")
        .unwrap();
    let holder = server.hold_open("UPDATE kept SET n = 2").unwrap();
    let impatient = "SET lock_timeout = '1ms'; UPDATE kept SET n = 3";
    assert!(server.sql(impatient).is_err());
    drop(holder);
    server.restart().unwrap();
    assert_eq!(server.sql("SELECT n FROM kept").unwrap(), "1");
    server.sql("UPDATE kept SET n = 2").unwrap();
    let other = server.new_database().unwrap();
    assert_eq!(
        server.sql_in(&other, "SELECT current_database()").unwrap(),
        other
    );
    assert!(server.sql("SELECT nonsense").is_err());
}

#[test]
fn a_paused_server_continues_when_the_pause_is_dropped() {
    let server = PostgresServer::start().unwrap();
    let paused = server.pause().unwrap();
    let postmaster = server.process.as_ref().unwrap().id();
    let state = || fs::read_to_string(format!("/proc/{postmaster}/stat")).unwrap();
    eventually("it stands still", READY_LIMIT, || state().contains(") T ")).unwrap();
    drop(paused);
    assert_eq!(server.sql("SELECT 1").unwrap(), "1");
}
