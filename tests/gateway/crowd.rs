//! Many clients that know one address, a proxy's, and come back by themselves. Each obeys its
//! notices as `proto/README.md` says: what ends it for good ends it here, too.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use distlock::backend::sync::Mutex;
use distlock_harness::{Pki, eventually_async};
use distlock_kickout::{SessionId, Uid};
use futures_util::{SinkExt as _, StreamExt as _};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, protocol::WebSocketConfig},
};

use crate::world::{SOON, login_token, pause};

/// The longest time for each step of a login. The node's own limits are shorter.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Logins in progress while the crowd comes for the first time. Later nothing limits them.
const FIRST_AT_ONCE: usize = 100;
/// The period of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(20);
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// The first pause after a failed attempt, which grows with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The way to the proxy.
#[derive(Clone)]
pub(crate) struct Way {
    to: SocketAddr,
    tls: TlsConnector,
}

/// The clients, each of its own address and account.
pub(crate) struct Crowd {
    way: Way,
    members: Vec<Arc<Mutex<Member>>>,
    uids: Vec<Uid>,
    tasks: JoinSet<()>,
}

/// What a client knows.
#[derive(Debug, Default)]
pub(crate) struct Member {
    /// Its session and the node of it, while it is in.
    pub(crate) inside: Option<(SessionId, String)>,
    lost: Option<Instant>,
    /// The time that each return took, from the loss of the session on.
    returns: Vec<Duration>,
    /// Attempts that a node refused because it drains.
    refused: u32,
    /// Attempts that ended without an answer of a node.
    failed: u32,
    /// The code that ended it for good.
    ended: Option<u64>,
}

/// A connection that is logged in.
struct Session {
    socket: WebSocketStream<TlsStream<TcpStream>>,
    resume: String,
    session: SessionId,
    node: String,
}

/// The answer to an attempt.
enum Attempt {
    In(Box<Session>),
    /// A node refused, and asks for this pause.
    Later(Duration),
    /// The node drains.
    Elsewhere,
    /// Never again, with this code.
    Ended(u64),
}

impl Way {
    /// The way to a proxy whose certificate this authority has signed.
    pub(crate) fn new(to: SocketAddr, pki: &Pki) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(pki.path("ca.crt"))?)?;
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self { to, tls })
    }

    /// Opens a stream by TLS, from this address of the loopback network.
    pub(crate) async fn open(&self, from: Ipv4Addr) -> Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(self.to).await?;
        // Thousands of ports in the state `TIME_WAIT` would remain otherwise.
        stream.set_zero_linger()?;
        let name = ServerName::try_from("localhost")?;
        Ok(self.tls.connect(name, stream).await?)
    }

    /// Logs an account in and breaks the connection, until the proxy passes it to this node.
    pub(crate) async fn wait_until_it_leads_to(&self, node: &str, uid: &Uid) -> Result<()> {
        let there = async || {
            let from = Ipv4Addr::new(127, 8, 0, 3);
            let attempt = tokio::time::timeout(STEP_LIMIT, self.attempt(from, uid, "probe", None));
            if let Ok(Ok(Attempt::In(session))) = attempt.await
                && session.node == node
            {
                return Some(());
            }
            // The account may log in only so many times a second.
            pause(PROBE_PAUSE).await;
            None
        };
        eventually_async(&format!("the proxy leads to {node}"), SOON, there).await
    }

    /// Connects, and logs in by a token, or by the resume token of an earlier session.
    async fn attempt(
        &self,
        from: Ipv4Addr,
        uid: &Uid,
        device: &str,
        resume: Option<&str>,
    ) -> Result<Attempt> {
        let stream = self.open(from).await?;
        let config = WebSocketConfig::default()
            .read_buffer_size(4096)
            .write_buffer_size(0);
        let (mut socket, _) =
            client_async_with_config("wss://localhost/ws", stream, Some(config)).await?;
        let mut login = json!({
            "type": "login",
            "token": login_token(uid),
            "device": device,
            "class": "",
            "intent": "login",
        });
        if let Some(resume) = resume {
            login["intent"] = "resume".into();
            login["resume"] = resume.into();
        }
        socket.send(Message::text(login.to_string())).await?;
        let answer = next(&mut socket).await?;
        let millis = || Duration::from_millis(answer["retry_after_ms"].as_u64().unwrap_or(1000));
        Ok(match answer["type"].as_str() {
            Some("login_ok") => Attempt::In(Box::new(Session {
                socket,
                resume: answer["resume"].as_str().context("resume")?.to_owned(),
                session: serde_json::from_value(answer["session"].clone())?,
                node: answer["node"].as_str().context("node")?.to_owned(),
            })),
            Some("busy") => Attempt::Later(millis()),
            Some("denied" | "offline") => match answer["code"].as_u64().context("code")? {
                6 | 8 => Attempt::Elsewhere,
                code => Attempt::Ended(code),
            },
            _ => bail!("a login was answered {answer}"),
        })
    }
}

