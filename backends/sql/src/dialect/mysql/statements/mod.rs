//! Every statement that is sent in normal operation.
//!
//! A statement's text has a `?` for each value. A frequent statement is prepared on the server. All
//! other statements are sent as text, in which each value is a number or a hexadecimal literal (see
//! `set`). So no mode, quoting style or character set of the server changes the meaning of a
//! value, and one round trip can carry several statements. Each statement reports its outcome in
//! its own result packet: the number of matched rows, and the value of `LAST_INSERT_ID`.
//!
//! The time of a statement is the server's UTC clock at the begin of the statement. So a lease
//! counts from a time before any wait for a locked row. If another transaction keeps the row
//! locked, a statement can change the row long after its caller gave up, with an old time. Such a
//! late statement must not shorten a lease that the owner has renewed since then. So an acquire
//! only extends a lease that the same owner already holds. A renewal can shorten a lease on
//! purpose; so a renewal counts from the time when its statement has locked the row.

mod changes;
mod queries;
mod set;

pub(crate) use self::{
    changes::{MOST, READ_THE_ROWS},
    queries::{PAGE, Range},
    set::{NOW, Statement, Statements, WANTED},
};
