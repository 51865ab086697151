//! Sets watches on the containers that this session uses more than once. The known queues need
//! these watches.

use std::sync::Arc;

use crate::{nodes::known_queues::ContainerWatch, session::Session};

/// Sets a watch on a container in the background, and stores the watch in the known queues. If the
/// request fails, the known queues record that the container has no watch.
pub(crate) fn watch_container(session: &Arc<Session>, parent: &Arc<str>) {
    let (task_session, parent) = (Arc::clone(session), Arc::clone(parent));
    session.spawn(async move {
        let session = task_session;
        let connection_number = session.connection_number();
        let set = async {
            let client = session.client().ok()?;
            session.context().requests.add(1);
            let (stat, watcher) = client.check_and_watch_stat(&parent).await.ok()?;
            Some(ContainerWatch {
                connection_number,
                container_czxid: stat?.czxid,
                changed: Box::pin(watcher.changed()),
            })
        };
        let watch = set.await;
        session.known_queues.set_watch(&parent, watch);
    });
}
