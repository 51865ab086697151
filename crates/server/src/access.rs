//! What clients may do, by their tokens.
//!
//! A token is a JSON Web Token that a key of this server has signed. It names prefixes of locks and
//! records, and groups of operations. Invariant: with keys, no operation reaches the store unless a
//! token allows it. This module must never repeat a token in an error.

use std::{str::FromStr, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result, excerpt};
use distlock_listen::{
    TokenKeys,
    jwt::{Audience, Times, TokenProblem, unix_seconds},
};
use distlock_wire::v1::{self, operation::Operation as Asked};
use serde::{Deserialize, Serialize};
use tonic::{Status, metadata::MetadataMap};
use uuid::Uuid;

use crate::meters;

const ISSUER: &str = "distlock";
const AUDIENCE: &str = "distlock-server";
/// The longest life of a token.
const LONGEST_TOKEN: Duration = Duration::from_secs(366 * 24 * 3600);

/// A group of operations that a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationGroup {
    /// Acquire, wait, renew and hand over.
    Acquire,
    /// Release.
    Release,
    /// Inspect and list locks.
    Inspect,
    /// Force-release.
    ForceRelease,
    /// Read, write and list records.
    Records,
}

impl OperationGroup {
    /// All groups.
    pub const ALL: [Self; 5] = [
        Self::Acquire,
        Self::Release,
        Self::Inspect,
        Self::ForceRelease,
        Self::Records,
    ];

    /// The name of the group in a token.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::ForceRelease => "force-release",
            Self::Records => "records",
        }
    }
}

impl FromStr for OperationGroup {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|group| group.name() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            let problem = format!("\"{}\" is no operation: {known} are", excerpt(text));
            Error::new(ErrorKind::InvalidArgument, problem)
        })
    }
}

/// What a new token allows.
#[derive(Clone, Debug)]
pub struct TokenGrant {
    /// Who uses the token, for the log.
    pub subject: String,
    /// The names of locks and records begin with one of these. An empty prefix allows all names.
    pub prefixes: Vec<String>,
    /// The allowed operations.
    pub operations: Vec<OperationGroup>,
    /// The life of the token: 1 s to 366 days.
    pub ttl: Duration,
}

#[derive(Debug, Deserialize, Serialize)]
struct Claims {
    sub: String,
    iss: String,
    aud: Audience,
    #[serde(flatten)]
    times: Times,
    jti: String,
    prefixes: Vec<String>,
    /// The groups of a newer version of this program allow nothing here.
    operations: Vec<String>,
}

/// Signs a token.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a life that is not allowed, and for a token that allows
/// nothing.
pub fn mint_token(keys: &TokenKeys, grant: TokenGrant, clock: &dyn Clock) -> Result<String> {
    let wrong = |problem: String| Err(Error::new(ErrorKind::InvalidArgument, problem));
    if grant.ttl < Duration::from_secs(1) || grant.ttl > LONGEST_TOKEN {
        return wrong(format!(
            "ttl is {:?}: 1 s to 366 days are allowed",
            grant.ttl
        ));
    }
    if grant.prefixes.is_empty() || grant.operations.is_empty() {
        return wrong("a token needs at least one prefix and one operation".to_owned());
    }
    keys.sign(&Claims {
        sub: grant.subject,
        iss: ISSUER.into(),
        aud: Audience::One(AUDIENCE.into()),
        times: Times::from_now(unix_seconds(clock.wall()), grant.ttl),
        jti: Uuid::new_v4().to_string(),
        prefixes: grant.prefixes,
        operations: grant.operations.iter().map(|it| it.name().into()).collect(),
    })
}

/// Checks the tokens of calls.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// Without keys every client may do everything.
    pub(crate) keys: Option<Arc<TokenKeys>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What a client may do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access(Option<Arc<Allowed>>);

#[derive(Debug)]
struct Allowed {
    subject: String,
    prefixes: Vec<String>,
    operations: Vec<OperationGroup>,
    until: Moment,
}

impl Gate {
    /// What the caller with this head may do.
    ///
    /// # Errors
    /// [`Code::Unauthenticated`](tonic::Code::Unauthenticated) without a valid token.
    pub(crate) fn admit(&self, head: &MetadataMap) -> Result<Access, Status> {
        let Some(keys) = &self.keys else {
            return Ok(Access(None));
        };
        let allowed = self.read(keys, head).map_err(|why| {
            meters::count_refusal("token");
            Status::unauthenticated(format!("token refused: {why}"))
        })?;
        Ok(Access(Some(Arc::new(allowed))))
    }

    fn read(&self, keys: &TokenKeys, head: &MetadataMap) -> Result<Allowed, TokenProblem> {
        let shown = head.get("authorization").and_then(|it| it.to_str().ok());
        let token = shown.and_then(|it| it.strip_prefix("Bearer "));
        let token = token.ok_or(
            "this server asks for one, as `authorization: Bearer TOKEN`; in a URL the option \
             `token_file` names its file",
        )?;
        let claims: Claims = keys.read_claims(token)?;
        if claims.iss != ISSUER || !claims.aud.names(AUDIENCE) {
            return Err("it was issued for something else");
        }
        let now = unix_seconds(self.clock.wall());
        claims.times.check(now)?;
        let known = |name: &String| name.parse().ok();
        Ok(Allowed {
            subject: claims.sub,
            prefixes: claims.prefixes,
            operations: claims.operations.iter().filter_map(known).collect(),
            until: self.clock.now() + claims.times.left(now),
        })
    }
}

