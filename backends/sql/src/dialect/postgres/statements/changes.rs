//! Statements that change the rows of a batch.
//!
//! Both forms of a statement, for a batch and for a lone operation, share all conditions and
//! assignments, so that they cannot differ in meaning.

/// A lock is free when its row has no owner or when its lease has expired. An owner that holds the
/// lock already gets the same token again. Any other grant gets a new token: the previous token
/// plus one, or the server's clock, whichever is higher. `$6` is this process's hint id.
///
/// The statement does not lock the row of a held lock, so that a refused acquire writes nothing.
pub(super) const ACQUIRE: Insert = Insert {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::text[], $5::text[]) AS k (key, owner, \
        ttl, holder, meta)",
    table: "distributed_lock",
    key: "lock_name",
    when: "(l.holder_id IS NULL OR l.expires_at <= clock_timestamp() OR l.holder_id = k.owner)",
    set: "token = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN l.token
                ELSE greatest(l.token + 1, {now_micros}) END,
        acquired_at = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN \
            l.acquired_at
                ELSE clock_timestamp() END,
        nonce = CASE WHEN l.holder_id = k.owner AND l.expires_at > clock_timestamp() THEN l.nonce \
            END,
        hint_until = CASE WHEN l.hint_id = $6 THEN 'epoch' ELSE l.hint_until END,
        holder_id = k.owner,
        expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        holder = k.holder, meta = k.meta",
    columns: "lock_name, holder_id, token, expires_at, acquired_at, holder, meta",
    new: "k.key, k.owner, {now_micros}, clock_timestamp() + k.ttl * interval '1 microsecond', \
        clock_timestamp(),
        k.holder, k.meta",
    number: "token",
};

/// The column `step` is the change of the ticket: 0 keep, 1 issue, 2 redeem. The column `floor` is
/// null for a renewal that does not raise the token: `greatest` ignores null.
///
/// The row keeps a raised token after a release and after the end of the lease, and the reaper
/// leaves the row until the server's clock is above the token. So the next grant is above the
/// floor.
pub(super) const RENEW: Update = Update {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::uuid[], $5::int8[], $6::int4[],
           $7::uuid[], $8::int8[]) AS k (key, owner, token, nonce, ttl, step, issued, floor)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token) AND l.expires_at > \
        clock_timestamp()
       AND (k.nonce IS NULL OR l.nonce = k.nonce)",
    set: "token = greatest(l.token, k.floor),
        expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        nonce = CASE k.step WHEN 0 THEN l.nonce WHEN 1 THEN k.issued END",
    returning: "l.token",
    hint_id: "NULL",
    notify_channel: None,
};

/// A ticket ends with its lease, so only a guard also releases a lease that has expired and is
/// still in its row.
///
/// `$5` is this process's hint id, `$6` the channel of notifications. The statement notifies only
/// if another process waits, because a notification delays every session that commits.
///
/// A release grants nothing, so that its commit does not wait for the disk or a standby. A crash of
/// the server can lose the releases of the last moments (three times `wal_writer_delay`): such a
/// lock is held again for the rest of its lease. A failover can lose a release that the standby had
/// not received. A later grant waits for the disk, and its commit includes all earlier releases.
pub(super) const RELEASE: Update = Update {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::uuid[]) AS k (key, owner, token, nonce)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token)
       AND (k.nonce IS NULL OR (l.nonce = k.nonce AND l.expires_at > clock_timestamp()))",
    set: "holder_id = NULL, expires_at = clock_timestamp(), holder = '', meta = NULL, nonce = NULL",
    returning: "{wanted}, (SELECT set_config('synchronous_commit', 'off', true))",
    hint_id: "$5",
    notify_channel: Some("$6"),
};

/// `$8` is this process's hint id.
pub(super) const HAND_OVER: Update = Update {
    input:
        "unnest($1::text[], $2::uuid[], $3::int8[], $4::uuid[], $5::int8[], $6::text[], $7::text[])
           AS k (key, owner, token, next, ttl, holder, meta)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token) AND l.expires_at > \
        clock_timestamp()",
    set: "holder_id = k.next,
        token = greatest(l.token + 1, {now_micros}),
        expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
        acquired_at = clock_timestamp(),
        holder = k.holder, meta = k.meta, nonce = NULL",
    returning: "l.token, {wanted}",
    hint_id: "$8",
    notify_channel: None,
};

/// `$3` is this process's hint id, `$4` the channel of notifications.
// The text in `meta` must be equal to `dialect::FORCED`.
pub(super) const FORCE: Update = Update {
    input: "unnest($1::text[], $2::int8[]) AS k (key, token)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.token = k.token AND l.holder_id IS NOT NULL AND l.expires_at > clock_timestamp()",
    set: "holder_id = NULL, expires_at = clock_timestamp(), holder = '', \
          meta = 'force-released', nonce = NULL",
    returning: "{wanted}",
    hint_id: "$3",
    notify_channel: Some("$4"),
};

