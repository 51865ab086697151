//! Every statement that is sent in normal operation.
//!
//! A statement's text has a `?` for each value. The frequent statements are prepared. In a text,
//! values are numbers or hexadecimal literals (see `literals`). So no mode, quoting style or
//! character set of the server changes their meaning, and several statements travel in one round
//! trip. Each statement reports its outcome in its own result packet: the number of matched rows,
//! and its value for `LAST_INSERT_ID`.
//!
//! The time of a statement is the server's UTC clock when the statement began, so that a lease
//! whose row was waited for counts from before the wait. A statement may reach its row long after
//! its caller gave up, because another transaction had the row locked; its time is old then. It
//! must not shorten the lease that the holder was promised since. So an acquire of a lock that its
//! owner holds already only ever extends the lease. A renewal, which may be meant to shorten it,
//! counts from the moment when it has the row.

mod changes;
mod expressions;
mod inventory;
mod literals;
mod queries;
mod queue;
mod reaping;
mod set;
mod statement;

pub(crate) use self::{
    changes::{MOST, READ_THE_ROWS},
    expressions::{NOW, WANTED},
    queries::Range,
    reaping::PAGE,
    set::Statements,
    statement::Statement,
};
