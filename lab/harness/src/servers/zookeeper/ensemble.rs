//! The ensemble: the start of its servers, and the kill, pause and restart of single servers.
//!
//! The servers come from Debian's `zookeeper` package and run on the installed JVM.
//!
//! ZooKeeper listens on TCP only, and lets every client open a session. So the nodes of an ensemble
//! belong to one user with a random password. Another user of this host may connect, but cannot
//! read or change a node.

use std::{env, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

use crate::{
    Process, Signal, eventually,
    servers::{
        isolation::{Password, RunAs},
        zookeeper::{
            launch::{Ports, Setup, check_installation},
            session,
        },
    },
};

/// Time-out for the start of all servers, on a busy machine: a JVM starts, and the servers elect a
/// leader.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Time-out for closing the nodes to strangers.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Time-out for the answer of one server to a four-letter word.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The user that may use an ensemble.
pub(super) const USER: &str = "harness";

/// A running ensemble. Dropping the value ends the servers and removes their data.
#[derive(Debug)]
pub struct ZooKeeper {
    pub(super) user: RunAs,
    pub(super) folder: TempDir,
    pub(super) password: Password,
    pub(super) super_password: Password,
    pub(super) setup: Setup,
    pub(super) members: Vec<Member>,
}

/// One server of an ensemble.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) ports: Ports,
    /// The running server. `None` means that the server was killed or not yet started.
    pub(super) process: Option<Process>,
}

impl ZooKeeper {
    /// Starts three servers with a tick of 250 ms.
    ///
    /// # Errors
    /// Returns an error if ZooKeeper or a JVM is missing, or if no quorum forms. The message names
    /// the package to install.
    pub fn start() -> Result<Self> {
        Self::start_with(&Setup::default())
    }

    /// Starts an ensemble with this setup.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`ZooKeeper::start`].
    pub fn start_with(setup: &Setup) -> Result<Self> {
        check_installation()?;
        let mut last = anyhow!("not tried");
        // Another process may take a port before the server does.
        for _ in 0..3 {
            match Self::start_once(setup.clone()) {
                Ok(ensemble) => return Ok(ensemble),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Starts the servers, waits until they serve clients, and closes their nodes to strangers.
    pub(super) fn start_once(setup: Setup) -> Result<Self> {
        let user = RunAs::for_package("zookeeper")?;
        let folder = match &setup.folder {
            Some(parent) => user.create_folder(parent),
            None => user.create_folder(&env::temp_dir()),
        }?;
        for (name, content) in &setup.files {
            user.write_private_file(&folder.path().join(name), content)?;
        }
        let ports = match &setup.ports {
            Some(ports) => ports.clone(),
            None => (0..setup.servers)
                .map(|_| Ports::pick())
                .collect::<Result<_>>()?,
        };
        let mut ensemble = Self {
            user,
            folder,
            password: Password::random(),
            super_password: Password::random(),
            members: ports
                .into_iter()
                .map(|ports| Member {
                    ports,
                    process: None,
                })
                .collect(),
            setup,
        };
        for at in 0..ensemble.members.len() {
            ensemble.write_configuration(at)?;
            ensemble.launch(at)?;
        }
        ensemble.wait_until_serving()?;
        if !ensemble.setup.open {
            ensemble.close_to_strangers()?;
        }
        Ok(ensemble)
    }

    /// Gives all nodes to the ensemble's user.
    pub(super) fn close_to_strangers(&self) -> Result<()> {
        let (super_password, account) = (self.super_password.expose(), self.user_and_password());
        let mut last = None;
        eventually("the nodes are closed to strangers", CLOSE_LIMIT, || {
            // The attempt is repeated, because the leader may change at any moment. A server with a
            // limit of one connection may also refuse, until it notices the end of the last
            // connection.
            let closed = self.leader().and_then(|leader| {
                session::close_tree_to_strangers(self.address(leader), super_password, &account)
            });
            last = closed.err();
            last.is_none()
        })
        .map_err(|error| match last.take() {
            Some(last) => last.context(error),
            None => error,
        })
    }

    /// Kills a server with SIGKILL. Its data stays.
    pub fn kill(&mut self, at: usize) {
        self.members[at].process = None;
    }

    /// Kills a server if it runs, and starts it again on its data.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.kill(at);
        self.launch(at)
    }

    /// Works like [`ZooKeeper::restart`], with further lines in the configuration file.
    ///
    /// # Errors
    /// Returns an error if the server cannot be started.
    pub fn restart_with(&mut self, at: usize, settings: &[&str]) -> Result<()> {
        let lines = settings.iter().map(|line| (*line).to_owned());
        self.setup.settings.extend(lines);
        self.write_configuration(at)?;
        self.restart(at)
    }

    /// Pauses a server. Its connections stay open.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn pause(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::STOP)
    }

    /// Lets a paused server continue.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn resume(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::CONT)
    }

    /// Waits until every running server serves clients.
    ///
    /// # Errors
    /// Returns an error if a server does not serve clients in time. The message contains the output
    /// of that server.
    pub fn wait_until_serving(&self) -> Result<()> {
        for (at, member) in self.members.iter().enumerate() {
            let Some(process) = &member.process else {
                continue;
            };
            eventually(&format!("server {at} serves"), START_LIMIT, || {
                self.mode(at).is_some()
            })
            .map_err(|error| error.context(process.output()))?;
        }
        Ok(())
    }

    /// Returns the process of a server.
    pub(super) fn process(&self, at: usize) -> Result<&Process> {
        self.members[at]
            .process
            .as_ref()
            .with_context(|| format!("server {at} does not run"))
    }
}
