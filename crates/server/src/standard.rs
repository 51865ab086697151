//! What every gRPC server has beside its own service: health and reflection, and the page with the
//! metrics.

use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, response::Response, routing::get};
use distlock_core::{Error, ErrorKind, Result};
use distlock_listen::{ConnectionHandle, ConnectionListener, MetricsPage, Tls, serve_http};
use distlock_wire::{FILE_DESCRIPTOR_SET, v1::lock_service_server::LockServiceServer};
use tonic::{
    Request, Status,
    server::NamedService,
    service::{Interceptor, interceptor::InterceptedService},
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tonic_reflection::server::{
    Builder,
    v1::{ServerReflection, ServerReflectionServer},
};

use crate::{access::Gate, meters, service::Service, session::SessionContext};

/// The health of the server, as load balancers and orchestrators ask for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serving(HealthReporter);

impl Serving {
    /// The server takes clients.
    pub(crate) async fn begin(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// The server takes no further clients.
    pub(crate) async fn end(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    async fn set(&self, status: ServingStatus) {
        for name in ["", LockServiceServer::<Service>::NAME] {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// Lets the calls of a standard service in.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    gate: Gate,
    /// Whether the caller has to show its token, if the server asks for tokens.
    needs_token: bool,
}

impl Interceptor for Admission {
    fn call(&mut self, call: Request<()>) -> Result<Request<()>, Status> {
        if self.needs_token {
            self.gate.admit(call.metadata())?;
        }
        // A caller who has shown no token where one is asked for has only the time of a login.
        if (self.needs_token || self.gate.keys.is_none())
            && let Some(connection) = call.extensions().get::<ConnectionHandle>()
        {
            connection.mark_logged_in();
        }
        Ok(call)
    }
}

/// The service for health. It needs no token, because who asks has none.
pub(crate) fn health_service(
    serving: &Serving,
    gate: Gate,
) -> InterceptedService<HealthServer<HealthService>, Admission> {
    let health = HealthService::from_health_reporter(serving.0.clone());
    let admission = Admission {
        gate,
        needs_token: false,
    };
    InterceptedService::new(HealthServer::new(health), admission)
}

/// The service for reflection, which tells a tool the calls and messages of this server.
///
/// # Errors
/// [`ErrorKind::Internal`] if the descriptors of the protocol cannot be read.
pub(crate) fn reflection_service(
    gate: Gate,
) -> Result<InterceptedService<ServerReflectionServer<impl ServerReflection>, Admission>> {
    let reflection = Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    let reflection = reflection.map_err(|error| {
        let problem = "the protocol cannot be described";
        Error::new(ErrorKind::Internal, problem).caused_by(error)
    })?;
    let admission = Admission {
        gate,
        needs_token: true,
    };
    Ok(InterceptedService::new(reflection, admission))
}

/// Serves `/metrics` and `/healthz` until the server stops.
pub(crate) async fn serve_metrics(
    listener: ConnectionListener,
    page: MetricsPage,
    tls: Arc<Tls>,
    context: Arc<SessionContext>,
) {
    let stop = context.stop.clone();
    let routes = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(show_health))
        .with_state((page, tls, context));
    serve_http(listener, routes, stop).await;
}

type Shown = State<(MetricsPage, Arc<Tls>, Arc<SessionContext>)>;

async fn show_metrics(State((page, tls, context)): Shown) -> Response {
    tls.record_expiry();
    meters::observe(&context);
    page.answer()
}

async fn show_health(State((_, _, context)): Shown) -> (StatusCode, &'static str) {
    if context.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    }
    (StatusCode::OK, "up\n")
}
