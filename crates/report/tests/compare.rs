//! The pages: word for word for a small comparison, and the published one made again from its data.

use std::{fs, path::Path};

use distlock_report::{Comparison, Spread, compare::About, render};

mod made_up;

use made_up::small;

#[test]
fn the_page_word_for_word() {
    insta::assert_snapshot!("report.html", render::html(&small()));
}

#[test]
fn markdown_word_for_word() {
    insta::assert_snapshot!("report.md", render::markdown(&small()));
}

#[test]
fn a_figure_stands_alone() {
    insta::assert_snapshot!("throughput.svg", render::throughput_svg(&small()));
}

#[test]
fn the_same_data_gives_the_same_bytes() {
    let all = small();
    let json = serde_json::to_string(&all).unwrap();
    let again: Comparison = serde_json::from_str(&json).unwrap();
    assert_eq!(render::html(&again), render::html(&all));
    assert_eq!(render::markdown(&again), render::markdown(&all));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = render::html(&small());
    for outside in [
        "<script",
        "http://",
        "https://",
        "src=",
        "@import",
        "<link rel=\"style",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("clock &lt;steps&gt;") && page.contains("look &amp; see"));
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("Postgres died half-way"));
}

#[test]
fn a_dead_store_has_no_number_and_is_not_advised() {
    let text = render::markdown(&small());
    let row = text
        .lines()
        .find(|line| line.starts_with("| Postgres | died"))
        .or_else(|| text.lines().find(|line| line.contains("| died |")));
    assert!(row.is_some(), "{text}");
    assert!(text.contains("No advice from this run"));
}

#[test]
fn an_empty_comparison_is_a_page_too() {
    let empty = Comparison {
        about: About::default(),
        stores: Vec::new(),
        figures: Vec::new(),
        scenarios: Vec::new(),
        peers: Vec::new(),
    };
    assert!(render::html(&empty).contains("</html>"));
    assert!(!render::markdown(&empty).is_empty());
    assert_eq!(Spread::of([]), None);
}

/// `docs/comparison` says what its own data say.
#[test]
fn the_published_report_is_made_from_its_data() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let published: Comparison = serde_json::from_str(&read("report.json")).unwrap();
    let again = "docs/comparison was not made from its report.json: run distlock compare again";
    assert!(render::html(&published) == read("report.html"), "{again}");
    assert!(render::markdown(&published) == read("report.md"), "{again}");
    assert!(
        render::throughput_svg(&published) == read("throughput.svg"),
        "{again}"
    );
    assert!(published.stores.len() >= 6, "too few stores to be of use");
    for store in &published.stores {
        assert_eq!(store.stopped, None, "{}", store.name);
    }
    for scenario in &published.scenarios {
        assert_eq!(scenario.broken, None, "{}", scenario.store);
    }
}
