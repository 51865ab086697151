//! The part of the Redis protocol that is needed to send commands and read replies.
//!
//! Records the commands that clients send.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use distlock_core::sync::Mutex;

/// Time-out for a server to accept a connection, and for each answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A connection that sends one command at a time.
pub(super) struct Resp(BufReader<TcpStream>);

impl Resp {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command, and returns the reply as text. The items of an array are on separate lines,
    /// and the text of an error begins with its code.
    pub(super) fn ask(&mut self, arguments: &[&str]) -> Result<String> {
        let mut request = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            request.push_str(&format!("${}\r\n{argument}\r\n", argument.len()));
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut lines = Vec::new();
        self.read_reply(&mut lines)?;
        Ok(lines.join("\n"))
    }

    /// Collects every line from now on, until the connection ends.
    pub(super) fn collect_lines(mut self, lines: Arc<Mutex<Vec<String>>>) -> Result<()> {
        self.0.get_mut().set_read_timeout(None)?;
        thread::spawn(move || {
            for line in self.0.lines().map_while(Result::ok) {
                lines.lock().push(line);
            }
        });
        Ok(())
    }

    /// Reads one reply, and adds the items of the reply to the lines.
    fn read_reply(&mut self, lines: &mut Vec<String>) -> Result<()> {
        let mut head = String::new();
        self.0.read_line(&mut head)?;
        let head = head.trim_end();
        let (kind, rest) = head.split_at_checked(1).context("the end of the replies")?;
        match kind {
            "+" | "-" | ":" => lines.push(rest.to_owned()),
            "$" if rest == "-1" => lines.push(String::new()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                lines.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            "*" => {
                for _ in 0..rest.parse::<i64>()? {
                    self.read_reply(lines)?;
                }
            }
            _ => bail!("not a reply: {head}"),
        }
        Ok(())
    }
}

/// The commands of clients, as the server reports them.
#[derive(Debug)]
pub struct RedisMonitor(pub(super) Arc<Mutex<Vec<String>>>);

impl RedisMonitor {
    /// Returns all commands that clients have sent since the start of the monitor, one command on
    /// each line. Commands inside scripts do not count.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let lines = self.0.lock();
        // A line is `1700000000.000000 [0 127.0.0.1:40000] "GET" "key"`. For a script, the line has
        // `lua` in place of the address.
        let sent = |line: &&String| line.contains(" [") && !line.contains(" lua] ");
        lines.iter().filter(sent).cloned().collect()
    }
}
