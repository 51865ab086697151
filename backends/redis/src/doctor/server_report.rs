//! Reads one server's description and settings, and checks its version, role, replicas and disk.

use std::{collections::HashMap, sync::Arc, time::Duration};

use distlock_core::{Result, Verdict};
use redis::Value;

use crate::{
    connection::{Connection, InfoReply},
    doctor::{
        examine,
        settings::{self, Finding},
    },
    routing::Router,
};

/// The settings that are read.
const SETTINGS: [&str; 10] = [
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "replica-read-only",
    "client-output-buffer-limit",
    "maxmemory-clients",
    "tracking-table-max-keys",
];

/// The authority that chooses the primary after a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arbiter {
    /// A person who promotes a replica by hand.
    Nobody,
    Sentinels,
    /// The other primaries of a cluster.
    Primaries,
}

impl Arbiter {
    pub(super) const fn of(router: &Router) -> Self {
        if router.sentinels().is_some() {
            Self::Sentinels
        } else if router.is_cluster() {
            Self::Primaries
        } else {
            Self::Nobody
        }
    }
}

/// One server's answers to the doctor's questions.
pub(super) struct ServerReport {
    pub(super) arbiter: Arbiter,
    pub(super) info: InfoReply,
    /// The settings; the error is the remedy if this user may not read them.
    pub(super) settings: Result<HashMap<String, String>, &'static str>,
}

