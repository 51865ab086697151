//! The live page in a real browser: one account on two devices of one tab, on two nodes. The first
//! device gets its notice, and its connection is closed. Screenshots are kept in the target folder.

use std::{net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock_checker::{Invariant, check};
use distlock_harness::{Process, eventually_async};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::{
    http::post,
    world::{ADMIN_TOKEN, SOON, World, pause},
};

/// A browser with a separate folder for its files.
struct Browser {
    client: Client,
    _driver: Process,
    _folder: tempfile::TempDir,
}

impl Browser {
    async fn start(dark: bool, width: u32) -> Result<Self> {
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
            _driver: driver,
            _folder: folder,
        })
    }

    /// Waits until an element shows the wanted text, and returns its whole text.
    async fn shows(&self, css: &str, wanted: &str) -> Result<String> {
        eventually_async(&format!("{css} shows {wanted:?}"), SOON * 2, || async {
            let element = self.client.find(Locator::Css(css)).await.ok()?;
            let text = element.text().await.ok()?;
            text.contains(wanted).then_some(text)
        })
        .await
    }

    /// Waits until the page has the element and accepts a click on it.
    async fn click(&self, css: &str) -> Result<()> {
        eventually_async(&format!("{css} can be clicked"), SOON * 2, || async {
            let element = self.client.find(Locator::Css(css)).await.ok()?;
            element.click().await.ok()
        })
        .await
    }

    /// The parts of the page that cannot be read at this width: parts that are cut off or must be
    /// moved sideways, times in two lines, and columns that are too narrow for words.
    async fn unreadable(&self) -> Result<Vec<String>> {
        let found = self.client.execute(UNREADABLE, Vec::new()).await?;
        Ok(serde_json::from_value(found)?)
    }

    async fn picture(&self, name: &str) -> Result<()> {
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

/// Gives the orders of an operator, with a session of the playground.
async fn give_orders(browser: &Browser) -> Result<()> {
    let uid = browser.client.find(Locator::Css("#orders [name=uid]"));
    uid.await?.send_keys("playground-anna").await?;
    let order = async |button: &str, sure: bool, says: &str| {
        let button = format!("#orders [value={button}]");
        browser.click(&button).await?;
        if sure {
            browser.client.accept_alert().await?;
        }
        browser.shows("#answer", says).await
    };
    let looked = order("look", false, "playground-anna: 1 session").await?;
    ensure!(
        looked.contains("phone") && looked.contains("page-n1"),
        "{looked}"
    );
    browser.picture("looked-up").await?;
    order("kick", true, "1 session ended").await?;
    let log = browser
        .shows("#phone .log", "ended by an administrator")
        .await?;
    ensure!(log.contains("code 3"), "{log}");
    order("ban", true, "playground-anna is banned without end").await?;
    browser.click("#phone .in").await?;
    browser.shows("#phone .log", "denied").await?;
    order("look", false, "playground-anna is banned").await?;
    order("unban", false, "is lifted").await?;
    order("drain", true, "this node drains").await?;
    browser.shows("#state", "state\ndraining").await?;
    order("undrain", false, "takes logins again").await?;
    browser.shows("#state", "state\nup").await?;

    // Another tab has the cookie, but not the header that orders also need.
    let address = browser.client.current_url().await?;
    let tab = browser.client.new_window(true).await?;
    browser.client.switch_to_window(tab.handle).await?;
    browser.client.goto(address.as_str()).await?;
    browser.shows("#state", "page-n2").await?;
    browser.shows("#locked", "sign in here").await?;
    let kick = browser.client.find(Locator::Css("#orders [value=kick]"));
    ensure!(!kick.await?.is_enabled().await?, "orders are locked");
    // The cookie alone ends nothing either: this tab first signs in.
    let sign_out = browser.client.find(Locator::Css("#sign-out"));
    ensure!(!sign_out.await?.is_displayed().await?, "half a pass");
    browser.click("#locked a").await?;
    browser.shows("body", "admin_token").await?;
    let token = browser.client.find(Locator::Css("#token"));
    token.await?.send_keys(ADMIN_TOKEN).await?;
    browser.click("#sign-in button").await?;
    browser.shows("#state", "page-n2").await?;
    browser.click("#sign-out").await?;
    browser.shows("body", "admin_token").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_a_takeover_between_two_nodes_and_gives_orders() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let mut world = World::new("page", &url);
    world.start("n1").await?;
    world.start("n2").await?;
    let address = format!("http://{}/#token={ADMIN_TOKEN}", world.node("n1").admin);

    let browser = Box::pin(Browser::start(false, 1100)).await?;
    browser.client.goto(&address).await?;
    browser.shows("#state", "page-n2").await?;
    browser.shows("#pc select", "page-n2").await?;
    browser.click("#phone .in").await?;
    browser.shows("#phone .badge", "in on page-n1").await?;
    browser.picture("one-device").await?;

    browser.click("#pc .in").await?;
    browser.shows("#pc .badge", "in on page-n2").await?;
    browser.shows("#phone .badge", "kicked out").await?;
    let log = browser.shows("#phone .log", "connection closed").await?;
    let told = log.find("told: another device logged in (pc), code 1");
    let closed = log.find("connection closed");
    ensure!(told.is_some() && told < closed, "told before closed: {log}");
    let row = browser.shows("#takeovers", "playground-anna").await?;
    ensure!(row.contains("page-n1") && row.contains("page-n2"), "{row}");

    // The takeover back to the first node, whose page shows the duration.
    browser.click("#phone .in").await?;
    browser.shows("#phone .badge", "in on page-n1").await?;
    browser.shows("#pc .badge", "kicked out").await?;
    browser.shows("#takeovers", " ms").await?;
    browser.shows("#state", "online here\n1").await?;
    browser.picture("light").await?;
    let unreadable = browser.unreadable().await?;
    ensure!(unreadable.is_empty(), "{unreadable:#?}");
    give_orders(&browser).await?;
    browser.client.clone().close().await?;

    let dark = Box::pin(Browser::start(true, 1100)).await?;
    dark.client.goto(&address).await?;
    dark.click("#phone .in").await?;
    dark.shows("#phone .badge", "in on page-n1").await?;
    dark.click("#pc .in").await?;
    dark.shows("#phone .badge", "kicked out").await?;
    dark.picture("dark").await?;
    dark.client.clone().close().await?;

    // The last events of the nodes may still be on their way to this process.
    let mut report = check(&world.history()?, &world.promises());
    for _ in 0..20 {
        if report.is_clean() {
            break;
        }
        pause(Duration::from_millis(500)).await;
        report = check(&world.history()?, &world.promises());
    }
    ensure!(report.is_clean(), "{report}");
    ensure!(report.looked_at(Invariant::I6) > 0, "{report}");
    Ok(())
}

/// Shows each list of the page. A list that is longer than the page shows says how long it is.
async fn show_lists(browser: &Browser, admin: SocketAddr) -> Result<()> {
    for number in 0..101 {
        let ban = json!({"uid": format!("robot-{number}"), "reason": "spam"});
        let banned = post(admin, "/v1/ban", ADMIN_TOKEN, &ban).await;
        ensure!(banned["ban"]["reason"] == "spam", "{banned}");
    }
    browser.shows("#state .tiles", "online in all\n1").await?;
    let node = browser.client.find(Locator::Css("#orders [name=node]"));
    let node = node.await?;
    for (on, button, says, also) in [
        ("", "sessions", "1 session", "playground-anna"),
        ("phone-n2", "sessions", "1 session", "playground-anna"),
        ("phone-n1", "sessions", "no sessions", ""),
        ("", "bans", "the first 100 of 101 bans", "robot-100"),
        (
            "",
            "audit",
            "the first 100 of 101 orders",
            "banned, 0 ended",
        ),
        ("", "revocations", "no sessions that are not known", ""),
    ] {
        node.select_by_value(on).await?;
        browser.click(&format!("#orders [value={button}]")).await?;
        let shown = browser.shows("#answer", says).await?;
        ensure!(shown.contains(also), "{button}: {shown}");
        let unreadable = browser.unreadable().await?;
        ensure!(unreadable.is_empty(), "{button}: {unreadable:#?}");
    }
    Ok(())
}

/// An operator looks at two nodes of one host, on a telephone, and one of the nodes dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_fits_a_telephone_and_a_dead_node_is_shown_as_dead() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let mut world = World::new("phone", &url);
    world.start("n1").await?;
    world.start("n2").await?;
    let address = |node| format!("http://{}/#token={ADMIN_TOKEN}", world.node(node).admin);
    let (first, second) = (address("n1"), address("n2"));

    let browser = Box::pin(Browser::start(false, 400)).await?;
    browser.client.goto(&first).await?;
    browser.click("#phone .in").await?;
    browser.shows("#phone .badge", "in on phone-n1").await?;
    browser.click("#pc .in").await?;
    browser.shows("#phone .badge", "kicked out").await?;
    browser.shows("#takeovers", "playground-anna").await?;
    let uid = browser.client.find(Locator::Css("#orders [name=uid]"));
    uid.await?.send_keys("playground-anna").await?;
    browser.click("#orders [value=look]").await?;
    browser.shows("#answer table", "phone-n2").await?;
    browser.picture("telephone").await?;
    let unreadable = browser.unreadable().await?;
    ensure!(unreadable.is_empty(), "{unreadable:#?}");
    show_lists(&browser, world.node("n1").admin).await?;
    let order = "return document.getElementById('orders').getBoundingClientRect().top \
                 < document.getElementById('takeovers').getBoundingClientRect().top";
    let above = browser.client.execute(order, Vec::new()).await?;
    ensure!(above == json!(true), "orders are above the takeovers");

    // A sign-in on the other node of this host, which the browser gives the same cookies, leaves
    // the first one as it is.
    let tab = browser.client.window().await?;
    let other = browser.client.new_window(true).await?;
    browser.client.switch_to_window(other.handle).await?;
    browser.client.goto(&second).await?;
    browser.shows("#state", "phone-n1").await?;
    browser.client.switch_to_window(tab).await?;
    browser.client.refresh().await?;
    browser.shows("#state", "phone-n2").await?;
    let kick = browser.client.find(Locator::Css("#orders [value=kick]"));
    ensure!(kick.await?.is_enabled().await?, "still signed in");

    world.kill("n1");
    let tiles = browser.shows("#state .tiles", "no answer").await?;
    ensure!(!tiles.contains(|c: char| c.is_ascii_digit()), "{tiles}");
    browser.shows("#live", "no answer since").await?;
    browser.picture("dead").await?;
    browser.client.clone().close().await?;
    Ok(())
}
