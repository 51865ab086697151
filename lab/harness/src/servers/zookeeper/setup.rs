//! The setup of an ensemble, and its defaults.

use std::time::Duration;

use anyhow::Result;

use crate::free_port;

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
