//! Reading records: every client reads whole values, in order, and never a value from before the
//! latest write.

use std::time::Duration;

use distlock_core::{Expect, MAX_VALUE_BYTES, RecordKey};

use super::steps::{open_two_clients, put_record, read_record};
use crate::{
    Failure, Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{Context, now, sleep},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        records::other_clients_read_a_write_at_once,
        "a write is seen by every read that starts later"
    ),
    case!(
        records::scan_is_in_order,
        "a scan returns the records under a prefix in byte order of their keys"
    ),
    case!(
        records::scan_pages_without_gaps,
        "pages of a scan neither repeat nor miss a record"
    ),
    case!(
        records::get_many_keeps_the_order,
        "get_many answers in the order of its keys, missing and repeated ones included"
    ),
    case!(
        records::ages_count_from_the_write,
        "ages, where the store tells them, count from the last write"
    ),
    case!(
        records::store_time_advances,
        "where the store tells ages, each read tells the store's time, which never goes back"
    ),
    case!(
        records::any_bytes_are_values,
        "values are any bytes, from none to the limit"
    ),
];

async fn other_clients_read_a_write_at_once(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let mut expect = Expect::Absent;
    for turn in 0..25_u8 {
        let version = put_record(&*one, &key, &[turn], expect).await?;
        let entry = read_record(&*two, &key).await?;
        ensure_eq!(
            (entry.version, entry.value),
            (version, vec![turn]),
            "what another client reads"
        );
        let scanned = two.scan(cx.prefix(), None, 10).await?;
        ensure_eq!(
            scanned.first().map(|(_, entry)| entry.version),
            Some(version),
            "what another client scans"
        );
        expect = Expect::Version(version);
    }
    Ok(())
}

async fn scan_is_in_order(cx: Context) -> Outcome {
    let (records, mut expected) = (cx.store().await?.records(), Vec::new());
    for tail in ["m", "b", "Z", "a", "é", "b/1", "b-1"] {
        let key = cx.key(tail)?;
        put_record(&*records, &key, tail.as_bytes(), Expect::Absent).await?;
        expected.push((key, tail.as_bytes().to_vec()));
    }
    expected.sort_unstable();
    let scanned = records.scan(cx.prefix(), None, 100).await?;
    let scanned: Vec<_> = scanned
        .into_iter()
        .map(|(key, entry)| (key, entry.value))
        .collect();
    ensure_eq!(scanned, expected, "scanned records");
    ensure_eq!(
        records.scan(&cx.name("b"), None, 100).await?.len(),
        3,
        "records under b"
    );
    ensure_eq!(
        records.scan(&cx.name("nothing"), None, 100).await?.len(),
        0,
        "records under nothing"
    );
    Ok(())
}

async fn scan_pages_without_gaps(cx: Context) -> Outcome {
    let (records, mut expected) = (cx.store().await?.records(), Vec::new());
    for number in 0..23 {
        let key = cx.key(&format!("{number:03}"))?;
        put_record(&*records, &key, b"x", Expect::Absent).await?;
        expected.push(key);
    }
    for limit in [1, 5, 23, 100] {
        let mut seen: Vec<RecordKey> = Vec::new();
        loop {
            let page = records.scan(cx.prefix(), seen.last(), limit).await?;
            ensure!(
                page.len() <= limit as usize,
                "a page of {} for a limit of {limit}",
                page.len()
            );
            if page.is_empty() {
                break;
            }
            seen.extend(page.into_iter().map(|(key, _)| key));
        }
        ensure_eq!(seen, expected, "keys in pages of {limit}");
    }
    // A page may start after a key without a record.
    let page = records.scan(cx.prefix(), Some(&cx.key("010x")?), 2).await?;
    let keys: Vec<_> = page.into_iter().map(|(key, _)| key).collect();
    ensure_eq!(
        keys,
        expected[11..13].to_vec(),
        "the page after a missing key"
    );
    Ok(())
}

async fn get_many_keeps_the_order(cx: Context) -> Outcome {
    let records = cx.store().await?.records();
    let [a, b, c] = [cx.key("a")?, cx.key("b")?, cx.key("c")?];
    put_record(&*records, &a, b"A", Expect::Absent).await?;
    put_record(&*records, &c, b"C", Expect::Absent).await?;
    let keys = [c.clone(), b, a.clone(), c, a];
    let entries = records.get_many(&keys).await?;
    let values: Vec<_> = entries
        .into_iter()
        .map(|entry| entry.map(|entry| entry.value))
        .collect();
    let (a, c) = (Some(b"A".to_vec()), Some(b"C".to_vec()));
    ensure_eq!(values, vec![c.clone(), None, a.clone(), c, a], "values");
    ensure_eq!(records.get_many(&[]).await?.len(), 0, "values of no keys");
    // Far more keys than a store reads in one request of its own.
    let mut keys = Vec::new();
    for number in 0..999 {
        keys.push(cx.key(&format!("missing/{number}"))?);
    }
    keys.insert(500, cx.key("a")?);
    let entries = records.get_many(&keys).await?;
    ensure_eq!(entries.len(), keys.len(), "entries for many keys");
    let found = entries.iter().position(Option::is_some);
    ensure_eq!(found, Some(500), "the entry that exists");
    ensure_eq!(entries.iter().flatten().count(), 1, "entries that exist");
    Ok(())
}

