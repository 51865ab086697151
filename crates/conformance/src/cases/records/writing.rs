//! Writing records: every write is conditional, and no version is used twice.

use std::{collections::BTreeSet, sync::Arc};

use distlock_core::{Deleted, ErrorKind, Expect, MAX_VALUE_BYTES, Version, Written};
use tokio::sync::Barrier;

use super::steps::{expect_conflict, open_two_clients, put_record, read_record};
use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error},
    spec::{Spec, case},
    support::{Context, join, start},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        records::write_without_a_record_creates_it_once,
        "a write that expects no record creates it once"
    ),
    case!(
        records::version_must_match,
        "a write with another version than the present one is a conflict and changes nothing"
    ),
    case!(
        records::missing_record_conflicts,
        "a write or delete that expects a version of a missing record is a conflict"
    ),
    case!(
        records::delete_checks_the_version,
        "a delete removes the present version and no other"
    ),
    case!(
        records::versions_rise,
        "versions of a key rise with every write"
    ),
    case!(
        records::versions_never_repeat,
        "no version is used twice, also not after a delete"
    ),
    case!(
        records::stale_write_after_recreation_conflicts,
        "a version from before a delete never matches a record that was created after it"
    ),
    case!(
        records::concurrent_increments_are_exact,
        "concurrent increments of one record add up exactly"
    ),
    case!(
        records::concurrent_creation_has_one_winner,
        "of eight clients that create one record exactly one succeeds"
    ),
    case!(
        records::too_large_a_value_is_refused,
        "a value above the limit is refused and changes nothing"
    ),
    case!(
        records::reopened_handle_shares_the_store,
        "a reopened handle reads and writes the same records"
    ),
];

async fn write_without_a_record_creates_it_once(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    ensure_eq!(
        one.get(&key).await?,
        None,
        "a record that was never written"
    );
    let version = put_record(&*one, &key, b"first", Expect::Absent).await?;
    expect_conflict(&*one, &key, Expect::Absent).await?;
    expect_conflict(&*two, &key, Expect::Absent).await?;
    for records in [&one, &two] {
        let entry = read_record(&**records, &key).await?;
        ensure_eq!(
            (entry.version, entry.value),
            (version, b"first".to_vec()),
            "the record"
        );
    }
    Ok(())
}

async fn version_must_match(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let first = put_record(&*one, &key, b"1", Expect::Absent).await?;
    let second = put_record(&*two, &key, b"2", Expect::Version(first)).await?;
    for stale in [first.get(), second.get() + 1, 0, u64::from(u32::MAX) << 20] {
        expect_conflict(&*one, &key, Expect::Version(Version::new(stale))).await?;
    }
    let entry = read_record(&*one, &key).await?;
    ensure_eq!(
        (entry.version, entry.value),
        (second, b"2".to_vec()),
        "the record"
    );
    Ok(())
}

async fn missing_record_conflicts(cx: Context) -> Outcome {
    let (records, key) = (cx.store().await?.records(), cx.key("a")?);
    for version in [0, 1, 7] {
        expect_conflict(&*records, &key, Expect::Version(Version::new(version))).await?;
        ensure_eq!(
            records.delete(&key, Version::new(version)).await?,
            Deleted::Conflict,
            "a delete of nothing"
        );
    }
    ensure_eq!(records.get(&key).await?, None, "the record");
    Ok(())
}

async fn delete_checks_the_version(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let first = put_record(&*one, &key, b"1", Expect::Absent).await?;
    let second = put_record(&*one, &key, b"2", Expect::Version(first)).await?;
    ensure_eq!(
        two.delete(&key, first).await?,
        Deleted::Conflict,
        "a delete of an older version"
    );
    ensure_eq!(
        read_record(&*two, &key).await?.version,
        second,
        "the version"
    );
    ensure_eq!(
        two.delete(&key, second).await?,
        Deleted::Done,
        "a delete of the present version"
    );
    ensure_eq!(one.get(&key).await?, None, "the record");
    ensure_eq!(
        one.scan(cx.prefix(), None, 10).await?.len(),
        0,
        "scanned records"
    );
    ensure_eq!(
        one.delete(&key, second).await?,
        Deleted::Conflict,
        "a second delete"
    );
    Ok(())
}

async fn versions_rise(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let mut last = put_record(&*one, &key, b"0", Expect::Absent).await?;
    for turn in 1..20_u8 {
        let records = if turn % 2 == 0 { &one } else { &two };
        // Some writes repeat the present value. The version must rise then too.
        let next = put_record(&**records, &key, &[turn / 4], Expect::Version(last)).await?;
        ensure!(next > last, "{last:?} was followed by {next:?}");
        ensure_eq!(
            read_record(&*one, &key).await?.version,
            next,
            "the version that is read"
        );
        last = next;
    }
    Ok(())
}

async fn versions_never_repeat(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let mut used = BTreeSet::new();
    for turn in 0..8 {
        let records = if turn % 2 == 0 { &one } else { &two };
        let first = put_record(&**records, &key, b"1", Expect::Absent).await?;
        let second = put_record(&*one, &key, b"2", Expect::Version(first)).await?;
        for version in [first, second] {
            ensure!(
                used.last().is_none_or(|last| *last < version),
                "{version:?} after {used:?}"
            );
            used.insert(version);
        }
        ensure_eq!(two.delete(&key, second).await?, Deleted::Done, "a delete");
    }
    Ok(())
}

