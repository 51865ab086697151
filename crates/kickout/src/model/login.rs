//! The request of a login, and the reasons why a login ends without a session.

use crate::model::{
    ident::{Class, Device, Generation, Uid},
    intent::Intent,
    notice::Code,
};

/// Who logs in. The caller has checked that the client is this account.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Login {
    /// The account.
    pub uid: Uid,
    /// The device, as people see it.
    pub device: Device,
    /// The kind of device.
    pub class: Class,
    /// What the client wants.
    pub intent: Intent,
    /// The resume token of the session the client had, for [`Intent::Resume`].
    pub resume: Option<String>,
    /// Whether the client acknowledges messages.
    pub acks: bool,
}

/// Why a login was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// Why.
    pub code: Code,
    /// Why, for people.
    pub reason: String,
    /// The device in the way.
    pub by_device: Option<Device>,
}

/// The login that came first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overtaken {
    /// Its device, where it is known.
    pub by_device: Option<Device>,
    /// Its generation, where it has one already.
    pub r#gen: Option<Generation>,
}

impl Denied {
    /// A denial in the words of its code.
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
        }
    }

    /// Another intent, with the resume token where that has one.
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
}
