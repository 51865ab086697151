//! Tries the addresses of a name, one after the other.
//!
//! The name is resolved at each attempt to connect, because its addresses may have changed since.
//! An address counts as reached only when its server has answered, because the kernel of a frozen
//! machine still accepts connections.

use std::{future::Future, net::SocketAddr, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use redis::{Client, ConnectionAddr, RedisFuture, io::AsyncDNSResolver};

use crate::error::{self, BACKEND};

/// The time after which a silent address no longer delays the attempt at the next one.
const TRY_NEXT_AFTER: Duration = Duration::from_millis(250);

/// Resolves every name to one address. The driver itself would connect to all addresses of a name,
/// and use the one that accepts first.
pub(super) struct OneAddress(pub(super) SocketAddr);

impl AsyncDNSResolver for OneAddress {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        _: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        let only: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(std::iter::once(self.0));
        async { Ok(only) }.boxed()
    }
}

/// Makes an attempt at each address of the client's server, and returns the first success. An
/// attempt at the next address begins when one has failed or is late. The other attempts are
/// dropped.
///
/// # Errors
/// The first error that is permanent, otherwise the first one.
pub(super) async fn first_to_answer<T, F: Future<Output = Result<T>>>(
    clock: &dyn Clock,
    client: &Client,
    name: &str,
    attempt: impl Fn(OneAddress) -> F,
) -> Result<T> {
    let addresses = match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            tokio::net::lookup_host((&**host, *port)).await
        }
        _ => Err(std::io::ErrorKind::Unsupported.into()),
    };
    let addresses = addresses.map_err(|error| error::of_connecting(&error.into(), name))?;
    one_after_the_other(clock, addresses.collect(), |at| attempt(OneAddress(at)))
        .await
        .unwrap_or_else(|| {
            let says = format!("the name of {name} has no address");
            Err(Error::new(ErrorKind::Unavailable, says).on(BACKEND))
        })
}

async fn one_after_the_other<T, F: Future<Output = Result<T>>>(
    clock: &dyn Clock,
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> Option<Result<T>> {
    let mut addresses = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failed: Option<Error> = None;
    loop {
        attempts.extend(addresses.next().map(&attempt));
        tokio::select! {
            biased;
            done = attempts.next() => match done {
                Some(Ok(answer)) => return Some(Ok(answer)),
                Some(Err(error)) => {
                    let better = |known: &Error| known.is_retryable() && !error.is_retryable();
                    if failed.as_ref().is_none_or(better) {
                        failed = Some(error);
                    }
                }
                None => return failed.map(Err),
            },
            () = clock.sleep(TRY_NEXT_AFTER), if addresses.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use distlock_core::SystemClock;
    use distlock_harness::servers::redis::RedisServer;
    use redis::AsyncConnectionConfig;

    use super::*;

    /// Asks the server at an address for the time.
    async fn ask(url: String, at: SocketAddr) -> Result<SocketAddr> {
        let client = Client::open(url).unwrap();
        let options = AsyncConnectionConfig::new().set_dns_resolver(OneAddress(at));
        let asking = async {
            let connecting = client.get_multiplexed_async_connection_with_config(&options);
            let mut connection = connecting.await?;
            redis::cmd("TIME").exec_async(&mut connection).await
        };
        let asked = asking.await;
        asked.map_err(|error| error::of_connecting(&error, &at.to_string()))?;
        Ok(at)
    }

    #[tokio::test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a real server lives in real time"
    )]
    async fn an_address_that_accepts_and_is_silent_delays_the_next_only_briefly() {
        let server = RedisServer::start().unwrap();
        // The kernel accepts for this listener, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let [silent_at, closed_at] = [&silent, &closed].map(|at| at.local_addr().unwrap());
        drop(closed);
        let good = server.address();
        // The host of the URL is a name with these addresses, in this order.
        let url = server.url().replace("127.0.0.1", "several.invalid");
        let connect = async |addresses: &[SocketAddr]| {
            let start = Instant::now();
            let attempt = |at| ask(url.clone(), at);
            let made = one_after_the_other(&SystemClock, addresses.to_vec(), attempt).await;
            (made, start.elapsed())
        };
        let late = TRY_NEXT_AFTER * 2 + Duration::from_millis(500);
        for addresses in [
            &[silent_at, good][..],
            &[silent_at, closed_at, good],
            &[closed_at, silent_at, silent_at, good],
        ] {
            let (made, took) = connect(addresses).await;
            assert_eq!(made.unwrap().unwrap(), good, "{addresses:?}");
            assert!(took < late, "{addresses:?}: {took:?}");
        }
        let (failed, _) = connect(&[closed_at, closed_at]).await;
        let error = failed.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(connect(&[]).await.0.is_none());
    }
}
