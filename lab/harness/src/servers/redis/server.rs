//! One server: the configuration, the start, the crash and the restart.
//!
//! The products and versions, and the search for their programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    Process, Signal, eventually, free_port,
    servers::{
        isolation::{self, Password, RunAs},
        redis::access::{PASSWORD, password_setting},
        stepped_clock::SteppedClock,
        template::cache_folder,
    },
};

/// Time-out for the start of a server, until it serves clients.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);

/// A private `redis-server` or `valkey-server`. Dropping the value kills the server and removes its
/// data.
///
/// The default user has a random password, which [`RedisServer::url`] contains. The setting
/// `requirepass ..` chooses another password, and `requirepass ""` removes the password.
#[derive(Debug)]
pub struct RedisServer {
    pub(super) process: Option<Process>,
    pub(super) user: RunAs,
    pub(super) folder: TempDir,
    pub(super) port: u16,
    pub(super) flavour: Flavour,
    /// The arguments after the configuration file.
    pub(super) arguments: Vec<String>,
    /// The lines of the configuration file.
    pub(super) config: Vec<String>,
    pub(super) password: Option<Password>,
    clock: Option<SteppedClock>,
}

/// Starts a server with several attempts, because another process may take the free port before the
/// server does.
pub(super) fn start_with_retries(
    mut start: impl FnMut(u16) -> Result<RedisServer>,
) -> Result<RedisServer> {
    let mut last = None;
    for _ in 0..5 {
        match start(free_port()?) {
            Ok(server) => return Ok(server),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("five tries")?)
}

impl RedisServer {
    /// Starts a server that keeps its data in an append-only file.
    ///
    /// # Errors
    /// Returns an error if `redis-server` is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts a server with further settings. Each setting has the form `name value`.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with(settings: &[&str]) -> Result<Self> {
        Self::start_as(Flavour::Installed, &[], settings)
    }

    /// Starts a server with further settings and its own clock, see
    /// [`RedisServer::put_clock_forward`] and [`RedisServer::put_clock_back`].
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`], and if Debian's package
    /// `libfaketime` is not installed.
    pub fn with_clock(settings: &[&str]) -> Result<Self> {
        start_with_retries(|port| {
            let mut server = Self::prepare(Flavour::Installed, port, settings)?;
            server.clock = Some(SteppedClock::new(server.user, server.folder.path())?);
            server.launch()?;
            server.wait_until_ready()?;
            Ok(server)
        })
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
    /// Returns an error for the same reasons as [`RedisServer::put_clock_forward`].
    pub fn put_clock_back(&self, by: Duration) -> Result<()> {
        self.step_clock(-by.as_secs_f64())
    }

    fn step_clock(&self, by: f64) -> Result<()> {
        let clock = self.clock.as_ref().context("a clock of its own")?;
        clock.step(by, || {
            let time = self.command(&["TIME"])?;
            let (seconds, micros) = time.split_once('\n').context("seconds and microseconds")?;
            Ok(seconds.parse::<f64>()? + micros.trim().parse::<f64>()? / 1e6)
        })
    }

    /// Starts a server of another product or version, with further settings.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`]. The message names the way
    /// to get the program.
    pub fn start_flavour(flavour: Flavour, settings: &[&str]) -> Result<Self> {
        // A missing program is reported before the first attempt, because further attempts would
        // fail as well.
        flavour.program()?;
        Self::start_as(flavour, &[], settings)
    }

    /// Starts a server that accepts TLS only, and requires a client certificate of the same
    /// authority. `pki` is the folder of a [`Pki`](crate::Pki).
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with_tls(pki: &Path, settings: &[&str]) -> Result<Self> {
        start_with_retries(|port| {
            let mut server = Self::prepare(Flavour::Installed, port, settings)?;
            server.config.retain(|line| !line.starts_with("port "));
            server.config.push("port 0".into());
            server.offer_tls(pki, port)?;
            server.launch()?;
            server.wait_for_log("Ready to accept connections")?;
            Ok(server)
        })
    }

    /// Starts a server that has a second port, which accepts TLS only and requires a client
    /// certificate of the same authority. `pki` is the folder of a [`Pki`](crate::Pki).
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with_tls_port(pki: &Path) -> Result<Self> {
        Self::start_with_tls(Flavour::Installed, &[], &[], Some(pki))
    }

    /// Replaces the certificates of a server with TLS by those of another [`Pki`](crate::Pki). New
    /// connections use them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if the server refuses the files.
    pub fn replace_certificates(&self, pki: &Path) -> Result<()> {
        let mut change = vec!["CONFIG", "SET"];
        let settings: Vec<_> = self
            .config
            .iter()
            .filter_map(|line| {
                let (option, path) = line.split_once(' ')?;
                (option.starts_with("tls-") && option.ends_with("-file")).then_some((option, path))
            })
            .collect();
        for (option, path) in settings {
            let path = Path::new(path);
            let name = path.file_name().context("the file of a setting")?;
            fs::remove_file(path)?;
            self.user.copy_private_file(&pki.join(name), path)?;
            change.extend([option, path.to_str().context("a path of the harness")?]);
        }
        let answer = self.command(&change)?;
        ensure!(answer == "OK", "{answer}");
        Ok(())
    }

    /// Returns the id of the process; `None` while the server is down.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Starts a replica of this server, with the same password.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn replica(&self) -> Result<Self> {
        let mut settings = vec![format!("replicaof 127.0.0.1 {}", self.port)];
        settings.extend(self.password.as_ref().map(password_setting));
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        Self::with(&settings)
    }

    pub(super) fn start_as(
        flavour: Flavour,
        arguments: &[&str],
        settings: &[&str],
    ) -> Result<Self> {
        Self::start_with_tls(flavour, arguments, settings, None)
    }

    /// Starts a server with these arguments and settings. With certificates (`pki`) the server has
    /// a second port with TLS, for clients and for other servers.
    pub(super) fn start_with_tls(
        flavour: Flavour,
        arguments: &[&str],
        settings: &[&str],
        pki: Option<&Path>,
    ) -> Result<Self> {
        start_with_retries(|port| {
            let mut server = Self::prepare(flavour, port, settings)?;
            if let Some(pki) = pki {
                server.offer_tls(pki, free_port()?)?;
            }
            server.arguments = arguments.iter().map(|it| (*it).to_owned()).collect();
            server.launch()?;
            server.wait_until_ready()?;
            Ok(server)
        })
    }

    /// Creates the folder and the configuration of a server, without starting the server.
    pub(super) fn prepare(flavour: Flavour, port: u16, settings: &[&str]) -> Result<Self> {
        let user = RunAs::for_package("redis")?;
        let folder = user.create_folder(&env::temp_dir())?;
        let chosen = settings.iter().find_map(|it| it.strip_prefix(PASSWORD));
        let password = match chosen {
            Some("\"\"") => None,
            Some(chosen) => Some(Password::chosen(chosen)),
            None => Some(Password::random()),
        };
        let mut config = vec![
            format!("port {port}"),
            "bind 127.0.0.1".into(),
            format!("dir {}", folder.path().display()),
            "save \"\"".into(),
            "daemonize no".into(),
            "logfile \"\"".into(),
        ];
        if !settings
            .iter()
            .any(|setting| setting.starts_with("appendonly "))
        {
            config.push("appendonly yes".into());
        }
        config.extend(settings.iter().map(|setting| (*setting).to_owned()));
        if let Some(password) = &password {
            if chosen.is_none() {
                config.push(password_setting(password));
            }
            // A replica logs in at its primary with this password.
            config.push(format!("masterauth {}", password.expose()));
        }
        Ok(Self {
            process: None,
            user,
            folder,
            port,
            flavour,
            arguments: Vec::new(),
            config,
            password,
            clock: None,
        })
    }

    /// Configures TLS: the server listens on `port`, and has a client certificate for its own
    /// connections to other servers. The server cannot enter the folder `pki`, so the files are
    /// copied.
    pub(super) fn offer_tls(&mut self, pki: &Path, port: u16) -> Result<()> {
        self.config.push(format!("tls-port {port}"));
        for (option, name) in [
            ("tls-ca-cert-file", "ca.crt"),
            ("tls-cert-file", "server.crt"),
            ("tls-key-file", "server.key"),
            ("tls-client-cert-file", "client.crt"),
            ("tls-client-key-file", "client.key"),
        ] {
            let copied = self.folder.path().join(name);
            self.user.copy_private_file(&pki.join(name), &copied)?;
            self.config.push(format!("{option} {}", copied.display()));
        }
        Ok(())
    }

    /// Starts the process, and does not wait until the server serves clients. An existing
    /// configuration file stays unchanged, because the server may have rewritten the file.
    pub(super) fn launch(&mut self) -> Result<()> {
        let file = self.config_file();
        if !file.exists() {
            self.user
                .write_private_file(&file, self.config.join("\n") + "\n")?;
        }
        let file = file.to_string_lossy();
        let arguments = self.arguments.iter().map(String::as_str);
        let arguments: Vec<_> = [&*file].into_iter().chain(arguments).collect();
        let program = self.flavour.program()?;
        if program.is_absolute() {
            self.user
                .check_access(&program, isolation::PROGRAM_REMEDY)?;
        }
        let by = |program| {
            let mut command = self.user.command(program);
            command.envs(self.clock.iter().flat_map(SteppedClock::environment));
            command
        };
        let process = Process::serve_with_command(by, program.as_os_str(), &arguments)
            .context("redis-server (Debian: apt-get install redis-server)")?;
        if let Some(clock) = &self.clock {
            clock.note_process(process.id());
        }
        self.process = Some(process);
        Ok(())
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    /// Waits for a line of the log that contains `text`.
    pub(super) fn wait_for_log(&self, text: &str) -> Result<()> {
        let process = self.process.as_ref().context("it runs")?;
        process.wait_for_line(READY_LIMIT, |line| line.contains(text))?;
        Ok(())
    }

    /// Waits until the server answers commands.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        let mut died = false;
        let answered = eventually("redis-server answers", READY_LIMIT, || {
            died = !self
                .process
                .as_mut()
                .is_some_and(|process| process.is_running().unwrap_or(false));
            // `NOAUTH` is an answer too: the server serves clients, and a test has changed the
            // password. A server that still loads its data answers with another error.
            died || self
                .command(&["PING"])
                .is_ok_and(|answer| answer.contains("PONG") || answer.contains("NOAUTH"))
        });
        let output = || {
            self.process
                .as_ref()
                .map(Process::output)
                .unwrap_or_default()
        };
        ensure!(!died, "redis-server ended: {}", output());
        answered.with_context(output)
    }

    /// Sends the server a signal.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("it runs")?.signal(which)
    }

    /// Tells whether the server was started and not killed since then.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Kills the server with SIGKILL. Its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it again on the same port and data.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()?;
        self.wait_until_ready()
    }

    /// Kills the server if it runs, and starts it again on the same port without its data.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill();
        let appended = self.folder.path().join("appendonlydir");
        if appended.exists() {
            fs::remove_dir_all(appended)?;
        }
        self.restart()
    }
}

