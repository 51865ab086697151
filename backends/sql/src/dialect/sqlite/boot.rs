//! Which boot of the machine this is: times since boot mean something only together with it.

use std::{fs, path::Path};

use distlock_core::{Error, ErrorKind, Result};

use super::{file, options::SqliteConfig};

const ID: &str = "/proc/sys/kernel/random/boot_id";

/// By how much the clocks of a process's time namespace differ from the machine's.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// The boot's id. One that others who open the file may not share is refused: they would take each other's live locks, each
/// taking the other's for those of an earlier boot, or for older than they are.
pub(super) fn id(config: &SqliteConfig, path: &Path) -> Result<[u8; 16]> {
    if !config.force
        && let Some(problem) = isolation_problem()
    {
        return Err(file::wrong(
            path,
            format!(
                "{problem}: let it have the machine's own, or add `force=true` if all who open the file are in it"
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

/// Why this process may see another boot, or other times since then, than others on this machine.
pub(crate) fn isolation_problem() -> Option<&'static str> {
    // Where there is no such file, there are no time namespaces.
    let offsets = fs::read_to_string(OFFSETS).unwrap_or_default();
    differs(file::is_mounted_itself(Path::new(ID)), &offsets)
}

fn differs(id_is_mounted: bool, offsets: &str) -> Option<&'static str> {
    if id_is_mounted {
        return Some(
            "this process is in a container with a boot id of its own (/proc/sys/kernel/random/boot_id is mounted)",
        );
    }
    offsets
        .lines()
        .filter_map(|line| line.strip_prefix("boottime"))
        .any(|offset| offset.split_whitespace().any(|number| number != "0"))
        .then_some(
            "this process is in a time namespace with a time since boot of its own (/proc/self/timens_offsets)",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_of_its_own_is_noticed() {
        assert_eq!(differs(false, ""), None);
        assert_eq!(differs(false, "monotonic 0 0\nboottime 0 0\n"), None);
        assert_eq!(differs(false, "monotonic  7  0\nboottime  0  0\n"), None);
        assert!(differs(true, "").unwrap().contains("boot id"));
        for shifted in ["boottime 86400 0", "monotonic 0 0\nboottime  0  5\n"] {
            assert!(differs(false, shifted).unwrap().contains("time namespace"));
        }
    }
}
