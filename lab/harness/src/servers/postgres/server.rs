//! One server: the start, the step of its clock, the crash, the restart, and standbys.

use std::{
    env, fs, io::Write as _, path::Path, process::Stdio, sync::atomic::AtomicU32, time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    Pki, Process, Signal, eventually, free_port,
    servers::{
        isolation::Password,
        postgres::{
            access::scram_verifier,
            installation::{DATABASE, Version, data_template, server_user},
        },
        stepped_clock::SteppedClock,
        template::{copy_folder, run_to_end},
    },
};

/// Time-out for the start of a server, until it serves clients.
pub(in crate::servers) const READY_LIMIT: Duration = Duration::from_secs(60);

/// A private server. Dropping the value stops the server and removes its data.
///
/// Over TCP every user needs a password. The password of `postgres` is random, and
/// [`PostgresServer::url`] contains the password. The socket is in the server's folder, which no
/// other user can enter. The server has an empty database, `distlock`. Unless a test gives the
/// setting `fsync=on`, the server does not sync its disk. A crash of the server alone loses no data
/// even then.
#[derive(Debug)]
pub struct PostgresServer {
    pub(super) process: Option<Process>,
    pub(super) folder: TempDir,
    pub(super) port: u16,
    pub(super) version: Version,
    pub(super) settings: Vec<String>,
    /// The number of created databases, for the names of new databases.
    pub(super) databases: AtomicU32,
    pub(super) password: Password,
    pub(super) clock: Option<SteppedClock>,
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The server is stopped and not killed. A killed server would leave a segment of shared
        // memory, and the system has few segments.
        if let Some(process) = &mut self.process
            && process.signal(Signal::QUIT).is_ok()
        {
            let _ = process.wait(Duration::from_secs(5));
        }
    }
}

/// The files of a server with TLS, in the folder of its data.
const TLS_FILES: [&str; 3] = ["ca.crt", "server.crt", "server.key"];

