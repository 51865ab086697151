//! As much of ZooKeeper's protocol as it takes to close its tree to everybody but one user, and to
//! see what a stranger may do.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1_smol::Sha1;

const PATIENCE: Duration = Duration::from_secs(10);

/// Kinds of requests.
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;

/// The request number that the server expects of an authentication.
const AUTH_NUMBER: i32 = -4;

/// To read, write, create, delete and administer.
const ALL_RIGHTS: i32 = 31;

/// The nodes that every server has from the start.
const FIRST_NODES: [&str; 4] = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];

/// The user who may do everything, whatever the nodes say: how the servers know the password.
pub(super) fn super_digest(password: &str) -> String {
    let digest = Sha1::from(format!("super:{password}")).digest();
    format!("super:{}", STANDARD.encode(digest.bytes()))
}

/// Gives the first nodes to `user` (`name:password`) alone.
///
/// # Errors
/// When somebody else was faster: a stranger may have used the servers between their start and now.
pub(super) fn close(server: SocketAddr, super_password: &str, user: &str) -> Result<()> {
    let mut session = Session::connect(server)?;
    session.authenticate(&format!("super:{super_password}"))?;
    for path in FIRST_NODES {
        session.set_owner(path, user)?;
    }
    let found = session.children("/")?;
    ensure!(
        found == ["zookeeper"],
        "somebody else used the servers while they started: they hold {found:?}"
    );
    session.end();
    Ok(())
}

/// A session that asks one thing at a time.
pub(super) struct Session {
    stream: TcpStream,
    number: i32,
}

impl Session {
    pub(super) fn connect(server: SocketAddr) -> Result<Self> {
        Self::open(server, 0, [0; 16])
    }

    /// Takes over a session that somebody else has opened: its connection moves here.
    ///
    /// # Errors
    /// When the servers do not know it any more.
    pub(super) fn take_over(server: SocketAddr, id: i64) -> Result<Self> {
        Self::open(server, id, password_of(id))
    }

