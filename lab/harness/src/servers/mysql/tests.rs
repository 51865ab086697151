use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Result, ensure};

use super::{super::isolation::tests::assert_isolated, *};

#[test]
fn a_servers_own_clock_steps_forward_and_stays_ahead() {
    Product::ALL
        .into_iter()
        .for_each(assert_clock_steps_forward_and_stays_ahead);
}

fn assert_clock_steps_forward_and_stays_ahead(product: Product) {
    let mut server = MySqlServer::with_clock(product).unwrap();
    let ahead = |server: &MySqlServer| {
        let theirs = server.sql("SELECT UNIX_TIMESTAMP(SYSDATE(6))").unwrap();
        let ours = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        theirs.parse::<f64>().unwrap() - ours
    };
    assert!(ahead(&server).abs() < 1.0);
    server.put_clock_forward(Duration::from_secs(5)).unwrap();
    server.put_clock_forward(Duration::from_secs(2)).unwrap();
    assert!((ahead(&server) - 7.0).abs() < 1.0, "{}", ahead(&server));
    server.restart().unwrap();
    assert!((ahead(&server) - 7.0).abs() < 1.0, "{}", ahead(&server));
}

/// Logs in over TCP. Returns the user that the server reports, or the server's error.
fn log_in_as_stranger(server: &MySqlServer, user: &str, password: Option<&str>) -> Result<String> {
    let mut command = Command::new("mariadb");
    command
        .args(["--no-defaults", "--batch", "--skip-column-names"])
        .args(["--protocol=tcp", "--host=127.0.0.1"])
        .arg(format!("--user={user}"))
        .arg(format!("--port={}", server.port))
        .args(["--execute", "SELECT CURRENT_USER()"])
        .env_remove("MYSQL_PWD");
    if let Some(password) = password {
        command.env("MYSQL_PWD", password);
    }
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn assert_strangers_cannot_log_in(product: Product) {
    let mut server = MySqlServer::start(product).unwrap();
    // The server must be closed to strangers after a restart too.
    for _ in 0..2 {
        for user in ["root", "", "mysql", "mariadb.sys"] {
            for password in [None, Some(""), Some("root"), Some("wrong")] {
                let said = log_in_as_stranger(&server, user, password)
                    .unwrap_err()
                    .to_string();
                assert!(said.contains("Access denied"), "{user}: {said}");
            }
        }
        let password = server.password.expose();
        assert_isolated(
            server.process.as_ref().unwrap(),
            server.folder.path(),
            password,
        );
        server.restart().unwrap();
    }
    let open = match product {
        Product::MariaDb => {
            "SELECT user, host FROM mysql.global_priv \
             WHERE COALESCE(JSON_VALUE(priv, '$.authentication_string'), '') = '' \
             AND COALESCE(JSON_VALUE(priv, '$.account_locked'), 0) = 0"
        }
        Product::MySql => {
            "SELECT user, host FROM mysql.user \
             WHERE COALESCE(authentication_string, '') = '' AND account_locked = 'N'"
        }
    };
    assert_eq!(server.sql(open).unwrap(), "", "no password, and not locked");
    let file = server.sql("SELECT @@secure_file_priv").unwrap();
    match product {
        Product::MySql => assert_eq!(file, "NULL"),
        Product::MariaDb => assert_eq!(fs::read_dir(&file).unwrap().count(), 0, "{file}"),
    }
    let read = server.sql("SELECT LOAD_FILE('/etc/passwd') IS NULL");
    assert_eq!(read.unwrap(), "1");
    let data = server.data();
    for file in [data.join("written"), Path::new(&file).join("written")] {
        let write = format!("SELECT 1 INTO OUTFILE '{}'", file.display());
        assert!(server.sql(&write).is_err(), "{write}");
        assert!(!file.exists(), "{write}");
    }
    let other = MySqlServer::start(product).unwrap();
    assert_ne!(server.password, other.password);
}

#[test]
fn no_other_user_of_this_host_can_use_mariadb() {
    assert_strangers_cannot_log_in(Product::MariaDb);
}

#[test]
fn no_other_user_of_this_host_can_use_mysql() {
    assert_strangers_cannot_log_in(Product::MySql);
}

fn committed_data_survives_a_crash(product: Product) {
    let mut server = MySqlServer::start(product).unwrap();
    let version = server.sql("SELECT VERSION()").unwrap();
    assert_eq!(
        version.contains("MariaDB"),
        product == Product::MariaDb,
        "{version}"
    );
    server
        .sql("CREATE TABLE kept (n INT); INSERT INTO kept VALUES (1)")
        .unwrap();
    let holder = server
        .hold_open("START TRANSACTION; UPDATE kept SET n = 2")
        .unwrap();
    assert_eq!(server.sql("SELECT n FROM kept").unwrap(), "1");
    drop(holder);
    server.restart().unwrap();
    assert_eq!(server.sql("SELECT n FROM kept").unwrap(), "1");
    let other = server.new_database().unwrap();
    assert!(server.sql("SHOW DATABASES").unwrap().contains(&other));
    assert!(server.sql("SELECT nonsense").is_err());
}

#[test]
fn committed_data_of_mariadb_survives_a_crash() {
    committed_data_survives_a_crash(Product::MariaDb);
}

#[test]
fn committed_data_of_mysql_survives_a_crash() {
    committed_data_survives_a_crash(Product::MySql);
}
