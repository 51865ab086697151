//! A small comparison for unit tests.

use super::model::{About, Comparison, Figure, Measure, StoreFacts};

/// Two stores, three rounds.
pub(crate) fn small() -> Comparison {
    let store = |key: &str, name: &str| StoreFacts {
        key: key.into(),
        product: key.into(),
        name: name.into(),
        server: format!("{name} 1.2"),
        setup: "for a test".into(),
        ..StoreFacts::default()
    };
    let figure = |store: &str, experiment: &str, measure, rounds: &[f64]| Figure {
        store: store.into(),
        experiment: experiment.into(),
        measure,
        rounds: rounds.to_vec(),
        missing: None,
    };
    Comparison {
        about: About {
            rounds: 3,
            ..About::default()
        },
        stores: vec![store("redis", "Redis"), store("sqlite", "SQLite")],
        figures: vec![
            figure("redis", "uncontended", Measure::P50, &[100.0, 110.0, 90.0]),
            figure("sqlite", "uncontended", Measure::P50, &[50.0, 220.0, 45.0]),
            figure(
                "redis",
                "independent-64",
                Measure::Rate,
                &[40.0, 50.0, 60.0],
            ),
            figure(
                "sqlite",
                "independent-64",
                Measure::Rate,
                &[20.0, 25.0, 30.0],
            ),
        ],
        scenarios: Vec::new(),
        peers: Vec::new(),
        loads: Vec::new(),
    }
}
