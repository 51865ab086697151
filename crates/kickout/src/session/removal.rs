//! Removes sessions and revocations from the directory.
//!
//! A removal names node, boot and session, and changes nothing else. The generation does not
//! change.

use distlock_core::Result;

use crate::{
    model::{
        event::Transition,
        ident::{SessionKey, Uid},
        record::UserRecord,
    },
    node::Node,
};

/// Whether the write that granted a session may still arrive at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantWrite {
    /// The outcome of the write is known.
    Known,
    /// The outcome of the write is unknown, and the write may arrive after the delete. So a delete
    /// that finds nothing still writes the record: the late write then meets a conflict.
    InFlight,
}

impl Node {
    /// Removes the revocations of sessions that are known to have ended. Returns the record
    /// afterwards.
    pub(crate) async fn settle(&self, uid: &Uid, gone: &[SessionKey]) -> Result<UserRecord> {
        let record = self.directory.settle(uid, gone).await?;
        for key in gone {
            self.events.emit(Transition::Settled, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
            });
        }
        Ok(record)
    }

    /// Removes exactly this session from the directory. The generation does not change. Returns
    /// whether the directory named the session.
    pub(crate) async fn delete_session(&self, uid: &Uid, key: &SessionKey) -> Result<bool> {
        self.delete_after_grant(uid, key, GrantWrite::Known).await
    }

    /// Same as [`delete_session`](Self::delete_session). `grant` says whether the write of the grant may still
    /// arrive at the store.
    pub(crate) async fn delete_after_grant(
        &self,
        uid: &Uid,
        key: &SessionKey,
        grant: GrantWrite,
    ) -> Result<bool> {
        let (mut there, mut found) = (false, false);
        let (written, record) = self
            .directory
            .update(uid, |record| {
                there = record.remove(key).is_some();
                found |= there;
                // The session has ended, so its revocation is removed, too.
                let settled = record.settle(|it| it == key) > 0;
                there || settled || grant == GrantWrite::InFlight
            })
            .await?;
        if grant == GrantWrite::InFlight {
            // The write with the unknown outcome may have revoked sessions of this node, and no
            // other step has ended these sessions yet.
            let gone = self.end_all_revoked(uid, &record);
            if !gone.is_empty() {
                self.settle(uid, &gone).await?;
            }
        }
        let deleted = written && found;
        if deleted {
            self.events.emit(Transition::Deleted, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
                if !there {
                    event.result = Some("it was gone when a lost reply was looked up".into());
                }
            });
        } else {
            metrics::counter!("distlock_stale_delete_refused_total").increment(1);
            self.events.emit(Transition::StaleDeleteRefused, |event| {
                event.uid = Some(uid.clone());
                event.set_session(key);
                event.r#gen = Some(record.r#gen);
            });
        }
        Ok(deleted)
    }
}
