//! All faults at once: logins, logouts, lost requests and replies, silent nodes, an unreachable
//! store. Afterwards the faults end, and the invariants are checked.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use distlock_kickout::{
    Class, Code, Device, Event, Generation, KickOut, Login, LoginOutcome, Session, SessionId,
    Transition, Uid,
};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Node, eventually, login, notice_of, pause, uid};

const NODES: usize = 3;
const STEPS: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_all_faults_one_session_is_left_and_every_other_got_its_notice() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |it| it.parse().unwrap());
    #[expect(
        clippy::print_stdout,
        reason = "a failing run must say how to repeat it"
    )]
    {
        println!("SEED={seed}");
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let cluster = Cluster::new();
    let names: Vec<_> = (0..NODES).map(|it| format!("n{it}")).collect();
    let mut nodes = Vec::new();
    for name in &names {
        nodes.push(cluster.start_node(name).await);
    }
    let users: Vec<_> = (0..4).map(|it| uid(&format!("u{it}"))).collect();
    let mut logins = JoinSet::new();
    for _ in 0..STEPS {
        let which = random.usize(..NODES);
        let node = &nodes[which];
        match random.u32(..20) {
            0 => cluster.mesh.silence(&names[which]),
            1 => node.faults.lose_replies(random.u32(1..4)),
            2 => node.faults.lose_requests(random.u32(1..4)),
            3 => node.faults.cause_conflicts(1),
            4 => node.faults.cut(),
            5..=8 => {
                cluster.mesh.restore(&names[which]);
                node.faults.heal();
            }
            _ => {
                let uid = users[random.usize(..users.len())].clone();
                let device = Device::new(format!("d{}", random.u32(..5))).unwrap();
                let leaves = random.u32(..4) == 0;
                logins.spawn(run_client(node.kick.clone(), uid, device, leaves));
            }
        }
        pause(Duration::from_millis(random.u64(..15))).await;
    }
    for (name, node) in names.iter().zip(&nodes) {
        cluster.mesh.restore(name);
        node.faults.heal();
        node.faults.lose_replies(0);
        node.faults.lose_requests(0);
        node.faults.cause_conflicts(0);
    }
    let mut stay: Vec<Arc<Session>> = Vec::new();
    while let Some(session) = logins.join_next().await {
        stay.extend(session.unwrap());
    }
    let mut history = Vec::new();
    for uid in &users {
        wait_for_agreement(&cluster, &nodes, uid, &stay).await;
    }
    history.extend(nodes.iter_mut().flat_map(Node::take_events));
    for uid in &users {
        check_last_grant(&cluster, uid, &stay, &history).await;
    }
    // From now on no client leaves by itself. So the last of these logins survives for each
    // account.
    for node in &nodes {
        eventually("the node to serve", || async { node.kick.boot().is_some() }).await;
    }
    for uid in &users {
        let fight = nodes.iter().enumerate().map(|(at, node)| {
            let (kick, login) = (node.kick.clone(), login(uid, &format!("peace{at}")));
            async move { kick.login(login).await.unwrap() }
        });
        let mut newest = Generation::default();
        for outcome in futures_util::future::join_all(fight).await {
            match outcome {
                LoginOutcome::Admitted(session) => {
                    newest = newest.max(session.generation());
                    stay.push(keep_until_notice(session));
                }
                LoginOutcome::Superseded(_) => {}
                other => panic!("{uid}: {other:?}"),
            }
        }
        let survivor = wait_for_agreement(&cluster, &nodes, uid, &stay).await;
        let survivor = survivor.unwrap_or_else(|| panic!("nobody of {uid} survived"));
        assert_eq!(survivor.generation(), newest, "{uid}: the last grant wins");
    }
    history.extend(nodes.iter_mut().flat_map(Node::take_events));
    let fenced = |event: &Event| event.event == Transition::NodeFenced;
    let fenced = history.iter().any(fenced);
    for session in stay.iter().filter(|it| it.check().is_err()) {
        let code = notice_of(session).await.code;
        let ended = matches!(code, Code::Superseded | Code::Replaced);
        assert!(ended || (fenced && code == Code::NodeFenced), "{code:?}");
    }
    check_generations(&cluster, &users, &history).await;
    for node in &nodes {
        assert_eq!(node.kick.logins_under_way(), 0);
    }
}

/// Waits until the directory and the sessions of an account agree. Returns the surviving session.
async fn wait_for_agreement(
    cluster: &Cluster,
    nodes: &[Node],
    uid: &Uid,
    stay: &[Arc<Session>],
) -> Option<Arc<Session>> {
    let active = || {
        let active = stay.iter().filter(|it| it.uid() == uid);
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
    let [survivor] = active()[..] else {
        return None;
    };
    for node in nodes {
        let location = node.kick.route(uid).await.unwrap().unwrap();
        assert_eq!(location.key, *survivor.key());
    }
    Some(Arc::clone(survivor))
}

/// Checks that no other login ended the last granted session. The session may be missing only if
/// its client left, if its client got an error for the login, or if its node lost its lease.
async fn check_last_grant(cluster: &Cluster, uid: &Uid, stay: &[Arc<Session>], history: &[Event]) {
    let of_uid = |event: &&Event| event.uid.as_ref() == Some(uid);
    let granted = history.iter().filter(of_uid);
    let granted = granted.filter(|it| it.event == Transition::Granted);
    let Some(last) = granted.max_by_key(|it| it.r#gen) else {
        return;
    };
    // A higher generation in the record comes from a write with a lost reply. The client of that
    // write got an error.
    let r#gen = cluster.record(uid).await.map(|it| it.r#gen);
    let untold = r#gen > last.r#gen;
    let ended: HashSet<_> = history
        .iter()
        .filter(|it| it.event == Transition::Superseded && it.session == last.session)
        .filter_map(|it| it.code)
        .collect();
    let by_another = ended.contains(&Code::Superseded) || ended.contains(&Code::Replaced);
    assert!(
        untold || !by_another,
        "{uid}: the last session was overtaken by nobody"
    );
    let stays = stay
        .iter()
        .find(|it| Some(it.key().session) == last.session);
    if let Some(session) = stays.filter(|_| !untold && !ended.contains(&Code::NodeFenced)) {
        assert!(session.check().is_ok(), "{uid}: nobody survived");
    }
}

/// Logs one client in, once. An admitted client either leaves at once, or stays until its notice.
/// Returns the session of a client that stays.
async fn run_client(kick: KickOut, uid: Uid, device: Device, leaves: bool) -> Option<Arc<Session>> {
    let login = Login::new(uid, device, Class::none());
    let Ok(LoginOutcome::Admitted(session)) = kick.login(login).await else {
        return None;
    };
    if leaves {
        session.logout().await;
        return None;
    }
    Some(keep_until_notice(session))
}

/// Keeps a session until its notice, and then logs the session out.
fn keep_until_notice(session: Session) -> Arc<Session> {
    let session = Arc::new(session);
    tokio::spawn({
        let session = Arc::clone(&session);
        async move {
            session.superseded().await;
            session.logout().await;
        }
    });
    session
}

/// Checks that no generation was granted twice, and that no record has a lower generation than the
/// grants of its account.
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
