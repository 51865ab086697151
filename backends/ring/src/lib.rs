//! Locks whose names are spread over several stores by consistent hashing.
//!
//! Each name belongs to one member of the ring, the one with the highest hash of the two names. The
//! members know nothing of each other and nothing of the ring: any store of leases with a TTL can
//! be a member. A ring adds capacity, and takes no part of a member's safety away. It does not add
//! availability: the names of a member that is away cannot be locked before the ring is changed.
//!
//! # Algorithm
//!
//! One record in another store, the ring store, has the *view*: the names of the members, how long
//! a view may be used without reading it again (V), and the longest lease (L). Every client reads
//! the view three times in V. A client whose view is older than V grants and renews nothing.
//!
//! A change of the members moves some names to other members. Such a name is in quarantine for
//! V + L and a margin: a client that has not yet read the change may send a last request V after
//! it, and that lease lasts for L. The quarantine counts from the age of a second write, which
//! confirms the view: a store may stamp the age of the first one long before anybody can read it.
//! A view has the members of earlier views, each with what is left of its quarantine. So a client
//! that has just started knows what its predecessors knew, and two changes in a row forget nothing.
//!
//! Tokens rise because the view has the *lead*: how far the tokens of any member may be ahead of
//! the ring store's clock. After a quarantine, a token is raised to the end of the quarantine plus
//! the lead, which no earlier token of the name has reached.
//!
//! `lab/models/src/ring` is a model of this protocol, which breaks without each of its rules.
//!
//! # Guarantees and their limits
//!
//! - The guarantees of one store hold for each name, while the ring store loses no acknowledged
//!   write and its clock is not stepped.
//! - Tokens can fall if the clock of a member was stepped forward after the lead was measured, and
//!   the name moves.
//! - Records of a ring are those of the ring store, and do not move.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | [`RingDriver`]: `ring:` | `driver`, `config` |
//! | [`RingLock`]: `DistLock` | `lock` |
//! | the view: who owns a name, which names are in quarantine | `view` |
//! | the hash | `rendezvous` |
//! | what a process knows of the view | `reads` |
//! | the member at which each lease of this process is | `leases` |
//! | what an operator does | [`init`], [`show`], [`locate`], [`add`], [`remove`], [`reset`] |
//! | a waiter, and its place at a member | `wait` |
//! | who removes members that are gone | [`Watch`] |

mod admin;
mod config;
mod doctor;
mod driver;
mod leases;
mod lock;
mod reads;
mod rendezvous;
mod shared;
mod view;
mod wait;
mod watch;

pub use admin::{
    NamePlace, PendingReport, RingMember, RingReport, Terms, add, init, locate, remove, reset, show,
};
pub use driver::RingDriver;
pub use lock::RingLock;
pub use watch::{Watch, WatchChange};
