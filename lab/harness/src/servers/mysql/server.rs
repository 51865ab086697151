//! One server: the start, the step of its clock, the crash, the copy and the restart.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicU32,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    Pki, Process, Signal, eventually, free_port,
    servers::{
        isolation::{Password, RunAs},
        mysql::installation::{
            Product, data_template, newer_mariadb, secure_file_setting, server_command, server_user,
        },
        stepped_clock::SteppedClock,
        template::copy_folder,
    },
};

/// Time-out for the start of a server, until it serves clients.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(60);

/// The library of Debian's package that makes a cluster of MariaDB servers.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// A private server. Dropping the value kills the server and removes its data.
///
/// The user `root` has a random password, which [`MySqlServer::url`] contains. The server has an
/// empty database, `distlock`. No statement can read or write files.
#[derive(Debug)]
pub struct MySqlServer {
    pub(super) process: Option<Process>,
    pub(super) user: RunAs,
    pub(super) folder: TempDir,
    pub(super) port: u16,
    pub(super) product: Product,
    program: PathBuf,
    pub(super) settings: Vec<String>,
    /// The number of created databases, for the names of new databases.
    pub(super) databases: AtomicU32,
    pub(super) password: Password,
    pub(super) clock: Option<SteppedClock>,
}

/// The files of a server with TLS: its option, and the name in a [`Pki`].
const TLS_FILES: [(&str, &str); 3] = [
    ("ca", "ca.crt"),
    ("cert", "server.crt"),
    ("key", "server.key"),
];

impl MySqlServer {
    /// Starts a server with settings under which every promise of this library holds.
    ///
    /// # Errors
    /// Returns an error if the server is not installed or does not start.
    pub fn start(product: Product) -> Result<Self> {
        Self::with(product, &[])
    }

