//! Asking a web service of one's own whether an account may log in.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{HeaderValue, Request, StatusCode, Uri, header},
};
use distlock_core::{Clock, Error, ErrorKind, Result};
use distlock_kickout::{
    Allowed, Class, Code, Denied, Device, Intent, Login, NodeId, Profiles, Uid,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Deserialize, Serialize};

use crate::config::{GatewayConfig, invalid};

/// More than any answer has.
const MAX_ANSWER: usize = 4096;
/// Longest reason that is passed on to a client, in characters.
const MAX_REASON: usize = 200;
/// What a client is told without one.
const REFUSED: &str = "the account may not log in now";
/// Connections that wait for the next question, and for how long.
const IDLE: (usize, Duration) = (64, Duration::from_secs(30));

/// A web service that is asked about each login: `POST` with a [`Question`], answered by 2xx (it may) or 403 (it may not).
#[derive(Clone)]
pub(crate) struct WebProfiles {
    client: Client<HttpConnector, Body>,
    url: Uri,
    bearer: Option<HeaderValue>,
    node: NodeId,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

#[derive(Serialize)]
struct Question<'a> {
    uid: &'a Uid,
    device: &'a Device,
    class: &'a Class,
    intent: Intent,
    node: &'a NodeId,
}

/// What a refusal may say.
#[derive(Default, Deserialize)]
struct Refusal {
    reason: Option<String>,
}

impl WebProfiles {
    /// The service of the configuration, if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an address or a token that cannot be used.
    pub(crate) fn configured(
        config: &GatewayConfig,
        node: &NodeId,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>> {
        let Some(url) = &config.profile_url else {
            return Ok(None);
        };
        let bearer = config
            .profile_token
            .as_ref()
            .map(|token| bearer(token.expose()));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE.1)
            .pool_max_idle_per_host(IDLE.0)
            .build(connector());
        Ok(Some(Self {
            client,
            url: address(url.expose())?,
            bearer: bearer.transpose()?,
            node: node.clone(),
            clock: Arc::clone(clock),
            timeout: config.profile_timeout,
        }))
    }

    async fn ask(&self, login: &Login) -> Result<Allowed> {
        let question = Question {
            uid: &login.uid,
            device: &login.device,
            class: &login.class,
            intent: login.intent,
            node: &self.node,
        };
        let question = serde_json::to_vec(&question)
            .map_err(|error| self.unavailable("could not be asked").caused_by(error))?;
        let answer = match self.client.request(self.request(&question)).await {
            // A connection that waited may have been closed at the other end just now. A question may be asked twice.
            Err(error) if !error.is_connect() => self.client.request(self.request(&question)).await,
            answer => answer,
        };
        let answer =
            answer.map_err(|error| self.unavailable("could not be asked").caused_by(error))?;
        let (head, body) = answer.into_parts();
        // Read in any case: the connection can be used again after it.
        let body = to_bytes(Body::new(body), MAX_ANSWER).await;
        match head.status {
            status if status.is_success() => Ok(Allowed::Yes),
            StatusCode::FORBIDDEN => Ok(Allowed::No(denied(&body.unwrap_or_default()))),
            status => Err(self.unavailable(&format!("answered {status}"))),
        }
    }

    fn request(&self, question: &[u8]) -> Request<Body> {
        let mut request = Request::new(Body::from(question.to_vec()));
        *request.method_mut() = axum::http::Method::POST;
        *request.uri_mut() = self.url.clone();
        let headers = request.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(bearer) = &self.bearer {
            headers.insert(header::AUTHORIZATION, bearer.clone());
        }
        request
    }

    /// Without the path and what follows it: some put a key there.
    fn unavailable(&self, what: &str) -> Error {
        let at = self.url.authority().map_or("", |at| at.as_str());
        Error::new(
            ErrorKind::Unavailable,
            format!("the profile service at {at} {what}"),
        )
    }
}

#[async_trait]
impl Profiles for WebProfiles {
    async fn load(&self, login: &Login) -> Result<Allowed> {
        let from = self.clock.now();
        let answer = tokio::select! {
            biased;
            answer = self.ask(login) => answer,
            () = self.clock.sleep(self.timeout) => {
                Err(self.unavailable(&format!("did not answer within {:?}", self.timeout)))
            }
        };
        let result = match &answer {
            Ok(Allowed::Yes) => "allowed",
            Ok(_) => "denied",
            Err(_) => "failed",
        };
        metrics::histogram!("distlock_profile_seconds", "result" => result)
            .record(self.clock.now().since(from).as_secs_f64());
        answer
    }
}

impl fmt::Debug for WebProfiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebProfiles")
            .field("at", &self.url.authority())
            .finish_non_exhaustive()
    }
}

/// Where the service is, if that can be an address of one.
pub(crate) fn address(url: &str) -> Result<Uri> {
    if url.contains('@') {
        // Not shown: it may hold a password.
        return Err(invalid(
            "profile_url",
            "has a user or password in it: give the service's secret as profile_token",
        ));
    }
    let parsed = url.parse::<Uri>().unwrap_or_default();
    // Only its beginning is shown: some put a key behind it.
    let problem = match (parsed.scheme_str(), parsed.authority()) {
        (Some("http"), Some(_)) => return Ok(parsed),
        (Some(scheme), Some(at)) => format!("begins with \"{scheme}://{at}\""),
        _ => "has no host".into(),
    };
    Err(invalid(
        "profile_url",
        &format!("{problem}: http://HOST:PORT/PATH is needed"),
    ))
}

/// The header that tells the service who asks.
pub(crate) fn bearer(token: &str) -> Result<HeaderValue> {
    let header = (!token.is_empty())
        .then(|| HeaderValue::try_from(format!("Bearer {token}")).ok())
        .flatten();
    let mut header = header.ok_or_else(|| {
        invalid(
            "profile_token",
            "cannot be sent in a header: one line of visible characters is needed",
        )
    })?;
    header.set_sensitive(true);
    Ok(header)
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector
}

/// The client is told the service's reason, where it gives one.
fn denied(body: &[u8]) -> Denied {
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let mut denied = Denied::new(Code::Denied);
    denied.reason = REFUSED.into();
    if let Some(reason) = refusal.reason {
        let shown = reason.chars().filter(|char| !char.is_control());
        let reason: String = shown.take(MAX_REASON).collect();
        if !reason.trim().is_empty() {
            denied.reason = reason;
        }
    }
    denied
}
