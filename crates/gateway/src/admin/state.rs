//! What the handlers of the admin HTTP need.

use distlock_core::Locker;
use distlock_kickout::KickOut;
use metrics_exporter_prometheus::PrometheusHandle;

use super::{Audit, Guard};

#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) kick: KickOut,
    pub(crate) locker: Locker,
    pub(crate) audit: Audit,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) guard: Guard,
}
