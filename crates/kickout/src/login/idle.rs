//! Which of an account's sessions has sent nothing for the longest time: asked of their nodes before the account's lock is
//! taken.

use std::{collections::BTreeMap, time::Duration};

use distlock_core::Result;
use futures_util::future::join_all;

use crate::{
    flow::{Inner, KickOut},
    login::attempt::Run,
    model::{
        ident::{SessionKey, Uid},
        policy::{Idle, Newcomer, OnExceed},
        resume::ResumeToken,
    },
    node::liveness::Standing,
    session::live::Phase,
    wait::within,
};

impl KickOut {
    /// For how long the account's sessions on this node have sent nothing: the answer to [`Peers::idle`](crate::Peers::idle).
    #[must_use]
    pub fn handle_idle(&self, uid: &Uid) -> Vec<(SessionKey, Duration)> {
        self.inner.idle_here(uid)
    }
}

impl Inner {
    fn idle_here(&self, uid: &Uid) -> Vec<(SessionKey, Duration)> {
        let now = self.clock.now();
        self.registry
            .of(uid)
            .iter()
            .filter(|live| live.phase() == Phase::Active)
            .map(|live| (live.key.clone(), live.idle(now)))
            .collect()
    }
}

impl Run {
    pub(crate) fn newcomer(&self, resume: Option<&ResumeToken>) -> Newcomer<'_> {
        Newcomer {
            class: &self.login.class,
            device: &self.login.device,
            intent: self.login.intent,
            resumes: resume.map(ResumeToken::session),
        }
    }

    /// The idle times of the sessions that this login competes with, where the policy asks for them and there is no room.
    pub(crate) async fn idle_rivals(&self, resume: Option<&ResumeToken>) -> Result<Idle> {
        let inner = &self.inner;
        let mut idle = Idle::new();
        if inner.policy.on_exceed != OnExceed::EvictIdle {
            return Ok(idle);
        }
        let uid = &self.login.uid;
        let record = inner.directory.read(uid).await?.record;
        let rivals = inner.policy.rivals(&record, &self.newcomer(resume));
        if inner.policy.excess(rivals.len()) == 0 {
            return Ok(idle);
        }
        let mut nodes = BTreeMap::new();
        for (_, entry) in rivals {
            // Unless its node says otherwise.
            idle.insert(entry.key.clone(), Duration::MAX);
            nodes.insert(entry.key.node.clone(), entry.key.boot);
        }
        let answers = nodes.into_iter().map(|(node, boot)| async move {
            if node == inner.node {
                return inner.idle_here(uid);
            }
            let deadline = inner.timers.peer_deadline;
            let standing = inner.standing(&node, boot);
            match within(&*inner.clock, deadline, standing).await {
                Some(Ok(Standing::Up(to))) => {
                    let answer = inner.caller.idle(&to, uid, deadline).await;
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
