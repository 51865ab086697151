//! Waiting for a lock: the contender, its entry in the store queue, and the handling of spurious
//! pushes.
//!
//! Waiters rely on the server's pushes and on a rare poll. Waiters never poll in a tight loop.

mod contender;
mod queue_entry;

pub(crate) use self::{
    contender::RedisContender,
    queue_entry::{queue_call, read_labels, waiters_of},
};
