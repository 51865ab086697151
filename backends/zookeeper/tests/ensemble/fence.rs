//! Fenced changes of nodes.

use distlock_core::{Epoch, ErrorKind, Fence, FenceError, FenceRefusal, FencingToken, OwnerId};
use distlock_harness::servers::zookeeper::ZooKeeper;
use distlock_zookeeper::fence;
use futures_util::future::join_all;
use zookeeper_client as zk;

use crate::fixtures::{raw_client, within};

const FENCE_NODE: &str = "/account/fence";
const LOG: &str = "/account/log";

fn fence_with_token(token: u64) -> Fence {
    Fence::new(
        FencingToken::new(token).unwrap(),
        OwnerId::new().tag(),
        Epoch::new("e"),
    )
}

/// Writes the token of `fence` to the log, if the fence node admits it.
async fn append_to_log(client: &zk::Client, fence: &Fence) -> Result<(), FenceError> {
    let text = fence.token.get().to_string();
    let done = fence::write(client, FENCE_NODE, fence, |change| {
        let path = format!("{LOG}/{text}-");
        change.add_create(
            &path,
            b"",
            &create_options(zk::CreateMode::PersistentSequential),
        )
    });
    done.await.map(|done| assert_eq!(done.len(), 1))
}

fn create_options(mode: zk::CreateMode) -> zk::CreateOptions<'static> {
    mode.with_acls(zk::Acls::creator_all())
}

/// Returns the tokens in the log, in the order of their writes.
async fn read_log(client: &zk::Client) -> Vec<u64> {
    client.sync(LOG).await.unwrap();
    let notes = client.list_children(LOG).await.unwrap();
    let mut notes: Vec<(u64, u64)> = notes
        .iter()
        .map(|note| {
            let (token, place) = note.split_once('-').unwrap();
            (place.parse().unwrap(), token.parse().unwrap())
        })
        .collect();
    notes.sort_unstable();
    notes.into_iter().map(|(_, token)| token).collect()
}

/// Returns the kind of the error behind [`FenceError::Failed`]. Panics on every other variant.
fn failure_kind(error: FenceError) -> ErrorKind {
    match error {
        FenceError::Failed(error) => error.kind(),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_latest_holder_changes_fenced_data() {
    let ensemble = ZooKeeper::start().unwrap();
    let client = raw_client(&ensemble.servers()).await;
    client
        .create("/account", b"", &create_options(zk::CreateMode::Persistent))
        .await
        .unwrap();
    client
        .create(LOG, b"", &create_options(zk::CreateMode::Persistent))
        .await
        .unwrap();
    let (early, late) = (fence_with_token(7), fence_with_token(8));
    let refused = append_to_log(&client, &early).await.unwrap_err();
    assert_eq!(
        failure_kind(refused),
        ErrorKind::Corrupt,
        "there is no fence node yet"
    );

    client
        .create(FENCE_NODE, b"", &create_options(zk::CreateMode::Persistent))
        .await
        .unwrap();
    for holder in [&early, &late, &late] {
        append_to_log(&client, holder).await.unwrap();
    }
    let refused = append_to_log(&client, &early).await.unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::Older { seen, offered })
            if *seen == late.token && *offered == early.token
    ));
    let refused = append_to_log(&client, &fence_with_token(8))
        .await
        .unwrap_err();
    assert!(matches!(
        refused.refusal(),
        Some(FenceRefusal::SameTokenOtherOwner { .. })
    ));
    assert_eq!(read_log(&client).await, [7, 8, 8]);

    // When a step of the change fails, the fence state is unchanged.
    let later = fence_with_token(100);
    let missing = fence::write(&client, FENCE_NODE, &later, |change| {
        change.add_set_data("/account/none", b"", None)
    });
    let refused = missing.await.unwrap_err();
    assert!(refused.to_string().contains("step 1"), "{refused}");
    append_to_log(&client, &fence_with_token(9)).await.unwrap();
    concurrent_holders_write_in_the_order_of_their_tokens(&ensemble.servers()).await;

    client.set_data(FENCE_NODE, b"garbage", None).await.unwrap();
    let refused = append_to_log(&client, &fence_with_token(10_000))
        .await
        .unwrap_err();
    assert_eq!(failure_kind(refused), ErrorKind::Corrupt);
}

/// Another holder may write the fence state after one holder has read it and before that holder's
/// change. The changes must still be in the order of their tokens.
async fn concurrent_holders_write_in_the_order_of_their_tokens(servers: &str) {
    let mut holders = Vec::new();
    for turn in 1..=4 {
        let client = raw_client(servers).await;
        holders.push(tokio::spawn(async move {
            let mut written = 0;
            for round in 10..30 {
                match append_to_log(&client, &fence_with_token(round * 4 + turn)).await {
                    Ok(()) => written += 1,
                    Err(refused) => assert!(refused.refusal().is_some(), "{refused}"),
                }
            }
            written
        }));
    }
    let written = within("all have written", join_all(holders)).await;
    let written: usize = written.into_iter().map(Result::unwrap).sum();
    let tokens = read_log(&raw_client(servers).await).await;
    assert_eq!(tokens.len(), 4 + written);
    assert!(tokens.is_sorted(), "{tokens:?}");
}
