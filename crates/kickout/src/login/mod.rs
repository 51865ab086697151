//! Login: from the request to the admitted session.

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
