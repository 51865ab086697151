//! One attempt to give an event to a receiver.
//!
//! Invariant of this module: an attempt is bounded in time and in bytes, and ends at the host of
//! the URL. No error shows the URL's path.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, HttpBody as _, to_bytes},
    http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header},
};
use distlock_core::{Clock, Result, at_most, unix_time};
use distlock_kickout::NodeId;
use distlock_listen::{FileContent, FileFormat, NamedFile};

use super::{address::Connector, event::Happened, signature::Secrets};
use crate::{
    config::{HookConfig, HookEvent},
    metering::HookMeter,
    services::{WebClient, client_over, root_cause},
};

/// Longest answer that is read so that its connection can be used again, in bytes.
const MAX_ANSWER: usize = 4096;
/// Longest pause that a receiver may ask for.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Sends to one receiver.
pub(super) struct Sender {
    pub(super) name: String,
    pub(super) give_up_after: Duration,
    pub(super) queue: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) meter: HookMeter,
    events: Vec<HookEvent>,
    node: NodeId,
    url: Uri,
    timeout: Duration,
    client: WebClient<Connector>,
    secrets: FileContent<Secrets>,
    /// Whether the receiver has answered 410.
    gone: AtomicBool,
}

/// What became of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Delivered,
    Failed {
        /// What happened, as the rest of a sentence about the receiver.
        why: String,
        /// The pause that the receiver asks for.
        pause: Option<Duration>,
    },
    /// The receiver wants no more events.
    Gone,
}

impl Sender {
    pub(super) async fn open(
        hook: &HookConfig,
        node: NodeId,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let url = hook.parse_url()?;
        let file = NamedFile {
            setting: "hooks",
            path: hook.secret_file.clone(),
        };
        let format = FileFormat {
            settings_of: "gateway.",
            doing: "read the secrets of a web hook",
            parse: Box::new(Secrets::parse),
        };
        let connector = Connector::new(hook.allow_private, Arc::clone(&clock));
        Ok(Self {
            name: hook.name.clone(),
            give_up_after: hook.give_up_after,
            queue: hook.queue,
            clock,
            meter: HookMeter::new(&hook.name),
            events: hook.events.clone(),
            node,
            client: client_over(connector, url.scheme_str() == Some("https"))?,
            url,
            timeout: hook.timeout,
            secrets: FileContent::read(file, format).await?,
            gone: AtomicBool::new(false),
        })
    }

    /// Reads the secrets again. A receiver that was gone gets events again.
    pub(super) async fn reload(&self) -> Result<()> {
        self.secrets.reload().await?;
        self.gone.store(false, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn wants(&self, happened: &Happened) -> bool {
        let event = happened.event();
        event.is_some_and(|event| self.events.contains(&event))
    }

    /// The host of the receiver, with its port.
    pub(super) fn authority(&self) -> &str {
        self.url.authority().map_or("", |at| at.as_str())
    }

    /// Sends an event once.
    pub(super) async fn attempt(&self, happened: &Happened) -> Attempt {
        let sending = self.send(happened);
        let attempt = at_most(&*self.clock, self.timeout, sending).await;
        let attempt = attempt.unwrap_or_else(|| Attempt::Failed {
            why: format!("did not answer within {:?}", self.timeout),
            pause: None,
        });
        if matches!(attempt, Attempt::Gone) {
            self.gone.store(true, Ordering::Relaxed);
        }
        self.meter
            .count_attempt(matches!(attempt, Attempt::Delivered));
        attempt
    }

    async fn send(&self, happened: &Happened) -> Attempt {
        let failed = |why: String| Attempt::Failed { why, pause: None };
        let request = match self.request(happened) {
            Ok(request) => request,
            Err(error) => return failed(format!("could not be asked: {error}")),
        };
        let answer = match self.client.request(request).await {
            Ok(answer) => answer,
            Err(error) => return failed(format!("could not be asked: {}", root_cause(&error))),
        };
        let (head, body) = answer.into_parts();
        // A long answer is not read. Its connection closes then, and an attempt needs a new one.
        if body
            .size_hint()
            .upper()
            .is_some_and(|most| most <= MAX_ANSWER as u64)
        {
            let _ = to_bytes(Body::new(body), MAX_ANSWER).await;
        }
        match head.status {
            status if status.is_success() => Attempt::Delivered,
            StatusCode::GONE => Attempt::Gone,
            status if status.is_redirection() => {
                failed(format!("answered {status}: no redirect is followed"))
            }
            status => Attempt::Failed {
                why: format!("answered {status}"),
                pause: pause_of(&head.headers),
            },
        }
    }

    fn request(&self, happened: &Happened) -> Result<Request<Body>, axum::http::Error> {
        let id = happened.id();
        let event = happened.event().unwrap_or(HookEvent::End);
        let body = happened.body(event, &self.node);
        // The time of the attempt, by which receivers refuse copies of old requests.
        let timestamp = unix_time(&*self.clock).as_secs();
        let signature = self.secrets.current().sign(&id, timestamp, &body);
        Request::post(self.url.clone())
            .header(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/json"),
            )
            .header(header::USER_AGENT, HeaderValue::from_static("distlock"))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(Body::from(body))
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("name", &self.name)
            .field("at", &self.authority())
            .finish_non_exhaustive()
    }
}

/// The seconds of `Retry-After`, up to the longest pause. Its other form, a date, is ignored.
fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let pause = Duration::from_secs(seconds.trim().parse().ok()?);
    Some(pause.min(LONGEST_PAUSE))
}
