//! The guarded cache, with a lock and a cache in memory. `tests/cache` repeats these cases over
//! Redis, with processes that die.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock as _, Error, ErrorKind, FencingToken, ManualClock, Store, SystemClock};
use distlock_memory::Memory;
use distlock_recipes::cache_guard::{
    Cache, CacheGuard, Fallback, Loaded, MemoryCache, RecordsCache, Settings,
};
use tokio::{
    sync::{Barrier, Notify},
    task::{JoinSet, yield_now},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Settings without randomness.
fn settings() -> Settings {
    let mut settings = Settings::ttl(MINUTE);
    settings.jitter = 0.0;
    settings.beta = 0.0;
    settings
}

#[derive(Clone)]
struct Fixture {
    memory: Memory,
    clock: ManualClock,
    loads: Arc<AtomicU32>,
}

impl Fixture {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self {
            memory: Memory::new(Arc::new(clock.clone())),
            clock,
            loads: Arc::default(),
        }
    }

    fn store(&self) -> Store {
        let clock = Arc::new(self.clock.clone());
        Store::with_clock(self.memory.lock(), self.memory.records(), clock)
    }

    fn cache(&self) -> MemoryCache {
        MemoryCache::with_clock(100, Arc::new(self.clock.clone()))
    }

    fn guard(&self, cache: impl Cache + 'static, settings: Settings) -> CacheGuard {
        CacheGuard::new(&self.store(), cache, settings).unwrap()
    }

    /// Gets the value through the guard, which loads the value if it is not in the cache. A value
    /// is the number of its load.
    async fn get(&self, guard: &CacheGuard) -> u32 {
        let loads = Arc::clone(&self.loads);
        let loader = async move || Ok(Some(next_value(&loads)));
        number(guard.get_or_rebuild("hot", loader).await.unwrap())
    }

    fn loads(&self) -> u32 {
        self.loads.load(Ordering::Acquire)
    }
}

/// Counts a load, and returns its number as the value.
fn next_value(loads: &AtomicU32) -> Vec<u8> {
    let load = loads.fetch_add(1, Ordering::AcqRel) + 1;
    load.to_be_bytes().to_vec()
}

