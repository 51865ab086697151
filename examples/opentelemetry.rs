//! Sends the spans and metrics of locks to a collector of OpenTelemetry, by OTLP over gRPC.
//!
//! Run it beside a collector that listens on port 4317:
//! `cargo run -p distlock --features sqlite --example opentelemetry`
//!
//! The collector then has a span for each acquire, with its wait, the holder that it met, its
//! outcome and its token, and all metrics of docs/metrics.md.

use std::{error::Error, time::Duration};

use distlock::{Clock as _, FencingToken, LockName, Locker, SystemClock, Target};
use metrics_opentelemetry::{OpenTelemetryMetrics, OpenTelemetryRecorder};
use opentelemetry::{metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::SdkTracerProvider,
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let telemetry = Telemetry::install("http://localhost:4317")?;
    // The store is opened afterwards: a locker registers its metrics when it is built.
    let target = Target::sqlite(std::env::temp_dir().join("distlock-example.db"));
    let first = distlock::connect(target.clone()).await?;
    let second = distlock::connect(target.clone()).await?;
    wait_for_each_other(&first, &second).await?;
    first.close().await;
    second.close().await;
    telemetry.send_the_rest().await
}

/// What sends spans and metrics in the background.
struct Telemetry {
    spans: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Telemetry {
    /// Becomes the subscriber and the recorder of this process. Must be called in a runtime, which
    /// has the connections to the collector.
    fn install(collector: &str) -> Result<Self> {
        let service = Resource::builder().with_service_name("orders").build();

        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(collector)
            .build()?;
        let spans = SdkTracerProvider::builder()
            .with_resource(service.clone())
            .with_batch_exporter(exporter)
            .build();
        // Only the spans of distlock: those of the exporter's own connection would go on forever.
        let wanted = Targets::new().with_target("distlock", LevelFilter::DEBUG);
        let layer = tracing_opentelemetry::layer().with_tracer(spans.tracer("distlock"));
        tracing_subscriber::registry()
            .with(layer.with_filter(wanted))
            .try_init()?;

        let exporter = MetricExporter::builder()
            .with_tonic()
            .with_endpoint(collector)
            .build()?;
        let metrics = SdkMeterProvider::builder()
            .with_resource(service)
            .with_reader(PeriodicReader::builder(exporter).build())
            .build();
        let recorder = OpenTelemetryMetrics::new(metrics.meter("distlock"));
        metrics::set_global_recorder(OpenTelemetryRecorder::new(recorder))?;
        Ok(Self { spans, metrics })
    }

    /// Sends what is left. Without it the last seconds of a program are missing.
    async fn send_the_rest(self) -> Result<()> {
        // Both calls block until the collector has answered.
        tokio::task::spawn_blocking(move || {
            self.spans.shutdown()?;
            Ok(self.metrics.shutdown()?)
        })
        .await?
    }
}

/// The second locker waits for the lock until the first one has released it. Returns its token.
async fn wait_for_each_other(first: &Locker, second: &Locker) -> Result<FencingToken> {
    let name = LockName::new("order:42")?;
    let guard = first.lock(&name).holder("first").acquire().await?;
    let work = async {
        SystemClock.sleep(Duration::from_millis(500)).await; // pretends to work
        guard.release().await
    };
    let (waited, released) = tokio::join!(second.lock(&name).acquire(), work);
    let waited = waited?;
    let token = waited.token();
    say(format_args!("the first: {released:?}"));
    say(format_args!("the second: {:?}", waited.release().await));
    Ok(token)
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock::backend::sync::Mutex;
    use opentelemetry_proto::tonic::{
        collector::{
            metrics::v1::{
                ExportMetricsServiceRequest, ExportMetricsServiceResponse,
                metrics_service_server::{MetricsService, MetricsServiceServer},
            },
            trace::v1::{
                ExportTraceServiceRequest, ExportTraceServiceResponse,
                trace_service_server::{TraceService, TraceServiceServer},
            },
        },
        common::v1::{AnyValue, KeyValue, any_value::Value},
        trace::v1::Span,
    };
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::{Request, Response, Status, transport::Server};

    use super::*;

    /// A collector that keeps what it gets.
    #[derive(Clone, Default)]
    struct Collector {
        spans: Arc<Mutex<Vec<Span>>>,
        metrics: Arc<Mutex<Vec<String>>>,
    }

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> std::result::Result<Response<ExportTraceServiceResponse>, Status> {
            let resources = request.into_inner().resource_spans.into_iter();
            let spans = resources
                .flat_map(|it| it.scope_spans)
                .flat_map(|it| it.spans);
            self.spans.lock().extend(spans);
            Ok(Response::new(Default::default()))
        }
    }

