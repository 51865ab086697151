//! Plays all scenes: starts the nodes and stops them, and removes what the demo left in the store.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use distlock::{LockName, Store, Target};
use distlock_gateway::{TokenKey, Uid};
use distlock_kickout::{NodeId, forget_node};
use uuid::Uuid;

use super::{
    scenes::{CROWDED_SCENE, Play, SCENES},
    timeline::Timeline,
};
use crate::{
    drivers, output,
    processes::{Node, NodeOutput},
};

/// Plays all scenes, and returns whether all of them passed. Dropping the future kills the nodes.
///
/// The locks are in `backend`, or in a file of the demo. The records are in `records`, or beside
/// the locks.
pub(crate) async fn play_scenes(
    backend: Option<Target>,
    records: Option<Target>,
    json: bool,
) -> Result<bool> {
    // The folder is removed when this function ends or when its future is dropped.
    let folder = tempfile::Builder::new()
        .prefix("distlock-demo-")
        .tempdir()
        .context("make a temporary folder")?;
    let own = backend.is_none() && records.is_none();
    let mut place = match &backend {
        None => "a SQLite file in a temporary folder".to_owned(),
        Some(backend) => backend.masked_url(),
    };
    let mut target = backend.unwrap_or_else(|| Target::sqlite(folder.path().join("demo.db")));
    if let Some(records) = records {
        place = format!("{place}, with the records in {}", records.masked_url());
        target = target.records_in(records);
    }
    let store = drivers::open(&target).await?;
    let timeline = Arc::new(Timeline::new(json));
    timeline.print_opening("one account on two gateway nodes", &place);
    timeline.print_columns();

    let run = Uuid::new_v4().simple().to_string();
    // In a store of the user the names must be unique, because other programs may use it.
    let unique_name = |base: &str| {
        if own {
            base.to_owned()
        } else {
            format!("{base}-{}", &run[..6])
        }
    };
    let key = format!("{run}{}", Uuid::new_v4().simple());
    let uid = Uid::new(unique_name("alice"))?;
    let (name1, name2) = (unique_name("n1"), unique_name("n2"));
    let (node1, node2) = tokio::try_join!(
        start_node(&name1, &target, &key, &timeline),
        start_node(&name2, &target, &key, &timeline),
    )?;
    let mut stage = Play {
        timeline: Arc::clone(&timeline),
        records: store.records(),
        node1,
        node2,
        key: TokenKey::new(key.as_bytes())?,
        uid,
        phone: None,
        pc: None,
        survivor: None,
        highest: 0,
    };
    let mut passed = 0;
    for (index, (title, scene)) in SCENES.iter().enumerate() {
        let number = index + 1;
        timeline.begin_scene(number, title, number == CROWDED_SCENE);
        match scene(&mut stage).await {
            Ok(()) => {
                timeline.print_verdict(title, None);
                passed += 1;
            }
            Err(error) => {
                timeline.print_verdict(title, Some(&format!("{error:#}")));
                // The next scenes need the state that this scene leaves, so none of them is played.
                break;
            }
        }
    }
    stage.node1.stop().await;
    let killed = stage.node2.name.clone();
    stage.node2.stop().await;
    if !own && let Err(error) = remove_records(&store, stage.uid.as_str(), &killed).await {
        // Records that stay behind do not change the result of the scenes.
        output::print_message(format_args!(
            "not all of the demo's records were removed: {error:#}"
        ));
    }
    store.close().await;
    timeline.print_result(passed, SCENES.len());
    Ok(passed == SCENES.len())
}

/// Starts a node. Its transitions go to the timeline.
async fn start_node(
    name: &str,
    target: &Target,
    key: &str,
    timeline: &Arc<Timeline>,
) -> Result<Node> {
    let (node, lines) = Node::start(name, target, key, &["--events".to_owned()]).await?;
    tokio::spawn(relay_events(lines, Arc::clone(timeline)));
    Ok(node)
}

/// Sends each transition that a node prints to the timeline.
async fn relay_events(mut lines: NodeOutput, timeline: Arc<Timeline>) {
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(event) => timeline.record_node_event(event),
            Err(error) => {
                tracing::warn!(%error, line, "a node printed something else than an event");
            }
        }
    }
}

/// Removes from the user's store the records of the demo's accounts, and those of the node that was
/// killed.
async fn remove_records(store: &Store, uid: &str, node: &str) -> Result<()> {
    let records = store.records();
    for prefix in ["sess/", "inbox/"] {
        let found = records.scan(prefix, None, 1000).await?;
        for (key, entry) in found {
            if key.as_str().contains(uid) {
                records.delete(&key, entry.version).await?;
            }
        }
    }
    forget_node(store, &NodeId::new(node)?).await?;
    // The lease of the killed node would expire by itself soon. `node/NAME` is the name of the lock
    // that a node of the kick-out flow holds.
    let (locker, name) = (store.locker(), LockName::new(format!("node/{node}"))?);
    if let Some(token) = locker
        .inspect(&name)
        .await?
        .held
        .and_then(|held| held.token)
    {
        locker.force_release(&name, token).await?;
    }
    Ok(())
}
