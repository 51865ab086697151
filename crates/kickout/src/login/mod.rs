//! Login: from the request to the admitted session.
//!
//! A login changes the directory only by one conditional write under the account's lock.

pub(crate) mod admission;
pub(crate) mod attempt;
pub(crate) mod confirm;
pub(crate) mod context;
pub(crate) mod grant;
pub(crate) mod idle;
pub(crate) mod outcome;
pub(crate) mod profiles;
pub(crate) mod queue;
pub(crate) mod rates;
