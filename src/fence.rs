//! Ready-made checks of fencing tokens. Each check happens in one step with the change that it
//! protects: in a database transaction of the caller, in a script on a Redis server, or in a
//! multi-request to a ZooKeeper ensemble.
//!
//! For a file there is [`FencedFile`](crate::FencedFile). Any other resource that keeps a text and
//! replaces the text in one step with its data can use
//! [`FenceGuard::raised`](crate::FenceGuard::raised).
//!
//! A helper takes a connection of the driver that this library itself uses, so a program needs the
//! same version of that driver. The feature of this library also enables the features of the driver
//! that the helper needs. The lines below list these features for programs that also use the driver
//! for other work.
//!
//! | helper | in `Cargo.toml` |
//! |---|---|
//! | [`mysql`] | `sqlx = { version = "0.9.0", default-features = false, features = ["runtime-tokio", "mysql"] }` |
//! | [`postgres`] | `sqlx = { version = "0.9.0", default-features = false, features = ["runtime-tokio", "postgres"] }` |
//! | [`sqlite`] | `sqlx = { version = "0.9.0", default-features = false, features = ["runtime-tokio", "sqlite-bundled"] }` |
//! | [`redis`] | `redis = { version = "1.8.1", default-features = false, features = ["script", "tokio-comp"] }` |
//! | [`zookeeper`] | `zookeeper-client = { version = "0.11.2", features = ["tokio"] }` |

/// Changes on a Redis server that only the latest holder can make, with a connection of `redis`
/// 1.8.1.
///
/// ```no_run
/// use distlock::{Fence, fence::redis::Fenced};
///
/// async fn pay(
///     server: &mut redis::aio::MultiplexedConnection,
///     fence: &Fence,
/// ) -> Result<i64, distlock::FenceError> {
///     let pay = Fenced::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
///     pay.run(server, "account:{42}:fence", fence, &["account:{42}"], &["1"]).await
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker = distlock::connect("redis://localhost").await?;
/// let client = redis::Client::open("redis://localhost")?;
/// let mut server = client.get_multiplexed_async_connection().await?;
/// let guard = locker.lock("account:42").acquire().await?;
/// pay(&mut server, &guard.fence()).await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "redis")]
#[doc(inline)]
pub use distlock_redis::fence as redis;
/// Checks a holder in a transaction of MySQL or MariaDB, with a connection of `sqlx` 0.9.0.
///
/// ```no_run
/// use distlock::{Fence, fence};
/// use sqlx::{Connection, MySqlConnection};
///
/// async fn pay(
///     database: &mut MySqlConnection,
///     holder: &Fence,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let mut transaction = database.begin().await?;
///     fence::mysql::admit(&mut transaction, "account:42", holder).await?;
///     sqlx::query("UPDATE account SET balance = balance - 1 WHERE id = 42")
///         .execute(&mut *transaction)
///         .await?;
///     Ok(transaction.commit().await?)
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "mysql://app@localhost/bank";
/// let mut database = MySqlConnection::connect(url).await?;
/// sqlx::raw_sql(fence::mysql::CREATE_TABLE).execute(&mut database).await?;
/// let guard = distlock::connect(url).await?.lock("account:42").acquire().await?;
/// pay(&mut database, &guard.fence()).await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "mysql")]
#[doc(inline)]
pub use distlock_sql::fence::mysql;
/// Checks a holder in a transaction of Postgres, with a connection of `sqlx` 0.9.0.
///
/// ```no_run
/// use distlock::{Fence, fence};
/// use sqlx::{Connection, PgConnection};
///
/// async fn pay(
///     database: &mut PgConnection,
///     holder: &Fence,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let mut transaction = database.begin().await?;
///     fence::postgres::admit(&mut transaction, "account:42", holder).await?;
///     sqlx::query("UPDATE account SET balance = balance - 1 WHERE id = 42")
///         .execute(&mut *transaction)
///         .await?;
///     Ok(transaction.commit().await?)
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://app@localhost/bank";
/// let mut database = PgConnection::connect(url).await?;
/// sqlx::raw_sql(fence::postgres::CREATE_TABLE).execute(&mut database).await?;
/// let guard = distlock::connect(url).await?.lock("account:42").acquire().await?;
/// pay(&mut database, &guard.fence()).await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use distlock_sql::fence::postgres;
/// Checks a holder in a transaction of SQLite, with a connection of `sqlx` 0.9.0.
///
/// ```
/// use distlock::{Fence, fence};
/// use sqlx::{Connection, SqliteConnection};
///
/// async fn pay(
///     database: &mut SqliteConnection,
///     holder: &Fence,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let mut transaction = database.begin_with("BEGIN IMMEDIATE").await?;
///     fence::sqlite::admit(&mut transaction, "account:42", holder).await?;
///     sqlx::query("UPDATE account SET balance = balance - 1 WHERE id = 42")
///         .execute(&mut *transaction)
///         .await?;
///     Ok(transaction.commit().await?)
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut database = SqliteConnection::connect("sqlite::memory:").await?;
/// sqlx::raw_sql(fence::sqlite::CREATE_TABLE).execute(&mut database).await?;
/// # let account = "CREATE TABLE account (id, balance); INSERT INTO account VALUES (42, 100)";
/// # sqlx::raw_sql(account).execute(&mut database).await?;
/// # let locks = tempfile::tempdir()?;
/// # let locks = distlock::Target::sqlite(locks.path().join("locks.db"));
/// let locker = distlock::connect(locks).await?;
/// let earlier = locker.lock("account:42").acquire().await?;
/// let (earlier, _) = (earlier.fence(), earlier.release().await);
/// let guard = locker.lock("account:42").acquire().await?;
/// pay(&mut database, &guard.fence()).await?;
/// assert!(pay(&mut database, &earlier).await.is_err()); // changes nothing
/// # locker.close().await; Ok(()) }
/// ```
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use distlock_sql::fence::sqlite;
/// Changes in a ZooKeeper ensemble that only the latest holder can make, with a client of
/// `zookeeper-client` 0.11.2.
///
/// ```no_run
/// use distlock::{Fence, fence};
/// use zookeeper_client::Client;
///
/// async fn pay(client: &Client, holder: &Fence) -> Result<(), distlock::FenceError> {
///     fence::zookeeper::write(client, "/account-42/fence", holder, |change| {
///         change.add_set_data("/account-42/balance", b"99", None)
///     })
///     .await
///     .map(drop)
/// }
///
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locker = distlock::connect("zookeeper://localhost").await?;
/// let client = Client::connect("localhost:2181").await?;
/// let guard = locker.lock("account:42").acquire().await?;
/// pay(&client, &guard.fence()).await?;
/// # Ok(()) }
/// ```
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use distlock_zookeeper::fence as zookeeper;
