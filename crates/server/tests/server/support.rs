//! A server over a store in memory, and a client that sends what it likes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Clock as _, DistLock, Error, HolderLabel, Lease, LockInfo, LockName,
    OwnerId, Store, SystemClock, Ttl, at_most,
};
use distlock_memory::Memory;
use distlock_server::{LockServer, ServerConfig};
use distlock_wire::{
    VERSIONS,
    v1::{
        self, acquire_answer, answer, error::Kind, lock_service_client::LockServiceClient,
        operation::Operation as Asked, push, waiter_step::Step,
    },
};
use tokio::{
    sync::mpsc::{self, UnboundedSender},
    task::JoinHandle,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

pub(crate) const SOON: Duration = Duration::from_secs(10);
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A server over a store in memory, and the store itself.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    url: String,
    pub(crate) lock: Arc<dyn DistLock>,
    /// The server itself.
    pub(crate) served: JoinHandle<Result<(), Error>>,
}

pub(crate) async fn serve(change: impl FnOnce(&mut ServerConfig)) -> Served {
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    serve_store(store, memory.lock(), std::future::pending(), change).await
}

/// Serves a store until `shutdown`. `lock` is another handle on its locks.
pub(crate) async fn serve_store(
    store: Store,
    lock: Arc<dyn DistLock>,
    shutdown: impl Future<Output = ()> + Send + 'static,
    change: impl FnOnce(&mut ServerConfig),
) -> Served {
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    change(&mut config);
    let server = LockServer::start(config, store).await.unwrap();
    let address = server.address().unwrap();
    let served = tokio::spawn(server.run(shutdown));
    Served {
        address,
        url: format!("http://{address}"),
        lock,
        served,
    }
}

impl Served {
    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(self.url.clone()).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel().await)
    }

    /// A stream with this first frame.
    pub(crate) async fn stream(&self, first: v1::ClientFrame) -> Session {
        let (frames, receiver) = mpsc::unbounded_channel();
        frames.send(first).unwrap();
        let receiver = UnboundedReceiverStream::new(receiver);
        let opened = self.client().await.session(receiver).await;
        Session {
            frames,
            from_server: opened.unwrap().into_inner(),
            answers: Vec::new(),
            pushes: Vec::new(),
        }
    }

    /// A session of this client.
    pub(crate) async fn session(&self, client: Uuid, connection: u64) -> Session {
        let mut session = self.stream(hello(client, connection)).await;
        let welcome = session.frame().await.unwrap().welcome.unwrap();
        assert_eq!(welcome.version, VERSIONS[0]);
        session
    }

    pub(crate) async fn any_session(&self) -> Session {
        self.session(Uuid::new_v4(), 1).await
    }

    /// Takes a lock beside the server.
    pub(crate) async fn hold(&self, name: &str) -> Lease {
        let name = LockName::new(name).unwrap();
        let holder = HolderLabel::new("holder").unwrap();
        let request = AcquireRequest::new(name, OwnerId::new(), Ttl::new(TTL).unwrap(), holder);
        let attempt = self.lock.try_acquire(&request).await.unwrap();
        let Attempt::Acquired(grant) = attempt else {
            panic!("{attempt:?}");
        };
        Lease::new(request.name, request.owner, Some(grant.token))
    }

    pub(crate) async fn inspect(&self, name: &str) -> LockInfo {
        self.lock
            .inspect(&LockName::new(name).unwrap())
            .await
            .unwrap()
    }

    pub(crate) async fn holder(&self, name: &str) -> Option<String> {
        self.inspect(name).await.held.map(|it| it.holder)
    }

    /// Waits until the lock has this state.
    pub(crate) async fn until(&self, name: &str, is_it: impl Fn(&LockInfo) -> bool) {
        for _ in 0..500 {
            if is_it(&self.inspect(name).await) {
                return;
            }
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}", self.inspect(name).await);
    }
}