async fn ages_count_from_the_write(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    let before = now();
    let version = put_record(&*one, &key, b"1", Expect::Absent).await?;
    sleep(Duration::from_millis(300)).await;
    let entry = read_record(&*two, &key).await?;
    let most = now().since(before);
    let Some(age) = entry.age else {
        ensure!(!two.tells_ages(), "ages are promised and not told");
        return Err(Failure::not_applicable("this store's records have no ages"));
    };
    ensure!(two.tells_ages(), "ages are told and not promised");
    let coarse = cx
        .capabilities()
        .ttl_granularity
        .max(Duration::from_millis(5));
    ensure!(
        age + coarse >= Duration::from_millis(300) && age <= most + coarse,
        "{age:?} old, written 300 ms to {most:?} ago"
    );
    put_record(&*one, &key, b"2", Expect::Version(version)).await?;
    let written = now();
    let Some((_, entry)) = two.scan(cx.prefix(), None, 1).await?.pop() else {
        fail!("not scanned")
    };
    let (age, most) = (entry.age.unwrap_or(Duration::MAX), now().since(written));
    ensure!(
        age <= most + coarse + Duration::from_millis(200),
        "{age:?} old right after a second write"
    );
    Ok(())
}

async fn store_time_advances(cx: Context) -> Outcome {
    let ((one, two), key) = (open_two_clients(&cx).await?, cx.key("a")?);
    put_record(&*one, &key, b"1", Expect::Absent).await?;
    let asked = now();
    let first = read_record(&*one, &key).await?.store_time;
    let answered = now();
    let Some(first) = first else {
        ensure!(
            !one.tells_ages(),
            "the store's time is promised and not told"
        );
        return Err(Failure::not_applicable("this store does not tell its time"));
    };
    ensure!(
        one.tells_ages(),
        "the store's time is told and not promised"
    );
    // Each kind of read tells the time, by any client.
    let mut last = first;
    for records in [&one, &two, &one] {
        let many = records.get_many(&[cx.key("missing")?, key.clone()]).await?;
        let many = many.into_iter().flatten().next();
        let scanned = records.scan(cx.prefix(), None, 1).await?.pop();
        let scanned = scanned.map(|(_, entry)| entry);
        for (read, entry) in [("get_many", many), ("scan", scanned)] {
            let Some(time) = entry.and_then(|entry| entry.store_time) else {
                fail!("{read} does not tell the store's time");
            };
            ensure!(time >= last, "{read} read {time:?} after {last:?}");
            last = time;
        }
    }
    sleep(Duration::from_millis(300)).await;
    let asked_again = now();
    let Some(second) = read_record(&*two, &key).await?.store_time else {
        fail!("the second read does not tell the store's time");
    };
    let (least, most) = (asked_again.since(answered), now().since(asked));
    ensure!(second >= last, "a read told {second:?} after {last:?}");
    let advanced = second.saturating_sub(first);
    let coarse = cx
        .capabilities()
        .ttl_granularity
        .max(Duration::from_millis(20));
    ensure!(
        advanced + coarse >= least && advanced <= most + coarse,
        "the store's time advanced by {advanced:?} in {least:?} to {most:?}"
    );
    Ok(())
}

async fn any_bytes_are_values(cx: Context) -> Outcome {
    let (records, two) = open_two_clients(&cx).await?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(MAX_VALUE_BYTES)
        .collect();
    let values: [&[u8]; 6] = [
        b"",
        b"\0",
        b"\xff\xfe",
        &every_byte,
        b"'; DROP TABLE locks; --",
        &random,
    ];
    for (number, value) in values.into_iter().enumerate() {
        let key = cx.key(&number.to_string())?;
        put_record(&*records, &key, value, Expect::Absent).await?;
        let entry = read_record(&*two, &key).await?;
        ensure!(
            entry.value == value,
            "value {number} of {} bytes came back as {} bytes",
            value.len(),
            entry.value.len()
        );
    }
    let scanned = two.scan(cx.prefix(), None, 10).await?;
    ensure!(
        scanned
            .iter()
            .map(|(_, entry)| entry.value.as_slice())
            .eq(values),
        "values of a scan differ"
    );
    Ok(())
}
