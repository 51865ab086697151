//! Colours, and the typography of charts. A page contains all of them, and fetches nothing.

use std::fmt::Write as _;

/// For each product: its name, its colour on a light screen, and its colour on a dark one.
const COLOURS: [(&str, &str, &str); 11] = [
    ("memory", "#6b7280", "#9aa3b2"),
    ("sqlite", "#1f6fb5", "#63a9e8"),
    ("redis", "#c2362b", "#f0776c"),
    ("redis-sentinel", "#8f1d4f", "#d96a9b"),
    ("redis-cluster", "#e0663a", "#ff9f78"),
    ("mariadb", "#8a5a2b", "#c99b6b"),
    ("mysql", "#c77700", "#f2a93b"),
    ("postgres", "#5b46b8", "#a595f5"),
    ("zookeeper", "#2a7f4f", "#62c48d"),
    ("etcd", "#0d7f8c", "#4cc3d0"),
    ("remote", "#b0327f", "#ee7fc0"),
];

/// Colours for unknown products, and for a second store of one product, as pairs for a light and a
/// dark screen.
const OTHERS: [(&str, &str); 4] = [
    ("#4d7c0f", "#a3d65c"),
    ("#9d174d", "#f48fb8"),
    ("#0f766e", "#5fd3c5"),
    ("#7c2d12", "#e5a07f"),
];

/// The colours of the page and of all stores as custom properties of CSS: `--redis:#c2362b;`.
pub(crate) fn properties(keys: &[(String, String)], dark: bool) -> String {
    let mut text = String::from(if dark { DARK } else { LIGHT });
    let mut others = OTHERS.iter().cycle();
    for (key, product) in keys {
        let own = COLOURS
            .iter()
            .find(|(known, ..)| known == product && key == product);
        let (light, dim) = match own {
            Some((_, light, dim)) => (*light, *dim),
            None => others.next().map_or(("#555", "#aaa"), |(a, b)| (*a, *b)),
        };
        let _ = write!(text, "--{key}:{};", if dark { dim } else { light });
    }
    text
}

/// The style of the parts of a chart, in a page and in a file of its own.
pub(crate) const CHART: &str = "\
svg text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}
svg .axis text,svg text.quiet{fill:var(--quiet);font-size:10px}
svg .axis line,svg line.grid{stroke:var(--line);stroke-width:1}
";

/// The colours that every page uses on a light screen: paper, ink, lines.
const LIGHT: &str = "--paper:#fff;--ink:#1c1f24;--quiet:#5d6673;--line:#dfe3e8;\
    --good:#1a7f45;--bad:#c02b1d;--fault:#f3d7d3;";
/// The same colours on a dark screen.
const DARK: &str = "--paper:#14171c;--ink:#e7eaef;--quiet:#9aa4b2;--line:#303742;\
    --good:#5fcf8f;--bad:#ff8a7d;--fault:#4a2723;";
