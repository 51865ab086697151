//! Tests of the page in a real browser: the console has no message, and every chart is drawn. No
//! table is cut off on a screen of 1280 pixels, and nothing is cut off on a telephone.

mod made_up;

use std::{fs, path::PathBuf, process::Command};

/// A script that measures the page from inside and sends the results to the page around it. The
/// test adds the script to a copy of the page, because the page itself has no script.
const MEASURING_SCRIPT: &str = r#"<script>
addEventListener("load", () => {
  const svgs = [...document.querySelectorAll("svg")];
  const drawn = svgs.filter(it => {
    const box = it.getBoundingClientRect();
    return box.width > 200 && box.height > 30;
  });
  const page = document.documentElement;
  let outside = 0, smallest = 99;
  for (const svg of drawn) {
    const box = svg.getBoundingClientRect();
    if (box.left < 0 || box.right > page.clientWidth + 1) outside++;
    const scale = box.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll("text"))
      smallest = Math.min(smallest, parseFloat(getComputedStyle(text).fontSize) * scale);
  }
  // For every element that holds a table, every table and every cell: the content is not wider than
  // the element.
  const tables = [...document.querySelectorAll("table")];
  const clipped = new Set();
  for (const table of tables) {
    for (let it = table; it && it !== page; it = it.parentElement)
      if (it.scrollWidth > it.clientWidth) clipped.add(it);
    for (const cell of table.querySelectorAll("th, td"))
      if (cell.scrollWidth > cell.clientWidth) clipped.add(cell);
    if (table.getBoundingClientRect().right > page.clientWidth) clipped.add(table);
  }
  // No label of a chart lies outside of the chart.
  const labels = [...document.querySelectorAll("svg text")].filter(text => {
    const [label, figure] = [text, text.ownerSVGElement].map(it => it.getBoundingClientRect());
    return label.left < figure.left - 1 || label.right > figure.right + 1;
  }).map(text => text.textContent);
  const named = it =>
    `${it.tagName} ${it.scrollWidth}>${it.clientWidth} ${it.textContent.slice(0, 40)}`;
  parent.postMessage(JSON.stringify({
    figures: svgs.length, drawn: drawn.length, outside, smallest,
    labels, tables: tables.length, clipped: [...clipped].map(named),
    wider: page.scrollWidth - page.clientWidth, width: page.clientWidth,
  }), "*");
});
</script>"#;

/// A page that shows the tested page in a frame as wide as a telephone: a browser's own window
/// cannot be made that narrow. The frame comes after the script, so that the script receives the
/// message from the frame.
const OUTER_PAGE: &str = r#"<!doctype html><link rel="icon" href="data:,"><script>
addEventListener("message", told => {
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = told.data;
  document.body.append(seen);
});
</script><body>
<iframe src="page.html" style="border:0;height:800px;width:WIDTHpx"></iframe></body>"#;

/// Opens all folds, so that everything is measured.
fn unfolded(page: &str) -> String {
    page.replace("<details>", "<details open>")
}

/// Opens the page in a frame of the given width, and returns the measurements of the script.
fn measure_page(page: &str, name: &str, width: u32) -> serde_json::Value {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let around = folder.join("around.html");
    fs::write(&around, OUTER_PAGE.replace("WIDTH", &width.to_string())).unwrap();
    fs::write(
        folder.join("page.html"),
        page.replace("</body>", &format!("{MEASURING_SCRIPT}</body>")),
    )
    .unwrap();
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--enable-logging=stderr",
            "--hide-scrollbars",
            "--virtual-time-budget=20000",
            "--dump-dom",
        ])
        .arg("--window-size=1300,900")
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", around.display()))
        .env("HOME", &folder)
        .output()
        .expect("chromium (Debian: apt-get install chromium)");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains(":CONSOLE"), "{said}");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let seen = dom
        .split("<pre id=\"seen\">")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next())
        .unwrap_or_else(|| panic!("the page was not loaded: {said}"));
    fs::remove_dir_all(&folder).unwrap();
    serde_json::from_str(seen).unwrap()
}

#[test]
fn the_published_page_reads_well_in_a_browser() {
    for (name, width) in [("wide", 1200), ("narrow", 400)] {
        let seen = measure_page(
            &unfolded(&made_up::published_file("report.html")),
            name,
            width,
        );
        assert_eq!(seen["width"], width, "{seen}");
        assert!(seen["figures"].as_u64().unwrap() >= 6, "{seen}");
        assert_eq!(seen["drawn"], seen["figures"], "{name}: {seen}");
        assert_eq!(seen["outside"], 0, "{name}: {seen}");
        assert!(
            seen["wider"].as_i64().unwrap() <= 0,
            "{name} must be scrolled sideways: {seen}"
        );
        assert!(seen["smallest"].as_f64().unwrap() >= 8.5, "{name}: {seen}");
    }
}

#[test]
fn no_table_is_cut_off_at_1280_pixels() {
    let published = made_up::published_file("report.html");
    let robustness = made_up::published_file("../robustness/report.html");
    let largest = made_up::pages(&made_up::large())
        .remove("report.html")
        .unwrap();
    for (name, page, tables) in [
        ("published", published, 10),
        ("robustness", robustness, 14),
        ("large", largest, 14),
    ] {
        let seen = measure_page(&unfolded(&page), name, 1280);
        assert_eq!(seen["width"], 1280, "{seen}");
        assert!(seen["tables"].as_u64().unwrap() >= tables, "{name}: {seen}");
        assert_eq!(seen["clipped"], serde_json::json!([]), "{name}");
        assert_eq!(seen["labels"], serde_json::json!([]), "{name}");
    }
}
