//! The recorder behind `/metrics`, one per process.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the process's metrics recorder, once; later calls do nothing.
///
/// Call it before the store is opened: lockers take hold of their counters when they are built. A recorder that the program
/// installed itself stays, and `/metrics` is then empty.
pub fn install_metrics() {
    handle();
}

pub(crate) fn handle() -> PrometheusHandle {
    HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new().build_recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            handle
        })
        .clone()
}
