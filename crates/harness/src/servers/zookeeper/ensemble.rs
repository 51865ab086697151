//! The ensemble: starts its servers, and kills, pauses and restarts single servers.
//!
//! The servers come from Debian's `zookeeper` package and run on the installed JVM.
//!
//! `ZooKeeper` listens on TCP only, and lets anybody open a session. So the nodes of an ensemble
//! belong to one user with a random password. Another user of this host may connect, but can
//! neither read nor change any node.

use std::{env, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

use crate::{
    Process, Signal, eventually,
    servers::{
        isolation::{Password, RunAs},
        zookeeper::{
            installation::check_installation,
            session,
            setup::{Ports, Setup},
        },
    },
};

/// How long a start may take: a JVM starts on a busy machine, and a leader is elected.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long it may take to close the nodes to strangers.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// How long one server may take to answer a four-letter word.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The user that may use an ensemble.
pub(super) const USER: &str = "harness";

/// A running ensemble. Its servers and their data are removed when it is dropped.
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
    /// The running server; `None` = it was killed or not yet started.
    pub(super) process: Option<Process>,
}

impl ZooKeeper {
    /// Starts three servers with a tick of 250 ms.
    ///
    /// # Errors
    /// When ZooKeeper or a JVM is missing (the message says what to install), or no quorum forms.
    pub fn start() -> Result<Self> {
        Self::start_with(&Setup::default())
    }

    /// Starts an ensemble with this setup.
    ///
    /// # Errors
    /// As [`ZooKeeper::start`].
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

    /// Starts the servers, waits until they serve, and closes their nodes to strangers.
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
            // This is repeated, because the leader may change at any moment. A server may also
            // allow one connection only, and not yet have noticed that the last one was closed.
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

    /// Kills a server at once, as a crash would. Its data stays.
    pub fn kill(&mut self, at: usize) {
        self.members[at].process = None;
    }

    /// Kills a server if it runs, and starts it again on its data.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.kill(at);
        self.launch(at)
    }

    /// As [`ZooKeeper::restart`], with further lines in the configuration file.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_with(&mut self, at: usize, settings: &[&str]) -> Result<()> {
        let lines = settings.iter().map(|line| (*line).to_owned());
        self.setup.settings.extend(lines);
        self.write_configuration(at)?;
        self.restart(at)
    }

    /// Pauses a server. Its connections stay open.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::STOP)
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::CONT)
    }

    /// Waits until every running server serves clients.
    ///
    /// # Errors
    /// When one does not. Its output is part of the message.
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

    /// The process of a server.
    pub(super) fn process(&self, at: usize) -> Result<&Process> {
        self.members[at]
            .process
            .as_ref()
            .with_context(|| format!("server {at} does not run"))
    }
}
