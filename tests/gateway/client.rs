//! A device: a real WebSocket client that writes down what it does and sees.

use std::{net::SocketAddr, sync::Arc};

use distlock_checker::{Seen, What};
use distlock_kickout::{Code, Generation, SessionId, Uid};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::{connect_async, tungstenite::Message};

use crate::world::{SOON, Shared};

/// How a client stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    In(SessionId, Generation),
    /// It was turned away: the type of the frame.
    Out(String),
    /// Its session ended, and it was told why.
    Told(Code),
    /// Its connection is gone.
    Closed,
}

enum Command {
    Send(Value),
    /// Answers the next notice by silence.
    Ignore,
    Leave,
}

/// A connected device. Dropping it breaks its connection off, like one whose battery is empty.
pub(crate) struct Client {
    pub(crate) stamp: Seen,
    state: watch::Receiver<State>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Client {
    pub(crate) async fn connect(
        to: SocketAddr,
        token: &str,
        stamp: Seen,
        shared: Arc<Shared>,
    ) -> Self {
        let (tell, state) = watch::channel(State::Waiting);
        let (commands, mut asked) = mpsc::unbounded_channel();
        let connecting = connect_async(format!("ws://{to}/ws"));
        let (mut socket, _) = tokio::time::timeout(SOON, connecting)
            .await
            .expect("connected in time")
            .expect("connected");
        let login = json!({"type": "login", "token": token, "device": stamp.device, "class": "", "intent": "login"});
        shared.saw(&stamp, What::LoginSent);
        socket.send(Message::text(login.to_string())).await.unwrap();
        let mine = stamp.clone();
        tokio::spawn(async move {
            let stamp = mine;
            let (mut ignores, mut leaving) = (false, false);
            loop {
                tokio::select! {
                    command = asked.recv() => match command {
                        Some(Command::Send(frame)) => {
                            if frame["type"] == "send" {
                                let id = frame["id"].as_str().unwrap().to_owned();
                                shared.saw(&stamp, What::Sent { id });
                            }
                            let _ = socket.send(Message::text(frame.to_string())).await;
                        }
                        Some(Command::Ignore) => ignores = true,
                        Some(Command::Leave) => {
                            leaving = true;
                            shared.saw(&stamp, What::Leaves);
                            let _ = socket.send(Message::text(r#"{"type":"logout"}"#)).await;
                            let _ = socket.close(None).await;
                        }
                        None => {
                            if !leaving {
                                shared.saw(&stamp, What::Leaves);
                            }
                            return;
                        }
                    },
                    frame = socket.next() => {
                        let frame = match frame {
                            Some(Ok(Message::Text(text))) => text,
                            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => continue,
                            Some(Ok(Message::Close(_)) | Err(_)) | None => {
                                if !leaving {
                                    shared.saw(&stamp, What::Closed);
                                }
                                let told = matches!(*tell.borrow(), State::Told(_) | State::Out(_));
                                if !told {
                                    tell.send_replace(State::Closed);
                                }
                                return;
                            }
                        };
                        let frame: Value = serde_json::from_str(frame.as_str()).unwrap();
                        let Some((what, state)) = read(&frame) else { continue };
                        let told = matches!(what, What::Told { .. });
                        shared.saw(&stamp, what);
                        if let Some(state) = state {
                            tell.send_replace(state);
                        }
                        if told && !ignores {
                            leaving = true;
                            shared.saw(&stamp, What::Leaves);
                            let _ = socket.send(Message::text(r#"{"type":"bye"}"#)).await;
                            let _ = socket.close(None).await;
                        }
                    }
                }
            }
        });
        Self {
            stamp,
            state,
            commands,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits for an answer to the login.
    pub(crate) async fn answered(&mut self) -> State {
        self.until("an answer", |state| *state != State::Waiting)
            .await
    }

    pub(crate) async fn is_in(&mut self) -> (SessionId, Generation) {
        match self.answered().await {
            State::In(session, r#gen) => (session, r#gen),
            other => panic!("{:?} was not let in: {other:?}", self.stamp),
        }
    }

    /// Waits until the session ended with a notice, and says why.
    pub(crate) async fn told(&mut self) -> Code {
        let over = |state: &State| !matches!(state, State::Waiting | State::In(..));
        match self.until("the end", over).await {
            State::Told(code) => code,
            other => panic!("{:?} ended without a notice: {other:?}", self.stamp),
        }
    }

    pub(crate) async fn until(&mut self, what: &str, reached: impl Fn(&State) -> bool) -> State {
        let stamp = &self.stamp;
        let waiting = self.state.wait_for(|state| reached(state));
        match tokio::time::timeout(SOON * 2, waiting).await {
            Ok(Ok(state)) => state.clone(),
            other => panic!("{stamp:?} waits for {what}: {other:?}"),
        }
    }

    pub(crate) fn send(&self, to: &Uid, id: &str) {
        let frame = json!({"type": "send", "to": to, "body": id, "id": id});
        let _ = self.commands.send(Command::Send(frame));
    }

    pub(crate) fn ignores_its_notice(&self) {
        let _ = self.commands.send(Command::Ignore);
    }

    pub(crate) fn leave(&self) {
        let _ = self.commands.send(Command::Leave);
    }
}

fn read(frame: &Value) -> Option<(What, Option<State>)> {
    let code = || serde_json::from_value(frame["code"].clone()).unwrap();
    let id = || frame["id"].as_str().unwrap().to_owned();
    Some(match frame["type"].as_str().unwrap() {
        "login_ok" => {
            let session = serde_json::from_value(frame["session"].clone()).unwrap();
            let r#gen = Generation::new(frame["gen"].as_u64().unwrap());
            (
                What::LoginOk { session, r#gen },
                Some(State::In(session, r#gen)),
            )
        }
        "busy" => (What::Busy, Some(State::Out("busy".into()))),
        "denied" => (
            What::Denied { code: code() },
            Some(State::Out("denied".into())),
        ),
        "superseded" => (What::Overtaken, Some(State::Out("superseded".into()))),
        "offline" => (What::Told { code: code() }, Some(State::Told(code()))),
        "message" => (What::Message { id: id() }, None),
        "sent" => {
            let outcome = frame["outcome"].as_str().unwrap().to_owned();
            (What::Outcome { id: id(), outcome }, None)
        }
        "error" if frame["code"] == "unavailable" => {
            (What::Busy, Some(State::Out("unavailable".into())))
        }
        _ => return None,
    })
}
