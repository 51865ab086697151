//! `bench`: short runs, and options that do not fit.

use crate::home::Home;

#[test]
fn bench_measures_memory_and_files() {
    let home = Home::new();
    for backend in [
        "memory:".to_owned(),
        format!("sqlite:{}", home.store().display()),
    ] {
        let done = home.run([
            "bench",
            "--backend",
            &backend,
            "--workload",
            "contended",
            "--concurrency",
            "4",
            "--seconds",
            "0.2",
            "--rounds",
            "1",
            "--json",
        ]);
        assert_eq!(done.code, 0, "{done:?}");
        let report = done.json();
        assert_eq!(
            (&report["workload"], &report["callers"]),
            (&"contended".into(), &4.into())
        );
        assert!(
            report["figures"][0]["cycles_per_second"].is_object(),
            "{report}"
        );
    }
    home.run([
        "bench",
        "--workload",
        "uncontended",
        "--concurrency",
        "2",
        "--backend",
        "memory:",
    ])
    .assert_failed(64, "uncontended has one caller");
    home.run(["bench", "--backend", "memory:", "--backend", "memory:a"])
        .assert_failed(64, "multiple times");
    home.run(["bench", "--workload", "idle"])
        .assert_failed(64, "idle");
    home.run(["bench", "--seconds", "-1"]).assert_failed(64, "");
}
