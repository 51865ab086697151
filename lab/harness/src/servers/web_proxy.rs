//! HAProxy or nginx in front of other servers, with a configuration that a test brings.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Process, eventually, free_port, servers::isolation::RunAs};

/// Time-out for the start of a proxy, until it accepts connections.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// The products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebProxyKind {
    /// `haproxy`.
    HaProxy,
    /// `nginx`.
    Nginx,
}

/// A private proxy. Dropping the value kills the proxy.
#[derive(Debug)]
pub struct WebProxy {
    process: Process,
    _folder: TempDir,
    ports: Vec<u16>,
}

impl WebProxy {
    /// Starts a proxy with a configuration. `files` are copied into the folder of the proxy, under
    /// their own names. `configure` gets the folder and as many free ports of the loopback address
    /// as `ports` says, on which the proxy must listen.
    ///
    /// # Errors
    /// Returns an error if the product is not installed, or does not start with this configuration.
    pub fn start(
        kind: WebProxyKind,
        files: &[PathBuf],
        ports: usize,
        configure: impl Fn(&Path, &[u16]) -> Result<String>,
    ) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Another process may take a port before the proxy does.
            let ports: Vec<_> = (0..ports).map(|_| free_port()).collect::<Result<_>>()?;
            match Self::try_start(kind, files, ports, &configure) {
                Ok(proxy) => return Ok(proxy),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn try_start(
        kind: WebProxyKind,
        files: &[PathBuf],
        ports: Vec<u16>,
        configure: impl Fn(&Path, &[u16]) -> Result<String>,
    ) -> Result<Self> {
        let program = kind.program();
        ensure!(
            Path::new(program).exists(),
            "{program} (Debian: apt-get install {})",
            kind.packages()
        );
        let user = RunAs::for_package(kind.package_user())?;
        let folder = user.create_folder(&env::temp_dir())?;
        for file in files {
            let name = file.file_name().context("the name of a file")?;
            user.copy_private_file(file, &folder.path().join(name))?;
        }
        let config = folder.path().join("config");
        user.write_private_file(&config, configure(folder.path(), &ports)?)?;
        let mut command = user.command(program);
        match kind {
            // In the foreground.
            WebProxyKind::HaProxy => command.args(["-db", "-f"]).arg(&config),
            WebProxyKind::Nginx => command
                .args(["-g", "daemon off;", "-e", "stderr", "-p"])
                .arg(folder.path())
                .arg("-c")
                .arg(&config),
        };
        let mut proxy = Self {
            process: Process::spawn(&mut command)?,
            _folder: folder,
            ports,
        };
        proxy.wait_until_ready()?;
        Ok(proxy)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let (process, ports) = (&mut self.process, &self.ports);
        let mut ended = false;
        let listening = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let ready = eventually("the proxy listens", READY_LIMIT, || {
            ended = !process.is_running().unwrap_or(true);
            ended || ports.iter().all(listening)
        });
        if ended {
            let _ = self.process.wait(READY_LIMIT);
            bail!("the proxy ended: {}", self.process.output());
        }
        ready.with_context(|| self.process.output())
    }

    /// Returns the address of the port with this number in the order of the configuration.
    #[must_use]
    pub fn address(&self, number: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[number]).into()
    }

    /// Returns all output until now.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output()
    }
}

impl WebProxyKind {
    const fn program(self) -> &'static str {
        match self {
            Self::HaProxy => "/usr/sbin/haproxy",
            Self::Nginx => "/usr/sbin/nginx",
        }
    }

    const fn packages(self) -> &'static str {
        match self {
            Self::HaProxy => "haproxy",
            Self::Nginx => "nginx-light libnginx-mod-stream",
        }
    }

    const fn package_user(self) -> &'static str {
        match self {
            Self::HaProxy => "haproxy",
            Self::Nginx => "www-data",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::isolation::tests::assert_isolated, *};

    #[test]
    fn no_other_user_of_this_host_can_read_a_proxys_key() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "a secret").unwrap();
        let proxy = WebProxy::start(
            WebProxyKind::HaProxy,
            &[key.path().to_owned()],
            1,
            |_, ports| {
                Ok(format!(
                    "defaults\ntimeout connect 1s\ntimeout client 1s\ntimeout server 1s\n\
                     listen a\nbind 127.0.0.1:{}\n",
                    ports[0]
                ))
            },
        )
        .unwrap();
        assert_isolated(&proxy.process, proxy._folder.path(), "a secret");
    }

    #[test]
    fn a_proxy_that_refuses_its_configuration_is_an_error_with_its_words() {
        let error = WebProxy::start(
            WebProxyKind::HaProxy,
            &[],
            1,
            |_, _| Ok("nonsense\n".into()),
        );
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("nonsense"), "{error}");
    }
}
