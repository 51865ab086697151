//! The server of one run: an existing server, or a private one that ends with the run.
//!
//! A link to the server that delays all bytes. On the loopback interface a round trip takes less
//! time than a thread needs to wake up. There, a ratio to the round trip describes the machine and
//! not the lock. With a known delay, a round trip consists mostly of that delay.
//!
//! The link runs in a process of its own, because the runtime of this process is measured. The link
//! has two threads for each direction of each connection. All bytes are delayed by the same time
//! and keep their order, so the link does not limit the bandwidth.

use std::{
    any::Any,
    fmt,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use distlock_core::{Clock as _, DistLock, Moment, SystemClock};
use distlock_report::{Arm, LockerSubject, Options, Report, Workload, measure};

/// Measures the arms, with distlock on this lock as the last of them.
pub(crate) async fn measure_beside(
    mut arms: Vec<Arm>,
    name: &str,
    lock: Arc<dyn DistLock>,
    workload: Workload,
    options: &Options,
) -> anyhow::Result<Report> {
    let subject = LockerSubject::new(lock);
    let locker = subject.locker().clone();
    locker.ready().await?;
    arms.push(Arm::new(name, subject));
    let report = measure(&arms, workload, options).await?;
    locker.close().await;
    Ok(report)
}

/// A server, and the link to the server if its answers are delayed.
pub(crate) struct Target {
    url: String,
    _link: Option<Link>,
    _server: Option<Box<dyn Any>>,
}

impl Target {
    /// Returns a server that runs already and continues after the run.
    pub(crate) fn existing_server(url: String) -> Self {
        Self {
            url,
            _link: None,
            _server: None,
        }
    }

    /// Returns a private server, which ends when this value is dropped. With a `delay`, clients
    /// reach the server through a link that adds the delay to each direction. The address of the
    /// link replaces the address in `url`.
    pub(crate) fn private_server(
        server: impl Any,
        address: SocketAddr,
        url: &str,
        delay: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let link = delay.map(|delay| Link::start(address, delay)).transpose()?;
        let reached = link.as_ref().map_or(address, Link::address);
        Ok(Self {
            url: url.replace(&address.to_string(), &reached.to_string()),
            _link: link,
            _server: Some(Box::new(server)),
        })
    }

    /// Returns the URL at which every arm connects.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password, so the output does not show the URL.
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

/// A process that delays the bytes to and from one server. Dropping the value ends the process.
#[derive(Debug)]
pub(crate) struct Link {
    process: Child,
    address: SocketAddr,
}

impl Link {
    /// Starts a link that delays everything by `delay`, each way.
    pub(crate) fn start(server: SocketAddr, delay: Duration) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["peers", "link"])
            .arg(server.to_string())
            .arg(delay.as_micros().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the link")?;
        let output = process.stdout.take().context("the link's output")?;
        let mut link = Self {
            process,
            address: server,
        };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        link.address = line.trim_end().parse().context("the link's address")?;
        Ok(link)
    }

    /// Returns the address for clients.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The process would also end at the end of its input. A kill ends the process at once.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The main function of the link's process. The process prints its address, and serves clients
/// until its input ends.
pub(crate) fn run_process(server: SocketAddr, delay: Duration) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
    println!("{}", listener.local_addr()?);
    thread::spawn(move || {
        for client in listener.incoming() {
            // If the server cannot be reached, the connection of the client is closed.
            let _ = client.and_then(|client| relay_both_ways(&client, server, delay));
        }
    });
    let read = io::stdin().read_to_end(&mut Vec::new())?;
    ensure!(read == 0, "nothing is expected here");
    Ok(())
}

/// Connects to the server, and relays both directions of one connection.
fn relay_both_ways(client: &TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    for end in [client, &server] {
        end.set_nodelay(true)?;
    }
    delay_one_way(client.try_clone()?, server.try_clone()?, delay);
    delay_one_way(server, client.try_clone()?, delay);
    Ok(())
}

/// Relays one direction. One thread reads bytes and adds the due time of each piece. Another thread
/// writes each piece at its due time. Both threads end with the connection.
fn delay_one_way(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (incoming, outgoing) = mpsc::channel::<(Moment, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let due = SystemClock.now() + delay;
            if incoming.send((due, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in outgoing {
            wait_until(due);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The shutdown informs both ends of the end of the connection.
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own that has nothing else to do, and the delay is what it is for"
)]
fn wait_until(due: Moment) {
    let left = due.since(SystemClock.now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order_and_arrive_after_the_delay() {
        const DELAY: Duration = Duration::from_millis(20);
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (front, server) = (listen(), listen());
        let mut client = TcpStream::connect(front.local_addr().unwrap()).unwrap();
        let (accepted, _) = front.accept().unwrap();
        relay_both_ways(&accepted, server.local_addr().unwrap(), DELAY).unwrap();
        drop(accepted);
        let (mut served, _) = server.accept().unwrap();

        let sent: Vec<u8> = (0..=255).cycle().take(200_000).collect();
        let start = SystemClock.now();
        let echo = thread::spawn(move || {
            let mut received = vec![0; 200_000];
            served.read_exact(&mut received).unwrap();
            served.write_all(&received).unwrap();
        });
        client.write_all(&sent).unwrap();
        let mut back = vec![0; sent.len()];
        client.read_exact(&mut back).unwrap();
        assert_eq!(back, sent);
        assert!(SystemClock.now().since(start) >= 2 * DELAY);
        echo.join().unwrap();
        // The server has closed its end of the connection.
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}
