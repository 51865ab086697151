//! The scenarios over a SQLite file. Scenarios that need a server or stop a node are left out. The
//! table in `matrix.rs` gives the reasons.

use crate::{messages, orders, outside, profiles, saves, scenarios, senders, steps, world::World};

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
    each_login_ends_the_session_before_it: world => scenarios::takeovers(world);
    one_of_fifty_logins_at_once_keeps_its_session:
        world => scenarios::fifty_at_once(world, &["n1", "n2", "n3"]);
    a_dead_node_denies_logins_only_until_its_lease_ends: world => scenarios::first_wins(world);
    alternating_devices_end_the_session_of_each_other: world => scenarios::ping_pong(world);
    accounts_of_a_killed_node_log_in_elsewhere: world => scenarios::killed_node(world);
    an_account_that_a_killed_process_locked_logs_in_again:
        world => scenarios::killed_holder(world);
    a_logout_while_the_lock_is_held_leaves_no_entry:
        world => scenarios::logout_beside_a_lock(world);
    a_late_logout_keeps_the_newer_session: world => scenarios::stale_logout(world);
    a_strict_login_waits_for_an_unreachable_node: world => scenarios::strict_cut_off(world);
    a_takeover_over_a_bad_peer_link_ends_the_old_session: world => scenarios::bad_peer_link(world);
    clients_that_ignore_their_notice_are_cut_off: world => scenarios::deaf_clients(world);
    the_third_login_ends_the_oldest_of_two_sessions: world => scenarios::two_of_three(world);
    a_ban_ends_the_session_and_denies_logins: world => orders::banned(world);
    a_drained_node_sends_its_sessions_elsewhere: world => orders::drained(world);
    a_broken_session_is_resumed_and_an_ended_one_is_not: world => orders::resumed(world);
    devices_on_tcp_and_websocket_take_over_from_each_other: world => orders::two_fronts(world);
    the_third_login_ends_the_most_silent_of_two_sessions: world => orders::idle_goes_first(world);
    unacknowledged_messages_come_again_after_a_resume: world => messages::acknowledged(world);
    a_message_reaches_all_devices_of_an_account: world => messages::several_devices(world);
    a_flooding_sender_pushes_out_no_message_of_others: world => senders::strangers(world);
    a_node_without_its_lease_ends_its_sessions: world => outside::fenced(world);
    nodes_show_metrics_sessions_and_other_policies: world => outside::seen_from_outside(world);
    a_takeover_survives_one_fault_in_each_step: world => steps::each_step_once(world);
    a_slow_profile_delays_no_other_login: world => profiles::slow_profiles(world);
    a_login_waits_until_the_older_client_has_saved: world => saves::after_the_save(world);
}
