//! MariaDB and MySQL.

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::{
    private::{self, Password, RunAs},
    stepped::SteppedClock,
    template::{cache, copy, finish, templates},
};
use crate::{Pki, Process, Signal, eventually, free_port};

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
/// `root` needs a random password, which [`MySqlServer::url`] holds. There is an empty database,
/// `distlock`. No statement reads or writes files.
#[derive(Debug)]
pub struct MySqlServer {
    process: Option<Process>,
    user: RunAs,
    folder: TempDir,
    port: u16,
    product: Product,
    settings: Vec<String>,
    databases: AtomicU32,
    password: Password,
    clock: Option<SteppedClock>,
}

impl MySqlServer {
    /// Starts a server with settings that keep every promise.
    ///
    /// # Errors
    /// When the server is not installed or does not start.
    pub fn start(product: Product) -> Result<Self> {
        Self::with(product, &[])
    }

    /// Starts a server that has a clock of its own, see [`MySqlServer::put_clock_forward`].
    ///
    /// # Errors
    /// As [`MySqlServer::start`], and when Debian's package `libfaketime` is not installed.
    pub fn with_clock(product: Product) -> Result<Self> {
        let mut server = Self::prepare(product, free_port()?, &[])?;
        server.clock = Some(SteppedClock::new(server.user, server.folder.path())?);
        server.launch()?;
        Ok(server)
    }

    /// Puts the server's own clock forward, and waits until the server has seen it.
    ///
    /// # Errors
    /// When it has no clock of its own or does not answer.
    pub fn put_clock_forward(&self, by: Duration) -> Result<()> {
        let clock = self.clock.as_ref().context("a clock of its own")?;
        clock.put_forward(by, || {
            Ok(self.sql("SELECT UNIX_TIMESTAMP(SYSDATE(6))")?.parse()?)
        })
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

    /// Starts a server that offers TLS with the certificate of `pki`, and knows clients by its
    /// authority.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn with_tls(product: Product, pki: &Pki) -> Result<Self> {
        let mut server = Self::prepare(product, free_port()?, &[])?;
        for (option, name) in [
            ("ca", "ca.crt"),
            ("cert", "server.crt"),
            ("key", "server.key"),
        ] {
            // It cannot enter the folder of `pki`.
            let copied = server.folder.path().join(name);
            server.user.copy(&pki.path(name), &copied)?;
            let setting = format!("--ssl-{option}={}", copied.display());
            server.settings.push(setting);
        }
        server.launch()?;
        Ok(server)
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
    /// before it was told anything more. Both have the same password.
    ///
    /// # Errors
    /// As [`MySqlServer::start`].
    pub fn copied(&mut self) -> Result<Self> {
        self.kill();
        let mut last = None;
        for _ in 0..3 {
            let mut other = Self::prepare_from(&self.data(), self.product, free_port()?)?;
            other.settings.clone_from(&self.settings);
            other.password.clone_from(&self.password);
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
        let user = user()?;
        let folder = user.folder(&env::temp_dir())?;
        copy(data, &folder.path().join("data"))?;
        Ok(Self {
            process: None,
            user,
            folder,
            port,
            product,
            settings: Vec::new(),
            databases: AtomicU32::new(0),
            password: Password::random(),
            clock: None,
        })
    }

    /// Statements that the server carries out at each start before it serves anybody. So at no time
    /// is there an account of a known password, nor one in the template.
    fn first_statements(&self) -> Result<PathBuf> {
        let (file, password) = (self.folder.path().join("first.sql"), self.password.expose());
        let mut statements = String::new();
        if self.settings.iter().any(|it| it == "--wsrep-on=ON") {
            // The cluster does not take part yet.
            statements += "SET SESSION wsrep_on = OFF;\n";
        }
        // One account for the socket and for TCP, which listens on loopback only. MySQL takes a
        // password that it has not seen since it started over TLS or the socket only; what the
        // harness asks over the socket shows it the password of this account.
        // One statement on each line, or the servers do not understand them.
        statements += &format!(
            "DROP USER IF EXISTS 'root'@'localhost';\n\
             CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '{password}';\n\
             ALTER USER 'root'@'%' IDENTIFIED BY '{password}';\n\
             GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n"
        );
        self.user.write(&file, statements)?;
        Ok(file)
    }

    fn launch(&mut self) -> Result<()> {
        let first = self.first_statements()?;
        let mut command = server(self.product, self.user, &self.folder.path().join("data"))?;
        command
            .arg(format!("--init-file={}", first.display()))
            .arg(nowhere(self.product, self.folder.path())?)
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
            .args(&self.settings)
            .envs(self.clock.iter().flat_map(SteppedClock::environment));
        let process = Process::spawn(&mut command)?;
        if let Some(clock) = &self.clock {
            clock.is_used_by(process.id());
        }
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
        let mut last = None;
        let answered = eventually("the server answers", READY, || {
            last = self.sql("SELECT 1").err();
            last.is_none()
        });
        if let (Err(error), Some(last)) = (answered, last) {
            return Err(last.context(error));
        }
        Ok(())
    }

    /// Logs a user in over TCP once, with TLS where the server has it. From then on MySQL takes the
    /// password without TLS, too.
    fn log_in(&self, user: &str) -> Result<()> {
        if self.product == Product::MariaDb {
            return Ok(());
        }
        finish(
            Command::new("mariadb")
                .env("MYSQL_PWD", self.password())
                .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
                .arg(format!("--user={user}"))
                .arg(format!("--port={}", self.port))
                .args(["--execute", "DO 1"]),
        )
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
        let at = self.account_at(self.address());
        format!("mysql://{at}/{database}?ssl-mode=disabled")
    }

    /// As [`MySqlServer::url`], where something else listens that leads there.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        let at = self.account_at(address);
        format!("mysql://{at}/{DATABASE}?ssl-mode=disabled")
    }

    /// As [`MySqlServer::url`], of another user, who must have the same password as `root`.
    ///
    /// # Errors
    /// When the server does not let that user in.
    pub fn url_as(&self, user: &str) -> Result<String> {
        self.log_in(user)?;
        Ok(self.url().replace("://root:", &format!("://{user}:")))
    }

    /// The password of `root`.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.expose()
    }

