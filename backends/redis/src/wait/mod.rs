//! Waiting for locks.

mod contender;
mod line;

pub(crate) use self::contender::RedisContender;
