//! Redis and its kin: one server here, several that belong together in `groups`.

mod groups;

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::{
    private::{self, Password, RunAs},
    resp::Resp,
    template::cache,
};
use crate::{Process, Signal, eventually, free_port};

pub use groups::{RedisCluster, RedisSentinels};

const READY: Duration = Duration::from_secs(20);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The `redis-server` on the path: the one of the distribution.
    Installed,
    /// Redis 8: `$DISTLOCK_REDIS`, or what `scripts/get-server redis` fetched.
    Redis8,
    /// Valkey 9: `$DISTLOCK_VALKEY`, or what `scripts/get-server valkey` fetched.
    Valkey9,
}

impl Flavour {
    fn program(self) -> Result<PathBuf> {
        let (variable, fetched, help) = match self {
            Self::Installed => return Ok("redis-server".into()),
            Self::Redis8 => (
                "DISTLOCK_REDIS",
                "redis/redis-server",
                "Redis 8: run scripts/get-server redis, or set DISTLOCK_REDIS to a redis-server of version 8 or later",
            ),
            Self::Valkey9 => (
                "DISTLOCK_VALKEY",
                "valkey/valkey-server",
                "Valkey 9: run scripts/get-server valkey, or set DISTLOCK_VALKEY to a valkey-server of version 9 or later",
            ),
        };
        let chosen = env::var_os(variable).map(PathBuf::from);
        let program = chosen.unwrap_or_else(|| cache().join(fetched));
        ensure!(program.exists(), "{help}");
        Ok(program)
    }
}

/// A private `redis-server`, or `valkey-server`. It is killed, and its data removed, when it is dropped.
///
/// Its default user has a random password, which [`RedisServer::url`] holds. The setting
/// `requirepass ..` chooses another one, and `requirepass ""` none.
#[derive(Debug)]
pub struct RedisServer {
    process: Option<Process>,
    user: RunAs,
    folder: TempDir,
    port: u16,
    flavour: Flavour,
    /// On its command line, behind the configuration file.
    arguments: Vec<String>,
    config: Vec<String>,
    password: Option<Password>,
}

/// How a server is told its password, and how a test chooses one.
const PASSWORD: &str = "requirepass ";

