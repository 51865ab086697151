//! The id of the machine's present boot. A time since boot has a meaning only together with the id
//! of that boot.

use std::{fs, path::Path};

use distlock_core::{Error, ErrorKind, Result};

use super::{file, options::SqliteConfig};

const ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's file with the offsets that this process's time namespace adds to the machine's
/// clocks.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// The boot's id. A process that may see another boot id, or another time since boot, than the
/// other processes of this machine is refused. Such a process would treat the live leases of the
/// other processes as expired, and would take their locks.
pub(super) fn id(config: &SqliteConfig, path: &Path) -> Result<[u8; 16]> {
    if !config.force
        && let Some(problem) = isolation_problem()
    {
        return Err(file::wrong(
            path,
            format!(
                "{problem}: let it have the machine's own, or add `force=true` if all who open \
                    the file are in it"
            ),
        ));
    }
    let wrong = |problem: String| {
        Error::new(
            ErrorKind::Unsupported,
            format!("cannot tell one boot of this machine from another: {ID}: {problem}"),
        )
    };
    let text = fs::read_to_string(ID).map_err(|error| wrong(error.to_string()))?;
    uuid::Uuid::try_parse(text.trim())
        .map(uuid::Uuid::into_bytes)
        .map_err(|error| wrong(error.to_string()))
}

/// The reason for which this process may see another boot id, or another time since boot, than
/// other processes of this machine; `None` if there is no such reason.
pub(crate) fn isolation_problem() -> Option<&'static str> {
    // A kernel without this file has no time namespaces.
    let offsets = fs::read_to_string(OFFSETS).unwrap_or_default();
    differs(file::is_mounted_itself(Path::new(ID)), &offsets)
}

fn differs(id_is_mounted: bool, offsets: &str) -> Option<&'static str> {
    if id_is_mounted {
        return Some(
            "this process is in a container with a boot id of its own \
                (/proc/sys/kernel/random/boot_id is mounted)",
        );
    }
    offsets
        .lines()
        .filter_map(|line| line.strip_prefix("boottime"))
        .any(|offset| offset.split_whitespace().any(|number| number != "0"))
        .then_some(
            "this process is in a time namespace with a time since boot of its own \
                (/proc/self/timens_offsets)",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_boot_id_or_a_shifted_boot_clock_is_a_problem() {
        assert_eq!(differs(false, ""), None);
        assert_eq!(differs(false, "monotonic 0 0\nboottime 0 0\n"), None);
        assert_eq!(differs(false, "monotonic  7  0\nboottime  0  0\n"), None);
        assert!(differs(true, "").unwrap().contains("boot id"));
        for shifted in ["boottime 86400 0", "monotonic 0 0\nboottime  0  5\n"] {
            assert!(differs(false, shifted).unwrap().contains("time namespace"));
        }
    }
}
