//! Idle times of an account's sessions, for the policy `evict_idle`.
//!
//! The idle times are collected before the account's lock is taken, because a slow peer must not
//! extend the time for which the lock is held.

use std::{collections::BTreeMap, time::Duration};

use distlock_core::Result;
use futures_util::future::join_all;

use crate::{
    login::context::LoginRun,
    model::{
        policy::{IdleTimes, OnExceed},
        resume::ResumeToken,
    },
    node::liveness::Liveness,
    wait::within,
};

impl LoginRun {
    /// The idle times of this login's rivals. The result is empty if the policy does not use idle
    /// times, or if no rival has to end.
    pub(crate) async fn rival_idle_times(&self, resume: Option<&ResumeToken>) -> Result<IdleTimes> {
        let node = &self.node;
        let mut idle = IdleTimes::new();
        if node.settings.policy.on_exceed != OnExceed::EvictIdle {
            return Ok(idle);
        }
        let uid = &self.login.uid;
        let record = node.directory.read(uid).await?.record;
        let rivals = node.settings.policy.rivals(&record, &self.newcomer(resume));
        if node.settings.policy.excess(rivals.len()) == 0 {
            return Ok(idle);
        }
        let mut nodes = BTreeMap::new();
        for (_, entry) in rivals {
            // A session counts as idle for ever unless its node reports a time.
            idle.insert(entry.key.clone(), Duration::MAX);
            nodes.insert(entry.key.node.clone(), entry.key.boot);
        }
        let answers = nodes.into_iter().map(|(rival, boot)| async move {
            if rival == node.this.id {
                return node.registry.idle_times(uid, node.clock.now());
            }
            let deadline = node.settings.timers.peer_deadline;
            let liveness = node.liveness_of(&rival, boot);
            match within(&*node.clock, deadline, liveness).await {
                Some(Ok(Liveness::Up(to))) => {
                    let answer = node.peers.idle(&to, uid, deadline).await;
                    answer.unwrap_or_default()
                }
                _ => Vec::new(),
            }
        });
        for (key, time) in join_all(answers).await.into_iter().flatten() {
            if let Some(known) = idle.get_mut(&key) {
                *known = time;
            }
        }
        Ok(idle)
    }
}