/// What clients ask a server, as it happens.
#[derive(Debug)]
pub struct RedisMonitor(Arc<Mutex<Vec<String>>>);

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

    /// Starts a server of another kind, with further settings.
    ///
    /// # Errors
    /// As [`RedisServer::start`], and the message says how to get it.
    pub fn of(flavour: Flavour, settings: &[&str]) -> Result<Self> {
        // Known before the port is looked for, so that it is told once.
        flavour.program()?;
        Self::start_as(flavour, &[], settings)
    }

    /// Starts a server that speaks TLS only, and wants a client certificate of the same authority. `pki` is the folder of
    /// a [`Pki`](crate::Pki).
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn with_tls(pki: &Path, settings: &[&str]) -> Result<Self> {
        retried(|port| {
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

    fn start_as(flavour: Flavour, arguments: &[&str], settings: &[&str]) -> Result<Self> {
        Self::start_with_tls(flavour, arguments, settings, None)
    }

    /// As told; with certificates it has a second port, for clients and for the others.
    fn start_with_tls(
        flavour: Flavour,
        arguments: &[&str],
        settings: &[&str],
        pki: Option<&Path>,
    ) -> Result<Self> {
        retried(|port| {
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

    fn prepare(flavour: Flavour, port: u16, settings: &[&str]) -> Result<Self> {
        let user = RunAs::user_of("redis")?;
        let folder = user.folder(&env::temp_dir())?;
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
            // What it shows to its primary.
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

    /// Has it listen to TLS on `port`, and have a certificate wherever it is the client itself. It
    /// reads copies, because it cannot enter the folder of `pki`.
    fn offer_tls(&mut self, pki: &Path, port: u16) -> Result<()> {
        self.config.push(format!("tls-port {port}"));
        for (option, name) in [
            ("tls-ca-cert-file", "ca.crt"),
            ("tls-cert-file", "server.crt"),
            ("tls-key-file", "server.key"),
            ("tls-client-cert-file", "client.crt"),
            ("tls-client-key-file", "client.key"),
        ] {
            let copied = self.folder.path().join(name);
            self.user.copy(&pki.join(name), &copied)?;
            self.config.push(format!("{option} {}", copied.display()));
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let file = self.config_file();
        if !file.exists() {
            self.user.write(&file, self.config.join("\n") + "\n")?;
        }
        let file = file.to_string_lossy();
        let arguments = self.arguments.iter().map(String::as_str);
        let arguments: Vec<_> = [&*file].into_iter().chain(arguments).collect();
        let program = self.flavour.program()?;
        if program.is_absolute() {
            self.user.reaches(&program, private::PROGRAM)?;
        }
        let by = |program| self.user.command(program);
        let process = Process::serve_by(by, program.as_os_str(), &arguments)
            .context("redis-server (Debian: apt-get install redis-server)")?;
        self.process = Some(process);
        Ok(())
    }

    fn config_file(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    fn wait_for_log(&self, text: &str) -> Result<()> {
        let process = self.process.as_ref().context("it runs")?;
        process.wait_for_line(READY, |line| line.contains(text))?;
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let mut died = false;
        let answered = eventually("redis-server answers", READY, || {
            died = !self
                .process
                .as_mut()
                .is_some_and(|process| process.is_running().unwrap_or(false));
            // One that wants a password answers as well, and one that is loading does not count.
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

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where clients connect that speak TLS, if they may.
    fn clients_port(&self) -> u16 {
        let mut settings = self.config.iter();
        let port = settings.find_map(|line| line.strip_prefix("tls-port ")?.parse().ok());
        port.unwrap_or(self.port)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its folder: the append-only file is in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The password of its default user; empty when it has none.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.as_ref().map_or("", Password::expose)
    }

    /// `redis://:PASSWORD@127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// As [`RedisServer::url`], where something else listens that leads there.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("redis://{}{address}", credentials(self.password.as_ref()))
    }

    /// Runs a command on it, and gives back its reply as text: the items of an array on lines of their own, an error with
    /// its code.
    ///
    /// # Errors
    /// When the server cannot be asked, or stays silent for 5 s.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        self.connect()?.ask(arguments)
    }

    fn connect(&self) -> Result<Resp> {
        let mut resp = Resp::connect(self.address())?;
        if let Some(password) = &self.password {
            // A test may have changed it: the next answer says so.
            resp.ask(&["AUTH", password.expose()])?;
        }
        Ok(resp)
    }

    /// As [`RedisServer::command`], by a user with a password.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn command_as(&self, user: &str, password: &str, arguments: &[&str]) -> Result<String> {
        let mut resp = Resp::connect(self.address())?;
        resp.ask(&["AUTH", user, password])?;
        resp.ask(arguments)
    }

    /// Starts to watch what clients send.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn monitor(&self) -> Result<RedisMonitor> {
        let mut resp = self.connect()?;
        resp.ask(&["MONITOR"])?;
        let lines = Arc::<Mutex<Vec<String>>>::default();
        resp.listen(Arc::clone(&lines))?;
        Ok(RedisMonitor(lines))
    }

    /// One line of `INFO`.
    ///
    /// # Errors
    /// When the server cannot be asked or does not say it.
    pub fn info(&self, field: &str) -> Result<String> {
        let info = self.command(&["INFO"])?;
        let value = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {field}"))?
            .to_owned())
    }

    /// How often it has carried out a command since it started, or since `CONFIG RESETSTAT`: what scripts do counts.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.command(&["INFO", "commandstats"])?;
        // `cmdstat_get:calls=3,usec=20,..`
        let prefix = format!("cmdstat_{command}:calls=");
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(&prefix)) else {
            return Ok(0);
        };
        let digits = line.split(',').next().unwrap_or_default();
        Ok(digits.parse()?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        self.process.as_ref().context("it runs")?.signal(which)
    }

    /// Whether it was started and not killed since.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.process.is_some()
    }

    /// Kills it at once, as a crash would. Its data stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again after [`RedisServer::kill`], on the same port and data.
    ///
    /// # Errors
    /// As [`RedisServer::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.launch()?;
        self.wait_until_ready()
    }

    /// As [`RedisServer::restart`], with everything forgotten.
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

impl RedisMonitor {
    /// Every command that clients have sent since the monitor was started, one line each. What scripts do inside the server
    /// does not count.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // `1700000000.000000 [0 127.0.0.1:40000] "GET" "key"`, with `lua` in the place of the address for scripts.
        let sent = |line: &&String| line.contains(" [") && !line.contains(" lua] ");
        lines.iter().filter(sent).cloned().collect()
    }
}

/// What stands before the address in a URL.
fn credentials(password: Option<&Password>) -> String {
    password.map_or_else(String::new, |it| format!(":{}@", it.expose()))
}

fn password_setting(password: &Password) -> String {
    format!("{PASSWORD}{}", password.expose())
}

/// Somebody else may take a free port before the server does.
fn retried(mut start: impl FnMut(u16) -> Result<RedisServer>) -> Result<RedisServer> {
    let mut last = None;
    for _ in 0..5 {
        match start(free_port()?) {
            Ok(server) => return Ok(server),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("five tries")?)
}

#[cfg(test)]
mod tests {
    use super::{super::private::tests::keeps_others_out, *};

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

    /// What a stranger hears, first without a password, then with a wrong one.
    fn shut(server: &RedisServer) {
        let mut stranger = Resp::connect(server.address()).unwrap();
        for command in [&["PING"][..], &["INFO"], &["SHUTDOWN", "NOSAVE"]] {
            let said = stranger.ask(command).unwrap();
            assert!(said.starts_with("NOAUTH "), "{said}");
        }
        let said = stranger.ask(&["AUTH", "wrong"]).unwrap();
        assert!(said.starts_with("WRONGPASS "), "{said}");
        assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
        let process = server.process.as_ref().unwrap();
        keeps_others_out(process, server.folder(), server.password());
    }

    #[test]
    fn no_other_user_of_this_host_can_use_a_server() {
        for flavour in [Flavour::Installed, Flavour::Redis8, Flavour::Valkey9] {
            shut(&RedisServer::of(flavour, &[]).unwrap());
        }
        let server = RedisServer::start().unwrap();
        let replica = server.replica().unwrap();
        shut(&replica);
        eventually("it replicates", READY, || {
            let link = replica.info("master_link_status");
            link.is_ok_and(|status| status == "up")
        })
        .unwrap();
    }

    #[test]
    fn no_other_user_of_this_host_can_use_servers_that_belong_together() {
        let sentinels = RedisSentinels::start().unwrap();
        let group = [&sentinels.primary, &sentinels.replica];
        group.into_iter().chain(&sentinels.sentinels).for_each(shut);
        // The sentinels' users at the other servers have no known password either.
        let said = sentinels.primary.command_as("sentinel-0", "pw", &["PING"]);
        assert!(said.unwrap().starts_with("NOAUTH "));
        let cluster = RedisCluster::start(3, 0).unwrap();
        cluster.nodes.iter().for_each(shut);
    }

    #[test]
    fn a_test_may_choose_the_password_or_none() {
        let server = RedisServer::with(&["requirepass canary"]).unwrap();
        assert_eq!(server.password(), "canary");
        assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
        let open = RedisServer::with(&["requirepass \"\""]).unwrap();
        assert_eq!(open.url(), format!("redis://{}", open.address()));
        let mut anybody = Resp::connect(open.address()).unwrap();
        assert_eq!(anybody.ask(&["PING"]).unwrap(), "PONG");
    }
}
