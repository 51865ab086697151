//! Identifiers: accounts, devices, nodes, incarnations, sessions.
//!
//! Each identifier is checked when it is made, so the rest of the flow never gets an invalid one.

use std::{fmt, net::IpAddr, sync::Arc};

use distlock_core::{Error, ErrorKind, LockName, RecordKey, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Defines a type for a text with limits on its length.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $min:literal ..= $max:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Longest allowed text in bytes.
            pub const MAX_BYTES: usize = $max;

            /// Makes the value if the text follows the rules.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidArgument`]; the message names the broken rule.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                check_text($what, text.as_ref(), $min, $max)?;
                Ok(Self(text.as_ref().into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0.as_ref().into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_type! {
    /// An account: 1 to 128 bytes of UTF-8 without control characters, compared byte for byte.
    Uid, "uid", 1..=128
}
text_type! {
    /// A device, by the name that people give it: `phone`, `Anna's tablet`; 1 to 64 bytes.
    Device, "device", 1..=64
}
text_type! {
    /// The class of a device, for policies that count per class; 0 to 32 bytes.
    Class, "class", 0..=32
}
text_type! {
    /// The version of a client's program, as the client names it: `web 2.14.0`; 1 to 64 bytes.
    ClientVersion, "version", 1..=64
}

/// Where a session's client is, and what it runs. For display: nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// The address that the client logged in from, without its port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The version of the client's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ClientVersion>,
}

impl Uid {
    /// The name of the account's lock. Only this function builds that name.
    pub(crate) fn lock_name(&self) -> Result<LockName> {
        LockName::new(format!("user/{self}"))
    }

    /// The key of the account's record. Only this function builds that key.
    pub(crate) fn record_key(&self) -> Result<RecordKey> {
        RecordKey::new(format!("sess/{self}"))
    }
}

impl Class {
    /// No class.
    #[must_use]
    pub fn none() -> Self {
        Self("".into())
    }
}

/// A node's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, unique among the nodes of one store.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Makes a name if it follows the rules.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`]; the message names the broken rule.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check_text("node name", name, 1, 64)?;
        if let Some(bad) = name
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c))
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("node name has {bad:?}: only A-Z a-z 0-9 . _ - are allowed"),
            ));
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the lock that is the node's lease.
    pub(crate) fn lock_name(&self) -> Result<LockName> {
        LockName::new(format!("node/{self}"))
    }
}

impl TryFrom<String> for NodeId {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<NodeId> for String {
    fn from(name: NodeId) -> Self {
        name.0.as_ref().into()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Defines a type for a number that only rises.
macro_rules! number_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Makes the value from a number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_type! {
    /// One incarnation of a node: the fencing token of its lease. The number rises with each start
    /// of the node and never repeats.
    Boot
}
number_type! {
    /// The account's generation. The number rises with each granted login, across logouts, restarts
    /// and failovers.
    Generation
}

/// The id of one login on one connection: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Uuid);

impl SessionId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Makes the id from a UUID.
    #[must_use]
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// The id as a UUID.
    #[must_use]
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl std::str::FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text).map(Self).map_err(|_| {
            Error::new(
                ErrorKind::InvalidArgument,
                "session id is not a UUID".to_owned(),
            )
        })
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of a session. Every delete, refresh, kick and delivery carries all three fields,
/// and the target compares all three.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    /// The node of the session.
    pub node: NodeId,
    /// The incarnation of that node.
    pub boot: Boot,
    /// The session.
    pub session: SessionId,
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.node, self.boot, self.session)
    }
}

/// Refuses a text that is too short, too long, or has a control character. The error calls the text
/// by the name in `what`.
fn check_text(what: &str, text: &str, min: usize, max: usize) -> Result<()> {
    let problem = if text.len() < min {
        format!("{what} is empty: {min} to {max} bytes are allowed")
    } else if text.len() > max {
        format!(
            "{what} is {} bytes long: at most {max} are allowed",
            text.len()
        )
    } else if let Some(at) = text.find(char::is_control) {
        format!("{what} has a control character at byte {at}")
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidArgument, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identifier_enforces_its_limits() {
        assert!(Uid::new("").is_err());
        assert!(Uid::new("x".repeat(128)).is_ok());
        assert!(Uid::new("x".repeat(129)).is_err());
        assert!(Uid::new("a\u{7}").is_err());
        assert!(Uid::new("a\u{85}").is_err());
        assert!(Uid::new("10/7 % ü").is_ok());
        assert!(Class::new("").is_ok());
        assert!(Device::new("").is_err());
        assert!(NodeId::new("n-1.eu_west").is_ok());
        for bad in ["", "n/1", "n 1", "ü"] {
            assert!(NodeId::new(bad).is_err(), "{bad}");
        }
        let error = serde_json::from_str::<Uid>("\"\"").unwrap_err();
        assert!(error.to_string().contains("uid is empty"), "{error}");
    }

    #[test]
    fn the_longest_uid_fits_its_lock_and_its_record() {
        let uid = Uid::new("x".repeat(Uid::MAX_BYTES)).unwrap();
        assert_eq!(uid.lock_name().unwrap().as_str(), format!("user/{uid}"));
        assert_eq!(uid.record_key().unwrap().as_str(), format!("sess/{uid}"));
    }
}
