//! The routes of the page, and the parts of a node that they need.
//!
//! This module must never give out a login token for an account outside the playground.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use distlock_kickout::{KickOut, Uid};
use distlock_listen::{ConnectionHandle, Tls};
use serde::Deserialize;
use serde_json::json;

use super::{render, snapshot::Snapshot};
use crate::{
    admin::{AdminAccess, Administrator, JsonBody, Right, client_ip, http_error, mark_logged_in},
    peer::GrpcPeers,
    takeovers::RecentTakeovers,
    token::{TokenKey, mint},
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

/// Prefix of the playground's accounts. With the prefix, this page cannot give out a token for a
/// real account.
const PLAYGROUND_PREFIX: &str = "playground-";
const PLAYGROUND_TOKEN_TTL: Duration = Duration::from_secs(3600);
/// Longest body of a sign-in request, which any stranger can send.
const MAX_SIGN_IN_BYTES: usize = 8 * 1024;
/// The policy allows no content of other origins and no inline script. The playground's sockets may
/// connect to any host, because the addresses of the nodes are not known here.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
                      img-src 'self' data:; connect-src 'self' ws: wss:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes(page: PageContext) -> Router {
    let guarded = Router::new()
        .route("/", get(show_page))
        .route("/page/state", get(show_changing_part))
        .route("/page/token", post(mint_token))
        .route_layer(middleware::from_fn_with_state(page.clone(), authorise));
    Router::new()
        .route("/page/style.css", get(serve_style))
        .route("/page/script.js", get(serve_script))
        .route("/page/distlock-gateway.js", get(serve_client))
        .route("/page/sign-in", get(show_sign_in).post(sign_in))
        .route("/page/sign-out", post(sign_out))
        .layer(DefaultBodyLimit::max(MAX_SIGN_IN_BYTES))
        .merge(guarded)
        .layer(middleware::map_response(async |mut response: Response| {
            let headers = response.headers_mut();
            let plain = [
                (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::CACHE_CONTROL, "no-store"),
                (header::REFERRER_POLICY, "no-referrer"),
            ];
            for (name, value) in plain {
                headers.insert(name, HeaderValue::from_static(value));
            }
            response
        }))
        .with_state(page)
}

async fn authorise(State(page): State<PageContext>, mut request: Request, next: Next) -> Response {
    let (headers, from) = (request.headers(), client_ip(&request));
    let Some(administrator) = page.access.identify_viewer(headers, from).await else {
        let body = (HTML, render::sign_in_page(page.kick.node()));
        return (StatusCode::UNAUTHORIZED, body).into_response();
    };
    mark_logged_in(&request);
    request.extensions_mut().insert(administrator);
    next.run(request).await
}

const HTML: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];

async fn show_page(
    State(page): State<PageContext>,
    Extension(administrator): Extension<Administrator>,
) -> Response {
    let snapshot = Snapshot::take(&page).await;
    (HTML, render::full_page(&snapshot, &administrator)).into_response()
}

/// The part of the page that changes, the takeovers, the nodes for the playground, and all nodes
/// with the number of their sessions.
async fn show_changing_part(State(page): State<PageContext>) -> Response {
    let snapshot = Snapshot::take(&page).await;
    let fronts = snapshot.node_fronts();
    let takeovers = &snapshot.takeovers;
    let part = json!({
        "html": render::changing_part(&snapshot), "takeovers": takeovers, "nodes": fronts,
        "sessions": snapshot.node_sessions(),
    });
    Json(part).into_response()
}

async fn serve_style() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/css; charset=utf-8")];
    (kind, include_str!("style.css")).into_response()
}

const JAVASCRIPT: [(HeaderName, &str); 1] =
    [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")];

async fn serve_script() -> Response {
    (JAVASCRIPT, include_str!("script.js")).into_response()
}

/// The client for programs, which the playground uses. Its file is in `clients/js`.
async fn serve_client() -> Response {
    (JAVASCRIPT, include_str!("distlock-gateway.js")).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    account: String,
}

/// A login token for an account of the playground.
async fn mint_token(
    State(page): State<PageContext>,
    Extension(administrator): Extension<Administrator>,
    JsonBody(body): JsonBody<TokenBody>,
) -> Response {
    if let Err(why) = administrator.check(Right::Operate) {
        return http_error(StatusCode::FORBIDDEN, &why).into_response();
    }
    let minted = Uid::new(format!("{PLAYGROUND_PREFIX}{}", body.account))
        .and_then(|uid| Ok((mint(&page.key, &uid, PLAYGROUND_TOKEN_TTL)?, uid)));
    match minted {
        Ok((token, uid)) => Json(json!({"uid": uid, "token": token})).into_response(),
        Err(error) => {
            let body = Json(json!({"error": error.to_string()}));
            (StatusCode::BAD_REQUEST, body).into_response()
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignInBody {
    token: String,
}

/// The form for signing in. A tab without its own half of a pass needs the form, although the
/// cookie of another tab opens the page.
async fn show_sign_in(State(page): State<PageContext>) -> Response {
    (HTML, render::sign_in_page(page.kick.node())).into_response()
}

/// Exchanges the admin token for a pass: a cookie, and the half that the script keeps.
async fn sign_in(
    State(page): State<PageContext>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    JsonBody(body): JsonBody<SignInBody>,
) -> Response {
    let signed_in = page
        .access
        .sign_in(&body.token, connection.peer().ip())
        .await;
    let Some((cookie, script_half)) = signed_in else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let script_half = Json(json!({"pass": script_half.expose()}));
    ([(header::SET_COOKIE, cookie)], script_half).into_response()
}

/// Ends the pass, and makes the browser delete the cookie. The cookie alone ends nothing: pages of
/// other ports of the host can make the browser send the cookie.
async fn sign_out(State(page): State<PageContext>, headers: HeaderMap) -> Response {
    match page.access.sign_out(&headers) {
        Some(cookie) => ([(header::SET_COOKIE, cookie)], StatusCode::NO_CONTENT).into_response(),
        None => http_error(StatusCode::UNAUTHORIZED, "a pass is needed").into_response(),
    }
}
