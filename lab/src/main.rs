//! `distlock-lab`: breaks stores, and checks what locks on them were worth. It is no part of what
//! users install.

mod chaos;
mod report;
mod simulation;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Result;
use clap::Parser;
use tokio::runtime::Builder;

/// Break stores, and check what locks on them were worth.
#[derive(Debug, Parser)]
#[command(name = "distlock-lab", version, max_term_width = 80)]
enum LabCommand {
    Chaos(chaos::ChaosOptions),
    Report(report::ReportOptions),
    Simulate(simulation::SimulateOptions),
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        // Nobody reads any more, as behind `head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "distlock-lab: {error:#}");
            // A server or a worker that could not be started.
            ExitCode::from(69)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
}

fn run() -> Result<ExitCode> {
    // A worker of a run is this very program, and so is a node.
    if let Some(settings) = chaos::WorkerSettings::from_environment()? {
        return chaos::work(settings).map(|()| ExitCode::SUCCESS);
    }
    if let Some(settings) = chaos::NodeSettings::from_environment()? {
        return chaos::serve(settings).map(|()| ExitCode::SUCCESS);
    }
    match LabCommand::parse() {
        LabCommand::Chaos(chaos) => {
            let runtime = Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(chaos::run(chaos))
        }
        LabCommand::Report(report) => report::run(&report).map(|()| ExitCode::SUCCESS),
        // No runtime: it polls everything itself.
        LabCommand::Simulate(simulate) => simulation::run(&simulate),
    }
}
