//! Taking locks.

use distlock_core::{AcquireRequest, Attempt, Grant, Result};

use super::Refusals;
use crate::{dialect::mysql::rows, op::Answer};

pub(super) fn answer(
    request: &AcquireRequest,
    token: Option<u64>,
    refusals: &Refusals,
) -> Result<Answer> {
    let Some(token) = token else {
        // No row any more: it was held when we asked.
        let row = refusals.row(&request.name)?;
        return Ok(Answer::Acquired(Attempt::Busy(
            row.and_then(|row| row.held),
        )));
    };
    let grant = Grant::new(
        rows::token(token)?,
        refusals.epoch.clone(),
        request.ttl.duration(),
    );
    Ok(Answer::Acquired(Attempt::Acquired(grant)))
}
