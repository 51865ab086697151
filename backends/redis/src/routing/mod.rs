//! Finds the primary that serves a key, sends requests to it, and sends them again when the server
//! asks for that.
//!
//! A request is sent again only if the server refused it, never after an unknown outcome.

mod ask;
mod call;
mod router;

pub(crate) use self::{
    ask::Response,
    call::Call,
    router::{MaxAge, OpenMode, Primaries, Router},
};