impl PostgresServer {
    /// Starts a server.
    ///
    /// # Errors
    /// Returns an error if PostgreSQL is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts a server with its own clock, see [`PostgresServer::put_clock_forward`]
    /// and [`PostgresServer::put_clock_back`].
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`], and if Debian's package
    /// `libfaketime` is not installed.
    pub fn with_clock() -> Result<Self> {
        let mut server = Self::prepare(Version::Installed, free_port()?, &[])?;
        server.clock = Some(SteppedClock::new(server_user()?, server.folder.path())?);
        server.launch_and_set_password()?;
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
    /// Returns an error for the same reasons as [`PostgresServer::put_clock_forward`].
    pub fn put_clock_back(&self, by: Duration) -> Result<()> {
        self.step_clock(-by.as_secs_f64())
    }

    fn step_clock(&self, by: f64) -> Result<()> {
        let clock = self.clock.as_ref().context("a clock of its own")?;
        clock.step(by, || {
            Ok(self
                .sql("SELECT extract(epoch FROM clock_timestamp())")?
                .parse()?)
        })
    }

    /// Starts a server with further settings, such as `default_transaction_isolation=serializable`.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`].
    pub fn with(settings: &[&str]) -> Result<Self> {
        Self::start_version(Version::Installed, settings)
    }

    /// Works like [`PostgresServer::with`], with PostgreSQL 18 or later.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`], and names the way to get
    /// the program if it is missing.
    pub fn newer(settings: &[&str]) -> Result<Self> {
        Self::start_version(Version::Newer, settings)
    }

    fn start_version(version: Version, settings: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Another process may take the port before the server does.
            let mut server = Self::prepare(version, free_port()?, settings)?;
            match server.launch_and_set_password() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    /// Starts a server that offers TLS with the certificate of `pki`. The user `secured` has the
    /// password `hunter2`, and may connect only over TLS with a certificate of the same authority.
    /// The user `postgres` may connect without TLS.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`].
    pub fn with_tls(pki: &Pki) -> Result<Self> {
        let mut server = Self::prepare(
            Version::Installed,
            free_port()?,
            &["ssl=on", "ssl_ca_file=ca.crt"],
        )?;
        for file in TLS_FILES {
            let copied = server.data().join(file);
            server_user()?.copy_private_file(&pki.path(file), &copied)?;
        }
        let hba = server.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&hba)?;
        let secured = "hostssl all secured 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n\
                       hostnossl all secured 127.0.0.1/32 reject\n";
        fs::write(&hba, format!("{secured}{rules}"))?;
        server.launch_and_set_password()?;
        server.sql(
            "CREATE ROLE secured LOGIN PASSWORD 'hunter2'; GRANT ALL ON SCHEMA public TO secured",
        )?;
        Ok(server)
    }

    /// Replaces the certificates of a server with TLS by those of another authority. Connections
    /// that are made a little later use them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn replace_certificates(&self, pki: &Pki) -> Result<()> {
        for file in TLS_FILES {
            let copied = self.data().join(file);
            fs::remove_file(&copied)?;
            server_user()?.copy_private_file(&pki.path(file), &copied)?;
        }
        self.sql("SELECT pg_reload_conf()").map(drop)
    }

    /// Crashes the server, starts another server with a copy of its data, and restarts the first
    /// server. Then promotes the other server, which is like a replica without the later changes.
    /// The promoted server begins a new timeline.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`].
    pub fn crash_and_promote_replica(&mut self) -> Result<Self> {
        self.kill();
        let mut other = Self::prepare_from(&self.data(), self.version, free_port()?)?;
        other.settings.clone_from(&self.settings);
        // The copied data has the password of the first server.
        other.password.clone_from(&self.password);
        // The copy contains the lock file of the killed server.
        let _ = fs::remove_file(other.data().join("postmaster.pid"));
        fs::write(other.data().join("standby.signal"), "")?;
        other.launch()?;
        self.launch()?;
        other.promote()?;
        Ok(other)
    }

    /// Starts a standby that receives the changes of this server and answers reads.
    /// [`PostgresServer::promote`] makes it the primary.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`].
    pub fn start_standby(&self) -> Result<Self> {
        let hba = self.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&hba)?;
        fs::write(&hba, format!("local replication all trust\n{rules}"))?;
        self.sql("SELECT pg_reload_conf()")?;
        let mut standby = Self::prepare_empty(self.version, free_port()?)?;
        standby.settings.clone_from(&self.settings);
        // The standby has the same roles with the same passwords.
        standby.password.clone_from(&self.password);
        let primary = format!("host={} port={}", self.folder.path().display(), self.port);
        run_to_end(
            self.version
                .command("pg_basebackup")?
                .args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf"])
                .arg(format!("--dbname={primary} user=postgres"))
                .arg("-D")
                .arg(standby.data()),
        )?;
        standby.launch()?;
        Ok(standby)
    }

    /// Makes a standby the primary, with a new timeline.
    ///
    /// # Errors
    /// Returns an error if the server is no standby.
    pub fn promote(&self) -> Result<()> {
        let promoted = self.sql("SELECT pg_promote()")?;
        ensure!(promoted == "t", "the standby was not promoted");
        Ok(())
    }

    /// Makes a server's folder from the template, without starting the server.
    pub(super) fn prepare(version: Version, port: u16, settings: &[&str]) -> Result<Self> {
        let mut server = Self::prepare_from(&data_template(version)?, version, port)?;
        server.settings = settings.iter().map(|it| (*it).to_owned()).collect();
        Ok(server)
    }

    /// Makes a server's folder with a copy of the folder `data`, without starting the server.
    pub(super) fn prepare_from(data: &Path, version: Version, port: u16) -> Result<Self> {
        let server = Self::prepare_empty(version, port)?;
        copy_folder(data, &server.data())?;
        Ok(server)
    }

    /// Makes a server's folder without data.
    fn prepare_empty(version: Version, port: u16) -> Result<Self> {
        Ok(Self {
            process: None,
            folder: server_user()?.create_folder(&env::temp_dir())?,
            port,
            version,
            settings: Vec::new(),
            databases: AtomicU32::new(0),
            password: Password::random(),
            clock: None,
        })
    }

    /// Starts the server for the first time, and sets the password of `postgres`. Until then nobody
    /// can log in over TCP.
    pub(super) fn launch_and_set_password(&mut self) -> Result<()> {
        self.launch()?;
        let mut psql = self.client(DATABASE)?;
        let mut psql = psql
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("psql")?;
        // Every user can read the arguments of a process, so the statements are not arguments. A
        // test may have settings that make the transaction read-only, or let its commit wait for a
        // replica. The first two statements undo such settings.
        let statements = format!(
            "BEGIN READ WRITE; SET LOCAL synchronous_commit = local;\n\
             ALTER ROLE postgres PASSWORD '{}'; COMMIT;\n",
            scram_verifier(&self.password)
        );
        let mut input = psql.stdin.take().context("the input of psql")?;
        input.write_all(statements.as_bytes())?;
        drop(input);
        let output = psql.wait_with_output()?;
        ensure!(
            output.status.success(),
            "the password of postgres: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Starts the processes, and waits until the server answers.
    pub(super) fn launch(&mut self) -> Result<()> {
        let mut command = self.version.command("postgres")?;
        command.arg("-D").arg(self.data());
        let port = format!("port={}", self.port);
        let socket = format!("unix_socket_directories={}", self.folder.path().display());
        let standard = [
            port.as_str(),
            "listen_addresses=127.0.0.1",
            socket.as_str(),
            "fsync=off",
            "shared_buffers=16MB",
            "max_connections=200",
            "jit=off",
            // The files of this shared memory are in the server's folder, so they are removed with
            // the folder.
            "dynamic_shared_memory_type=mmap",
            // The server notices a killed client soon, and frees the client's locks.
            "client_connection_check_interval=100ms",
        ];
        for setting in standard
            .into_iter()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.args(["-c", setting]);
        }
        command.envs(self.clock.iter().flat_map(SteppedClock::environment));
        // After a crash, some processes of the old server may not have ended yet. The new server
        // then refuses to start, so the start is repeated.
        let mut process = None;
        eventually("the server starts", READY_LIMIT, || {
            process = Process::spawn(&mut command).ok();
            let Some(started) = &process else { return true };
            if let Some(clock) = &self.clock {
                clock.note_process(started.id());
            }
            let said = started.wait_for_line(READY_LIMIT, |line| {
                // The log also contains the errors for clients that connected too early.
                line.contains("ready to accept")
                    || (line.contains("FATAL") && !line.contains("the database system is"))
            });
            !said.is_ok_and(|said| said.contains("pre-existing shared memory"))
        })?;
        let mut process = process.context("postgres does not start")?;
        ensure!(
            process.output().contains("ready to accept") && process.is_running()?,
            "the server did not start: {}",
            process.output()
        );
        self.process = Some(process);
        eventually("the server answers", READY_LIMIT, || {
            self.sql("SELECT 1").is_ok()
        })
    }

    /// Kills the server with SIGKILL. Its data stays.
    pub fn kill(&mut self) {
        // The server's other processes are in groups of their own. These processes end when they
        // notice the end of the first process.
        self.process = None;
    }

    /// Kills the server, and starts it again on the same port and data.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }
}
