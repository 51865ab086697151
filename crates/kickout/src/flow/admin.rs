//! Look-ups, kicks and bans of accounts by an administrator.

use std::time::Duration;

use distlock_core::{Error, ErrorKind, RecordKey, Result};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    directory::{
        accounts::{CONCURRENT_CHANGES, VersionedRecord},
        records::ban_key,
    },
    flow::kick_out::KickOut,
    model::{
        change::AccountNews,
        event::Transition,
        ident::{SessionKey, Uid},
        notice::Code,
        record::{Ban, SlotEntry},
    },
    node::{
        admin::{
            Banned, EndingReason, Found, Kicked, NodeView, PAGE, Page, Pending, SessionFilter,
            Target, UserView,
        },
        liveness::Liveness,
    },
    tasks::wall_millis,
};

impl KickOut {
    /// Whether an account has ever logged in. The answer stays true after a logout.
    ///
    /// # Errors
    /// Failures of the store; [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt) for a
    /// record that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn knows(&self, uid: &Uid) -> Result<bool> {
        Ok(self.node.directory.read(uid).await?.version.is_some())
    }

    /// An account's record and the state of the nodes that it names.
    ///
    /// # Errors
    /// Failures of the store; [`ErrorKind::Corrupt`](distlock_core::ErrorKind::Corrupt) for a
    /// record that cannot be read.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn view(&self, uid: &Uid) -> Result<UserView> {
        let VersionedRecord {
            version,
            mut record,
            ..
        } = self.node.directory.read(uid).await?;
        if record.ban.is_some() && self.node.current_ban(uid).await?.is_none() {
            // The mark of an ended ban stays in the record until a login or the sweeper removes it.
            record.ban = None;
        }
        let mut nodes = Vec::new();
        for (node, boot) in record.incarnations() {
            let liveness = self.node.liveness_of(&node, boot).await;
            let (state, addr) = match liveness {
                Ok(Liveness::Up(up)) => ("up", Some(up.addr)),
                Ok(Liveness::Dead) => ("dead", None),
                Err(_) => ("unknown", None),
            };
            nodes.push(NodeView {
                node,
                boot,
                state: state.into(),
                addr,
            });
        }
        Ok(UserView {
            uid: uid.clone(),
            record: version.map(|_| record),
            nodes,
        })
    }

    /// Ends sessions: removes each session from the directory, if the directory still names it, and
    /// kicks the session. A login at the same time is either ended as well, or has a higher
    /// generation and survives.
    ///
    /// If a change of one account fails, its sessions carry the error in the result, and the other
    /// accounts are processed.
    ///
    /// # Errors
    /// Failures of the store, if no account could be changed.
    ///
    /// # Cancel safety
    /// A dropped call leaves the remaining sessions unchanged. A session that was removed from the
    /// directory ends all the same: the session's node finds the revocation.
    pub async fn kick(&self, target: &Target, reason: Option<&str>) -> Result<Vec<Kicked>> {
        let ending = EndingReason {
            code: Code::AdminKick,
            reason,
            ban: None,
        };
        let wanted = |entry: &SlotEntry| target.matches(entry);
        if let Some(uid) = target.account() {
            return self.node.end_sessions(uid, wanted, ending).await;
        }
        let mut kicked = Vec::new();
        let (mut changed_any, mut is_away, mut first_error) = (false, false, None);
        for batch in self
            .node
            .find_accounts(target)
            .await?
            .chunks(CONCURRENT_CHANGES)
        {
            let ended = match &first_error {
                Some(error) if is_away => vec![Err(Error::clone(error)); batch.len()],
                _ => {
                    let uids = batch.iter().map(|(uid, _)| uid);
                    join_all(uids.map(|uid| self.node.end_sessions(uid, wanted, ending))).await
                }
            };
            is_away = ended.iter().all(Result::is_err);
            for ((uid, found), ended) in batch.iter().zip(ended) {
                match ended {
                    Ok(ended) => {
                        kicked.extend(ended);
                        changed_any = true;
                    }
                    Err(error) => {
                        tracing::warn!(
                            ?uid, %error,
                            "the sessions of an account could not be ended"
                        );
                        kicked.extend(found.iter().map(|it| Kicked::failed(uid, it, &error)));
                        first_error.get_or_insert(error);
                    }
                }
            }
        }
        match first_error {
            Some(error) if !changed_any => Err(error),
            _ => Ok(kicked),
        }
    }

    /// The sessions that [`kick`](Self::kick) would end. This call changes nothing.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn find(&self, target: &Target) -> Result<Vec<Found>> {
        let accounts = self.node.find_accounts(target).await?;
        let found = |(uid, entries): (Uid, Vec<SlotEntry>)| {
            entries.into_iter().map(move |entry| Found {
                uid: uid.clone(),
                entry,
            })
        };
        Ok(accounts.into_iter().flat_map(found).collect())
    }

    /// The sessions on all nodes that the filter selects, sorted by account, from the directory.
    /// Sessions of dead nodes are left out.
    ///
    /// Reads whole accounts until `most` sessions are found, so a part can have more than `most`.
    /// One call reads at most 5,120 records. A session that exists from the first call to the last
    /// is listed once, whatever changes meanwhile.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn online(
        &self,
        filter: &SessionFilter,
        after: Option<&Uid>,
        most: usize,
    ) -> Result<Page<Found>> {
        let node = &self.node;
        let read_after = |after: Option<RecordKey>| async move {
            let (prefix, mut accounts) = (&filter.uid_prefix, Vec::new());
            for (key, uid, seen) in node.directory.page(prefix, after.as_ref(), PAGE).await? {
                let mut found = Vec::new();
                let slots = seen.into_iter().flat_map(|it| it.record.slots);
                for (_, entry) in slots.filter(|(_, entry)| filter.matches(entry)) {
                    let SessionKey { node: of, boot, .. } = &entry.key;
                    // A node whose lease another version wrote may live.
                    if !matches!(node.liveness_of(of, *boot).await, Ok(Liveness::Dead)) {
                        found.extend(uid.clone().map(|uid| Found { uid, entry }));
                    }
                }
                accounts.push((key, uid.map(|uid| (uid, found))));
            }
            Ok(accounts)
        };
        Page::collect(most, after.map(Uid::record_key).transpose()?, read_after).await
    }

    /// At most `most` revocations whose sessions are not known to have ended, and how many there
    /// are in all. This call reads the whole directory.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn revocations(&self, most: usize) -> Result<(Vec<Pending>, usize)> {
        let (mut pending, mut total) = (Vec::new(), 0);
        self.node
            .for_each_record(|uid, record| {
                total += record.revocations.len();
                let room = most.saturating_sub(pending.len());
                pending.extend(record.revocations.into_iter().take(room).map(|revocation| {
                    Pending {
                        uid: uid.clone(),
                        revocation,
                    }
                }));
            })
            .await?;
        Ok((pending, total))
    }
}

