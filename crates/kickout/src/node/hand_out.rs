//! Stored messages of accounts that are online, and the calls that show whether other nodes can be
//! called.
//!
//! A message may be stored although its session lives: its node could not be called, or its
//! connection took nothing. This module remembers those accounts by node, and tells the node in
//! every round until a call is answered. A call without an account has a use as well: a node that
//! cannot be called is noticed before a login needs it. This module must never carry a message: the
//! session's own node claims it from the store, so a call that is late or repeated delivers nothing
//! twice.

use std::{collections::BTreeSet, sync::Arc};

use distlock_core::Moment;

use crate::{
    model::{
        ident::{NodeId, Uid},
        node::NodeAddress,
    },
    node::{
        Node,
        route::{Delivery, Receipt},
    },
};

/// Most accounts in one call. The ids of 250 accounts are well within the longest message.
const ACCOUNTS_PER_CALL: usize = 250;
/// Most accounts that are remembered for one node. The messages of further accounts wait for a
/// login, or for another message to the same account.
const MAX_ACCOUNTS: usize = 10_000;

/// The accounts whose sessions on one node have stored messages.
#[derive(Debug)]
pub(crate) struct OwedAccounts {
    uids: BTreeSet<Uid>,
    /// Time of the first entry.
    noted: Moment,
}

impl Node {
    /// Notes that a message of the account was stored for the sessions that missed it. The caller
    /// has stored the message before this call.
    pub(crate) fn note_stored(&self, uid: &Uid, receipts: &[Receipt]) {
        let missed = receipts.iter().filter(|it| it.delivery == Delivery::Missed);
        for receipt in missed {
            let node = &receipt.location.key.node;
            if *node == self.this.id {
                self.hand_out_here(std::slice::from_ref(uid));
            } else {
                self.owe(node, [uid.clone()]);
            }
        }
    }

    /// Lets each session of these accounts on this node hand out the stored messages.
    pub(crate) fn hand_out_here(&self, uids: &[Uid]) {
        for uid in uids {
            for live in self.registry.sessions_of(uid) {
                live.ask_for_hand_out();
            }
        }
    }

    /// Calls each of these nodes, in the background.
    pub(crate) fn call_nodes(self: &Arc<Self>, up: Vec<NodeAddress>) {
        self.forget_owed_to_dead(&up);
        for to in up {
            if to.node == self.this.id {
                continue;
            }
            let this = Arc::clone(self);
            self.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = this.tasks.stop.cancelled() => {}
                    () = this.call_node(&to) => {}
                }
            });
        }
    }

    /// Tells a node of all accounts that are remembered for it. One call is made even if there are
    /// none.
    async fn call_node(&self, to: &NodeAddress) {
        loop {
            // The accounts are taken out before the call. The node claims their messages during the
            // call, and a message that is stored after that claim notes its account again.
            let uids = self.take_owed(&to.node);
            let deadline = self.settings.timers.peer_deadline;
            if self.peers.hand_out(to, &uids, deadline).await.is_err() {
                return self.owe(&to.node, uids);
            }
            if uids.len() < ACCOUNTS_PER_CALL {
                return;
            }
        }
    }

    /// Remembers accounts for a node.
    fn owe(&self, node: &NodeId, uids: impl IntoIterator<Item = Uid>) {
        let mut all = self.owed.lock();
        for uid in uids {
            let owed = all.entry(node.clone()).or_insert_with(|| OwedAccounts {
                uids: BTreeSet::new(),
                noted: self.clock.now(),
            });
            if owed.uids.len() < MAX_ACCOUNTS {
                owed.uids.insert(uid);
            }
        }
    }

    /// Takes out some of the accounts that are remembered for a node.
    fn take_owed(&self, node: &NodeId) -> Vec<Uid> {
        let mut all = self.owed.lock();
        let Some(owed) = all.get_mut(node) else {
            return Vec::new();
        };
        let uids = std::iter::from_fn(|| owed.uids.pop_first());
        let uids = uids.take(ACCOUNTS_PER_CALL).collect();
        if owed.uids.is_empty() {
            all.remove(node);
        }
        uids
    }

    /// Forgets the nodes that have had no lease for two leases: they are dead, and their accounts
    /// get the messages with the next login.
    fn forget_owed_to_dead(&self, up: &[NodeAddress]) {
        let (now, life) = (self.clock.now(), self.settings.timers.node_lease * 2);
        self.owed.lock().retain(|node, owed| {
            now.since(owed.noted) < life || up.iter().any(|address| address.node == *node)
        });
    }
}
