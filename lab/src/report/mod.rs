//! `distlock-lab report`: the published page, made from the data that the other commands wrote.
//!
//! | file in the folder | written by |
//! |---|---|
//! | `runs/*.json` | `chaos --out`, one file a command |
//! | `gateways/*.json` | `chaos --gateways --out`, one file a store and seed |
//! | `simulation.json` | `simulate --out` |
//! | `planted/*.json` | each of these with `--planted` |
//! | `controls.json` | `chaos --controls --out` |
//! | `found.json` | people: every bug that was found in distlock so |
//! | `report.md`, `report.html` | this |

mod bugs;
mod command;
mod controls;
mod data;
mod folder;
mod page;
mod runs;

pub(crate) use self::{
    command::{ReportOptions, render, run},
    data::{
        BrokenPromise, ControlFigures, ControlReport, ControlRow, ExcusedPromise, GatewayFigures,
        PlantedBugResult, PlantedBugs, RunFigures, RunSet, SimulationFigures, Times,
    },
    folder::keep,
};
