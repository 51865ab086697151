//! Property: a value out of range is refused before a request is sent to the store, and a value at
//! the limit works.

use std::time::Duration;

use distlock_core::{ErrorKind, LockName, Locker, RecordKey};

use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error, fail},
    lock_layer::LockLayer as _,
    spec::{Spec, case},
    support::{Context, RecordingBackend, acquire_free, inspect_lock, release_clean},
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        limits::ttl_out_of_range_is_refused,
        "TTLs of zero, below the minimum and above 24 h are refused before the store is asked"
    ),
    case!(
        limits::ttl_at_its_limits_works,
        "the smallest and the largest TTL work"
    ),
    case!(
        limits::bad_names_are_refused,
        "empty, long and unprintable names are refused before the store is asked"
    ),
    case!(
        limits::bad_labels_are_refused,
        "labels that are empty, long or unprintable are refused before the store is asked"
    ),
    case!(
        limits::bad_meta_is_refused,
        "texts of 4,097 bytes or with a NUL are refused before the store is asked"
    ),
    case!(
        limits::largest_label_and_meta_work,
        "a label of 128 bytes and a text of 4,096 bytes come back whole"
    ),
    case!(
        limits::min_hold_out_of_range_is_refused,
        "a minimum hold above 24 h is refused before the store is asked"
    ),
    case!(
        limits::bad_keys_are_refused,
        "record keys that are empty, long or unprintable are refused"
    ),
    case!(
        limits::capabilities_are_as_declared,
        "an opened store has the declared capabilities, and their numbers make sense"
    ),
    case!(
        limits::errors_are_one_line,
        "an error is one line that names the backend, the lock and the problem"
    ),
];

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Opens a locker over a backend that records every request.
async fn recording_locker(cx: &Context) -> Outcome<(Locker, RecordingBackend)> {
    let recording = RecordingBackend::new(cx.store().await?.backend());
    let locker = Locker::new(recording.clone().into_lock());
    // The keeper thread opens its own handle here. So every later request comes from the case.
    locker.ready().await?;
    Ok((locker, recording))
}

/// Checks that no request has reached the backend, and closes the locker.
async fn ensure_no_requests_and_close(locker: Locker, recording: &RecordingBackend) -> Outcome {
    let asked = recording.called_methods();
    ensure!(asked.is_empty(), "the store was asked to {asked:?}");
    locker.close().await;
    Ok(())
}

