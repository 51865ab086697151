//! A client that resumes again, because the answer to its last attempt was lost.
//!
//! The tests run under a policy of one session and under one of several. In the second case the
//! client's slot is neither the group's first slot nor the one with the oldest last login.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock_kickout::{
    Code, Confirm, Intent, LoginOutcome, Policy, PolicyName, Session, Slot, Target, Transition,
};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Node, eventually, in_time, login, notice_of, timers, uid};

const POLICIES: [Policy; 2] = [Policy::single(), Policy::named(PolicyName::NTotal(3))];

async fn start(cluster: &Cluster, name: &str, policy: Policy) -> Node {
    cluster
        .start_node_with(name, |builder| builder.policy(policy))
        .await
}

async fn start_two(policy: Policy) -> (Cluster, Node, Node) {
    let cluster = Cluster::new();
    let n1 = start(&cluster, "n1", policy).await;
    let n2 = start(&cluster, "n2", policy).await;
    (cluster, n1, n2)
}

/// Logs the phone in. Another device has left the group's first slot.
async fn admit_phone(node: &Node) -> Session {
    let anna = uid("anna");
    node.admit(&anna, "tv").await.logout().await;
    node.admit(&anna, "phone").await
}

async fn try_resume(node: &Node, token: &str, attempt: u64) -> LoginOutcome {
    let resume = login(&uid("anna"), "phone").intent(Intent::Resume, Some(token.to_owned()));
    let outcome = in_time("the resume", node.kick.login(resume.attempt(attempt)));
    outcome.await.unwrap()
}

async fn resume(node: &Node, token: &str, attempt: u64) -> Session {
    match try_resume(node, token, attempt).await {
        LoginOutcome::Admitted(session) => session,
        other => panic!("attempt {attempt} was not admitted: {other:?}"),
    }
}

/// Returns the device that the refusal of this attempt names.
async fn is_refused(node: &Node, token: &str, attempt: u64) -> Option<String> {
    match try_resume(node, token, attempt).await {
        LoginOutcome::Denied(denied) => {
            assert_eq!(denied.code, Code::Superseded);
            denied.by_device.map(|device| device.to_string())
        }
        other => panic!("attempt {attempt} was not refused: {other:?}"),
    }
}

/// The session whose answer was lost, at the time of the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    Stays,
    LoggedOut,
    NodeCrashed,
}

#[tokio::test]
async fn a_client_whose_answer_was_lost_resumes_again() {
    for policy in POLICIES {
        for unknown in [Unknown::Stays, Unknown::LoggedOut, Unknown::NodeCrashed] {
            let (cluster, n1, n2) = start_two(policy).await;
            let phone = admit_phone(&n1).await;
            let first = phone.resume_token();

            let lost = resume(&n2, &first, 1).await;
            assert_eq!(notice_of(&phone).await.code, Code::Replaced);
            match unknown {
                Unknown::Stays => {}
                Unknown::LoggedOut => {
                    lost.logout().await;
                }
                Unknown::NodeCrashed => n2.crash(),
            }
            let lost_too = resume(&n1, &first, 2).await;
            if unknown == Unknown::Stays {
                assert_eq!(notice_of(&lost).await.code, Code::Replaced);
            }
            // The client knows none of the sessions, so it names the same one for the third time.
            let known = resume(&n1, &first, 3).await;
            assert_eq!(notice_of(&lost_too).await.code, Code::Replaced);
            let record = cluster.record(&uid("anna")).await.unwrap();
            let sessions: Vec<_> = record.sessions().map(|(_, session)| session).collect();
            assert_eq!(sessions, [known.key().session], "{policy}, {unknown:?}");

            let last = resume(&n1, &known.resume_token(), 4).await;
            for late in 1..=3 {
                is_refused(&n1, &first, late).await;
            }
            assert!(last.check().is_ok(), "{policy}, {unknown:?}");
        }
    }
}

