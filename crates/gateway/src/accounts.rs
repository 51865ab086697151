//! The accounts that one request names.
//!
//! Invariant of this module: a list is never longer than [`MAX_ACCOUNTS`], and names no account
//! twice. This module must never let more requests about many accounts run than logins can bear.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result, at_most};
use distlock_kickout::Uid;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most accounts in one request.
pub(crate) const MAX_ACCOUNTS: usize = 1000;

/// Several accounts, in the order of the request. An account that the request names twice is there
/// once.
#[derive(Debug)]
pub(crate) struct Accounts(Vec<Uid>);

impl Accounts {
    /// Takes the accounts of a request.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for more than [`MAX_ACCOUNTS`], and the first error among
    /// `uids`.
    pub(crate) fn new(uids: impl IntoIterator<Item = Result<Uid>>) -> Result<Self> {
        let (mut accounts, mut known) = (Vec::new(), HashSet::new());
        for (number, uid) in uids.into_iter().enumerate() {
            if number == MAX_ACCOUNTS {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("more than {MAX_ACCOUNTS} accounts: send several requests"),
                ));
            }
            let uid = uid?;
            if known.insert(uid.clone()) {
                accounts.push(uid);
            }
        }
        Ok(Self(accounts))
    }

    pub(crate) fn uids(&self) -> &[Uid] {
        &self.0
    }
}

/// Most requests about many accounts that run at the same time, of one kind.
const MAX_RUNNING: usize = 4;
/// Longest wait of such a request for its turn.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The turns of requests about many accounts. Such a request makes many reads of the store, and
/// logins use the same store.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

impl Turns {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(MAX_RUNNING)),
            clock,
        }
    }

    /// Waits for a turn, which lasts until the permit is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if no turn comes in time.
    pub(crate) async fn take(&self) -> Result<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).acquire_owned();
        let place = at_most(&*self.clock, LONGEST_WAIT, place).await;
        place.and_then(std::result::Result::ok).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "nothing was done: {MAX_RUNNING} such requests about many accounts are in \
                     progress, and none ended within {LONGEST_WAIT:?}"
                ),
            )
        })
    }
}

/// One account, or several.
#[derive(Debug)]
pub(crate) enum Receivers {
    One(Uid),
    Many(Accounts),
}

impl<'de> Deserialize<'de> for Accounts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        match from.deserialize_seq(ReceiversVisitor)? {
            Receivers::Many(accounts) => Ok(accounts),
            Receivers::One(_) => Err(de::Error::custom("a list of accounts is needed")),
        }
    }
}

impl<'de> Deserialize<'de> for Receivers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(ReceiversVisitor)
    }
}

/// Reads a text as one account and a list as several. A list that is too long is not read to its
/// end.
struct ReceiversVisitor;

impl<'de> Visitor<'de> for ReceiversVisitor {
    type Value = Receivers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an account or a list of accounts")
    }

    fn visit_str<E: de::Error>(self, uid: &str) -> std::result::Result<Receivers, E> {
        Uid::new(uid).map(Receivers::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Receivers, A::Error> {
        let mut unreadable = None;
        let uids = std::iter::from_fn(|| {
            let next = list.next_element::<String>();
            next.unwrap_or_else(|error| {
                unreadable = Some(error);
                None
            })
        });
        let accounts = Accounts::new(uids.map(Uid::new)).map_err(de::Error::custom);
        match unreadable {
            Some(error) => Err(error),
            None => accounts.map(Receivers::Many),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_bounded_and_names_no_account_twice() {
        let read = |json: &str| {
            let accounts = serde_json::from_str::<Accounts>(json);
            accounts.map(|it| {
                it.uids()
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(read(r#"["b", "a", "b"]"#).unwrap(), ["b", "a"]);
        assert_eq!(read("[]").unwrap(), [""; 0]);
        let long = |number: usize| {
            let uids: Vec<_> = (0..number).map(|it| format!("u{it}")).collect();
            serde_json::to_string(&uids).unwrap()
        };
        assert_eq!(read(&long(MAX_ACCOUNTS)).unwrap().len(), MAX_ACCOUNTS);
        for (bad, says) in [
            (&*long(MAX_ACCOUNTS + 1), "more than 1000 accounts"),
            (
                &*serde_json::to_string(&vec!["a"; MAX_ACCOUNTS + 1]).unwrap(),
                "more than 1000",
            ),
            (r#"["a", ""]"#, "uid is empty"),
            (&*format!(r#"["{}"]"#, "x".repeat(129)), "128"),
            (r#"["a", 7]"#, "expected a string"),
            (r#""a""#, "a list of accounts"),
            (r#"["a""#, "EOF"),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
        assert!(matches!(
            serde_json::from_str(r#""a""#),
            Ok(Receivers::One(_))
        ));
        assert!(matches!(
            serde_json::from_str(r#"["a"]"#),
            Ok(Receivers::Many(_))
        ));
        assert!(serde_json::from_str::<Receivers>("7").is_err());
    }
}
