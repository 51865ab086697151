//! The machine on which a run takes place.

use std::{fs, thread};

/// Facts about this machine as labels and values, without anything that names its owner.
#[must_use]
pub fn machine() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |label: &str, value: Option<String>| {
        if let Some(value) = value {
            all.push((label.to_owned(), value));
        }
    };
    add(
        "system",
        value_after("/etc/os-release", "PRETTY_NAME=")
            .map(|name| name.trim_matches('"').to_owned()),
    );
    add(
        "kernel",
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .ok()
            .map(|text| text.trim().to_owned()),
    );
    add("processor", value_after("/proc/cpuinfo", "model name"));
    add(
        "cores",
        thread::available_parallelism()
            .ok()
            .map(|cores| cores.to_string()),
    );
    add(
        "memory",
        value_after("/proc/meminfo", "MemTotal").map(format_gib),
    );
    add(
        "load before",
        fs::read_to_string("/proc/loadavg").ok().map(|text| {
            let all: Vec<_> = text.split(' ').take(3).collect();
            format!("{} (1, 5 and 15 minutes)", all.join(", "))
        }),
    );
    add(
        "build",
        Some(if cfg!(debug_assertions) {
            "development".into()
        } else {
            "release".into()
        }),
    );
    all
}

/// A warning if the load exceeds one and a half tasks per core: the figures are then of little use.
#[must_use]
pub fn load_warning() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split(' ').next()?.parse().ok()?;
    let cores = thread::available_parallelism().ok()?.get();
    let cores = u32::try_from(cores).ok()?;
    (load > f64::from(cores) * 1.5).then(|| {
        format!(
            "The machine was busy with other things: load {load:.0} on {cores} cores when this \
             run began. Its figures are indicative only."
        )
    })
}

/// The rest of the first line of `file` that starts with `label`.
fn value_after(file: &str, label: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(
        line.trim_start_matches(|c: char| c == ':' || c.is_whitespace())
            .to_owned(),
    )
}

/// Turns `1234567 kB` into whole GiB. Any other text is returned unchanged.
fn format_gib(text: String) -> String {
    let kib: Option<u64> = text
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok());
    kib.map_or(text, |kib| format!("{} GiB", (kib + 524_288) / 1_048_576))
}