fn number(value: Option<Arc<[u8]>>) -> u32 {
    u32::from_be_bytes(value.unwrap()[..].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_callers_loads_an_expired_value() {
    let fixture = Fixture::new();
    // Four guards with one cache stand for four processes.
    let cache = fixture.cache();
    let guards = [(); 4].map(|()| fixture.guard(cache.clone(), settings()));
    for expiry in 1..=20 {
        let together = Arc::new(Barrier::new(64));
        let mut callers = JoinSet::new();
        for caller in 0..64 {
            let (fixture, guard) = (fixture.clone(), guards[caller % 4].clone());
            let together = Arc::clone(&together);
            callers.spawn(async move {
                together.wait().await;
                fixture.get(&guard).await
            });
        }
        let values = callers.join_all().await;
        assert!(values.iter().all(|value| *value == expiry), "{values:?}");
        assert_eq!(fixture.loads(), expiry);
        fixture.clock.advance(MINUTE);
    }
}

#[tokio::test]
async fn a_hit_sends_no_request_to_the_locks_store() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    assert_eq!(fixture.get(&guard).await, 1);
    fixture.memory.lock().close().await;
    guard
        .get_or_rebuild("hot", async || unreachable!())
        .await
        .unwrap();
    fixture.clock.advance(MINUTE - Duration::from_millis(1));
    assert_eq!(fixture.get(&guard).await, 1);
}

fn loaded(value: &[u8], token: u64) -> Loaded {
    Loaded {
        value: Some(value.into()),
        token: FencingToken::new(token).unwrap(),
        ttl: MINUTE,
        stale: Duration::ZERO,
        floor: MINUTE,
        load: Duration::ZERO,
    }
}

/// Checks that a cache refuses values that come too late, and stores the others.
async fn check_late_values_are_refused(cache: &dyn Cache) {
    let before = cache.get("k").await.unwrap();
    assert!(before.found.is_none());
    assert!(
        cache
            .put("k", &loaded(b"two", 2), before.mark)
            .await
            .unwrap()
    );
    assert!(
        !cache
            .put("k", &loaded(b"one", 1), before.mark)
            .await
            .unwrap()
    );
    // A caller repeats a request with a lost answer.
    assert!(
        cache
            .put("k", &loaded(b"two", 2), before.mark)
            .await
            .unwrap()
    );
    let seen = cache.get("k").await.unwrap();
    let found = seen.found.unwrap();
    assert_eq!(
        (&found.value.unwrap()[..], found.token.get()),
        (&b"two"[..], 2)
    );

    cache.delete("k", MINUTE).await.unwrap();
    assert!(cache.get("k").await.unwrap().found.is_none());
    assert!(
        !cache
            .put("k", &loaded(b"three", 3), seen.mark)
            .await
            .unwrap()
    );
    let after = loop {
        // The clock of a cache may be coarse, so the mark may not have risen yet.
        yield_now().await;
        let after = cache.get("k").await.unwrap().mark;
        if after > seen.mark && cache.put("k", &loaded(b"four", 4), after).await.unwrap() {
            break after;
        }
    };
    // The delete leaves the floor of the tokens unchanged.
    assert!(!cache.put("k", &loaded(b"one", 1), after).await.unwrap());
    // A delete during a load is effective also for a key that never had a value.
    let began = cache.get("new").await.unwrap().mark;
    cache.delete("new", MINUTE).await.unwrap();
    assert!(!cache.put("new", &loaded(b"x", 1), began).await.unwrap());
}

#[tokio::test]
async fn late_values_are_refused() {
    check_late_values_are_refused(&MemoryCache::new(10)).await;
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    check_late_values_are_refused(&RecordsCache::new(&store).unwrap()).await;
}

#[tokio::test]
async fn a_floor_outlives_its_value_by_the_longest_load() {
    let fixture = Fixture::new();
    let cache = fixture.cache();
    let began = cache.get("k").await.unwrap().mark;
    assert!(cache.put("k", &loaded(b"two", 2), began).await.unwrap());
    fixture
        .clock
        .advance(MINUTE + MINUTE - Duration::from_millis(1));
    let now = cache.get("k").await.unwrap();
    assert!(now.found.is_none());
    assert!(!cache.put("k", &loaded(b"one", 1), now.mark).await.unwrap());
    fixture.clock.advance(Duration::from_millis(1));
    assert!(
        !cache.put("k", &loaded(b"three", 3), began).await.unwrap(),
        "too slow"
    );
    let now = cache.get("k").await.unwrap().mark;
    assert!(cache.put("k", &loaded(b"one", 1), now).await.unwrap());
}

#[tokio::test]
async fn a_value_loaded_during_a_delete_is_not_stored() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    let (begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let loading = tokio::spawn({
        let (guard, begun, goes_on) = (guard.clone(), Arc::clone(&begun), Arc::clone(&goes_on));
        let loader = async move || {
            begun.notify_one();
            goes_on.notified().await;
            Ok(Some(b"old".to_vec()))
        };
        async move { guard.get_or_rebuild("hot", loader).await }
    });
    begun.notified().await;
    guard.delete("hot").await.unwrap();
    goes_on.notify_one();
    assert_eq!(&loading.await.unwrap().unwrap().unwrap()[..], b"old");
    assert_eq!(fixture.get(&guard).await, 1, "it was not stored");
}

#[tokio::test]
async fn a_stale_value_is_served_while_a_new_one_is_loaded() {
    let fixture = Fixture::new();
    let mut settings = settings();
    settings.stale = MINUTE;
    let guard = fixture.guard(fixture.cache(), settings);
    assert_eq!(fixture.get(&guard).await, 1);
    fixture.clock.advance(MINUTE + Duration::from_secs(1));
    assert_eq!(fixture.get(&guard).await, 1, "the stale one");
    while fixture.get(&guard).await == 1 {
        yield_now().await;
    }
    assert_eq!(fixture.loads(), 2);
    fixture.clock.advance(MINUTE * 2);
    assert_eq!(fixture.get(&guard).await, 3, "too old to be shown");
}

#[tokio::test]
async fn a_missing_value_is_remembered() {
    let fixture = Fixture::new();
    for (negative_ttl, loads) in [(Duration::ZERO, 3), (MINUTE, 1)] {
        let mut settings = settings();
        settings.negative_ttl = negative_ttl;
        let guard = fixture.guard(fixture.cache(), settings);
        let asked = Arc::new(AtomicU32::new(0));
        for _ in 0..3 {
            let asked = Arc::clone(&asked);
            let loader = async move || {
                asked.fetch_add(1, Ordering::AcqRel);
                Ok(None)
            };
            assert_eq!(guard.get_or_rebuild("none", loader).await.unwrap(), None);
        }
        assert_eq!(asked.load(Ordering::Acquire), loads);
    }
}

#[tokio::test]
async fn values_with_slow_loads_are_loaded_early() {
    let fixture = Fixture::new();
    for (beta, early) in [(0.0, false), (1.0, true)] {
        let cache = fixture.cache();
        let mut settings = settings();
        settings.beta = beta;
        let guard = fixture.guard(cache.clone(), settings);
        let mark = cache.get("hot").await.unwrap().mark;
        let mut slow = loaded(&0_u32.to_be_bytes(), 1);
        slow.load = Duration::from_secs(10);
        cache.put("hot", &slow, mark).await.unwrap();
        // The load takes as long as the value stays fresh. Then a call loads early with a chance of
        // 1/e, so a hundred calls are enough.
        fixture.clock.advance(MINUTE - Duration::from_secs(10));
        let before = fixture.loads();
        for _ in 0..100 {
            fixture.get(&guard).await;
            yield_now().await;
        }
        assert_eq!(fixture.loads() > before, early);
        assert!(fixture.loads() - before <= 1, "once");
    }
}

#[tokio::test]
async fn loaders_that_fail_hang_or_panic_are_typed_errors_and_store_nothing() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    let fails = async || Err(Error::new(ErrorKind::Corrupt, "the table is gone"));
    let error = guard.get_or_rebuild("hot", fails).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);

    let error = guard
        .get_or_rebuild("hot", async || panic!("no such {}", "row"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(
        error.to_string().contains("panicked: no such row"),
        "{error}"
    );

    let (begun, clock) = (Arc::new(Notify::new()), fixture.clock.clone());
    let hangs = {
        let begun = Arc::clone(&begun);
        async move || {
            begun.notify_one();
            std::future::pending().await
        }
    };
    let late = async {
        begun.notified().await;
        yield_now().await;
        clock.advance(Duration::from_secs(31));
    };
    let (error, ()) = tokio::join!(guard.get_or_rebuild("hot", hangs), late);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("longer than 30s"), "{error}");
    assert_eq!(fixture.get(&guard).await, 1);
}