    /// Starts a server with its own clock, see [`MySqlServer::put_clock_forward`]
    /// and [`MySqlServer::put_clock_back`].
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`], and if Debian's package
    /// `libfaketime` is not installed.
    pub fn with_clock(product: Product) -> Result<Self> {
        let mut server = Self::prepare(product, free_port()?, &[])?;
        server.clock = Some(SteppedClock::new(server.user, server.folder.path())?);
        server.launch()?;
        Ok(server)
    }

    /// Steps the server's own clock forward, and waits until the server has seen the step.
    ///
    /// # Errors
    /// Returns an error if the server has no clock of its own or does not answer.
    pub fn put_clock_forward(&self, by: Duration) -> Result<()> {
        self.step_clock(by.as_secs_f64())
    }

    /// Steps the server's own clock back, and waits until the server has seen the step.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::put_clock_forward`].
    pub fn put_clock_back(&self, by: Duration) -> Result<()> {
        self.step_clock(-by.as_secs_f64())
    }

    fn step_clock(&self, by: f64) -> Result<()> {
        let clock = self.clock.as_ref().context("a clock of its own")?;
        clock.step(by, || {
            Ok(self.sql("SELECT UNIX_TIMESTAMP(SYSDATE(6))")?.parse()?)
        })
    }

    /// Starts a server with further settings, such as `sql-mode=ANSI_QUOTES`.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`].
    pub fn with(product: Product, settings: &[&str]) -> Result<Self> {
        Self::start_program(product, &product.program()?, settings)
    }

    /// Works like [`MySqlServer::with`], with MariaDB 11.8 or later. It opens the data of the
    /// installed version.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`], and names the way to get
    /// the program if it is missing.
    pub fn newer_mariadb(settings: &[&str]) -> Result<Self> {
        Self::start_program(Product::MariaDb, &newer_mariadb()?, settings)
    }

    fn start_program(product: Product, program: &Path, settings: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Another process may take the port before the server does.
            let mut server = Self::prepare(product, free_port()?, settings)?;
            program.clone_into(&mut server.program);
            match server.launch() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    /// Starts a server that offers TLS with the certificate of `pki`, and accepts clients'
    /// certificates of its authority.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`].
    pub fn with_tls(product: Product, pki: &Pki) -> Result<Self> {
        let mut server = Self::prepare(product, free_port()?, &[])?;
        for (option, name) in TLS_FILES {
            let copied = server.copy_certificate(pki, name)?;
            let setting = format!("--ssl-{option}={}", copied.display());
            server.settings.push(setting);
        }
        server.launch()?;
        Ok(server)
    }

    /// Replaces the certificates of a server with TLS by those of another authority. New
    /// connections use them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be copied, or if the server refuses the certificates.
    pub fn replace_certificates(&self, pki: &Pki) -> Result<()> {
        for (_, name) in TLS_FILES {
            fs::remove_file(self.folder.path().join(name))?;
            self.copy_certificate(pki, name)?;
        }
        self.sql(match self.product {
            Product::MySql => "ALTER INSTANCE RELOAD TLS",
            Product::MariaDb => "FLUSH SSL",
        })
        .map(drop)
    }

    /// Copies a file of `pki`, because the server's user cannot enter the folder of `pki`.
    fn copy_certificate(&self, pki: &Pki, name: &str) -> Result<PathBuf> {
        let copied = self.folder.path().join(name);
        self.user.copy_private_file(&pki.path(name), &copied)?;
        Ok(copied)
    }

    /// Starts MariaDB as the only node of a Galera cluster.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`].
    pub fn start_galera() -> Result<Self> {
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

    /// Crashes the server, starts another server with a copy of its data, and restarts the first
    /// server. The other server is like a replica that became the primary without the later
    /// changes. Both servers have the same password.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`].
    pub fn crash_and_copy(&mut self) -> Result<Self> {
        self.kill();
        let mut last = None;
        for _ in 0..3 {
            let mut other = Self::prepare_from(&self.data(), self.product, free_port()?)?;
            other.settings.clone_from(&self.settings);
            other.password.clone_from(&self.password);
            // This file contains the server's id. The other server makes its own id.
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

    /// Makes a server's folder from the template, without starting the server.
    pub(super) fn prepare(product: Product, port: u16, settings: &[&str]) -> Result<Self> {
        let mut server = Self::prepare_from(&data_template(product)?, product, port)?;
        server.settings = settings.iter().map(|it| format!("--{it}")).collect();
        Ok(server)
    }

    /// Makes a server's folder with a copy of the folder `data`, without starting the server.
    pub(super) fn prepare_from(data: &Path, product: Product, port: u16) -> Result<Self> {
        let user = server_user()?;
        let folder = user.create_folder(&env::temp_dir())?;
        copy_folder(data, &folder.path().join("data"))?;
        Ok(Self {
            process: None,
            user,
            folder,
            port,
            product,
            program: product.program()?,
            settings: Vec::new(),
            databases: AtomicU32::new(0),
            password: Password::random(),
            clock: None,
        })
    }

    /// Writes the statements that the server runs at each start before it serves clients. The
    /// statements set the password of `root`, so no account has a known password at any time.
    pub(super) fn write_first_statements(&self) -> Result<PathBuf> {
        let (file, password) = (self.folder.path().join("first.sql"), self.password.expose());
        let mut statements = String::new();
        if self.settings.iter().any(|it| it == "--wsrep-on=ON") {
            // The cluster does not work yet while these statements run.
            statements += "SET SESSION wsrep_on = OFF;\n";
        }
        // The same account is used through the socket and over TCP, where the server listens on the
        // loopback interface only. Without TLS, MySQL accepts a password over TCP only after a
        // login over TLS or through the socket since its start. The harness logs in through the
        // socket after each start. Each statement must be on a line of its own in this file.
        statements += &format!(
            "DROP USER IF EXISTS 'root'@'localhost';\n\
             CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '{password}';\n\
             ALTER USER 'root'@'%' IDENTIFIED BY '{password}';\n\
             GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n"
        );
        self.user.write_private_file(&file, statements)?;
        Ok(file)
    }

    /// Starts the process, and waits until it answers.
    pub(super) fn launch(&mut self) -> Result<()> {
        let first = self.write_first_statements()?;
        let mut command = server_command(self.product, &self.program, self.user, &self.data())?;
        command
            .arg(format!("--init-file={}", first.display()))
            .arg(secure_file_setting(self.product, self.folder.path())?)
            .arg(format!("--port={}", self.port))
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--socket={}", self.socket().display()))
            // Each server has its own folder for temporary files. A starting server removes all
            // temporary tables in its folder, also the tables of another server.
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
            clock.note_process(process.id());
        }
        let said = process.wait_for_line(READY_LIMIT, |line| {
            // With its X protocol, MySQL would print such a line earlier. That protocol is off
            // here.
            (line.contains("ready for connections")) || line.contains("Aborting")
        })?;
        ensure!(
            said.contains("ready"),
            "the server did not start: {}",
            process.output()
        );
        self.process = Some(process);
        let mut last = None;
        let answered = eventually("the server answers", READY_LIMIT, || {
            last = self.sql("SELECT 1").err();
            last.is_none()
        });
        if let (Err(error), Some(last)) = (answered, last) {
            return Err(last.context(error));
        }
        Ok(())
    }

    /// Sends the server a signal.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("it runs")?.signal(which)
    }

    /// Kills the server with SIGKILL. Its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server, and starts it again on the same port and data.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`MySqlServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }
}
