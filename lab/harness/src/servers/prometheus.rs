//! Prometheus, which scrapes processes of a test and evaluates alert rules.

use std::{
    env,
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Process, eventually, free_port, servers::isolation::RunAs};

/// The program of the Debian package.
const PROGRAM: &str = "/usr/bin/prometheus";
/// Time-out for the start, and for one answer.
const SOON: Duration = Duration::from_secs(30);

/// A process that is scraped.
#[derive(Clone, Debug)]
pub struct Scraped {
    /// The label `job` of its metrics.
    pub job: &'static str,
    /// The label `instance` of its metrics.
    pub instance: &'static str,
    /// The address that serves `/metrics`.
    pub address: SocketAddr,
    /// The bearer token that a scrape shows, if it needs one.
    pub token: Option<&'static str>,
}

/// A private Prometheus that scrapes and evaluates its rules each second. Dropping the value kills
/// it.
///
/// Unlike the other servers it asks for no password: it only tells what the test's processes count.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    _folder: TempDir,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts a server with a file of rules.
    ///
    /// # Errors
    /// Returns an error if Prometheus is not installed, or does not start with these rules.
    pub fn start(scraped: &[Scraped], rules: &str) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Another process may take the port before the server does.
            match Self::try_start(scraped, rules, free_port()?) {
                Ok(server) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn try_start(scraped: &[Scraped], rules: &str, port: u16) -> Result<Self> {
        ensure!(
            PathBuf::from(PROGRAM).exists(),
            "{PROGRAM} (Debian: apt-get install prometheus)"
        );
        let user = RunAs::for_package("prometheus")?;
        let folder = user.create_folder(&env::temp_dir())?;
        let file = |name: &str, content: &str| -> Result<PathBuf> {
            let path = folder.path().join(name);
            user.write_private_file(&path, content)?;
            Ok(path)
        };
        let mut config = "global: {scrape_interval: 1s, scrape_timeout: 1s, \
                          evaluation_interval: 1s}\nrule_files: [rules]\nscrape_configs:\n"
            .to_owned();
        for (number, it) in scraped.iter().enumerate() {
            // Each process has a scrape of its own, because its token may be another one.
            writeln!(config, "  - job_name: '{number}'")?;
            writeln!(
                config,
                "    static_configs: [{{targets: ['{}'], labels: {{job: {}, instance: {}}}}}]",
                it.address, it.job, it.instance
            )?;
            if let Some(token) = it.token {
                let name = format!("token{number}");
                file(&name, token)?;
                writeln!(config, "    authorization: {{credentials_file: {name}}}")?;
            }
        }
        file("rules", rules)?;
        let config = file("config", &config)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = user.command(PROGRAM);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"));
        let mut server = Self {
            process: Process::spawn(&mut command)?,
            _folder: folder,
            address,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let (mut ended, address) = (false, self.address);
        let process = &mut self.process;
        let ready = eventually("prometheus is ready", SOON, || {
            ended = !process.is_running().unwrap_or(true);
            ended || ask(address, "/-/ready").is_ok()
        });
        if ended {
            let _ = self.process.wait(SOON);
            bail!("prometheus ended: {}", self.process.output());
        }
        ready.with_context(|| self.process.output())
    }

    /// Asks a path of the HTTP API below `/api/v1/`, and returns the JSON of the answer.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, or answers with an error.
    pub fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<String> {
        let mut path = format!("/api/v1/{path}?");
        for (name, value) in parameters {
            write!(path, "{name}=")?;
            for byte in value.bytes() {
                write!(path, "%{byte:02x}")?;
            }
            path.push('&');
        }
        ask(self.address, &path)
    }
}

/// The body of the answer to a `GET`. Without a later version of HTTP the body has no parts.
fn ask(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, SOON)?;
    stream.set_read_timeout(Some(SOON))?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    ensure!(head.contains(" 200 "), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{super::isolation::tests::assert_isolated, *};

    const RULES: &str = "groups: [{name: all, rules: [{alert: Down, expr: 'up == 0'}]}]";

    #[test]
    fn a_target_that_is_down_fires_an_alert_and_no_other_user_can_read_its_token() {
        let scraped = Scraped {
            job: "app",
            instance: "first",
            address: (Ipv4Addr::LOCALHOST, free_port().unwrap()).into(),
            token: Some("a secret"),
        };
        let server = Prometheus::start(&[scraped], RULES).unwrap();
        assert_isolated(&server.process, server._folder.path(), "a secret");
        let firing = "ALERTS{alertname='Down',job='app',instance='first',alertstate='firing'}";
        eventually("the alert", SOON, || {
            let answer = server.api("query", &[("query", firing)]).unwrap();
            answer.contains("\"Down\"")
        })
        .unwrap();
    }

    #[test]
    fn a_server_that_refuses_its_rules_is_an_error_with_its_words() {
        let error = format!("{:#}", Prometheus::start(&[], "nonsense").unwrap_err());
        assert!(error.contains("nonsense"), "{error}");
    }
}
