//! A private ZooKeeper ensemble, whose servers can be killed, stopped and started again one by one.
//!
//! The servers come from Debian's `zookeeper` package and run on the installed JVM.
//!
//! `ZooKeeper` has no socket and lets anybody open a session. So the nodes of an ensemble belong to
//! one user with a random password: a stranger may connect, and read or change nothing.

mod by_hand;
mod tree;

use std::{
    env,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use tempfile::TempDir;

use super::private::{Password, RunAs};
use crate::{Process, Signal, eventually, free_port};

/// Where Debian puts it.
const JARS: [&str; 2] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];

/// What ZooKeeper's jar does not name and needs for TLS all the same. A JVM passes over those that are absent.
const TLS_JARS: [&str; 2] = [
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
];

/// A JVM on a busy machine, and an election.
const START: Duration = Duration::from_secs(60);

/// How long the nodes may take to be closed to strangers.
const CLOSE: Duration = Duration::from_secs(10);

/// How long one server may take to tell how it is.
const ANSWER: Duration = Duration::from_secs(2);

/// The user that may use an ensemble.
const USER: &str = "harness";

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

/// A running ensemble. Its servers and their data go away with it.
#[derive(Debug)]
pub struct ZooKeeper {
    user: RunAs,
    folder: TempDir,
    password: Password,
    super_password: Password,
    setup: Setup,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    ports: Ports,
    process: Option<Process>,
}

impl ZooKeeper {
    /// Three servers with a tick of 250 ms.
    ///
    /// # Errors
    /// When ZooKeeper or a JVM is missing (the message says what to install), or no quorum forms.
    pub fn start() -> Result<Self> {
        Self::start_with(&Setup::default())
    }

    /// As told.
    ///
    /// # Errors
    /// As [`ZooKeeper::start`].
    pub fn start_with(setup: &Setup) -> Result<Self> {
        installed()?;
        let mut last = anyhow!("not tried");
        // A port may be taken between asking for it and listening on it.
        for _ in 0..3 {
            match Self::start_once(setup.clone()) {
                Ok(ensemble) => return Ok(ensemble),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start_once(setup: Setup) -> Result<Self> {
        let user = RunAs::user_of("zookeeper")?;
        let folder = match &setup.folder {
            Some(parent) => user.folder(parent),
            None => user.folder(&env::temp_dir()),
        }?;
        for (name, content) in &setup.files {
            user.write(&folder.path().join(name), content)?;
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
            ensemble.configure(at)?;
            ensemble.launch(at)?;
        }
        ensemble.wait_until_serving()?;
        if !ensemble.setup.open {
            ensemble.close_to_strangers()?;
        }
        Ok(ensemble)
    }

    fn close_to_strangers(&self) -> Result<()> {
        let (super_password, account) = (self.super_password.expose(), self.account());
        let mut last = None;
        eventually("the nodes are closed to strangers", CLOSE, || {
            // Whoever leads now need not lead in a moment, and a server may allow one connection
            // only, which has just been closed.
            let closed = self
                .leader()
                .and_then(|leader| tree::close(self.address(leader), super_password, &account));
            last = closed.err();
            last.is_none()
        })
        .map_err(|error| match last.take() {
            Some(last) => last.context(error),
            None => error,
        })
    }

    /// `user:password@host:port,host:port,..`, as in a URL; without the user when the ensemble is
    /// open to everybody.
    #[must_use]
    pub fn servers(&self) -> String {
        let all: Vec<_> = (0..self.members.len()).map(|at| self.address(at)).collect();
        self.reached_at(&all)
    }

    /// As [`ZooKeeper::servers`], with one of the servers only.
    #[must_use]
    pub fn server(&self, at: usize) -> String {
        self.reached_at(&[self.address(at)])
    }

    /// As [`ZooKeeper::servers`], where something else listens that leads there.
    #[must_use]
    pub fn reached_at(&self, addresses: &[SocketAddr]) -> String {
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let hosts = addresses.join(",");
        if self.setup.open {
            hosts
        } else {
            format!("{}@{hosts}", self.account())
        }
    }

    /// `user:password` of whoever may use it.
    fn account(&self) -> String {
        format!("{USER}:{}", self.password.expose())
    }

    /// How many servers there are, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where clients reach a server.
    #[must_use]
    pub fn address(&self, at: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.members[at].ports.client).into()
    }

    /// The server that leads.
    ///
    /// # Errors
    /// When none does.
    pub fn leader(&self) -> Result<usize> {
        (0..self.members.len())
            .find(|&at| {
                self.mode(at)
                    .is_some_and(|mode| mode == "leader" || mode == "standalone")
            })
            .context("no server leads")
    }

    /// The servers that follow.
    #[must_use]
    pub fn followers(&self) -> Vec<usize> {
        (0..self.members.len())
            .filter(|&at| self.mode(at).is_some_and(|mode| mode == "follower"))
            .collect()
    }

    /// Kills a server as a power cut would.
    pub fn kill(&mut self, at: usize) {
        self.members[at].process = None;
    }

    /// Starts a killed server again, on the data it had.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.kill(at);
        self.launch(at)
    }

    /// As [`ZooKeeper::restart`], with further lines in its configuration file.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_with(&mut self, at: usize, settings: &[&str]) -> Result<()> {
        let lines = settings.iter().map(|line| (*line).to_owned());
        self.setup.settings.extend(lines);
        self.configure(at)?;
        self.restart(at)
    }

