//! From a URL to an open store. The only file that names the backends.

use std::{future::Future, path::Path, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Locker, Result, Store, not_compiled_in};

use crate::config::{Parts, Target, nearest};

/// Opens a store.
///
/// ```
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// let store = distlock::open("memory:").await?;
/// let (locker, records) = (store.locker(), store.records());
/// # let _ = (locker, records); store.close().await; Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a URL or option that is wrong, which is named;
/// [`ErrorKind::Unsupported`] for a backend that this build does not have;
/// [`ErrorKind::Unavailable`] when the store does not answer within the `connect_timeout` (an
/// option, 5 s); and what else the backend reports. Passwords never appear in any of them.
///
/// # Cancel safety
/// Safe.
pub async fn open(target: impl Into<Target>) -> Result<Store> {
    open_target(target.into()).await
}

/// Opens a store and gives its [`Locker`], once everything is connected, the renewal thread
/// included.
///
/// ```
/// # #[tokio::main] async fn main() -> distlock::Result<()> {
/// let locker = distlock::connect("memory:").await?;
/// let guard = locker.lock("order:42").acquire().await?;
/// assert!(guard.release().await.is_clean());
/// # locker.close().await; Ok(()) }
/// ```
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// Safe.
pub async fn connect(target: impl Into<Target>) -> Result<Locker> {
    Ok(open_target(target.into()).await?.locker())
}

/// The result of [`migrate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version of the tables now; `None` for a backend without tables.
    pub version: Option<i64>,
    /// The steps that this call took.
    pub applied: Vec<&'static str>,
}

/// Creates or upgrades a store's tables.
///
/// # Errors
/// As [`open`], and whatever the store refuses.
///
/// # Cancel safety
/// Each step is atomic; dropping the future may leave later ones for the next call.
pub async fn migrate(target: impl Into<Target>) -> Result<Migrated> {
    let target = target.into();
    let parts = target.parts()?;
    let backend = Backend::of(&target, &parts.scheme)?;
    let (clock, limit) = (parts.clock.clone(), parts.connect_timeout);
    let migrating = Box::pin(backend.migrate(&target, parts));
    within(&*clock, limit, &target, migrating).await
}

impl Target {
    /// A SQLite file; its path may hold any character.
    #[must_use]
    pub fn sqlite(path: impl AsRef<Path>) -> Self {
        use std::fmt::Write as _;
        let mut url = String::from("sqlite:");
        for byte in path.as_ref().as_os_str().as_encoded_bytes() {
            if byte.is_ascii_alphanumeric() || b"/-_.~+,:=@".contains(byte) {
                url.push(char::from(*byte));
            } else {
                let _ = write!(url, "%{byte:02X}");
            }
        }
        Self::new(url)
    }
}

async fn open_target(target: Target) -> Result<Store> {
    let parts = target.parts()?;
    let backend = Backend::of(&target, &parts.scheme)?;
    let (clock, limit) = (parts.clock.clone(), parts.connect_timeout);
    let connecting = async {
        // Boxed, because the drivers' connecting futures are large and callers should not carry
        // them.
        let store = Box::pin(backend.open(&target, parts)).await?;
        store.ready().await?;
        Ok(store)
    };
    within(&*clock, limit, &target, connecting).await
}

/// The backends of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    #[cfg(feature = "memory")]
    Memory,
    #[cfg(feature = "mysql")]
    MySql,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "sqlite")]
    Sqlite,
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