    #[tonic::async_trait]
    impl MetricsService for Collector {
        async fn export(
            &self,
            request: Request<ExportMetricsServiceRequest>,
        ) -> std::result::Result<Response<ExportMetricsServiceResponse>, Status> {
            let resources = request.into_inner().resource_metrics.into_iter();
            let metrics = resources
                .flat_map(|it| it.scope_metrics)
                .flat_map(|it| it.metrics);
            self.metrics.lock().extend(metrics.map(|it| it.name));
            Ok(Response::new(Default::default()))
        }
    }

    fn value<'a>(of: &'a [KeyValue], key: &str) -> Option<&'a Value> {
        let found = of.iter().find(|it| it.key == key)?;
        match &found.value {
            Some(AnyValue { value: Some(value) }) => Some(value),
            _ => None,
        }
    }

    fn text(value: &str) -> Value {
        Value::StringValue(value.to_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_gets_the_wait_the_holder_the_outcome_and_the_token() {
        let collector = Collector::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(
            Server::builder()
                .add_service(TraceServiceServer::new(collector.clone()))
                .add_service(MetricsServiceServer::new(collector.clone()))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );

        let telemetry = Telemetry::install(&format!("http://{address}")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let target = Target::sqlite(folder.path().join("locks.db"));
        let first = distlock::connect(target.clone()).await.unwrap();
        let second = distlock::connect(target.clone()).await.unwrap();
        let token = wait_for_each_other(&first, &second).await.unwrap();
        let again = first.lock("order:42").acquire().await.unwrap();
        let busy = second.lock("order:42").wait(Duration::from_millis(1));
        busy.acquire().await.unwrap_err();
        drop(again);
        first.close().await;
        second.close().await;
        telemetry.send_the_rest().await.unwrap();

        let spans = collector.spans.lock();
        let named = |name| spans.iter().filter(move |it| it.name == name);
        let met = |span: &Span| {
            let mut waits = span
                .events
                .iter()
                .filter(|it| it.name == "waits for the holder");
            waits
                .next()
                .and_then(|it| value(&it.attributes, "holder").cloned())
        };
        let ended = |outcome: &str| {
            let wanted = text(outcome);
            named("distlock.acquire")
                .filter(move |it| value(&it.attributes, "outcome") == Some(&wanted))
        };
        let waited: Vec<_> = ended("acquired").filter(|it| met(it).is_some()).collect();
        let [waited] = waited[..] else {
            panic!("{spans:#?}")
        };
        assert_eq!(met(waited), Some(text("first")));
        assert_eq!(
            value(&waited.attributes, "token"),
            Some(&text(&token.to_string()))
        );
        assert_eq!(value(&waited.attributes, "backend"), Some(&text("sqlite")));
        // It lasted as long as the first one has worked.
        let lasted = waited.end_time_unix_nano - waited.start_time_unix_nano;
        assert!(lasted >= 400_000_000, "{lasted}");
        let timed_out = ended("timeout").next().unwrap();
        assert_eq!(value(&timed_out.attributes, "token"), None);
        assert!(
            named("distlock.release")
                .all(|it| { value(&it.attributes, "outcome") == Some(&text("clean")) })
        );

        let metrics = collector.metrics.lock();
        for name in [
            "distlock_acquire_total",
            "distlock_acquire_seconds",
            "distlock_held",
            "distlock_store_requests_total",
        ] {
            assert!(metrics.iter().any(|it| it == name), "{name}: {metrics:?}");
        }
    }
}
