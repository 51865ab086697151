//! Property: two names are one lock if and only if they are equal byte for byte.

use distlock_core::{Attempt, Expect, Guard, LockName, RecordKey, Written};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, fail},
    spec::{Spec, case},
    support::{Context, SOON, acquire_free, expect_busy, inspect_lock, join, release_clean, start},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        names::tricky_names_are_distinct,
        "names that a store may confuse are held at once, each by its own holder"
    ),
    case!(
        names::tricky_names_exclude_themselves,
        "every tricky name excludes itself"
    ),
    case!(
        names::bare_special_names_work,
        "names such as `.`, `..`, `/` and `%` work on their own"
    ),
    case!(
        names::longest_names_differ_in_the_last_byte,
        "names of 255 bytes are distinguished by their last byte"
    ),
    case!(
        names::list_returns_names_unchanged,
        "listed names are the ones that were taken, in byte order"
    ),
    case!(
        names::list_prefix_is_literal,
        "a list prefix matches bytes, never patterns"
    ),
    case!(
        names::tricky_keys_are_distinct,
        "record keys that a store may confuse are distinct, and scans return them unchanged"
    ),
    case!(
        names::scan_prefix_is_literal,
        "a scan prefix matches bytes, never patterns"
    ),
    case!(
        names::longest_keys_work,
        "record keys of 512 bytes are distinguished by their last byte"
    ),
    case!(
        names::locks_and_records_are_separate,
        "a lock and a record of the same name have nothing to do with each other"
    ),
];

/// Names that a store may confuse, because the store ignores case, trims or splits names, expands
/// patterns, or sorts in its own order. All these names are distinct.
const TRICKY: &[&str] = &[
    "a",
    "A",
    "a ",
    " a",
    "a  ",
    "ab",
    "a/b",
    "a/",
    "/a",
    "a//b",
    "a.b",
    ".",
    "..",
    "a/..",
    "a/.",
    "./a",
    "~",
    "~41",
    "\\",
    "a\\",
    "a\\b",
    "%",
    "%61",
    "%%",
    "a%",
    "_",
    "a_",
    "*",
    "?",
    "[a]",
    "[",
    "]",
    "{a}",
    "{",
    "}",
    "a{b}c",
    "'",
    "''",
    "\"",
    "`",
    "--",
    ";",
    "a;b",
    "#",
    "$",
    "&",
    "|",
    "!",
    "^",
    "+",
    ":",
    "a:b",
    "@",
    "=",
    ",",
    "<a>",
    "(a)",
    "0",
    "00",
    "1",
    "01",
    "null",
    "NULL",
    "true",
    "ä",
    "a\u{308}",
    "é",
    "e\u{301}",
    "ß",
    "ss",
    "ſ",
    "ı",
    "i",
    "I",
    "İ",
    "K",
    "\u{212a}",
    "ﬁ",
    "fi",
    "日本",
    "日",
    "🔒",
    "👩‍👩‍👧",
    "👩",
    "\u{a0}",
    "\u{200b}",
    "\u{feff}",
    "а",
    "o",
    "ο",
    "zookeeper",
    "lock-0000000001",
    "lock-",
    "-",
    "a-b",
    "tombstone",
    "\u{10ffff}",
];

/// Takes a lock for each tricky name. Returns the names with their guards.
async fn acquire_tricky_names(
    cx: &Context,
    locker: &distlock_core::Locker,
) -> Outcome<Vec<(String, Guard)>> {
    let tasks = TRICKY.iter().map(|tail| {
        let (locker, name, ttl) = (locker.clone(), cx.name(tail), cx.long_ttl());
        start(async move {
            match locker
                .lock(&name)
                .ttl(ttl)
                .meta(&name)
                .try_acquire()
                .await?
            {
                Attempt::Acquired(guard) => Ok((name, guard)),
                Attempt::Busy(holder) => fail!(
                    "{name:?} contends with {:?}",
                    holder.and_then(|holder| holder.meta)
                ),
            }
        })
    });
    join(tasks.collect::<Vec<_>>()).await
}

