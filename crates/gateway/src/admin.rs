//! The admin HTTP: health, metrics, looking at accounts and ending sessions.

use std::{io, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use distlock_core::{Error, ErrorKind};
use distlock_kickout::{Class, KickOut, Kicked, NodeId, SessionId, Target, Uid, UserView};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Secret,
    page::{self, Page},
};

#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) kick: KickOut,
    pub(crate) metrics: PrometheusHandle,
    /// Asked for when it is set.
    pub(crate) token: Option<Arc<Secret>>,
}

/// Serves administrators until `stop`.
pub(crate) async fn serve_admin(
    admin: Admin,
    page: Page,
    listener: TcpListener,
    stop: CancellationToken,
) -> io::Result<()> {
    let guarded = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/users/{uid}", get(user))
        .route("/v1/kick", post(kick))
        .route_layer(middleware::from_fn_with_state(admin.clone(), authorise));
    let routes = Router::new()
        .route("/healthz", get(health))
        .merge(guarded)
        .with_state(admin)
        .merge(page::routes(page));
    axum::serve(listener, routes)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

async fn authorise(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if let Some(token) = &admin.token {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        if !given.is_some_and(|given| token.matches(given)) {
            let error = json!({"error": "a bearer token is needed"});
            return (StatusCode::UNAUTHORIZED, Json(error)).into_response();
        }
    }
    next.run(request).await
}

#[derive(Serialize)]
struct Health<'a> {
    status: &'a str,
    node: &'a NodeId,
    boot: Option<u64>,
    sessions: usize,
    lease_remaining_ms: u128,
}

async fn health(State(admin): State<Admin>) -> Response {
    let boot = admin.kick.boot().map(distlock_kickout::Boot::get);
    let (code, status) = if boot.is_some() {
        (StatusCode::OK, "up")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "fenced")
    };
    let health = Health {
        status,
        node: admin.kick.node(),
        boot,
        sessions: admin.kick.sessions(),
        lease_remaining_ms: admin.kick.lease_remaining().as_millis(),
    };
    (code, Json(health)).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (kind, admin.metrics.render()).into_response()
}

async fn user(
    State(admin): State<Admin>,
    Path(uid): Path<String>,
) -> Result<Json<UserView>, Failed> {
    Ok(Json(admin.kick.view(&Uid::new(uid)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KickBody {
    uid: Option<Uid>,
    session: Option<SessionId>,
    class: Option<Class>,
    node: Option<NodeId>,
    reason: Option<String>,
}

#[derive(Serialize)]
struct KickAnswer {
    kicked: Vec<Kicked>,
}

async fn kick(
    State(admin): State<Admin>,
    Json(body): Json<KickBody>,
) -> Result<Json<KickAnswer>, Failed> {
    let target = match (body.uid, body.session, body.class, body.node) {
        (Some(uid), None, None, None) => Target::Uid(uid),
        (None, Some(session), None, None) => Target::Session(session),
        (None, None, Some(class), None) => Target::Class(class),
        (None, None, None, Some(node)) => Target::Node(node),
        _ => {
            return Err(Failed(Error::new(
                ErrorKind::InvalidArgument,
                "exactly one of uid, session, class and node is needed",
            )));
        }
    };
    if let Some(reason) = &body.reason
        && (reason.len() > 256 || reason.chars().any(char::is_control))
    {
        return Err(Failed(Error::new(
            ErrorKind::InvalidArgument,
            "reason is longer than 256 bytes or has a control character",
        )));
    }
    let kicked = admin.kick.kick(&target, body.reason.as_deref()).await?;
    tracing::info!(?target, ended = kicked.len(), "sessions were ended by hand");
    Ok(Json(KickAnswer { kicked }))
}

/// An error as an HTTP answer.
struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let code = match self.0.kind() {
            ErrorKind::InvalidArgument | ErrorKind::InvalidName => StatusCode::BAD_REQUEST,
            ErrorKind::Unavailable | ErrorKind::Timeout => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(json!({"error": self.0.to_string()}))).into_response()
    }
}
