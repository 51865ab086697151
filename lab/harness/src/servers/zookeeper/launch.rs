//! Writes the configuration files of one server, and starts its JVM.
//!
//! The installed ZooKeeper: its jars and the JVM.
//!
//! The setup of an ensemble, and its defaults.

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};

use crate::{
    Process, free_port,
    servers::zookeeper::{
        ensemble::{Member, ZooKeeper},
        session,
    },
};

impl ZooKeeper {
    /// Writes the configuration file of a server and the file with its number.
    pub(super) fn write_configuration(&self, at: usize) -> Result<()> {
        let data = self.data_folder(at);
        std::fs::create_dir_all(&data)?;
        self.user.make_owner(&data)?;
        self.user
            .write_private_file(&data.join("myid"), (at + 1).to_string())?;
        let mut lines = vec![
            format!("tickTime={}", self.setup.tick.as_millis()),
            "initLimit=20".into(),
            "syncLimit=8".into(),
            format!("dataDir={}", data.display()),
            format!("clientPort={}", self.members[at].ports.client),
            "clientPortAddress=127.0.0.1".into(),
            "admin.enableServer=false".into(),
            // The four-letter words that the harness and most tests need. These words change
            // nothing in a server.
            "4lw.commands.whitelist=srvr,mntr".into(),
            format!(
                "DigestAuthenticationProvider.superDigest={}",
                session::super_digest(self.super_password.expose())
            ),
            "maxClientCnxns=0".into(),
        ];
        lines.extend(self.setup.settings.iter().cloned());
        if self.members.len() > 1 {
            for (other, Member { ports, .. }) in self.members.iter().enumerate() {
                let reached = |detours: &[(usize, usize, u16)], port: u16| {
                    let mut detours = detours.iter();
                    let detour = detours.find(|(from, to, _)| (*from, *to) == (at, other));
                    detour.map_or(port, |(_, _, port)| *port)
                };
                let quorum = reached(&self.setup.detours, ports.quorum);
                let election = reached(&self.setup.election_detours, ports.election);
                lines.push(format!(
                    "server.{}=127.0.0.1:{quorum}:{election}",
                    other + 1
                ));
            }
        }
        self.user
            .write_private_file(&self.configuration_file(at), lines.join("\n"))
    }

    /// Starts the JVM of a server, and does not wait until the server serves clients.
    pub(super) fn launch(&mut self, at: usize) -> Result<()> {
        let mut command = self.user.command("java");
        command
            .current_dir(self.folder.path())
            .args(["-Xmx160m", "-XX:+UseSerialGC"])
            .args((!self.setup.optimised).then_some("-XX:TieredStopAtLevel=1"))
            .args((!self.setup.flushed).then_some("-Dzookeeper.forceSync=no"))
            // A transaction log grows in steps of this size, in KiB.
            .arg("-Dzookeeper.preAllocSize=1024")
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(&self.setup.java)
            .args(["-cp", &[JARS, TLS_JARS].concat().join(":")])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.configuration_file(at));
        self.members[at].process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    pub(super) fn data_folder(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{at}"))
    }

    pub(super) fn configuration_file(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{at}.cfg"))
    }
}

/// The jars of the Debian packages.
pub(super) const JARS: [&str; 2] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];

/// Jars that ZooKeeper needs for TLS and that its own jar does not name. A JVM ignores absent jars.
pub(super) const TLS_JARS: [&str; 2] = [
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
];

/// Checks that the jars and a JVM are installed. An error names the missing packages.
pub(super) fn check_installation() -> Result<()> {
    let missing: Vec<_> = JARS
        .iter()
        .filter(|jar| !Path::new(jar).is_file())
        .collect();
    let java = std::process::Command::new("java").arg("-version").output();
    if !missing.is_empty() || java.is_err() {
        bail!(
            "no ZooKeeper on this machine: apt-get install zookeeper libslf4j-java \
             default-jre-headless (missing: {missing:?}{})",
            if java.is_err() { ", java" } else { "" }
        );
    }
    Ok(())
}

/// The setup of an ensemble.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of servers.
    pub servers: usize,
    /// The servers' tick. Sessions last 2 to 20 ticks. The default tick is short, so that tests are
    /// short.
    pub tick: Duration,
    /// The folder for the servers' data. `None` means the system's folder for temporary files.
    pub folder: Option<std::path::PathBuf>,
    /// Whether the JVMs optimise their code fully. The default is false, so that the JVMs start
    /// fast.
    pub optimised: bool,
    /// Whether the servers flush every transaction to the disk before the answer. The default is
    /// false, so that tests do not depend on the load of the disk. A killed server keeps its data
    /// in both cases; only a power cut would lose data.
    pub flushed: bool,
    /// Further lines for every server's configuration file.
    pub settings: Vec<String>,
    /// Further arguments for every server's JVM.
    pub java: Vec<String>,
    /// Files for the servers, with name and content. The files are in the servers' working folder,
    /// so settings can refer to them by their names.
    pub files: Vec<(&'static str, String)>,
    /// Whether everybody may use the nodes, which is ZooKeeper's own default. Tests of access lists
    /// need such servers. Every other user of this host can use such servers.
    pub open: bool,
    /// The ports of proxies in front of quorum ports: server `from` reaches the quorum port of
    /// server `to` at `port`. Each item is (from, to, port).
    pub detours: Vec<(usize, usize, u16)>,
    /// The ports of proxies in front of election ports, in the same form.
    pub election_detours: Vec<(usize, usize, u16)>,
    /// The servers' ports. `None` means that free ports are chosen at the start.
    pub ports: Option<Vec<Ports>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            servers: 3,
            tick: Duration::from_millis(250),
            folder: None,
            optimised: false,
            flushed: false,
            settings: Vec::new(),
            java: Vec::new(),
            files: Vec::new(),
            open: false,
            detours: Vec::new(),
            election_detours: Vec::new(),
            ports: None,
        }
    }
}

/// The ports of one server.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// The port for clients.
    pub client: u16,
    /// The port for followers, while the server leads.
    pub quorum: u16,
    /// The port for elections.
    pub election: u16,
}

impl Ports {
    /// Returns free ports.
    ///
    /// # Errors
    /// Returns an error if the system has no port left.
    pub fn pick() -> Result<Self> {
        Ok(Self {
            client: free_port()?,
            quorum: free_port()?,
            election: free_port()?,
        })
    }
}