/// Schemes, and the feature that brings each one's backend.
const FEATURES: [(&str, &str); 11] = [
    ("mariadb", "mysql"),
    ("memory", "memory"),
    ("mysql", "mysql"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("redis", "redis"),
    ("redis+cluster", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss", "redis,tls"),
    ("sqlite", "sqlite"),
    ("zookeeper", "zookeeper"),
];

/// Schemes that are reserved for backends of later versions.
const NOT_YET: [(&str, &str); 2] = [("distlock", "distlock lock server"), ("etcd", "etcd")];

impl Backend {
    fn of(target: &Target, scheme: &str) -> Result<Self> {
        match scheme {
            #[cfg(feature = "memory")]
            "memory" => return Ok(Self::Memory),
            #[cfg(feature = "mysql")]
            "mariadb" | "mysql" => return Ok(Self::MySql),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => return Ok(Self::Postgres),
            #[cfg(feature = "redis")]
            "redis" | "redis+cluster" | "redis+sentinel" | "rediss" => return Ok(Self::Redis),
            #[cfg(feature = "sqlite")]
            "sqlite" => return Ok(Self::Sqlite),
            #[cfg(feature = "zookeeper")]
            "zookeeper" => return Ok(Self::ZooKeeper),
            _ => {}
        }
        if let Some(error) = not_built(target, scheme) {
            return Err(error);
        }
        if let Some((_, backend)) = NOT_YET.iter().find(|(known, _)| *known == scheme) {
            return Err(unsupported(
                target,
                format!(
                    "the {backend} backend ({scheme}:) is not part of this version of distlock: \
                    it has {}",
                    FEATURES.map(|(scheme, _)| format!("{scheme}:")).join(", ")
                ),
            ));
        }
        let known = FEATURES.iter().chain(&NOT_YET).map(|(scheme, _)| *scheme);
        let hint = match nearest(scheme, known) {
            Some(near) => format!("did you mean {near}:?"),
            None => format!(
                "known are {}",
                FEATURES.map(|(scheme, _)| format!("{scheme}:")).join(", ")
            ),
        };
        Err(target.wrong(format!("unknown backend scheme \"{scheme}:\": {hint}")))
    }

    #[allow(
        clippy::unused_async,
        unused_variables,
        reason = "only without features, or with few"
    )]
    async fn open(self, target: &Target, parts: Parts) -> Result<Store> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory => memory(target, parts),
            #[cfg(feature = "mysql")]
            Self::MySql => mysql::open(target, parts).await,
            #[cfg(feature = "postgres")]
            Self::Postgres => postgres::open(target, parts).await,
            #[cfg(feature = "redis")]
            Self::Redis => redis::open(target, parts).await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite => sqlite::open(target, parts).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => zookeeper::open(target, parts).await,
        }
    }

    #[allow(
        clippy::unused_async,
        unused_variables,
        reason = "only without features, or with few"
    )]
    async fn migrate(self, target: &Target, parts: Parts) -> Result<Migrated> {
        match self {
            #[cfg(feature = "memory")]
            Self::Memory => {
                let store = memory(target, parts)?;
                store.close().await;
                Ok(Migrated::default())
            }
            #[cfg(feature = "mysql")]
            Self::MySql => mysql::migrate(target, parts).await,
            #[cfg(feature = "postgres")]
            Self::Postgres => postgres::migrate(target, parts).await,
            #[cfg(feature = "redis")]
            Self::Redis => {
                // Redis has no tables; keys appear when they are needed.
                let store = redis::open(target, parts).await?;
                store.close().await;
                Ok(Migrated::default())
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite => sqlite::migrate(target, parts).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => {
                // ZooKeeper has no tables; connecting creates missing nodes.
                let store = zookeeper::open(target, parts).await?;
                store.close().await;
                Ok(Migrated::default())
            }
        }
    }
}

/// Checks name and options; returns whether the store is private.
#[cfg(feature = "memory")]
fn is_private_memory(target: &Target, parts: &mut Parts) -> Result<bool> {
    let mut options = std::mem::take(&mut parts.options);
    let private = match options.take("private") {
        None => false,
        Some(given) => match given.value.as_str() {
            "true" => true,
            "false" => false,
            _ => return Err(given.wrong("it is neither true nor false")),
        },
    };
    options.finish("memory")?;
    let name = &parts.body;
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    if !name.chars().all(plain) {
        return Err(target.wrong(format!(
            "the name of a memory store has letters, digits, '-', '_' and '.', and \"{}\" is given",
            target.masked_url().escape_debug()
        )));
    }
    if private && !name.is_empty() {
        return Err(target.wrong(format!(
            "a private store is shared with nobody, so it takes no name, and \"{name}\" is given"
        )));
    }
    Ok(private)
}

#[cfg(feature = "memory")]
fn memory(target: &Target, mut parts: Parts) -> Result<Store> {
    use distlock_memory::Memory;

    let memory = if is_private_memory(target, &mut parts)? {
        Memory::new(parts.clock.clone())
    } else if parts.clock.is_system() {
        Memory::shared(&parts.body)
    } else {
        return Err(target.wrong(
            "a store that the process shares goes by the machine's clock: `memory:?private=true` \
            takes another"
                .to_owned(),
        ));
    };
    Ok(Store::with_clock(
        memory.lock(),
        memory.records(),
        parts.clock,
    ))
}

