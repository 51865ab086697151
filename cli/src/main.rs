//! The `distlock` command-line tool, with the backends of this repository.

fn main() -> std::process::ExitCode {
    distlock_cli::main(distlock::Registry::builtin())
}
