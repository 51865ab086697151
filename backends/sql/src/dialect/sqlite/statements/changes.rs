//! Statements that change the rows of a batch.

/// `?1` rows of name, TTL, label, meta; `?2` owners; `?6` this process's hint id; `?7` the token.
///
/// Takes a lock that is free and whose last token is lower than `?7`. Renews a lock that the same
/// owner holds with exactly this token. So each changed row has the token `?7`, and the number of
/// changed rows is nearly always a sufficient answer. `RETURNING` would cost more than the change
/// itself, because SQLite opens a temporary table for `RETURNING`. A lock is free when its row has
/// no owner, when its lease has expired, or when its row is from another boot.
pub(super) const ACQUIRE: &str = "
INSERT INTO distributed_lock AS l
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta)
SELECT j.value ->> 0, substr(?2, j.key * 16 + 1, 16), ?7, ?3, ?4 + (j.value ->> 1), ?5, j.value \
    ->> 2, j.value ->> 3
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name) DO UPDATE SET
    acquired_at = CASE l.token WHEN ?7 THEN l.acquired_at ELSE ?5 END,
    nonce = CASE l.token WHEN ?7 THEN l.nonce END,
    hint_until = CASE WHEN l.hint_id = ?6 OR l.boot_id <> ?3 THEN 0 ELSE l.hint_until END,
    token = ?7,
    holder_id = excluded.holder_id,
    boot_id = ?3,
    expires_at = excluded.expires_at,
    holder = excluded.holder,
    meta = excluded.meta
WHERE (l.token < ?7
        AND (l.holder_id IS NULL
          OR l.expires_at <= ?4
          OR (l.boot_id <> ?3 AND length(l.boot_id) = 16)))
   OR (l.token = ?7 AND l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > \
       ?4)";

/// `?8` rows of name, token or null, ticket's nonce or null; `?9` owners; `?6` this process's hint
/// id; `?10` whether the statement also frees locks that other processes wait for. A ticket ends
/// with its lease, so only a guard also releases a lease that has expired and is still in its row.
/// The number of changed rows is nearly always a sufficient answer.
pub(super) const RELEASE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, boot_id = ?3, expires_at = ?4, holder = '', meta = NULL, nonce = NULL
  FROM json_each(?8) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?9, j.key * 16 + 1, 16)
   AND (j.value ->> 1 IS NULL OR l.token = j.value ->> 1)
   AND (j.value ->> 2 IS NULL
     OR (hex(l.nonce) = j.value ->> 2 AND l.boot_id = ?3 AND l.expires_at > ?4))
   AND (l.hint_until <= ?4 OR l.hint_id = ?6 OR ?10)";

/// `?1` rows of name, TTL, token or null, ticket's nonce or null, ticket step (0 keep, 1 issue, 2
/// redeem), floor of the token (0 for none); `?2` owners; `?6` nonces to issue.
///
/// The row keeps a raised token after a release and after the end of the lease, and the reaper
/// leaves the row until the wall clock is above the token. So the next grant is above the floor.
pub(super) const RENEW: &str = "
UPDATE distributed_lock AS l SET
    token = max(l.token, j.value ->> 5),
    expires_at = ?4 + (j.value ->> 1),
    nonce = CASE j.value ->> 4 WHEN 0 THEN l.nonce WHEN 1 THEN substr(?6, j.key * 16 + 1, 16) END
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND l.boot_id = ?3 AND l.expires_at > ?4
   AND (j.value ->> 2 IS NULL OR l.token = j.value ->> 2)
   AND (j.value ->> 3 IS NULL OR hex(l.nonce) = j.value ->> 3)
RETURNING lock_name, token";

/// `?1` rows of name, TTL, label, meta, token or null; `?2` owners; `?6` next owners.
pub(super) const HAND_OVER: &str = "
UPDATE distributed_lock AS l SET
    holder_id = substr(?6, j.key * 16 + 1, 16),
    token = max(l.token + 1, ?5),
    expires_at = ?4 + (j.value ->> 1),
    acquired_at = ?5,
    holder = j.value ->> 2,
    meta = j.value ->> 3,
    nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND l.boot_id = ?3 AND l.expires_at > ?4
   AND (j.value ->> 4 IS NULL OR l.token = j.value ->> 4)
RETURNING lock_name, token";

/// `?1` rows of name, token. The text in `meta` must be equal to
/// [`FORCED`](crate::dialect::FORCED).
pub(super) const FORCE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, expires_at = ?4, holder = '', meta = 'force-released', nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.token = j.value ->> 1
   AND l.holder_id IS NOT NULL AND l.boot_id = ?3 AND l.expires_at > ?4
RETURNING lock_name";

/// `?1` rows of key, start, length; `?2` values. In the place of a tombstone, the new version is
/// higher than the tombstone's version.
pub(super) const CREATE: &str = "
INSERT INTO distributed_record AS r (record_key, version, value, deleted, boot_id, written_at)
SELECT j.value ->> 0, ?5, substr(?2, (j.value ->> 1) + 1, j.value ->> 2), 0, ?3, ?4
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (record_key) DO UPDATE SET
    version = max(r.version + 1, ?5), value = excluded.value, deleted = 0, boot_id = ?3, \
        written_at = ?4
WHERE r.deleted = 1
RETURNING record_key, version";

/// `?1` rows of key, start, length, version; `?2` values.
pub(super) const REPLACE: &str = "
UPDATE distributed_record AS r SET
    version = max(r.version + 1, ?5),
    value = substr(?2, (j.value ->> 1) + 1, j.value ->> 2),
    boot_id = ?3, written_at = ?4
  FROM json_each(?1) AS j
 WHERE r.record_key = j.value ->> 0 AND r.version = j.value ->> 3 AND r.deleted = 0
RETURNING record_key, version";

/// `?1` rows of key, version. The row stays as a tombstone until it is reaped.
pub(super) const DELETE: &str = "
UPDATE distributed_record AS r SET value = x'', deleted = 1, boot_id = ?3, written_at = ?4
  FROM json_each(?1) AS j
 WHERE r.record_key = j.value ->> 0 AND r.version = j.value ->> 1 AND r.deleted = 0
RETURNING record_key, version";
