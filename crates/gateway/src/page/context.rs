//! What the page is made of.

use std::{sync::Arc, time::Duration};

use distlock_kickout::KickOut;

use crate::{admin::Guard, peer::GrpcPeers, takeovers::Recent, token::TokenKey};

#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    pub(crate) guard: Guard,
    pub(crate) node_lease: Duration,
    /// The takeovers that this node saw.
    pub(crate) recent: Recent,
    /// Asks the other nodes for those that they saw.
    pub(crate) peers: Arc<GrpcPeers>,
}
