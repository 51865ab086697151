//! Everything at once: logins, logouts, lost requests and replies, silent nodes, a store that goes away; then peace, and the
//! invariants are checked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use distlock_kickout::{
    Class, Device, Event, Generation, KickOut, Login, LoginOutcome, Session, SessionId, Transition,
    Uid,
};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Node, eventually, pause, uid};

const NODES: usize = 3;
const STEPS: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_one_session_is_left_and_every_other_was_told() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |it| it.parse().unwrap());
    #[expect(
        clippy::print_stdout,
        reason = "a failing run must say how to repeat it"
    )]
    {
        println!("SEED={seed}");
    }
    let mut chance = fastrand::Rng::with_seed(seed);
    let cluster = Cluster::new();
    let names: Vec<_> = (0..NODES).map(|it| format!("n{it}")).collect();
    let mut nodes = Vec::new();
    for name in &names {
        nodes.push(cluster.node(name).await);
    }
    let users: Vec<_> = (0..4).map(|it| uid(&format!("u{it}"))).collect();
    let mut logins = JoinSet::new();
    for _ in 0..STEPS {
        let which = chance.usize(..NODES);
        let node = &nodes[which];
        match chance.u32(..20) {
            0 => cluster.mesh.silence(&names[which]),
            1 => node.faults.lose_replies(chance.u32(1..4)),
            2 => node.faults.lose_requests(chance.u32(1..4)),
            3 => node.faults.conflict(1),
            4 => node.faults.cut(),
            5..=8 => {
                cluster.mesh.unsilence(&names[which]);
                node.faults.heal();
            }
            _ => {
                let uid = users[chance.usize(..users.len())].clone();
                let device = Device::new(format!("d{}", chance.u32(..5))).unwrap();
                let leaves = chance.u32(..4) == 0;
                logins.spawn(one_client(node.kick.clone(), uid, device, leaves));
            }
        }
        pause(Duration::from_millis(chance.u64(..15))).await;
    }
    // Peace.
    for (name, node) in names.iter().zip(&nodes) {
        cluster.mesh.unsilence(name);
        node.faults.heal();
        node.faults.lose_replies(0);
        node.faults.lose_requests(0);
        node.faults.conflict(0);
    }
    let mut admitted: Vec<Arc<Session>> = Vec::new();
    while let Some(session) = logins.join_next().await {
        admitted.extend(session.unwrap());
    }
    for uid in &users {
        let active = || {
            let active = admitted.iter().filter(|it| it.uid() == uid);
            active.filter(|it| it.check().is_ok()).collect::<Vec<_>>()
        };
        eventually("agreement of directory and sessions", || async {
            let Some(record) = cluster.record(uid).await else {
                return active().is_empty();
            };
            let named: Vec<_> = record.slots.values().map(|it| it.key.clone()).collect();
            let living: Vec<_> = active().iter().map(|it| it.key().clone()).collect();
            named == living && living.len() <= 1 && record.revocations.is_empty()
        })
        .await;
        if let [survivor] = active()[..] {
            for node in &nodes {
                let location = node.kick.route(uid).await.unwrap().unwrap();
                assert_eq!(location.key, *survivor.key());
            }
        }
    }
    for session in &admitted {
        if session.check().is_err() {
            // It was told why, or it left by itself.
            assert!(session.phase() > distlock_kickout::Phase::Active);
        }
    }
    let history = nodes.iter_mut().flat_map(Node::history).collect::<Vec<_>>();
    check_generations(&cluster, &users, &history).await;
    for node in &nodes {
        assert_eq!(node.kick.logins_under_way(), 0);
    }
}

/// A client that tries until it is in, once; some leave at once, the others stay until they are told.
async fn one_client(kick: KickOut, uid: Uid, device: Device, leaves: bool) -> Option<Arc<Session>> {
    let login = Login::new(uid, device, Class::none());
    let Ok(LoginOutcome::Admitted(session)) = kick.login(login).await else {
        return None;
    };
    if leaves {
        session.logout().await;
        return None;
    }
    let session = Arc::new(session);
    tokio::spawn({
        let session = Arc::clone(&session);
        async move {
            session.superseded().await;
            session.logout().await;
        }
    });
    Some(session)
}

async fn check_generations(cluster: &Cluster, users: &[Uid], history: &[Event]) {
    let mut granted: HashMap<(Uid, Generation), SessionId> = HashMap::new();
    for event in history {
        if event.event == Transition::Granted {
            let key = (event.uid.clone().unwrap(), event.r#gen.unwrap());
            let other = granted.insert(key.clone(), event.session.unwrap());
            assert_eq!(other, None, "two grants of {key:?}");
        }
    }
    for uid in users {
        let newest = granted
            .keys()
            .filter_map(|(of, r#gen)| (of == uid).then_some(*r#gen))
            .max();
        let record = cluster.record(uid).await.map(|it| it.r#gen);
        assert!(record >= newest, "{uid}: {record:?} is behind {newest:?}");
    }
}
