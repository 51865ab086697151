//! The lower bound of a call by gRPC: a server that does nothing, in a process of its own.

use std::{
    convert::Infallible,
    future::ready,
    net::Ipv4Addr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use distlock_harness::Process;
use distlock_report::Subject;
use distlock_wire::v1::{self, lock_service_client::LockServiceClient};
use tokio::{
    net::TcpListener,
    sync::{Mutex, OwnedMutexGuard},
};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_prost::ProstCodec;

/// The time in which the process starts.
const SOON: Duration = Duration::from_secs(20);

/// The process, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct EchoServer {
    _process: Process,
    address: String,
}

impl EchoServer {
    /// Starts the process. The function blocks.
    pub(super) fn start() -> anyhow::Result<Self> {
        let process = Process::serve(std::env::current_exe()?, &["peers", "echo"])?;
        let line = process.wait_for_line(SOON, |line| line.starts_with("http://"))?;
        Ok(Self {
            _process: process,
            address: line,
        })
    }

    pub(super) async fn connect(&self) -> anyhow::Result<LockServiceClient<Channel>> {
        connect(&self.address).await
    }
}

/// A client of the generated code, on one connection.
pub(super) async fn connect(address: &str) -> anyhow::Result<LockServiceClient<Channel>> {
    let endpoint = Endpoint::from_shared(address.to_owned())?.tcp_nodelay(true);
    let channel = endpoint.connect().await.context("connect by gRPC")?;
    Ok(LockServiceClient::new(channel))
}

/// The main function of the process. It prints its address, and serves until it is killed.
pub(super) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("http://{}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder()
        .add_service(Echo)
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// Answers every call with an empty message.
#[derive(Clone, Debug)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "distlock.lock.v1.LockService";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(Empty, call).await)
        })
    }
}

struct Empty;

impl UnaryService<v1::CheckHealth> for Empty {
    type Response = v1::HealthReport;
    type Future = BoxFuture<tonic::Response<v1::HealthReport>, Status>;

    fn call(&mut self, _: tonic::Request<v1::CheckHealth>) -> Self::Future {
        Box::pin(ready(Ok(tonic::Response::new(v1::HealthReport::default()))))
    }
}

/// A cycle of two empty calls.
#[derive(Clone, Debug)]
pub(super) struct EchoPair(pub(super) LockServiceClient<Channel>);

impl EchoPair {
    async fn call(&self) -> Result<(), Status> {
        self.0.clone().health(v1::CheckHealth {}).await.map(drop)
    }
}

impl Subject for EchoPair {
    type Held = ();
    type Error = Status;

    async fn acquire(&self, _name: &str) -> Result<(), Status> {
        self.call().await
    }

    async fn release(&self, (): ()) -> Result<(), Status> {
        self.call().await
    }
}

/// The same, one caller at a time: the lower bound of a turn at a contended lock.
#[derive(Clone, Debug)]
pub(super) struct EchoTurn {
    pub(super) pair: EchoPair,
    pub(super) turn: Arc<Mutex<()>>,
}

impl Subject for EchoTurn {
    type Held = OwnedMutexGuard<()>;
    type Error = Status;

    async fn acquire(&self, _name: &str) -> Result<Self::Held, Status> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        self.pair.call().await?;
        Ok(turn)
    }

    async fn release(&self, turn: Self::Held) -> Result<(), Status> {
        self.pair.call().await?;
        drop(turn);
        Ok(())
    }
}