/// Another process holds the key's lock and loads nothing.
#[tokio::test]
async fn a_caller_whose_wait_ends_fails_or_loads_as_configured() {
    let fixture = Fixture::new();
    let held = fixture
        .store()
        .locker()
        .lock("cache/hot")
        .acquire()
        .await
        .unwrap();
    let mut settings = settings();
    settings.wait = Duration::ZERO;
    let guard = fixture.guard(fixture.cache(), settings);
    let error = guard
        .get_or_rebuild("hot", async || unreachable!())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    settings.fallback = Fallback::Load;
    let guard = fixture.guard(fixture.cache(), settings);
    assert_eq!(fixture.get(&guard).await, 1);
    assert_eq!(fixture.get(&guard).await, 2, "it is not stored");
    let _ = held.release().await;
    assert_eq!(fixture.get(&guard).await, 3);
    assert_eq!(fixture.get(&guard).await, 3);
}

#[tokio::test]
async fn a_too_large_value_is_returned_and_not_stored() {
    let fixture = Fixture::new();
    let mut settings = settings();
    settings.max_value = 3;
    let guard = fixture.guard(fixture.cache(), settings);
    assert_eq!(fixture.get(&guard).await, 1);
    assert_eq!(fixture.get(&guard).await, 2);
}

#[tokio::test]
async fn a_full_cache_removes_the_key_whose_floor_ends_first() {
    let fixture = Fixture::new();
    let cache = MemoryCache::with_clock(2, Arc::new(fixture.clock.clone()));
    for key in ["a", "b", "c"] {
        fixture.clock.advance(Duration::from_secs(1));
        let mark = cache.get(key).await.unwrap().mark;
        assert!(cache.put(key, &loaded(b"x", 1), mark).await.unwrap());
    }
    let mut there = Vec::new();
    for key in ["a", "b", "c"] {
        there.push(cache.get(key).await.unwrap().found.is_some());
    }
    assert_eq!(there, [false, true, true]);
}