async fn ttl_out_of_range_is_refused(cx: Context) -> Outcome {
    let (locker, recording) = recording_locker(&cx).await?;
    let name = cx.name("a");
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(999),
        cx.capabilities().min_ttl - Duration::from_nanos(1),
        DAY + Duration::from_nanos(1),
        DAY + Duration::from_millis(1),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ] {
        let what = format!("ttl {ttl:?}");
        expect_error(
            &what,
            locker.lock(&name).ttl(ttl).acquire().await,
            &[ErrorKind::InvalidArgument],
        )?;
        expect_error(
            &what,
            locker.lock(&name).ttl(ttl).try_acquire().await,
            &[ErrorKind::InvalidArgument],
        )?;
        expect_error(
            &what,
            locker.lock(&name).ttl(ttl).run(async |_| ()).await,
            &[ErrorKind::InvalidArgument],
        )?;
        expect_error(
            &what,
            locker.lock_all([&name]).ttl(ttl).acquire().await,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    ensure_no_requests_and_close(locker, &recording).await
}

async fn ttl_at_its_limits_works(cx: Context) -> Outcome {
    let locker = cx.locker().await?;
    for ttl in [cx.capabilities().min_ttl, DAY] {
        let guard = locker.lock(cx.name("a")).ttl(ttl).acquire().await?;
        ensure!(
            cx.is_expected_lease(guard.ttl().duration(), ttl),
            "the guard tells {:?} for {ttl:?}",
            guard.ttl()
        );
        ensure!(
            guard.remaining() < ttl,
            "{:?} remain of {ttl:?}",
            guard.remaining()
        );
        // On a busy machine a lease with the smallest TTL may have ended by now, so the lock may be
        // lost. The result of the release is ignored.
        drop(guard.release().await);
    }
    Ok(())
}

async fn bad_names_are_refused(cx: Context) -> Outcome {
    let (locker, recording) = recording_locker(&cx).await?;
    for name in [
        String::new(),
        "x".repeat(LockName::MAX_BYTES + 1),
        "é".repeat(LockName::MAX_BYTES / 2 + 1),
        "a\0b".into(),
        "a\nb".into(),
        "tab\t".into(),
        "\u{7f}".into(),
        "\u{1b}[31mred".into(),
        "\u{85}".into(),
    ] {
        let what = format!("name {name:?}");
        let kinds = &[ErrorKind::InvalidName];
        expect_error(
            &what,
            locker.lock(&name).ttl(cx.long_ttl()).acquire().await,
            kinds,
        )?;
        expect_error(
            &what,
            locker.lock(&name).ttl(cx.long_ttl()).try_acquire().await,
            kinds,
        )?;
        expect_error(
            &what,
            locker.lock_all([&name]).ttl(cx.long_ttl()).acquire().await,
            kinds,
        )?;
        expect_error(&what, locker.inspect(&name).await, kinds)?;
        let token = distlock_core::FencingToken::new(1)?;
        let error = expect_error(&what, locker.force_release(&name, token).await, kinds)?;
        ensure!(
            !error.to_string().contains(char::is_control),
            "the error repeats a control character: {error:?}"
        );
    }
    ensure_no_requests_and_close(locker, &recording).await
}

async fn bad_labels_are_refused(cx: Context) -> Outcome {
    let (locker, recording) = recording_locker(&cx).await?;
    for label in [
        String::new(),
        "x".repeat(129),
        "é".repeat(65),
        "a\nb".into(),
        "\u{1b}[31mred".into(),
    ] {
        let answer = locker
            .lock(cx.name("a"))
            .ttl(cx.long_ttl())
            .holder(&label)
            .acquire()
            .await;
        let error = expect_error(
            &format!("label {label:?}"),
            answer,
            &[ErrorKind::InvalidArgument],
        )?;
        ensure!(
            !error.to_string().contains(char::is_control),
            "the error repeats a control character: {error:?}"
        );
    }
    ensure_no_requests_and_close(locker, &recording).await
}

async fn bad_meta_is_refused(cx: Context) -> Outcome {
    let (locker, recording) = recording_locker(&cx).await?;
    for meta in ["x".repeat(4097), "é".repeat(2049), "a\0b".into()] {
        let answer = locker
            .lock(cx.name("a"))
            .ttl(cx.long_ttl())
            .meta(&meta)
            .acquire()
            .await;
        expect_error(
            &format!("a text of {} bytes", meta.len()),
            answer,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    ensure_no_requests_and_close(locker, &recording).await
}

async fn largest_label_and_meta_work(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    for (number, (label, meta)) in [
        ("x".repeat(128), "y".repeat(4096)),
        ("🔒".repeat(32), "🔑".repeat(1024)),
        ("x".into(), String::new()),
    ]
    .into_iter()
    .enumerate()
    {
        let name = cx.name(&number.to_string());
        let guard = holder
            .lock(&name)
            .ttl(cx.long_ttl())
            .holder(&label)
            .meta(&meta)
            .acquire()
            .await?;
        let Some(held) = inspect_lock(&other, &name).await?.held else {
            fail!("held and shown as free")
        };
        ensure_eq!(held.holder, label, "the label");
        // A store may return no text for an empty text.
        ensure_eq!(held.meta.unwrap_or_default(), meta, "the text");
        release_clean(guard).await?;
    }
    Ok(())
}

async fn min_hold_out_of_range_is_refused(cx: Context) -> Outcome {
    let (locker, recording) = recording_locker(&cx).await?;
    for least in [DAY + Duration::from_millis(1), Duration::MAX] {
        let answer = locker
            .lock(cx.name("a"))
            .ttl(cx.long_ttl())
            .min_hold(least)
            .acquire()
            .await;
        expect_error(
            &format!("min_hold {least:?}"),
            answer,
            &[ErrorKind::InvalidArgument],
        )?;
    }
    ensure_no_requests_and_close(locker, &recording).await
}

async fn bad_keys_are_refused(cx: Context) -> Outcome {
    for key in [
        String::new(),
        "x".repeat(RecordKey::MAX_BYTES + 1),
        "a\0b".into(),
        "a\nb".into(),
    ] {
        expect_error(
            &format!("key {key:?}"),
            RecordKey::new(&key),
            &[ErrorKind::InvalidName],
        )?;
    }
    let records = cx.store().await?.records();
    // Every text is a valid prefix, even a text with which no key can start.
    for prefix in ["\n".to_owned(), "x".repeat(RecordKey::MAX_BYTES + 1)] {
        ensure_eq!(
            records.scan(&prefix, None, 10).await?.len(),
            0,
            "records under an impossible prefix"
        );
        ensure_eq!(
            cx.locker().await?.list(&prefix).await?.len(),
            0,
            "locks under an impossible prefix"
        );
    }
    Ok(())
}

async fn capabilities_are_as_declared(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let found = store.backend().capabilities().clone();
    ensure_eq!(&found, cx.capabilities(), "the capabilities");
    ensure!(
        !found.backend.is_empty() && found.backend.is_ascii(),
        "the backend's name is {:?}",
        found.backend
    );
    ensure!(
        found.min_ttl >= Duration::from_millis(1) && found.min_ttl <= found.default_ttl,
        "smallest TTL {:?}, usual TTL {:?}",
        found.min_ttl,
        found.default_ttl
    );
    ensure!(
        found.default_ttl <= DAY,
        "usual TTL {:?}",
        found.default_ttl
    );
    ensure!(
        !found.ttl_granularity.is_zero() && found.ttl_granularity <= found.min_ttl,
        "TTLs in steps of {:?}",
        found.ttl_granularity
    );
    // A lock that is taken without a TTL gets the default TTL.
    let guard = store.locker().lock(cx.name("a")).acquire().await?;
    ensure!(
        cx.is_expected_lease(guard.ttl().duration(), found.default_ttl),
        "a lock without a TTL got {:?}",
        guard.ttl()
    );
    release_clean(guard).await
}

/// This case checks one error: the error of an acquire whose wait ends while the lock is held.
async fn errors_are_one_line(cx: Context) -> Outcome {
    let (holder, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    let answer = other
        .lock(&name)
        .ttl(cx.long_ttl())
        .wait(Duration::from_millis(50))
        .acquire()
        .await;
    let error = expect_error("acquire of a held lock", answer, &[ErrorKind::Timeout])?;
    let text = error.to_string();
    ensure!(
        text.contains(cx.capabilities().backend) && text.contains(cx.prefix()),
        "backend or lock is missing in {text:?}"
    );
    ensure!(
        !text.contains(char::is_control) && !text.ends_with('.'),
        "not one plain line: {text:?}"
    );
    ensure!(
        error.is_retryable() && !error.is_lost() && error.did_not_happen(),
        "the predicates of a timeout"
    );
    ensure_eq!(
        error.name().map(LockName::as_str),
        Some(name.as_str()),
        "the lock that the error names"
    );
    release_clean(guard).await
}
