//! The members and the ring store, from a URL or a configuration, checked.

use std::{pin::Pin, time::Duration};

use distlock_backend_kit::{
    DriverOption, Drivers, MemberHandle, MemberTarget, Target, TargetParts,
};
use distlock_core::{Error, ErrorKind, LeaseKind, Reach, Result, Store};

use crate::{shared::NAME, view::LONGEST_LEASE};

pub(crate) const MEMBER: DriverOption = DriverOption::new(
    "member",
    "`NAME=URL`, once for each member. The name stays when the address or the password changes; a \
     lock belongs to a member by its name",
    "",
);

pub(crate) const RECORDS: DriverOption = DriverOption::new(
    "records",
    "the URL of the ring store, which has the list of the active members and the records of the \
     ring. It must not lose acknowledged writes",
    "",
);

pub(crate) const UNSAFE_RECORDS: DriverOption = DriverOption::new(
    "unsafe_records",
    "`true`: the ring store may lose acknowledged writes, as Redis Sentinel and Redis Cluster do, \
     or is a lock server, which does not tell. Two clients may then hold one lock after a change \
     of the members",
    "false",
);

/// The members of a ring, and its ring store.
#[derive(Debug)]
pub(crate) struct RingConfig {
    pub(crate) members: Vec<MemberTarget>,
    pub(crate) records: Target,
    unsafe_records: bool,
}

impl RingConfig {
    pub(crate) fn from_parts(mut parts: TargetParts, drivers: &Drivers) -> Result<Self> {
        if !parts.body.is_empty() {
            return Err(parts.wrong(format_args!(
                "the members of a ring stand after the `?`, as in \
                 ring:?records=URL&member=a=redis://HOST&member=.., and \"{}\" is given",
                parts.masked_url().escape_debug()
            )));
        }
        let mut options = std::mem::take(&mut parts.options);
        let unsafe_records = match options.take(UNSAFE_RECORDS.name) {
            None => false,
            Some(given) => match given.value.as_str() {
                "true" => true,
                "false" => false,
                _ => return Err(given.wrong("it is neither `true` nor `false`")),
            },
        };
        let records = match options.take(RECORDS.name) {
            None => {
                return Err(
                    parts.wrong("a ring needs the URL of its ring store (option `records`)")
                );
            }
            Some(given) => {
                let target = Target::new(&given.value)
                    .from_origin(given.origin.clone())
                    .clock(parts.clock.clone());
                let scheme = target.scheme().unwrap_or_default();
                if let Some(reason) = refused_records(&scheme, unsafe_records) {
                    return Err(given.wrong(reason));
                }
                drivers.check(target.clone()).map_err(of_records)?;
                target
            }
        };
        let clock = &parts.clock;
        let members =
            MemberTarget::take_list(&mut options, MEMBER.name, NAME, clock, drivers, refusal)?;
        options.finish(NAME)?;
        if members.is_empty() {
            return Err(parts.wrong("a ring has at least one member (option `member`)"));
        }
        Ok(Self {
            members,
            records,
            unsafe_records,
        })
    }

    /// Opens the ring store, and checks what only an opened store tells. Returns also how long
    /// before a crash a write may be lost with it, for [`check_lease`].
    pub(crate) async fn open_records(&self, drivers: &Drivers) -> Result<(Store, Duration)> {
        let store = drivers
            .open_parts(self.records.parts()?)
            .await
            .map_err(of_records)?;
        match self.check_records(&store).await {
            Ok(loses) => Ok((store, loses)),
            Err(error) => {
                store.close().await;
                Err(of_records(error))
            }
        }
    }

    async fn check_records(&self, store: &Store) -> Result<Duration> {
        let refused = |problem: String| Err(Error::new(ErrorKind::InvalidConfig, problem));
        if !store.records().tells_ages() {
            return refused("it does not tell the age of its records".to_owned());
        }
        if store.backend().capabilities().reach == Reach::Host {
            return refused(
                "it is a file of one host, whose clock begins anew with each boot".to_owned(),
            );
        }
        if self.unsafe_records {
            return Ok(Duration::ZERO);
        }
        let findings = store.backend().health().await?.findings;
        // A store that loses writes has another epoch then, which protects locks, and no record.
        let mut forgets = findings
            .iter()
            .filter(|it| it.may_forget || it.loses >= LONGEST_LEASE);
        match forgets.next() {
            Some(finding) => refused(format!(
                "it may forget the view of the ring ({}): {}",
                finding.check, finding.detail
            )),
            None => Ok(findings.iter().map(|it| it.loses).max().unwrap_or_default()),
        }
    }
}

/// Checks that a crash of the ring store cannot take back a view by which a name that moved was
/// granted: clients that start after the crash use the view before. `loses` is how long before a
/// crash a write may be lost with it.
///
/// A client grants such a name V + L after the change, by a view that it has read in the last V. So
/// the ring store has kept the change for L.
pub(crate) fn check_lease(loses: Duration, max_lease: Duration) -> Result<()> {
    if loses < max_lease {
        return Ok(());
    }
    let problem = format!(
        "the longest lease of the ring is {max_lease:?}, and must be longer than {loses:?}: a \
         crash may take back what was written so long before it"
    );
    Err(of_records(Error::new(ErrorKind::InvalidConfig, problem)))
}

/// The error of the ring store.
fn of_records(error: Error) -> Error {
    Error::new(error.kind(), "the ring store")
        .on(NAME)
        .caused_by(error)
}

/// The reason why a store of this scheme can be no member.
fn refusal(scheme: &str) -> Option<&'static str> {
    match scheme {
        "ring" => Some("a ring can be no member of a ring"),
        "quorum" => Some("a quorum has other tokens than a ring, and cannot raise them"),
        "zookeeper" => Some("the leases and tokens of ZooKeeper are of another kind"),
        _ if scheme.starts_with("kv+") => Some(
            "a lock over records loses a raised token together with its record; leave out `kv+`",
        ),
        _ => None,
    }
}

/// The reason why a store of this scheme can be no ring store.
fn refused_records(scheme: &str, is_unsafe: bool) -> Option<&'static str> {
    match scheme {
        "ring" | "quorum" => Some("its members have no common records"),
        "zookeeper" => Some("the records of ZooKeeper do not tell their age"),
        "distlock" if !is_unsafe => Some(
            "a lock server does not tell whether its store may forget a record; name that store, \
             or accept the risk with `unsafe_records=true`",
        ),
        "redis+cluster" | "redis+sentinel" if !is_unsafe => Some(
            "a failover can lose an acknowledged write, and two clients may then hold one lock; \
             `unsafe_records=true` accepts that",
        ),
        _ => None,
    }
}

/// Checks what only an opened member tells.
pub(crate) fn check_member(
    member: MemberHandle,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
    Box::pin(async move {
        let capabilities = member.lock.capabilities();
        if capabilities.token_floor && capabilities.lease == LeaseKind::Ttl {
            return Ok(());
        }
        let problem = format!(
            "{} cannot raise the token of a lock, so it can be no member",
            capabilities.backend
        );
        Err(Error::new(ErrorKind::InvalidConfig, problem).on(NAME))
    })
}
