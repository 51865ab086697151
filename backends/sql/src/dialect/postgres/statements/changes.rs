//! Statements that change the rows of a batch.

use super::templates::{Insert, Update};

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

/// The column `step` is the change of the ticket: 0 keep, 1 issue, 2 redeem.
pub(super) const RENEW: Update = Update {
    input: "unnest($1::text[], $2::uuid[], $3::int8[], $4::uuid[], $5::int8[], $6::int4[],
           $7::uuid[]) AS k (key, owner, token, nonce, ttl, step, issued)",
    table: "distributed_lock",
    key: "lock_name",
    when: "l.holder_id = k.owner AND (k.token IS NULL OR l.token = k.token) AND l.expires_at > \
        clock_timestamp()
       AND (k.nonce IS NULL OR l.nonce = k.nonce)",
    set: "expires_at = clock_timestamp() + k.ttl * interval '1 microsecond',
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
