//! Which stores can be advised at all.

use crate::compare::{
    durability::not_durable,
    model::{Comparison, StoreFacts},
};

pub(super) fn reach(store: &StoreFacts) -> &str {
    store.promises.as_ref().map_or("", |it| it.reach.as_str())
}

/// The stores over the network that nothing speaks against.
pub(super) fn network_stores(comparison: &Comparison) -> impl Iterator<Item = &StoreFacts> {
    comparison
        .stores
        .iter()
        .filter(|store| reach(store) == "network" && unfit(comparison, store).is_none())
}

/// The reason why a store must not be advised at all, with the advice to print instead.
pub(super) fn unfit(comparison: &Comparison, store: &StoreFacts) -> Option<(&'static str, String)> {
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
    if let Some(setting) = not_durable(store).first() {
        let why = format!("On {name}, {} is {}.", setting.check, setting.detail);
        return Some(("Not with these settings", why));
    }
    None
}
