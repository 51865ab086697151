//! The published page, made from the data that the other commands wrote. The page must never say
//! anything that the data does not show.
//!
//! | file in the folder | written by |
//! |---|---|
//! | `runs/*.json` | `chaos --out`, one file for each command |
//! | `gateways/*.json` | `chaos --gateways --out`, one file for each store and seed |
//! | `simulation.json` | `simulate --out` |
//! | `planted/*.json` | each of these commands with `--planted` |
//! | `controls.json` | `chaos --controls --out` |
//! | `found.json` | people: all bugs that the lab found in distlock |
//! | `report.md`, `report.html` | `report`, and each command with `--out` |

mod data;
mod folder;
mod page;

pub(crate) use self::{
    data::{
        BrokenPromise, ControlFigures, ControlReport, ControlRow, ExcusedPromise, GatewayFigures,
        PlantedBugResult, PlantedBugs, RunFigures, RunSet, SimulationFigures, Times,
    },
    folder::{ReportOptions, render, run, write_part},
};
