//! The client for the admin HTTP of a gateway node: it sends a request and reads a JSON answer.

use std::{io, time::Duration};

use clap::Args;
use distlock::{Clock as _, SystemClock};
use distlock_gateway::{connector, root_cause};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, body::Bytes, header};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

use super::settings::{self, Settings};
use crate::{
    context::Context,
    exit::{Failure, Outcome, code},
};

/// The longest wait for an answer: ending all sessions of a large directory takes a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// The longest wait for a node's health. A node answers from memory.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two questions for a node's health.
const HEALTH_PERIOD: Duration = Duration::from_millis(200);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
const HTTP: &str = "http";
const HTTPS: &str = "https";

/// The environment variable with the address of the node.
const ADDRESS_VARIABLE: &str = "DISTLOCK_GATEWAY_ADMIN";

/// The address of the node's admin HTTP.
#[derive(Args, Debug)]
pub(super) struct AdminAddress {
    /// The node's admin HTTP [default: admin_listen of the configuration, http://127.0.0.1:7432].
    /// By https:// it must be known to the system's authorities, or to those in SSL_CERT_FILE
    #[arg(
        long,
        value_name = "URL",
        env = ADDRESS_VARIABLE,
        hide_env_values = true
    )]
    admin: Option<String>,
}

pub(super) struct AdminHttp {
    scheme: &'static str,
    authority: String,
    token: Option<String>,
}

impl AdminHttp {
    /// Reads the address, and the token from a variable or the configuration. The token never comes
    /// from a flag.
    pub(super) fn new(context: &Context, address: &AdminAddress) -> Outcome<Self> {
        Ok(Self {
            token: settings::admin_token(context)?,
            ..Self::without_token(context, address)?
        })
    }

    /// Reads the address from the flag, the variable or the configuration.
    pub(super) fn without_token(context: &Context, address: &AdminAddress) -> Outcome<Self> {
        let flags = [
            (context.has_backend_flag(), "--backend"),
            (context.records_flag().is_some(), "--records"),
        ];
        if let Some((_, flag)) = flags.into_iter().find(|(is_given, _)| *is_given) {
            return Err(Failure::usage(format!(
                "the argument '{flag} <URL>' says nothing here: the node at --admin has its own \
                 stores"
            )));
        }
        let config = Settings::read(context)?.config;
        // An empty variable counts as unset, but an empty flag is a mistake.
        let unset = std::env::var_os(ADDRESS_VARIABLE).is_some_and(|value| value.is_empty());
        let given = address.admin.as_ref();
        let (scheme, authority) = match given.filter(|url| !(url.is_empty() && unset)) {
            None if config.tls_cert.is_some() => (HTTPS, config.admin_listen.clone()),
            None => (HTTP, config.admin_listen.clone()),
            Some(url) => {
                // The message does not quote the URL, because any part of the URL may be a
                // password.
                let refused = |why: &str| {
                    Failure::usage(format!(
                        "--admin (or DISTLOCK_GATEWAY_ADMIN) {why}: write http://HOST:PORT or \
                        https://HOST:PORT and nothing else"
                    ))
                };
                let (scheme, authority) = match url.split_once("://") {
                    Some((HTTP, authority)) => (HTTP, authority),
                    Some((HTTPS, authority)) => (HTTPS, authority),
                    _ => return Err(refused("does not start with http:// or https://")),
                };
                let authority = authority.trim_end_matches('/');
                if authority.contains(['/', '@', '?', '#']) {
                    return Err(refused("holds more than an address"));
                }
                match authority.rsplit_once(':') {
                    Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {}
                    _ => return Err(refused("names no host and port")),
                }
                (scheme, authority.to_owned())
            }
        };
        Ok(Self {
            scheme,
            authority,
            token: None,
        })
    }

    /// Asks the node for its health. Returns whether the node takes clients, and its answer.
    pub(super) async fn ask_health(&self) -> io::Result<(bool, Value)> {
        let exchange = self.exchange("GET", "/healthz", None);
        let Ok(exchanged) = tokio::time::timeout(HEALTH_LIMIT, exchange).await else {
            let silent = format!("no answer within {HEALTH_LIMIT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, silent));
        };
        let (status, answer) = exchanged?;
        Ok((status == 200, serde_json::from_slice(&answer)?))
    }

    /// Waits until the node has no session, and returns the number that is left at the end of the
    /// time.
    pub(super) async fn wait_until_empty(&self, limit: Duration) -> Outcome<u64> {
        let until = SystemClock.now() + limit;
        loop {
            let (_, health) = self.ask_health().await.map_err(|error| {
                let why = format!("admin HTTP at {}: {error}", self.authority);
                Failure::new(code::UNAVAILABLE, why)
            })?;
            let left = health["sessions"].as_u64().unwrap_or_default();
            if left == 0 || SystemClock.now() >= until {
                return Ok(left);
            }
            SystemClock.sleep(HEALTH_PERIOD).await;
        }
    }

    /// The address of the node, for messages.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Sends an order, and returns the JSON answer of a node that has carried out the order.
    pub(super) async fn send_order(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<Value> {
        let unreachable = |error: io::Error| {
            Failure::new(
                code::UNAVAILABLE,
                format!("admin HTTP at {}: {error}", self.authority),
            )
        };
        let exchange = tokio::time::timeout(ANSWER_LIMIT, self.exchange(method, path, body));
        let (status, answer) = match exchange.await {
            Ok(exchanged) => exchanged.map_err(unreachable)?,
            Err(_) => {
                return Err(unreachable(io::Error::other(format!(
                    "no answer within {ANSWER_LIMIT:?}; what was asked for may have been done"
                ))));
            }
        };
        let parsed = serde_json::from_slice::<Value>(&answer);
        if status == 200 {
            return parsed.map_err(|error| unreachable(io::Error::other(error)));
        }
        let said = parsed
            .ok()
            .and_then(|answer| answer["error"].as_str().map(str::to_owned))
            .unwrap_or_else(|| "no reason was given".into());
        let code = match status {
            400 | 415 | 422 => code::USAGE,
            401 | 403 => code::DENIED,
            _ => code::UNAVAILABLE,
        };
        let hint = if status == 401 {
            " (DISTLOCK_GATEWAY_ADMIN_TOKEN, or admin_token of the configuration file)"
        } else {
            ""
        };
        Err(Failure::new(
            code,
            format!("the node answered {status}: {said}{hint}"),
        ))
    }

    /// Sends a request, and reads the status and the body of the answer.
    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, Vec<u8>)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let actor = std::env::var("USER").unwrap_or_default();
        let actor: String = actor.chars().filter(char::is_ascii_graphic).collect();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}://{}{path}", self.scheme, self.authority))
            .header("x-distlock-actor", format!("{actor:.128}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::<Bytes>::from(body))
            .map_err(io::Error::other)?;
        let connector = connector(self.scheme == HTTPS).map_err(io::Error::other)?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let answer = client.request(request).await;
        let answer = answer.map_err(|error| io::Error::other(root_cause(&error).to_string()))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(io::Error::other)?;
        Ok((head.status.as_u16(), body.to_bytes().to_vec()))
    }
}
