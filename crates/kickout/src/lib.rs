//! The kick-out flow: one account, one session, across many nodes.
//!
//! A new login on another device ends the old session and its client gets a notice. A call that is
//! late, lost or repeated never ends another session.
//!
//! A chat or game server embeds the flow with its own transport, over any configured store. The
//! flow contains no web framework.
//!
//! ```
//! use distlock_core::Store;
//! use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Uid};
//! # async fn example() -> distlock_core::Result<()> {
//! # let memory = distlock_memory::Memory::default();
//! let store = Store::new(memory.lock(), memory.records());
//! // `.peers(..)` on the builder sets the way to other nodes.
//! let kick = KickOut::builder(store, NodeId::new("n1")?).start().await?;
//!
//! let anna = Uid::new("anna")?;
//! let login = |device| Login::new(anna.clone(), device, Class::none());
//! let (phone, pc) = (Device::new("phone")?, Device::new("pc")?);
//! let LoginOutcome::Admitted(phone) = kick.login(login(phone)).await? else { panic!() };
//! let LoginOutcome::Admitted(pc) = kick.login(login(pc)).await? else { panic!() };
//!
//! let notice = phone.superseded().await; // The notice for the phone's client.
//! assert_eq!(notice.by_device, Some(Device::new("pc")?));
//! assert!(phone.check().is_err()); // The server calls this before each message of the phone.
//! assert_eq!(kick.route(pc.uid()).await?.unwrap().key, *pc.key());
//! kick.shutdown().await;
//! # Ok(())
//! # }
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
//! # runtime.block_on(example()).unwrap();
//! ```
//!
//! # Records and locks in the store
//!
//! - **Lock `node/<id>`**: the lease of a node. Its fencing token is the node's incarnation
//!   (*boot*), and its meta text has the node's address. A node whose lock is free is dead, and its
//!   records are void. A node that cannot renew the lease ends its own sessions before another node
//!   may count it as dead. The node renews this lock, and those of accounts, in the tasks that work
//!   under them. So a runtime that stands still loses its locks, as a crash would.
//! - **Record `sess/<uid>`**: one for each account, written only on top of the version that was
//!   read. The record names the session (node, boot, session id), the account's *generation*, and
//!   the older sessions whose end is not confirmed. The record survives logout, because the
//!   generation must never fall.
//! - **Record `nodes`**: the roster. The roster lists every incarnation until the records of that
//!   incarnation are removed.
//! - **Record `ban/<uid>`**: the duration of a ban. A mark in the account's record says that there
//!   may be a ban.
//! - **Record `drain/<id>`**: marks a node that takes no login.
//! - **Lock `user/<uid>`**: the account's lock. A login holds it around one read and one write,
//!   never across a call to another node.
//!
//! # Promises
//!
//! - Of any number of logins, exactly as many sessions survive as the [`Policy`] allows. With
//!   [`Policy::single`] the last granted one survives. Every other admitted client gets a notice.
//! - A login is answered after the programs of the older sessions have saved, for the sessions that
//!   announced it ([`Login::saves`]), or after the time for that. [`Session::old_confirmed`] says
//!   which of the two happened. Only a store that refuses a save with a lower
//!   [`Session::generation`] excludes a late save.
//! - Logout, sweep, refresh, kick and delivery name exactly one (node, boot, session). Such a step
//!   changes no other session, however late the step is.
//! - A lost kick does not matter for long: each node compares each of its sessions with the
//!   directory once per node lease, and up to 1024 of them three times as often.
//! - A dead node blocks no account. After its lease has ended, its sessions no longer count.
//! - A message is delivered to exactly one current session. Otherwise its sender learns that it was
//!   not delivered, or that the outcome is unknown.
//! - The outcome of a write with a lost reply is looked up. An outcome that stays unknown is
//!   reported as unknown, never as success.
//!
//! # Map
//!
//! Each folder uses only those above it.
//!
//! - `model`: values and rules without I/O: policy, record, identifiers, notices, requests.
//! - `directory`: reads and writes of the records.
//! - `state`: the parts of a node's state: its sessions and their queues, the changes of their
//!   presence and of accounts, its incarnation, its login queue, its links to other nodes; and the
//!   traits that an embedder implements.
//! - `node`: the node itself, by topic: `lease`, `history`, `liveness`, `roster` and `drain`;
//!   `login`, `grant` and `confirm`; `end`, `kick` and `logout`; `route` and `hand_out`;
//!   `reconcile` and `sweep`; `admin`.
//! - `flow`: the handle, its builder, and the public operations.
//!
//! All of these modules use `locks`, `meters` and `tasks`.
//!
//! # Metrics
//!
//! `distlock_sessions`, `distlock_session_ends_total{code}`, `distlock_login_total{result}`,
//! `distlock_login_throttled_total{scope}` (`account`, `node`), `distlock_sessions_drained_total`,
//! `distlock_takeover_seconds{path}` (`local`, `remote`, `pull`),
//! `distlock_login_lock_wait_seconds`, `distlock_login_lock_hold_seconds`,
//! `distlock_login_lock_lost_total`, `distlock_record_conflict_total`,
//! `distlock_stale_delete_refused_total`, `distlock_stale_kick_refused_total`,
//! `distlock_stale_delivery_refused_total`, `distlock_revocations_pending`,
//! `distlock_slots_swept_total`, `distlock_duplicates_detected_total` (must stay 0),
//! `distlock_peer_calls_failed_total`, `distlock_node_fenced_total`,
//! `distlock_lease_remaining_seconds`.
//! None is labelled by account.

mod directory;
mod flow;
mod locks;
mod meters;
mod model;
mod node;
mod state;
mod tasks;

pub use flow::{builder::Builder, kick_out::KickOut};
pub use model::{
    change::{AccountChange, AccountNews, Change, ChangeId, Gap},
    event::{Event, Transition},
    ident::{
        Boot, Class, ClientInfo, ClientVersion, Device, Generation, NodeId, SessionId, SessionKey,
        Uid,
    },
    login::{ConfirmedBy, Denied, Intent, Login, Overtaken},
    node::{NodeAddress, NodeInfo, NodeState},
    notice::{Code, Offline, Retry},
    policy::{OnExceed, Policy, PolicyName},
    record::{Ban, Past, Revocation, Slot, SlotEntry, UserRecord},
    request::{DeliverRequest, DeliverResult, KickRequest, KickResult, Message, PeerError},
    settings::{Confirm, Timers},
};
pub use node::{
    admin::{Banned, Found, Kicked, NodeView, Page, Pending, SessionFilter, Target, UserView},
    login::LoginOutcome,
    logout::LoggedOut,
    roster::forget_node,
    route::{Delivery, Location, Receipt},
    session::Session,
};
pub use state::{
    admission::{Admission, Rates},
    api::{Allowed, NoPeers, Peers, Profiles},
    changes::{ChangeReader, NextChanges},
    live_session::Phase,
    message::Outgoing,
};
