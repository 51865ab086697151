//! The part of ZooKeeper's protocol that the harness needs to close the tree to strangers, to act
//! as an administrator, and to test the rights of a stranger.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1_smol::Sha1;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The numbers of the request types.
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;

/// The request number that the server requires for an authentication.
const AUTH_NUMBER: i32 = -4;

/// The rights to read, write, create, delete and administer.
const ALL_RIGHTS: i32 = 31;

/// The nodes that every server has from the start.
const FIRST_NODES: [&str; 4] = ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"];

/// The session that owns an ephemeral node.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The id of the session; 0 if the node is persistent.
    pub session: i64,
    /// The transaction that created the node.
    pub created: u64,
}

/// Returns the setting for the user `super`, who has all rights: the digest of the password.
pub(super) fn super_digest(password: &str) -> String {
    let digest = Sha1::from(format!("super:{password}")).digest();
    format!("super:{}", STANDARD.encode(digest.bytes()))
}

/// Gives all rights on the first nodes to `user` (`name:password`) and to nobody else.
///
/// # Errors
/// Returns an error if a stranger used the servers after their start and before this call.
pub(super) fn close_tree_to_strangers(
    server: SocketAddr,
    super_password: &str,
    user: &str,
) -> Result<()> {
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

/// A session that sends one request at a time.
pub(super) struct Session {
    stream: TcpStream,
    number: i32,
}

impl Session {
    pub(super) fn connect(server: SocketAddr) -> Result<Self> {
        Self::open(server, 0, [0; 16])
    }

    /// Connects with a session that another client has opened. The server moves the session to this
    /// connection.
    ///
    /// # Errors
    /// Returns an error if the servers no longer know the session.
    pub(super) fn take_over(server: SocketAddr, id: i64) -> Result<Self> {
        Self::open(server, id, session_password(id))
    }

    fn open(server: SocketAddr, id: i64, password: [u8; 16]) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, number: 0 };
        let mut hello = Record::default();
        // The fields are: the version, the last transaction seen, the time-out in milliseconds, the
        // id and password of an older session, and whether a read-only server is accepted.
        hello.int(0).long(0).int(10_000).long(id).bytes(&password);
        hello.0.push(0);
        session.send(&hello)?;
        let answer = session.receive().context("a session")?;
        let mut rest = answer.get(4..).context("the version")?;
        ensure!(read_int(&mut rest)? > 0, "the session has expired");
        Ok(session)
    }

    /// Sends a user and a password (`name:password`). The server accepts any pair.
    pub(super) fn authenticate(&mut self, user: &str) -> Result<()> {
        let mut request = Record::default();
        request.int(AUTH_NUMBER).int(AUTH);
        request.int(0).bytes(b"digest").bytes(user.as_bytes());
        self.send(&request)?;
        self.read_answer(AUTH_NUMBER).map(drop)
    }

    /// Returns the names of a node's children.
    pub(super) fn children(&mut self, path: &str) -> Result<Vec<String>> {
        let mut request = self.new_request(GET_CHILDREN);
        request.bytes(path.as_bytes()).0.push(0);
        let answer = self.ask(&request)?;
        let mut rest = answer.as_slice();
        let many = read_int(&mut rest)?;
        (0..many)
            .map(|_| {
                let length = usize::try_from(read_int(&mut rest)?)?;
                let (name, behind) = rest.split_at_checked(length).context("a name")?;
                rest = behind;
                Ok(String::from_utf8_lossy(name).into_owned())
            })
            .collect()
    }

    /// Returns the session that owns an ephemeral node.
    pub(super) fn owner(&mut self, path: &str) -> Result<Owner> {
        let mut request = self.new_request(EXISTS);
        request.bytes(path.as_bytes()).0.push(0);
        let answer = self.ask(&request)?;
        let number = |at: usize| -> Result<[u8; 8]> {
            let bytes = answer.get(at..at + 8).context("the state of a node")?;
            Ok(bytes.try_into()?)
        };
        // In the answer, the session comes after two transaction ids, two times and three versions.
        Ok(Owner {
            created: u64::from_be_bytes(number(0)?),
            session: i64::from_be_bytes(number(44)?),
        })
    }

    /// Removes a node of any version.
    pub(super) fn delete(&mut self, path: &str) -> Result<()> {
        let mut request = self.new_request(DELETE);
        request.bytes(path.as_bytes()).int(-1);
        self.ask(&request).map(drop)
    }

    /// Gives all rights on a node to one user and to nobody else.
    pub(super) fn set_owner(&mut self, path: &str, user: &str) -> Result<()> {
        let (name, _) = user.split_once(':').context("a user and a password")?;
        let digest = STANDARD.encode(Sha1::from(user).digest().bytes());
        let mut request = self.new_request(SET_ACL);
        request.bytes(path.as_bytes()).int(1).int(ALL_RIGHTS);
        request.bytes(b"digest");
        request.bytes(format!("{name}:{digest}").as_bytes());
        // The node may have any version.
        request.int(-1);
        self.ask(&request).map(drop)
    }

    /// Sends a request of any kind on a path. `more` is the content after the path.
    #[cfg(test)]
    pub(super) fn attempt(&mut self, kind: i32, path: &str, more: &[u8]) -> Result<Vec<u8>> {
        let mut request = self.new_request(kind);
        request.bytes(path.as_bytes()).0.extend_from_slice(more);
        self.ask(&request)
    }

    /// Ends the session at the server.
    pub(super) fn end(mut self) {
        // Without this request the server would keep the session until its time-out.
        let request = self.new_request(CLOSE);
        let _ = self.ask(&request);
    }

    fn new_request(&mut self, kind: i32) -> Record {
        self.number += 1;
        let mut request = Record::default();
        request.int(self.number).int(kind);
        request
    }

    fn ask(&mut self, request: &Record) -> Result<Vec<u8>> {
        self.send(request)?;
        self.read_answer(self.number)
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

    /// Reads the answer to the request of this number, without the header.
    fn read_answer(&mut self, number: i32) -> Result<Vec<u8>> {
        let answer = self.receive()?;
        let mut rest = answer.as_slice();
        let to = read_int(&mut rest)?;
        ensure!(to == number, "an answer to {to} instead of {number}");
        // The number of the last transaction comes before the error.
        rest = rest.get(8..).context("the header of an answer")?;
        let error = read_int(&mut rest)?;
        ensure!(error == 0, "the server's error {error}");
        Ok(rest.to_vec())
    }
}

/// Returns the password of a session. The servers do not store passwords. The servers compute a
/// password from the session's number, with Java's random numbers
/// (`ZooKeeperServer.generatePasswd`).
fn session_password(session: i64) -> [u8; 16] {
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

/// The content of a request: numbers in network byte order, and texts that follow their length.
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
        // All texts here are short.
        let length = i32::try_from(value.len()).unwrap_or(i32::MAX);
        self.int(length).0.extend_from_slice(value);
        self
    }
}

/// Takes the next number out of an answer.
fn read_int(rest: &mut &[u8]) -> Result<i32> {
    let (value, behind) = rest.split_first_chunk().context("a number")?;
    *rest = behind;
    Ok(i32::from_be_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_equals_the_digest_of_zookeeper() {
        // The output of ZooKeeper's `DigestAuthenticationProvider super:test`.
        assert_eq!(super_digest("test"), "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }
}
