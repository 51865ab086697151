//! Finding the primary that serves a key, asking it, and asking again.

mod ask;
mod call;
mod primaries;
mod router;

pub(crate) use self::{
    ask::Response,
    call::Call,
    primaries::{MaxAge, OpenMode, Primaries},
    router::Router,
};
