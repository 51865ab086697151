//! Versioned records.
//!
//! A record is a persistent node. The record's version is the transaction that wrote it (`mzxid`),
//! and the ensemble never uses a transaction number twice. A write names the node's own data
//! version, which was read together with the transaction. So the write happens only if the node
//! still has the state that was read.
//!
//! Invariant: a write can change only the state that its caller read, even if the record is deleted
//! and created again. So the node of a deleted record stays, with a mark instead of a value. If the
//! node were deleted, a new node would count its data versions from zero again, and could reach the
//! version that an old write names. The mark is removed when no write has come for
//! [`reap_after`](crate::ZooKeeperConfig::reap_after). No write can be in flight for that long,
//! because the session that sent it has ended by then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, Moment, RecordKey, Records, Result, Version, Written,
    check_value,
};
use zookeeper_client as zk;

use crate::{
    error::{Access, translate},
    names::decode_record_key,
    session::Session,
    store::StoreHandle,
};

/// The number of reads that are sent before the first answer is awaited.
const AT_ONCE: usize = 64;

/// The only byte of the node of a deleted record.
const MARK_OF_DELETED: u8 = 0;

/// The first byte of the node of a record that has a value. The value follows.
const MARK_OF_LIVE: u8 = 1;

/// The records under one root.
#[derive(Debug)]
pub(crate) struct RecordStore {
    handle: StoreHandle,
    /// The newest time of the ensemble's clock in any answer, in milliseconds since 1970.
    server_time: AtomicI64,
}

/// A record's node, as read from the ensemble.
struct StoredRecord {
    /// `None` = the record is deleted.
    value: Option<Vec<u8>>,
    version: Version,
    /// The node's own data version, for the condition of a write.
    data_version: i32,
    /// The time of the last write by the ensemble's clock, in milliseconds since 1970.
    written_at: i64,
}

impl RecordStore {
    pub(crate) fn new(handle: StoreHandle) -> Self {
        Self {
            handle,
            server_time: AtomicI64::new(0),
        }
    }

    /// Records the time of an answered write, and returns the version of that write.
    fn note_written(&self, stat: &zk::Stat) -> Result<Written> {
        self.server_time.fetch_max(stat.mtime, Ordering::Relaxed);
        Ok(Written::Stored(version_from_stat(stat)?))
    }

    /// Creates the node of a record. `None` = the node exists.
    async fn create(
        &self,
        session: &Arc<Session>,
        path: &str,
        data: &[u8],
        until: Moment,
    ) -> Result<Option<Written>> {
        let client = session.client()?;
        let options = zk::CreateMode::Persistent.with_acls(session.acls());
        loop {
            let created = client.create(path, data, &options);
            match session.await_answer(Access::Write, until, created).await? {
                Ok((stat, _)) => return self.note_written(&stat).map(Some),
                Err(zk::Error::NodeExists) => return Ok(None),
                // Another client removed the whole tree, so it is created again.
                Err(zk::Error::NoNode) => {
                    let parents = zk::CreateMode::Persistent.with_acls(session.acls());
                    let made = client.mkdir(&session.layout().records, &parents);
                    if let Err(error) = session.await_answer(Access::Write, until, made).await? {
                        return Err(translate(error, Access::Write));
                    }
                }
                Err(error) => return Err(translate(error, Access::Write)),
            }
        }
    }

    /// Overwrites a node if it still has the state `over`; otherwise returns a conflict.
    async fn replace(
        &self,
        session: &Arc<Session>,
        path: &str,
        data: &[u8],
        over: &StoredRecord,
        until: Moment,
    ) -> Result<Written> {
        let client = session.client()?;
        let set = client.set_data(path, data, Some(over.data_version));
        match session.await_answer(Access::Write, until, set).await? {
            Ok(stat) => self.note_written(&stat),
            Err(zk::Error::BadVersion | zk::Error::NoNode) => Ok(Written::Conflict),
            Err(error) => Err(translate(error, Access::Write)),
        }
    }

    /// Removes the marks that are old enough by the ensemble's clock, without awaiting the answers.
    /// If a mark was overwritten since it was read, its data version differs, and the node stays.
    fn remove_old_marks(&self, session: &Session, marks: Vec<(String, StoredRecord)>) {
        let Ok(client) = session.client() else { return };
        let Ok(context) = self.handle.context() else {
            return;
        };
        let now = self.server_time.load(Ordering::Relaxed);
        // The ensemble may have granted a longer session than the configuration asks for.
        let reap_after = context.config.reap_after.max(session.timeout() * 2);
        for (path, mark) in marks {
            let idle = u64::try_from(now - mark.written_at).unwrap_or(0);
            if Duration::from_millis(idle) >= reap_after {
                context.requests.add(1);
                drop(client.delete(&path, Some(mark.data_version)));
            }
        }
    }
}

