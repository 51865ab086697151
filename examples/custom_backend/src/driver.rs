//! The driver for `folder:PATH`: the scheme of the URL, its options, and the function that opens a
//! store.

use std::sync::Arc;

use async_trait::async_trait;
use distlock::{
    KvLock, Records, Result, Store,
    backend::{Driver, DriverOption, DriverUrl, Drivers, TargetParts, percent_decode},
};

use crate::FolderRecords;

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "folder:PATH",
    "a folder shared by the processes of one host",
)];

/// The driver of stores in folders.
#[derive(Clone, Copy, Debug)]
pub struct FolderDriver;

impl FolderDriver {
    /// Parses the path of the folder, and refuses all options.
    fn path(self, parts: &mut TargetParts) -> Result<String> {
        std::mem::take(&mut parts.options).finish(self.name())?;
        match percent_decode(&parts.body) {
            Some(path) if !path.is_empty() && !path.contains('\0') => Ok(path),
            _ => Err(parts.wrong("the path of the folder is empty, or not UTF-8, or has a NUL")),
        }
    }
}

#[async_trait]
impl Driver for FolderDriver {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["folder"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &[]
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.path(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let path = self.path(&mut parts)?;
        let records = FolderRecords::open(path.into(), Arc::clone(&parts.clock)).await?;
        let records: Arc<dyn Records> = Arc::new(records);
        let lock = KvLock::new(Arc::clone(&records))?.with_clock(Arc::clone(&parts.clock));
        Ok(Store::with_clock(Arc::new(lock), records, parts.clock))
    }
}
