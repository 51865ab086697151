//! One account on two devices, over real sockets.

use distlock_gateway::GatewayConfig;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::net::{ClientEvent, Net, eventually, lingering, login, login_with, token_of};

#[tokio::test]
async fn the_old_device_gets_a_notice_and_closes_first() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut phone, phone_ok) = n1.login("anna", "phone").await;
    assert_eq!(phone_ok["uid"], "anna");
    assert_eq!(phone_ok["node"], "n1");
    assert_eq!(phone_ok["old_confirmed"], "program");

    let (mut pc, pc_ok) = n2.login("anna", "pc").await;
    assert_eq!(pc_ok["node"], "n2");
    assert_eq!(pc_ok["old_confirmed"], "node");
    assert!(pc_ok["gen"].as_u64() > phone_ok["gen"].as_u64());

    let offline = phone.frame().await;
    assert_eq!(
        offline,
        json!({
            "type": "offline", "code": 1, "reason": "another device logged in", "retry": "never",
            "retry_after_ms": 0, "intent": "login", "by_device": "pc", "gen": pc_ok["gen"],
            "grace_ms": 300,
        })
    );
    // The old device may still send, but it gets only a refusal.
    phone
        .send(&json!({"type": "send", "to": "otto", "body": "hello", "id": "m1"}))
        .await;
    let refused = phone.frame().await;
    assert_eq!(
        (&refused["type"], &refused["code"], &refused["id"]),
        (&json!("error"), &json!("superseded"), &json!("m1"))
    );
    phone.leave().await;

    pc.send(&json!({"type": "ping"})).await;
    assert_eq!(pc.frame().await, json!({"type": "pong"}));
    eventually("the phone's end", || async { n1.kick.sessions() == 0 }).await;
    let location = n1
        .kick
        .route(&distlock_gateway::Uid::new("anna").unwrap())
        .await;
    assert_eq!(location.unwrap().unwrap().key.node.as_str(), "n2");
    pc.leave().await;
    eventually("the pc's logout", || async { n2.kick.sessions() == 0 }).await;
    for node in [&n1, &n2] {
        assert_eq!(lingering(node.listen.port()), 0);
    }
}

#[tokio::test]
async fn a_device_that_does_not_leave_is_disconnected_after_the_grace() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    let (_pc, _) = n1.login("anna", "pc").await;
    assert_eq!(phone.frame().await["type"], "offline");
    // The client neither says goodbye nor closes the connection.
    match phone.next().await {
        ClientEvent::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 4501),
        other => panic!("{other:?} instead of the closing"),
    }
    assert!(phone.rest().await.0.is_empty());
    eventually("its end", || async { n1.kick.sessions() == 1 }).await;
    assert_eq!(lingering(n1.listen.port()), 0);
}

