//! Descriptions of the other ways of locking that `distlock-lab peers` measures.

use crate::compare::Comparison;

/// Describes an arm of `distlock-lab peers`; `None` for an unknown one.
#[must_use]
pub fn describe_arm(arm: &str) -> Option<&'static str> {
    Some(match arm {
        "redis-raw" => "SET NX PX and DEL",
        "redis-scripts" => "bare scripts that compare the owner",
        "rslock" => "the library rslock",
        "sqlite-plain" | "mysql-plain" | "postgres-plain" => "one INSERT and one DELETE",
        "mysql-get-lock" => "GET_LOCK of the server",
        "postgres-advisory" => "advisory locks of the server",
        "mysql-update" | "postgres-update" => "one UPDATE of one row",
        "zookeeper-one-by-one" => "create, list and delete one node",
        "zookeeper-floor" => "create and delete one node: no lock",
        "zookeeper-client" => "the recipe of the library zookeeper-client",
        "memory-table" => "the bare lock table",
        "memory-locker" => "distlock",
        arm if arm.starts_with("distlock-") => "distlock",
        _ => return None,
    })
}

/// The text that a report has in place of figures when the other ways were not measured.
pub const PEERS_NOT_MEASURED: &str = "Not measured in this run: raw commands of the servers, \
    locks that the databases bring, and the libraries rslock (Redis) and zookeeper-client \
    (ZooKeeper). With --peers the command measures them on the same servers in the same \
    run, and their figures stand here.";

/// The stores on which no other way was measured, in a sentence; `None` if there is no such store.
#[must_use]
pub fn stores_without_peers(comparison: &Comparison) -> Option<String> {
    let names: Vec<&str> = comparison
        .stores
        .iter()
        .filter(|store| !comparison.peers.iter().any(|it| it.store == store.key))
        .map(|store| store.name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "Not measured on {}: the other ways need one server that the command itself has \
             started.",
            names.join(", ")
        )
    })
}
