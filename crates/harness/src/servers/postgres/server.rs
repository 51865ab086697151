//! PostgreSQL.

use std::{
    env, fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use uuid::Uuid;

use super::{
    private::{Password, RunAs},
    stepped::SteppedClock,
    template::{copy, finish, templates},
};
use crate::{Pki, Process, Signal, Watchdog, eventually, free_port, signal};

pub(super) const READY: Duration = Duration::from_secs(60);

/// The database that every server has from the start.
const DATABASE: &str = "distlock";

/// A private server. It is killed, and its data removed, when it is dropped.
///
/// Over TCP everybody needs a password. That of `postgres` is random, and [`PostgresServer::url`]
/// holds it. The socket is in the server's folder, which nobody else can enter. There is an empty
/// database, `distlock`.
/// It does not sync its disk (which a crash of the server alone does not need) unless the setting `fsync=on` is given.
#[derive(Debug)]
pub struct PostgresServer {
    process: Option<Process>,
    folder: TempDir,
    port: u16,
    settings: Vec<String>,
    databases: AtomicU32,
    password: Password,
    clock: Option<SteppedClock>,
}

/// A server, or one of its processes, that stands still. It goes on when this is dropped.
#[derive(Debug, Default)]
pub struct Paused {
    processes: Vec<u32>,
    watchdogs: Vec<Watchdog>,
}

impl PostgresServer {
    /// Starts a server.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts a server that has a clock of its own, see [`PostgresServer::put_clock_forward`].
    ///
    /// # Errors
    /// As [`PostgresServer::start`], and when Debian's package `libfaketime` is not installed.
    pub fn with_clock() -> Result<Self> {
        let mut server = Self::prepare(free_port()?, &[])?;
        server.clock = Some(SteppedClock::new(user()?, server.folder.path())?);
        server.launch_first()?;
        Ok(server)
    }

    /// Puts the server's own clock forward, and waits until the server has seen it.
    ///
    /// # Errors
    /// When it has no clock of its own or does not answer.
    pub fn put_clock_forward(&self, by: Duration) -> Result<()> {
        let clock = self.clock.as_ref().context("a clock of its own")?;
        clock.put_forward(by, || {
            Ok(self
                .sql("SELECT extract(epoch FROM clock_timestamp())")?
                .parse()?)
        })
    }

    /// Starts a server with further settings, such as `default_transaction_isolation=serializable`.
    ///
    /// # Errors
    /// As [`PostgresServer::start`].
    pub fn with(settings: &[&str]) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Somebody else may take the port first.
            let mut server = Self::prepare(free_port()?, settings)?;
            match server.launch_first() {
                Ok(()) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    /// Starts a server that offers TLS with the certificate of `pki`. Its user `secured`, whose password is `hunter2`, may
    /// connect over TLS only, and with a certificate of the same authority. `postgres` may do
    /// without.
    ///
    /// # Errors
    /// As [`PostgresServer::start`].
    pub fn with_tls(pki: &Pki) -> Result<Self> {
        let mut server = Self::prepare(free_port()?, &["ssl=on", "ssl_ca_file=ca.crt"])?;
        for file in ["ca.crt", "server.crt", "server.key"] {
            let copied = server.data().join(file);
            user()?.copy(&pki.path(file), &copied)?;
        }
        let hba = server.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&hba)?;
        let secured = "hostssl all secured 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n\
                       hostnossl all secured 127.0.0.1/32 reject\n";
        fs::write(&hba, format!("{secured}{rules}"))?;
        server.launch_first()?;
        server.sql(
            "CREATE ROLE secured LOGIN PASSWORD 'hunter2'; GRANT ALL ON SCHEMA public TO secured",
        )?;
        Ok(server)
    }

    /// Crashes it, starts it again, and starts another server as its replica that was told nothing more and is promoted: it
    /// begins a timeline of its own.
    ///
    /// # Errors
    /// As [`PostgresServer::start`].
    pub fn promoted(&mut self) -> Result<Self> {
        self.kill();
        let mut other = Self::prepare_from(&self.data(), free_port()?)?;
        other.settings.clone_from(&self.settings);
        // It is part of the data.
        other.password.clone_from(&self.password);
        // The lock file of the server that was killed.
        let _ = fs::remove_file(other.data().join("postmaster.pid"));
        fs::write(other.data().join("standby.signal"), "")?;
        other.launch()?;
        self.launch()?;
        ensure!(
            other.sql("SELECT pg_promote()")? == "t",
            "the replica was not promoted"
        );
        Ok(other)
    }

    fn prepare(port: u16, settings: &[&str]) -> Result<Self> {
        let mut server = Self::prepare_from(&template()?, port)?;
        server.settings = settings.iter().map(|it| (*it).to_owned()).collect();
        Ok(server)
    }

    fn prepare_from(data: &Path, port: u16) -> Result<Self> {
        let folder = user()?.folder(&env::temp_dir())?;
        copy(data, &folder.path().join("data"))?;
        Ok(Self {
            process: None,
            folder,
            port,
            settings: Vec::new(),
            databases: AtomicU32::new(0),
            password: Password::random(),
            clock: None,
        })
    }

    /// Starts it for the first time. Until `postgres` has a password, nobody is let in over TCP.
    fn launch_first(&mut self) -> Result<()> {
        self.launch()?;
        let mut psql = self.client(DATABASE)?;
        let mut psql = psql
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("psql")?;
        // Not as an argument: a process list shows those to everybody. The settings may make
        // transactions read-only, or have commits wait for a replica.
        let statements = format!(
            "BEGIN READ WRITE; SET LOCAL synchronous_commit = local;\n\
             ALTER ROLE postgres PASSWORD '{}'; COMMIT;\n",
            verifier(&self.password)
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

    fn launch(&mut self) -> Result<()> {
        let mut command = program("postgres")?;
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
            // In its folder, so that a server that is killed leaves nothing behind elsewhere.
            "dynamic_shared_memory_type=mmap",
            // What a killed client had locked is free soon.
            "client_connection_check_interval=100ms",
        ];
        for setting in standard
            .into_iter()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.args(["-c", setting]);
        }
        command.envs(self.clock.iter().flat_map(SteppedClock::environment));
        // After a crash, the last of the old server's processes may still be on their way out, which the new one notices.
        let mut process = None;
        eventually("the server starts", READY, || {
            process = Process::spawn(&mut command).ok();
            let Some(started) = &process else { return true };
            if let Some(clock) = &self.clock {
                clock.is_used_by(started.id());
            }
            let said = started.wait_for_line(READY, |line| {
                // Clients that come too early are told so in the log as well.
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
        eventually("the server answers", READY, || self.sql("SELECT 1").is_ok())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Of the database that is there from the start.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Of any database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{}/{database}", self.account_at(self.address()))
    }

    /// As [`PostgresServer::url`], where something else listens that leads there.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{}/{DATABASE}", self.account_at(address))
    }

    /// As [`PostgresServer::url`], of another user. The password must be percent-encoded.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        let address = self.address();
        format!("postgres://{user}:{password}@{address}/{DATABASE}")
    }

    /// `postgres:PASSWORD@ADDRESS`, as in a URL.
    fn account_at(&self, address: SocketAddr) -> String {
        format!("postgres:{}@{address}", self.password.expose())
    }

    /// The password of `postgres`.
    pub(super) const fn password(&self) -> &Password {
        &self.password
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

    /// Runs statements in one transaction as `postgres`, and gives back what they print, columns parted by tabs.
    ///
    /// # Errors
    /// When one of them fails; the server's message is in the error.
    pub fn sql(&self, statements: &str) -> Result<String> {
        self.sql_in(DATABASE, statements)
    }

    /// As [`PostgresServer::sql`], in another database.
    ///
    /// # Errors
    /// As [`PostgresServer::sql`].
    pub fn sql_in(&self, database: &str, statements: &str) -> Result<String> {
        let output = self
            .client(database)?
            .args(["-c", statements])
            .output()
            .context("psql")?;
        if !output.status.success() {
            bail!("{statements}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// Runs statements in a transaction that stays open until the value is dropped: what they lock stays locked.
    ///
    /// # Errors
    /// When they were not carried out soon.
    pub fn hold_open(&self, statements: &str) -> Result<Process> {
        let process = Process::spawn(self.client(DATABASE)?.args([
            "-c",
            "BEGIN",
            "-c",
            statements,
            "-c",
            "SELECT 'held open'",
            "-c",
            "SELECT pg_sleep(600)",
        ]))?;
        process.wait_for_line(READY, |line| line.contains("held open"))?;
        Ok(process)
    }

    fn client(&self, database: &str) -> Result<Command> {
        let mut command = Command::new(binaries()?.join("psql"));
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
            .args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1"])
            .args(["-U", "postgres", "-d", database])
            .arg("-h")
            .arg(self.folder.path())
            .args(["-p", &self.port.to_string()]);
        Ok(command)
    }

    /// Stops all of its processes, as if the machine stood still.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        let mut paused = Paused::default();
        // First the one that starts others.
        for process in std::iter::once(postmaster).chain(children(postmaster)?) {
            paused.stop(process)?;
        }
        Ok(paused)
    }

    /// Stops one of its processes.
    ///
    /// # Errors
    /// When it has no such process.
    pub fn pause_one(&self, process: u32) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        ensure!(
            children(postmaster)?.contains(&process),
            "{process} is none of its processes"
        );
        let mut paused = Paused::default();
        paused.stop(process)?;
        Ok(paused)
    }

    /// Kills it at once, as a crash would. Its data stays.
    pub fn kill(&mut self) {
        // The others notice the death of the first by themselves.
        self.process = None;
    }

    /// Kills it and starts it again, on the same port and data.
    ///
    /// # Errors
    /// As [`PostgresServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // A killed server would leave a segment of shared memory behind, of which there are not many.
        if let Some(process) = &mut self.process
            && process.signal(Signal::QUIT).is_ok()
        {
            let _ = process.wait(Duration::from_secs(5));
        }
    }
}

impl Paused {
    fn stop(&mut self, process: u32) -> Result<()> {
        // One that ended meanwhile needs no stopping.
        if signal(process, Signal::STOP).is_ok() {
            self.watchdogs.push(Watchdog::over_process(process)?);
            self.processes.push(process);
        }
        Ok(())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for watchdog in self.watchdogs.drain(..) {
            watchdog.dismiss();
        }
        for process in &self.processes {
            let _ = signal(*process, Signal::CONT);
        }
    }
}

/// What the server keeps of a password, as RFC 5803 writes it. One round instead of the server's
/// 4,096: rounds slow down guessing, which a random password rules out by itself. They would cost
/// each connection of an unoptimised client a tenth of a second.
fn verifier(password: &Password) -> String {
    let salt = Uuid::new_v4().into_bytes();
    let salted = hmac(
        password.expose().as_bytes(),
        &[&salt[..], &[0, 0, 0, 1]].concat(),
    );
    let stored = Sha256::digest(hmac(&salted, b"Client Key"));
    let server = hmac(&salted, b"Server Key");
    let [salt, stored, server] =
        [&salt[..], &stored[..], &server[..]].map(|it| STANDARD.encode(it));
    format!("SCRAM-SHA-256$1:{salt}${stored}:{server}")
}

/// HMAC-SHA-256 (RFC 2104), of a key that is no longer than a block.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let padded = |with: u8| -> Vec<u8> {
        let key = key.iter().copied().chain(std::iter::repeat(0)).take(64);
        key.map(|byte| byte ^ with).collect()
    };
    let inner = Sha256::digest([padded(0x36), text.to_vec()].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).into()
}

/// The processes that another one has started.
fn children(parent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse() else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The name before it may hold anything, blanks and brackets included.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
            found.push(process);
        }
    }
    Ok(found)
}

