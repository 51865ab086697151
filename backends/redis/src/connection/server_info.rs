//! The server's description of itself, read when a connection is made.
//!
//! A server that cannot serve locks (a sentinel, a replica, a server that loads its data, one with
//! a wrong clock) is refused here, before any operation reaches it.

use std::{collections::HashMap, ops::Range};

use distlock_core::{Epoch, Error, ErrorKind, Result};
use redis::Value;

use crate::error::{self, BACKEND};

/// The clock readings that make valid tokens: 16 decimal digits, so that comparing two texts is the
/// same as comparing two numbers. The range goes from 2001 to the highest token, which is in 2255.
const DIGITS_16: Range<u64> = 1_000_000_000_000_000..9_007_199_254_740_991;

/// The description of a primary when the connection was made.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    /// Product and version: `Redis 7.0.15`, `Valkey 9.0.1`.
    pub(crate) version: String,
    /// The epoch, made from the run id and the last promotion.
    pub(crate) epoch: Epoch,
    /// Whether cluster mode is on; `None` when this user may not run `INFO`.
    pub(crate) clustered: Option<bool>,
    /// Whether the append-only file is on; `None` when this user may not run `INFO`.
    pub(crate) appends: Option<bool>,
    /// The policy by which a server with little memory deletes keys, held locks among them; `None`
    /// if it deletes none, or if this user may not run `INFO`.
    pub(crate) eviction: Option<String>,
}

impl ServerInfo {
    /// Reads the answers to `TIME` and `INFO`. Returns the server's clock in microseconds since
    /// 1970, and the server's description.
    ///
    /// # Errors
    /// When the server cannot serve: it is loading its data, it is a replica or a sentinel, or its
    /// clock is wrong.
    pub(crate) fn read(answers: Vec<Value>, address: &str) -> Result<(u64, Self)> {
        let mut answers = answers.into_iter();
        let time = answers.next().unwrap_or(Value::Nil);
        let info = InfoReply::read(answers.next());
        // A sentinel knows no `TIME` and has no keys.
        if info.mode() == Some("sentinel") {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "{address} is a sentinel: use redis+sentinel://{address}/PRIMARY instead of \
                     redis://"
                ),
            )
            .on(BACKEND));
        }
        if let Value::ServerError(refusal) = &time {
            return Err(error::of_question(refusal, address));
        }
        let time = redis::from_redis_value::<(u64, u64)>(time)
            .map(|(seconds, micros)| seconds.saturating_mul(1_000_000).saturating_add(micros))
            .map_err(|_| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("{address} does not answer like a Redis server"),
                )
                .on(BACKEND)
            })?;
        if !DIGITS_16.contains(&time) {
            return Err(unavailable(format!(
                "the clock of {address} is wrong, {} seconds since 1970, and tokens are taken from \
                 it: set it",
                time / 1_000_000
            )));
        }
        let server = Self {
            version: info.version(),
            epoch: info.epoch(),
            clustered: info.mode().map(|mode| mode == "cluster"),
            appends: info.get("aof_enabled").map(|on| on == "1"),
            eviction: info.eviction().map(str::to_owned),
        };
        info.check_is_primary(
            address,
            "locks need the primary: connect to that, or through redis+sentinel:// or \
             redis+cluster://",
        )?;
        Ok((time, server))
    }
}

/// The answer to `INFO`, as fields and values.
#[derive(Debug, Default)]
pub(crate) struct InfoReply(HashMap<String, String>);