    /// Stops a server where it is; its connections stand.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self, at: usize) -> Result<()> {
        self.process(at)?.signal(Signal::CONT)
    }

    /// Waits until every server that runs serves clients.
    ///
    /// # Errors
    /// When one does not; its last words are part of the message.
    pub fn wait_until_serving(&self) -> Result<()> {
        for (at, member) in self.members.iter().enumerate() {
            let Some(process) = &member.process else {
                continue;
            };
            eventually(&format!("server {at} serves"), START, || {
                self.mode(at).is_some()
            })
            .map_err(|error| error.context(process.output()))?;
        }
        Ok(())
    }

    /// Asks a server with a four-letter word.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask(&self, at: usize, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address(at), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// As what a server serves, in the server's own words: `leader`, `follower`, `standalone`;
    /// `None` = it does not.
    #[must_use]
    pub fn mode(&self, at: usize) -> Option<String> {
        self.members[at].process.as_ref()?;
        let answer = self.ask(at, "srvr").ok()?;
        let mode = answer
            .lines()
            .find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.trim().to_owned())
    }

    fn process(&self, at: usize) -> Result<&Process> {
        self.members[at]
            .process
            .as_ref()
            .with_context(|| format!("server {at} does not run"))
    }

    fn configure(&self, at: usize) -> Result<()> {
        let data = self.data(at);
        std::fs::create_dir_all(&data)?;
        self.user.own(&data)?;
        self.user.write(&data.join("myid"), (at + 1).to_string())?;
        let mut lines = vec![
            format!("tickTime={}", self.setup.tick.as_millis()),
            "initLimit=20".into(),
            "syncLimit=8".into(),
            format!("dataDir={}", data.display()),
            format!("clientPort={}", self.members[at].ports.client),
            "clientPortAddress=127.0.0.1".into(),
            "admin.enableServer=false".into(),
            // What the harness and most tests ask. No word among them changes anything.
            "4lw.commands.whitelist=srvr,mntr".into(),
            format!(
                "DigestAuthenticationProvider.superDigest={}",
                tree::super_digest(self.super_password.expose())
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
        self.user.write(&self.configuration(at), lines.join("\n"))
    }

    fn launch(&mut self, at: usize) -> Result<()> {
        let mut command = self.user.command("java");
        command
            .current_dir(self.folder.path())
            .args(["-Xmx160m", "-XX:+UseSerialGC"])
            .args((!self.setup.optimised).then_some("-XX:TieredStopAtLevel=1"))
            .args((!self.setup.flushed).then_some("-Dzookeeper.forceSync=no"))
            // Transaction logs are made this large at once, in KiB.
            .arg("-Dzookeeper.preAllocSize=1024")
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .args(&self.setup.java)
            .args(["-cp", &[JARS, TLS_JARS].concat().join(":")])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.configuration(at));
        self.members[at].process = Some(Process::spawn(&mut command)?);
        Ok(())
    }

    fn data(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{at}"))
    }

    fn configuration(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{at}.cfg"))
    }
}

