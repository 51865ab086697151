//! The scenarios over a SQLite file. Scenarios that need a server, or stop a node, are left out:
//! the table in `matrix.rs` says why.

use crate::{messages, orders, outside, profiles, scenarios, senders, steps, world::World};

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
    killed_with_a_lock: world => scenarios::killed_with_a_lock(world);
    logout_beside_a_router: world => scenarios::logout_beside_a_router(world);
    stale_logout: world => scenarios::stale_logout(world);
    strict_cut_off: world => scenarios::strict_cut_off(world);
    bad_peer_link: world => scenarios::bad_peer_link(world);
    deaf_clients: world => scenarios::deaf_clients(world);
    two_of_three: world => scenarios::two_of_three(world);
    banned: world => orders::banned(world);
    drained: world => orders::drained(world);
    resumed: world => orders::resumed(world);
    two_fronts: world => orders::two_fronts(world);
    idle_goes_first: world => orders::idle_goes_first(world);
    acknowledged: world => messages::acknowledged(world);
    several_devices: world => messages::several_devices(world);
    strangers: world => senders::strangers(world);
    fenced: world => outside::fenced(world);
    seen_from_outside: world => outside::seen_from_outside(world);
    each_step_once: world => steps::each_step_once(world);
    slow_profiles: world => profiles::slow_profiles(world);
}
