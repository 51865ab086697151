//! The request of a login, what a login learns about older sessions, and the answers of a login
//! without a session.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Class, Device, Generation, Uid},
    intent::Intent,
    notice::Code,
};

/// A login request. The caller has checked that the client owns the account.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Login {
    /// The account.
    pub uid: Uid,
    /// The device, by the name that people give it.
    pub device: Device,
    /// The class of the device.
    pub class: Class,
    /// The intent of the client.
    pub intent: Intent,
    /// The resume token of the client's last session, for [`Intent::Resume`].
    pub resume: Option<String>,
    /// Whether the client acknowledges messages.
    pub acks: bool,
    /// Whether the program of the session says when it has saved.
    pub saves: bool,
}

/// The part that confirmed, before a login was answered, that the older sessions have ended. With
/// several older sessions this is the weakest confirmation. The order is that of the guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConfirmedBy {
    /// The node of an older session did not answer within the time. The session may still send,
    /// receive and save, until its node finds the login or its lease ends.
    Nobody,
    /// The node of each older session has ended it, or the lease of that node has ended. No older
    /// session can send or receive. The program of an older session may still be saving.
    Node,
    /// The program of each older session has said that it has saved. This is also the answer if no
    /// session had to end.
    Program,
}

/// The reason why a login was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// The reason as a code.
    pub code: Code,
    /// The reason, for people.
    pub reason: String,
    /// The device whose session is in the way.
    pub by_device: Option<Device>,
}

/// The newer login that replaced a login.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overtaken {
    /// The device of the newer login, if it is known.
    pub by_device: Option<Device>,
    /// The generation of the newer login, if that login is granted already.
    pub r#gen: Option<Generation>,
}

impl Denied {
    /// A denial with the standard text of its code.
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self {
            code,
            reason: code.text().into(),
            by_device: None,
        }
    }
}

impl Login {
    /// An ordinary login.
    #[must_use]
    pub const fn new(uid: Uid, device: Device, class: Class) -> Self {
        Self {
            uid,
            device,
            class,
            intent: Intent::Login,
            resume: None,
            acks: false,
            saves: false,
        }
    }

    /// Sets the intent, and the resume token that belongs to it.
    #[must_use]
    pub fn intent(mut self, intent: Intent, resume: Option<String>) -> Self {
        self.intent = intent;
        self.resume = resume;
        self
    }

    /// Whether the client acknowledges messages; unless set, it does not.
    #[must_use]
    pub const fn acks(mut self, acks: bool) -> Self {
        self.acks = acks;
        self
    }

    /// Whether the program of the session calls [`Session::saved`](crate::Session::saved) when it
    /// has saved; unless set, it does not. When such a session ends, the login that ended it waits
    /// for that call, for up to [`Timers::save_budget`](crate::Timers::save_budget).
    #[must_use]
    pub const fn saves(mut self, saves: bool) -> Self {
        self.saves = saves;
        self
    }
}

impl fmt::Display for ConfirmedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Node => "node",
            Self::Program => "program",
        })
    }
}
