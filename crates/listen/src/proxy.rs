//! The header of the PROXY protocol, by which a proxy in front of a server names its client.
//!
//! This module reads the header, and must never read a byte after the header, because that byte
//! belongs to TLS or to the front. Source:
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::{io, net::SocketAddr};

use ppp::{HeaderResult, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Longest line of version 1.
const LONGEST_LINE: usize = 107;
/// Bytes of the fixed part of version 2, and the most bytes that may follow the fixed part.
const FIXED: usize = 16;
const LONGEST_REST: usize = 2048;
/// The first bytes of version 2. A header of version 1 begins differently.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The first bytes of version 1.
const WORD: &[u8] = b"PROXY ";

/// The beginnings of a header.
pub const PROXY_BEGINNINGS: [&[u8]; 2] = [WORD, SIGNATURE];

/// Reads the header in front of a connection, and no byte after the header. `None` means that the
/// proxy opened the connection for itself, for example for a health check.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when the connection begins without a valid header.
pub async fn read_source(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let no_header = || {
        let why = "a connection began without the header of the PROXY protocol";
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let mut header = vec![0; SIGNATURE.len()];
    stream.read_exact(&mut header).await?;
    if header == SIGNATURE {
        header.resize(FIXED, 0);
        stream.read_exact(&mut header[SIGNATURE.len()..]).await?;
        let rest = usize::from(u16::from_be_bytes([header[14], header[15]]));
        if rest > LONGEST_REST {
            return Err(no_header());
        }
        header.resize(FIXED + rest, 0);
        stream.read_exact(&mut header[FIXED..]).await?;
    } else if header.starts_with(WORD) {
        while !header.ends_with(b"\r\n") {
            if header.len() == LONGEST_LINE {
                return Err(no_header());
            }
            // The line is read in single bytes, because the bytes after the line belong to the next
            // reader.
            header.push(stream.read_u8().await?);
        }
    } else {
        return Err(no_header());
    }
    match HeaderResult::parse(&header) {
        HeaderResult::V1(Ok(header)) => Ok(match header.addresses {
            v1::Addresses::Tcp4(it) => Some((it.source_address, it.source_port).into()),
            v1::Addresses::Tcp6(it) => Some((it.source_address, it.source_port).into()),
            v1::Addresses::Unknown => None,
        }),
        HeaderResult::V2(Ok(header)) if header.command == v2::Command::Local => Ok(None),
        HeaderResult::V2(Ok(header)) => Ok(match header.addresses {
            v2::Addresses::IPv4(it) => Some((it.source_address, it.source_port).into()),
            v2::Addresses::IPv6(it) => Some((it.source_address, it.source_port).into()),
            v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
        }),
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Err(no_header()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> (io::Result<Option<SocketAddr>>, usize) {
        let mut stream = bytes;
        let source = read_source(&mut stream).await;
        (source, stream.len())
    }

    #[tokio::test]
    async fn headers_of_both_versions_are_read_to_their_end() {
        let client: SocketAddr = "192.0.2.7:51000".parse().unwrap();
        let line = b"PROXY TCP4 192.0.2.7 198.51.100.1 51000 443\r\nrest";
        let (source, left) = read(line).await;
        assert_eq!((source.unwrap(), left), (Some(client), 4));
        let (source, left) = read(b"PROXY UNKNOWN\r\nrest").await;
        assert_eq!((source.unwrap(), left), (None, 4));
        let mut binary = SIGNATURE.to_vec();
        binary.extend([
            0x21, 0x11, 0, 12, 192, 0, 2, 7, 198, 51, 100, 1, 0xc7, 0x38, 1, 0xbb,
        ]);
        binary.extend(b"rest");
        let (source, left) = read(&binary).await;
        assert_eq!((source.unwrap(), left), (Some(client), 4));
        let mut local = SIGNATURE.to_vec();
        local.extend([0x20, 0, 0, 0]);
        assert_eq!(read(&local).await.0.unwrap(), None);
    }

    #[tokio::test]
    async fn bytes_that_are_no_header_are_refused() {
        let mut long = SIGNATURE.to_vec();
        long.extend([0x21, 0x11, 0xff, 0xff]);
        long.extend([0; 70_000]);
        for wrong in [
            &b"GET /ws HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.7 somewhere 1 2\r\n",
            &[b"PROXY TCP4 ".as_slice(), &[b'1'; 200], b"\r\n"].concat(),
            &long,
        ] {
            let error = read(wrong).await.0.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        let error = read(b"PROXY TCP4 192").await.0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
