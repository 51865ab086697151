//! The driver for stores in memory: their URLs, and the opening of a store.

use std::any::Any;

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts};
use distlock_core::{Clock, Result, Store, SystemClock};

use crate::Memory;

const OPTIONS: [DriverOption; 1] = [DriverOption::new(
    "private",
    "`true`: a new, empty store that only this client and its clones see, for tests. It has no \
     name. Only a private store can use a clock of the caller (`Target::clock`)",
    "false",
)];

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "memory:NAME",
    "the tasks of one process: one store per name, or with ?private=true a new one",
)];

/// The driver of stores in the memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct MemoryDriver;

impl MemoryDriver {
    /// Checks the store's name and the options, and takes the options out of `parts`. Returns
    /// whether the store is private.
    fn check_target(self, parts: &mut TargetParts) -> Result<bool> {
        let mut options = std::mem::take(&mut parts.options);
        let private = match options.take(OPTIONS[0].name) {
            None => false,
            Some(given) => match given.value.as_str() {
                "true" => true,
                "false" => false,
                _ => return Err(given.wrong("it is neither true nor false")),
            },
        };
        options.finish(self.name())?;
        let name = &parts.body;
        let plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
        if !name.chars().all(plain) {
            return Err(parts.wrong(format_args!(
                "the name of a memory store has letters, digits, '-', '_' and '.', and \"{}\" is \
                 given",
                parts.masked_url().escape_debug()
            )));
        }
        if private && !name.is_empty() {
            return Err(parts.wrong(format_args!(
                "a private store is shared with nobody, so it takes no name, and \"{name}\" is \
                 given"
            )));
        }
        Ok(private)
    }
}

#[async_trait]
impl Driver for MemoryDriver {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["memory"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &OPTIONS
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.check_target(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let private = self.check_target(&mut parts)?;
        let memory = if private {
            Memory::new(parts.clock.clone())
        } else if is_system(&*parts.clock) {
            Memory::shared(&parts.body)
        } else {
            return Err(parts.wrong(
                "a store that the process shares goes by the machine's clock: \
                 `memory:?private=true` takes another",
            ));
        };
        Ok(Store::with_clock(
            memory.lock(),
            memory.records(),
            parts.clock,
        ))
    }
}

fn is_system(clock: &(dyn Clock + 'static)) -> bool {
    let clock: &dyn Any = clock;
    clock.is::<SystemClock>()
}
