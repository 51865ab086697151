//! The live page of the admin listener: nodes and their leases, takeovers as they happen, locks, and two devices to play with.
//!
//! Rendered here; a little script swaps in the changing part, follows the takeovers and plays the two devices. Nothing is
//! loaded from elsewhere. It is guarded as the rest of the admin HTTP is; because a browser cannot be told to send a bearer
//! token, it may show a pass instead, in a cookie.

mod render;
mod state;
mod takeovers;

use std::{convert::Infallible, time::Duration};

use axum::{
    Json, Router,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{
        IntoResponse, Response,
        sse::{Event as Line, KeepAlive, Sse},
    },
    routing::{get, post},
};
use distlock_kickout::{KickOut, Uid};
use futures_util::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{Guard, from, let_in},
    listen::LineHandle,
    token::{TokenKey, mint},
};
use state::Snapshot;
use takeovers::Takeovers;

/// Accounts of the playground begin with this, so that nobody gets a token here for an account of somebody else.
const PLAYGROUND: &str = "playground-";
const PLAY_TIME: Duration = Duration::from_secs(3600);
/// Longest body of a sign-in, which comes from strangers.
const MAX_SIGN_IN: usize = 8 * 1024;
/// Nothing from elsewhere, no inline script; the playground's sockets go to the nodes, whose addresses are not known here.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self' ws: wss:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) kick: KickOut,
    pub(crate) key: TokenKey,
    pub(crate) guard: Guard,
    /// Ends the streams of takeovers, which have no end of their own.
    pub(crate) stop: CancellationToken,
}

pub(crate) fn routes(page: Page) -> Router {
    let guarded = Router::new()
        .route("/", get(whole))
        .route("/page/state", get(part))
        .route("/page/takeovers", get(takeovers))
        .route("/page/token", post(token))
        .route_layer(middleware::from_fn_with_state(page.clone(), authorise));
    Router::new()
        .route("/page/style.css", get(style))
        .route("/page/script.js", get(script))
        .route("/page/sign-in", post(sign_in))
        .route("/page/sign-out", post(sign_out))
        .layer(DefaultBodyLimit::max(MAX_SIGN_IN))
        .merge(guarded)
        .layer(middleware::map_response(async |mut response: Response| {
            let headers = response.headers_mut();
            let plain = [
                (header::CONTENT_SECURITY_POLICY, POLICY),
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

async fn authorise(State(page): State<Page>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if !page.guard.has_pass(headers) && !page.guard.admits(headers, from(&request)).await {
        let body = (HTML, render::sign_in(page.kick.node()));
        return (StatusCode::UNAUTHORIZED, body).into_response();
    }
    let_in(&request);
    next.run(request).await
}

const HTML: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];

async fn whole(State(page): State<Page>) -> Response {
    let snapshot = Snapshot::take(&page).await;
    (HTML, render::whole(&snapshot)).into_response()
}

/// The part of the page that changes, and the nodes for the playground.
async fn part(State(page): State<Page>) -> Response {
    let snapshot = Snapshot::take(&page).await;
    let fronts = snapshot.fronts();
    Json(json!({"html": render::part(&snapshot), "nodes": fronts})).into_response()
}

async fn style() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/css; charset=utf-8")];
    (kind, include_str!("style.css")).into_response()
}

async fn script() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")];
    (kind, include_str!("script.js")).into_response()
}

/// Takeovers from now on, one JSON object each.
async fn takeovers(State(page): State<Page>) -> Response {
    let events = page.kick.events();
    let follow = stream::unfold(
        (events, Takeovers::default(), page.stop.clone()),
        |(mut events, mut takeovers, stop)| async move {
            loop {
                let event = tokio::select! {
                    biased;
                    () = stop.cancelled() => return None,
                    event = events.recv() => event,
                };
                match event {
                    Ok(event) => {
                        if let Some(takeover) = takeovers.follow(&event) {
                            let line = Line::default().json_data(takeover).ok()?;
                            return Some((Ok::<_, Infallible>(line), (events, takeovers, stop)));
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        },
    );
    Sse::new(follow)
        .keep_alive(KeepAlive::default())
        .into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    account: String,
}

/// A login token for an account of the playground.
async fn token(State(page): State<Page>, Json(body): Json<TokenBody>) -> Response {
    let minted = Uid::new(format!("{PLAYGROUND}{}", body.account))
        .and_then(|uid| Ok((mint(&page.key, &uid, PLAY_TIME)?, uid)));
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
struct SignIn {
    token: String,
}

/// Exchanges the admin token for a pass.
async fn sign_in(
    State(page): State<Page>,
    ConnectInfo(line): ConnectInfo<LineHandle>,
    Json(body): Json<SignIn>,
) -> Response {
    if !page.guard.is_right(&body.token, line.peer().ip()).await {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    given(page.guard.sign_in())
}

/// Has the browser forget the pass.
async fn sign_out(State(page): State<Page>) -> Response {
    given(page.guard.sign_out())
}

fn given(cookie: Option<HeaderValue>) -> Response {
    match cookie {
        Some(cookie) => ([(header::SET_COOKIE, cookie)], StatusCode::NO_CONTENT).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
