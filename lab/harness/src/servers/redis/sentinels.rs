//! A primary with a replica and sentinels.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{
    eventually,
    servers::{
        isolation::Password,
        redis::{
            access::{addresses, password_setting, start_member, url_credentials},
            server::{Flavour, READY_LIMIT, RedisServer},
        },
    },
};

/// A primary, one replica and their sentinels. Each sentinel logs in at the other servers as a user
/// of its own. So a test can cut a sentinel off from one server without an effect on clients.
#[derive(Debug)]
pub struct RedisSentinels {
    /// The server that is the primary at first.
    pub primary: RedisServer,
    /// The server that is the replica at first.
    pub replica: RedisServer,
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
    /// The password of all these servers, for clients.
    password: Password,
}

impl RedisSentinels {
    /// The sentinels' name for the primary.
    pub const PRIMARY: &'static str = "mymaster";

    /// Starts the servers, and waits until the sentinels know each other and the replica. The
    /// sentinels replace a primary that does not answer for 3 s. Even a primary on a busy machine
    /// answers sooner.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn start() -> Result<Self> {
        Self::start_as(Flavour::Installed, None, 3)
    }

    /// Works like [`RedisSentinels::start`], with servers of another product or version.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start_flavour`].
    pub fn start_flavour(flavour: Flavour) -> Result<Self> {
        flavour.program()?;
        Self::start_as(flavour, None, 3)
    }

    /// Works like [`RedisSentinels::start`], with this number of sentinels instead of three.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with_sentinels(count: usize) -> Result<Self> {
        Self::start_as(Flavour::Installed, None, count)
    }

    /// Works like [`RedisSentinels::start`], for clients with TLS and a certificate. `pki` has the
    /// same meaning as in [`RedisServer::with_tls`]. The harness itself connects without TLS.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`RedisServer::start`].
    pub fn with_tls(pki: &Path) -> Result<Self> {
        Self::start_as(Flavour::Installed, Some(pki), 3)
    }

    fn start_as(flavour: Flavour, pki: Option<&Path>, count: usize) -> Result<Self> {
        let (password, among_sentinels) = (Password::random(), Password::random());
        let (required, secret) = (password_setting(&password), among_sentinels.expose());
        let user = |at| format!("user {} on >{secret} ~* &* +@all", Self::sentinel_user(at));
        let users: Vec<_> = (0..count).map(user).collect();
        let users: Vec<_> = users.iter().map(String::as_str).collect();
        let data = |more: &[&str]| {
            let settings = [&[&*required, "repl-diskless-sync-delay 0"], &*users, more].concat();
            start_member(flavour, pki, &[], &settings)
        };
        let primary = data(&[])?;
        let at = primary.client_port();
        let replica = data(&[&format!("replicaof 127.0.0.1 {at}")])?;
        let name = Self::PRIMARY;
        let sentinels = (0..count)
            .map(|at_sentinel| {
                let user = Self::sentinel_user(at_sentinel);
                let settings = [
                    format!("sentinel monitor {name} 127.0.0.1 {at} {}", count / 2 + 1),
                    format!("sentinel down-after-milliseconds {name} 3000"),
                    format!("sentinel failover-timeout {name} 10000"),
                    format!("sentinel auth-user {name} {user}"),
                    format!("sentinel auth-pass {name} {secret}"),
                    format!("sentinel sentinel-user {user}"),
                    format!("sentinel sentinel-pass {secret}"),
                ];
                let settings = settings.iter().map(String::as_str);
                let first = [&*required, "appendonly no"];
                let settings: Vec<_> = first.into_iter().chain(settings).collect();
                start_member(
                    flavour,
                    pki,
                    &["--sentinel"],
                    &[&*users, &settings].concat(),
                )
            })
            .collect::<Result<Vec<_>>>()?;
        let all = Self {
            primary,
            replica,
            sentinels,
            password,
        };
        eventually("the sentinels know everybody", READY_LIMIT, || {
            all.sentinels.iter().all(|sentinel| {
                let known = sentinel.command(&["SENTINEL", "MASTER", Self::PRIMARY]);
                known.is_ok_and(|known| {
                    let words: Vec<_> = known.lines().collect();
                    let value = |name| {
                        words
                            .iter()
                            .position(|word| *word == name)
                            .map(|at| words[at + 1])
                    };
                    let others = (count - 1).to_string();
                    value("num-slaves") == Some("1")
                        && value("num-other-sentinels") == Some(&*others)
                })
            }) && all
                .replica
                .info("master_link_status")
                .is_ok_and(|status| status == "up")
        })?;
        Ok(all)
    }

    /// Returns
    /// `redis+sentinel://:PASSWORD@127.0.0.1:PORT,..,127.0.0.1:PORT/mymaster?sentinel_password=..`.
    #[must_use]
    pub fn url(&self) -> String {
        let all: Vec<_> = (0..self.sentinels.len()).collect();
        self.url_of(&all)
    }

    /// Returns [`RedisSentinels::url`] with only these sentinels, by their numbers.
    #[must_use]
    pub fn url_of(&self, sentinels: &[usize]) -> String {
        let some = sentinels.iter().map(|at| &self.sentinels[*at]);
        let (own, password) = (
            url_credentials(Some(&self.password)),
            self.password.expose(),
        );
        format!(
            "redis+sentinel://{own}{}/{}?sentinel_password={password}",
            addresses(some),
            Self::PRIMARY
        )
    }

    /// Returns the port of the server that the first sentinel names as the primary.
    ///
    /// # Errors
    /// Returns an error if the sentinel does not answer.
    pub fn primary_port(&self) -> Result<u16> {
        self.primary_port_at(0)
    }

    /// Returns the port of the server that this sentinel names as the primary.
    ///
    /// # Errors
    /// Returns an error if the sentinel does not answer.
    pub fn primary_port_at(&self, sentinel: usize) -> Result<u16> {
        let answer = self.sentinels[sentinel].command(&["SENTINEL", "MASTER", Self::PRIMARY])?;
        let port = answer.lines().skip_while(|word| *word != "port").nth(1);
        Ok(port.context("its port")?.trim().parse()?)
    }

    /// Splits the servers into two sides: the first primary with these sentinels, and the first
    /// replica with the other sentinels. No sentinel can reach the other side. Clients can reach
    /// all servers.
    ///
    /// # Errors
    /// Returns an error if a server does not answer.
    pub fn cut_off_primary_with(&self, sentinels: &[usize]) -> Result<()> {
        let (with, without): (Vec<_>, Vec<_>) =
            (0..self.sentinels.len()).partition(|at| sentinels.contains(at));
        for (server, own, others) in [
            (&self.primary, &with, &without),
            (&self.replica, &without, &with),
        ] {
            let side = own.iter().map(|at| &self.sentinels[*at]);
            for server in side.chain([server]) {
                for other in others {
                    let user = Self::sentinel_user(*other);
                    let none = ["ACL", "SETUSER", &user, "-@all", "resetchannels"];
                    server.command(&none)?;
                    server.command(&["CLIENT", "KILL", "USER", &user])?;
                }
            }
        }
        Ok(())
    }

    /// Cuts one of the two data servers off from every sentinel and from the other data server.
    /// Clients can reach both data servers. If the other data server is cut off already, the
    /// sentinels can reach no data server.
    ///
    /// # Errors
    /// Returns an error if a server does not answer.
    pub fn cut_off(&self, cut: &RedisServer, other: &RedisServer) -> Result<()> {
        // With a wrong user and password, the other server cannot replicate from the server that is
        // cut off.
        other.command(&["CONFIG", "SET", "masteruser", "nobody", "masterauth", "x"])?;
        cut.command(&["CLIENT", "KILL", "TYPE", "replica"])?;
        for at in 0..self.sentinels.len() {
            let user = Self::sentinel_user(at);
            cut.command(&["ACL", "SETUSER", &user, "-@all", "resetchannels"])?;
            cut.command(&["CLIENT", "KILL", "USER", &user])?;
        }
        Ok(())
    }

    /// Ends the effect of [`RedisSentinels::cut_off`]. If the other server has become the primary,
    /// the server that was cut off becomes its replica now. Without that command, the sentinels
    /// would do so some seconds later.
    ///
    /// # Errors
    /// Returns an error if a server does not answer.
    pub fn reconnect(&self, cut: &RedisServer, other: &RedisServer) -> Result<()> {
        let password = self.password.expose();
        let own = ["masteruser", "", "masterauth", password];
        other.command(&[&["CONFIG", "SET"], &own[..]].concat())?;
        // The settings are written to the file, so that the next start uses the same settings.
        other.command(&["CONFIG", "REWRITE"])?;
        for at in 0..self.sentinels.len() {
            let rights = ["ACL", "SETUSER", &Self::sentinel_user(at), "&*", "+@all"];
            cut.command(&rights)?;
        }
        if other.info("role")? == "master" {
            cut.command(&["REPLICAOF", "127.0.0.1", &other.port.to_string()])?;
        }
        Ok(())
    }

    /// Returns the name of a sentinel's user at the other servers.
    fn sentinel_user(sentinel: usize) -> String {
        format!("sentinel-{sentinel}")
    }
}