#[tokio::test]
async fn a_late_attempt_ends_no_newer_session() {
    for policy in POLICIES {
        let (_cluster, n1, n2) = start_two(policy).await;
        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        // The second attempt comes first, and its answer arrives.
        let again = resume(&n2, &first, 2).await;
        for late in [1, 2] {
            is_refused(&n1, &first, late).await;
            is_refused(&n2, &first, late).await;
        }
        assert!(again.check().is_ok(), "{policy}");
        // The client has resumed this session, too, before its attempts arrive once more.
        let second = again.resume_token();
        let last = resume(&n1, &second, 3).await;
        for (token, late) in [(&first, 1), (&first, 2), (&second, 3)] {
            is_refused(&n1, token, late).await;
            is_refused(&n2, token, late).await;
        }
        assert!(last.check().is_ok(), "{policy}");
        // Nor do they come back in place of a client that has left.
        last.logout().await;
        for (token, late) in [(&first, 1), (&first, 2), (&second, 3)] {
            is_refused(&n1, token, late).await;
        }
        assert!(resume(&n1, &last.resume_token(), 4).await.check().is_ok());
    }
}

#[tokio::test]
async fn another_device_or_a_kick_between_two_attempts_refuses_the_second() {
    for policy in POLICIES {
        let cluster = Cluster::new();
        let n1 = start(&cluster, "n1", policy).await;
        let anna = uid("anna");
        // As many devices as the policy allows.
        let others = ["a", "b", "c"];
        let others = &others[..policy.limit() as usize];

        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        let lost = resume(&n1, &first, 1).await;
        let mut sessions = Vec::new();
        for name in others {
            sessions.push(n1.admit(&anna, name).await);
        }
        assert_eq!(notice_of(&lost).await.code, Code::Superseded);
        let by = is_refused(&n1, &first, 2).await;
        assert_eq!(by.as_deref(), others.last().copied(), "{policy}");
        for session in &sessions {
            assert!(session.check().is_ok(), "{policy}");
            session.logout().await;
        }
        assert_eq!(is_refused(&n1, &first, 3).await, None, "{policy}");

        // The other devices log in after the session has left, and leave before the next attempt.
        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        resume(&n1, &first, 1).await.logout().await;
        sessions.clear();
        for name in others {
            sessions.push(n1.admit(&anna, name).await);
        }
        for session in &sessions {
            session.logout().await;
        }
        assert_eq!(is_refused(&n1, &first, 2).await, None, "{policy}");

        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        let lost = resume(&n1, &first, 1).await;
        let target = Target::Session(lost.key().session);
        n1.kick.kick(&target, None).await.unwrap();
        assert_eq!(notice_of(&lost).await.code, Code::AdminKick);
        assert_eq!(is_refused(&n1, &first, 2).await, None, "{policy}");
    }
}

/// A login that is granted may still be answered `busy`, and that client is told to come back.
#[tokio::test]
async fn a_resume_that_was_answered_busy_may_be_tried_again() {
    // Each takes as long as a strict login waits for a node that does not answer.
    join_all(POLICIES.map(|policy| async move {
        let cluster = Cluster::new();
        let mut timers = timers();
        timers.kick_budget = Duration::from_millis(200);
        timers.save_budget = Duration::ZERO;
        let mut long = timers.clone();
        // This node does not look for its revocations within the test.
        long.node_lease = Duration::from_secs(600);
        let n1 = cluster.start_node_with("n1", |builder| builder.policy(policy).timers(long));
        let n2 = cluster.start_node_with("n2", |builder| {
            let builder = builder.policy(policy).timers(timers);
            builder.confirm(Confirm::Strict)
        });
        let (n1, mut n2) = (n1.await, n2.await);
        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        cluster.mesh.silence("n1");
        let busy = try_resume(&n2, &first, 1).await;
        assert!(matches!(busy, LoginOutcome::Busy { .. }), "{busy:?}");
        n2.next_event(Transition::Granted).await;
        cluster.mesh.restore("n1");
        assert!(resume(&n2, &first, 2).await.check().is_ok(), "{policy}");
        assert_eq!(notice_of(&phone).await.code, Code::Replaced);
    }))
    .await;
}