/// In the place of a tombstone, the new version is higher than the tombstone's version.
pub(super) const CREATE: Insert = Insert {
    input: "unnest($1::text[], $2::bytea[]) AS k (key, value)",
    table: "distributed_record",
    key: "record_key",
    when: "l.deleted",
    set: "version = greatest(l.version + 1, {now_micros}), value = k.value, deleted = false, \
        written_at = clock_timestamp()",
    columns: "record_key, version, value, deleted, written_at",
    new: "k.key, {now_micros}, k.value, false, clock_timestamp()",
    number: "version",
};

pub(super) const REPLACE: Update = Update {
    input: "unnest($1::text[], $2::bytea[], $3::int8[]) AS k (key, value, version)",
    table: "distributed_record",
    key: "record_key",
    when: "l.version = k.version AND NOT l.deleted",
    set: "version = greatest(l.version + 1, {now_micros}), value = k.value, written_at = \
        clock_timestamp()",
    returning: "l.version",
    hint_id: "NULL",
    notify_channel: None,
};

/// The row stays as a tombstone until it is reaped.
pub(super) const DELETE: Update = Update {
    input: "unnest($1::text[], $2::int8[]) AS k (key, version)",
    table: "distributed_record",
    key: "record_key",
    when: "l.version = k.version AND NOT l.deleted",
    set: "value = '', deleted = true, written_at = clock_timestamp()",
    returning: "l.version",
    hint_id: "NULL",
    notify_channel: None,
};

/// The server's clock in microseconds since 1970. New tokens and versions are at least this high.
const NOW_MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// The parts of a statement that only changes existing rows.
pub(super) struct Update {
    /// The source of the operations: one row `k` for each operation.
    pub(super) input: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    /// The condition on the row `l` that an operation may change.
    pub(super) when: &'static str,
    pub(super) set: &'static str,
    /// The columns that a changed row returns after its key. `{wanted}` stands for the condition
    /// that another process waits for the row.
    pub(super) returning: &'static str,
    /// The parameter with this process's hint id, for `{wanted}`.
    pub(super) hint_id: &'static str,
    /// The parameter with the channel on which waiters are notified; `None` without notifications.
    pub(super) notify_channel: Option<&'static str>,
}

pub(super) fn update(it: &Update, lone: bool) -> String {
    let Update {
        input,
        table,
        key,
        when,
        set,
        returning,
        hint_id,
        notify_channel,
    } = it;
    let wanted = format!("(l.hint_until > clock_timestamp() AND l.hint_id <> {hint_id})");
    let notify = notify_channel.map_or_else(String::new, |channel| {
        format!(", CASE WHEN {wanted} THEN pg_notify({channel}, l.{key})::text END")
    });
    let update = |rows: &str| {
        format!(
            "UPDATE {table} l SET {set} FROM {rows} WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, {returning}{notify}"
        )
    };
    let text = if lone {
        update(&values(input))
    } else {
        format!(
            "WITH locked AS MATERIALIZED (
    SELECT k.* FROM {input} JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
) {}",
            update("locked k")
        )
    };
    text.replace("{wanted}", &wanted)
        .replace("{now_micros}", NOW_MICROS)
}

/// The parts of a statement that changes existing rows and creates missing rows.
pub(super) struct Insert {
    /// The source of the operations: one row `k` for each operation.
    pub(super) input: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    /// The condition on the row `l` that an operation may change.
    pub(super) when: &'static str,
    pub(super) set: &'static str,
    pub(super) columns: &'static str,
    pub(super) new: &'static str,
    /// The column of the token or version.
    pub(super) number: &'static str,
}

/// The text of a statement that changes existing rows and creates missing rows. With `lone`, the
/// statement carries out one operation and waits for a locked row. Otherwise the statement leaves
/// locked rows out.
pub(super) fn insert(it: &Insert, lone: bool) -> String {
    let Insert {
        input,
        table,
        key,
        when,
        set,
        columns,
        new,
        number,
    } = it;
    let (input, locked, rows) = if lone {
        let input = values(input);
        (
            format!("input AS NOT MATERIALIZED (SELECT * FROM {input})"),
            String::new(),
            "input",
        )
    } else {
        let locked = format!(
            "locked AS MATERIALIZED (
    SELECT k.* FROM input k JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
), "
        );
        (
            format!("input AS (SELECT * FROM {input})"),
            locked,
            "locked",
        )
    };
    format!(
        "WITH {input}, {locked}updated AS (
    UPDATE {table} l SET {set} FROM {rows} k WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, l.{number}
), inserted AS (
    INSERT INTO {table} AS l ({columns}) SELECT {new} FROM input k
     WHERE NOT EXISTS (SELECT FROM {table} o WHERE o.{key} = k.key)
     ORDER BY k.key COLLATE \"C\"
    ON CONFLICT ({key}) DO NOTHING
    RETURNING l.{key}, l.{number}
) SELECT {key}, {number} FROM updated UNION ALL SELECT {key}, {number} FROM inserted"
    )
    .replace("{now_micros}", NOW_MICROS)
}

/// Turns an input of arrays into an input of one row of values.
fn values(input: &str) -> String {
    input.replace("unnest(", "(SELECT ").replace("[]", "")
}
