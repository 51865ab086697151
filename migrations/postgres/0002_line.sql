-- The line of processes that wait for a lock. It only decides who asks first: exclusion never rests
-- on it, so it need not survive a crash (UNLOGGED). Programs that know only 0001 go on working
-- beside it, so the version in distributed_meta stays 1; that this table is there says that 0002
-- was applied.

CREATE UNLOGGED TABLE IF NOT EXISTS distributed_line (
    lock_name  text        COLLATE "C" NOT NULL,
    waiter     bigint      NOT NULL,                                   -- one contender of one process
    ticket     timestamptz NOT NULL,                                   -- when it joined: the order of the line
    expires_at timestamptz NOT NULL,                                   -- when its place lapses unless it is renewed
    CONSTRAINT distributed_line_place PRIMARY KEY (lock_name, waiter)
) WITH (fillfactor = 50);
