//! The doctor's check of the server's functions of time.

use distlock_core::Verdict;
use distlock_harness::servers::mysql::{MySqlServer, Product};

use crate::{locker, on_both, start};

on_both! {
    the_doctor_reports_that_sysdate_is_now => the_doctor_reports_that_sysdate_is_now;
}

async fn the_doctor_reports_that_sysdate_is_now(product: Product) {
    let (usual, still) = (
        start(product),
        MySqlServer::with(product, &["sysdate-is-now"]).unwrap(),
    );
    for (server, expected) in [(usual, None), (still, Some(Verdict::Fail))] {
        let health = locker(&server.url()).await.health().await.unwrap();
        let found = health
            .findings
            .iter()
            .find(|it| it.check == "sysdate-is-now");
        assert_eq!(found.map(|it| it.verdict), expected, "{health:?}");
    }
}