    /// `root:PASSWORD@ADDRESS`, for a URL with options of its own.
    #[must_use]
    pub fn account_at(&self, address: SocketAddr) -> String {
        format!("root:{}@{address}", self.password.expose())
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
            // A process list shows arguments to everybody, and this to its own user.
            .env("MYSQL_PWD", self.password.expose())
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

/// The user that the servers run as.
fn user() -> Result<RunAs> {
    RunAs::user_of("mysql")
}

/// The server's command line, as far as it is the same for setting up and for running.
fn server(product: Product, user: RunAs, data: &Path) -> Result<Command> {
    let program = product.program()?;
    user.reaches(&program, private::PROGRAM)?;
    let mut command = user.command(program);
    command
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        .args([
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=1",
            "--performance-schema=OFF",
            "--skip-log-bin",
        ]);
    match product {
        Product::MariaDb => command.arg("--innodb-log-file-size=16M"),
        Product::MySql => command.args(["--mysqlx=OFF", "--innodb-redo-log-capacity=32M"]),
    };
    Ok(command)
}

/// Where statements may read and write files: nowhere. `MariaDB` takes NULL for "everywhere", so it
/// gets an empty folder that nobody can write to.
fn nowhere(product: Product, folder: &Path) -> Result<String> {
    if product == Product::MySql {
        return Ok("--secure-file-priv=NULL".into());
    }
    let empty = folder.join("nowhere");
    if !empty.exists() {
        fs::create_dir(&empty)?;
        fs::set_permissions(&empty, fs::Permissions::from_mode(0o555))?;
    }
    Ok(format!("--secure-file-priv={}", empty.display()))
}

/// A folder of data to copy, made once per machine, version of the server and user: setting one up
/// takes seconds. Its `root` can log in nowhere, until the first statements of a server give it a
/// password.
fn template(product: Product) -> Result<PathBuf> {
    let (program, user) = (product.program()?, user()?);
    let made = fs::metadata(&program)?.modified()?;
    let made = made.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let folder = templates()?;
    let finished = folder.join(format!("{product:?}-{made}-{}-3", user.number()));
    let lock = fs::File::create(folder.join(format!("{product:?}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if finished.exists() {
        return Ok(finished);
    }
    // Where the server's user can get at it.
    let work = user.folder(&env::temp_dir())?;
    let data = work.path().join("data");
    let statements = work.path().join("setup.sql");
    let create = format!("CREATE DATABASE {DATABASE};\n");
    if product == Product::MariaDb {
        user.write(&statements, create)?;
        finish(
            user.command("mariadb-install-db")
                .args(["--no-defaults", "--skip-test-db"])
                // An account that root of this host alone can use, through the socket.
                .args([
                    "--auth-root-authentication-method=socket",
                    "--auth-root-socket-user=root",
                ])
                .arg(format!("--datadir={}", data.display())),
        )?;
        finish(
            server(product, user, &data)?
                .arg("--bootstrap")
                .stdin(fs::File::open(&statements)?),
        )?;
    } else {
        // It gives `root` a random password, says it, and wants another one before anything else.
        // This one is nobody's.
        let unknown = Password::random();
        let locked = format!(
            "ALTER USER 'root'@'localhost' IDENTIFIED BY '{}';\n",
            unknown.expose()
        );
        user.write(&statements, locked + &create)?;
        finish(
            server(product, user, &data)?
                .arg("--initialize")
                .arg(nowhere(product, work.path())?)
                .arg(format!("--init-file={}", statements.display())),
        )?;
        // Each copy makes an identity of its own.
        fs::remove_file(data.join("auto.cnf"))?;
    }
    let copied = folder.join(format!("{product:?}-unfinished"));
    let _ = fs::remove_dir_all(&copied);
    copy(&data, &copied)?;
    fs::rename(copied, &finished)?;
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::{super::private::tests::keeps_others_out, *};

    #[test]
    fn a_clock_of_its_own_goes_forward_and_stays_there() {
        Product::ALL.into_iter().for_each(goes_forward);
    }

    fn goes_forward(product: Product) {
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

    /// What a client over TCP is told.
    fn stranger(server: &MySqlServer, user: &str, password: Option<&str>) -> Result<String> {
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

    fn keeps_strangers_out(product: Product) {
        let mut server = MySqlServer::start(product).unwrap();
        // A restart changes nothing about it.
        for _ in 0..2 {
            for user in ["root", "", "mysql", "mariadb.sys"] {
                for password in [None, Some(""), Some("root"), Some("wrong")] {
                    let said = stranger(&server, user, password).unwrap_err().to_string();
                    assert!(said.contains("Access denied"), "{user}: {said}");
                }
            }
            let password = server.password.expose();
            keeps_others_out(
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
        keeps_strangers_out(Product::MariaDb);
    }

    #[test]
    fn no_other_user_of_this_host_can_use_mysql() {
        keeps_strangers_out(Product::MySql);
    }

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
