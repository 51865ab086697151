//! Ready-made checks of fencing tokens, each in one step with the change that it protects: in a database transaction of the
//! caller's, in a script on a Redis server, or in a multi-request to a ZooKeeper ensemble.
//!
//! A file has [`FencedFile`](crate::FencedFile), and whatever can keep a text and replace it in one step with its data has
//! [`FenceGuard::raised`](crate::FenceGuard::raised).

#[cfg(feature = "redis")]
#[doc(inline)]
pub use distlock_redis::fence as redis;
#[cfg(feature = "mysql")]
#[doc(inline)]
pub use distlock_sql::fence::mysql;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use distlock_sql::fence::postgres;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use distlock_sql::fence::sqlite;
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use distlock_zookeeper::fence as zookeeper;