async fn stale_write_after_recreation_conflicts(cx: Context) -> Outcome {
    let (records, key) = (cx.store().await?.records(), cx.key("a")?);
    let mut old = Vec::new();
    for _ in 0..4 {
        let version = put_record(&*records, &key, b"same value", Expect::Absent).await?;
        for stale in &old {
            expect_conflict(&*records, &key, Expect::Version(*stale)).await?;
            ensure_eq!(
                records.delete(&key, *stale).await?,
                Deleted::Conflict,
                "a delete of {stale:?}"
            );
        }
        old.push(version);
        ensure_eq!(
            records.delete(&key, version).await?,
            Deleted::Done,
            "a delete"
        );
    }
    Ok(())
}

async fn concurrent_increments_are_exact(cx: Context) -> Outcome {
    const TASKS: u32 = 6;
    const INCREMENTS: u32 = 10;
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("counter")?);
    put_record(&*one, &key, b"0", Expect::Absent).await?;
    let all_have_read = Arc::new(Barrier::new(TASKS as usize));
    let tasks = (0..TASKS).map(|number| {
        let records = if number % 2 == 0 { &one } else { &two }.clone();
        let (key, barrier) = (key.clone(), Arc::clone(&all_have_read));
        start(async move {
            // In the first round no task writes before all tasks have read the same value. So the
            // case notices a store that accepts every write, in whatever order the tasks run.
            let mut first = true;
            let mut versions = Vec::new();
            while versions.len() < INCREMENTS as usize {
                let entry = read_record(&*records, &key).await;
                if std::mem::take(&mut first) {
                    barrier.wait().await;
                }
                let entry = entry?;
                let value: u32 = String::from_utf8_lossy(&entry.value)
                    .parse()
                    .map_err(|_| format!("not a number: {entry:?}"))?;
                let next = (value + 1).to_string();
                if let Written::Stored(version) = records
                    .put(&key, next.as_bytes(), Expect::Version(entry.version))
                    .await?
                {
                    versions.push(version);
                }
            }
            Ok(versions)
        })
    });
    let versions = join(tasks.collect::<Vec<_>>()).await?.concat();
    ensure_eq!(
        read_record(&*one, &key).await?.value,
        (TASKS * INCREMENTS).to_string().into_bytes(),
        "the counter"
    );
    let distinct: BTreeSet<_> = versions.iter().collect();
    ensure_eq!(distinct.len(), versions.len(), "distinct versions");
    Ok(())
}

async fn concurrent_creation_has_one_winner(cx: Context) -> Outcome {
    const CLIENTS: usize = 8;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cx.store().await?.records());
    }
    for round in 0..3 {
        let (key, barrier) = (cx.key(&round.to_string())?, Arc::new(Barrier::new(CLIENTS)));
        let tasks = clients
            .iter()
            .cloned()
            .enumerate()
            .map(|(number, records)| {
                let (key, barrier) = (key.clone(), Arc::clone(&barrier));
                start(async move {
                    barrier.wait().await;
                    let value = number.to_string();
                    Ok(
                        match records.put(&key, value.as_bytes(), Expect::Absent).await? {
                            Written::Stored(version) => Some((version, value.into_bytes())),
                            Written::Conflict => None,
                        },
                    )
                })
            });
        let winners: Vec<_> = join(tasks.collect::<Vec<_>>())
            .await?
            .into_iter()
            .flatten()
            .collect();
        ensure_eq!(winners.len(), 1, "winners in round {round}");
        let entry = read_record(&*clients[0], &key).await?;
        ensure_eq!((entry.version, entry.value), winners[0], "the record");
    }
    Ok(())
}

async fn too_large_a_value_is_refused(cx: Context) -> Outcome {
    let (records, key) = (cx.store().await?.records(), cx.key("a")?);
    let large = vec![7; MAX_VALUE_BYTES + 1];
    expect_error(
        "a put above the limit",
        records.put(&key, &large, Expect::Absent).await,
        &[ErrorKind::LimitExceeded],
    )?;
    ensure_eq!(records.get(&key).await?, None, "the record");
    let version = put_record(&*records, &key, b"small", Expect::Absent).await?;
    expect_error(
        "a put above the limit",
        records.put(&key, &large, Expect::Version(version)).await,
        &[ErrorKind::LimitExceeded],
    )?;
    ensure_eq!(
        read_record(&*records, &key).await?.version,
        version,
        "the version"
    );
    Ok(())
}

async fn reopened_handle_shares_the_store(cx: Context) -> Outcome {
    let (records, key) = (cx.store().await?.records(), cx.key("a")?);
    let version = put_record(&*records, &key, b"1", Expect::Absent).await?;
    let second = records.reopen().await?;
    ensure_eq!(
        second.backend(),
        records.backend(),
        "the backend of the second handle"
    );
    ensure_eq!(
        read_record(&*second, &key).await?.version,
        version,
        "the version that the second handle reads"
    );
    let version = put_record(&*second, &key, b"2", Expect::Version(version)).await?;
    ensure_eq!(
        read_record(&*records, &key).await?.version,
        version,
        "the version that the first handle reads"
    );
    second.close().await;
    // The first handle still works after the second one was closed.
    ensure_eq!(
        read_record(&*records, &key).await?.value,
        b"2".to_vec(),
        "the value"
    );
    Ok(())
}
