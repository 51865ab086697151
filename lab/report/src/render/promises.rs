//! The promises of the stores, and the results of the conformance suite.

use super::text::millis;
use crate::compare::{
    Comparison, Finding, PROPERTIES, Promises, StoreFacts, durability, shown_by_faults,
};

/// The result of one property in one store.
pub(crate) struct Mark {
    pub(crate) sign: &'static str,
    /// The cases that passed: `3 of 4`.
    pub(crate) cases: Option<String>,
}

impl Mark {
    const fn without_cases(sign: &'static str) -> Self {
        Self { sign, cases: None }
    }

    /// The style class of the mark.
    pub(crate) fn css_class(&self) -> &'static str {
        match self.sign {
            "✓" => "ok",
            "✗" => "bad",
            _ => "none",
        }
    }
}

/// Whether the conformance suite ran on any store.
pub(crate) fn was_tested(comparison: &Comparison) -> bool {
    let mut stores = comparison.stores.iter();
    stores.any(|store| !store.properties.is_empty())
}

/// The title of each property, with the mark of each store. The properties that the suite tested
/// come first, then the properties that faults have shown.
pub(crate) fn property_rows(comparison: &Comparison) -> Vec<(&'static str, Vec<Mark>)> {
    let mut rows = Vec::new();
    if was_tested(comparison) {
        rows.extend(PROPERTIES.iter().map(|property| {
            let marks = comparison.stores.iter();
            let marks = marks.map(|store| suite_mark(store, property.key));
            (property.title, marks.collect())
        }));
    }
    for (title, signs) in shown_by_faults(comparison) {
        rows.push((title, signs.into_iter().map(Mark::without_cases).collect()));
    }
    rows
}

fn suite_mark(store: &StoreFacts, property: &str) -> Mark {
    let result = store.properties.iter().find(|it| it.property == property);
    let Some(result) = result else {
        return Mark::without_cases("–");
    };
    let cases = result.passed as usize + result.failed.len();
    Mark {
        sign: result.mark(),
        cases: (cases > 0).then(|| format!("{} of {cases}", result.passed)),
    }
}

/// The failed cases of the suite: the name of the store, and the message.
pub(crate) fn failed_cases(comparison: &Comparison) -> Vec<(String, String)> {
    comparison
        .stores
        .iter()
        .flat_map(|store| {
            store
                .properties
                .iter()
                .flat_map(|it| &it.failed)
                .map(|said| (store.name.clone(), said.clone()))
        })
        .collect()
}

/// Puts one capability of a store into words.
type Describe = fn(&Promises) -> String;

/// The capabilities that a store declares.
const CAPABILITIES: [(&str, Describe); 11] = [
    ("who can share it", |it| match it.reach.as_str() {
        "process" => "tasks of one process".into(),
        "host" => "processes of one host".into(),
        "network" => "anybody who can connect".into(),
        other => other.to_owned(),
    }),
    ("order of waiting processes", |it| {
        match it.fairness.as_str() {
            "fifo" => "first come, first served".into(),
            "none" => "whoever asks first".into(),
            other => other.to_owned(),
        }
    }),
    ("wake-up", |it| it.wakeup.clone()),
    ("a lease hangs on", |it| match it.lease.as_str() {
        "ttl" => "its own time".into(),
        "session" => "the session".into(),
        other => other.to_owned(),
    }),
    ("whose clock ends it", |it| it.expiry_clock.clone()),
    ("tokens rise", |it| match it.fencing.as_str() {
        "global" => "over all locks".into(),
        "per_name" => "per name".into(),
        other => other.to_owned(),
    }),
    ("shortest lease", |it| millis(whole_millis(it.min_ttl_ms))),
    ("longest lease at a time", |it| {
        it.max_lease_ms
            .map_or_else(|| "as asked".into(), |ms| millis(whole_millis(ms)))
    }),
    ("locks survive a restart", |it| {
        yes_or_no(it.survives_restart)
    }),
    ("hand-over in one step", |it| yes_or_no(it.hand_over)),
    ("tickets", |it| yes_or_no(it.tickets)),
];

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// Whole milliseconds as a floating-point number.
fn whole_millis(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64() * 1e3
}

/// The stores whose capabilities are known.
pub(crate) fn declaring_stores(comparison: &Comparison) -> Vec<&StoreFacts> {
    let stores = comparison.stores.iter();
    stores.filter(|store| store.promises.is_some()).collect()
}

/// The label of each capability, with the text of each store.
pub(crate) fn capability_rows(stores: &[&StoreFacts]) -> Vec<(&'static str, Vec<String>)> {
    let row = |(label, describe): (&'static str, Describe)| {
        let promises = stores.iter().map(|store| store.promises.as_ref());
        let texts = promises.map(|it| it.map_or_else(|| "–".into(), describe));
        (label, texts.collect())
    };
    CAPABILITIES.into_iter().map(row).collect()
}

/// The durability under which a store was measured.
pub(crate) fn durability_text(store: &StoreFacts) -> String {
    durability(store).unwrap_or_else(|| "not recorded".into())
}

/// The findings in which the doctor warns or fails.
pub(crate) fn open_findings(store: &StoreFacts) -> Vec<&Finding> {
    let findings = store.findings.iter();
    findings
        .filter(|it| it.verdict == "warn" || it.verdict == "fail")
        .collect()
}