impl InfoReply {
    pub(crate) fn read(answer: Option<Value>) -> Self {
        let text = match answer {
            Some(Value::ServerError(_)) | None => return Self::default(),
            Some(value) => redis::from_redis_value::<String>(value).unwrap_or_default(),
        };
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Self(
            lines
                .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
                .collect(),
        )
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Checks that the server is a primary that has its data. Without the right to run `INFO`
    /// nothing is refused. `advice` says what needs the primary, and how to connect to it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: the server is loading its data, or it is a replica.
    pub(super) fn check_is_primary(&self, address: &str, advice: &str) -> Result<()> {
        if self.get("loading").is_some_and(|loading| loading == "1") {
            return Err(unavailable(format!("{address} is loading its data")));
        }
        if self.get("role").is_some_and(|role| role == "slave") {
            let primary = self.get("master_host").unwrap_or("another server");
            let port = self.get("master_port").unwrap_or("?");
            return Err(unavailable(format!(
                "{address} is a replica of {primary}:{port}, and {advice}"
            )));
        }
        Ok(())
    }

    /// Returns the policy by which the server deletes keys when it has used all the memory that it
    /// may use; `None` if it deletes none. Every policy takes locks: `volatile-..` takes keys that
    /// expire, as locks do, and `allkeys-..` takes any key.
    pub(crate) fn eviction(&self) -> Option<&str> {
        let is_limited = self.get("maxmemory").is_some_and(|most| most != "0");
        let policy = self.get("maxmemory_policy").filter(|_| is_limited)?;
        (policy != "noeviction").then_some(policy)
    }

    /// Returns `standalone`, `cluster` or `sentinel`. Valkey has another name for this field.
    fn mode(&self) -> Option<&str> {
        self.get("redis_mode").or_else(|| self.get("server_mode"))
    }

    fn version(&self) -> String {
        if let Some(version) = self.get("valkey_version") {
            return format!("Valkey {version}");
        }
        match self.get("redis_version") {
            Some(version) => format!("Redis {version}"),
            None => "Redis of unknown version".into(),
        }
    }

    /// Returns the epoch, made from the run id and the last promotion. A server may have lost data
    /// when it was started, and when it was promoted after it had another server's data.
    ///
    /// A server that was promoted has a second replication id. The first id alone is no sign: it
    /// also changes when the first replica is attached, and when the last one has been away for
    /// `repl-backlog-ttl`. Then the server forgets the second id, and all data is still there. So
    /// the name of such a server is the beginning of the name from after its promotion. A client
    /// misses a promotion only if it asked for no epoch until the server forgot the promotion.
    fn epoch(&self) -> Epoch {
        let short = |key| self.get(key).map(|id| id.get(..16).unwrap_or(id));
        let run = short("run_id").unwrap_or("unknown");
        let second = self.get("master_replid2");
        let was_promoted = second.is_none_or(|id| id.bytes().any(|digit| digit != b'0'));
        match short("master_replid").filter(|_| was_promoted) {
            Some(replication) => Epoch::new(format!("redis-{run}-{replication}")),
            None => Epoch::new(format!("redis-{run}")),
        }
    }
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).on(BACKEND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(info: &str) -> Vec<Value> {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        vec![
            Value::Array(vec![bulk("1760000000"), bulk("25")]),
            bulk(info),
        ]
    }

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                        run_id:0123456789abcdef0123\r\nloading:0\r\naof_enabled:1\r\n\
                        role:master\r\nmaster_replid:fedcba98765432100123\r\n\
                        master_replid2:0000000000000000000000000000000000000000\r\n";

    #[test]
    fn a_primary_is_described() {
        let (time, server) = ServerInfo::read(answers(INFO), "a:1").unwrap();
        assert_eq!(time, 1_760_000_000_000_025);
        assert_eq!(server.version, "Redis 7.0.15");
        assert_eq!(server.epoch.as_str(), "redis-0123456789abcdef");
        assert_eq!(
            (server.clustered, server.appends, server.eviction),
            (Some(false), Some(true), None)
        );
    }

    #[test]
    fn a_limit_with_any_policy_but_noeviction_evicts() {
        for (most, policy, evicts) in [
            ("0", "allkeys-lru", false),
            ("100", "noeviction", false),
            ("100", "volatile-ttl", true),
            ("100", "allkeys-lru", true),
        ] {
            let info = format!("{INFO}maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            let (_, server) = ServerInfo::read(answers(&info), "a:1").unwrap();
            assert_eq!(server.eviction.is_some(), evicts, "{most} {policy}");
        }
    }

    #[test]
    fn a_promotion_is_part_of_the_epoch() {
        let promoted = INFO.replace("master_replid2:0000", "master_replid2:0a00");
        let (_, server) = ServerInfo::read(answers(&promoted), "a:1").unwrap();
        let name = "redis-0123456789abcdef-fedcba9876543210";
        assert_eq!(server.epoch.as_str(), name);
    }

    #[test]
    fn valkey_is_described() {
        let valkey = INFO.replace("redis_mode:", "server_mode:") + "valkey_version:9.0.1\r\n";
        let (_, server) = ServerInfo::read(answers(&valkey), "a:1").unwrap();
        assert_eq!(server.version, "Valkey 9.0.1");
        assert_eq!(server.clustered, Some(false));
    }

    #[test]
    fn a_server_that_cannot_serve_is_refused() {
        let replica = INFO.replace(
            "role:master",
            "role:slave\r\nmaster_host:db\r\nmaster_port:7",
        );
        let loading = INFO.replace("loading:0", "loading:1");
        for (info, says) in [(replica, "replica of db:7"), (loading, "loading")] {
            let error = ServerInfo::read(answers(&info), "a:1").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    /// An example is a machine without a battery-backed clock, before its time was set.
    #[test]
    fn a_server_with_a_clock_out_of_range_is_refused() {
        for (seconds, wrong) in [
            ("0", true),
            ("999999999", true),
            ("1000000000", false),
            ("9007199253", false),
            ("9007199255", true),
        ] {
            let mut answers = answers(INFO);
            let time = [seconds, "0"].map(|text| Value::BulkString(text.into()));
            answers[0] = Value::Array(time.to_vec());
            let read = ServerInfo::read(answers, "a:1");
            assert_eq!(read.is_err(), wrong, "{seconds}: {read:?}");
            if let Err(error) = read {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(error.to_string().contains("the clock of a:1"), "{error}");
            }
        }
    }

    #[test]
    fn a_sentinel_is_refused() {
        let mut answers = answers("redis_version:7.0.15\r\nredis_mode:sentinel\r\n");
        answers[0] = Value::Nil;
        let error = ServerInfo::read(answers, "a:1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.to_string().contains("redis+sentinel://a:1/"),
            "{error}"
        );
    }

    #[test]
    fn a_server_without_info_rights_is_accepted() {
        let (_, server) = ServerInfo::read(answers(""), "a:1").unwrap();
        assert_eq!((server.clustered, server.appends), (None, None));
        assert_eq!(server.epoch.as_str(), "redis-unknown");
    }
}