#[cfg(feature = "mysql")]
mod mysql {
    use distlock_core::{Result, Store};
    use distlock_sql::MySql;

    use super::{Migrated, migrated, server};
    use crate::config::{Parts, Target};

    pub(super) async fn open(target: &Target, mut parts: Parts) -> Result<Store> {
        let config = server::config(target, &mut parts)?;
        let mysql = MySql::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            mysql.lock(),
            mysql.records(),
            parts.clock,
        ))
    }

    pub(super) async fn migrate(target: &Target, mut parts: Parts) -> Result<Migrated> {
        let config = server::config(target, &mut parts)?;
        Ok(migrated(&MySql::migrate(config, parts.clock).await?))
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use distlock_core::{Result, Store};
    use distlock_sql::Postgres;

    use super::{Migrated, migrated, server};
    use crate::config::{Parts, Target};

    pub(super) async fn open(target: &Target, mut parts: Parts) -> Result<Store> {
        let config = server::config(target, &mut parts)?;
        let postgres = Postgres::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            postgres.lock(),
            postgres.records(),
            parts.clock,
        ))
    }

    pub(super) async fn migrate(target: &Target, mut parts: Parts) -> Result<Migrated> {
        let config = server::config(target, &mut parts)?;
        Ok(migrated(&Postgres::migrate(config, parts.clock).await?))
    }
}

/// A database server of any dialect.
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server {
    use distlock_core::{ErrorKind, Result};
    use distlock_sql::{Product, ServerConfig};

    use crate::config::{Parts, Target};

    pub(super) fn config(target: &Target, parts: &mut Parts) -> Result<ServerConfig> {
        let Some(product) = Product::of(&parts.scheme) else {
            return Err(target.wrong(format!("{:?} is no database server", parts.scheme)));
        };
        let mut options = std::mem::take(&mut parts.options);
        let given = options.take_all(product.options());
        options.finish(product.name())?;
        let pairs: Vec<_> = given
            .iter()
            .map(|option| (option.key.clone(), option.value.clone()))
            .collect();
        let parse = |pairs: &[_]| ServerConfig::from_url_parts(&parts.scheme, &parts.body, pairs);
        let mut config = parse(&pairs).map_err(|error| {
            // Options are added one by one. The first one that fails with the same error is the
            // wrong one.
            let same = |end: usize| {
                parse(&pairs[..end]).err().map(|e| e.to_string()) == Some(error.to_string())
            };
            match (0..=pairs.len()).find(|&end| same(end)) {
                Some(end @ 1..) => given[end - 1].blame(&error),
                _ if error.kind() == ErrorKind::Unsupported => error,
                _ => target.wrong(error.message().to_owned()),
            }
        })?;
        // The backend's own time-out comes first, because its error says more than ours.
        config.connect_timeout = super::shorter(parts.connect_timeout);
        Ok(config)
    }
}

#[cfg(feature = "redis")]
mod redis {
    use distlock_core::{Result, Store};
    use distlock_redis::{Redis, RedisConfig};

    use crate::config::{Parts, Target};