/// A product and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The `redis-server` on the path, from the distribution.
    Installed,
    /// Redis 8.4 or later: the program `$DISTLOCK_REDIS`, or the program that
    /// `scripts/get-server redis` fetched.
    Redis8,
    /// Valkey 9: the program `$DISTLOCK_VALKEY`, or the program that `scripts/get-server valkey`
    /// fetched.
    Valkey9,
}

impl Flavour {
    /// Returns the path of the server's program. An error names the way to get the program.
    pub(super) fn program(self) -> Result<PathBuf> {
        let (variable, fetched, help) = match self {
            Self::Installed => return Ok("redis-server".into()),
            Self::Redis8 => (
                "DISTLOCK_REDIS",
                "redis-8.4/redis-server",
                "Redis 8.4: run scripts/get-server redis, or set DISTLOCK_REDIS to a redis-server \
                 of version 8.4 or later",
            ),
            Self::Valkey9 => (
                "DISTLOCK_VALKEY",
                "valkey/valkey-server",
                "Valkey 9: run scripts/get-server valkey, or set DISTLOCK_VALKEY to a \
                 valkey-server of version 9 or later",
            ),
        };
        let chosen = env::var_os(variable).map(PathBuf::from);
        let program = chosen.unwrap_or_else(|| cache_folder().join(fetched));
        ensure!(program.exists(), "{help}");
        Ok(program)
    }
}