#[tokio::test]
async fn invalid_input_is_named_in_the_error() {
    let fixture = Fixture::new();
    type Make = fn(&mut Settings);
    let wrong: [(&str, Make); 6] = [
        ("ttl", |it| it.ttl = Duration::ZERO),
        ("max_load", |it| it.max_load = Duration::ZERO),
        ("stale", |it| it.stale = Duration::MAX),
        ("jitter", |it| it.jitter = 1.5),
        ("beta", |it| it.beta = -1.0),
        ("beta", |it| it.beta = f64::NAN),
    ];
    for (name, make) in wrong {
        let mut settings = Settings::default();
        make(&mut settings);
        let error = CacheGuard::new(&fixture.store(), fixture.cache(), settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&format!("{name} is")), "{error}");
    }
    let guard = fixture.guard(fixture.cache(), settings());
    for key in ["", "a\nb", &"k".repeat(241)] {
        let error = guard
            .get_or_rebuild(key, async || unreachable!())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
}

/// A refresh is a load that a caller with a stale value starts in the background. A refresh ends
/// without a value when another process holds the lock. A caller without a value may wait for such
/// a refresh. That caller must then load a value by itself.
#[tokio::test]
async fn a_caller_without_a_value_loads_after_a_refresh_has_stopped() {
    let fixture = Fixture::new();
    let mut settings = settings();
    settings.stale = MINUTE;
    let cache = fixture.cache();
    let guard = fixture.guard(cache.clone(), settings);
    assert_eq!(fixture.get(&guard).await, 1);
    let held = fixture
        .store()
        .locker()
        .lock("cache/hot")
        .acquire()
        .await
        .unwrap();
    fixture.clock.advance(MINUTE + Duration::from_secs(1));
    // This call starts a refresh. The refresh finds that another process holds the lock, and stops.
    assert_eq!(fixture.get(&guard).await, 1);
    cache.delete("hot", MINUTE).await.unwrap();
    fixture.clock.advance(Duration::from_millis(1));
    let needs = tokio::spawn({
        let (fixture, guard) = (fixture.clone(), guard.clone());
        async move { fixture.get(&guard).await }
    });
    for _ in 0..20 {
        yield_now().await;
    }
    let _ = held.release().await;
    assert!(needs.await.unwrap() >= 2, "a new one");
}

/// A caller sees the effect of its own delete.
#[tokio::test]
async fn a_caller_after_a_delete_joins_no_load_from_before() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    let (begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let old = tokio::spawn({
        let (guard, begun, goes_on) = (guard.clone(), Arc::clone(&begun), Arc::clone(&goes_on));
        let loader = async move || {
            begun.notify_one();
            goes_on.notified().await;
            Ok(Some(b"old".to_vec()))
        };
        async move { guard.get_or_rebuild("hot", loader).await }
    });
    begun.notified().await;
    guard.delete("hot").await.unwrap();
    fixture.clock.advance(Duration::from_millis(1));
    let after = tokio::spawn({
        let (fixture, guard) = (fixture.clone(), guard.clone());
        async move { fixture.get(&guard).await }
    });
    yield_now().await;
    goes_on.notify_one();
    assert_eq!(&old.await.unwrap().unwrap().unwrap()[..], b"old");
    assert_eq!(after.await.unwrap(), 1, "loaded after the delete");
    assert_eq!(fixture.get(&guard).await, 1, "and stored");
}

/// The part of an error that names the circle of loaders.
fn circle_of(error: &Error) -> String {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let says = error.to_string();
    let circle = says.split_once('(').and_then(|(_, it)| it.split_once(')'));
    circle.unwrap_or_else(|| panic!("{says}")).0.to_owned()
}

