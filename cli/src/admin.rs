//! The client of a gateway node's admin HTTP: one request, one JSON answer.

use std::{io, time::Duration};

use clap::Args;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    commands::gateway,
    context::Context,
    exit::{Failure, Outcome, code},
};

/// Ending all sessions of a large directory takes its time.
const PATIENCE: Duration = Duration::from_secs(120);
/// More than any answer has.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// The variable that names the node.
const ADDRESS: &str = "DISTLOCK_GATEWAY_ADMIN";

/// Where the node's administrators are served.
#[derive(Args, Debug)]
pub(crate) struct AdminAddress {
    /// The node's admin HTTP [default: admin_listen of the configuration, http://127.0.0.1:7432]
    #[arg(
        long,
        value_name = "URL",
        env = ADDRESS,
        hide_env_values = true
    )]
    admin: Option<String>,
}

pub(crate) struct AdminHttp {
    authority: String,
    token: Option<String>,
}

impl AdminHttp {
    /// The address from flag, variable or configuration; the token never from a flag.
    pub(crate) fn new(context: &Context, address: &AdminAddress) -> Outcome<Self> {
        if context.backend_is_flag() {
            return Err(Failure::usage(
                "the argument '--backend <URL>' says nothing here: the node at --admin has its own store",
            ));
        }
        let config = gateway::configured(context)?;
        // An empty variable names nothing; an empty flag was meant to name something.
        let unset = std::env::var_os(ADDRESS).is_some_and(|value| value.is_empty());
        let given = address.admin.as_ref();
        let authority = match given.filter(|url| !(url.is_empty() && unset)) {
            None => config.admin_listen.clone(),
            Some(url) => {
                // It is not shown: a password may stand anywhere in it.
                let refused = |why: &str| {
                    Failure::usage(format!(
                        "--admin (or DISTLOCK_GATEWAY_ADMIN) {why}: write http://HOST:PORT and nothing else"
                    ))
                };
                let authority = url
                    .strip_prefix("http://")
                    .ok_or_else(|| refused("does not start with http://"))?
                    .trim_end_matches('/');
                if authority.contains(['/', '@', '?', '#']) {
                    return Err(refused("holds more than an address"));
                }
                match authority.rsplit_once(':') {
                    Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {}
                    _ => return Err(refused("names no host and port")),
                }
                authority.to_owned()
            }
        };
        Ok(Self {
            authority,
            token: gateway::admin_token(context)?,
        })
    }

    /// Asks, and gives the answer of a request that went well.
    pub(crate) async fn ask(
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
        let exchange = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        let (status, answer) = match exchange.await {
            Ok(exchanged) => exchanged.map_err(unreachable)?,
            Err(_) => {
                return Err(unreachable(io::Error::other(format!(
                    "no answer within {PATIENCE:?}; what was asked for may have been done"
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
            401 => code::DENIED,
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

    /// HTTP/1.0, so that an answer is never in chunks and ends with its connection.
    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, Vec<u8>)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let actor = std::env::var("USER").unwrap_or_default();
        let actor: String = actor.chars().filter(char::is_ascii_graphic).collect();
        let mut request = format!(
            "{method} {path} HTTP/1.0\r\nhost: {}\r\nx-distlock-actor: {actor:.128}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n",
            self.authority,
            body.len()
        );
        if let Some(token) = &self.token {
            request += &format!("authorization: Bearer {token}\r\n");
        }
        request += "\r\n";
        request += &body;
        let mut stream = TcpStream::connect(&self.authority).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        let not_http = || io::Error::other("what answers there is no admin HTTP");
        let end = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .ok_or_else(not_http)?;
        let head = String::from_utf8_lossy(&answer[..end]);
        let status = head
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1))
            .and_then(|status| status.parse().ok())
            .ok_or_else(not_http)?;
        Ok((status, answer.split_off(end + 4)))
    }
}

/// A text as a part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way() {
        assert_eq!(encoded("anna"), "anna");
        assert_eq!(encoded("a/b c%ü&="), "a%2Fb%20c%25%C3%BC%26%3D");
    }
}