    pub(super) async fn open(target: &Target, mut parts: Parts) -> Result<Store> {
        let mut config = config(target, &mut parts)?;
        // The backend's own time-out comes first, because its error says more than ours.
        config.connect_timeout = super::shorter(parts.connect_timeout);
        let redis = Redis::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            redis.lock(),
            redis.records(),
            parts.clock,
        ))
    }

    pub(super) fn config(target: &Target, parts: &mut Parts) -> Result<RedisConfig> {
        let mut options = std::mem::take(&mut parts.options);
        let given = options.take_all(&RedisConfig::OPTIONS);
        options.finish("redis")?;
        let pairs: Vec<_> = given
            .iter()
            .map(|option| (option.key.clone(), option.value.clone()))
            .collect();
        let parse = |pairs: &[_]| RedisConfig::from_url_parts(&parts.scheme, &parts.body, pairs);
        parse(&pairs).map_err(|error| {
            // Options are added one by one. The first one that fails with the same error is the
            // wrong one.
            let same = |end: usize| {
                parse(&pairs[..end]).err().map(|e| e.to_string()) == Some(error.to_string())
            };
            match (0..=pairs.len()).find(|&end| same(end)) {
                Some(end @ 1..) => given[end - 1].blame(&error),
                _ if error.kind() == distlock_core::ErrorKind::Unsupported => error,
                _ => target.wrong(error.message().to_owned()),
            }
        })
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use distlock_core::{Result, Store};
    use distlock_sql::{Sqlite, SqliteConfig};

    use super::{Migrated, migrated};
    use crate::config::{Parts, Target, percent_decode};

    pub(super) async fn open(target: &Target, mut parts: Parts) -> Result<Store> {
        let config = config(target, &mut parts)?;
        let sqlite = Sqlite::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            sqlite.lock(),
            sqlite.records(),
            parts.clock,
        ))
    }

    pub(super) async fn migrate(target: &Target, mut parts: Parts) -> Result<Migrated> {
        let config = config(target, &mut parts)?;
        Ok(migrated(&Sqlite::migrate(config, parts.clock).await?))
    }

    pub(super) fn config(target: &Target, parts: &mut Parts) -> Result<SqliteConfig> {
        let mut options = std::mem::take(&mut parts.options);
        let given = options.take_all(&SqliteConfig::OPTIONS);
        options.finish("sqlite")?;
        // `sqlite:///path` is the same as `sqlite:/path`.
        let path = parts.body.strip_prefix("//").unwrap_or(&parts.body);
        let path = percent_decode(path)
            .ok_or_else(|| target.wrong("the path of the SQLite file is not UTF-8".into()))?;
        let mut pairs = Vec::new();
        for option in given {
            pairs.push((option.key.clone(), option.value.clone()));
            // Each call has one option more than the last, so an error is about that option.
            SqliteConfig::from_url_parts("checked below", &pairs)
                .map_err(|error| option.blame(&error))?;
        }
        SqliteConfig::from_url_parts(&path, &pairs).map_err(|error| target.wrong(error.to_string()))
    }
}

#[cfg(feature = "zookeeper")]
mod zookeeper {
    use distlock_core::{Result, Store};
    use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};

    use crate::config::{Parts, Target};

    pub(super) async fn open(target: &Target, mut parts: Parts) -> Result<Store> {
        let mut config = config(target, &mut parts)?;
        // The rest of the time is for asking each server why there is no session.
        config.connect_timeout = parts.connect_timeout * 3 / 4;
        let zookeeper = ZooKeeper::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            zookeeper.lock(),
            zookeeper.records(),
            parts.clock,
        ))
    }

    pub(super) fn config(target: &Target, parts: &mut Parts) -> Result<ZooKeeperConfig> {
        let mut options = std::mem::take(&mut parts.options);
        let given = options.take_all(&ZooKeeperConfig::OPTIONS);
        options.finish("zookeeper")?;
        let pairs: Vec<_> = given
            .iter()
            .map(|option| (option.key.clone(), option.value.clone()))
            .collect();
        let parse = |pairs: &[_]| ZooKeeperConfig::from_url_parts(&parts.body, pairs);
        parse(&pairs).map_err(|error| {
            // Options are added one by one. The first one that fails with the same error is the
            // wrong one.
            let same = |end: usize| {
                parse(&pairs[..end]).err().map(|e| e.to_string()) == Some(error.to_string())
            };
            match (0..=pairs.len()).find(|&end| same(end)) {
                Some(end @ 1..) => given[end - 1].blame(&error),
                _ => target.wrong(error.message().to_owned()),
            }
        })
    }
}

/// The changes to tables whose versions were those of `from`.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
fn migrated(from: &distlock_sql::TablesStatus) -> Migrated {
    let last = from.migrations.last();
    Migrated {
        version: Some(last.map_or(from.version, |last| last.version)),
        applied: from.migrations.iter().map(|step| step.name).collect(),
    }
}

