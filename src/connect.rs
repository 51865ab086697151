//! Opens stores with the drivers of this build.

use distlock_backend_kit::{Migrated, Target};
use distlock_core::{Locker, Result, Store};

use crate::Registry;

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
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a wrong URL or option, which the message
/// names; [`Unsupported`](crate::ErrorKind::Unsupported) for a backend that this build does not
/// have; [`Unavailable`](crate::ErrorKind::Unavailable) when the store does not answer within the
/// `connect_timeout` (an option, 5 s by default); and any other error of the backend. No message
/// contains a password.
///
/// # Cancel safety
/// Safe.
pub async fn open(target: impl Into<Target>) -> Result<Store> {
    Registry::builtin().open(target).await
}

/// Opens a store and returns its [`Locker`]. Everything is ready then: the connections, and the
/// thread that renews leases.
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
    Registry::builtin().connect(target).await
}

/// Creates a store's missing tables.
///
/// # Errors
/// As [`open`], and any error with which the store refuses a change of its tables.
///
/// # Cancel safety
/// Each step is atomic. Dropping the future may leave the remaining steps for the next call.
pub async fn migrate(target: impl Into<Target>) -> Result<Migrated> {
    Registry::builtin().migrate(target).await
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::{sync::Arc, time::Duration};

    use distlock_backend_kit::{Drivers, not_compiled_in};
    use distlock_core::{
        Attempt, ErrorKind, Expect, LockName, ManualClock, RecordKey, Remedy, Written,
    };

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
    async fn records_can_be_in_another_store_than_the_locks() {
        let (locks, records) = ("memory:locks-apart", "memory:records-apart");
        let target = Target::new(locks).records_in(records);
        let (one, two) = (open(&target).await.unwrap(), open(&target).await.unwrap());
        let (locks, records) = (open(locks).await.unwrap(), open(records).await.unwrap());
        let name = LockName::new("a").unwrap();
        let _guard = one.locker().lock_named(&name).acquire().await.unwrap();
        let key = RecordKey::new("a").unwrap();
        one.records().put(&key, b"1", Expect::Absent).await.unwrap();
        for (store, has_lock, has_record) in [
            (&two, true, true),
            (&locks, true, false),
            (&records, false, true),
            (&locks.clone().with_records_of(&records), true, true),
            (&two.records_store().unwrap(), false, true),
        ] {
            let lock = store.backend().inspect(&name).await.unwrap();
            assert_eq!(lock.held.is_some(), has_lock, "{store:?}");
            let entry = store.records().get(&key).await.unwrap();
            assert_eq!(entry.is_some(), has_record, "{store:?}");
        }
        assert!(locks.records_store().is_none() && records.records_store().is_none());
        let of_records = one.records_store().unwrap();
        one.close().await;
        for closed in [&one, &of_records] {
            let error = closed.records().get(&key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
            let error = closed.backend().health().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
        }
        assert!(two.records().get(&key).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_store_whose_records_cannot_be_opened_is_not_opened() {
        for (records, kind) in [
            ("memory:?pivate=true", ErrorKind::InvalidConfig),
            ("", ErrorKind::InvalidConfig),
            ("nowhere:", ErrorKind::InvalidConfig),
        ] {
            let target = || Target::new("memory:").records_in(records);
            let error = open(target()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let error = migrate(target()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let drivers = Registry::builtin();
            let error = drivers.drivers().check(target()).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        let both = Target::new("memory:").records_in("memory:records");
        let migrated = migrate(both).await.unwrap();
        assert_eq!(migrated.records, Some(Box::default()));
        assert_eq!(migrate("memory:").await.unwrap().records, None);
    }

    #[tokio::test]
    async fn closing_one_client_of_a_shared_memory_does_not_affect_the_others() {
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
        // The client ends without a release.
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
    async fn each_private_memory_is_a_separate_store() {
        let url = "memory:?private=true";
        let (one, two) = (open(url).await.unwrap(), open(url).await.unwrap());
        let _guard = one.locker().lock("a").acquire().await.unwrap();
        assert!(!is_held(&two, "a").await);
        let clock = Target::new(url).clock(Arc::new(ManualClock::new()));
        assert!(open(clock).await.is_ok());
    }

    #[tokio::test]
    async fn the_error_for_a_busy_lock_advises_methods_of_the_library() {
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
                // The caller may not have the command-line tool, whose options mean nothing in a
                // program.
                assert!(!said.contains("distlock inspect"), "{said}");
                assert!(said.contains("held by"), "{said}");
                let holder = error.holder().expect("the store knows the holder");
                assert_eq!(holder.token, Some(guard.token()));
                assert_eq!(error.remedy(), Some(&Remedy::WaitLonger));
            }
        }
        assert!(guard.release().await.is_clean());
    }

    #[test]
    fn the_error_for_a_backend_that_is_not_built_has_the_line_of_the_readme() {
        const README: &str = include_str!("../README.md");
        const MANIFEST: &str = include_str!("../Cargo.toml");
        const TOOL: &str = include_str!("../cli/Cargo.toml");
        let features = |manifest: &str| {
            let manifest: toml::Table = toml::from_str(manifest).unwrap();
            manifest["features"].as_table().unwrap().clone()
        };
        let (known, known_to_the_tool) = (features(MANIFEST), features(TOOL));
        let exist = |listed: &str| listed.split(',').all(|one| known.contains_key(one));
        let drivers = Registry::builtin();
        let drivers = drivers.drivers();
        for driver in drivers.iter() {
            for scheme in driver.schemes() {
                assert!(
                    drivers.features().iter().any(|(known, _)| known == scheme),
                    "{scheme}"
                );
            }
        }
        for &(scheme, features) in drivers.features() {
            assert!(exist(features), "{features}");
            let target = Target::new(format!("{scheme}://u:hunter2@h"));
            let without = Drivers::new().brought_by(scheme, features);
            let error = without.check(target).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let said = error.to_string();
            let listed = features.replace(',', "\", \"");
            let line =
                format!("distlock = {{ path = \"../distlock\", features = [\"{listed}\"] }}");
            assert!(said.contains(&format!("`{line}`")), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
            // The README has this line for SQLite only, and `tests/readme.rs` builds a project with
            // that line.
            if features == "sqlite" {
                assert!(README.contains(&format!("\n{line}\n")), "{said}");
            }
        }
        let unknown = drivers.check("etcd://h").unwrap_err();
        assert!(!unknown.to_string().contains("Cargo.toml"), "{unknown}");
        // Each row has the features of the library for a backend with TLS or SASL, and the feature
        // of the command-line tool that the error must name.
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
    async fn an_invalid_memory_url_or_option_is_refused() {
        let clock = Target::new("memory:").clock(Arc::new(ManualClock::new()));
        for (target, says) in [
            (Target::new("memory:a/b"), "has letters"),
            (Target::new("memory://name"), "has letters"),
            // This URL has the form of a URL of a server.
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
