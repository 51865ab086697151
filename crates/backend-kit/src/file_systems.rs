//! The file systems on which locks of files cannot be relied on.

use std::path::Path;

/// The name of the network file system of a file or folder, after following links; `None` for a
/// local file system.
#[cfg(target_os = "linux")]
#[must_use]
pub fn network_file_system(path: &Path) -> Option<&'static str> {
    #[allow(
        clippy::useless_conversion,
        reason = "the field's width and sign differ by architecture; the numbers have 32 bits"
    )]
    let magic = i64::from(rustix::fs::statfs(path).ok()?.f_type) & 0xffff_ffff;
    kind_of(u32::try_from(magic).ok()?)
}

/// As on Linux; other systems do not tell.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn network_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// The network file system with this number.
#[cfg(target_os = "linux")]
fn kind_of(magic: u32) -> Option<&'static str> {
    // The numbers are from statfs(2). FUSE is in the list because most FUSE file systems are remote
    // and few of them support file locks.
    const KINDS: [(u32, &str); 14] = [
        (0x0102_1997, "a 9P file system"),
        (0x5346_414f, "AFS"),
        (0x00c3_6400, "Ceph"),
        (0xff53_4d42, "CIFS"),
        (0x7375_7245, "Coda"),
        (0x6573_5546, "a FUSE file system"),
        (0x0116_1970, "GFS2"),
        (0x4750_4653, "GPFS"),
        (0x0bd0_0bd0, "Lustre"),
        (0x0000_564c, "NCP"),
        (0x0000_6969, "NFS"),
        (0x7461_636f, "OCFS2"),
        (0xfe53_4d42, "SMB2"),
        (0x0000_517b, "SMB"),
    ];
    let kind = KINDS.into_iter().find(|(known, _)| *known == magic);
    kind.map(|(_, name)| name)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_number() {
        assert_eq!(kind_of(0x6969), Some("NFS"));
        assert_eq!(kind_of(0xfe53_4d42), Some("SMB2"));
        // ext4 and tmpfs.
        assert_eq!(kind_of(0xef53), None);
        assert_eq!(kind_of(0x0102_1994), None);
        assert_eq!(network_file_system(Path::new("/")), None);
    }
}
