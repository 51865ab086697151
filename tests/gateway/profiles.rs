//! Nodes ask a web service about each login, and the service is slow.

use std::sync::Arc;

use axum::{Json, Router, extract::State as Held, http::StatusCode, routing::post};
use distlock_checker::{Fact, Invariant, Report};
use distlock_kickout::Code;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch};

use crate::{
    client::State,
    scenarios::start,
    world::{SOON, World, now_us},
};

/// A web service. It delays its answer about the device "slow", refuses the device "unpaid" and
/// fails for the device "broken".
struct Service {
    url: String,
    /// The number of questions about slow devices.
    asked: watch::Sender<u32>,
    go: watch::Sender<bool>,
}

impl Service {
    async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Arc::new(Self {
            url: format!("http://{}/login", listener.local_addr().unwrap()),
            asked: watch::Sender::new(0),
            go: watch::Sender::new(false),
        });
        let router = Router::new()
            .route("/login", post(Self::answer))
            .with_state(service.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        service
    }

    async fn answer(Held(service): Held<Arc<Self>>, Json(question): Json<Value>) -> StatusCode {
        match question["device"].as_str().unwrap() {
            "slow" => {
                service.asked.send_modify(|asked| *asked += 1);
                let mut go = service.go.subscribe();
                go.wait_for(|go| *go).await.unwrap();
                StatusCode::NO_CONTENT
            }
            "unpaid" => StatusCode::FORBIDDEN,
            "broken" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::NO_CONTENT,
        }
    }

    async fn wait_until_asked(&self, times: u32) {
        let mut asked = self.asked.subscribe();
        let reached = asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(SOON, reached).await.unwrap().unwrap();
    }
}

/// While the profile of a login is being loaded, other logins do not wait, neither those of the
/// same account nor those of other accounts, on both nodes. After its profile was loaded, the slow
/// login is the newest. Three logins change nothing: one whose client leaves meanwhile, a refused
/// one, and one whose profile cannot be loaded.
pub(crate) async fn slow_profiles(mut world: World) -> Report {
    let service = Service::start().await;
    world.set("profile_url", &service.url);
    world.set("profile_timeout", "5m");
    start(&mut world, &["n1", "n2"]).await;
    let (anna, quiet) = (world.uid("anna"), world.uid("quiet"));
    world.fact(Fact::Bystander { uid: quiet.clone() });
    world.log_in_and_out(&quiet, "n1", 5).await;
    let from_us = now_us();
    let mut slow = world.client(&anna, "slow", "n1").await;
    service.wait_until_asked(1).await;
    let given_up = world.client(&anna, "slow", "n2").await;
    service.wait_until_asked(2).await;
    drop(given_up);
    let mut phone = world.log_in(&anna, "phone", "n1").await;
    let mut pc = world.log_in(&anna, "pc", "n2").await;
    assert_eq!(phone.wait_for_notice().await, Code::Superseded);
    for node in ["n1", "n2"] {
        world.log_in_and_out(&quiet, node, 5).await;
    }
    let mut unpaid = world.client(&anna, "unpaid", "n1").await;
    assert_eq!(unpaid.wait_for_answer().await, State::Out("denied".into()));
    let mut broken = world.client(&anna, "broken", "n2").await;
    assert_eq!(
        broken.wait_for_answer().await,
        State::Out("unavailable".into())
    );
    assert!(matches!(pc.state(), State::In(..)), "{:?}", pc.stamp);
    assert_eq!(slow.state(), State::Waiting);
    world.fact(Fact::Trouble {
        from_us,
        to_us: now_us(),
    });
    service.go.send_replace(true);
    slow.wait_until_in().await;
    assert_eq!(pc.wait_for_notice().await, Code::Superseded);
    let clients = vec![slow, phone, pc, unpaid, broken];
    world.verdict(clients, &[Invariant::I15]).await
}
