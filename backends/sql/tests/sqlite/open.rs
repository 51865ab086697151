//! Opening and creating files, and refusing wrong files.

use std::{os::unix::fs::PermissionsExt as _, process::Command};

use distlock_core::{ErrorKind, LossReason, Renewal, Renewed, Verdict};

use super::*;

const CHILD_PATH: &str = "DISTLOCK_SQL_TEST_PATH";

#[tokio::test]
async fn a_new_file_is_private_and_has_a_write_ahead_log() {
    let place = Place::new();
    let store = place.open().await;
    let mode = std::fs::metadata(&place.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let health = store.lock().health().await.unwrap();
    assert!(health.server.starts_with("SQLite 3."), "{}", health.server);
    for finding in &health.findings {
        assert_eq!(finding.verdict, Verdict::Pass, "{finding:?}");
    }
    let epoch = health.epoch.unwrap();
    close(&store).await;
    let again = place.open().await.lock().health().await.unwrap();
    assert_eq!(again.epoch.unwrap(), epoch);
}

#[test]
fn eight_threads_that_open_a_new_file_at_once_get_the_same_tables() {
    let place = Place::new();
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    open_and_get_epoch(&place.path)
                })
            })
            .collect();
        let epochs: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        assert!(
            epochs.windows(2).all(|pair| pair[0] == pair[1]),
            "{epochs:?}"
        );
    });
}

#[test]
fn eight_processes_that_open_a_new_file_at_once_get_the_same_tables() {
    let place = Place::new();
    let children: Vec<_> = (0..8)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["open::child_process", "--exact", "--ignored", "--nocapture"])
                .env(CHILD_PATH, &place.path)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let expected = format!("epoch={}", open_and_get_epoch(&place.path));
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains(&expected),
            "{said}"
        );
    }
}

/// The child process of the test above.
#[test]
#[ignore = "started by another test"]
#[expect(clippy::print_stdout, reason = "this is how it answers")]
fn child_process() {
    let path = std::env::var_os(CHILD_PATH).expect("set by the test that starts it");
    println!("epoch={}", open_and_get_epoch(Path::new(&path)));
}

/// Opens the file, acquires a lock with a new name, and returns the epoch of the grant.
fn open_and_get_epoch(path: &Path) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(SqliteConfig::new(path), Arc::new(SystemClock))
            .await
            .unwrap();
        let grant = take(
            &store.lock(),
            &request(&format!("{:?}", OwnerId::new().tag())),
        )
        .await;
        close(&store).await;
        grant.epoch.as_str().to_owned()
    })
}

async fn error_of(config: SqliteConfig) -> distlock_core::Error {
    Sqlite::open(config, Arc::new(SystemClock))
        .await
        .expect_err("refused")
}

#[tokio::test]
async fn with_migrate_off_nothing_is_created() {
    let place = Place::new();
    let mut config = place.config();
    config.migrate = false;
    let command = format!(
        "`distlock migrate --backend sqlite:{}`",
        place.path.display()
    );

    let error = error_of(config.clone()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains(&command), "{error}");
    assert!(!place.path.exists());

    // The file is a database without the tables.
    let empty = SqliteConnectOptions::new()
        .filename(&place.path)
        .create_if_missing(true);
    let mut other = empty.connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE other (id INTEGER)")
        .execute(&mut other)
        .await
        .unwrap();
    let before = bytes(&place.path);
    let error = error_of(config.clone()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains(&command), "{error}");
    assert_eq!(bytes(&place.path), before);

    // The command from the error creates the tables. Then the file can be opened with
    // `migrate=false` too.
    let clock = || Arc::new(SystemClock);
    for steps in [1, 0] {
        let done = Sqlite::migrate(config.clone(), clock()).await.unwrap();
        assert_eq!((done.version, done.applied.len()), (Some(1), steps));
    }
    Sqlite::open(config, clock()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_not_changed() {
    for content in ["hello, I am a letter\n".to_owned(), "x".repeat(10_000)] {
        let place = Place::new();
        std::fs::write(&place.path, &content).unwrap();
        let error = error_of(place.config()).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("not a"), "{error}");
        assert!(
            error.to_string().contains(&*place.path.to_string_lossy()),
            "{error}"
        );
        assert_eq!(bytes(&place.path), content.as_bytes());
        let files = std::fs::read_dir(place.path.parent().unwrap()).unwrap();
        assert_eq!(files.count(), 1, "nothing beside it");
    }
}

#[tokio::test]
async fn paths_that_cannot_be_used_are_refused() {
    let place = Place::new();
    let folder = place.path.parent().unwrap().to_owned();
    std::fs::write(folder.join("file"), "").unwrap();
    // The modes of a folder do not stop root, but `/proc` refuses new files even to root.
    for path in [
        folder.clone(),
        folder.join("absent/locks.db"),
        folder.join("file/locks.db"),
        PathBuf::from("/proc/locks.db"),
        PathBuf::from("/dev/null"),
    ] {
        let error = error_of(SqliteConfig::new(&path)).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{path:?}: {error}");
    }
}

/// SQLite keeps its log beside the path in use. Processes that use two names of one file would not
/// exclude each other.
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let place = Place::new();
    close(&place.open().await).await;
    let folder = place.path.parent().unwrap().join("other");
    std::fs::create_dir(&folder).unwrap();
    let second = folder.join("b.db");
    std::fs::hard_link(&place.path, &second).unwrap();
    for path in [&place.path, &second] {
        let error = error_of(SqliteConfig::new(path)).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("hard links"), "{error}");
    }
    let mut config = place.config();
    config.force = true;
    close(&Sqlite::open(config, Arc::new(SystemClock)).await.unwrap()).await;
    std::fs::remove_file(&second).unwrap();
    place.open().await;
}