    fn open(server: SocketAddr, id: i64, password: [u8; 16]) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, number: 0 };
        let mut hello = Record::default();
        // The version, the last transaction seen, the time-out in milliseconds, an older session
        // and its password, and that a server that only reads will not do.
        hello.int(0).long(0).int(10_000).long(id).bytes(&password);
        hello.0.push(0);
        session.send(&hello)?;
        let answer = session.receive().context("a session")?;
        let mut rest = answer.get(4..).context("the version")?;
        ensure!(int(&mut rest)? > 0, "the session has expired");
        Ok(session)
    }

    /// Shows a user and a password; the server takes any.
    pub(super) fn authenticate(&mut self, user: &str) -> Result<()> {
        let mut request = Record::default();
        request.int(AUTH_NUMBER).int(AUTH);
        request.int(0).bytes(b"digest").bytes(user.as_bytes());
        self.send(&request)?;
        self.answer(AUTH_NUMBER).map(drop)
    }

    /// The names of a node's children.
    pub(super) fn children(&mut self, path: &str) -> Result<Vec<String>> {
        let mut request = self.request(GET_CHILDREN);
        request.bytes(path.as_bytes()).0.push(0);
        let answer = self.ask(&request)?;
        let mut rest = answer.as_slice();
        let many = int(&mut rest)?;
        (0..many)
            .map(|_| {
                let length = usize::try_from(int(&mut rest)?)?;
                let (name, behind) = rest.split_at_checked(length).context("a name")?;
                rest = behind;
                Ok(String::from_utf8_lossy(name).into_owned())
            })
            .collect()
    }

    /// The session that a node ends with; 0 = it stays.
    pub(super) fn session_of(&mut self, path: &str) -> Result<i64> {
        let mut request = self.request(EXISTS);
        request.bytes(path.as_bytes()).0.push(0);
        let answer = self.ask(&request)?;
        // Behind two transactions, two times and three versions.
        let owner = answer.get(44..52).context("the session of a node")?;
        Ok(i64::from_be_bytes(owner.try_into()?))
    }

    /// Removes a node, whatever version it has.
    pub(super) fn delete(&mut self, path: &str) -> Result<()> {
        let mut request = self.request(DELETE);
        request.bytes(path.as_bytes()).int(-1);
        self.ask(&request).map(drop)
    }

    /// Gives a node to one user alone.
    pub(super) fn set_owner(&mut self, path: &str, user: &str) -> Result<()> {
        let (name, _) = user.split_once(':').context("a user and a password")?;
        let digest = STANDARD.encode(Sha1::from(user).digest().bytes());
        let mut request = self.request(SET_ACL);
        request.bytes(path.as_bytes()).int(1).int(ALL_RIGHTS);
        request.bytes(b"digest");
        request.bytes(format!("{name}:{digest}").as_bytes());
        // Whatever version the node has.
        request.int(-1);
        self.ask(&request).map(drop)
    }

    /// Runs any request on a path, with `more` behind it. What a stranger tries.
    #[cfg(test)]
    pub(super) fn attempt(&mut self, kind: i32, path: &str, more: &[u8]) -> Result<Vec<u8>> {
        let mut request = self.request(kind);
        request.bytes(path.as_bytes()).0.extend_from_slice(more);
        self.ask(&request)
    }

    pub(super) fn end(mut self) {
        // Without it the server would keep the session until it expires.
        let request = self.request(CLOSE);
        let _ = self.ask(&request);
    }

    fn request(&mut self, kind: i32) -> Record {
        self.number += 1;
        let mut request = Record::default();
        request.int(self.number).int(kind);
        request
    }

    fn ask(&mut self, request: &Record) -> Result<Vec<u8>> {
        self.send(request)?;
        self.answer(self.number)
    }

    fn send(&mut self, record: &Record) -> Result<()> {
        let mut bytes = Record::default();
        bytes.bytes(&record.0);
        Ok(self.stream.write_all(&bytes.0)?)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length))?;
        ensure!(length < 1 << 20, "an answer of {length} bytes");
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    /// The answer to a request, behind its header.
    fn answer(&mut self, number: i32) -> Result<Vec<u8>> {
        let answer = self.receive()?;
        let mut rest = answer.as_slice();
        let to = int(&mut rest)?;
        ensure!(to == number, "an answer to {to} instead of {number}");
        // The number of the last transaction.
        rest = rest.get(8..).context("the header of an answer")?;
        let error = int(&mut rest)?;
        ensure!(error == 0, "the server's error {error}");
        Ok(rest.to_vec())
    }
}

/// The password of a session. The servers do not keep it: they work it out from the session's
/// number, with the random numbers of Java (`ZooKeeperServer.generatePasswd`).
fn password_of(session: i64) -> [u8; 16] {
    const SECRET: u64 = 0xB341_5C00;
    const FACTOR: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (session.cast_unsigned() ^ SECRET ^ FACTOR) & MASK;
    let mut password = [0; 16];
    for part in password.chunks_exact_mut(4) {
        state = state.wrapping_mul(FACTOR).wrapping_add(0xB) & MASK;
        let bytes = (state >> 16).to_le_bytes();
        part.copy_from_slice(&bytes[..4]);
    }
    password
}

/// What is sent: numbers in network order, texts with their length before them.
#[derive(Debug, Default)]
struct Record(Vec<u8>);

impl Record {
    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        // Whatever is sent here is short.
        let length = i32::try_from(value.len()).unwrap_or(i32::MAX);
        self.int(length).0.extend_from_slice(value);
        self
    }
}

fn int(rest: &mut &[u8]) -> Result<i32> {
    let (value, behind) = rest.split_first_chunk().context("a number")?;
    *rest = behind;
    Ok(i32::from_be_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_zookeeper() {
        // What `DigestAuthenticationProvider super:test` of ZooKeeper prints.
        assert_eq!(super_digest("test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }
}