/// The next frame of the node.
async fn next(socket: &mut WebSocketStream<TlsStream<TcpStream>>) -> Result<Value> {
    loop {
        match socket.next().await.context("the connection ended")?? {
            Message::Text(text) => return Ok(serde_json::from_str(&text)?),
            Message::Close(frame) => bail!("closed: {frame:?}"),
            _ => {}
        }
    }
}

impl Session {
    /// Stays until the session ends. Returns the code of its notice, if there was one, and the
    /// pause that the notice asks for.
    async fn stay(&mut self) -> Option<(u64, Duration)> {
        loop {
            let frame = tokio::time::timeout(HEARTBEAT, next(&mut self.socket)).await;
            match frame {
                Err(_) => {
                    let ping = self.socket.send(Message::text(r#"{"type":"ping"}"#)).await;
                    ping.ok()?;
                }
                Ok(Ok(frame)) if frame["type"] == "offline" => {
                    let pause = Duration::from_millis(frame["retry_after_ms"].as_u64()?);
                    return Some((frame["code"].as_u64()?, pause));
                }
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return None,
            }
        }
    }

    /// Says goodbye, as a client does after its notice.
    async fn leave(mut self) {
        let leaving = async {
            let _ = self.socket.send(Message::text(r#"{"type":"bye"}"#)).await;
            let _ = self.socket.close(None).await;
            while self.socket.next().await.is_some_and(|it| it.is_ok()) {}
        };
        let _ = tokio::time::timeout(STEP_LIMIT, leaving).await;
    }
}

/// Lives the life of one client.
async fn live(way: Way, from: Ipv4Addr, uid: Uid, device: String, member: Arc<Mutex<Member>>) {
    let (mut resume, mut failures) = (None::<String>, 0_u32);
    loop {
        let attempt = way.attempt(from, &uid, &device, resume.as_deref());
        let attempt = tokio::time::timeout(STEP_LIMIT, attempt).await;
        match attempt.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer"))) {
            Ok(Attempt::In(mut session)) => {
                resume = Some(session.resume.clone());
                failures = 0;
                {
                    let mut member = member.lock();
                    member.inside = Some((session.session, session.node.clone()));
                    if let Some(lost) = member.lost.take() {
                        member.returns.push(lost.elapsed());
                    }
                }
                let ended = session.stay().await;
                {
                    let mut member = member.lock();
                    (member.inside, member.lost) = (None, Some(Instant::now()));
                }
                // The farewell must not delay the return.
                tokio::spawn(session.leave());
                match ended {
                    Some((6 | 8, wait)) => pause(wait).await,
                    Some((code, _)) => {
                        member.lock().ended = Some(code);
                        return;
                    }
                    None => pause(with_jitter(FIRST_PAUSE)).await,
                }
            }
            Ok(Attempt::Ended(code)) => {
                member.lock().ended = Some(code);
                return;
            }
            Ok(Attempt::Later(wait)) => pause(wait).await,
            other => {
                {
                    let mut member = member.lock();
                    match other {
                        Ok(_) => member.refused += 1,
                        Err(_) => member.failed += 1,
                    }
                }
                pause(with_jitter(FIRST_PAUSE * 2_u32.pow(failures.min(4)))).await;
                failures += 1;
            }
        }
    }
}

/// A random time between this one and its double, so that clients do not come together.
fn with_jitter(time: Duration) -> Duration {
    time.mul_f64(1.0 + fastrand::f64())
}

impl Crowd {
    /// Lets one client of each account come, and waits until all are in.
    pub(crate) async fn start(way: &Way, uids: Vec<Uid>) -> Result<Self> {
        let mut crowd = Self {
            way: way.clone(),
            members: Vec::new(),
            uids,
            tasks: JoinSet::new(),
        };
        for number in 0..crowd.uids.len() {
            let come = || crowd.members.len() - crowd.count_inside() < FIRST_AT_ONCE;
            eventually_async("clients are let in", SOON, async || come().then_some(())).await?;
            crowd.add(number, "phone");
        }
        crowd.wait_until_all_are_in(SOON).await?;
        Ok(crowd)
    }

    /// Lets one more client come, with this device of the account with this number.
    fn add(&mut self, number: usize, device: &str) {
        let (high, low) = (self.members.len() / 250, self.members.len() % 250);
        let octet = |number| u8::try_from(number).unwrap();
        let from = Ipv4Addr::new(127, 7, octet(high), 1 + octet(low));
        let member = Arc::default();
        self.members.push(Arc::clone(&member));
        let (way, uid) = (self.way.clone(), self.uids[number].clone());
        self.tasks
            .spawn(live(way, from, uid, device.to_owned(), member));
    }

    /// Lets a second device of the first accounts come, which ends the session of the first device.
    pub(crate) fn add_rivals(&mut self, number: usize) {
        (0..number).for_each(|number| self.add(number, "tablet"));
    }

    pub(crate) fn count_inside(&self) -> usize {
        self.count(|it| it.inside.is_some())
    }

    fn count(&self, is: impl Fn(&Member) -> bool) -> usize {
        self.members.iter().filter(|it| is(&it.lock())).count()
    }

    /// The sessions of the clients that are in, by account.
    pub(crate) fn sessions(&self) -> Result<BTreeMap<Uid, SessionId>> {
        let mut sessions = BTreeMap::new();
        for (at, member) in self.members.iter().enumerate() {
            if let Some((session, _)) = &member.lock().inside {
                let uid = &self.uids[at % self.uids.len()];
                let other = sessions.insert(uid.clone(), *session);
                ensure!(other.is_none(), "{uid} has two clients that are in");
            }
        }
        Ok(sessions)
    }

    /// Waits until each client is in, or has ended for good.
    pub(crate) async fn wait_until_all_are_in(&self, within: Duration) -> Result<()> {
        let away = || self.count(|it| it.inside.is_none() && it.ended.is_none());
        let all = async || (away() == 0).then_some(());
        eventually_async("all clients are in", within, all)
            .await
            .with_context(|| format!("{} are away: {}", away(), self.summary()))
    }

    /// The codes that ended clients for good.
    pub(crate) fn codes(&self) -> BTreeMap<u64, usize> {
        let mut codes = BTreeMap::new();
        for code in self.members.iter().filter_map(|it| it.lock().ended) {
            *codes.entry(code).or_default() += 1;
        }
        codes
    }

    /// The longest time from the loss of a session until its client was back in.
    pub(crate) fn longest_return(&self) -> Duration {
        let returns = self.members.iter().flat_map(|it| it.lock().returns.clone());
        returns.max().unwrap_or_default()
    }

    /// One line of figures.
    pub(crate) fn summary(&self) -> String {
        let sum =
            |of: fn(&Member) -> u32| -> u32 { self.members.iter().map(|it| of(&it.lock())).sum() };
        let mut returns: Vec<_> = self
            .members
            .iter()
            .flat_map(|it| it.lock().returns.clone())
            .collect();
        returns.sort();
        let half = returns.get(returns.len() / 2).copied().unwrap_or_default();
        format!(
            "{} clients, {} returns: half within {half:?}, all within {:?}; {} attempts refused \
             by a draining node, {} failed; ended by {:?}",
            self.members.len(),
            returns.len(),
            self.longest_return(),
            sum(|it| it.refused),
            sum(|it| it.failed),
            self.codes(),
        )
    }
}
