//! The setup of an ensemble.

use std::time::Duration;

use anyhow::Result;

use crate::free_port;

/// How an ensemble is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many servers.
    pub servers: usize,
    /// Their tick: sessions last 2 to 20 of it. Short unless told otherwise, so that tests are.
    pub tick: Duration,
    /// Where the servers keep their data; in the system's folder for temporary files unless told otherwise.
    pub folder: Option<std::path::PathBuf>,
    /// Whether the virtual machines may take their time to become fast, instead of starting fast.
    pub optimised: bool,
    /// Whether every transaction is on the disk before it is answered. Without that a killed server keeps its data as well,
    /// only a power cut would lose some; and tests do not depend on how busy the disk is.
    pub flushed: bool,
    /// More lines for every server's configuration file.
    pub settings: Vec<String>,
    /// More arguments for every server's JVM.
    pub java: Vec<String>,
    /// Files for the servers, by name: they are in the folder that the servers run in, so settings
    /// name them by that name.
    pub files: Vec<(&'static str, String)>,
    /// Whether everybody may use the nodes, as `ZooKeeper` has it unless told otherwise. For tests
    /// of who may do what. Every other user of this host can use such servers.
    pub open: bool,
    /// How a server reaches the quorum port of another one, when it is not directly: (from, to, port).
    pub detours: Vec<(usize, usize, u16)>,
    /// The same for the election port.
    pub election_detours: Vec<(usize, usize, u16)>,
    /// The servers' ports, when they must be known before.
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
    /// For clients.
    pub client: u16,
    /// For followers, when it leads.
    pub quorum: u16,
    /// For elections.
    pub election: u16,
}

impl Ports {
    /// Free ones.
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
