//! `distlock-lab`: breaks stores on purpose, and checks the promises of their locks. Users do not
//! install this program.

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

/// Break stores on purpose, and check the promises of their locks.
#[derive(Debug, Parser)]
#[command(name = "distlock-lab", version, max_term_width = 80)]
enum LabCommand {
    Chaos(chaos::ChaosOptions),
    Report(report::ReportOptions),
    Simulate(simulation::SimulateOptions),
}

/// Runs the command. Exit code 69 means that the run itself failed.
fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        // The reader of the output has closed the pipe, for example `head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "distlock-lab: {error:#}");
            // The run itself failed, for example because a server did not start.
            ExitCode::from(69)
        }
    }
}

/// Tells whether an error means that nobody reads the output any longer.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
}

/// Runs a worker or a node if the environment has the settings of one. Otherwise runs the command.
fn run() -> Result<ExitCode> {
    // A run starts the same program for its workers and nodes.
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
        // The simulation polls all tasks itself, so it needs no runtime.
        LabCommand::Simulate(simulate) => simulation::run(&simulate),
    }
}
