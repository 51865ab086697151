//! The pieces of messages that have not arrived whole.
//!
//! A client may send a message piece by piece, and the server keeps the pieces until the message is
//! whole. A limit of one message does not bound what many of them keep. Invariant: the pieces of
//! all clients together stay below a limit. A message that arrives in one piece is never refused
//! here.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::StreamExt as _;
use http_body_util::{BodyStream, StreamBody};
use tonic::{Status, body::Body, codegen::http::Request};

use crate::meters;

/// The length of the head of a message: a flag, and the length of the rest.
const HEAD: usize = 5;

/// The pieces of all clients.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    kept: Arc<AtomicUsize>,
    most: usize,
}

/// The message of a call that arrives now.
#[derive(Debug)]
struct Unfinished {
    all: Pieces,
    head: [u8; HEAD],
    /// The bytes of the message that have arrived, its head among them.
    kept: usize,
}

impl Pieces {
    /// At most this many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            kept: Arc::default(),
            most,
        }
    }

    /// The same request. Its body ends with an error once its pieces are too many.
    pub(crate) fn watch(&self, request: Request<Body>) -> Request<Body> {
        let mut message = Unfinished {
            all: self.clone(),
            head: [0; HEAD],
            kept: 0,
        };
        request.map(|body| {
            let frames = BodyStream::new(body).map(move |frame| {
                let frame = frame?;
                if let Some(data) = frame.data_ref() {
                    message.add(data)?;
                }
                Ok::<_, Status>(frame)
            });
            Body::new(StreamBody::new(frames))
        })
    }
}

impl Unfinished {
    /// Follows the messages in these bytes. tonic takes each message as soon as it is whole.
    fn add(&mut self, mut data: &[u8]) -> Result<(), Status> {
        let before = self.kept;
        while let Some(byte) = data.first() {
            let taken = if self.kept < HEAD {
                self.head[self.kept] = *byte;
                1
            } else {
                data.len().min(self.length() - self.kept)
            };
            self.kept += taken;
            data = &data[taken..];
            if self.kept >= HEAD && self.kept == self.length() {
                self.kept = 0;
            }
        }
        let all = &self.all.kept;
        if self.kept <= before {
            all.fetch_sub(before - self.kept, Ordering::Relaxed);
            return Ok(());
        }
        let more = self.kept - before;
        if all.fetch_add(more, Ordering::Relaxed) + more > self.all.most {
            meters::count_refusal("unfinished");
            return Err(Status::resource_exhausted(format!(
                "messages that have not arrived whole keep {} bytes at this server, and no more \
                 may: try again later, or send less at a time",
                self.all.most
            )));
        }
        Ok(())
    }

    /// The length of the message and its head, once the head has arrived.
    fn length(&self) -> usize {
        let [_, rest @ ..] = self.head;
        let rest = usize::try_from(u32::from_be_bytes(rest)).unwrap_or(usize::MAX);
        rest.saturating_add(HEAD)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.all.kept.fetch_sub(self.kept, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pieces_of_unfinished_messages_are_kept_and_all_are_given_back() {
        let all = Pieces::new(100);
        let message = || Unfinished {
            all: all.clone(),
            head: [0; HEAD],
            kept: 0,
        };
        let kept = || all.kept.load(Ordering::Relaxed);
        let (mut first, mut second) = (message(), message());
        let bytes = |length: u8| {
            let mut bytes = vec![0, 0, 0, 0, length];
            bytes.extend(vec![9; length.into()]);
            bytes
        };
        first
            .add(&[bytes(200), bytes(0), bytes(60)].concat())
            .unwrap();
        assert_eq!(kept(), 0);
        for byte in &bytes(60)[..64] {
            first.add(&[*byte]).unwrap();
        }
        assert_eq!(kept(), 64);
        second.add(&bytes(60)[..36]).unwrap();
        assert_eq!(
            second.add(&[9]).unwrap_err().code(),
            tonic::Code::ResourceExhausted
        );
        drop(second);
        first.add(&[&[9], &bytes(60)[..7]].concat()).unwrap();
        assert_eq!(kept(), 7);
        drop(first);
        assert_eq!(kept(), 0);
    }
}
