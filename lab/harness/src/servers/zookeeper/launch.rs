//! Writes the configuration files of one server, and starts its JVM.

use anyhow::Result;

use crate::{
    Process,
    servers::zookeeper::{
        ensemble::{Member, ZooKeeper},
        installation::{JARS, TLS_JARS},
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
