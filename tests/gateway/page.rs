//! The live page in a real browser: one account on two devices of one tab, on two nodes. The first
//! device gets its notice, and its connection is closed. Screenshots are kept in the target folder.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use distlock_checker::Invariant;
use fantoccini::Locator;
use serde_json::json;

use crate::{
    browser::Browser,
    http::post,
    world::{ADMIN_TOKEN, World},
};

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
    let told = "logged out: another device logged in (pc), code 1";
    browser.shows("#phone .log", told).await?;
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

    let report = world.check_nodes().await?;
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
