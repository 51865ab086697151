//! The rates at which clients may send.

use std::{sync::Arc, time::Duration};

use distlock_core::Clock;
use distlock_kickout::{Rates, Uid};

use crate::config::GatewayConfig;

#[derive(Debug)]
pub(crate) struct SendLimits {
    /// The rate of each sender.
    senders: Rates<Uid>,
    /// The rate of each sender towards each receiver.
    pairs: Rates<(Uid, Uid)>,
}

impl SendLimits {
    pub(crate) fn from_config(config: &GatewayConfig, clock: &Arc<dyn Clock>) -> Self {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (rate, burst) = (number(config.send_rate), number(config.send_burst));
        let senders = Rates::new(rate, burst, Arc::clone(clock));
        let (rate, burst) = (number(config.pair_rate), number(config.pair_burst));
        let pairs = Rates::new(rate, burst, Arc::clone(clock));
        Self { senders, pairs }
    }

    /// Counts one message from one account to another against both limits.
    ///
    /// # Errors
    /// The time after which the sender may try again. So an account that sends too much to one
    /// receiver, or to many receivers, is slowed down.
    pub(super) fn take(&self, from: &Uid, to: &Uid) -> Result<(), Duration> {
        self.senders.take(from)?;
        self.pairs.take(&(from.clone(), to.clone()))
    }
}
