//! Waiting for locks.

mod contender;
mod line;
mod pushes;

pub(crate) use self::contender::RedisContender;