#[async_trait]
impl Records for RecordStore {
    fn backend(&self) -> &'static str {
        "zookeeper"
    }

    /// The servers put a time on each write, but do not report the present time.
    fn tells_ages(&self) -> bool {
        false
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        self.handle.context()?;
        Ok(Arc::new(Self::new(self.handle.another_handle())))
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        let (session, until) = self.handle.session_and_deadline().await?;
        session.wait_connected(until).await?;
        let path = session.layout().record_path(key);
        Ok(read_record(&session, &path, until)
            .await?
            .and_then(StoredRecord::into_entry))
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        let (session, until) = self.handle.session_and_deadline().await?;
        session.wait_connected(until).await?;
        let client = session.client()?;
        session.send_barrier_write(&client);
        let mut entries = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AT_ONCE) {
            let paths: Vec<_> = keys
                .iter()
                .map(|key| session.layout().record_path(key))
                .collect();
            let asked: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
            for (path, asked) in paths.iter().zip(asked) {
                let answer = session.await_answer(Access::Read, until, asked).await?;
                entries.push(decode_answer(path, answer)?.and_then(StoredRecord::into_entry));
            }
        }
        Ok(entries)
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        check_value(key, value)?;
        let (session, until) = self.handle.session_and_deadline().await?;
        session.wait_connected(until).await?;
        let path = session.layout().record_path(key);
        let mut data = Vec::with_capacity(value.len() + 1);
        data.push(MARK_OF_LIVE);
        data.extend_from_slice(value);
        if expect == Expect::Absent
            && let Some(written) = self.create(&session, &path, &data, until).await?
        {
            return Ok(written);
        }
        let Some(present) = read_record(&session, &path, until).await? else {
            return Ok(Written::Conflict);
        };
        let fits = match expect {
            Expect::Absent => present.value.is_none(),
            Expect::Version(version) => present.value.is_some() && present.version == version,
        };
        if !fits {
            return Ok(Written::Conflict);
        }
        self.replace(&session, &path, &data, &present, until).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        let (session, until) = self.handle.session_and_deadline().await?;
        session.wait_connected(until).await?;
        let path = session.layout().record_path(key);
        let Some(present) = read_record(&session, &path, until)
            .await?
            .filter(|found| found.value.is_some() && found.version == expect)
        else {
            return Ok(Deleted::Conflict);
        };
        let mark = [MARK_OF_DELETED];
        Ok(
            match self
                .replace(&session, &path, &mark, &present, until)
                .await?
            {
                Written::Stored(_) => Deleted::Done,
                Written::Conflict => Deleted::Conflict,
            },
        )
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        let (session, until) = self.handle.session_and_deadline().await?;
        session.wait_connected(until).await?;
        let client = session.client()?;
        session.send_barrier_write(&client);
        let listed = client.list_children(&session.layout().records);
        let children = match session.await_answer(Access::Read, until, listed).await? {
            Ok(children) => children,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(error) => return Err(translate(error, Access::Read)),
        };
        let mut keys: Vec<_> = children
            .iter()
            .filter_map(|child| decode_record_key(child))
            .filter(|key| key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after))
            .collect();
        keys.sort_unstable();
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut entries = Vec::new();
        for keys in keys.chunks(AT_ONCE) {
            if entries.len() >= limit {
                break;
            }
            let paths: Vec<_> = keys
                .iter()
                .map(|key| session.layout().record_path(key))
                .collect();
            let asked: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
            let mut marks = Vec::new();
            for ((key, path), asked) in keys.iter().zip(&paths).zip(asked) {
                let answer = session.await_answer(Access::Read, until, asked).await?;
                match decode_answer(path, answer)? {
                    Some(mark) if mark.value.is_none() => marks.push((path.clone(), mark)),
                    Some(live) => {
                        entries.extend(live.into_entry().map(|entry| (key.clone(), entry)));
                    }
                    None => {}
                }
            }
            // The marks of each group are removed at once, while few of them can have been
            // overwritten since they were read.
            self.remove_old_marks(&session, marks);
        }
        entries.truncate(limit);
        Ok(entries)
    }

    async fn close(&self) {
        self.handle.close().await;
    }
}

impl StoredRecord {
    /// Returns the entry of the record; `None` if the record is deleted.
    fn into_entry(self) -> Option<Entry> {
        Some(Entry::new(self.version, self.value?, None))
    }
}

/// Reads a record's node; `None` = the node does not exist. The answer is not older than any write
/// that was committed before this call.
async fn read_record(session: &Session, path: &str, until: Moment) -> Result<Option<StoredRecord>> {
    let client = session.client()?;
    // The server processes the requests of a session in order, so it processes the read after the
    // barrier write.
    session.send_barrier_write(&client);
    decode_answer(
        path,
        session
            .await_answer(Access::Read, until, client.get_data(path))
            .await?,
    )
}

/// Decodes the answer to a read of a record's node; `None` = the node does not exist.
fn decode_answer(
    path: &str,
    answer: Result<(Vec<u8>, zk::Stat), zk::Error>,
) -> Result<Option<StoredRecord>> {
    let (data, stat) = match answer {
        Ok(found) => found,
        Err(zk::Error::NoNode) => return Ok(None),
        Err(error) => return Err(translate(error, Access::Read)),
    };
    Ok(Some(StoredRecord {
        value: decode_value(path, data)?,
        version: version_from_stat(&stat)?,
        data_version: stat.version,
        written_at: stat.mtime,
    }))
}

/// Returns the value in a node's data; `None` when the record is deleted.
pub(crate) fn decode_value(path: &str, mut data: Vec<u8>) -> Result<Option<Vec<u8>>> {
    match data.first() {
        Some(&MARK_OF_LIVE) => {
            data.remove(0);
            Ok(Some(data))
        }
        Some(&MARK_OF_DELETED) if data.len() == 1 => Ok(None),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            format!("the node {path} is among the records, and distlock did not write it"),
        )
        .on("zookeeper")),
    }
}

/// Returns a record's version: the last transaction that wrote its node.
fn version_from_stat(stat: &zk::Stat) -> Result<Version> {
    u64::try_from(stat.mzxid).map(Version::new).map_err(|_| {
        Error::new(
            ErrorKind::Corrupt,
            "the server gave no transaction for a write",
        )
        .on("zookeeper")
    })
}
