//! The store queue, and tables of version 1.

use std::sync::Arc;

use distlock_core::SystemClock;
use distlock_harness::servers::mysql::Product;
use distlock_sql::{MySql, ServerConfig};

use crate::{
    lines::{
        a_dead_entry_blocks_the_queue_for_its_lease, no_queue_entry_stays,
        tables_of_version_1_work_beside_version_2,
    },
    locker, on_both, start,
};

on_both! {
    no_queue_entry_is_left => no_queue_entry_is_left;
    a_dead_entry_delays_the_others_for_its_lease => a_dead_entry_delays_the_others_for_its_lease;
    tables_of_version_1_still_work => tables_of_version_1_still_work;
}

async fn no_queue_entry_is_left(product: Product) {
    let server = start(product);
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let places = async || {
        let count = server.sql("SELECT COUNT(*) FROM distributed_line");
        count.unwrap().parse().unwrap()
    };
    let die = async || {
        server
            .sql(
                "INSERT INTO distributed_line SELECT lock_name, -1, 1, expires_at - 5500000, \
                 'dead' FROM distributed_lock WHERE lock_name = 'a'",
            )
            .unwrap();
    };
    no_queue_entry_stays(&holder, &waiter, places, die).await;
}

async fn a_dead_entry_delays_the_others_for_its_lease(product: Product) {
    let server = start(product);
    let (holder, waiter) = (locker(&server.url()).await, locker(&server.url()).await);
    let die = async |name: &str, earlier: u32| {
        server
            .sql(&format!(
                "INSERT INTO distributed_line SELECT lock_name, -1, 1, expires_at - {earlier}000, \
                 'dead' FROM distributed_lock WHERE lock_name = '{name}'"
            ))
            .unwrap();
    };
    a_dead_entry_blocks_the_queue_for_its_lease(&holder, &waiter, die).await;
}

async fn tables_of_version_1_still_work(product: Product) {
    let server = start(product);
    let config = ServerConfig::from_url(&server.url()).unwrap();
    let open = async |migrate: bool| locker(&format!("{}&migrate={migrate}", server.url())).await;
    let drop_line = async || drop(server.sql("DROP TABLE distributed_line").unwrap());
    let status = async || {
        let status = MySql::status(config.clone(), Arc::new(SystemClock)).await;
        let status = status.unwrap();
        (status.version, status.migrations.len())
    };
    let migrate = async || {
        let before = MySql::migrate(config.clone(), Arc::new(SystemClock)).await;
        before.unwrap().version
    };
    tables_of_version_1_work_beside_version_2(open, drop_line, status, migrate).await;
}
