//! Clients save after their session has ended, and the next login waits for that.

use distlock_checker::{Invariant, Report};
use distlock_kickout::{Code, Uid};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use crate::{
    client::{Client, Hello, State},
    scenarios::start,
    world::World,
};

/// A login learns who confirmed the end of the older session: its client has saved (`program`), its
/// node has ended it and the client left without a word (`node`), or its node does not answer
/// (`nobody`). A login waits for a save on its own node and on another one, also for the save of a
/// session that a login between them has ended.
pub(crate) async fn after_the_save(mut world: World) -> Report {
    world.rules.node_lease = std::time::Duration::from_secs(4);
    world.rules.reachable = false;
    // Nothing in this scenario waits until the time is over.
    world.set("save_budget", "1m");
    start(&mut world, &["n1", "n2"]).await;
    let anna = world.uid("anna");
    let mut clients = Vec::new();

    for node in ["n1", "n2"] {
        let mut old = log_in_saving(&world, &anna, "old", "n1").await;
        let mut new = world.client(&anna, "new", node).await;
        assert_eq!(old.wait_for_notice().await, Code::Superseded);
        assert_eq!(
            new.state(),
            State::Waiting,
            "{node}: let in before the save"
        );
        old.say_saved();
        new.wait_until_in().await;
        assert_eq!(new.confirmed_by(), "program", "{node}");
        clients.extend([old, new]);
    }

    let mut first = log_in_saving(&world, &anna, "first", "n1").await;
    let mut second = world.client(&anna, "second", "n2").await;
    assert_eq!(first.wait_for_notice().await, Code::Superseded);
    let mut third = world.client(&anna, "third", "n1").await;
    let overtaken = State::Out("superseded".into());
    assert_eq!(second.wait_for_answer().await, overtaken);
    assert_eq!(
        third.state(),
        State::Waiting,
        "let in before the first save"
    );
    first.say_saved();
    third.wait_until_in().await;
    assert_eq!(third.confirmed_by(), "program");
    clients.extend([first, second, third]);

    let mut silent = log_in_saving(&world, &anna, "silent", "n2").await;
    let mut new = world.client(&anna, "new", "n1").await;
    assert_eq!(silent.wait_for_notice().await, Code::Superseded);
    // Its connection breaks.
    drop(silent);
    new.wait_until_in().await;
    assert_eq!(new.confirmed_by(), "node");
    clients.push(new);

    let mut unreachable = log_in_saving(&world, &anna, "unreachable", "n2").await;
    world.node("n2").wire.black_hole();
    let new = world.log_in(&anna, "new", "n1").await;
    assert_eq!(new.confirmed_by(), "nobody");
    assert_eq!(unreachable.wait_for_notice().await, Code::Superseded);
    world.node("n2").wire.pass();
    unreachable.say_saved();
    clients.extend([unreachable, new]);
    world
        .verdict(clients, &[Invariant::I6, Invariant::I9])
        .await
}

/// Logs in a client that says when it has saved.
async fn log_in_saving(world: &World, uid: &Uid, device: &str, node: &str) -> Client {
    let hello = Hello::login().saves();
    let mut client = world.client_with(uid, device, node, hello).await;
    client.wait_until_in().await;
    client
}

/// Runs the statements that docs/gateway.md shows for a store of the players' state.
#[tokio::test]
async fn the_statements_that_fence_saves_refuse_a_late_save() {
    let page = include_str!("../../docs/gateway.md");
    let sql = page.split("```sql\n").nth(1).unwrap();
    let sql = sql.split("```").next().unwrap();
    let sql = sql.replace(":gen", "?1").replace(":uid", "?2");
    let sql = sql.replace(":state", "?3");
    let statements: Vec<_> = sql
        .lines()
        .filter(|line| line.starts_with("UPDATE"))
        .collect();
    let [load, save] = statements.as_slice() else {
        panic!("{sql}");
    };
    let mut store = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    let table = "CREATE TABLE player (uid TEXT PRIMARY KEY, gen INTEGER, state TEXT)";
    sqlx::raw_sql(table).execute(&mut store).await.unwrap();
    let player = "INSERT INTO player VALUES ('alice', 0, 'one sword')";
    sqlx::raw_sql(player).execute(&mut store).await.unwrap();
    let load = async |store: &mut SqliteConnection, generation: i64| -> Option<String> {
        let load = sqlx::query_scalar(AssertSqlSafe(*load));
        let load = load.bind(generation).bind("alice");
        load.fetch_optional(store).await.unwrap()
    };
    let save = async |store: &mut SqliteConnection, generation: i64, state: &str| {
        let save = sqlx::query(AssertSqlSafe(*save));
        let save = save.bind(generation).bind("alice").bind(state);
        save.execute(store).await.unwrap().rows_affected()
    };
    assert_eq!(load(&mut store, 5).await.unwrap(), "one sword");
    assert_eq!(save(&mut store, 5, "no sword").await, 1);
    assert_eq!(load(&mut store, 7).await.unwrap(), "no sword");
    assert_eq!(
        save(&mut store, 5, "one sword again").await,
        0,
        "a late save"
    );
    assert_eq!(load(&mut store, 5).await, None, "a late load");
    assert_eq!(save(&mut store, 7, "two swords").await, 1);
    assert_eq!(load(&mut store, 7).await.unwrap(), "two swords");
}