impl Access {
    /// Whether the client may do this.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`] that names what the token does not allow.
    pub(crate) fn check(&self, asked: &impl Guarded) -> Result<()> {
        let Some(allowed) = &self.0 else {
            return Ok(());
        };
        match asked.guarded() {
            Some((group, names)) => allowed.check(group, names),
            None => Ok(()),
        }
    }

    /// When the token of the client expires.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.0.as_ref().map(|allowed| allowed.until)
    }

    /// Who shows the token.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.0.as_ref().map(|allowed| &*allowed.subject)
    }
}

impl Allowed {
    fn check(&self, group: OperationGroup, names: Names<'_>) -> Result<()> {
        let denied = |reason, problem| {
            meters::count_refusal(reason);
            Err(Error::new(ErrorKind::AccessDenied, problem))
        };
        if !self.operations.contains(&group) {
            let allowed: Vec<_> = self.operations.iter().map(|it| it.name()).collect();
            let (group, allowed) = (group.name(), allowed.join(", "));
            let problem = format!("the token does not allow {group}: it allows {allowed}");
            return denied("operation", problem);
        }
        let is_allowed = |name: &str| self.prefixes.iter().any(|it| name.starts_with(&**it));
        let wrong = match names {
            Names::One(name) => (!is_allowed(name)).then_some(name),
            Names::Many(names) => names.iter().map(|it| &**it).find(|it| !is_allowed(it)),
        };
        match wrong {
            None => Ok(()),
            Some(name) => {
                let prefixes: Vec<_> = self.prefixes.iter().map(|it| excerpt(it)).collect();
                let problem = format!(
                    "the token does not allow \"{}\": its names begin with {}",
                    excerpt(name),
                    prefixes.join(" or ")
                );
                denied("prefix", problem)
            }
        }
    }
}

/// A request that a token must allow.
pub(crate) trait Guarded {
    /// The group of the operation, and its names; `None` for what every client may do, and for a
    /// request without a part that it needs, which is refused for that.
    fn guarded(&self) -> Option<(OperationGroup, Names<'_>)>;
}

/// The names of a request. A list is allowed if its prefix is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names<'a> {
    One(&'a str),
    Many(&'a [String]),
}

type Wanted<'a> = Option<(OperationGroup, Names<'a>)>;

fn one(group: OperationGroup, name: &str) -> Wanted<'_> {
    Some((group, Names::One(name)))
}

fn of_lease(group: OperationGroup, lease: Option<&v1::Lease>) -> Wanted<'_> {
    lease.and_then(|lease| one(group, &lease.name))
}

impl Guarded for v1::AcquireLock {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Acquire, &self.name)
    }
}

impl Guarded for v1::AcquireCall {
    fn guarded(&self) -> Wanted<'_> {
        self.request.as_ref().and_then(Guarded::guarded)
    }
}

impl Guarded for v1::JoinQueue {
    fn guarded(&self) -> Wanted<'_> {
        self.request.as_ref().and_then(Guarded::guarded)
    }
}

impl Guarded for v1::RenewLease {
    fn guarded(&self) -> Wanted<'_> {
        of_lease(OperationGroup::Acquire, self.lease.as_ref())
    }
}

impl Guarded for v1::HandOverLease {
    fn guarded(&self) -> Wanted<'_> {
        // The store refuses a hand-over to another name.
        of_lease(OperationGroup::Acquire, self.lease.as_ref())
    }
}

impl Guarded for v1::ReleaseLease {
    fn guarded(&self) -> Wanted<'_> {
        of_lease(OperationGroup::Release, self.lease.as_ref())
    }
}

impl Guarded for v1::InspectLock {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Inspect, &self.name)
    }
}

impl Guarded for v1::ListLocks {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Inspect, &self.prefix)
    }
}

impl Guarded for v1::ForceReleaseLock {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::ForceRelease, &self.name)
    }
}

impl Guarded for v1::CheckHealth {
    fn guarded(&self) -> Wanted<'_> {
        None
    }
}

impl Guarded for v1::ReadRecords {
    fn guarded(&self) -> Wanted<'_> {
        Some((OperationGroup::Records, Names::Many(&self.keys)))
    }
}

impl Guarded for v1::WriteRecord {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Records, &self.key)
    }
}

impl Guarded for v1::RemoveRecord {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Records, &self.key)
    }
}

impl Guarded for v1::ListRecords {
    fn guarded(&self) -> Wanted<'_> {
        one(OperationGroup::Records, &self.prefix)
    }
}

impl Guarded for Asked {
    fn guarded(&self) -> Wanted<'_> {
        match self {
            Self::Acquire(it) => it.guarded(),
            Self::Renew(it) => it.guarded(),
            Self::Release(it) => it.guarded(),
            Self::HandOver(it) => it.guarded(),
            Self::ForceRelease(it) => it.guarded(),
            Self::Inspect(it) => it.guarded(),
            Self::List(it) => it.guarded(),
            Self::Health(it) => it.guarded(),
            Self::Get(it) => it.guarded(),
            Self::Put(it) => it.guarded(),
            Self::Delete(it) => it.guarded(),
            Self::Scan(it) => it.guarded(),
            Self::Join(it) => it.guarded(),
            // A step is about a waiter that has joined.
            Self::Step(_) => None,
        }
    }
}
