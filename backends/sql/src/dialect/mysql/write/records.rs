//! Writing and deleting records.

use distlock_core::{Deleted, Result, Written};

use crate::{dialect::mysql::rows, op::Answer};

pub(super) fn written(version: Option<u64>) -> Result<Answer> {
    Ok(Answer::Written(match version {
        Some(version) => Written::Stored(rows::version(version)?),
        None => Written::Conflict,
    }))
}

pub(super) fn deleted(changed: Option<u64>) -> Answer {
    Answer::Deleted(match changed {
        Some(_) => Deleted::Done,
        None => Deleted::Conflict,
    })
}