#[tokio::test]
async fn a_device_that_reads_nothing_delays_no_login_and_is_disconnected() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    let (mut phone, _) = n1.login("anna", "phone").await;
    let (mut otto, _) = n1.login("otto", "pc").await;
    // Otto sends until the phone's connection accepts no more.
    let body = "x".repeat(60_000);
    let mut outcome = json!("written");
    while outcome == "written" {
        otto.send(&json!({"type": "send", "to": "anna", "body": body, "id": "m"}))
            .await;
        outcome = otto.frame().await["outcome"].clone();
    }
    let (_pc, ok) = n1.login("anna", "pc").await;
    assert_eq!(ok["old_confirmed"], "node");
    eventually("the phone's logout", || async { n1.kick.sessions() == 2 }).await;
    let ping = json!({"type": "ping"}).to_string();
    eventually("the end of the phone's connection", || {
        let sent = futures_util::FutureExt::now_or_never(phone.try_send(&ping));
        async move { matches!(sent, Some(false)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_simultaneous_logins_exactly_one_survives() {
    let net = Net::new();
    let nodes = [net.node("n1").await, net.node("n2").await];
    let mut clients = Vec::new();
    for number in 0..20 {
        clients.push(nodes[number % 2].connect().await);
    }
    let devices = clients.into_iter().enumerate().map(|(number, mut client)| {
        tokio::spawn(async move {
            client.send(&login("anna", &format!("d{number}"))).await;
            let first = client.frame().await;
            match first["type"].as_str().unwrap() {
                "login_ok" => Some((client, first["gen"].as_u64().unwrap())),
                "superseded" => {
                    let (frames, code) = client.rest().await;
                    assert_eq!((frames.len(), code), (0, Some(4501)));
                    None
                }
                _ => panic!("{first}"),
            }
        })
    });
    let mut admitted = Vec::new();
    for device in devices.collect::<Vec<_>>() {
        admitted.extend(device.await.unwrap());
    }
    admitted.sort_by_key(|(_, generation)| *generation);
    let (mut survivor, _) = admitted.pop().unwrap();
    for (mut client, _) in admitted {
        let offline = client.frame().await;
        assert_eq!(
            (&offline["type"], &offline["code"]),
            (&json!("offline"), &json!(1))
        );
        client.leave().await;
    }
    survivor.send(&json!({"type": "ping"})).await;
    assert_eq!(survivor.frame().await["type"], "pong");
    eventually("the others' end", || async {
        nodes.iter().map(|node| node.kick.sessions()).sum::<usize>() == 1
    })
    .await;
}

#[tokio::test]
async fn a_broken_connection_logs_out_and_may_be_resumed() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (phone, ok) = n1.login("anna", "phone").await;
    drop(phone);
    eventually("the logout", || async { n1.kick.sessions() == 0 }).await;
    let mut resume = login("anna", "phone");
    resume["intent"] = json!("resume");
    resume["resume"] = ok["resume"].clone();
    let mut phone = n2.connect().await;
    phone.send(&resume).await;
    assert_eq!(phone.frame().await["type"], "login_ok");

    let (_pc, _) = n1.login("anna", "pc").await;
    assert_eq!(phone.frame().await["type"], "offline");
    phone.leave().await;
    let mut phone = n2.connect().await;
    phone.send(&resume).await;
    let denied = phone.frame().await;
    assert_eq!(
        (&denied["type"], &denied["code"], &denied["by_device"]),
        (&json!("denied"), &json!(1), &json!("pc"))
    );
    assert_eq!(phone.rest().await.1, Some(4501));
}

#[tokio::test]
async fn a_client_whose_login_ok_was_lost_resumes_again_with_a_higher_number() {
    let net = Net::new();
    let (n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (phone, ok) = n1.login("anna", "phone").await;
    drop(phone);
    let mut resume = login("anna", "phone");
    resume["intent"] = json!("resume");
    resume["resume"] = ok["resume"].clone();
    resume["attempt"] = json!(1);
    let mut lost = n2.connect().await;
    lost.send(&resume).await;
    // The client never sees this frame.
    assert_eq!(lost.frame().await["type"], "login_ok");
    drop(lost);

    resume["attempt"] = json!(2);
    let mut phone = n1.connect().await;
    phone.send(&resume).await;
    assert_eq!(phone.frame().await["type"], "login_ok");
    for late in [json!(2), json!(1), json!(0)] {
        resume["attempt"] = late;
        let mut client = n2.connect().await;
        client.send(&resume).await;
        let denied = client.frame().await;
        assert_eq!(
            (&denied["type"], &denied["code"], &denied["by_device"]),
            (&json!("denied"), &json!(1), &json!("phone"))
        );
    }
    resume["attempt"] = json!(-1);
    let mut client = n2.connect().await;
    client.send(&resume).await;
    assert_eq!(client.frame().await["code"], "bad_value");
    phone.send(&json!({"type": "ping"})).await;
    assert_eq!(phone.frame().await, json!({"type": "pong"}));
}

#[tokio::test]
async fn a_node_that_shuts_down_advises_its_clients_to_use_another_node() {
    let net = Net::new();
    let (mut n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut phone, _) = n1.login("anna", "phone").await;
    let client = tokio::spawn(async move {
        let offline = phone.frame().await;
        phone.leave().await;
        offline
    });
    n1.shut_down().await;
    let offline = client.await.unwrap();
    assert_eq!(
        (&offline["code"], &offline["retry"]),
        (&json!(6), &json!("now"))
    );
    let (mut phone, ok) = n2.login("anna", "phone").await;
    assert_eq!(ok["old_confirmed"], "program");
    phone.send_raw(Message::Close(None)).await;
    assert_eq!(lingering(n1.listen.port()), 0);
}

/// Under `deny` a client learns its account's own sessions, and names one to end. It neither learns
/// nor ends anything of another account.
#[tokio::test]
async fn a_denied_client_chooses_the_session_that_ends() {
    let net = Net::new();
    let deny = |config: &mut GatewayConfig| {
        config.set("policy", "n_total(2)").unwrap();
        config.set("on_exceed", "deny").unwrap();
    };
    let (n1, n2) = (
        net.node_with("n1", deny).await,
        net.node_with("n2", deny).await,
    );
    let (mut phone, first) = n1.login("anna", "phone").await;
    let (mut pc, second) = n2.login("anna", "pc").await;
    let (mut eve, other) = n1.login("eve", "phone").await;
    let ask = async |end: Value| {
        let mut client = n2.connect().await;
        let mut login = login("anna", "tv");
        login["end"] = end;
        client.send(&login).await;
        let answer = client.frame().await;
        (client, answer)
    };
    // Handles of another account and of nobody change nothing, and are answered alike.
    let nobody = "00000000-0000-4000-8000-000000000001";
    for end in [json!([]), json!([other["session"]]), json!([nobody])] {
        let (_, denied) = ask(end).await;
        assert_eq!(
            (&denied["type"], &denied["code"]),
            (&json!("denied"), &json!(4))
        );
        let sessions = denied["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), 2, "{denied}");
        for (session, login, device) in [
            (&sessions[0], &second, "pc"),
            (&sessions[1], &first, "phone"),
        ] {
            assert_eq!(
                (&session["handle"], &session["device"], &session["class"]),
                (&login["session"], &json!(device), &json!(""))
            );
            assert!(session["since_ms"].as_u64().unwrap() > 0);
            assert_eq!(
                session.as_object().unwrap().len(),
                4,
                "nothing else: {denied}"
            );
        }
    }
    let (_, refused) = ask(json!(["phone"])).await;
    assert_eq!(
        (&refused["type"], &refused["code"]),
        (&json!("error"), &json!("bad_value"))
    );
    let (_tv, admitted) = ask(json!([first["session"], nobody])).await;
    assert_eq!(admitted["type"], "login_ok", "{admitted}");
    let offline = phone.frame().await;
    assert_eq!(
        (&offline["type"], &offline["code"], &offline["by_device"]),
        (&json!("offline"), &json!(1), &json!("tv"))
    );
    for client in [&mut pc, &mut eve] {
        client.send(&json!({"type": "ping"})).await;
        assert_eq!(client.frame().await["type"], "pong");
    }
    // A stranger gets no list.
    let mut stranger = n1.connect().await;
    stranger
        .send(&login_with(
            &token_of("another key of thirty-two bytes!!", "anna"),
            "tv",
        ))
        .await;
    let denied = stranger.frame().await;
    assert_eq!(denied["type"], "denied");
    assert!(denied.get("sessions").is_none(), "{denied}");
}
