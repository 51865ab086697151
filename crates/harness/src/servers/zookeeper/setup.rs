//! The setup of an ensemble, and its defaults.

use std::time::Duration;

use anyhow::Result;

use crate::free_port;

/// The setup of an ensemble.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of servers.
    pub servers: usize,
    /// The servers' tick: sessions last 2 to 20 ticks. It is short by default, so that tests are
    /// short.
    pub tick: Duration,
    /// The folder for the servers' data; the system's folder for temporary files by default.
    pub folder: Option<std::path::PathBuf>,
    /// Whether the JVMs optimise fully, which makes them slow at first, instead of starting fast.
    pub optimised: bool,
    /// Whether every transaction is on disk before it is answered. Without that a killed server
    /// keeps its data too, and only a power cut would lose some; and tests do not depend on how
    /// busy the disk is.
    pub flushed: bool,
    /// Further lines for every server's configuration file.
    pub settings: Vec<String>,
    /// Further arguments for every server's JVM.
    pub java: Vec<String>,
    /// Files for the servers, by name. They are in the servers' working folder, so settings name
    /// them by that name.
    pub files: Vec<(&'static str, String)>,
    /// Whether everybody may use the nodes, which is `ZooKeeper`'s own default. It is for tests of
    /// rights. Every other user of this host can use such servers.
    pub open: bool,
    /// The ports through which a server reaches the quorum port of another one, if not directly:
    /// (from, to, port).
    pub detours: Vec<(usize, usize, u16)>,
    /// The same for the election port.
    pub election_detours: Vec<(usize, usize, u16)>,
    /// The servers' ports, if they must be known before the start.
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
    /// Free ports.
    ///
    /// # Errors
    /// When the system has none left.
    pub fn pick() -> Result<Self> {
        Ok(Self {
            client: free_port()?,
            quorum: free_port()?,
            election: free_port()?,
        })
    }
}
