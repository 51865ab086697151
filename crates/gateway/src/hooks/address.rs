//! The addresses at which a receiver may be, and connections to them.
//!
//! Invariant of this module: the address that was checked is the address that is connected to. A
//! name that has another address a moment later changes nothing.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::Uri;
use distlock_core::{Clock, at_most};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::Semaphore, task::spawn_blocking};
use tower::Service;

/// Longest wait for one address of several, so that one that does not answer leaves time for the
/// next one.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// How far away an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// One host of the public internet.
    Public,
    /// This host, or a network of the operator.
    Private,
    /// No receiver can be there: the address names no single host, or it is the service by which a
    /// cloud tells a machine its own credentials.
    Never,
}

/// Where clouds tell a machine its own credentials: most of them; AWS for containers; Azure;
/// Alibaba; AWS and Google by IPv6.
const CLOUD_V4: [Ipv4Addr; 5] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
];
const CLOUD_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => match carried_v4(address) {
            Some(carried) => reach_v4(carried),
            None => reach_v6(address),
        },
    }
}

/// The IPv4 address that packets to this address arrive at in the end: `::ffff:0:0/96` is IPv4 on
/// this host, a gateway translates `64:ff9b::/96` (RFC 6052), and `2002::/16` is a tunnel.
fn carried_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (segments, octets) = (address.segments(), address.octets());
    let at = |from: usize| {
        let four = octets.get(from..from + 4)?;
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(four).ok()?))
    };
    match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => at(12),
        [0x2002, ..] => at(2),
        _ => None,
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        _ if CLOUD_V4.contains(&address) => Reach::Never,
        // This network; multicast; reserved, and broadcast.
        (0 | 224.., ..) => Reach::Never,
        // Loopback, private use, shared by carriers, link-local.
        (127 | 10, ..)
        | (172, 16..=31, _)
        | (192, 168, _)
        | (100, 64..=127, _)
        | (169, 254, _)
        // Assignments of protocols, documentation, measurements (RFC 6890).
        | (192, 0, 0 | 2)
        | (198, 18..=19, _)
        | (198, 51, 100)
        | (203, 0, 113) => Reach::Private,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    if CLOUD_V6.contains(&address) || address.is_unspecified() || address.is_multicast() {
        return Reach::Never;
    }
    match address.segments() {
        // Assignments of protocols with the Teredo tunnel, and documentation.
        [0x2001, ..0x200 | 0xdb8, ..] | [0x3fff, ..0x1000, ..] => Reach::Private,
        // The only range in which hosts of the public internet have addresses.
        [0x2000..0x4000, ..] => Reach::Public,
        // Loopback, link-local, unique local, and everything else.
        _ => Reach::Private,
    }
}

/// Connects to receivers.
#[derive(Clone)]
pub(super) struct Connector {
    allow_private: bool,
    clock: Arc<dyn Clock>,
    /// A name server that does not answer keeps a thread of this process for a while, so each
    /// receiver may use one at a time.
    resolving: Arc<Semaphore>,
}

impl Connector {
    pub(super) fn new(allow_private: bool, clock: Arc<dyn Clock>) -> Self {
        Self {
            allow_private,
            clock,
            resolving: Arc::new(Semaphore::new(1)),
        }
    }

