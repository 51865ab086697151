//! The time for the body of a request.
//!
//! Invariant of this module: no read of a body waits for longer than the limit, whoever sends the
//! body. The right token must never lift the limit: a caller that stops in the middle of a body
//! would otherwise keep its place for ever.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Body, Bytes};
use distlock_core::{Clock, Sleep};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Limits the time in which a whole body must arrive.
#[derive(Clone, Debug)]
pub(crate) struct BodyTime {
    clock: Arc<dyn Clock>,
    limit: Duration,
}

impl BodyTime {
    pub(super) fn new(clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self { clock, limit }
    }

    /// The same body, which fails if it has not arrived within the limit. The time begins when a
    /// reader waits for the first time.
    pub(crate) fn limit<B>(&self, body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        Body::new(TimedBody {
            body: Body::new(body),
            time: self.clone(),
            deadline: None,
        })
    }
}

/// Whether an error says that a body did not arrive in time.
pub(crate) fn is_late_body(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LateBody>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The whole body did not arrive within this time.
#[derive(Debug)]
struct LateBody(Duration);

impl fmt::Display for LateBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body did not arrive within {:?}", self.0)
    }
}

impl Error for LateBody {}

struct TimedBody {
    body: Body,
    time: BodyTime,
    /// Absent until a reader had to wait. Most bodies arrive together with their head.
    deadline: Option<Sleep>,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let BodyTime { clock, limit } = &this.time;
        let deadline = this.deadline.get_or_insert_with(|| clock.sleep(*limit));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(LateBody(*limit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
