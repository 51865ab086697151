//! The codec of the calls: that of prost, which decodes a message only if it has few parts.
//!
//! A part of two bytes can become a value of some hundred bytes, so the limit of bytes alone does
//! not bound what a message takes in memory. Invariant: a message with more than [`MAX_PARTS`]
//! parts is never decoded.

use std::marker::PhantomData;

use prost::{Message, bytes::Buf as _, decode_length_delimiter};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::limits::MAX_PARTS;

/// The codec of a call that sends `T` and receives `U`.
#[derive(Debug)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<fn(T) -> U>);

/// The decoder of received messages.
#[derive(Debug)]
pub(crate) struct BoundedDecoder<U>(ProstDecoder<U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstDecoder::default())
    }
}

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic hands a message over in one piece. Of one in pieces, only the first is counted.
        if has_more_parts(message.chunk(), MAX_PARTS) {
            return Err(Status::out_of_range(format!(
                "the message has more than {MAX_PARTS} parts: send several"
            )));
        }
        self.0.decode(message)
    }
}

/// Whether the fields of a message are more than this many, those inside of its fields not counted.
/// A message that is cut off or wrong is counted as far as it can be read: its decoding fails.
fn has_more_parts(mut message: &[u8], most: usize) -> bool {
    for _ in 0..most {
        let Ok(key) = decode_length_delimiter(&mut message) else {
            return false;
        };
        let content = match key & 7 {
            0 => message
                .iter()
                .position(|byte| *byte < 0x80)
                .map(|at| at + 1),
            1 => Some(8),
            2 => decode_length_delimiter(&mut message).ok(),
            5 => Some(4),
            // The begin or the end of a group.
            _ => Some(0),
        };
        let Some(rest) = content.and_then(|length| message.get(length..)) else {
            return false;
        };
        message = rest;
    }
    !message.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn the_parts_of_a_message_are_counted_without_their_content() {
        let frame = |operations| v1::ClientFrame {
            hello: Some(v1::Hello::default()),
            operations: vec![
                v1::Operation {
                    id: u64::MAX,
                    operation: Some(v1::operation::Operation::Get(v1::ReadRecords {
                        keys: vec!["key".to_owned(); 9],
                    })),
                };
                operations
            ],
        };
        let counted = |operations, most| has_more_parts(&frame(operations).encode_to_vec(), most);
        assert!(!counted(5, 6) && counted(6, 6));
        let numbers = v1::Limits {
            frame_bytes: u32::MAX,
            operations: 1,
        };
        let numbers = numbers.encode_to_vec();
        assert!(!has_more_parts(&numbers, 2) && has_more_parts(&numbers, 1));
        // A number of eight bytes, one of four, and a group.
        let others = [9, 1, 2, 3, 4, 5, 6, 7, 8, 13, 1, 2, 3, 4, 19, 20];
        assert!(!has_more_parts(&others, 4) && has_more_parts(&others, 3));
        for end in 0..others.len() {
            assert!(!has_more_parts(&others[..end], 4), "{end}");
        }
        assert!(!has_more_parts(&[0xff; 64], 4));
    }
}