#[tokio::test]
async fn tables_of_another_version_or_program_are_refused() {
    let place = Place::new();
    close(&place.open().await).await;
    place
        .sql("UPDATE distributed_meta SET schema_version = 99")
        .await;
    let error = error_of(place.config()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("version 99"), "{error}");
    unusable(&place, "version 99").await;

    place
        .sql("UPDATE distributed_meta SET schema_version = 0")
        .await;
    let error = error_of(place.config()).await;
    assert!(error.to_string().contains("version 0"), "{error}");

    place.sql("DROP TABLE distributed_meta").await;
    let error = error_of(place.config()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("only some"), "{error}");
    unusable(&place, "only some").await;
}

/// Opening and migrating report the same error.
async fn unusable(place: &Place, says: &str) {
    let opened = error_of(place.config()).await.to_string();
    assert!(opened.contains(says), "{opened}");
    let asked = Sqlite::migrate(place.config(), Arc::new(SystemClock)).await;
    let error = asked.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert_eq!(error.to_string(), opened.replacen("open", "migrate", 1));
}

#[tokio::test]
async fn tables_changed_by_hand_are_refused() {
    let place = Place::new();
    close(&place.open().await).await;
    place
        .sql("ALTER TABLE distributed_lock DROP COLUMN meta")
        .await;
    let drop_them = "run `DROP TABLE distributed_lock; DROP TABLE distributed_queue; DROP TABLE \
        distributed_record; DROP TABLE distributed_meta` on the database and then run `distlock \
        migrate --backend sqlite:";
    unusable(&place, drop_them).await;
    unusable(&place, "deletes the tokens of all locks, and all records").await;
    // After the statement and the command from the error, the file can be opened.
    place
        .sql(
            "DROP TABLE distributed_lock; DROP TABLE distributed_queue; DROP TABLE \
            distributed_record; DROP TABLE distributed_meta",
        )
        .await;
    Sqlite::migrate(place.config(), Arc::new(SystemClock))
        .await
        .unwrap();
    place.open().await;

    let place = Place::new();
    let foreign = SqliteConnectOptions::new()
        .filename(&place.path)
        .create_if_missing(true);
    let mut foreign = foreign.connect().await.unwrap();
    sqlx::raw_sql("CREATE TABLE distributed_lock (id INTEGER)")
        .execute(&mut foreign)
        .await
        .unwrap();
    unusable(&place, "another program's tables of the same names").await;
}

#[tokio::test]
async fn stores_with_different_prefixes_in_one_file_share_nothing() {
    let place = Place::new();
    let plain = place.open().await;
    let mut config = place.config();
    config.table_prefix = "app_".into();
    let prefixed = Sqlite::open(config, Arc::new(SystemClock)).await.unwrap();
    take(&plain.lock(), &request("a")).await;
    take(&prefixed.lock(), &request("a")).await;
    refused(&prefixed.lock(), &request("a")).await;
}

#[tokio::test]
async fn a_replaced_file_has_another_epoch() {
    let place = Place::new();
    let store = place.open().await;
    let lock = store.lock();
    let first = request("a");
    let grant = take(&lock, &first).await;
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", place.path.display())).unwrap();
    }
    // An open store creates no new tables: in empty tables, a held lock would be granted to a
    // second holder.
    let renewal = Renewal::plain(first.ttl);
    let gone = lock.renew(&lease(&first, &grant), &renewal).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let gone = lock.try_acquire(&request("b")).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(!place.path.exists());
    let other = place.open().await;
    let renewed = lock.renew(&lease(&first, &grant), &renewal).await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::HistoryChanged)),
        "{renewed:?}"
    );
    let other = take(&other.lock(), &request("a")).await;
    assert_ne!(other.epoch, grant.epoch);
    assert!(other.token > grant.token);
    // Both handles use the same file again.
    assert_eq!(refused(&lock, &request("a")).await.token, Some(other.token));
}