    async fn connect(self, url: Uri) -> io::Result<TcpStream> {
        let host = url.host().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let secured = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if secured { 443 } else { 80 });
        let turn = Arc::clone(&self.resolving).acquire_owned().await;
        let turn = turn.map_err(io::Error::other)?;
        let resolve = move || {
            // The turn ends with the answer, also if nobody waits for it any more.
            let _turn = turn;
            (host, port).to_socket_addrs().map(Vec::from_iter)
        };
        let addresses = spawn_blocking(resolve).await.map_err(io::Error::other)??;
        self.connect_to(&addresses, secured).await
    }

    /// Connects to the first of these addresses that is allowed and answers.
    async fn connect_to(&self, addresses: &[SocketAddr], secured: bool) -> io::Result<TcpStream> {
        let mut failure = io::Error::other("its name has no address");
        for address in addresses {
            if let Some(problem) = self.problem_of(address.ip(), secured) {
                failure = io::Error::other(problem);
                continue;
            }
            let connecting = TcpStream::connect(address);
            match at_most(&*self.clock, CONNECT_LIMIT, connecting).await {
                Some(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Some(Err(error)) => failure = error,
                None => failure = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failure)
    }

    /// Why no receiver may be at this address.
    fn problem_of(&self, address: IpAddr, secured: bool) -> Option<String> {
        match reach(address) {
            Reach::Public if secured => None,
            Reach::Public => Some(format!(
                "its address {address} is one of the public internet, and its url is not https"
            )),
            Reach::Private if self.allow_private => None,
            Reach::Private => Some(format!(
                "its address {address} is not one of the public internet: only allow_private = \
                 true allows it"
            )),
            Reach::Never => Some(format!(
                "its address {address} is never allowed for a receiver"
            )),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(url).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::SystemClock;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn only_hosts_of_the_public_internet_are_public() {
        for (reached, addresses) in [
            (
                Reach::Public,
                "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
                 128.0.0.0 169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.0 192.167.0.1 \
                 198.17.0.1 198.20.0.0 223.255.255.255 2606:4700::1111 2001:4860:4860::8888 \
                 2a00:1450::1 2001:200::1 ::ffff:1.1.1.1 64:ff9b::1.1.1.1 2002:101:101::1",
            ),
            (
                Reach::Private,
                "127.0.0.1 127.255.255.254 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 \
                 169.254.1.1 100.64.0.1 192.0.0.1 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.9 \
                 ::1 fe80::1 febf::1 fc00::1 fd12:3456::1 fec0::1 2001:db8::1 2001::1 3fff::1 \
                 100::1 64:ff9b:1::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.1.2.3 \
                 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 2002:7f00:1::1 2002:a00:1::1 4000::1",
            ),
            (
                Reach::Never,
                "0.0.0.0 0.1.2.3 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ff02::1 \
                 169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 ::ffff:0.0.0.0 \
                 ::ffff:169.254.169.254 64:ff9b::169.254.169.254 ::ffff:224.0.0.1 \
                 2002:a9fe:a9fe::1 fd00:ec2::254 fd20:ce::254",
            ),
        ] {
            for address in addresses.split_whitespace() {
                assert_eq!(reach(address.parse().unwrap()), reached, "{address}");
            }
        }
    }

    #[tokio::test]
    async fn the_checked_address_is_the_one_that_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let connector = |allow| Connector::new(allow, Arc::new(SystemClock));
        let port = here.port();
        // Names and every way to write a loopback address are resolved first, and then checked.
        for host in [
            "localhost",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "[::ffff:127.0.0.1]",
        ] {
            let url: Uri = format!("http://{host}:{port}/").parse().unwrap();
            let refused = connector(false).connect(url.clone()).await.unwrap_err();
            assert!(
                refused.to_string().contains("allow_private"),
                "{host}: {refused}"
            );
            assert!(connector(true).connect(url).await.is_ok(), "{host}");
            listener.accept().await.unwrap();
        }
        // One address of a name is refused, and the other one is tried.
        let never = SocketAddr::new([169, 254, 169, 254].into(), port);
        let connected = connector(true)
            .connect_to(&[never, here], false)
            .await
            .unwrap();
        assert_eq!(connected.peer_addr().unwrap(), here);
        let refused = connector(true)
            .connect_to(&[never], false)
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("never allowed"), "{refused}");
        let public = SocketAddr::new([1, 1, 1, 1].into(), port);
        let refused = connector(true).connect_to(&[public], false).await;
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("not https"), "{refused}");
    }
}