/// The client's connection breaks while its node waits for the older session to end.
#[tokio::test]
async fn a_resume_that_was_cancelled_after_its_grant_may_be_tried_again() {
    for policy in POLICIES {
        let (cluster, n1, mut n2) = start_two(policy).await;
        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        cluster.mesh.delay_answers("n1");
        let cancelled = tokio::spawn({
            let (kick, first) = (n2.kick.clone(), first.clone());
            let resume = login(&uid("anna"), "phone").intent(Intent::Resume, Some(first));
            async move { kick.login(resume.attempt(1)).await }
        });
        n2.next_event(Transition::Granted).await;
        cancelled.abort();
        let error = in_time("the end of the caller", cancelled)
            .await
            .unwrap_err();
        assert!(error.is_cancelled(), "it was answered: {error}");
        cluster.mesh.restore("n1");
        assert!(resume(&n1, &first, 2).await.check().is_ok(), "{policy}");
        eventually("the end of the cancelled login", || async {
            n2.kick.sessions() == 0 && n2.kick.logins_under_way() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn without_a_number_a_token_is_good_once() {
    for policy in POLICIES {
        let cluster = Cluster::new();
        let n1 = start(&cluster, "n1", policy).await;
        let phone = admit_phone(&n1).await;
        let first = phone.resume_token();
        phone.logout().await;
        let again = resume(&n1, &first, 0).await;
        is_refused(&n1, &first, 0).await;
        assert!(again.check().is_ok(), "{policy}");
        again.logout().await;
        is_refused(&n1, &first, 0).await;
        assert!(resume(&n1, &first, 1).await.check().is_ok(), "{policy}");
    }
}

#[tokio::test]
async fn a_forged_token_spoils_no_later_resume() {
    for policy in POLICIES {
        for slot in ["main", "main#2", "main#03", "main#65", "elsewhere"] {
            let cluster = Cluster::new();
            let n1 = start(&cluster, "n1", policy).await;
            let phone = admit_phone(&n1).await;
            let first = phone.resume_token();
            phone.logout().await;
            let mut forged: Value =
                serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&first).unwrap()).unwrap();
            forged["slot"] = json!(slot);
            forged["session"] = json!(uuid::Uuid::new_v4());
            forged["gen"] = json!(u64::MAX);
            let forged = URL_SAFE_NO_PAD.encode(forged.to_string());
            let session = resume(&n1, &forged, u64::MAX).await;
            let record = cluster.record(&uid("anna")).await.unwrap();
            assert_eq!(record.r#gen, session.generation());
            let names: Vec<_> = record.past.keys().map(Slot::as_str).collect();
            let known = |name: &&str| ["main", "main#2", "main#3"].contains(name);
            assert!(names.iter().all(known), "{policy}, {slot}: {names:?}");
            session.logout().await;

            let phone = admit_phone(&n1).await;
            let first = phone.resume_token();
            let again = resume(&n1, &first, 1).await;
            assert!(again.check().is_ok(), "{policy}, {slot}");
            assert!(resume(&n1, &first, 2).await.check().is_ok());
        }
    }
}

/// The limit is lowered over a restart, and the client's slot is beyond the new limit.
#[tokio::test]
async fn a_client_resumes_again_after_the_limit_was_lowered() {
    let cluster = Cluster::new();
    let n1 = start(&cluster, "n1", Policy::named(PolicyName::NTotal(3))).await;
    let anna = uid("anna");
    let mut first = String::new();
    for name in ["a", "b", "phone"] {
        first = n1.admit(&anna, name).await.resume_token();
    }
    n1.kick.shutdown().await;
    let n1 = start(&cluster, "n1", Policy::single()).await;
    let lost = resume(&n1, &first, 1).await;
    let again = resume(&n1, &first, 2).await;
    assert_eq!(notice_of(&lost).await.code, Code::Replaced);
    assert!(again.check().is_ok());
    // The session counts like any other.
    let pc = n1.admit(&anna, "pc").await;
    assert_eq!(notice_of(&again).await.code, Code::Superseded);
    assert!(pc.check().is_ok());
}

/// Two devices lost their connections. Each comes back, whichever does so first.
#[tokio::test]
async fn a_resume_leaves_the_slot_of_another_client_free() {
    let cluster = Cluster::new();
    let n1 = start(&cluster, "n1", Policy::named(PolicyName::NTotal(2))).await;
    let anna = uid("anna");
    let tablet = n1.admit(&anna, "tablet").await;
    let phone = n1.admit(&anna, "phone").await;
    tablet.logout().await;
    let phone = resume(&n1, &phone.resume_token(), 1).await;
    let back = login(&anna, "tablet").intent(Intent::Resume, Some(tablet.resume_token()));
    match n1.kick.login(back).await.unwrap() {
        LoginOutcome::Admitted(tablet) => assert!(tablet.check().is_ok()),
        other => panic!("nobody else logged in: {other:?}"),
    }
    assert!(phone.check().is_ok());
}
