//! One server: configures, starts, crashes and restarts it.

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
        redis::{
            credentials::{PASSWORD, password_setting},
            flavour::Flavour,
        },
    },
};

/// How long a server may take until it serves.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);

/// A private `redis-server` or `valkey-server`. When it is dropped, it is killed and its data is
/// removed.
///
/// Its default user has a random password, which [`RedisServer::url`] contains. The setting
/// `requirepass ..` chooses another password, and `requirepass ""` no password.
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
}

/// Starts a server, with several tries, because another process may take the free port before the
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
    /// When `redis-server` is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::with(&[])
    }

    /// Starts a server with further settings, one `name value` each.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn with(settings: &[&str]) -> Result<Self> {
        Self::start_as(Flavour::Installed, &[], settings)
    }

    /// Starts a server of another product or version, with further settings.
    ///
    /// # Errors
    /// As [`RedisServer::start`]. The message says how to get the program.
    pub fn start_flavour(flavour: Flavour, settings: &[&str]) -> Result<Self> {
        // This error comes before the tries to start, because no further try would help.
        flavour.program()?;
        Self::start_as(flavour, &[], settings)
    }

    /// Starts a server that accepts TLS only, and requires a client certificate of the same
    /// authority. `pki` is the folder of a [`Pki`](crate::Pki).
    ///
    /// # Errors
    /// As [`RedisServer::start`].
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

    /// Starts a replica of this server, with the same password.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
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

    /// Makes the folder and the configuration of a server, without starting it.
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
            // The password with which the server logs in at its primary, if it is a replica.
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
        })
    }

    /// Configures TLS: the server listens on `port`, and has a client certificate for its own
    /// connections to other servers. The files are copied, because the server cannot enter the
    /// folder `pki`.
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

    /// Starts the process, and does not wait until it serves. An existing configuration file stays
    /// as it is, because the server may have rewritten it.
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
        let by = |program| self.user.command(program);
        let process = Process::serve_with_command(by, program.as_os_str(), &arguments)
            .context("redis-server (Debian: apt-get install redis-server)")?;
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
            // `NOAUTH` is an answer too: the server serves, and a test has changed the password. A
            // server that still loads its data answers with another error.
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
    /// When it does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("it runs")?.signal(which)
    }

    /// Whether the server was started and not killed since.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Kills the server at once, as a crash would. Its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Kills the server if it runs, and starts it again on the same port and data.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()?;
        self.wait_until_ready()
    }

    /// As [`RedisServer::restart`], without the data.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn restart_empty(&mut self) -> Result<()> {
        self.kill();
        let appended = self.folder.path().join("appendonlydir");
        if appended.exists() {
            fs::remove_dir_all(appended)?;
        }
        self.restart()
    }
}
