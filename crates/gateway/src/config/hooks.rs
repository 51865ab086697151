//! The `[[gateway.hooks]]` tables: the receivers of web hooks.
//!
//! This module must never show the path of a receiver, which may hold a key, and never allow a
//! receiver on the public internet without TLS.

use std::time::Duration;

use axum::http::Uri;
use distlock_core::{Result, excerpt};
use serde::Deserialize;

use super::{GatewayConfig, Secret, config_error, service::parse_url, table::deserialise_duration};

/// Most receivers of a node: each may keep a full queue in memory.
const MOST_HOOKS: usize = 8;
const LONGEST_NAME: usize = 64;

/// A receiver of web hooks.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HookConfig {
    /// The name of the receiver in the log and in metrics: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    pub name: String,
    /// The URL that gets the events. No log and no error shows its path, because it may contain a
    /// key.
    pub url: Secret,
    /// The file with the secrets that sign the events: one on each line, `whsec_` and base64.
    pub secret_file: String,
    /// The events that the receiver gets; all of them unless set.
    pub events: Vec<HookEvent>,
    /// Whether the receiver may be at an address that is not one of the public internet, such as a
    /// loopback or private address.
    pub allow_private: bool,
    /// Longest wait for an answer.
    #[serde(deserialize_with = "deserialise_duration")]
    pub timeout: Duration,
    /// Age at which an event that could not be delivered is dropped.
    #[serde(deserialize_with = "deserialise_duration")]
    pub give_up_after: Duration,
    /// Most events that wait for the receiver.
    pub queue: usize,
}

impl Default for HookConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            url: Secret::new(""),
            secret_file: String::new(),
            events: HookEvent::ALL.to_vec(),
            allow_private: false,
            timeout: Duration::from_secs(10),
            give_up_after: Duration::from_secs(3600),
            queue: 10_000,
        }
    }
}

/// The kinds of events that a receiver can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub enum HookEvent {
    /// A session was let in.
    #[serde(rename = "session.login")]
    Login,
    /// A session ended, because another login took its place.
    #[serde(rename = "session.takeover")]
    Takeover,
    /// A session ended for another reason.
    #[serde(rename = "session.end")]
    End,
    /// A message that did not arrive was stored.
    #[serde(rename = "message.stored")]
    Stored,
    /// An account was banned.
    #[serde(rename = "account.banned")]
    Banned,
    /// The ban of an account holds no more.
    #[serde(rename = "account.unbanned")]
    Unbanned,
}

impl HookEvent {
    const ALL: [Self; 6] = [
        Self::Login,
        Self::Takeover,
        Self::End,
        Self::Stored,
        Self::Banned,
        Self::Unbanned,
    ];

    /// The `type` of the event.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Login => "session.login",
            Self::Takeover => "session.takeover",
            Self::End => "session.end",
            Self::Stored => "message.stored",
            Self::Banned => "account.banned",
            Self::Unbanned => "account.unbanned",
        }
    }
}

impl HookConfig {
    /// The URL of the receiver.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a URL that cannot be used.
    pub(crate) fn parse_url(&self) -> Result<Uri> {
        let key = self.key("url");
        if self.url.expose().is_empty() {
            return Err(config_error(&key, "is not set"));
        }
        let url = parse_url(&key, self.url.expose())?;
        if url.scheme_str() == Some("https") || self.allow_private {
            return Ok(url);
        }
        let at = url.authority().map_or("", |at| at.as_str());
        let problem = format!(
            "begins with \"http://{at}\": https:// is needed, except with allow_private = true"
        );
        Err(config_error(&key, &problem))
    }

    /// The name of one of the receiver's settings in errors.
    fn key(&self, field: &str) -> String {
        format!("hooks.{}.{field}", self.name)
    }

    fn check(&self) -> Result<()> {
        self.parse_url()?;
        if self.secret_file.is_empty() {
            return Err(config_error(&self.key("secret_file"), "is not set"));
        }
        if self.events.is_empty() {
            let problem = "is empty: name at least one event, or leave it out for all of them";
            return Err(config_error(&self.key("events"), problem));
        }
        let (ms, hour) = (Duration::from_millis, Duration::from_secs(3600));
        for (field, value, least, most) in [
            ("timeout", self.timeout, ms(100), ms(30_000)),
            ("give_up_after", self.give_up_after, ms(100), 24 * hour),
        ] {
            if value < least || value > most {
                let problem = format!("is {value:?}: {least:?} to {most:?} are allowed");
                return Err(config_error(&self.key(field), &problem));
            }
        }
        if !(1..=100_000).contains(&self.queue) {
            let problem = format!("is {}: 1 to 100000 are allowed", self.queue);
            return Err(config_error(&self.key("queue"), &problem));
        }
        Ok(())
    }
}

impl GatewayConfig {
    /// Checks the receivers of web hooks.
    pub(super) fn check_hooks(&self) -> Result<()> {
        let hooks = self.hooks.len();
        if hooks > MOST_HOOKS {
            let problem = format!("has {hooks} tables: at most {MOST_HOOKS} are allowed");
            return Err(config_error("hooks", &problem));
        }
        for (at, hook) in self.hooks.iter().enumerate() {
            let name = &hook.name;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(plain) {
                let problem = format!(
                    "of table {} is \"{}\": 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ - are needed",
                    at + 1,
                    excerpt(name)
                );
                return Err(config_error("hooks.name", &problem));
            }
            if self.hooks[..at].iter().any(|other| other.name == *name) {
                let problem = format!("is \"{name}\" in two tables: each needs its own");
                return Err(config_error("hooks.name", &problem));
            }
            hook.check()?;
        }
        Ok(())
    }
}
