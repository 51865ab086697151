//! The calls of the protocol.

use std::sync::Arc;

use distlock_core::{Error, Moment};
use distlock_listen::ConnectionHandle;
use distlock_wire::v1::{self, lock_service_server::LockService};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    operations::{Caller, Operations},
    session::{self, SessionContext},
    unary,
};

type Answered<T> = Result<Response<T>, Status>;

/// The service of one server.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) context: Arc<SessionContext>,
}

impl Service {
    /// The message of a unary call, and the moment of its receipt.
    fn receive<T>(&self, call: Request<T>) -> (&Arc<Operations>, T, Moment) {
        let received = self.context.operations.clock().now();
        if let Some(connection) = call.extensions().get::<ConnectionHandle>() {
            connection.mark_logged_in();
        }
        (&self.context.operations, call.into_inner(), received)
    }
}

fn answered<T>(outcome: Result<T, Error>) -> Answered<T> {
    match outcome {
        Ok(answer) => Ok(Response::new(answer)),
        Err(error) => Err(v1::Error::from(&error).into_status()),
    }
}

#[tonic::async_trait]
impl LockService for Service {
    type SessionStream = ReceiverStream<Result<v1::ServerFrame, Status>>;

    async fn session(
        &self,
        call: Request<Streaming<v1::ClientFrame>>,
    ) -> Answered<Self::SessionStream> {
        let connection = call.extensions().get::<ConnectionHandle>().cloned();
        let context = Arc::clone(&self.context);
        let frames = session::start(context, call.into_inner(), connection);
        Ok(Response::new(frames))
    }

    async fn acquire(&self, call: Request<v1::AcquireCall>) -> Answered<v1::AcquireAnswer> {
        let (_, call, received) = self.receive(call);
        answered(unary::acquire(&self.context, call, received).await)
    }

    async fn renew(&self, call: Request<v1::RenewLease>) -> Answered<v1::RenewAnswer> {
        let (operations, call, _) = self.receive(call);
        let caller = Caller {
            losses: None,
            label: &self.context.unnamed,
        };
        answered(operations.renew(call, caller).await)
    }

    async fn release(&self, call: Request<v1::ReleaseLease>) -> Answered<v1::ReleaseAnswer> {
        let (operations, call, _) = self.receive(call);
        answered(operations.release(call).await)
    }

    async fn hand_over(&self, call: Request<v1::HandOverLease>) -> Answered<v1::HandOverAnswer> {
        let (operations, call, received) = self.receive(call);
        answered(operations.hand_over(call, received, None).await)
    }

    async fn inspect(&self, call: Request<v1::InspectLock>) -> Answered<v1::LockState> {
        let (operations, call, _) = self.receive(call);
        answered(operations.inspect(call).await)
    }

    async fn list(&self, call: Request<v1::ListLocks>) -> Answered<v1::LockList> {
        let (operations, call, _) = self.receive(call);
        answered(operations.list(call).await)
    }

    async fn force_release(
        &self,
        call: Request<v1::ForceReleaseLock>,
    ) -> Answered<v1::ForceReleaseAnswer> {
        let (operations, call, _) = self.receive(call);
        answered(operations.force_release(call).await)
    }

    async fn health(&self, call: Request<v1::CheckHealth>) -> Answered<v1::HealthReport> {
        let (operations, _, _) = self.receive(call);
        answered(operations.health().await)
    }

    async fn get_records(&self, call: Request<v1::ReadRecords>) -> Answered<v1::RecordValues> {
        let (operations, call, _) = self.receive(call);
        answered(operations.get(call).await)
    }

    async fn put_record(&self, call: Request<v1::WriteRecord>) -> Answered<v1::WriteAnswer> {
        let (operations, call, _) = self.receive(call);
        answered(operations.put(call).await)
    }

    async fn delete_record(&self, call: Request<v1::RemoveRecord>) -> Answered<v1::RemoveAnswer> {
        let (operations, call, _) = self.receive(call);
        answered(operations.delete(call).await)
    }

    async fn scan_records(&self, call: Request<v1::ListRecords>) -> Answered<v1::RecordList> {
        let (operations, call, _) = self.receive(call);
        answered(operations.scan(call).await)
    }
}