/// The folder of the newest installed version.
fn binaries() -> Result<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = installed
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|folder| folder.join("postgres").exists())
        .max_by_key(|folder| {
            let version = folder.parent().and_then(Path::file_name);
            version.and_then(|it| it.to_string_lossy().parse::<u32>().ok())
        });
    newest
        .or_else(|| env::split_paths(&env::var_os("PATH")?).find(|it| it.join("postgres").exists()))
        .context("a PostgreSQL server (Debian: apt-get install postgresql)")
}

/// One of its programs. They refuse to run as root.
fn program(name: &str) -> Result<Command> {
    Ok(user()?.command(binaries()?.join(name)))
}

/// The user that the servers run as.
pub(super) fn user() -> Result<RunAs> {
    RunAs::user_of("postgres")
}

/// A folder of data to copy, made once per machine and version of the server.
fn template() -> Result<PathBuf> {
    let made = fs::metadata(binaries()?.join("postgres"))?.modified()?;
    let made = made.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let (templates, user) = (templates()?, user()?);
    let finished = templates.join(format!("Postgres-{made}-{}-2", user.number()));
    let lock = fs::File::create(templates.join("Postgres.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if finished.exists() {
        return Ok(finished);
    }
    // Where its user can get at it.
    let work = user.folder(&env::temp_dir())?;
    let data = work.path().join("data");
    finish(program("initdb")?.arg("-D").arg(&data).args([
        "--no-sync",
        "--username=postgres",
        "--auth=reject",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
    ]))?;
    user.write(
        &data.join("pg_hba.conf"),
        // Whoever can reach the socket could read the data as well.
        "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    )?;
    let statements = work.path().join("setup.sql");
    fs::write(&statements, format!("CREATE DATABASE {DATABASE}\n"))?;
    finish(
        program("postgres")?
            .args(["--single", "-D"])
            .arg(&data)
            .args(["-c", "fsync=off", "postgres"])
            .stdin(fs::File::open(&statements)?),
    )?;
    let copied = templates.join("Postgres-unfinished");
    let _ = fs::remove_dir_all(&copied);
    copy(&data, &copied)?;
    fs::rename(copied, &finished)?;
    Ok(finished)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{super::private::tests::keeps_others_out, *};

    /// What a client over TCP is told, who has no password or a wrong one.
    pub(in crate::servers) fn refused(port: u16, says: &str) {
        for user in ["postgres", "somebody"] {
            for password in [None, Some("postgres"), Some("wrong")] {
                let mut command = Command::new(binaries().unwrap().join("psql"));
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
    fn a_clock_of_its_own_goes_forward_and_stays_there() {
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
            refused(server.port, "password authentication failed");
            let process = server.process.as_ref().unwrap();
            let password = server.password.expose();
            keeps_others_out(process, server.folder.path(), password);
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
    fn lives_through_a_crash() {
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
    fn stands_still_and_goes_on() {
        let server = PostgresServer::start().unwrap();
        let paused = server.pause().unwrap();
        let postmaster = server.process.as_ref().unwrap().id();
        let state = || fs::read_to_string(format!("/proc/{postmaster}/stat")).unwrap();
        eventually("it stands still", READY, || state().contains(") T ")).unwrap();
        drop(paused);
        assert_eq!(server.sql("SELECT 1").unwrap(), "1");
    }
}