/// Releases the guards. It is a failure when a guard had lost its lock.
async fn release_all(guards: Vec<(String, Guard)>) -> Outcome {
    let releases = guards
        .into_iter()
        .map(|(_, guard)| start(release_clean(guard)));
    join(releases.collect::<Vec<_>>()).await.map(drop)
}

async fn tricky_names_are_distinct(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let held = acquire_tricky_names(&cx, &holder).await?;
    for (name, guard) in &held {
        let info = inspect_lock(&other, name).await?;
        ensure_eq!(info.name.as_str(), name, "the name that was looked at");
        let Some(seen) = info.held else {
            fail!("{name:?} is held and looks free")
        };
        ensure_eq!(
            seen.meta.as_ref(),
            Some(name),
            "what stands beside {name:?}"
        );
        ensure_eq!(seen.token, Some(guard.token()), "the token of {name:?}");
    }
    release_all(held).await?;
    ensure_eq!(
        other.list(cx.prefix()).await?.len(),
        0,
        "locks that are left"
    );
    Ok(())
}

async fn tricky_names_exclude_themselves(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let held = acquire_tricky_names(&cx, &holder).await?;
    for (name, _) in &held {
        expect_busy(&other, name).await?;
    }
    release_all(held).await
}

async fn bare_special_names_work(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    for name in [
        ".", "..", "/", "//", "%", "*", "~", "_", "-", "{}", "'", "\\", " ", "🔒",
    ] {
        // These names do not start with the prefix of this case, so another run of the suite may
        // hold one of these locks for a moment. The case waits for that lock.
        let guard = holder
            .lock(name)
            .ttl(cx.long_ttl())
            .wait(SOON)
            .holder(cx.prefix())
            .acquire()
            .await?;
        let Some(seen) = inspect_lock(&other, name).await?.held else {
            fail!("{name:?} is held and looks free")
        };
        ensure_eq!(seen.holder, cx.prefix(), "the holder of {name:?}");
        let listed = other.list(name).await?;
        ensure!(
            listed.iter().any(|info| info.name.as_str() == name),
            "{name:?} is not listed under itself"
        );
        release_clean(guard).await?;
    }
    Ok(())
}

async fn longest_names_differ_in_the_last_byte(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let stem = |fill: &str, last: &str| {
        let mut name = cx.name("");
        while name.len() + fill.len() + last.len() <= LockName::MAX_BYTES {
            name.push_str(fill);
        }
        while name.len() + last.len() < LockName::MAX_BYTES {
            name.push('x');
        }
        name + last
    };
    for fill in ["x", "/", "é", "🔒"] {
        let (one, two) = (stem(fill, "1"), stem(fill, "2"));
        ensure_eq!(one.len(), LockName::MAX_BYTES, "the length");
        let (first, second) = (
            acquire_free(&holder, &one, cx.long_ttl()).await?,
            acquire_free(&other, &two, cx.long_ttl()).await?,
        );
        expect_busy(&other, &one).await?;
        expect_busy(&holder, &two).await?;
        release_clean(first).await?;
        release_clean(second).await?;
    }
    Ok(())
}

async fn list_returns_names_unchanged(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let held = acquire_tricky_names(&cx, &holder).await?;
    let mut expected: Vec<_> = held.iter().map(|(name, _)| name.clone()).collect();
    expected.sort_unstable();
    let listed: Vec<_> = other
        .list(cx.prefix())
        .await?
        .iter()
        .map(|info| info.name.as_str().to_owned())
        .collect();
    ensure_eq!(listed, expected, "listed names");
    release_all(held).await
}

async fn list_prefix_is_literal(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let held = acquire_tricky_names(&cx, &holder).await?;
    for tail in [
        "a", "A", "a ", "%", "_", "*", "?", "[", "{", "'", "\\", "a/", ".", "~", "é", "e", "日",
        "zz",
    ] {
        let prefix = cx.name(tail);
        let mut expected: Vec<_> = held
            .iter()
            .map(|(name, _)| name.clone())
            .filter(|name| name.starts_with(&prefix))
            .collect();
        expected.sort_unstable();
        let listed: Vec<_> = other
            .list(&prefix)
            .await?
            .iter()
            .map(|info| info.name.as_str().to_owned())
            .collect();
        ensure_eq!(listed, expected, "names under {tail:?}");
    }
    release_all(held).await
}

