//! The bodies of the fuzz targets. Each target takes any bytes, and panics if a property does not
//! hold.
//!
//! `fuzz/libfuzzer` passes the targets to libFuzzer. `tests/replay.rs` replays `fuzz/corpus`
//! without a fuzzer. The properties demand more than the absence of panics: a value that was read
//! is the same after it is written and read again, an unreadable value never counts as free, and no
//! error repeats a secret.

mod config;
mod kv;
mod login;
mod peers;
mod report;
mod sqlite;
mod stores;
mod text;
mod tickets;
mod urls;
mod wire;

pub use config::config;
pub use kv::kv_values;
pub use login::login_tokens;
pub use peers::peer_messages;
pub use report::report_json;
pub use sqlite::sqlite_rows;
pub use stores::{redis_values, zookeeper_values};
pub use tickets::tickets;
pub use urls::urls;
pub use wire::{client_frames, proxy_headers, tcp_frames};

/// The name and the body of a target.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 13] = [
    ("client_frames", client_frames),
    ("config", config),
    ("kv_values", kv_values),
    ("login_tokens", login_tokens),
    ("peer_messages", peer_messages),
    ("proxy_headers", proxy_headers),
    ("redis_values", redis_values),
    ("report_json", report_json),
    ("sqlite_rows", sqlite_rows),
    ("tcp_frames", tcp_frames),
    ("tickets", tickets),
    ("urls", urls),
    ("zookeeper_values", zookeeper_values),
];
