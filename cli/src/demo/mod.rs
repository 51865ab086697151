//! Shows the main use in one command: two gateway processes, one store, and one account on many
//! devices. `demo recipes` shows the recipes.
//!
//! | file | content |
//! |---|---|
//! | `client.rs` | the devices |
//! | `play.rs` | starts the nodes, plays all scenes, and tidies up |
//! | `recipes.rs`, `readers.rs` | `demo recipes`: counters, a cache, an election, readers |
//! | `scenes.rs` | the scenes, and the invariants of each |
//! | `timeline.rs` | the printed timeline |

mod client;
mod play;
mod readers;
pub(crate) mod recipes;
mod scenes;
mod timeline;

pub(crate) use play::play_scenes;
