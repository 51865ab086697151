//! What the store behind a server can do.

use std::time::Duration;

use distlock_core::{
    Capabilities, ExpiryClock, Fairness, FencingScope, LeaseKind, Reach, Wakeup, micros,
};

use crate::v1;

impl v1::Capabilities {
    /// The message of these capabilities. `record_ages`: see
    /// [`Records::tells_ages`](distlock_core::Records::tells_ages).
    #[must_use]
    pub fn new(of: &Capabilities, record_ages: bool) -> Self {
        Self {
            backend: of.backend.to_owned(),
            global_tokens: of.fencing == FencingScope::Global,
            fifo: of.fairness == Fairness::Fifo,
            push: of.wakeup == Wakeup::Push,
            session_leases: of.lease == LeaseKind::Session,
            min_ttl_us: micros(of.min_ttl),
            default_ttl_us: micros(of.default_ttl),
            ttl_granularity_us: micros(of.ttl_granularity),
            max_lease_us: of.max_lease.map(micros),
            session_timeout_us: of.session_timeout.map(micros),
            survives_restart: of.survives_restart,
            tickets: of.tickets,
            token_floor: of.token_floor,
            hand_over: of.hand_over,
            store_queue: of.store_queue,
            tells_force_release: of.tells_force_release,
            record_ages,
            order_on_request: of.fairness == Fairness::OnRequest,
        }
    }

    /// The capabilities of a client of the server: its backend has this name, and it is reached
    /// over a network.
    #[must_use]
    pub fn read(&self, backend: &'static str) -> Capabilities {
        let mut read = Capabilities::new(backend);
        if self.global_tokens {
            read.fencing = FencingScope::Global;
        }
        if self.fifo {
            read.fairness = Fairness::Fifo;
        } else if self.order_on_request {
            read.fairness = Fairness::OnRequest;
        }
        if self.push {
            read.wakeup = Wakeup::Push;
        }
        if self.session_leases {
            read.lease = LeaseKind::Session;
        }
        read.min_ttl = Duration::from_micros(self.min_ttl_us);
        read.default_ttl = Duration::from_micros(self.default_ttl_us);
        read.ttl_granularity = Duration::from_micros(self.ttl_granularity_us);
        read.max_lease = self.max_lease_us.map(Duration::from_micros);
        read.session_timeout = self.session_timeout_us.map(Duration::from_micros);
        read.survives_restart = self.survives_restart;
        read.expiry_clock = ExpiryClock::Server;
        read.reach = Reach::Network;
        read.tickets = self.tickets;
        read.token_floor = self.token_floor;
        read.hand_over = self.hand_over;
        read.store_queue = self.store_queue;
        read.tells_force_release = self.tells_force_release;
        read
    }
}
