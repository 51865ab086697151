//! MariaDB and MySQL.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::template::{cache, copy, finish};
use crate::{Process, Signal, eventually, free_port};

const READY: Duration = Duration::from_secs(60);

/// The database that every server has from the start.
const DATABASE: &str = "distlock";

/// Where the Debian package has what makes a cluster of MariaDB servers.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// `mariadbd` of the Debian package.
    MariaDb,
    /// `mysqld`: `$DISTLOCK_MYSQLD`, or what `scripts/get-server mysql` fetched, or the one on the path unless it is MariaDB's.
    MySql,
}

impl Product {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::MariaDb, Self::MySql];

    fn program(self) -> Result<PathBuf> {
        match self {
            Self::MariaDb => ["/usr/sbin/mariadbd", "/usr/bin/mariadbd", "/usr/libexec/mariadbd"]
                .into_iter()
                .map(PathBuf::from)
                .find(|path| path.exists())
                .context("mariadbd (Debian: apt-get install mariadb-server)"),
            Self::MySql => mysqld().context(
                "a MySQL server: run scripts/get-server mysql, or set DISTLOCK_MYSQLD to a mysqld of version 8 or later",
            ),
        }
    }
}

fn mysqld() -> Option<PathBuf> {
    if let Some(path) = env::var_os("DISTLOCK_MYSQLD") {
        return Some(path.into());
    }
    let fetched = cache().join("mysql/mysqld");
    if fetched.exists() {
        return Some(fetched);
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join("mysqld"))
        .filter(|path| path.exists())
        .find(|path| {
            let version = Command::new(path).arg("--version").output();
            version.is_ok_and(|it| !String::from_utf8_lossy(&it.stdout).contains("MariaDB"))
        })
}

/// A private server. It is killed, and its data removed, when it is dropped.
///
/// `root` may connect over TCP without a password, and there is an empty database, `distlock`.
#[derive(Debug)]
pub struct MySqlServer {
    process: Option<Process>,
    folder: TempDir,
    port: u16,
    product: Product,
    settings: Vec<String>,
    databases: AtomicU32,
}

impl MySqlServer {
    /// Starts a server with settings that keep every promise.
    ///
    /// # Errors
    /// When the server is not installed or does not start.
    pub fn start(product: Product) -> Result<Self> {
        Self::with(product, &[])
    }

