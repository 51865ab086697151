//! The parts of a node that the page shows.

use std::{sync::Arc, time::Duration};

use distlock_kickout::KickOut;

use crate::{
    admin::AdminAccess, listen::Tls, peer::GrpcPeers, takeovers::RecentTakeovers, token::TokenKey,
};

#[derive(Clone)]
pub(crate) struct PageContext {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    pub(crate) access: AdminAccess,
    pub(crate) node_lease: Duration,
    pub(crate) tls: Arc<Tls>,
    /// The takeovers that this node saw.
    pub(crate) recent: RecentTakeovers,
    /// The client that asks other nodes for the takeovers that they saw.
    pub(crate) peers: Arc<GrpcPeers>,
}
