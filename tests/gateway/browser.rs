//! A real browser, without a window.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};
use distlock_harness::{Process, Signal, eventually_async};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::world::SOON;

/// A browser with a separate folder for its files.
pub(crate) struct Browser {
    pub(crate) client: Client,
    driver: Process,
    _folder: tempfile::TempDir,
}

impl Browser {
    pub(crate) async fn start(dark: bool, width: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("chromedriver");
        command
            .arg("--port=0")
            .env("TMPDIR", folder.path())
            .env("HOME", folder.path());
        let driver = Process::spawn(&mut command)
            .context("start chromedriver (Debian: apt-get install chromium chromium-driver)")?;
        let started = tokio::task::block_in_place(|| {
            driver.wait_for_line(SOON * 2, |line| line.contains("successfully on port "))
        })?;
        let port: u16 = started
            .trim_end_matches('.')
            .rsplit(' ')
            .next()
            .context("a port")?
            .parse()?;
        // Blink's numbers: 0 is dark, and 1 is light.
        let scheme = format!("--blink-settings=preferredColorScheme={}", u8::from(!dark));
        let metrics = json!({"width": width, "height": 1250, "pixelRatio": 1.0, "touch": false});
        let capabilities = json!({"goog:chromeOptions": {
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                scheme,
            ],
            // The window of the browser cannot be as narrow as a telephone.
            "mobileEmulation": {"deviceMetrics": metrics},
        }});
        let Value::Object(capabilities) = capabilities else {
            unreachable!()
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await?;
        Ok(Self {
            client,
            driver,
            _folder: folder,
        })
    }

    /// Waits until an element shows the wanted text, and returns its whole text.
    pub(crate) async fn shows(&self, css: &str, wanted: &str) -> Result<String> {
        eventually_async(&format!("{css} shows {wanted:?}"), SOON * 2, || async {
            let element = self.client.find(Locator::Css(css)).await.ok()?;
            let text = element.text().await.ok()?;
            text.contains(wanted).then_some(text)
        })
        .await
    }

    /// Waits until the page has the element and accepts a click on it.
    pub(crate) async fn click(&self, css: &str) -> Result<()> {
        eventually_async(&format!("{css} can be clicked"), SOON * 2, || async {
            let element = self.client.find(Locator::Css(css)).await.ok()?;
            element.click().await.ok()
        })
        .await
    }

    /// The parts of the page that cannot be read at this width: parts that are cut off or must be
    /// moved sideways, times in two lines, and columns that are too narrow for words.
    pub(crate) async fn unreadable(&self) -> Result<Vec<String>> {
        let found = self.client.execute(UNREADABLE, Vec::new()).await?;
        Ok(serde_json::from_value(found)?)
    }

    /// Stops the browser with all its processes, or lets them go on.
    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        self.driver.signal_group(which)
    }

    pub(crate) async fn picture(&self, name: &str) -> Result<()> {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"));
        std::fs::write(file, self.client.screenshot().await?)?;
        Ok(())
    }
}

const UNREADABLE: &str = r#"
    const found = [];
    const page = document.documentElement;
    if (page.scrollWidth > innerWidth) found.push(`the page is ${page.scrollWidth} wide`);
    for (const it of document.querySelectorAll("section, form, .tiles div"))
        if (it.scrollWidth > it.clientWidth)
            found.push(`"${it.textContent.trim().slice(0, 20)}" is ${it.scrollWidth} wide`);
    for (const it of document.querySelectorAll("time, .n, [data-n]")) {
        const range = document.createRange();
        range.selectNodeContents(it);
        const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        if (lines.size > 1) found.push(`"${it.textContent}" has ${lines.size} lines`);
    }
    for (const it of document.querySelectorAll("td")) {
        const words = it.textContent.trim().split(/\s+/);
        const longest = Math.max(...words.map((word) => Math.min(word.length, 12)));
        const style = getComputedStyle(it);
        const [left, right] = [parseFloat(style.paddingLeft), parseFloat(style.paddingRight)];
        const room = it.clientWidth - left - right;
        if (room < longest * 6) found.push(`"${it.textContent}" has ${room} pixels`);
    }
    return found;
"#;