    /// Starts a server with further settings, such as `sql-mode=ANSI_QUOTES`.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn with(product: Product, settings: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Somebody else may take the port first.
            let mut server = Self::prepare(product, free_port()?, settings)?;
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    /// Starts MariaDB as the only node of a Galera cluster.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn galera() -> Result<Self> {
        ensure!(
            Path::new(GALERA).exists(),
            "{GALERA} (Debian: apt-get install galera-4)"
        );
        let port = free_port()?;
        Self::with(
            Product::MariaDb,
            &[
                "wsrep-on=ON",
                &format!("wsrep-provider={GALERA}"),
                "wsrep-cluster-address=gcomm://",
                "wsrep-node-address=127.0.0.1",
                &format!("wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port}"),
                "binlog-format=ROW",
                "innodb-autoinc-lock-mode=2",
            ],
        )
    }

    /// Crashes it, starts it again, and starts another server with a copy of its data: what a replica has that is promoted
    /// before it was told anything more.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn copied(&mut self) -> Result<Self> {
        self.kill();
        let mut last = None;
        for _ in 0..3 {
            let mut other = Self::prepare_from(&self.data(), self.product, free_port()?)?;
            other.settings.clone_from(&self.settings);
            // An identity of its own.
            let _ = fs::remove_file(other.data().join("auto.cnf"));
            match other.launch() {
                Ok(()) => {
                    self.launch()?;
                    return Ok(other);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn prepare(product: Product, port: u16, settings: &[&str]) -> Result<Self> {
        let mut server = Self::prepare_from(&template(product)?, product, port)?;
        server.settings = settings.iter().map(|it| format!("--{it}")).collect();
        Ok(server)
    }

    fn prepare_from(data: &Path, product: Product, port: u16) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the server")?;
        copy(data, &folder.path().join("data"))?;
        Ok(Self {
            process: None,
            folder,
            port,
            product,
            settings: Vec::new(),
            databases: AtomicU32::new(0),
        })
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = server(self.product, &self.folder.path().join("data"))?;
        command
            .arg(format!("--port={}", self.port))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--socket={}", self.socket().display()))
            // A server that starts removes what it takes for left-over temporary tables, also those of another server.
            .arg(format!("--tmpdir={}", self.folder.path().display()))
            .arg(format!(
                "--pid-file={}",
                self.folder.path().join("pid").display()
            ))
            .arg("--max-connections=500")
            .arg("--skip-name-resolve")
            .args(&self.settings);
        let process = Process::spawn(&mut command)?;
        let said = process.wait_for_line(READY, |line| {
            // MySQL says it first for its other protocol, which is switched off here.
            (line.contains("ready for connections")) || line.contains("Aborting")
        })?;
        ensure!(
            said.contains("ready"),
            "the server did not start: {}",
            process.output()
        );
        self.process = Some(process);
        eventually("the server answers", READY, || self.sql("SELECT 1").is_ok())
    }

    /// Which of the two it is.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.product
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// Its data: MySQL puts the certificates it makes there.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Of the database that is there from the start. Without TLS.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Of any database. Without TLS.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!(
            "mysql://root@127.0.0.1:{}/{database}?ssl-mode=disabled",
            self.port
        )
    }

    /// Makes an empty database and says its name.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn new_database(&self) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DATABASE}_{number}");
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs statements as `root`, and gives back what they print, columns parted by tabs.
    ///
    /// # Errors
    /// When one of them fails; the server's message is in the error.
    pub fn sql(&self, statements: &str) -> Result<String> {
        let output = self
            .client()
            .arg("--execute")
            .arg(statements)
            .output()
            .context("the mariadb client (Debian: apt-get install mariadb-client)")?;
        if !output.status.success() {
            bail!("{statements}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// Runs statements in a session that stays open until the value is dropped: what they lock stays locked.
    ///
    /// # Errors
    /// When they were not carried out soon.
    pub fn hold_open(&self, statements: &str) -> Result<Process> {
        // The client sleeps, not the server: a server that sleeps does not see that its client has gone.
        let process = Process::spawn(self.client().arg("--unbuffered").args([
            "--execute",
            &format!("{statements}; SELECT 'held open';\n\\! sleep 600"),
        ]))?;
        process.wait_for_line(READY, |line| line.contains("held open"))?;
        Ok(process)
    }

    fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command
            .args([
                "--no-defaults",
                "--user=root",
                "--batch",
                "--skip-column-names",
            ])
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--database={DATABASE}"));
        command
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("it runs")?.signal(which)
    }

    /// Kills it at once, as a crash would. Its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills it and starts it again, on the same port and data.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }
}

/// The server's command line, as far as it is the same for setting up and for running.
fn server(product: Product, data: &Path) -> Result<Command> {
    let mut command = Command::new(product.program()?);
    command
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        .args([
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=1",
            "--performance-schema=OFF",
            "--secure-file-priv=",
            "--skip-log-bin",
        ]);
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    match product {
        Product::MariaDb => command.arg("--innodb-log-file-size=16M"),
        Product::MySql => command.args(["--mysqlx=OFF", "--innodb-redo-log-capacity=32M"]),
    };
    Ok(command)
}

/// A folder of data to copy, made once per machine and version of the server: setting one up takes seconds.
fn template(product: Product) -> Result<PathBuf> {
    let program = product.program()?;
    let made = fs::metadata(&program)?.modified()?;
    let made = made.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let folder = cache().join("templates");
    fs::create_dir_all(&folder)?;
    let finished = folder.join(format!("{product:?}-{made}-2"));
    let lock = fs::File::create(folder.join(format!("{product:?}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if finished.exists() {
        return Ok(finished);
    }
    let work = tempfile::tempdir_in(&folder)?;
    let data = work.path().join("data");
    let statements = work.path().join("setup.sql");
    let mut script = format!("CREATE DATABASE {DATABASE};\n");
    if product == Product::MySql {
        // It has a `root` for its socket only.
        script += "CREATE USER 'root'@'127.0.0.1';\n";
        script += "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n";
    }
    fs::write(&statements, script)?;
    if product == Product::MariaDb {
        let mut install = Command::new("mariadb-install-db");
        install
            .args([
                "--no-defaults",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ])
            .arg(format!("--datadir={}", data.display()));
        if rustix::process::geteuid().is_root() {
            install.arg("--user=root");
        }
        finish(&mut install)?;
        finish(
            server(product, &data)?
                .arg("--bootstrap")
                .stdin(fs::File::open(&statements)?),
        )?;
    } else {
        finish(
            server(product, &data)?
                .arg("--initialize-insecure")
                .arg(format!("--init-file={}", statements.display())),
        )?;
        // Each copy makes an identity of its own.
        fs::remove_file(data.join("auto.cnf"))?;
    }
    fs::rename(data, &finished)?;
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives_through_a_crash(product: Product) {
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
    fn mariadb_lives_through_a_crash() {
        lives_through_a_crash(Product::MariaDb);
    }

    #[test]
    fn mysql_lives_through_a_crash() {
        lives_through_a_crash(Product::MySql);
    }
}
