//! The chapters about bugs: planted bugs, and bugs that the lab found in distlock.

use std::collections::BTreeMap;

use distlock_report::render::Document;

use super::data::{FoundBug, PlantedBugResult, PlantedBugs};

/// Adds the chapter about planted bugs. `all` has the bugs by the part of distlock that they are
/// in.
pub(super) fn planted_chapter(all: &BTreeMap<String, PlantedBugs>, page: &mut Document) {
    if all.is_empty() {
        return;
    }
    page.chapter("Planted bugs");
    page.text(
        "A checker is worth what it catches. Each of these bugs is a layer around an honest part, \
         and the same part without the bug is judged on the same seed.",
    );
    for (place, planted) in all {
        page.section(place.clone());
        let mut effort: Vec<u64> = planted
            .bugs
            .iter()
            .filter(|it| it.found.is_some())
            .map(|it| it.effort)
            .collect();
        effort.sort_unstable();
        page.text(format!(
            "{} of {} were caught, after {} {} in the median.",
            effort.len(),
            planted.bugs.len(),
            effort.get(effort.len() / 2).copied().unwrap_or_default(),
            planted.unit
        ));
        page.command(&planted.command);
        let row = |it: &PlantedBugResult| {
            [
                it.name.clone(),
                it.about.clone(),
                it.store.clone(),
                it.effort.to_string(),
                it.found.clone().unwrap_or_else(|| "MISSED".into()),
                if it.twin_is_clean { "clean" } else { "ACCUSED" }.into(),
            ]
        };
        page.table(
            ["bug", "meaning", "in", &planted.unit, "found", "without it"],
            planted.bugs.iter().map(row).collect(),
        );
    }
}

/// Adds the chapter about bugs that the lab found in distlock.
pub(super) fn found_chapter(all: &[FoundBug], page: &mut Document) {
    page.chapter("Bugs that were found in distlock");
    if all.is_empty() {
        page.text("None yet.");
        return;
    }
    let row = |it: &FoundBug| [it.bug.clone(), it.seen_by.clone(), it.test.clone()];
    page.table(["bug", "seen by", "test"], all.iter().map(row).collect());
}
