//! Situations in which something simpler than a distributed lock is the better answer.

/// A situation, the tool to use in it, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Alternative {
    /// The situation of the caller.
    pub when: &'static str,
    /// The tool to use instead of a lock.
    pub take: &'static str,
    /// The reason.
    pub why: &'static str,
}

/// The situations, the most frequent one first.
pub const ALTERNATIVES: [Alternative; 6] = [
    Alternative {
        when: "The same thing must not be created twice",
        take: "a unique index",
        why: "The database refuses the second insert, whoever is late.",
    },
    Alternative {
        when: "One record is read, changed and written back",
        take: "compare-and-swap",
        why: "Write only if the version is still the one that was read. Who comes second reads \
            again.",
    },
    Alternative {
        when: "Several rows of one database change together",
        take: "a transaction with row locks",
        why: "The row locks end with the transaction, and no lease can run out before it.",
    },
    Alternative {
        when: "Jobs must run one after the other",
        take: "a queue with one consumer",
        why: "The queue keeps the order, and a job that fails comes back. One consumer per key is \
            enough.",
    },
    Alternative {
        when: "Doing it twice would only be wasteful",
        take: "an idempotent operation",
        why: "With a key for each request the second run changes nothing.",
    },
    Alternative {
        when: "All callers are in one process",
        take: "a mutex",
        why: "It needs no network and no lease, and it is faster by orders of magnitude.",
    },
];

/// The limit of a lock with a lease, in any store.
pub const LEASE_LIMIT: &str = "A lock with a lease cannot stop a holder that slept past its lease \
    from writing late. Where that would do harm, the resource itself must refuse an older fencing \
    token.";
