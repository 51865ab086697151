//! Texts about each kind of store: its promise, and the events that break it. They are written by
//! hand, because no measurement shows them.

/// Two sentences about a kind of store.
#[derive(Clone, Copy, Debug)]
pub struct Prose {
    /// The promise.
    pub promise: &'static str,
    /// The events that break the promise.
    pub breaks: &'static str,
}

/// Whether a failover of this kind of store can lose a granted lock, because replicas receive
/// writes later than the primary.
#[must_use]
pub(crate) fn failover_may_lose_locks(product: &str) -> bool {
    matches!(product, "redis-sentinel" | "redis-cluster")
}

/// The texts of a product; `None` for an unknown one.
#[must_use]
pub fn prose(product: &str) -> Option<Prose> {
    Some(match product {
        over_records if over_records.starts_with("kv-") => Prose {
            promise: "Exclusion by compare-and-swap over the store's versioned records; any store \
                whose records tell their ages will do. Four operations a cycle, and waiters poll.",
            breaks: "Everything that breaks the store below.",
        },
        "memory" => Prose {
            promise: "Exclusion between the tasks of one process, at the price of a function call.",
            breaks: "Nothing short of the process ending, which ends every lock with it. Other \
                processes see nothing of it.",
        },
        "sqlite" => Prose {
            promise: "Exclusion between the processes of one host, on a clock that nobody can \
                step; locks and tokens are on the disk before they are granted.",
            breaks: "A network file system, a file that is copied or restored, and a second host. \
                A process stopped inside a transaction delays every writer.",
        },
        "redis-sentinel" => Prose {
            promise: "Exclusion on the primary that the sentinels name. When it dies, they make \
                its replica the primary.",
            breaks: "Everything that breaks one Redis server. Replication is asynchronous: a \
                failover can lose a granted lock, then two may hold it, and only the token tells \
                them apart.",
        },
        "redis-cluster" => Prose {
            promise: "Exclusion on the primary of the lock's slot; names spread over the \
                primaries. When one dies, its replica takes its slots.",
            breaks: "Everything that breaks one Redis server. Replication is asynchronous: a \
                failover can lose a granted lock, then two may hold it, and only the token tells \
                them apart.",
        },
        "redis" => Prose {
            promise: "Exclusion on one server with an append-only file. Fast, with pushed \
                wake-ups. After a failover the tokens still rise as long as the servers' clocks \
                agree.",
            breaks: "A clock of the server that is stepped forward, an eviction policy other than \
                noeviction, FLUSHALL, a restart without persistence. With replicas, Sentinel or \
                Cluster a failover can lose a granted lock, because replication is asynchronous: \
                then two may hold it, and only the token tells them apart.",
        },
        "mysql" | "mariadb" => Prose {
            promise: "Exclusion on one primary that syncs every commit: a grant is a committed \
                row, and the token is kept in it.",
            breaks: "A stepped clock of the server, innodb_flush_log_at_trx_commit other than 1 \
                with a power cut, and a failover to an asynchronous replica. On Galera only with \
                one writer.",
        },
        "postgres" => Prose {
            promise: "Exclusion on one primary with synchronous_commit: a grant is a committed \
                row, and waiters are told by NOTIFY.",
            breaks: "A stepped clock of the server, synchronous_commit=off with a crash, and a \
                failover to an asynchronous replica.",
        },
        "zookeeper" => Prose {
            promise: "Exclusion by a quorum: a grant is agreed on by most servers, so losing one \
                loses nothing. Waiters are served in order, and the token is the transaction that \
                created the contender.",
            breaks: "Restoring from an old snapshot, or building the ensemble anew. A holder that \
                is stopped for longer than its session can act afterwards, as everywhere. Without \
                a majority there are no locks at all.",
        },
        "etcd" => Prose {
            promise: "Exclusion by a quorum, served in order; the token is the revision that \
                created the contender's key.",
            breaks: "Restoring from a snapshot without raising the revision. Without a majority \
                there are no locks at all.",
        },
        "remote" | "distlock" => Prose {
            promise: "Exclusion by one lock server that keeps everything in memory.",
            breaks: "A restart of the server ends every lock, which its holders are told.",
        },
        _ => return None,
    })
}
