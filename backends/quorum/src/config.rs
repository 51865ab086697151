//! The members and the longest lease, from a URL or a configuration, checked.

use std::{pin::Pin, time::Duration};

use distlock_backend_kit::{DriverOption, Drivers, MemberHandle, MemberTarget, TargetParts};
use distlock_core::{Error, ErrorKind, Finding, Result};

use crate::{marker::Agreement, shared::NAME};

pub(crate) const MEMBER: DriverOption = DriverOption::new(
    "member",
    "`NAME=URL`, given 3, 5 or 7 times: a member. The name stays when the address or the password \
     changes",
    "",
);

pub(crate) const MAX_LEASE: DriverOption = DriverOption::new(
    "max_lease",
    "1 s to 24 h: the longest lease. A member that has lost its memory is silent for 1.25 times as \
     long. All clients have the same value",
    "60s",
);

const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);

/// The members of a quorum, and what they have agreed on.
#[derive(Debug)]
pub(crate) struct QuorumConfig {
    pub(crate) members: Vec<MemberTarget>,
    pub(crate) agreement: Agreement,
}

impl QuorumConfig {
    pub(crate) fn from_parts(mut parts: TargetParts, drivers: &Drivers) -> Result<Self> {
        if !parts.body.is_empty() {
            return Err(parts.wrong(format_args!(
                "the members of a quorum stand after the `?`, as in \
                 quorum:?member=a=redis://HOST&member=.., and \"{}\" is given",
                parts.masked_url().escape_debug()
            )));
        }
        let range = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
        let mut options = std::mem::take(&mut parts.options);
        let max_lease = options.take_duration(MAX_LEASE.name, range)?;
        let members = MemberTarget::take_list(
            &mut options,
            MEMBER.name,
            NAME,
            &parts.clock,
            drivers,
            refusal,
        )?;
        options.finish(NAME)?;
        if ![3, 5, 7].contains(&members.len()) {
            return Err(parts.wrong(format_args!(
                "a quorum has 3, 5 or 7 members, and {} are given (option `member`)",
                members.len()
            )));
        }
        let names = members.iter().map(|member| member.name.clone());
        let agreement = Agreement::new(names, max_lease.unwrap_or(DEFAULT_MAX_LEASE));
        Ok(Self { members, agreement })
    }
}

/// The reason why a store of this scheme can be no member.
fn refusal(scheme: &str) -> Option<&'static str> {
    match scheme {
        "quorum" => Some("a quorum can be no member of a quorum"),
        "zookeeper" => Some(
            "an ensemble of ZooKeeper is a quorum already, and its leases and tokens are of \
             another kind",
        ),
        "redis+cluster" => Some(
            "a marker is on one shard of a Redis Cluster and says nothing about the others; use \
             single Redis servers",
        ),
        _ if scheme.starts_with("kv+") => Some(
            "a lock over records loses a raised token together with its record; leave out `kv+`",
        ),
        _ => None,
    }
}

/// Checks what only an opened member tells: whether it can raise tokens, and whether it keeps what
/// it has granted. A store that forgets without a new epoch would vote as if it had forgotten
/// nothing.
pub(crate) fn check_member(
    member: MemberHandle,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> {
    Box::pin(async move {
        let capabilities = member.lock.capabilities();
        let refused = |problem| Err(Error::new(ErrorKind::InvalidConfig, problem).on(NAME));
        if !capabilities.token_floor {
            return refused(format!(
                "{} cannot raise the token of a lock, so it can be no member",
                capabilities.backend
            ));
        }
        let health = member.lock.health().await?;
        match health.findings.iter().find(|finding| finding.may_forget) {
            Some(Finding { check, detail, .. }) => refused(format!(
                "a store that may forget what it has granted can be no member: {check} is {detail}"
            )),
            None => Ok(()),
        }
    })
}
