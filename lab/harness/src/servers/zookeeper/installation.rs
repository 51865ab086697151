//! The installed ZooKeeper: its jars and the JVM.

use std::path::Path;

use anyhow::{Result, bail};

/// The jars of the Debian packages.
pub(super) const JARS: [&str; 2] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
];

/// Jars that ZooKeeper needs for TLS and that its own jar does not name. A JVM ignores absent jars.
pub(super) const TLS_JARS: [&str; 2] = [
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
];

/// Checks that the jars and a JVM are installed. An error names the missing packages.
pub(super) fn check_installation() -> Result<()> {
    let missing: Vec<_> = JARS
        .iter()
        .filter(|jar| !Path::new(jar).is_file())
        .collect();
    let java = std::process::Command::new("java").arg("-version").output();
    if !missing.is_empty() || java.is_err() {
        bail!(
            "no ZooKeeper on this machine: apt-get install zookeeper libslf4j-java \
             default-jre-headless (missing: {missing:?}{})",
            if java.is_err() { ", java" } else { "" }
        );
    }
    Ok(())
}
