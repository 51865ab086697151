//! The machine on which a run takes place.

use std::{fs, thread};

use procfs::{CpuInfo, Current as _, LoadAverage, Meminfo};

/// Facts about this machine as labels and values, without anything that names its owner.
#[must_use]
pub fn machine() -> Vec<(String, String)> {
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = system
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let processor = CpuInfo::current().ok();
    let processor = processor.and_then(|it| it.model_name(0).map(str::to_owned));
    let cores = thread::available_parallelism().ok();
    let memory = Meminfo::current().ok();
    let load = LoadAverage::current().ok();
    let load = load.map(|it| {
        [it.one, it.five, it.fifteen]
            .map(|it| format!("{it:.2}"))
            .join(", ")
    });
    let build = if cfg!(debug_assertions) {
        "development"
    } else {
        "release"
    };
    [
        (
            "system",
            system.map(|name| name.trim_matches('"').to_owned()),
        ),
        ("kernel", kernel.map(|text| text.trim().to_owned())),
        ("processor", processor),
        ("cores", cores.map(|cores| cores.to_string())),
        (
            "memory",
            memory.map(|it| format!("{} GiB", (it.mem_total + (1 << 29)) >> 30)),
        ),
        (
            "load before",
            load.map(|it| format!("{it} (1, 5 and 15 minutes)")),
        ),
        ("build", Some(build.to_owned())),
    ]
    .into_iter()
    .filter_map(|(label, value)| Some((label.to_owned(), value?)))
    .collect()
}

/// A warning if the load exceeds one and a half tasks per core: the figures are then of little use.
#[must_use]
pub fn load_warning() -> Option<String> {
    let load = LoadAverage::current().ok()?.one;
    let cores = thread::available_parallelism().ok()?.get();
    let allowed = u16::try_from(cores).map_or(f32::INFINITY, |cores| f32::from(cores) * 1.5);
    (load > allowed).then(|| {
        format!(
            "The machine was busy with other things: load {load:.0} on {cores} cores when this \
             run began. Its figures are indicative only."
        )
    })
}