/// Reads a URL and its options, and opens nothing.
#[cfg(feature = "fuzzing")]
#[allow(unused_mut, unused_variables, reason = "only without features")]
pub(crate) fn check(target: &Target) -> Result<()> {
    let mut parts = target.parts()?;
    match Backend::of(target, &parts.scheme)? {
        #[cfg(feature = "memory")]
        Backend::Memory => is_private_memory(target, &mut parts).map(drop),
        #[cfg(feature = "mysql")]
        Backend::MySql => server::config(target, &mut parts).map(drop),
        #[cfg(feature = "postgres")]
        Backend::Postgres => server::config(target, &mut parts).map(drop),
        #[cfg(feature = "redis")]
        Backend::Redis => redis::config(target, &mut parts).map(drop),
        #[cfg(feature = "sqlite")]
        Backend::Sqlite => sqlite::config(target, &mut parts).map(drop),
        #[cfg(feature = "zookeeper")]
        Backend::ZooKeeper => zookeeper::config(target, &mut parts).map(drop),
    }
}

/// The error for a scheme whose backend is a feature that this build lacks.
fn not_built(target: &Target, scheme: &str) -> Option<Error> {
    let (_, features) = FEATURES.iter().find(|(known, _)| *known == scheme)?;
    let sentence = not_compiled_in(&format!("the {scheme} backend"), features);
    Some(unsupported(target, sentence))
}

fn unsupported(target: &Target, message: String) -> Error {
    Error::new(ErrorKind::Unsupported, target.located(message))
}

/// A time-out for a backend that gives up by itself, with a better error than ours. It is at least
/// the backends' lower limit.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn shorter(limit: Duration) -> Duration {
    (limit * 9 / 10).max(*Target::CONNECT_TIMEOUTS.start())
}