/// Writes a record under each tricky key, with the key as its value. Returns the keys.
async fn write_tricky_keys(cx: &Context) -> Outcome<Vec<String>> {
    let records = cx.store().await?.records();
    let mut keys = Vec::new();
    for tail in TRICKY {
        let key = cx.key(tail)?;
        match records
            .put(&key, key.as_str().as_bytes(), Expect::Absent)
            .await?
        {
            Written::Stored(_) => keys.push(key.as_str().to_owned()),
            Written::Conflict => fail!("{key:?} is taken for another key"),
        }
    }
    Ok(keys)
}

async fn tricky_keys_are_distinct(cx: Context) -> Outcome {
    let mut expected = write_tricky_keys(&cx).await?;
    let records = cx.store().await?.records();
    for key in &expected {
        let Some(entry) = records.get(&RecordKey::new(key)?).await? else {
            fail!("{key:?} is gone")
        };
        ensure_eq!(
            String::from_utf8_lossy(&entry.value),
            key.as_str(),
            "the value of {key:?}"
        );
    }
    expected.sort_unstable();
    let scanned: Vec<_> = records
        .scan(cx.prefix(), None, 1000)
        .await?
        .into_iter()
        .map(|(key, _)| key.as_str().to_owned())
        .collect();
    ensure_eq!(scanned, expected, "scanned keys");
    Ok(())
}

async fn scan_prefix_is_literal(cx: Context) -> Outcome {
    let written = write_tricky_keys(&cx).await?;
    let records = cx.store().await?.records();
    for tail in [
        "a", "A", "a ", "%", "_", "*", "?", "[", "{", "'", "\\", "a/", ".", "~", "é", "e", "日",
        "zz",
    ] {
        let prefix = cx.name(tail);
        let mut expected: Vec<_> = written
            .iter()
            .filter(|key| key.starts_with(&prefix))
            .cloned()
            .collect();
        expected.sort_unstable();
        let scanned: Vec<_> = records
            .scan(&prefix, None, 1000)
            .await?
            .into_iter()
            .map(|(key, _)| key.as_str().to_owned())
            .collect();
        ensure_eq!(scanned, expected, "keys under {tail:?}");
    }
    Ok(())
}

async fn longest_keys_work(cx: Context) -> Outcome {
    let records = cx.store().await?.records();
    for fill in ["x", "/", "%"] {
        let stem = |last: &str| {
            let stem = cx.name("");
            let room = RecordKey::MAX_BYTES - stem.len() - last.len();
            RecordKey::new(stem + &fill.repeat(room) + last)
        };
        for last in ["1", "2"] {
            let written = records
                .put(&stem(last)?, last.as_bytes(), Expect::Absent)
                .await?;
            ensure!(
                matches!(written, Written::Stored(_)),
                "a key of 512 bytes: {written:?}"
            );
        }
        for last in ["1", "2"] {
            let value = records.get(&stem(last)?).await?.map(|entry| entry.value);
            ensure_eq!(
                value.as_deref(),
                Some(last.as_bytes()),
                "the value of the key that ends in {last}"
            );
        }
    }
    Ok(())
}

async fn locks_and_records_are_separate(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let (locker, records, name) = (store.locker(), store.records(), cx.name("both"));
    let key = RecordKey::new(&name)?;
    ensure!(
        matches!(
            records.put(&key, b"value", Expect::Absent).await?,
            Written::Stored(_)
        ),
        "written"
    );
    ensure!(
        inspect_lock(&locker, &name).await?.held.is_none(),
        "a record is no lock"
    );
    let guard = acquire_free(&locker, &name, cx.long_ttl()).await?;
    let before = records.get(&key).await?;
    ensure_eq!(
        before.as_ref().map(|entry| entry.value.as_slice()),
        Some(&b"value"[..]),
        "the record beside a held lock"
    );
    ensure_eq!(
        records.scan(cx.prefix(), None, 10).await?.len(),
        1,
        "records beside a held lock"
    );
    release_clean(guard).await?;
    let after = records.get(&key).await?;
    ensure_eq!(
        after.map(|entry| entry.version),
        before.map(|entry| entry.version),
        "the record's version after the release"
    );
    Ok(())
}
