//! Statements that change the rows of a batch.

use super::sources::{LEASES_BESIDE, Source, filled};

/// Rows of name, TTL, label, meta; `?6` is this process's hint id. Takes those locks for which
/// [`ACQUIRE`] would grant a token equal to the wall clock, which is nearly always all of them.
/// Then the number of changed rows is the whole answer, and no row has to come back.
pub(super) const TAKE: &str = "
INSERT INTO distributed_lock AS l
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta)
SELECT {0}, {owner}, ?5, ?3, ?4 + {1}, ?5, {2}, {3} {from} WHERE true
ON CONFLICT (lock_name) DO UPDATE SET
    holder_id = excluded.holder_id,
    token = ?5,
    boot_id = ?3,
    expires_at = excluded.expires_at,
    acquired_at = ?5,
    holder = excluded.holder,
    meta = excluded.meta,
    nonce = NULL,
    wanted_until = CASE WHEN l.wanted_by = ?6 OR l.boot_id <> ?3 THEN 0 ELSE l.wanted_until END
WHERE l.token < ?5
  AND (l.holder_id IS NULL
    OR l.expires_at <= ?4
    OR (l.boot_id <> ?3 AND length(l.boot_id) = 16))";

/// Rows of name, token or null; `?6` is this process's hint id. Frees the locks that no other
/// process waits for. As with [`TAKE`], the number of rows is the whole answer when it is the
/// number of leases.
pub(super) const FREE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, boot_id = ?3, expires_at = ?4, holder = '', meta = NULL, nonce = NULL
  {from}
 WHERE l.lock_name = {0}
   AND l.holder_id = {owner}
   AND l.token = ifnull({1}, l.token)
   AND (l.wanted_until <= ?4 OR l.wanted_by = ?6)";

/// `?1` rows of name, TTL, label, meta; `?2` owners; `?6` this process's hint id.
///
/// A lock is free when its row has no owner, when its lease is over, or when it is from another
/// boot. An owner that has the lock already gets the same token again. The new token is the higher
/// of the previous one plus one and the wall clock.
pub(super) const ACQUIRE: &str = "
INSERT INTO distributed_lock AS l
    (lock_name, holder_id, token, boot_id, expires_at, acquired_at, holder, meta)
SELECT j.value ->> 0, substr(?2, j.key * 16 + 1, 16), ?5, ?3, ?4 + (j.value ->> 1), ?5, j.value \
    ->> 2, j.value ->> 3
  FROM json_each(?1) AS j WHERE true
ON CONFLICT (lock_name) DO UPDATE SET
    token = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > ?4
            THEN l.token ELSE max(l.token + 1, ?5) END,
    acquired_at = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at \
        > ?4
            THEN l.acquired_at ELSE ?5 END,
    nonce = CASE WHEN l.holder_id = excluded.holder_id AND l.boot_id = ?3 AND l.expires_at > ?4
            THEN l.nonce END,
    wanted_until = CASE WHEN l.wanted_by = ?6 OR l.boot_id <> ?3 THEN 0 ELSE l.wanted_until END,
    holder_id = excluded.holder_id,
    boot_id = ?3,
    expires_at = excluded.expires_at,
    holder = excluded.holder,
    meta = excluded.meta
WHERE l.holder_id IS NULL
   OR l.holder_id = excluded.holder_id
   OR l.expires_at <= ?4
   OR (l.boot_id <> ?3 AND length(l.boot_id) = 16)
RETURNING lock_name, token";

/// `?1` rows of name, TTL, token or null, ticket step (0 keep, 1 issue, 2 redeem); `?2` owners;
/// `?6` nonces.
pub(super) const RENEW: &str = "
UPDATE distributed_lock AS l SET
    expires_at = ?4 + (j.value ->> 1),
    nonce = CASE j.value ->> 3 WHEN 0 THEN l.nonce WHEN 1 THEN substr(?6, j.key * 16 + 1, 16) END
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND l.boot_id = ?3 AND l.expires_at > ?4
   AND (j.value ->> 2 IS NULL OR l.token = j.value ->> 2)
   AND (j.value ->> 3 <> 2 OR l.nonce = substr(?6, j.key * 16 + 1, 16))
RETURNING lock_name, token";

/// `?1` rows of name, token or null; `?2` owners; `?6` this process's hint id.
pub(super) const RELEASE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, boot_id = ?3, expires_at = ?4, holder = '', meta = NULL, nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.holder_id = substr(?2, j.key * 16 + 1, 16)
   AND (j.value ->> 1 IS NULL OR l.token = j.value ->> 1)
RETURNING lock_name, wanted_until > ?4 AND wanted_by <> ?6";

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

/// `?1` rows of name, token. The text in `meta` is [`FORCED`](crate::dialect::FORCED).
pub(super) const FORCE: &str = "
UPDATE distributed_lock AS l SET
    holder_id = NULL, expires_at = ?4, holder = '', meta = 'force-released', nonce = NULL
  FROM json_each(?1) AS j
 WHERE l.lock_name = j.value ->> 0
   AND l.token = j.value ->> 1
   AND l.holder_id IS NOT NULL AND l.boot_id = ?3 AND l.expires_at > ?4
RETURNING lock_name";

/// `?1` rows of key, start, length; `?2` values. A tombstone's version is exceeded, never repeated.
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

/// Takes and frees in one transaction, sent as a whole: four answers, of which the second and the
/// third count rows.
pub(super) fn take_and_free(takers: &Source) -> String {
    let (take, free) = (filled(TAKE, takers), filled(FREE, &LEASES_BESIDE));
    format!("BEGIN IMMEDIATE; {take}; {free}; COMMIT")
}
