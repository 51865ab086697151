//! One account, one session: a new login ends the old session on any node.

use distlock_kickout::{
    Code, Confirm, ConfirmedBy, Intent, LoggedOut, LoginOutcome, Phase, Retry, Transition,
};

use crate::cluster::{Cluster, eventually, in_time, login, notice_of, uid};

#[tokio::test]
async fn a_login_on_another_node_ends_the_old_session() {
    let cluster = Cluster::new();
    let (mut n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    assert_eq!(phone.old_confirmed(), ConfirmedBy::Program);
    assert!(phone.check().is_ok());

    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(
        pc.old_confirmed(),
        ConfirmedBy::Node,
        "the phone answered, so it is known to be gone"
    );
    assert!(pc.generation() > phone.generation());

    let notice = notice_of(&phone).await;
    assert_eq!(
        (notice.code, notice.retry),
        (Code::Superseded, Retry::Never)
    );
    assert_eq!(notice.by_device.unwrap().as_str(), "pc");
    assert_eq!(notice.r#gen, Some(pc.generation()));
    assert_eq!(phone.check().unwrap_err().code, Code::Superseded);
    assert_eq!(phone.phase(), Phase::Superseded);

    for node in [&n1, &n2] {
        let location = node.kick.route(&anna).await.unwrap().unwrap();
        assert_eq!(location.key, *pc.key());
    }
    let record = cluster.record(&anna).await.unwrap();
    assert_eq!(record.slots.len(), 1);
    assert!(record.revocations.is_empty(), "{record:?}");

    let received = n1.next_event(Transition::KickReceived).await;
    let kicks = cluster.mesh.kicks();
    assert_eq!(kicks.len(), 1);
    assert_eq!(received.kick_id, Some(kicks[0].kick_id));
    assert!(kicks[0].gen_max < pc.generation());
    let devices = (received.device.as_ref(), received.by_device.as_ref());
    assert_eq!(devices, (Some(phone.device()), Some(pc.device())));
    assert_eq!(received.took_us, kicks[0].after.map(distlock_core::micros));
    assert!(received.took_us.is_some());
}

#[tokio::test]
async fn the_events_show_every_step_of_a_takeover() {
    let cluster = Cluster::new();
    let (mut n1, mut n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let pc = n2.admit(&anna, "pc").await;
    notice_of(&phone).await;
    phone.logout().await;
    pc.logout().await;
    let of = |history: Vec<distlock_kickout::Event>| -> Vec<Transition> {
        history.iter().map(|event| event.event).collect()
    };
    let (first, second) = (n1.take_events(), n2.take_events());
    let revoked = second
        .iter()
        .find(|event| event.event == Transition::Revoked)
        .unwrap();
    assert_eq!(revoked.session, Some(phone.key().session));
    assert_eq!(revoked.session_node, Some(phone.key().node.clone()));
    assert_eq!(revoked.session_boot, Some(phone.key().boot));
    assert_eq!(revoked.by_gen, Some(pc.generation()));
    let superseded = first
        .iter()
        .find(|event| event.event == Transition::Superseded)
        .unwrap();
    assert_eq!(superseded.kick_id, revoked.kick_id);
    assert_eq!(
        of(first),
        [
            Transition::NodeUp,
            Transition::Granted,
            Transition::Admitted,
            Transition::Superseded,
            Transition::KickReceived,
            Transition::Closed,
        ]
    );
    assert_eq!(
        of(second),
        [
            Transition::NodeUp,
            Transition::Granted,
            Transition::Revoked,
            Transition::KickSent,
            Transition::Settled,
            Transition::Admitted,
            Transition::Deleted,
            Transition::Closed,
        ]
    );
}

#[tokio::test]
async fn a_login_on_the_same_node_or_by_the_same_device_ends_the_old_session() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    let first = n1.admit(&anna, "phone").await;
    let second = n1.admit(&anna, "phone").await;
    assert_eq!(notice_of(&first).await.code, Code::Replaced);
    let third = n1.admit(&anna, "pc").await;
    assert_eq!(notice_of(&second).await.code, Code::Superseded);
    assert!(third.check().is_ok());
    assert!(cluster.mesh.kicks().is_empty(), "nobody was called");
    assert_eq!(n1.kick.logins_under_way(), 0);
}

#[tokio::test]
async fn accounts_with_similar_names_are_independent() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let sessions = [
        n1.admit(&uid("a"), "phone").await,
        n1.admit(&uid("A"), "phone").await,
        n1.admit(&uid("a "), "phone").await,
        n1.admit(&uid("a/b"), "phone").await,
    ];
    for session in &sessions {
        assert!(session.check().is_ok(), "{session:?}");
    }
}

#[tokio::test]
async fn a_late_logout_does_not_delete_the_newer_session() {
    let cluster = Cluster::new();
    let (mut n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    // The kick gets lost, so n1 does not know of the takeover. The phone's logout therefore tries
    // to delete the phone's session.
    cluster.mesh.silence("n1");
    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Nobody);
    assert_eq!(phone.logout().await, LoggedOut::AlreadyGone);
    let refused = n1.next_event(Transition::StaleDeleteRefused).await;
    assert_eq!(refused.session, Some(phone.key().session));
    let location = n1.kick.route(&anna).await.unwrap().unwrap();
    assert_eq!(location.key, *pc.key());
    assert_eq!(pc.logout().await, LoggedOut::Deleted);
    assert_eq!(pc.logout().await, LoggedOut::AlreadyGone);
    assert_eq!(n2.kick.route(&anna).await.unwrap(), None);
}

#[tokio::test]
async fn the_generation_survives_logout_and_restart() {
    let cluster = Cluster::new();
    let anna = uid("anna");
    let mut last = None;
    for round in 0..3 {
        let node = cluster.start_node(&format!("n{round}")).await;
        let session = node.admit(&anna, "phone").await;
        assert!(last < Some(session.generation()));
        last = Some(session.generation());
        session.logout().await;
        assert_eq!(
            cluster.record(&anna).await.unwrap().r#gen,
            session.generation()
        );
        node.kick.shutdown().await;
    }
}

#[tokio::test]
async fn a_dropped_session_or_login_leaves_no_record_of_a_session() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let anna = uid("anna");
    drop(n1.admit(&anna, "phone").await);
    eventually("the logout", || async {
        n1.kick.route(&anna).await.unwrap().is_none()
    })
    .await;
    // A login that is dropped at any point leaves nothing behind.
    for polls in 0..40 {
        let mut login = Box::pin(n1.kick.login(login(&anna, "phone")));
        for _ in 0..polls {
            let polled = futures_util::poll!(&mut login);
            if polled.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(login);
        eventually("the end of the dropped login", || async {
            n1.kick.sessions() == 0
                && n1.kick.logins_under_way() == 0
                && n1.kick.route(&anna).await.unwrap().is_none()
        })
        .await;
    }
}

#[tokio::test]
async fn a_superseded_session_cannot_resume() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let resume = |token: &str, device: &str| {
        login(&anna, device).intent(Intent::Resume, Some(token.to_owned()))
    };

    let phone = n1.admit(&anna, "phone").await;
    let token = phone.resume_token();
    phone.logout().await;
    let LoginOutcome::Admitted(again) = n2.kick.login(resume(&token, "phone")).await.unwrap()
    else {
        panic!("nobody came in between");
    };
    let token = again.resume_token();
    let pc = n1.admit(&anna, "pc").await;
    let LoginOutcome::Denied(denied) = n2.kick.login(resume(&token, "phone")).await.unwrap() else {
        panic!("the pc came in between");
    };
    assert_eq!(denied.code, Code::Superseded);
    assert_eq!(denied.by_device.unwrap().as_str(), "pc");
    assert!(pc.check().is_ok(), "a refused resume ends nobody's session");

    let error = n1.kick.login(resume("garbage", "phone")).await.unwrap_err();
    assert_eq!(error.kind(), distlock_core::ErrorKind::InvalidArgument);
    let stolen = login(&uid("otto"), "phone").intent(Intent::Resume, Some(token));
    let error = n1.kick.login(stolen).await.unwrap_err();
    assert_eq!(error.kind(), distlock_core::ErrorKind::InvalidArgument);
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn strict_confirmation_waits_until_the_old_session_has_its_notice() {
    let cluster = Cluster::new();
    let n1 = cluster.start_node("n1").await;
    let n2 = cluster
        .start_node_with("n2", |builder| builder.confirm(Confirm::Strict))
        .await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    cluster.mesh.silence("n1");
    // No peer can call n1, but n1 finds the revocation at its next reconciliation.
    let pc = in_time("the strict login", n2.admit(&anna, "pc")).await;
    assert_eq!(
        phone.phase(),
        Phase::Superseded,
        "told before the pc was let in"
    );
    assert_eq!(pc.old_confirmed(), ConfirmedBy::Node);
}

#[tokio::test]
async fn a_shutdown_sends_every_notice_and_empties_the_directory() {
    let cluster = Cluster::new();
    let (n1, n2) = (
        cluster.start_node("n1").await,
        cluster.start_node("n2").await,
    );
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let ((), notice) = tokio::join!(n1.kick.shutdown(), async {
        let notice = notice_of(&phone).await;
        phone.logout().await;
        notice
    });
    assert_eq!((notice.code, notice.retry), (Code::Draining, Retry::Now));
    let refused = n1.login(&anna, "phone").await;
    assert!(matches!(refused, LoginOutcome::Denied(it) if it.code == Code::Draining));
    assert_eq!(n2.kick.route(&anna).await.unwrap(), None);
    assert!(n1.kick.boot().is_none());
    // The name of the node is free at once.
    let again = in_time("the same node again", cluster.start_node("n1")).await;
    assert!(again.kick.boot().is_some());
}
