//! Reads of a member's marker. Callers that want it at the same time share one read, because each
//! round wants it, and a busy process makes many rounds.
//!
//! Invariant: a caller gets what a read says that was sent after the call. A read that is in flight
//! at the call may say what was true before the grant of this caller.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_backend_kit::Members;
use distlock_core::{Error, ErrorKind, Result, at_most, sync::Mutex};
use futures_util::future::{FutureExt as _, Shared as OneForAll};

use crate::{
    marker::{Marked, Marker},
    shared::{NAME, Shared},
};

/// The longest time that a read waits for the one before. One connection of a store may hang while
/// its others answer.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// `None`: the member has no marker.
type Read = OneForAll<Pin<Box<dyn Future<Output = Result<Option<Arc<Marked>>>> + Send>>>;

/// The reads of one member's marker.
#[derive(Debug, Default)]
pub(crate) struct MarkerReads(Mutex<Reads>);

#[derive(Debug, Default)]
struct Reads {
    in_flight: Option<Read>,
    /// The read that is sent after the one in flight.
    next: Option<Read>,
}

impl MarkerReads {
    /// One value for each member.
    pub(crate) fn of(members: &Members) -> Vec<Self> {
        members.all().iter().map(|_| Self::default()).collect()
    }

    /// Reads the marker of the member `at` this place. The members of `shared` are those of this
    /// value.
    pub(crate) fn read(&self, shared: &Arc<Shared>, at: usize) -> Read {
        let mut reads = self.0.lock();
        if let Some(next) = &reads.next {
            return next.clone();
        }
        let before = reads.in_flight.take();
        let clock = Arc::clone(&shared.clock);
        // The read is kept in `shared`, and would keep `shared` for ever.
        let shared = Arc::downgrade(shared);
        let next = async move {
            if let Some(before) = before {
                let _ = at_most(&*clock, LONGEST_WAIT, before).await;
            }
            let Some(shared) = shared.upgrade() else {
                let problem = "the quorum was closed";
                return Err(Error::new(ErrorKind::Closed, problem).on(NAME));
            };
            shared.reads[at].close_next();
            let Some(entry) = shared.marker(at).await? else {
                return Ok(None);
            };
            let marker = Marker::parse(&entry.value);
            let marker = marker.map_err(|error| shared.member(at).of_this(error))?;
            Ok(Some(Arc::new(Marked { entry, marker })))
        };
        let next = next.boxed().shared();
        reads.next = Some(next.clone());
        next
    }

    /// Lets later callers share the read after this one. This comes before the sending.
    fn close_next(&self) {
        let mut reads = self.0.lock();
        reads.in_flight = reads.next.take();
    }
}
