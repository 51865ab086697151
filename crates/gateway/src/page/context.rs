//! What the page is made of.

use std::{sync::Arc, time::Duration};

use distlock_kickout::KickOut;

use crate::{admin::AdminAccess, peer::GrpcPeers, takeovers::RecentTakeovers, token::TokenKey};

#[derive(Clone)]
pub(crate) struct PageContext {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    pub(crate) access: AdminAccess,
    pub(crate) node_lease: Duration,
    /// The takeovers that this node saw.
    pub(crate) recent: RecentTakeovers,
    /// Asks the other nodes for those that they saw.
    pub(crate) peers: Arc<GrpcPeers>,
}
