//! Numbers the events of this node and sends them to subscribers.
//!
//! Each event gets the next number, so a subscriber notices a gap. The sender of an event never
//! waits for a subscriber.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, sync::Mutex, unix_time};
use tokio::sync::broadcast;

use crate::model::{
    event::{Event, Transition},
    ident::{Boot, Generation, NodeId, Uid},
};

/// Number of events that are kept for a slow subscriber. A subscriber that is further behind loses
/// the oldest events.
const BACKLOG: usize = 8192;

/// Numbers, stamps and distributes events.
#[derive(Debug)]
pub(crate) struct Events {
    node: NodeId,
    boot: AtomicU64,
    seq: AtomicU64,
    clock: Arc<dyn Clock>,
    sender: broadcast::Sender<Event>,
    /// The first subscriber's receiver, which holds all events since the start.
    first: Mutex<Option<broadcast::Receiver<Event>>>,
}

impl Events {
    pub(crate) fn new(node: NodeId, clock: Arc<dyn Clock>) -> Self {
        let (sender, first) = broadcast::channel(BACKLOG);
        Self {
            node,
            boot: AtomicU64::new(0),
            seq: AtomicU64::new(0),
            clock,
            sender,
            first: Mutex::new(Some(first)),
        }
    }

    /// A receiver of the events. The first caller gets all events since the start; a later caller
    /// gets the events from the call on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        let first = self.first.lock().take();
        first.unwrap_or_else(|| self.sender.subscribe())
    }

    /// Sets the incarnation that the following events carry.
    pub(crate) fn set_boot(&self, boot: Boot) {
        self.boot.store(boot.get(), Ordering::Relaxed);
    }

    /// Sends the event of a transition. `fill` sets the fields that apply to it.
    pub(crate) fn emit(&self, transition: Transition, fill: impl FnOnce(&mut Event)) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut event = Event {
            seq: self.seq.fetch_add(1, Ordering::Relaxed) + 1,
            at_ms: millis(unix_time(&*self.clock)),
            clock_us: distlock_core::micros(self.clock.now().since_boot()),
            node: self.node.clone(),
            boot: Boot::new(self.boot.load(Ordering::Relaxed)),
            event: transition,
            uid: None,
            session: None,
            session_node: None,
            session_boot: None,
            slot: None,
            r#gen: None,
            gen_max: None,
            token: None,
            device: None,
            class: None,
            by_device: None,
            by_gen: None,
            kick_id: None,
            peer: None,
            code: None,
            message: None,
            took_us: None,
            result: None,
        };
        fill(&mut event);
        tracing::debug!(
            target: "distlock::kickout",
            transition = ?event.event,
            uid = event.uid.as_ref().map(Uid::as_str),
            session = event.session.map(tracing::field::display),
            r#gen = event.r#gen.map(Generation::get),
            kick_id = event.kick_id.map(tracing::field::display),
            result = event.result.as_deref(),
        );
        // The send fails only without subscribers, and then no subscriber misses the event.
        let _ = self.sender.send(event);
    }
}
