//! A request to a server without any client library.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Time-out for the answer of a server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the answer of a server, up to the end of the connection or until `is_enough` accepts it.
pub(super) async fn ask_server(
    server: SocketAddr,
    question: &str,
    is_enough: impl Fn(&str) -> bool,
) -> Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        let mut part = [0; 1024];
        while !is_enough(&answer) {
            let read = stream.read(&mut part).await?;
            if read == 0 {
                break;
            }
            answer.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        Ok(answer)
    };
    timeout(ANSWER_TIMEOUT, asking).await?
}
