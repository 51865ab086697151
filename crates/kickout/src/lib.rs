//! The kick-out flow: one account, one session, across many nodes. A new login on another device ends the old session, is told
//! so, and nothing that is late, lost or repeated can end the wrong one.
//!
//! A chat or game server embeds it with its own transport, over whichever store is configured. There is no web framework in it.
//!
//! ```
//! use distlock_core::Store;
//! use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Uid};
//! # async fn example() -> distlock_core::Result<()> {
//! # let memory = distlock_memory::Memory::default();
//! let store = Store::new(memory.lock(), memory.records());
//! let kick = KickOut::builder(store, NodeId::new("n1")?).start().await?; // .peers(..): how to reach other nodes
//!
//! let login = |device| Ok::<_, distlock_core::Error>(Login::new(Uid::new("anna")?, Device::new(device)?, Class::none()));
//! let LoginOutcome::Admitted(phone) = kick.login(login("phone")?).await? else { panic!() };
//! let LoginOutcome::Admitted(pc) = kick.login(login("pc")?).await? else { panic!() };
//!
//! let notice = phone.superseded().await; // what to tell the phone's client
//! assert_eq!(notice.by_device, Some(Device::new("pc")?));
//! assert!(phone.check().is_err()); // asked before each of its messages
//! assert_eq!(kick.route(pc.uid()).await?.unwrap().key, *pc.key());
//! kick.shutdown().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # What is in the store
//!
//! - **Node leases**: the lock `node/<id>`. Its fencing token is the node's incarnation (*boot*), its meta text the node's address.
//!   A node whose lock is free is dead, and what it wrote counts no more; a node that cannot renew ends its own sessions before
//!   others may take it for dead.
//! - **`sess/<uid>`**: one record per account, changed only on top of the version that was read. It names the session (node,
//!   boot, session id), the account's *generation*, and the older sessions that may not have heard yet. It survives logout,
//!   because the generation must never fall.
//! - **`nodes`**: the incarnations that there have been, until what dead ones left behind is cleared.
//! - **`ban/<uid>`**: how long a ban lasts; that there is one is in the record. **`drain/<id>`**: a node that takes no login.
//! - **`user/<uid>`**: the account's lock, held by a login around one read and one write, never across a call to another node.
//!
//! # What holds
//!
//! - Of any number of logins, exactly as many survive as the [`Policy`] allows, with [`Policy::single`] the one granted last;
//!   every other client that was let in is told.
//! - Logout, sweeping, refreshing, kicks and deliveries name (node, boot, session) and change nothing else, however late.
//! - A kick that gets lost heals: the node compares its sessions with the directory, each once per node lease, and up to 1024 of
//!   them three times as often.
//! - A dead node blocks nobody.
//! - A message is delivered to exactly one current session, or its sender learns that it was not, or that it may not have been.
//! - A write whose reply was lost is looked up. What stays unknown is reported as unknown, never as success.
//!
//! # Map
//!
//! `policy` decides who may stay, `profiles` asks the embedder who may come, `idle` asks who was silent, `admission` bounds storms, `ban` and `drain` keep logins out.
//! `flow` is the handle and its parts; `login` (with `grant` under the lock and `confirm` after it), `logout`, `route`, `kick` and `admin` are what it does; `pull` and `sweep` run by
//! themselves. `record`, `ident`, `offline` and `resume` are values; `directory` reads and writes them; `node` is this
//! node's lease and `nodes` the others'; `registry`, `live`, `message_in_queue` and `session` are the sessions of this node; `gate` lets
//! one login per account compete; `peers` is how nodes reach each other; `event` says what happened.
//!
//! # Metrics
//!
//! `distlock_sessions`, `distlock_session_ends_total{code}`, `distlock_login_total{result}`,
//! `distlock_login_throttled_total{scope}` (`account`, `node`), `distlock_drained_total`,
//! `distlock_takeover_seconds{path}` (`local`, `remote`, `pull`), `distlock_lock_wait_seconds`,
//! `distlock_lock_hold_seconds`, `distlock_lock_lost_total`, `distlock_cas_conflict_total`,
//! `distlock_stale_delete_refused_total`, `distlock_stale_kick_refused_total`,
//! `distlock_stale_delivery_refused_total`, `distlock_revocations_pending`,
//! `distlock_ghosts_swept_total`, `distlock_duplicates_detected_total` (must stay 0),
//! `distlock_self_fence_total`, `distlock_lease_remaining_seconds`. None is labelled by account.

mod admin;
mod directory;
mod events;
mod flow;
mod login;
mod meters;
mod model;
mod node;
mod peer;
mod session;
mod tasks;
mod upkeep;
mod wait;

pub use admin::view::{Found, Kicked, NodeView, Pending, Target, UserView};
pub use flow::{builder::Builder, handle::KickOut};
pub use login::{
    admission::Admission,
    outcome::LoginOutcome,
    profiles::{Allowed, Profiles},
    rates::Rates,
};
pub use model::{
    ban::Ban,
    event::{Event, Transition},
    ident::{Boot, Class, Device, Generation, NodeId, SessionId, SessionKey, Uid},
    intent::Intent,
    login::{Denied, Login, Overtaken},
    node::{NodeAddress, NodeInfo, NodeState},
    notice::{Code, Offline, Retry},
    policy::{OnExceed, Policy, PolicyName},
    record::{Past, Revocation, Slot, SlotEntry, UserRecord},
    request::{DeliverRequest, DeliverResult, KickRequest, KickResult, Message, PeerError},
    settings::{Confirm, Order, RouteMode, Timers},
};
pub use node::roster::forget_node;
pub use peer::{
    api::{NoPeers, Peers},
    route::{Delivery, Location, Receipt},
};
pub use session::{handle::Session, live::Phase, logout::LoggedOut, message::Outgoing};
