//! The parts of a node that the handlers of the admin HTTP need.

use std::sync::Arc;

use distlock_core::Locker;
use distlock_kickout::KickOut;
use metrics_exporter_prometheus::PrometheusHandle;

use super::{AdminAccess, AuditLog};
use crate::listen::Tls;

/// The parts that the handlers share.
#[derive(Clone)]
pub(crate) struct AdminContext {
    pub(crate) kick: KickOut,
    pub(crate) locker: Locker,
    pub(crate) audit: AuditLog,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) tls: Arc<Tls>,
    pub(crate) access: AdminAccess,
}