pub(crate) fn hello(client: Uuid, connection: u64) -> v1::ClientFrame {
    let hello = v1::Hello {
        client: client.as_bytes().to_vec(),
        connection,
        versions: VERSIONS.to_vec(),
        label: "test".to_owned(),
    };
    v1::ClientFrame {
        hello: Some(hello),
        operations: Vec::new(),
    }
}

pub(crate) struct Session {
    pub(crate) frames: UnboundedSender<v1::ClientFrame>,
    pub(crate) from_server: Streaming<v1::ServerFrame>,
    pub(crate) answers: Vec<v1::Answer>,
    pub(crate) pushes: Vec<push::Push>,
}

impl Session {
    pub(crate) fn send(&self, operations: impl IntoIterator<Item = (u64, Asked)>) {
        let operations = operations.into_iter().map(|(id, operation)| v1::Operation {
            id,
            operation: Some(operation),
        });
        let frame = v1::ClientFrame {
            hello: None,
            operations: operations.collect(),
        };
        self.frames.send(frame).unwrap();
    }

    pub(crate) async fn frame(&mut self) -> Result<v1::ServerFrame, Status> {
        let frame = at_most(&SystemClock, SOON, self.from_server.message()).await;
        let frame = frame.expect("a frame within the time")?;
        frame.ok_or_else(|| Status::cancelled("the stream ended"))
    }

    /// The status with which the server ends the stream.
    pub(crate) async fn refusal(&mut self) -> Status {
        loop {
            if let Err(status) = self.frame().await {
                return status;
            }
        }
    }

    pub(crate) async fn receive(&mut self) {
        let frame = self.frame().await.unwrap();
        self.answers.extend(frame.answers);
        let pushes = frame.pushes.into_iter().filter_map(|it| it.push);
        self.pushes.extend(pushes);
    }

    pub(crate) async fn answer(&mut self, id: u64) -> answer::Answer {
        loop {
            if let Some(at) = self.answers.iter().position(|it| it.id == id) {
                return self.answers.swap_remove(at).answer.unwrap();
            }
            self.receive().await;
        }
    }

    pub(crate) async fn push(&mut self) -> push::Push {
        while self.pushes.is_empty() {
            self.receive().await;
        }
        self.pushes.remove(0)
    }
}

pub(crate) fn acquire(name: &str, owner: Uuid, ttl: Duration) -> v1::AcquireLock {
    v1::AcquireLock {
        name: name.to_owned(),
        owner: owner.as_bytes().to_vec(),
        ttl_us: u64::try_from(ttl.as_micros()).unwrap(),
        holder: "client".to_owned(),
        meta: None,
        in_order: false,
    }
}

pub(crate) fn call(name: &str, wait: Duration) -> v1::AcquireCall {
    v1::AcquireCall {
        request: Some(acquire(name, Uuid::new_v4(), TTL)),
        wait_us: u64::try_from(wait.as_micros()).unwrap(),
    }
}

pub(crate) fn join(waiter: u64, name: &str) -> Asked {
    Asked::Join(v1::JoinQueue {
        waiter,
        request: Some(acquire(name, Uuid::new_v4(), TTL)),
    })
}

pub(crate) fn step(waiter: u64, step: Step) -> Asked {
    Asked::Step(v1::WaiterStep {
        waiter,
        step: step.into(),
        owner: None,
    })
}

pub(crate) fn granted(answer: answer::Answer) -> Option<v1::Grant> {
    let answer::Answer::Acquire(answer) = answer else {
        panic!("{answer:?}");
    };
    match answer.answer.unwrap() {
        acquire_answer::Answer::Granted(grant) => Some(grant),
        acquire_answer::Answer::Busy(_) => None,
    }
}

pub(crate) fn error_kind(answer: &answer::Answer) -> Kind {
    match answer {
        answer::Answer::Error(error) => error.kind(),
        other => panic!("{other:?}"),
    }
}
