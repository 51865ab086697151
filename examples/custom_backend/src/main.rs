//! The `distlock` tool with one more kind of store: `distlock-with-folders run nightly --backend
//! folder:/var/lib/app/locks -- ./backup.sh`.

fn main() -> std::process::ExitCode {
    let registry = distlock::Registry::builtin().with(custom_backend::FolderDriver);
    distlock_cli::main(registry)
}
