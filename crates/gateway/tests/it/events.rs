//! The changes of presence as a stream of server-sent events.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::net::{ADMIN_TOKEN, Net, Node, eventually, soon};

/// A reader of events.
struct Events(BufReader<TcpStream>);

#[derive(Debug)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

/// Asks for the events after this one. Returns the status and the reader.
async fn ask(node: &Node, token: &str, after: Option<&str>) -> (u16, Events) {
    let mut stream = TcpStream::connect(node.admin).await.unwrap();
    let after = after.map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
    let request = format!(
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{after}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut events = Events(BufReader::new(stream));
    let status = events.line().await;
    let status = status.split(' ').nth(1).unwrap().parse().unwrap();
    while !events.line().await.is_empty() {}
    (status, events)
}

impl Events {
    async fn open(node: &Node, after: Option<&str>) -> Self {
        let (status, events) = ask(node, ADMIN_TOKEN, after).await;
        assert_eq!(status, 200);
        events
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        soon("a line", self.0.read_line(&mut line)).await.unwrap();
        line.trim_end().to_owned()
    }

    /// The next event. Skips the lines that frame the pieces of the body, and comments.
    async fn next(&mut self) -> Event {
        let mut parts = Vec::new();
        for name in ["id: ", "event: ", "data: "] {
            loop {
                let line = self.line().await;
                if let Some(value) = line.strip_prefix(name) {
                    parts.push(value.to_owned());
                    break;
                }
                assert!(!line.contains(": "), "{line} instead of {name}");
            }
        }
        let [id, name, data] = <[String; 3]>::try_from(parts).unwrap();
        Event {
            id,
            name,
            data: serde_json::from_str(&data).unwrap(),
        }
    }

    /// The next event, which must have this name.
    async fn expect(&mut self, name: &str) -> Event {
        let event = self.next().await;
        assert_eq!(event.name, name, "{event:?}");
        event
    }

    /// Whether the stream has ended.
    async fn ends(&mut self) {
        loop {
            let mut line = String::new();
            match soon("the end", self.0.read_line(&mut line)).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

#[tokio::test]
async fn a_stream_tells_logins_takeovers_and_ends_and_resumes() {
    let net = Net::new();
    let (mut n1, n2) = (net.node("n1").await, net.node("n2").await);
    let (mut on_n1, mut on_n2) = (Events::open(&n1, None).await, Events::open(&n2, None).await);
    let start = on_n1.expect("start").await;
    assert_eq!(start.data["node"], "n1");
    on_n2.expect("start").await;

    let (phone, login) = n1.login("anna", "phone").await;
    let online = on_n1.expect("online").await;
    for (key, expected) in [
        ("uid", &json!("anna")),
        ("session", &login["session"]),
        ("gen", &login["gen"]),
        ("node", &json!("n1")),
        ("device", &json!("phone")),
        ("class", &json!("")),
    ] {
        assert_eq!(&online.data[key], expected, "{online:?}");
    }
    // A takeover from another node: each node tells the change of its own session.
    let (pc, takeover) = n2.login("anna", "pc").await;
    let offline = on_n1.expect("offline").await;
    assert_eq!(offline.data["session"], login["session"]);
    assert_eq!(
        (&offline.data["code"], &offline.data["by_device"]),
        (&json!(1), &json!("pc"))
    );
    let online_there = on_n2.expect("online").await;
    assert_eq!(online_there.data["session"], takeover["session"]);
    pc.leave().await;
    let offline_there = on_n2.expect("offline").await;
    assert_eq!(offline_there.data["session"], takeover["session"]);
    assert!(
        offline_there.data.get("code").is_none(),
        "{offline_there:?}"
    );
    assert!(!format!("{offline:?}").contains("127.0.0.1"));
    drop(phone);

    // A reader that comes back gets what it has missed.
    let mut back = Events::open(&n1, Some(&start.id)).await;
    assert_eq!(back.expect("start").await.id, start.id);
    assert_eq!(back.expect("online").await.id, online.id);
    assert_eq!(back.expect("offline").await.id, offline.id);
    let mut back = Events::open(&n1, Some(&online.id)).await;
    assert_eq!(back.expect("start").await.id, online.id);
    assert_eq!(back.expect("offline").await.id, offline.id);

    // A new reader hears of what has just happened: an answer about presence may be from before it.
    let mut new = Events::open(&n1, None).await;
    assert_eq!(new.expect("start").await.id, start.id);
    assert_eq!(new.expect("online").await.id, online.id);

    // The id of another process is a gap, and the stream continues from its end.
    let mut other = Events::open(&n1, Some(&online_there.id)).await;
    let gap = other.expect("gap").await;
    assert_eq!(gap.data["after"], online_there.id);
    let first = other.expect("online").await;
    assert_eq!(
        (&gap.data["next"], &first.id),
        (&json!(online.id), &online.id)
    );
    let mut again = Events::open(&n1, Some(&gap.id)).await;
    again.expect("start").await;
    assert_eq!(again.expect("online").await.id, online.id);

    // The last sessions end before the stream does.
    let (_last, _) = n1.login("dora", "phone").await;
    on_n1.expect("online").await;
    n1.shut_down().await;
    let offline = on_n1.expect("offline").await;
    assert_eq!(
        (&offline.data["uid"], &offline.data["code"]),
        (&json!("dora"), &json!(6))
    );
    on_n1.ends().await;
}

#[tokio::test]
async fn streams_are_bounded_and_only_for_administrators() {
    let net = Net::new();
    let n1 = net.node("n1").await;
    assert_eq!(ask(&n1, "a guess", None).await.0, 401);
    for bad in [
        "7",
        "what",
        "00000000000000000000000000000007:x",
        "\u{e9}:1",
    ] {
        assert_eq!(ask(&n1, ADMIN_TOKEN, Some(bad)).await.0, 400, "{bad}");
    }
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut events = Events::open(&n1, None).await;
        events.expect("start").await;
        open.push(events);
    }
    assert_eq!(ask(&n1, ADMIN_TOKEN, None).await.0, 503);
    // A login reaches all of them.
    let (_anna, login) = n1.login("anna", "phone").await;
    for events in &mut open {
        assert_eq!(
            events.expect("online").await.data["session"],
            login["session"]
        );
    }
    open.pop();
    eventually("a free place", || async {
        ask(&n1, ADMIN_TOKEN, None).await.0 == 200
    })
    .await;
}
