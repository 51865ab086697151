use std::cell::OnceCell;

use distlock::{Attempt, ErrorKind, Locker, Target};
use sqlx::{Connection as _, SqliteConnection};
use tokio::runtime::{Builder, Runtime};

/// A store with rows that the target writes without the library.
struct Rows {
    runtime: Runtime,
    locker: Locker,
    raw: std::cell::RefCell<SqliteConnection>,
    boot: Vec<u8>,
    _folder: tempfile::TempDir,
}

const ROW: &str = "
INSERT OR REPLACE INTO distributed_lock
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta,
     hint_id, hint_until)
VALUES ('a', ?1, ?2, ?3, ?4, ?5, CAST(?6 AS TEXT), CAST(?7 AS TEXT), ?8, ?9)";

thread_local! {
    static ROWS: OnceCell<Rows> = const { OnceCell::new() };
}

/// Checks rows of a SQL store: a row that names a holder with a running lease is held or corrupt,
/// and never free. The input has, in this order: the token, the end of the lease (0 means a time
/// far in the future), the time of the grant, the process and the end of the waiter hint, flags, a
/// byte that fills the owner, a byte that fills the boot id, and holder and meta around a zero
/// byte. The flags select a missing owner, an owner of the wrong length, and another boot id.
pub fn sqlite_rows(data: &[u8]) {
    ROWS.with(|rows| {
        let rows = rows.get_or_init(Rows::open);
        rows.runtime
            .block_on(rows.check(data))
            .unwrap_or_else(|error| panic!("{error}"));
    });
}

impl Rows {
    fn open() -> Self {
        Self::try_open().unwrap_or_else(|error| panic!("no store: {error}"))
    }

    fn try_open() -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("locks.db");
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (locker, raw, boot) = runtime.block_on(async {
            let locker = distlock::connect(Target::sqlite(&file)).await?;
            let _ = locker.lock("b").acquire().await?.release().await;
            let url = format!("sqlite:{}", file.display());
            let mut raw = SqliteConnection::connect(&url).await?;
            // Another program may have written values that the tables forbid, so the checks of the
            // tables are off.
            let rules = "PRAGMA ignore_check_constraints = ON; PRAGMA synchronous = OFF";
            sqlx::raw_sql(rules).execute(&mut raw).await?;
            let boot = "SELECT boot_id FROM distributed_lock";
            let boot: Vec<u8> = sqlx::query_scalar(boot).fetch_one(&mut raw).await?;
            Ok::<_, Box<dyn std::error::Error>>((locker, raw, boot))
        })?;
        Ok(Self {
            runtime,
            locker,
            raw: raw.into(),
            boot,
            _folder: folder,
        })
    }

    #[allow(clippy::await_holding_refcell_ref, reason = "one run at a time")]
    async fn check(&self, data: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
        let mut rest = data;
        let mut number = || {
            let (bytes, after) = rest.split_first_chunk()?;
            rest = after;
            Some(i64::from_le_bytes(*bytes))
        };
        let mut numbers = [0; 5];
        for one in &mut numbers {
            let Some(given) = number() else {
                return Ok(());
            };
            *one = given;
        }
        let [token, until, acquired, hint_id, hint_until] = numbers;
        let until = if until == 0 { i64::MAX } else { until };
        let Some((&[flags, owner, boot], text)) = rest.split_first_chunk() else {
            return Ok(());
        };
        let owner = (flags & 1 == 0).then(|| vec![owner; if flags & 2 == 0 { 16 } else { 15 }]);
        let boot = if flags & 4 == 0 {
            self.boot.clone()
        } else {
            vec![boot; 16]
        };
        let mut texts = text.splitn(2, |byte| *byte == 0);
        let (holder, meta) = (texts.next().unwrap_or_default(), texts.next());
        sqlx::query(ROW)
            .bind(&owner)
            .bind(token)
            .bind(&boot)
            .bind(until)
            .bind(acquired)
            .bind(holder)
            .bind(meta)
            .bind(hint_id)
            .bind(hint_until)
            .execute(&mut *self.raw.borrow_mut())
            .await?;
        let runs = owner.is_some() && boot == self.boot && until == i64::MAX;
        let corrupt =
            |error: distlock::Error| assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        match self.locker.inspect("a").await {
            Ok(seen) => assert!(!runs || seen.held.is_some(), "free: {seen:?}"),
            Err(error) => corrupt(error),
        }
        match self.locker.lock("a").try_acquire().await {
            Ok(Attempt::Acquired(guard)) => {
                assert!(!runs, "what somebody else holds is granted");
                assert!(token < 1 || guard.token().get() > token.cast_unsigned());
                let _ = guard.release().await;
            }
            Ok(Attempt::Busy(_)) => {}
            Err(error) => corrupt(error),
        }
        Ok(())
    }
}
