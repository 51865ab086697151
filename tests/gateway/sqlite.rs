//! The scenarios over a SQLite file, but for those that stop a node: it might be in the middle of a write, and the file is locked
//! for that long.

use crate::{orders, profiles, scenarios, world::World};

macro_rules! scenarios {
    ($($test:ident: $world:ident => $play:expr;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("store.db").display());
            let $world = World::new(stringify!($test), &url);
            Box::pin($play).await;
        }
    )+};
}

scenarios! {
    takeovers: world => scenarios::takeovers(world);
    fifty_at_once: world => scenarios::fifty_at_once(world, &["n1", "n2", "n3"]);
    first_wins: world => scenarios::first_wins(world);
    locked_routing: world => scenarios::takeovers(world.with("route", "locked"));
    ping_pong: world => scenarios::ping_pong(world);
    killed_node: world => scenarios::killed_node(world);
    bad_peer_link: world => scenarios::bad_peer_link(world);
    deaf_clients: world => scenarios::deaf_clients(world);
    two_of_three: world => scenarios::two_of_three(world);
    banned: world => orders::banned(world);
    drained: world => orders::drained(world);
    resumed: world => orders::resumed(world);
    two_fronts: world => orders::two_fronts(world);
    idle_goes_first: world => orders::idle_goes_first(world);
    slow_profiles: world => profiles::slow_profiles(world);
}
