//! Many simultaneous logins.

use std::collections::HashMap;

use distlock_kickout::{
    Class, Code, Device, Event, Generation, Login, LoginOutcome, Session, SessionId, Transition,
};

use crate::cluster::{Cluster, Node, TEST_TIMEOUT, eventually, notice_of, uid};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_of_twenty_logins_survives_and_the_others_get_a_notice() {
    let cluster = Cluster::new();
    let mut nodes = [
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    ];
    for round in 0..5 {
        let anna = uid(&format!("anna{round}"));
        let logins = (0..20).map(|number| {
            let kick = nodes[number % 2].kick.clone();
            let login = Login::new(
                anna.clone(),
                Device::new(format!("d{number}")).unwrap(),
                Class::none(),
            );
            tokio::spawn(async move { kick.login(login).await.unwrap() })
        });
        let mut admitted = Vec::new();
        for login in logins.collect::<Vec<_>>() {
            match login.await.unwrap() {
                LoginOutcome::Admitted(session) => admitted.push(session),
                LoginOutcome::Superseded(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let survivor = wait_for_survivor(&admitted).await;
        let newest = admitted.iter().map(Session::generation).max();
        assert_eq!(Some(survivor.generation()), newest, "the last grant wins");
        for other in admitted.iter().filter(|it| it.key() != survivor.key()) {
            notice_of(other).await;
        }
        for node in &nodes {
            let location = node.kick.route(&anna).await.unwrap().unwrap();
            assert_eq!(location.key, *survivor.key());
            assert_eq!(node.kick.logins_under_way(), 0);
        }
        eventually("the last revocation to be settled", || async {
            cluster.record(&anna).await.unwrap().revocations.is_empty()
        })
        .await;
    }
    let mut history: Vec<_> = nodes.iter_mut().flat_map(Node::take_events).collect();
    history.sort_by_key(|event| (event.clock_us, event.seq));
    check_history(&history);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_mixed_logins_and_logouts_no_session_is_left() {
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
    let mut nodes = [
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    ];
    let users: Vec<_> = (0..3).map(|it| uid(&format!("u{it}"))).collect();
    let mut running = Vec::new();
    for number in 0..120 {
        let kick = nodes[random.usize(..2)].kick.clone();
        let uid = users[random.usize(..users.len())].clone();
        let device = Device::new(format!("d{}", random.u32(..4))).unwrap();
        let stay = random.u32(..4) > 0;
        running.push(tokio::spawn(async move {
            let outcome = kick.login(Login::new(uid, device, Class::none())).await;
            match outcome.unwrap() {
                LoginOutcome::Admitted(session) if stay => {
                    // A client without a notice leaves after a tenth of the test's time.
                    let longest = TEST_TIMEOUT / 10;
                    tokio::select! {
                        _ = session.superseded() => {}
                        _ = tokio::time::timeout(longest, std::future::pending::<()>()) => {}
                    }
                    session.logout().await;
                }
                LoginOutcome::Admitted(session) => {
                    session.logout().await;
                }
                _ => {}
            }
        }));
        if number % 10 == 9 {
            tokio::task::yield_now().await;
        }
    }
    for task in running {
        task.await.unwrap();
    }
    for uid in &users {
        let record = cluster.record(uid).await.unwrap();
        assert!(record.slots.is_empty(), "{record:?}");
    }
    for node in &nodes {
        assert_eq!((node.kick.sessions(), node.kick.logins_under_way()), (0, 0));
    }
    let mut history: Vec<_> = nodes.iter_mut().flat_map(Node::take_events).collect();
    history.sort_by_key(|event| (event.clock_us, event.seq));
    check_history(&history);
}

/// Waits until at most one of the sessions is active, and returns that session.
async fn wait_for_survivor(admitted: &[Session]) -> &Session {
    let active = || {
        let active = admitted.iter().filter(|session| session.check().is_ok());
        active.collect::<Vec<_>>()
    };
    eventually("one survivor", || async { active().len() <= 1 }).await;
    let active = active();
    assert_eq!(active.len(), 1, "somebody must survive");
    active[0]
}

/// Checks the events: no generation was granted twice, no other login ended the newest session of
/// an account, and every older admitted session ended.
fn check_history(history: &[Event]) {
    let mut granted: HashMap<_, Vec<(Generation, SessionId)>> = HashMap::new();
    let mut admitted: HashMap<SessionId, Generation> = HashMap::new();
    let (mut ended, mut overtaken) = (Vec::new(), Vec::new());
    for event in history {
        if event.event == Transition::Superseded
            && matches!(event.code, Some(Code::Superseded | Code::Replaced))
        {
            overtaken.push(event.session.unwrap());
        }
        match event.event {
            Transition::Granted => granted
                .entry(event.uid.clone().unwrap())
                .or_default()
                .push((event.r#gen.unwrap(), event.session.unwrap())),
            Transition::Admitted => {
                admitted.insert(event.session.unwrap(), event.r#gen.unwrap());
            }
            Transition::Superseded | Transition::Closed => ended.push(event.session.unwrap()),
            _ => {}
        }
    }
    assert!(!granted.is_empty());
    for (uid, mut grants) in granted {
        let number = grants.len();
        grants.sort();
        let (last, newest) = grants[number - 1];
        assert!(
            !overtaken.contains(&newest),
            "{uid}: the last one was overtaken by nobody"
        );
        grants.dedup_by_key(|(r#gen, _)| *r#gen);
        assert_eq!(
            grants.len(),
            number,
            "two grants of one generation for {uid}"
        );
        for (r#gen, session) in grants {
            if admitted.contains_key(&session) && r#gen < last {
                assert!(ended.contains(&session), "{uid}: {session} was never ended");
            }
        }
    }
}