/// Bounds the whole of connecting, whichever step of it hangs.
async fn within<T>(
    clock: &dyn Clock,
    limit: Duration,
    target: &Target,
    connecting: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        done = connecting => done,
        () = clock.sleep(limit) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} did not answer within {limit:?} (connect_timeout)", target.masked_url()),
        )),
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::sync::Arc;

    use distlock_core::{Attempt, Expect, ManualClock, RecordKey, Written};

    use super::*;

    async fn is_held(store: &Store, name: &str) -> bool {
        let attempt = store.locker().lock(name).try_acquire().await.unwrap();
        matches!(attempt, Attempt::Busy(_))
    }

    #[tokio::test]
    async fn memory_is_one_store_per_name_within_the_process() {
        for url in ["memory:", "memory:one-per-name"] {
            let (one, two) = (open(url).await.unwrap(), open(url).await.unwrap());
            let name = format!("{url} held");
            let guard = one.locker().lock(&name).acquire().await.unwrap();
            assert!(is_held(&two, &name).await, "{url}");
            let key = RecordKey::new(&name).unwrap();
            let written = one.records().put(&key, b"1", Expect::Absent).await.unwrap();
            assert!(matches!(written, Written::Stored(_)), "{written:?}");
            assert!(two.records().get(&key).await.unwrap().is_some(), "{url}");
            for other in ["memory:another", "memory:?private=true"] {
                let other = open(other).await.unwrap();
                assert!(!is_held(&other, &name).await, "{url}");
                assert!(other.records().get(&key).await.unwrap().is_none(), "{url}");
            }
            assert!(guard.release().await.is_clean());
        }
    }

    #[tokio::test]
    async fn closing_one_client_of_a_shared_memory_leaves_the_others_alone() {
        let (one, two) = (
            open("memory:").await.unwrap(),
            open("memory:").await.unwrap(),
        );
        let kept = two.locker().lock("kept").acquire().await.unwrap();
        one.close().await;
        kept.extend(Duration::from_secs(5)).await.unwrap();
        assert!(two.locker().lock("other").acquire().await.is_ok());
        let three = open("memory:").await.unwrap();
        assert!(is_held(&three, "kept").await);
        assert!(kept.release().await.is_clean());
    }

    #[tokio::test]
    async fn a_shared_memory_outlives_its_clients() {
        let first = open("memory:outlives").await.unwrap();
        let guard = first.locker().lock("held").acquire().await.unwrap();
        let token = guard.token();
        let freed = first.locker().lock("freed").acquire().await.unwrap();
        let (freed_token, epoch) = (freed.token(), freed.epoch());
        assert!(freed.release().await.is_clean());
        // The client vanishes without a release.
        std::mem::forget(guard);
        first.close().await;
        drop(first);
        let second = open("memory:outlives").await.unwrap();
        assert!(is_held(&second, "held").await, "token {token} still holds");
        let next = second.locker().lock("freed").acquire().await.unwrap();
        assert!(next.token() > freed_token);
        assert_eq!(next.epoch(), epoch);
    }

    #[tokio::test]
    async fn each_private_memory_is_a_new_one() {
        let url = "memory:?private=true";
        let (one, two) = (open(url).await.unwrap(), open(url).await.unwrap());
        let _guard = one.locker().lock("a").acquire().await.unwrap();
        assert!(!is_held(&two, "a").await);
        let clock = Target::new(url).clock(Arc::new(ManualClock::new()));
        assert!(open(clock).await.is_ok());
    }

    #[tokio::test]
    async fn a_busy_lock_is_answered_with_methods_of_the_library() {
        let store = open("memory:?private=true").await.unwrap();
        let guard = store.locker().lock("a").acquire().await.unwrap();
        for wait in [Duration::ZERO, Duration::from_millis(20)] {
            let locker = store.locker();
            let one = locker.lock("a").wait(wait).acquire().await.unwrap_err();
            let all = locker.lock_all(["a", "b"]).wait(wait).acquire().await;
            for error in [one, all.unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::Timeout);
                let said = error.to_string();
                let advice =
                    "allow more time with `LockBuilder::wait`, look with `Locker::inspect`";
                assert!(said.ends_with(&format!("; {advice}")), "{said}");
                // The caller may not have the tool, and its options mean nothing in a program.
                assert!(!said.contains("distlock inspect"), "{said}");
                assert!(said.contains("held by"), "{said}");
            }
        }
        assert!(guard.release().await.is_clean());
    }

    #[test]
    fn a_backend_that_is_not_built_is_answered_with_the_readme_s_line_for_it() {
        const README: &str = include_str!("../README.md");
        const MANIFEST: &str = include_str!("../Cargo.toml");
        const TOOL: &str = include_str!("../cli/Cargo.toml");
        let features = |manifest: &str| {
            let manifest: toml::Table = toml::from_str(manifest).unwrap();
            manifest["features"].as_table().unwrap().clone()
        };
        let (known, known_to_the_tool) = (features(MANIFEST), features(TOOL));
        let exist = |listed: &str| listed.split(',').all(|one| known.contains_key(one));
        for (scheme, features) in FEATURES {
            assert!(exist(features), "{features}");
            let target = Target::new(format!("{scheme}://u:hunter2@h"));
            let error = not_built(&target, scheme).unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let said = error.to_string();
            let listed = features.replace(',', "\", \"");
            let line =
                format!("distlock = {{ path = \"../distlock\", features = [\"{listed}\"] }}");
            assert!(said.contains(&format!("`{line}`")), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
            // The features with which a test builds a project.
            if features == "sqlite" {
                assert!(README.contains(&format!("\n{line}\n")), "{said}");
            }
        }
        assert!(not_built(&Target::new("etcd://h"), "etcd").is_none());
        // The tools that these stores need: for TLS, and for SASL.
        for (features, tool) in [
            ("mysql,tls", "tls"),
            ("postgres,tls", "tls"),
            ("redis,tls", "tls"),
            ("zookeeper,sasl", "sasl"),
            ("zookeeper,tls", "tls"),
        ] {
            assert!(exist(features) && known_to_the_tool.contains_key(tool));
            let said = not_compiled_in("it", features);
            let command = "cargo install --locked --path cli";
            assert!(README.contains(command), "{command}");
            assert!(
                said.contains(&format!("`{command} --features {tool}`")),
                "{said}"
            );
        }
    }

    #[tokio::test]
    async fn a_memory_that_cannot_be_meant_is_refused() {
        let clock = Target::new("memory:").clock(Arc::new(ManualClock::new()));
        for (target, says) in [
            (Target::new("memory:a/b"), "has letters"),
            (Target::new("memory://name"), "has letters"),
            // A URL that was meant for a server.
            (Target::new("memory://u:hunter2@h"), "memory://u:***@h"),
            (Target::new("memory:name?private=true"), "takes no name"),
            (Target::new("memory:?private=yes"), "neither true nor false"),
            (Target::new("memory:?pivate=true"), "`private`"),
            (clock, "goes by the machine's clock"),
        ] {
            let error = open(target).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