/// Longest TTL of a ban.
const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

impl KickOut {
    /// Bans an account and ends its sessions with code 5. The ban lasts for `ttl` by the store's
    /// clock, or without end. This ban replaces an earlier ban. A login at the same time is either
    /// refused or ended.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a TTL of zero or more than ten years; failures of the
    /// store. After [`ErrorKind::OutcomeUnknown`] the account may be banned, and
    /// [`account_changes`](Self::account_changes) does not say so. Another ban is safe, and it is
    /// told.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown; another ban is safe.
    pub async fn ban(
        &self,
        uid: &Uid,
        ttl: Option<Duration>,
        reason: Option<&str>,
    ) -> Result<(Ban, Vec<Kicked>)> {
        let node = &self.node;
        if let Some(ttl) = ttl
            && (ttl.is_zero() || ttl > MAX_TTL)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("ban ttl is {ttl:?}: more than zero and at most {MAX_TTL:?} are allowed"),
            ));
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let ban = Ban {
            id: Uuid::new_v4(),
            reason: reason.map(str::to_owned),
            ttl_ms: ttl.map(millis),
            until_ms: ttl.map(|ttl| wall_millis(&*node.clock).saturating_add(millis(ttl))),
        };
        // The ban record is written before the mark. Otherwise a login could find the mark without
        // the record, treat the ban as lifted, and remove the mark.
        node.directory.put_ban(uid, &ban).await?;
        let ending = EndingReason {
            code: Code::Banned,
            reason,
            ban: Some(&ban),
        };
        let kicked = node.end_sessions(uid, |_| true, ending).await?;
        node.events.emit(Transition::Banned, |event| {
            event.uid = Some(uid.clone());
            event.result.clone_from(&ban.reason);
        });
        let (until_ms, reason) = (ban.until_ms, ban.reason.clone());
        let news = AccountNews::Banned { until_ms, reason };
        node.account_changes.record_news(uid, news);
        Ok((ban, kicked))
    }

    /// At most `most` bans that hold, of accounts that begin with `uid_prefix`, sorted by account.
    /// A ban whose order failed may be among them. One call reads at most 5,120 bans.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn bans(
        &self,
        uid_prefix: &str,
        after: Option<&Uid>,
        most: usize,
    ) -> Result<Page<Banned>> {
        let node = &self.node;
        let holding = |(uid, ban, age): (Uid, Ban, Option<Duration>)| {
            let is_over = node.ban_is_over(&ban, age);
            (uid.clone(), (!is_over).then_some(Banned { uid, ban }))
        };
        let read_after = |after: Option<RecordKey>| async move {
            let page = node.directory.ban_page(uid_prefix, after.as_ref(), PAGE);
            let bans = page.await?.into_iter();
            Ok(bans.map(|(key, ban)| (key, ban.map(holding))).collect())
        };
        Page::collect(most, after.map(ban_key).transpose()?, read_after).await
    }

    /// Lifts an account's ban. Returns true if there was a ban.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// A dropped call leaves the outcome unknown; repeating the call is safe.
    pub async fn unban(&self, uid: &Uid) -> Result<bool> {
        let node = &self.node;
        let there = node.directory.remove_ban(uid, None).await?;
        let (marked, _) = node
            .directory
            .update(uid, |record| record.ban.take().is_some())
            .await?;
        if there || marked {
            node.events.emit(Transition::Unbanned, |event| {
                event.uid = Some(uid.clone());
            });
            let news = AccountNews::Unbanned { ended: false };
            node.account_changes.record_news(uid, news);
        }
        Ok(there || marked)
    }
}
