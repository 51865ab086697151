//! `distlock-lab`: measures stores, breaks them on purpose, and checks the promises of their locks.
//! Users do not install this program.

mod bench;
mod chaos;
mod compare;
mod counts;
mod peers;
mod processor_time;
mod quorum;
mod report;
mod ring;
mod served;
mod simulation;
mod takeover;

use std::{
    io::{self, Write as _},
    panic::AssertUnwindSafe,
    process::ExitCode,
};

use anyhow::Result;
use clap::Parser;
use distlock_cli::program::{self, Context, Global, Outcome, Threads, code};
use tokio::runtime::Builder;

/// Measure stores, break them on purpose, and check the promises of their locks.
#[derive(Debug, Parser)]
#[command(name = "distlock-lab", version, max_term_width = 80)]
enum LabCommand {
    Bench(bench::Bench),
    Compare(compare::Compare),
    Peers(peers::PeersOptions),
    Chaos(chaos::ChaosOptions),
    Report(report::ReportOptions),
    Simulate(simulation::SimulateOptions),
}

/// The commands of the tool that measuring commands start in processes of their own: a gateway
/// node, and the process that holds locks for the conformance suite.
const COMMANDS_OF_THE_TOOL: [&str; 2] = ["gateway", program::CONFORMANCE_WORKER];

/// Runs the command. Exit code 69 means that the run itself failed.
fn main() -> ExitCode {
    program::set_program("distlock-lab");
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| COMMANDS_OF_THE_TOOL.iter().any(|command| word == *command))
    {
        return distlock_cli::main(distlock::Registry::builtin());
    }
    match run() {
        Ok(code) => code,
        // The reader of the output has closed the pipe, for example `head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "distlock-lab: {error:#}");
            // The run itself failed, for example because a server did not start.
            ExitCode::from(code::UNAVAILABLE)
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
    let command = match LabCommand::try_parse() {
        Ok(command) => command,
        Err(error) => {
            return Ok(program::guarded(AssertUnwindSafe(|| {
                program::print_parse_error::<LabCommand>(error)
            })));
        }
    };
    match command {
        LabCommand::Bench(bench) => {
            let global = bench.global.clone();
            Ok(measure(&global, async |context| {
                bench.execute(&context).await
            }))
        }
        LabCommand::Compare(compare) => {
            let global = compare.global.clone();
            Ok(measure(&global, async |context| {
                compare.execute(&context).await
            }))
        }
        LabCommand::Peers(peers) => peers::run(peers).map(|()| ExitCode::SUCCESS),
        LabCommand::Chaos(chaos) => {
            let runtime = Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(chaos::run(chaos))
        }
        LabCommand::Report(report) => report::run(&report).map(|()| ExitCode::SUCCESS),
        // The simulation polls all tasks itself, so it needs no runtime.
        LabCommand::Simulate(simulate) => simulation::run(&simulate),
    }
}

/// Runs a measuring command with the messages and the exit codes of the tool.
fn measure(global: &Global, command: impl AsyncFnOnce(Context) -> Outcome) -> ExitCode {
    program::guarded(AssertUnwindSafe(|| {
        program::start_logging(global.log_format, "error")?;
        let work = command(Context::new(global.clone()));
        program::run_on_runtime(Threads::Many, work)
            .map_err(|failure| program::add_store_flags(failure, global))
    }))
}