impl ServerReport {
    pub(super) async fn ask(connection: &Arc<Connection>, arbiter: Arbiter) -> Result<Self> {
        let mut questions = redis::pipe();
        questions.cmd("INFO");
        for setting in SETTINGS {
            questions.cmd("CONFIG").arg("GET").arg(setting);
        }
        let mut answers = connection.send(&questions).await?.into_iter();
        let info = InfoReply::read(answers.next());
        let mut settings = HashMap::new();
        let mut refused = None;
        for answer in answers {
            match answer {
                Value::ServerError(refusal) if examine::is_unknown(&refusal) => {
                    refused =
                        Some("the server knows no CONFIG (rename-command): ask the administrator");
                }
                Value::ServerError(_) => {
                    refused = Some(
                        "this user may not read it: grant +config|get, or ask the administrator",
                    );
                }
                answer => settings.extend(
                    redis::from_redis_value::<HashMap<String, String>>(answer).unwrap_or_default(),
                ),
            }
        }
        Ok(Self {
            arbiter,
            info,
            settings: refused.map_or(Ok(settings), Err),
        })
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.version(), self.role(), self.eviction()];
        match &self.settings {
            Ok(settings) => {
                let get = |name: &str| settings.get(name).map(String::as_str);
                findings.push(settings::persistence(
                    get("appendonly"),
                    get("appendfsync"),
                    get("save"),
                ));
                findings.push(self.replicas(get("min-replicas-to-write")));
                findings.push(settings::demotion(&self.info, get("replica-read-only")));
                findings.push(settings::buffers(
                    get("client-output-buffer-limit"),
                    get("maxmemory-clients"),
                ));
                findings.push(settings::pushes(&self.info, get("tracking-table-max-keys")));
            }
            Err(why) => {
                for check in ["persistence", "replicas", "demotion", "buffers", "pushes"] {
                    findings.push((check, Verdict::Unknown, (*why).into()));
                }
            }
        }
        findings.push(self.disk());
        findings.push(settings::memory(&self.info));
        findings
    }

    /// How long before a crash a write may be lost with it.
    pub(super) fn loses(&self) -> Duration {
        let Ok(settings) = &self.settings else {
            return Duration::ZERO;
        };
        let get = |name: &str| settings.get(name).map(String::as_str);
        settings::loses(get("appendonly"), get("appendfsync"))
    }

    fn version(&self) -> Finding {
        let check = "version";
        if let Some(version) = self.info.get("valkey_version") {
            return (check, Verdict::Pass, format!("Valkey {version}"));
        }
        let Some(version) = self.info.get("redis_version") else {
            return (check, Verdict::Unknown, "this user may not run INFO".into());
        };
        let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
        let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if number >= (6, 2) {
            (check, Verdict::Pass, format!("Redis {version}"))
        } else {
            (
                check,
                Verdict::Fail,
                format!("Redis {version} is older than 6.2: upgrade it"),
            )
        }
    }

    fn role(&self) -> Finding {
        let check = "role";
        match self.info.get("role") {
            Some("master") => (check, Verdict::Pass, "it is the primary".into()),
            Some(role) => (
                check,
                Verdict::Fail,
                format!("it is a {role}: locks need the primary"),
            ),
            None => (check, Verdict::Unknown, "this user may not run INFO".into()),
        }
    }

    /// `INFO` shows these two settings as well, also to a user who may not run `CONFIG GET`.
    fn eviction(&self) -> Finding {
        let settings = self.settings.as_ref().ok();
        let told = |name: &str, field| {
            let setting = settings.and_then(|settings| settings.get(name));
            setting.map(String::as_str).or_else(|| self.info.get(field))
        };
        settings::eviction(
            told("maxmemory", "maxmemory"),
            told("maxmemory-policy", "maxmemory_policy"),
        )
    }

    fn replicas(&self, to_write: Option<&str>) -> Finding {
        let check = "replicas";
        let Some(connected) = self.info.get("connected_slaves") else {
            return (check, Verdict::Unknown, "this user may not run INFO".into());
        };
        if connected == "0" {
            return (
                check,
                Verdict::Pass,
                "none is connected, so none can be promoted without the latest locks".into(),
            );
        }
        let Some(to_write) = to_write else {
            return settings::not_told(check, "min-replicas-to-write");
        };
        let is_set = !matches!(to_write, "" | "0");
        // Without an arbiter, no rule limits the time for which two holders may be valid together.
        let verdict = match self.arbiter {
            Arbiter::Sentinels | Arbiter::Primaries if is_set => Verdict::Pass,
            _ => Verdict::Fail,
        };
        if !is_set {
            return (
                check,
                verdict,
                format!(
                    "{connected} connected, and a primary that is cut off from them goes on \
                     granting locks that a failover forgets: set min-replicas-to-write 1 and \
                     min-replicas-max-lag 2. It costs that nothing is locked, renewed or freed \
                     while no replica follows; it gains that a primary that is cut off stops \
                     within that lag{}",
                    self.bound()
                ),
            );
        }
        (
            check,
            verdict,
            format!(
                "{connected} connected, and a primary that is cut off from {to_write} stops; \
                 replication is asynchronous all the same, so a failover may forget the latest \
                 locks: fence what they protect{}",
                self.bound()
            ),
        )
    }

    /// Returns the text that says for how long two holders may be valid together after a promotion.
    const fn bound(&self) -> &'static str {
        match self.arbiter {
            Arbiter::Nobody => {
                ". No arbiter tells clients which server is the primary: after a promotion, those \
                 that still reach the old one and those of the new one hold the same locks without \
                 limit; use redis+sentinel://"
            }
            Arbiter::Sentinels => {
                ". After a failover, two may hold one lock for one TTL at the most"
            }
            Arbiter::Primaries => {
                ". After a failover, two may hold one lock for one TTL at the most, and \
                 cluster-node-timeout"
            }
        }
    }

    fn disk(&self) -> Finding {
        let check = "disk";
        let states = ["rdb_last_bgsave_status", "aof_last_write_status"];
        let known: Vec<_> = states
            .iter()
            .filter_map(|state| Some((*state, self.info.get(state)?)))
            .collect();
        match known.iter().find(|(_, status)| *status != "ok") {
            Some((state, status)) => (
                check,
                Verdict::Fail,
                format!("{state} is {status}: the server refuses writes until its disk works"),
            ),
            None if known.is_empty() => {
                (check, Verdict::Unknown, "this user may not run INFO".into())
            }
            None => (
                check,
                Verdict::Pass,
                "the last write to it succeeded".into(),
            ),
        }
    }
}