/// The clock stands still, so a loader that waited for itself would hang here.
#[tokio::test]
async fn a_loader_that_asks_for_itself_is_told_so_at_once() {
    let fixture = Fixture::new();
    for fallback in [Fallback::Error, Fallback::Load] {
        let mut settings = settings();
        settings.fallback = fallback;
        let guard = fixture.guard(fixture.cache(), settings);
        let loads = Arc::new(AtomicU32::new(0));
        let loader = {
            let (guard, loads) = (guard.clone(), Arc::clone(&loads));
            async move || {
                loads.fetch_add(1, Ordering::AcqRel);
                let value = guard.get_or_rebuild("a", async || Ok(None)).await?;
                Ok(value.map(|value| value.to_vec()))
            }
        };
        let asking = guard.get_or_rebuild("a", loader);
        let error = soon(asking).await.unwrap_err();
        assert_eq!(circle_of(&error), r#""a" -> "a""#);
        assert_eq!(loads.load(Ordering::Acquire), 1, "loads with {fallback:?}");
        // The circle has ended, and so have its waits.
        assert_eq!(fixture.get(&guard).await, fixture.loads());
    }
}

#[tokio::test]
async fn loaders_that_ask_for_each_other_are_told_so_at_once() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    // Both loads are under way before either loader asks for the other key.
    let together = Arc::new(Barrier::new(2));
    let load = |own: &'static str, other: &'static str| {
        let (guard, together) = (guard.clone(), Arc::clone(&together));
        let inner = guard.clone();
        let loader = async move || {
            together.wait().await;
            let other = inner.get_or_rebuild(other, async || Ok(None)).await;
            // A loader may go on without the other value.
            Ok(other.err().map(|error| circle_of(&error).into_bytes()))
        };
        async move { guard.get_or_rebuild(own, loader).await.unwrap() }
    };
    let (a, b) = soon(async { tokio::join!(load("a", "b"), load("b", "a")) }).await;
    let circles = [a, b].map(|value| value.map(|it| String::from_utf8(it.to_vec()).unwrap()));
    let told: Vec<_> = circles.into_iter().flatten().collect();
    let [told] = &*told else {
        panic!("one of the two loaders goes on: {told:?}");
    };
    assert!(
        told == r#""a" -> "b" -> "a""# || told == r#""b" -> "a" -> "b""#,
        "{told}"
    );
}

#[tokio::test]
async fn a_chain_of_loaders_is_told_of_its_circle_at_once() {
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    let [one, two, three] = [(); 3].map(|()| guard.clone());
    let loader = async move || {
        let of_b = async move || {
            let value = three.get_or_rebuild("a", async || Ok(None)).await?;
            Ok(value.map(|value| value.to_vec()))
        };
        let value = two.get_or_rebuild("b", of_b).await?;
        Ok(value.map(|value| value.to_vec()))
    };
    let error = soon(one.get_or_rebuild("a", loader)).await.unwrap_err();
    assert_eq!(circle_of(&error), r#""b" -> "a" -> "b""#);
    // A chain without a circle is loaded.
    let inner = guard.clone();
    let loader = async move || {
        let value = inner
            .get_or_rebuild("d", async || Ok(Some(b"d".to_vec())))
            .await?;
        Ok(value.map(|value| value.to_vec()))
    };
    let value = soon(guard.get_or_rebuild("c", loader)).await.unwrap();
    assert_eq!(value.as_deref(), Some(&b"d"[..]));
}

/// The answer, which must come in little real time: the clock of the guard stands still.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    let limit = SystemClock.sleep(Duration::from_secs(20));
    tokio::select! {
        answer = answer => answer,
        () = limit => panic!("no answer within 20 s"),
    }
}

#[test]
fn the_loader_of_another_caller_takes_over_when_a_runtime_is_shut_down() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (first, second) = (runtime(), runtime());
    let fixture = Fixture::new();
    let guard = fixture.guard(fixture.cache(), settings());
    let begun = Arc::new(Notify::new());
    let loader = {
        let begun = Arc::clone(&begun);
        async move || {
            begun.notify_one();
            std::future::pending().await
        }
    };
    first.spawn({
        let guard = guard.clone();
        async move { guard.get_or_rebuild("hot", loader).await }
    });
    second.block_on(begun.notified());
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (fixture, guard) = (fixture.clone(), guard.clone());
            let mut asking = Box::pin(async move { fixture.get(&guard).await });
            // The first poll joins the load.
            second.block_on(async { assert!(futures_util::poll!(&mut asking).is_pending()) });
            asking
        })
        .collect();
    first.shutdown_background();
    for asking in others {
        assert_eq!(second.block_on(soon(asking)), 1, "one loader took over");
    }
}
