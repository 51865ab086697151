//! Health: every setting of the servers that a promise rests on.

use std::{collections::HashMap, sync::Arc};

use distlock_core::{Health, Result, Verdict};
use redis::Value;

use crate::{
    config::{Endpoint, RedisConfig, Topology},
    connection::{Info, Link},
    doctor::{rights, settings},
    format::names::SLOTS,
    routing::{Primaries, Router},
};

/// The settings that are looked at.
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

/// Asks every primary that can be reached.
///
/// # Errors
/// When none of them can be asked, or one stops to answer meanwhile.
pub(crate) async fn examine(router: &Router) -> Result<Health> {
    let unserved = router.unserved().await?;
    let Primaries { links, missing } = router.primaries().await?;
    let several = links.len() + missing.len() > 1;
    let addresses: Vec<_> = links.iter().map(|link| Arc::clone(&link.address)).collect();
    let mut health: Option<Health> = None;
    for link in links {
        let patient = Patient::ask(&link, Arbiter::of(router)).await?;
        let health = health.get_or_insert_with(|| {
            let mut health = Health::new(link.server.version.clone());
            health.epoch = Some(router.epoch(&link));
            health
        });
        let rights = rights::rights(router, &link).await?;
        for (check, verdict, detail) in patient.findings().into_iter().chain([rights]) {
            let at = if several {
                format!("{}: ", link.address)
            } else {
                String::new()
            };
            health.found(check, verdict, format!("{at}{detail}"));
        }
    }
    let mut health = health.unwrap_or_else(|| Health::new("Redis"));
    if let Some(sentinels) = router.sentinels() {
        let (all, naming) = sentinels.examine().await?;
        let (check, verdict, detail) = settings::sentinels(all, naming);
        health.found(check, verdict, detail);
    }
    password(router.dialer.config(), &addresses, &mut health);
    for (endpoint, error) in &missing {
        health.found(
            "slots",
            Verdict::Fail,
            format!(
                "{endpoint} cannot be reached: locks in its slots can be neither taken nor freed; start it, or have a \
                 replica take its place ({})",
                error.message()
            ),
        );
    }
    match unserved {
        None => {}
        Some(0) if !missing.is_empty() => {}
        Some(0) => health.found("slots", Verdict::Pass, "each has a server"),
        Some(unserved) => health.found(
            "slots",
            Verdict::Fail,
            format!(
                "nobody serves {unserved} of {SLOTS}: locks in them can be neither taken nor freed; repair the cluster \
                 with `redis-cli --cluster fix`"
            ),
        ),
    }
    Ok(health)
}

/// How the passwords travel to the primaries and the sentinels.
fn password(config: &RedisConfig, primaries: &[Arc<str>], health: &mut Health) {
    let mut hosts = Vec::new();
    if config.password.is_some() {
        let endpoints = primaries.iter().filter_map(|at| Endpoint::parse(at, 0));
        hosts.extend(endpoints.map(|endpoint| endpoint.host));
    }
    if let Topology::Sentinel { sentinels, .. } = &config.topology
        && config.sentinel_password.is_some()
    {
        hosts.extend(sentinels.iter().map(|endpoint| endpoint.host.clone()));
    }
    let rule = config.password_rule(!hosts.is_empty());
    rule.examine(hosts.iter().map(String::as_str), health);
}

pub(super) type Finding = (&'static str, Verdict, String);

/// Who says which server is the primary, when one takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arbiter {
    /// Whoever promotes a replica by hand.
    Nobody,
    Sentinels,
    /// The other primaries of a cluster.
    Primaries,
}

impl Arbiter {
    const fn of(router: &Router) -> Self {
        if router.sentinels().is_some() {
            Self::Sentinels
        } else if router.is_cluster() {
            Self::Primaries
        } else {
            Self::Nobody
        }
    }
}

/// What one server says about itself.
struct Patient {
    arbiter: Arbiter,
    info: Info,
    /// Or what to do so that they can be read.
    settings: Result<HashMap<String, String>, &'static str>,
}

