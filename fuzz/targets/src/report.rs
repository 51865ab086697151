use distlock_report::{Comparison, Report, render};

/// The beginning of an HTML element. No page may show this text of the input unescaped.
const ELEMENT: &str = "<fuzz";

/// Checks results of measurements as JSON: a report that was read is the same after it is written
/// and read again, and every page of the report can be drawn.
pub fn report_json(data: &[u8]) {
    if let Ok(report) = serde_json::from_slice::<Report>(data) {
        let _ = report.to_string();
        let written = serde_json::to_vec(&report).unwrap_or_default();
        let again = serde_json::from_slice::<Report>(&written).ok();
        // The message does not show the reports, because their histograms are too long.
        assert!(
            again == Some(report),
            "{}",
            String::from_utf8_lossy(&written)
        );
    }
    if let Ok(comparison) = serde_json::from_slice::<Comparison>(data) {
        for (name, content) in render::comparison(&comparison).files() {
            let is_shown = !name.ends_with(".md");
            let is_element = is_shown && content.contains(ELEMENT);
            assert!(!is_element, "{name}: a name is taken for an element");
        }
        let written = serde_json::to_vec(&comparison).unwrap_or_default();
        assert_eq!(
            serde_json::from_slice::<Comparison>(&written).ok(),
            Some(comparison)
        );
    }
}
