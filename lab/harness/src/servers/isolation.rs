//! Isolates the servers from the other users of this host: with random passwords, with private
//! folders, and with an unprivileged user for each server.
//!
//! Invariant: a server never runs as root, and no secret is in a process list.

use std::{
    fmt, fs,
    io::Write as _,
    os::unix::{
        fs::{OpenOptionsExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::geteuid;
use tempfile::TempDir;
use uuid::Uuid;

/// The longest path of a socket on Linux, without the zero byte at the end of the path.
const MAX_SOCKET_PATH: usize = 107;

/// The remedy in the error when the servers' user cannot run a program.
pub(super) const PROGRAM_REMEDY: &str =
    "put it where every user can run it (root's home is no such place)";

/// The length of the longest name of a socket in a server's folder: Postgres'
/// `/.s.PGSQL.65535.lock`.
const MAX_SOCKET_NAME: usize = 20;

/// The password of one server. The password consists of letters and digits, so a URL can contain it
/// without escapes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(String);

impl Password {
    /// Returns a random password.
    pub(super) fn random() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }

    /// Returns a password that a test has chosen.
    pub(super) fn chosen(password: &str) -> Self {
        Self(password.to_owned())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The user of a server's process. `None` is the user of the test. If the test runs as root, there
/// is an account without privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunAs(Option<Account>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    user: u32,
    group: u32,
}

impl RunAs {
    /// Returns the user of the test, unless the test runs as root. For root, returns the user of
    /// the server's Debian package, or `nobody` if there is no such user.
    pub(super) fn for_package(package: &str) -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd").context("/etc/passwd")?;
        let account = find_account(&users, package)
            .or_else(|| find_account(&users, "nobody"))
            .with_context(|| {
                format!(
                    "no server is started as root, and this machine has neither a user {package} \
                     nor a user nobody to run it as: add one (useradd --system {package}), or run \
                     this as a user other than root"
                )
            })?;
        Ok(Self(Some(account)))
    }

    /// Returns the number of the user. The name of a data template contains this number, because
    /// each user has its own templates.
    pub(super) fn uid(self) -> u32 {
        self.0
            .map_or_else(|| geteuid().as_raw(), |account| account.user)
    }

    /// Returns a command that runs as this user.
    pub(super) fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        // The user may have no access to the current folder.
        command.current_dir("/");
        if let Some(Account { user, group }) = self.0 {
            // Setting the group also removes all other groups.
            command.uid(user).gid(group);
        }
        command
    }

    /// Creates a folder of this user in `parent`. Only this user and root can enter it.
    pub(super) fn create_folder(self, parent: &Path) -> Result<TempDir> {
        let folder = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .with_context(|| format!("a folder for the server in {}", parent.display()))?;
        let length = folder.path().as_os_str().len();
        ensure!(
            length + MAX_SOCKET_NAME <= MAX_SOCKET_PATH,
            "{} is too long a path for the sockets of servers: set TMPDIR to a shorter one",
            folder.path().display()
        );
        self.make_owner(folder.path())?;
        self.check_access(
            folder.path(),
            "set TMPDIR to a folder that every user can enter",
        )?;
        Ok(folder)
    }

    /// Checks that this user can enter a folder or run a program. A parent folder may be closed to
    /// this user. Servers report that failure in many ways, or not at all. The error here names the
    /// remedy.
    pub(super) fn check_access(self, path: &Path, remedy: &str) -> Result<()> {
        let Some(Account { user, .. }) = self.0 else {
            return Ok(());
        };
        let tested = self.command("test").arg("-x").arg(path).status();
        ensure!(
            tested.context("test")?.success(),
            "the servers of root run as user {user}, who cannot get at {}: {remedy}",
            path.display()
        );
        Ok(())
    }

    /// Makes this user the owner of a file or an empty folder.
    pub(super) fn make_owner(self, path: &Path) -> Result<()> {
        if let Some(Account { user, group }) = self.0 {
            chown(path, Some(user), Some(group))
                .with_context(|| format!("hand over {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes a file that only this user can read. An existing file of that name is replaced.
    pub(super) fn write_private_file(self, path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
        // The existing file is removed first, so that the new file has the private mode from its
        // creation.
        let _ = fs::remove_file(path);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| path.display().to_string())?;
        file.write_all(content.as_ref())?;
        self.make_owner(path)
    }

    /// Copies a file. Only this user can read the copy.
    pub(super) fn copy_private_file(self, from: &Path, to: &Path) -> Result<()> {
        let content = fs::read(from).with_context(|| from.display().to_string())?;
        self.write_private_file(to, content)
    }
}

/// Finds a user's account in the text of `/etc/passwd`. `None` means that there is no such account,
/// or that the account has the number of root.
fn find_account(users: &str, name: &str) -> Option<Account> {
    // `name:x:UID:GID:..`
    let fields = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&name))?;
    let account = Account {
        user: fields.get(2)?.parse().ok()?,
        group: fields.get(3)?.parse().ok()?,
    };
    // A user with the number 0 is root under another name.
    (account.user != 0).then_some(account)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::Process;

    /// Checks the isolation of a server: neither the server nor a process that it started runs as
    /// root, no other user can enter its folder, and no command line contains the password.
    pub(in crate::servers) fn assert_isolated(process: &Process, folder: &Path, password: &str) {
        let folder = fs::metadata(folder).unwrap();
        assert_eq!(folder.mode() & 0o7777, 0o700, "the mode of its folder");
        let group = process.id().to_string();
        let mut seen = 0;
        for entry in fs::read_dir("/proc").unwrap() {
            let path = entry.unwrap().path();
            let read = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
            let stat = read("stat");
            // The fields follow the process's name in brackets. The name may contain blanks and
            // brackets.
            let Some((_, fields)) = stat.rsplit_once(") ") else {
                continue;
            };
            let arguments = read("cmdline");
            assert!(!arguments.contains(password), "a secret: {arguments}");
            let fields: Vec<_> = fields.split(' ').collect();
            let is_ours = path.ends_with(&group) || fields[1] == group || fields[2] == group;
            if is_ours && fields[0] != "Z" {
                seen += 1;
                let status = read("status");
                let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
                let users: Vec<u32> = users
                    .unwrap()
                    .split_whitespace()
                    .map(|user| user.parse().unwrap())
                    .collect();
                // The real, the effective, the saved and the file-system user.
                assert!(users.iter().all(|user| *user != 0), "as root: {arguments}");
                assert!(users.iter().all(|user| *user == folder.uid()));
            }
        }
        assert!(seen > 0, "the server was not found");
    }

    #[test]
    fn passwords_differ_and_need_no_escaping() {
        let (one, other) = (Password::random(), Password::random());
        assert_ne!(one, other);
        let all_plain = |it: &Password| it.expose().chars().all(|c| c.is_ascii_alphanumeric());
        assert!(one.expose().len() >= 32 && all_plain(&one));
        assert!(!format!("{one:?}").contains(one.expose()));
    }

    #[test]
    fn only_accounts_without_the_number_of_root_are_found() {
        let users = "root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\n\
                     nobody:x:65534:65533::/:/bin/false\nredis:x:103:106::/:/bin/false\n";
        let found = |name| find_account(users, name).map(|it| (it.user, it.group));
        assert_eq!(found("redis"), Some((103, 106)));
        assert_eq!(found("nobody"), Some((65534, 65533)));
        for none in ["mysql", "root", "toor"] {
            assert_eq!(found(none), None, "{none}");
        }
    }

    #[test]
    fn a_closed_folder_is_reported_with_its_remedy() {
        if !geteuid().is_root() {
            // Without root, the servers run as the user of the test, who can enter the folder.
            return;
        }
        let shut = tempfile::tempdir().unwrap();
        fs::set_permissions(shut.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let user = RunAs::for_package("redis").unwrap();
        let error = user.create_folder(shut.path()).unwrap_err().to_string();
        assert!(error.contains("set TMPDIR"), "{error}");
    }

    #[test]
    fn only_the_servers_user_can_read_its_files() {
        let user = RunAs::for_package("redis").unwrap();
        let folder = user.create_folder(&std::env::temp_dir()).unwrap();
        let file = folder.path().join("secret");
        // The existing file has another mode and must be replaced.
        fs::write(&file, "old").unwrap();
        user.write_private_file(&file, "new").unwrap();
        for (path, mode) in [(folder.path(), 0o700), (&file, 0o600)] {
            let found = fs::metadata(path).unwrap();
            assert_eq!(found.mode() & 0o7777, mode, "{}", path.display());
            assert_eq!(found.uid(), user.uid());
            assert_ne!(found.uid(), 0);
        }
        let output = user.command("cat").arg(&file).output().unwrap();
        assert_eq!(output.stdout, b"new");
    }
}