fn installed() -> Result<()> {
    let missing: Vec<_> = JARS
        .iter()
        .filter(|jar| !Path::new(jar).is_file())
        .collect();
    let java = std::process::Command::new("java").arg("-version").output();
    if !missing.is_empty() || java.is_err() {
        bail!(
            "no ZooKeeper on this machine: apt-get install zookeeper libslf4j-java default-jre-headless (missing: {missing:?}{})",
            if java.is_err() { ", java" } else { "" }
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::private::tests::keeps_others_out, tree::Session, *};

    /// Kinds of requests, and what they say behind the path.
    const REQUESTS: [(&str, i32, &[u8]); 6] = [
        // An empty value, one right for `world:anyone`, and that the node stays.
        (
            "create",
            1,
            b"\0\0\0\0\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\0\0\0\0",
        ),
        // Any version.
        ("delete", 2, b"\xff\xff\xff\xff"),
        ("read", 4, b"\0"),
        ("write", 5, b"\0\0\0\0\xff\xff\xff\xff"),
        (
            "give rights",
            7,
            b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\xff\xff\xff\xff",
        ),
        ("list", 8, b"\0"),
    ];

    /// Whether a session is kept from a request.
    fn forbidden(session: &mut Session, kind: i32, path: &str, more: &[u8]) -> bool {
        let answer = session.attempt(kind, path, more);
        // `NoAuth`.
        answer.is_err_and(|error| error.to_string().ends_with("error -102"))
    }

    #[test]
    fn no_other_user_of_this_host_can_use_zookeeper() {
        let mut ensemble = ZooKeeper::start().unwrap();
        let mut ours = Session::connect(ensemble.address(0)).unwrap();
        ours.authenticate(&ensemble.account()).unwrap();
        let (_, create, more) = REQUESTS[0];
        ours.attempt(create, "/ours", more).unwrap();
        for at in 0..ensemble.len() {
            for user in [None, Some("harness:wrong"), Some("super:super")] {
                let mut stranger = Session::connect(ensemble.address(at)).unwrap();
                if let Some(user) = user {
                    stranger.authenticate(user).unwrap();
                }
                for (what, kind, more) in REQUESTS {
                    let paths: &[&str] = match what {
                        "create" => &["/a", "/zookeeper/a", "/zookeeper/quota/a"],
                        "delete" => &["/ours"],
                        _ => &["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"],
                    };
                    for path in paths {
                        let is_kept = forbidden(&mut stranger, kind, path, more);
                        assert!(is_kept, "{what} {path} on {at} as {user:?}");
                    }
                }
            }
            for word in [
                "stat", "cons", "dump", "crst", "srst", "stmk", "envi", "wchp",
            ] {
                let said = ensemble.ask(at, word).unwrap();
                assert!(said.contains("not in the whitelist"), "{word}: {said}");
            }
            for secret in [&ensemble.password, &ensemble.super_password] {
                keeps_others_out(
                    ensemble.process(at).unwrap(),
                    ensemble.folder.path(),
                    secret.expose(),
                );
            }
        }
        // Whoever knows the password may, and a restart changes nothing about it.
        ensemble.restart(0).unwrap();
        ensemble.wait_until_serving().unwrap();
        let mut ours = Session::connect(ensemble.address(0)).unwrap();
        assert!(forbidden(&mut ours, create, "/a", more));
        ours.authenticate(&ensemble.account()).unwrap();
        ours.attempt(create, "/a", more).unwrap();
    }

    #[test]
    fn a_test_may_open_it_to_everybody() {
        let ensemble = ZooKeeper::start_with(&Setup {
            servers: 1,
            open: true,
            ..Setup::default()
        })
        .unwrap();
        assert_eq!(ensemble.servers(), ensemble.address(0).to_string());
        let mut anybody = Session::connect(ensemble.address(0)).unwrap();
        let (_, create, more) = REQUESTS[0];
        anybody.attempt(create, "/a", more).unwrap();
    }
}
