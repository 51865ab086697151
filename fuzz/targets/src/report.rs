use distlock_report::{Comparison, Report, render};

/// The beginning of an HTML element. If the input holds it, no page may show it unescaped.
const ELEMENT: &str = "<fuzz";

/// Results of measurements as JSON: a report that was read is written and read back the same, and
/// every page of it can be drawn.
pub fn report_json(data: &[u8]) {
    if let Ok(report) = serde_json::from_slice::<Report>(data) {
        let _ = report.to_string();
        let written = serde_json::to_vec(&report).unwrap_or_default();
        let again = serde_json::from_slice::<Report>(&written).ok();
        // The histograms are too long for the message.
        assert!(
            again == Some(report),
            "{}",
            String::from_utf8_lossy(&written)
        );
    }
    if let Ok(comparison) = serde_json::from_slice::<Comparison>(data) {
        for page in [
            render::html(&comparison),
            render::throughput_svg(&comparison),
        ] {
            assert!(!page.contains(ELEMENT), "a name is taken for an element");
        }
        let _ = render::markdown(&comparison);
        let written = serde_json::to_vec(&comparison).unwrap_or_default();
        assert_eq!(
            serde_json::from_slice::<Comparison>(&written).ok(),
            Some(comparison)
        );
    }
}
