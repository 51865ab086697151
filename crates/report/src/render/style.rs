//! Colours and typography. The page contains all of them, and fetches nothing.

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

/// The colours of all stores as custom properties of CSS: `--redis: #c2362b;`.
pub(crate) fn colour_properties(keys: &[(String, String)], dark: bool) -> String {
    let mut text = String::new();
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

/// The style of the page.
pub(crate) const PAGE: &str = "\
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;\
-webkit-text-size-adjust:100%}
main{max-width:76rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em}
h2{font-size:1.3rem;margin:3rem 0 .6rem;padding-top:1rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.8rem 0 .4rem}
p,ul,dl{max-width:44rem}
p{margin:.5rem 0}
a{color:inherit}
.quiet{color:var(--quiet)}
.note{border-left:3px solid var(--line);padding:.1rem 0 .1rem .9rem;color:var(--quiet);\
margin:.8rem 0}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:1rem 0 0;font-size:.9rem}
.scroll{overflow-x:auto;margin:.8rem 0;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .8rem .35rem 0;text-align:right;vertical-align:top;\
border-bottom:1px solid var(--line)}
th{font-weight:600;min-width:4.2rem}
thead th{color:var(--quiet);font-weight:500;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
td.text,th.text{text-align:left;min-width:11rem}
td small{display:block;color:var(--quiet);font-size:.75rem}
.ok{color:var(--good)}.bad{color:var(--bad);font-weight:600}.none{color:var(--quiet)}
.dot{font-size:.8em}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));\
gap:1.4rem 2rem;margin:1rem 0}
figure{margin:0;min-width:0}
figcaption{font-size:.9rem;font-weight:600;margin-bottom:.3rem}
figcaption span{display:block;font-weight:400;color:var(--quiet)}
svg{display:block;width:100%;max-width:30rem;height:auto}
.advice{list-style:none;padding:0;margin:1rem 0;max-width:none;display:grid;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:0 2.5rem}
.advice li{padding:.7rem 0;border-bottom:1px solid var(--line)}
.advice strong{display:block}
code{font:.85em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.box{border:1px solid var(--line);border-left:4px solid var(--ink);padding:.2rem 1.2rem .8rem;\
margin:2rem 0;max-width:60rem}
.box h2{border:0;margin:.8rem 0 .4rem;padding:0}
.box dt{margin-top:.5rem}.box dd{margin:0;color:var(--quiet)}
details{margin:.6rem 0}summary{cursor:pointer}
@media(max-width:30rem){main{padding:1.4rem .9rem 3rem}h1{font-size:1.5rem}}
@media print{main{max-width:none}}
";

/// The style of the parts of a chart, in a page and in a file of its own.
pub(crate) const CHART: &str = "\
svg text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--ink)}
svg .axis text,svg text.quiet{fill:var(--quiet);font-size:10px}
svg .axis line,svg line.grid{stroke:var(--line);stroke-width:1}
";

/// The colours that every page uses on a light screen: paper, ink, lines.
pub(crate) const LIGHT: &str = "--paper:#fff;--ink:#1c1f24;--quiet:#5d6673;--line:#dfe3e8;\
    --good:#1a7f45;--bad:#c02b1d;--fault:#f3d7d3;";
/// The same colours on a dark screen.
pub(crate) const DARK: &str = "--paper:#14171c;--ink:#e7eaef;--quiet:#9aa4b2;--line:#303742;\
    --good:#5fcf8f;--bad:#ff8a7d;--fault:#4a2723;";
