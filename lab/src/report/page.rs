//! The page: its order of chapters, and the short chapters.

use std::collections::BTreeMap;

use distlock_report::render::Document;

use super::{bugs, controls, data::GatewayFigures, folder::ReportData, runs};

/// Makes the page from its data.
pub(super) fn document(data: &ReportData) -> Document {
    let mut page = Document::new("What locks are worth while things break");
    runs::store_chapters(&data.runs, &mut page);
    gateways_chapter(data, &mut page);
    simulation_chapter(data, &mut page);
    bugs::planted_chapter(&data.planted, &mut page);
    if let Some(controls) = &data.controls {
        controls::controls_chapter(controls, &mut page);
    }
    bugs::found_chapter(&data.found, &mut page);
    method_chapter(data, &mut page);
    page
}

/// Adds the chapter about gateways, if there are runs with gateways.
fn gateways_chapter(data: &ReportData, page: &mut Document) {
    if data.gateways.is_empty() {
        return;
    }
    page.chapter("The kick-out gateway");
    page.text(
        "Nodes of the gateway over one store, and clients that throw each other out, while nodes, \
         lines and the store are broken. The checker of the kick-out flow judges what nodes \
         reported and what clients saw.",
    );
    let row = |it: &GatewayFigures| {
        let looked_at = it
            .looked_at
            .iter()
            .map(|(name, times)| format!("{name} {times}"));
        [
            it.store.clone(),
            it.nodes.to_string(),
            it.seconds.to_string(),
            it.events.to_string(),
            it.seen.to_string(),
            it.faults.values().sum::<u64>().to_string(),
            it.broken.len().to_string(),
            looked_at.collect::<Vec<_>>().join(", "),
            format!("`{}`", it.command),
        ]
    };
    page.table(
        [
            "store",
            "nodes",
            "seconds",
            "events",
            "seen by clients",
            "faults",
            "broken",
            "invariants put at risk, times",
            "command",
        ],
        data.gateways.iter().map(row).collect(),
    );
    let broken: Vec<_> = data
        .gateways
        .iter()
        .flat_map(|it| it.broken.clone())
        .collect();
    if !broken.is_empty() {
        page.list(broken);
    }
}

/// Adds the chapter about the simulation, if the simulation was run.
fn simulation_chapter(data: &ReportData, page: &mut Document) {
    let Some(simulated) = &data.simulated else {
        return;
    };
    page.chapter("Simulation");
    page.text(format!(
        "The engine, the queue inside a process and the batcher in simulated time, over a network \
         that loses, delays and repeats. The seed decides everything, and all promises are checked \
         after every step. {} seeds, {} steps, {} seeds a minute: {}.",
        simulated.seeds,
        simulated.steps,
        simulated.seeds_a_minute,
        simulated
            .broken
            .as_deref()
            .unwrap_or("every promise was kept")
    ));
    page.command(&simulated.command);
}

/// Adds the chapter about servers, machine and commands.
fn method_chapter(data: &ReportData, page: &mut Document) {
    page.chapter("How this was made");
    let runs = || data.runs.iter().flat_map(|it| &it.runs);
    let servers: BTreeMap<_, _> = runs()
        .map(|it| (it.store.clone(), it.server.clone()))
        .collect();
    let rows = servers.into_iter().map(|(store, server)| [store, server]);
    page.table(["store", "server"], rows.collect());
    let dates = data.runs.iter().map(|it| it.date.as_str());
    if let (Some(first), Some(last), Some(any)) =
        (dates.clone().min(), dates.max(), data.runs.first())
    {
        page.text(format!(
            "distlock {}, begun from {first} to {last}; several runs shared the machine at a time.",
            any.version
        ));
        let machine = any.machine.iter().cloned();
        page.table(
            ["machine", ""],
            machine.map(|(label, value)| [label, value]).collect(),
        );
    }
    page.text(
        "The commands are those of `cargo run -p distlock-lab --`; `scripts/robustness` runs all \
         of them. No run needs root or namespaces of its own: all servers are private and listen \
         on this machine. Slow and full disks are left out, because they need both. Everything \
         above is made from the JSON files beside this page:",
    );
    page.command("distlock-lab report --out docs/robustness");
}
