//! The quota of connections: how many a program has in all, and how many one address has.
//!
//! This module keeps the counts exact: each permit returns its count when it is dropped. This
//! module must never wait for a permit.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use distlock_core::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Highest numbers of connections at one time.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// All connections.
    pub all: usize,
    /// Connections without a login. This limit keeps room for clients that have logged in, however
    /// many strangers connect.
    pub pending: usize,
    /// All connections of one address. This limit keeps room for all other addresses, and so does
    /// the next one.
    pub all_per_address: usize,
    /// Connections of one address without a login.
    pub pending_per_address: usize,
}

/// The permits of one or more listeners.
#[derive(Clone, Debug)]
pub struct ConnectionQuota {
    all: Arc<Semaphore>,
    pending: Arc<Semaphore>,
    addresses: Arc<Addresses>,
}

/// A permit for the connection, and a permit that the connection holds until the login.
pub(crate) type Pair<T> = (T, T);

#[derive(Debug)]
struct Addresses {
    bounds: ConnectionBounds,
    taken: Mutex<HashMap<IpAddr, Count>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: usize,
    pending: usize,
}

/// One permit of an address.
#[derive(Debug)]
pub(crate) struct AddressPermit {
    addresses: Arc<Addresses>,
    network: IpAddr,
    pending: bool,
}

impl ConnectionQuota {
    /// A quota with these bounds.
    #[must_use]
    pub fn new(bounds: ConnectionBounds) -> Self {
        Self {
            all: Arc::new(Semaphore::new(bounds.all)),
            pending: Arc::new(Semaphore::new(bounds.pending)),
            addresses: Arc::new(Addresses {
                bounds,
                taken: Mutex::default(),
            }),
        }
    }

    pub(crate) fn acquire(&self) -> Option<Pair<OwnedSemaphorePermit>> {
        let pending = Arc::clone(&self.pending).try_acquire_owned().ok()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some((permit, pending))
    }

    /// Takes two permits for a connection from this address.
    pub(crate) fn acquire_for_address(&self, address: IpAddr) -> Option<Pair<AddressPermit>> {
        let network = counted_network(address);
        let bounds = &self.addresses.bounds;
        let mut taken = self.addresses.taken.lock();
        let now = taken.entry(network).or_default();
        if now.all >= bounds.all_per_address || now.pending >= bounds.pending_per_address {
            return None;
        }
        now.all += 1;
        now.pending += 1;
        drop(taken);
        let permit = |pending| AddressPermit {
            addresses: Arc::clone(&self.addresses),
            network,
            pending,
        };
        Some((permit(false), permit(true)))
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut taken = self.addresses.taken.lock();
        let Some(now) = taken.get_mut(&self.network) else {
            return;
        };
        let count = if self.pending {
            &mut now.pending
        } else {
            &mut now.all
        };
        *count = count.saturating_sub(1);
        if now.all == 0 && now.pending == 0 {
            taken.remove(&self.network);
        }
    }
}

/// The network that counts as one address. A single host can use a whole /64 network of IPv6.
pub(crate) fn counted_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_quota_of_an_address_are_refused() {
        let quota = ConnectionQuota::new(ConnectionBounds {
            all: 9,
            pending: 9,
            all_per_address: 3,
            pending_per_address: 2,
        });
        let acquire = |address: &str| quota.acquire_for_address(address.parse().unwrap());
        let (_first, first_pending) = acquire("10.0.0.1").unwrap();
        let second = acquire("::ffff:10.0.0.1").unwrap();
        assert!(acquire("10.0.0.1").is_none(), "two have not logged in");
        drop(first_pending);
        let third = acquire("10.0.0.1").unwrap();
        drop(third.1);
        assert!(acquire("10.0.0.1").is_none(), "three are connected");
        let _others = (acquire("10.0.0.2").unwrap(), acquire("10.0.0.2").unwrap());
        drop(second);
        acquire("10.0.0.1").unwrap();
        let _six = (
            acquire("2001:db8::1").unwrap(),
            acquire("2001:db8::2:0:0:2").unwrap(),
        );
        assert!(acquire("2001:db8::3").is_none(), "one network");
        acquire("2001:db8:0:1::1").unwrap();
        drop((_first, third.0, _others, _six));
        assert!(quota.addresses.taken.lock().is_empty());
    }
}
