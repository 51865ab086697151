//! The recorder behind `/metrics`, one per process.
//!
//! This module must never replace a recorder that the program installed itself.

use std::{fmt, sync::OnceLock, time::Duration};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use distlock_core::Clock;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;

/// Upper ends of the histograms' buckets, in seconds: from a round trip on one host to a node
/// lease, and two more for locks that are held during a job.
const SECONDS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
    600.0,
];

/// Period of the upkeep of the recorder.
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);

/// Counter of connections without a place.
pub(crate) const REFUSED: &str = "distlock_connections_refused_total";

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// The page with all metrics of this process, in the text format of Prometheus.
#[derive(Clone)]
pub struct MetricsPage(PrometheusHandle);

impl MetricsPage {
    /// Installs the process's metrics recorder at the first call.
    ///
    /// Call this function before the store is opened, because lockers get their counters when they
    /// are built. If the program has installed a recorder itself, that recorder stays, and the page
    /// is then empty.
    #[must_use]
    pub fn install() -> Self {
        let handle = HANDLE.get_or_init(|| {
            let recorder = match PrometheusBuilder::new().set_buckets(&SECONDS) {
                Ok(builder) => builder.build_recorder(),
                Err(_) => unreachable!("there are buckets"),
            };
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            handle
        });
        Self(handle.clone())
    }

    /// Describes the metrics of every server, and sets them to 0, so that the page shows them from
    /// the start.
    pub fn describe(&self, version: &'static str) {
        metrics::describe_counter!(REFUSED, "Connections beyond a limit, which were refused");
        metrics::counter!(REFUSED).increment(0);
        metrics::describe_gauge!(
            crate::EXPIRY,
            metrics::Unit::Seconds,
            "Time until the first certificate of a file expires, negative afterwards"
        );
        Collector::default().describe();
        metrics::describe_gauge!("distlock_build_info", "1, with the version of this program");
        metrics::gauge!("distlock_build_info", "version" => version).set(1.0);
    }

    /// The answer to `GET /metrics`. The metrics of the process are read from the system for each
    /// answer.
    #[must_use]
    pub fn answer(&self) -> Response {
        Collector::default().collect();
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
        (kind, self.0.render()).into_response()
    }

    /// Keeps the histograms small, for ever.
    pub async fn keep_up(&self, clock: &dyn Clock) {
        loop {
            clock.sleep(UPKEEP_PERIOD).await;
            self.0.run_upkeep();
        }
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsPage")
    }
}
