//! Whoever stands still in the middle of something.

use super::*;

/// A caller that asked and does not listen keeps nobody waiting.
#[tokio::test]
async fn a_read_that_nobody_polls_is_in_nobodys_way() {
    for opened in [false, true] {
        let place = Place::new();
        let store = place.open().await;
        let lock = store.lock();
        let key = distlock_core::RecordKey::new("k").unwrap();
        if opened {
            lock.inspect(&name("a")).await.unwrap();
        }
        let asked = name("a");
        let mut kept = lock.inspect(&asked);
        std::future::poll_fn(|context| {
            let _ = kept.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        let others = async {
            assert_eq!(lock.inspect(&name("a")).await.unwrap().held, None);
            assert_eq!(store.records().get(&key).await.unwrap(), None);
            lock.health().await.unwrap();
            close(&store).await;
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), others).await;
        ended.expect("they do not wait for it");
        drop(kept);
    }
}
