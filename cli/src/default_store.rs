//! The SQLite files of this host. Each user has a file, which `--user` names and which is the
//! default store, and with `--system` all users of this host share one file.

use std::{
    fs,
    io::{self, IsTerminal as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use distlock::{Target, config::Origin};

use crate::{
    exit::{Failure, Outcome, code},
    output,
};

const FILE_NAME: &str = "distlock.db";
const SERVER_STATE: &str = "server.state";
const SHARED_FOLDER: &str = "/var/lib/distlock";
/// The environment variable that replaces the folder of `--system`.
pub(crate) const SHARED_VARIABLE: &str = "DISTLOCK_SYSTEM_FOLDER";

/// The file of this user, which nobody named. A message says at its first use that the locks of two
/// users, or of two hosts, do not exclude each other. A call that `takes_locks` and whose messages
/// go to no terminal says so each time: whoever wrote its script or cron line may never have seen
/// the first message.
pub(crate) fn unnamed_file(takes_locks: bool) -> Outcome<Target> {
    let file = own_path()?;
    let is_new = !file.exists();
    let hint = hint_of_unread_file();
    let target = Target::sqlite(file);
    if std::env::var_os("DISTLOCK_TOKEN").is_some() {
        output::print_message(format_args!(
            "warning: started by the command of a `distlock run`, which does not pass its backend \
             on, and no other is named: this is {}",
            target.masked_url()
        ));
    } else if is_new || !hint.is_empty() || (takes_locks && !io::stderr().is_terminal()) {
        output::print_message(format_args!(
            "no store is named, so this is your own, {}: other users, root's cron among them, and \
             other hosts do not see its locks and sessions; name a shared one with --backend or \
             --system, or this one with --user{hint}",
            target.masked_url(),
        ));
    }
    Ok(target)
}

/// The failure of a command that chooses one of several hosts and has no named store.
pub(crate) fn unnamed_failure(command: &str) -> Failure {
    Failure::new(
        code::CONFIG,
        format!(
            "`{command}` chooses one of several hosts, and no store is named that they share: \
             name one with --backend, DISTLOCK_BACKEND or a configuration file; --system is the \
             store of this host's users, --user your own{}",
            hint_of_unread_file(),
        ),
    )
}

/// The end of a message that no store is named: a configuration file in the working folder is not
/// read, because whoever can write there would choose the store.
fn hint_of_unread_file() -> &'static str {
    if Path::new("distlock.toml").exists() {
        "; the distlock.toml in this folder is not read without --config distlock.toml"
    } else {
        ""
    }
}

/// The file of this user, named by `--user`.
pub(crate) fn own_file() -> Outcome<Target> {
    Ok(Target::sqlite(own_path()?).from_origin(Origin::Setting("--user")))
}

/// The state file of a lock server of this user, which nobody named.
pub(crate) fn own_server_state() -> Outcome<PathBuf> {
    Ok(own_path()?.with_file_name(SERVER_STATE))
}

/// The path `$XDG_STATE_HOME/distlock/distlock.db`. The function creates the folder.
fn own_path() -> Outcome<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            // The XDG specification tells programs to ignore a relative path here.
            .filter(|path| path.is_absolute())
    };
    let state = set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .ok_or_else(|| {
            Failure::new(
                code::CONFIG,
                "no backend is configured and HOME is not set to an absolute path: name one with \
                 --backend or DISTLOCK_BACKEND, or use --system",
            )
        })?;
    let folder = state.join("distlock");
    fs::create_dir_all(&folder).map_err(|error| own_folder_failure(&folder, &error))?;
    Ok(folder.join(FILE_NAME))
}

/// The file that all users of this host share. An administrator creates its folder, and the members
/// of the group of that folder may use it.
pub(crate) fn shared_file() -> Outcome<Target> {
    let folder = std::env::var_os(SHARED_VARIABLE).filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| PathBuf::from(SHARED_FOLDER), PathBuf::from);
    let file = folder.join(FILE_NAME);
    create_if_absent(&folder, &file).map_err(|error| shared_folder_failure(&folder, &error))?;
    if fs::metadata(&folder).is_ok_and(|it| it.permissions().mode() & 0o002 != 0) {
        output::print_message(format_args!(
            "warning: --system: every user can replace the store in {}: chmod o-rwx it, and give \
             it to a group",
            folder.display().to_string().escape_debug()
        ));
    }
    Ok(Target::sqlite(file).from_origin(Origin::Setting("--system")))
}

/// Creates the file unless it exists. SQLite gives its log file the mode of the database file. So
/// the database file must be writable for the group, whatever the umask of the first user is.
fn create_if_absent(folder: &Path, file: &Path) -> io::Result<()> {
    if file.try_exists()? {
        return Ok(());
    }
    let new = tempfile::NamedTempFile::new_in(folder)?;
    new.as_file()
        .set_permissions(fs::Permissions::from_mode(0o660))?;
    match new.persist_noclobber(file) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => Ok(()),
    }
}

/// The failure when the shared file cannot be used, with the command that sets up its folder.
fn shared_folder_failure(folder: &Path, error: &io::Error) -> Failure {
    let path = folder.display().to_string();
    let path = path.escape_debug();
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(
            code::DENIED,
            format!("--system: {path}: {error}: only its group may use it"),
        ),
        io::ErrorKind::NotFound => Failure::new(
            code::CONFIG,
            format!(
                "--system: {path} is not there: `sudo install -d -m 2770 -g GROUP {path}` makes it \
                 for the members of GROUP"
            ),
        ),
        _ => Failure::new(code::CONFIG, format!("--system: {path}: {error}")),
    }
}

/// The failure when the folder of this user cannot be created. `--backend sqlite:PATH` would give
/// the same exit code for such a folder.
fn own_folder_failure(folder: &Path, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => code::DENIED,
        _ => code::CONFIG,
    };
    let folder = folder.display().to_string();
    Failure::new(
        code,
        format!(
            "cannot create {}, where the default store lives: {error}: name another store with \
             --backend or DISTLOCK_BACKEND",
            folder.escape_debug()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_store_that_cannot_be_made_ends_with_77_or_78() {
        for (kind, code) in [
            (io::ErrorKind::PermissionDenied, 77),
            (io::ErrorKind::NotADirectory, 78),
            (io::ErrorKind::ReadOnlyFilesystem, 78),
        ] {
            let failure = own_folder_failure(Path::new("/x/distlock"), &kind.into());
            assert_eq!(failure.code, code, "{kind}");
            assert!(failure.to_string().contains("--backend"), "{failure}");
            let failure = shared_folder_failure(Path::new("/x/distlock"), &kind.into());
            assert_eq!(failure.code, code, "{kind}");
        }
    }
}
