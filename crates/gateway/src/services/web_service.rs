//! The client for a web service that allows or denies something.
//!
//! Invariant of this module: only a clear answer counts, and every other answer is an error. No
//! error may show the path of the service, which may hold a key.

use std::{fmt, io, sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderValue, Request, StatusCode, Uri, header},
};
use distlock_core::{Clock, Error, ErrorKind, Result, at_most};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use serde::{Deserialize, Serialize};

use crate::config::ServiceSettings;

/// Longest answer that is read, in bytes; no real answer is longer.
const MAX_ANSWER: usize = 4096;
/// Longest reason that is passed on to a client, in characters.
const MAX_REASON: usize = 200;
/// Most idle connections that are kept, and the time after which an idle connection is closed.
const IDLE: (usize, Duration) = (64, Duration::from_secs(30));

/// A web service. The service gets a request as JSON by `POST`, and answers 2xx (yes) or 403 (no).
#[derive(Clone)]
pub(crate) struct WebService {
    /// The name of the service in errors.
    name: &'static str,
    /// The histogram of its answers.
    metric: &'static str,
    client: WebClient,
    url: Uri,
    bearer: Option<HeaderValue>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

pub(crate) enum Decision {
    Allow,
    /// No, with the service's reason if the answer has one.
    Deny(Option<String>),
}

/// The body of a 403 answer.
#[derive(Default, Deserialize)]
struct DenialBody {
    reason: Option<String>,
}

impl WebService {
    /// The service of the configuration, if there is one.
    ///
    /// # Errors
    /// The same as for [`ServiceSettings::parse`].
    pub(crate) fn from_settings(
        name: &'static str,
        metric: &'static str,
        settings: &ServiceSettings<'_>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Option<Self>> {
        let Some((url, bearer)) = settings.parse()? else {
            return Ok(None);
        };
        Ok(Some(Self {
            name,
            metric,
            client: web_client(&url)?,
            url,
            bearer,
            clock: Arc::clone(clock),
            timeout: settings.timeout,
        }))
    }

    /// Sends the request, and waits as long as the configuration allows.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when there is no answer, or an unexpected answer.
    ///
    /// # Cancel safety
    /// Safe; the service may have got the request.
    pub(crate) async fn ask(&self, question: &impl Serialize) -> Result<Decision> {
        let from = self.clock.now();
        let answer = at_most(&*self.clock, self.timeout, self.ask_with_retry(question))
            .await
            .unwrap_or_else(|| {
                Err(self.unavailable_error(&format!("did not answer within {:?}", self.timeout)))
            });
        let result = match &answer {
            Ok(Decision::Allow) => "allowed",
            Ok(Decision::Deny(_)) => "denied",
            Err(_) => "failed",
        };
        metrics::histogram!(self.metric, "result" => result)
            .record(self.clock.now().since(from).as_secs_f64());
        answer
    }

    async fn ask_with_retry(&self, question: &impl Serialize) -> Result<Decision> {
        let question = serde_json::to_vec(question).map_err(|error| {
            self.unavailable_error("could not be asked")
                .caused_by(error)
        })?;
        let answer = match self.client.request(self.request(&question)).await {
            // The other end may just have closed an idle connection, so the request is sent once
            // more. A second request does no harm.
            Err(error) if !error.is_connect() => self.client.request(self.request(&question)).await,
            answer => answer,
        };
        let answer = answer.map_err(|error| {
            let why = root_cause(&error).to_string();
            self.unavailable_error("could not be asked").caused_by(why)
        })?;
        let (head, body) = answer.into_parts();
        // The body is read in any case, because otherwise the connection could not be used again.
        let body = to_bytes(Body::new(body), MAX_ANSWER).await;
        match head.status {
            status if status.is_success() => Ok(Decision::Allow),
            StatusCode::FORBIDDEN => Ok(Decision::Deny(denial_reason(&body.unwrap_or_default()))),
            status => Err(self.unavailable_error(&format!("answered {status}"))),
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

    /// An error without the path and the query, because either may hold a key.
    fn unavailable_error(&self, says: &str) -> Error {
        let at = self.url.authority().map_or("", |at| at.as_str());
        let name = self.name;
        Error::new(ErrorKind::Unavailable, format!("the {name} at {at} {says}"))
    }
}

impl fmt::Debug for WebService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebService")
            .field("name", &self.name)
            .field("at", &self.url.authority())
            .finish_non_exhaustive()
    }
}

/// Longest head of an answer, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// An HTTP client, which follows no redirect.
pub(crate) type WebClient<C = HttpConnector> = Client<HttpsConnector<C>, Body>;

/// A client for this URL.
///
/// # Errors
/// The same as for [`connector`].
pub(super) fn web_client(url: &Uri) -> Result<WebClient> {
    client_over(tcp_connector(), url.scheme_str() == Some("https"))
}

/// A client whose connections `tcp` makes, with TLS if `secured`.
///
/// # Errors
/// The same as for [`connector`].
pub(crate) fn client_over<C>(tcp: C, secured: bool) -> Result<WebClient<C>>
where
    HttpsConnector<C>: Connect + Clone + Send + Sync + 'static,
{
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE.1)
        .pool_max_idle_per_host(IDLE.0)
        .http1_max_buf_size(MAX_HEAD)
        .build(with_tls(tcp, secured)?))
}

/// A connector for web services. For `https` addresses the connector uses TLS, and trusts the
/// authorities of the system, or those in the file that `SSL_CERT_FILE` names.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] when `secured` and there is no authority to trust.
pub fn connector(secured: bool) -> Result<HttpsConnector<HttpConnector>> {
    with_tls(tcp_connector(), secured)
}

fn tcp_connector() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp
}

fn with_tls<C>(tcp: C, secured: bool) -> Result<HttpsConnector<C>> {
    let provider = aws_lc_rs::default_provider();
    let builder = HttpsConnectorBuilder::new();
    let no_authority = |error| {
        let problem = "no certificate authority can be read from this system (SSL_CERT_FILE)";
        Error::new(ErrorKind::InvalidConfig, problem).caused_by(error)
    };
    let builder = if secured {
        builder
            .with_provider_and_native_roots(provider)
            .map_err(no_authority)?
    } else {
        // Without TLS no authorities are needed. Loading them takes time, and some systems have
        // none.
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| no_authority(io::Error::other(error)))?
            .with_root_certificates(RootCertStore::empty());
        builder.with_tls_config(config.with_no_client_auth())
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(tcp))
}

/// The innermost cause of an error. The outer text of an HTTP client only says that the connect
/// failed.
#[must_use]
pub fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a dyn std::error::Error {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// The reason in a 403 answer, shortened for a client.
fn denial_reason(body: &[u8]) -> Option<String> {
    let refusal: DenialBody = serde_json::from_slice(body).unwrap_or_default();
    let reason = refusal.reason?;
    let shown = reason.chars().filter(|char| !char.is_control());
    let reason: String = shown.take(MAX_REASON).collect();
    (!reason.trim().is_empty()).then_some(reason)
}
