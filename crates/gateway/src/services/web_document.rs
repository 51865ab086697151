//! A document at a URL, which is read as a whole.
//!
//! Invariant of this module: a read is bounded in time and in bytes, and ends at the host of the
//! URL. No error shows a path, as for the other services.

use std::{fmt, sync::Arc, time::Duration};

use axum::{body::Body, http::Uri};
use distlock_core::{Clock, Error, ErrorKind, Result, at_most};
use futures_util::StreamExt as _;

use super::web_service::{WebClient, root_cause, web_client};

/// Longest wait for the whole document.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest document that is read, in bytes.
const MOST_BYTES: usize = 256 * 1024;

/// A document of the configuration.
#[derive(Clone)]
pub(crate) struct WebDocument {
    /// What the document is, in errors.
    name: &'static str,
    url: Uri,
    client: WebClient,
    clock: Arc<dyn Clock>,
}

impl WebDocument {
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the URL is of `https` and there is no authority to trust.
    pub(crate) fn new(name: &'static str, url: Uri, clock: Arc<dyn Clock>) -> Result<Self> {
        Ok(Self {
            name,
            client: web_client(&url)?,
            url,
            clock,
        })
    }

    /// The host of the document, with its port.
    pub(crate) fn authority(&self) -> &str {
        self.url.authority().map_or("", |at| at.as_str())
    }

    /// Reads the document.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] for every answer but the whole document in time.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn fetch(&self) -> Result<Vec<u8>> {
        at_most(&*self.clock, LIMIT, self.fetch_unbounded())
            .await
            .unwrap_or_else(|| Err(self.error(&format!("did not answer within {LIMIT:?}"))))
    }

    async fn fetch_unbounded(&self) -> Result<Vec<u8>> {
        let answer = self.client.get(self.url.clone()).await.map_err(|error| {
            let why = root_cause(&error).to_string();
            self.error("could not be asked").caused_by(why)
        })?;
        let status = answer.status();
        if status.is_redirection() {
            let says = format!("answered {status}: no redirect is followed, so name its target");
            return Err(self.error(&says));
        }
        if !status.is_success() {
            return Err(self.error(&format!("answered {status}")));
        }
        let mut chunks = Body::new(answer.into_body()).into_data_stream();
        let mut body = Vec::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| {
                let why = root_cause(&error).to_string();
                self.error("broke off its answer").caused_by(why)
            })?;
            if body.len() + chunk.len() > MOST_BYTES {
                return Err(self.error(&format!("answered with more than {MOST_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn error(&self, says: &str) -> Error {
        let (name, at) = (self.name, self.authority());
        let says = format!("the server of the {name} at {at} {says}");
        Error::new(ErrorKind::Unavailable, says)
    }
}

impl fmt::Debug for WebDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebDocument")
            .field("name", &self.name)
            .field("at", &self.authority())
            .finish_non_exhaustive()
    }
}
