//! Decides which stores the guide may advise.

use crate::compare::{
    durability::undurable_settings,
    model::{Comparison, StoreFacts},
};

/// The reach of the store: `process`, `host`, `network`, or nothing when it is unknown.
pub(super) fn reach_of(store: &StoreFacts) -> &str {
    store.promises.as_ref().map_or("", |it| it.reach.as_str())
}

/// The stores that are reached over the network and for which `reason_against` finds nothing.
pub(super) fn network_stores(comparison: &Comparison) -> impl Iterator<Item = &StoreFacts> {
    comparison
        .stores
        .iter()
        .filter(|store| reach_of(store) == "network" && reason_against(comparison, store).is_none())
}

/// The reason not to advise a store to anybody, if there is one: the advice to print instead, and
/// the reason.
pub(super) fn reason_against(
    comparison: &Comparison,
    store: &StoreFacts,
) -> Option<(&'static str, String)> {
    let name = &store.name;
    if let Some(why) = &store.stopped {
        let why = format!("{name} stopped answering: {why}");
        return Some(("No advice from this run", why));
    }
    let broken: Vec<&str> = store
        .properties
        .iter()
        .filter(|it| !it.failed.is_empty())
        .map(|it| it.property.as_str())
        .collect();
    if !broken.is_empty() {
        let why = format!(
            "The suite found broken promises of {name}: {}.",
            broken.join(", ")
        );
        return Some(("Not before this is understood", why));
    }
    let wrong = comparison
        .scenarios
        .iter()
        .find(|it| it.store == store.key && (it.broken.is_some() || it.failed.is_some()));
    if let Some(wrong) = wrong {
        let said = wrong.broken.as_ref().or(wrong.failed.as_ref());
        let why = format!(
            "{name} did not pass \"{}\": {}.",
            wrong.kind.title(),
            said.map_or("", String::as_str)
        );
        return Some(("Not before this is understood", why));
    }
    if let Some(setting) = undurable_settings(store).first() {
        let why = format!("On {name}, {} is {}.", setting.check, setting.detail);
        return Some(("Not with these settings", why));
    }
    None
}