impl Patient {
    async fn ask(link: &Arc<Link>, arbiter: Arbiter) -> Result<Self> {
        let mut questions = redis::pipe();
        questions.cmd("INFO");
        for setting in SETTINGS {
            questions.cmd("CONFIG").arg("GET").arg(setting);
        }
        let mut answers = link.send(&questions).await?.into_iter();
        let info = Info::read(answers.next());
        let mut settings = HashMap::new();
        let mut refused = None;
        for answer in answers {
            match answer {
                Value::ServerError(refusal) if rights::is_unknown(&refusal) => {
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

    fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.version(), self.role()];
        match &self.settings {
            Ok(settings) => {
                let get = |name: &str| settings.get(name).map(String::as_str);
                findings.push(settings::eviction(
                    get("maxmemory"),
                    get("maxmemory-policy"),
                ));
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
                for check in [
                    "eviction",
                    "persistence",
                    "replicas",
                    "demotion",
                    "buffers",
                    "pushes",
                ] {
                    findings.push((check, Verdict::Unknown, (*why).into()));
                }
            }
        }
        findings.push(self.disk());
        findings.push(settings::memory(&self.info));
        findings
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
            return settings::untold(check, "min-replicas-to-write");
        };
        let is_set = !matches!(to_write, "" | "0");
        let verdict = match (self.arbiter, is_set) {
            // Nothing bounds for how long two may be valid.
            (Arbiter::Nobody, false) => Verdict::Fail,
            (Arbiter::Nobody, true) | (_, false) => Verdict::Warn,
            (_, true) => Verdict::Pass,
        };
        if !is_set {
            return (
                check,
                verdict,
                format!(
                    "{connected} connected, and a primary that is cut off from them goes on granting locks that a \
                     failover forgets: set min-replicas-to-write 1 and min-replicas-max-lag 2. It costs that nothing \
                     is locked, renewed or freed while no replica follows; it gains that a primary that is cut off \
                     stops within that lag{}",
                    self.bound()
                ),
            );
        }
        (
            check,
            verdict,
            format!(
                "{connected} connected, and a primary that is cut off from {to_write} stops; replication is asynchronous all \
                 the same, so a failover may forget the latest locks: fence what they protect{}",
                self.bound()
            ),
        )
    }

    /// For how long two may be valid after a replica took the primary's place.
    const fn bound(&self) -> &'static str {
        match self.arbiter {
            Arbiter::Nobody => {
                ". No arbiter tells clients which server is the primary: after a promotion, those that still reach the \
                 old one and those of the new one hold the same locks without limit; use redis+sentinel://"
            }
            Arbiter::Sentinels => {
                ". After a failover, two may hold one lock for one TTL at the most"
            }
            Arbiter::Primaries => {
                ". After a failover, two may hold one lock for one TTL at the most, and cluster-node-timeout"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn patient(info: &str, settings: Option<&[(&str, &str)]>) -> Vec<(&'static str, Verdict)> {
        let patient = Patient {
            arbiter: Arbiter::Sentinels,
            info: Info::read(Some(Value::BulkString(info.as_bytes().to_vec()))),
            settings: settings.ok_or("not told").map(|pairs| {
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect()
            }),
        };
        let findings = patient.findings();
        findings
            .into_iter()
            .map(|(check, verdict, _)| (check, verdict))
            .collect()
    }

    #[test]
    fn a_safe_server_passes() {
        let info = "redis_version:7.0.15\nrole:master\nconnected_slaves:1\nrdb_last_bgsave_status:ok\n\
             used_memory:10\nmaxmemory:100\nmaxmemory_policy:noeviction\n";
        let settings = [
            ("maxmemory", "100"),
            ("maxmemory-policy", "noeviction"),
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("min-replicas-to-write", "1"),
            ("replica-read-only", "yes"),
            ("client-output-buffer-limit", "normal 0 0 0 slave 1 1 1"),
            ("maxmemory-clients", "0"),
            ("tracking-table-max-keys", "1000000"),
        ];
        let findings = patient(info, Some(&settings));
        assert_eq!(findings.len(), 10);
        assert!(
            findings
                .iter()
                .all(|(_, verdict)| *verdict == Verdict::Pass),
            "{findings:?}"
        );
    }

    #[test]
    fn each_weakness_is_named() {
        let info = "redis_version:6.0.1\nrole:slave\nconnected_slaves:2\naof_last_write_status:err\n\
             used_memory:95\nmaxmemory:100\nmaxmemory_policy:volatile-ttl\nevicted_keys:0\n";
        let settings = [
            ("maxmemory", "100"),
            ("maxmemory-policy", "volatile-ttl"),
            ("appendonly", "no"),
            ("min-replicas-to-write", "0"),
            ("replica-read-only", "no"),
            ("client-output-buffer-limit", "normal 0 1048576 60"),
            ("tracking-table-max-keys", "10"),
        ];
        assert_eq!(
            patient(info, Some(&settings)),
            [
                ("version", Verdict::Fail),
                ("role", Verdict::Fail),
                ("eviction", Verdict::Warn),
                ("persistence", Verdict::Warn),
                ("replicas", Verdict::Warn),
                ("demotion", Verdict::Warn),
                ("buffers", Verdict::Warn),
                ("pushes", Verdict::Warn),
                ("disk", Verdict::Fail),
                ("memory", Verdict::Warn),
            ]
        );
    }

    #[test]
    fn a_server_without_memory_fails_whether_it_refuses_or_evicts() {
        for (used, most, policy, evicted, expected) in [
            (1 << 40, 0, "noeviction", 0, Verdict::Pass),
            (90, 100, "noeviction", 0, Verdict::Pass),
            (95, 100, "noeviction", 0, Verdict::Warn),
            // With nothing to evict, it has to refuse as well.
            (101, 100, "noeviction", 0, Verdict::Fail),
            (101, 100, "volatile-lru", 0, Verdict::Fail),
            (95, 100, "allkeys-lru", 0, Verdict::Warn),
            (95, 100, "allkeys-lru", 1, Verdict::Fail),
            // That it did so once is no reason to fail it for ever.
            (50, 100, "allkeys-lru", 1, Verdict::Pass),
        ] {
            let info = |beside: u64| {
                let info = format!(
                    "used_memory:{}\nmaxmemory:{most}\nmaxmemory_policy:{policy}\n\
                     evicted_keys:{evicted}\nmem_not_counted_for_evict:{beside}\n",
                    used + beside
                );
                Info::read(Some(Value::BulkString(info.into_bytes())))
            };
            for beside in [0, 7] {
                let (_, verdict, detail) = settings::memory(&info(beside));
                assert_eq!(verdict, expected, "{detail}");
            }
        }
    }

    #[test]
    fn what_may_not_be_read_is_unknown() {
        // Some servers that are run for others let everybody read the settings, and leave out what they keep to themselves.
        for settings in [None, Some(&[][..])] {
            let findings = patient("", settings);
            assert_eq!(findings.len(), 10);
            assert!(
                findings
                    .iter()
                    .all(|(_, verdict)| *verdict == Verdict::Unknown),
                "{findings:?}"
            );
        }
    }

    #[test]
    fn a_setting_that_is_left_out_is_unknown_where_it_matters() {
        let info = |replicas| {
            format!(
                "redis_version:7.0.15\nrole:master\nconnected_slaves:{replicas}\naof_last_write_status:ok\n"
            )
        };
        let verdict = |replicas, settings: &[_], check| {
            let findings = patient(&info(replicas), Some(settings));
            let found = findings.into_iter().find(|(found, _)| *found == check);
            found.map(|(_, verdict)| verdict).unwrap()
        };
        for (replicas, settings, check, expected) in [
            (0, &[][..], "replicas", Verdict::Pass),
            (1, &[], "replicas", Verdict::Unknown),
            (
                1,
                &[("min-replicas-to-write", "0")],
                "replicas",
                Verdict::Warn,
            ),
            (0, &[("maxmemory", "0")], "eviction", Verdict::Pass),
            (0, &[("maxmemory", "1")], "eviction", Verdict::Unknown),
            (
                0,
                &[("maxmemory-policy", "noeviction")],
                "eviction",
                Verdict::Pass,
            ),
            (
                0,
                &[("maxmemory-policy", "allkeys-lru")],
                "eviction",
                Verdict::Unknown,
            ),
            (0, &[("save", "3600 1")], "persistence", Verdict::Unknown),
            (0, &[("appendonly", "no")], "persistence", Verdict::Warn),
            (
                0,
                &[("appendonly", "no"), ("save", "3600 1")],
                "persistence",
                Verdict::Warn,
            ),
            (
                0,
                &[("appendonly", "no"), ("save", "")],
                "persistence",
                Verdict::Fail,
            ),
            (0, &[("appendonly", "yes")], "persistence", Verdict::Pass),
            (
                0,
                &[
                    ("client-output-buffer-limit", "normal 0 0 0"),
                    ("maxmemory-clients", "1048576"),
                ],
                "buffers",
                Verdict::Warn,
            ),
            (
                0,
                &[("client-output-buffer-limit", "normal 67108864 0 0")],
                "buffers",
                Verdict::Pass,
            ),
            (
                0,
                &[("tracking-table-max-keys", "0")],
                "pushes",
                Verdict::Pass,
            ),
        ] {
            assert_eq!(
                verdict(replicas, settings, check),
                expected,
                "{check}: {settings:?}"
            );
        }
    }
}
