//! What a session sends, and the frame that it is gathered in.

use distlock_wire::{
    ANSWER_BYTES, MAX_PARTS,
    v1::{self, answer, push},
};
use prost::Message as _;

/// The room that an answer without a list or a value takes at most.
const SMALL: usize = 512;

/// The room that the smallest answer takes. So no frame has as many answers as would have the
/// client refuse it.
const LEAST: usize = 2 * ANSWER_BYTES / MAX_PARTS;

/// Something that a session sends to its client.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Answer(u64, answer::Answer),
    Push(push::Push),
}

/// The next frame.
#[derive(Debug, Default)]
pub(super) struct NextFrame {
    frame: v1::ServerFrame,
    bytes: usize,
}

impl NextFrame {
    pub(super) fn add(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Answer(id, answer) => {
                self.bytes += size_of_answer(&answer).max(LEAST);
                let answer = Some(answer);
                self.frame.answers.push(v1::Answer { id, answer });
            }
            Outgoing::Push(push) => {
                self.bytes += SMALL;
                self.frame.pushes.push(v1::Push { push: Some(push) });
            }
        }
    }

    /// Whether the frame must be sent before anything else is added.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes >= ANSWER_BYTES
    }

    /// The frame, if there is anything in it.
    pub(super) fn take(&mut self) -> Option<v1::ServerFrame> {
        self.bytes = 0;
        let frame = std::mem::take(&mut self.frame);
        let is_empty = frame.answers.is_empty() && frame.pushes.is_empty();
        (!is_empty).then_some(frame)
    }
}

/// The bytes of an answer. Only the answers that can be large are measured.
fn size_of_answer(answer: &answer::Answer) -> usize {
    match answer {
        answer::Answer::Inspect(it) => it.encoded_len(),
        answer::Answer::List(it) => it.encoded_len(),
        answer::Answer::Health(it) => it.encoded_len(),
        answer::Answer::Get(it) => it.encoded_len(),
        answer::Answer::Scan(it) => it.encoded_len(),
        answer::Answer::Error(it) => it.encoded_len(),
        answer::Answer::Acquire(it) => it.encoded_len(),
        _ => SMALL,
    }
}
