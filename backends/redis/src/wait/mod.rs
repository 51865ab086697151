//! Waiting for locks.

mod contender;
mod queue_entry;
mod spurious_pushes;

pub(crate) use self::contender::RedisContender;
