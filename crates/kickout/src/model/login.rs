//! The request of a login, and the answers of a login without a session.

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
}
