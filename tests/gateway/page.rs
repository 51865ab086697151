//! The live page in a real browser: one account on two devices of one tab, on two nodes. The first
//! device gets its notice, and its connection is closed. Other tests search hundreds of sessions.
//! Screenshots are kept in the target folder.

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
        looked.contains("phone") && looked.contains("page-n1") && looked.contains("live page"),
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
    let node = browser.client.find(Locator::Css("#lists [name=node]"));
    let node = node.await?;
    for (on, button, says, also) in [
        ("", "sessions", "1 session", "playground-anna"),
        ("phone-n2", "sessions", "1 session", "playground-anna"),
        ("phone-n1", "sessions", "no sessions", ""),
        ("", "bans", "1 to 100 bans", "robot-100"),
        ("", "audit", "1 to 100 of 101 orders", "banned, 0 ended"),
        ("", "revocations", "no sessions that are not known", ""),
    ] {
        node.select_by_value(on).await?;
        browser.click(&format!("#lists [value={button}]")).await?;
        let shown = browser.shows("#list", says).await?;
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

/// Fills these fields of the lists' form, clears the others, and asks for a list.
async fn search(browser: &Browser, fields: &[(&str, &str)], list: &str) -> Result<()> {
    for name in ["prefix", "device", "class", "address"] {
        let field = format!("#lists [name={name}]");
        let field = browser.client.find(Locator::Css(&field)).await?;
        field.clear().await?;
        if let Some((_, text)) = fields.iter().find(|(of, _)| *of == name) {
            field.send_keys(text).await?;
        }
    }
    browser.click(&format!("#lists [value={list}]")).await
}

async fn fill(browser: &Browser, field: &str, text: &str) -> Result<()> {
    let field = format!("#orders [name={field}]");
    let field = browser.client.find(Locator::Css(&field)).await?;
    field.clear().await?;
    Ok(field.send_keys(text).await?)
}

/// Whether the page has an element that this selector finds.
async fn has(browser: &Browser, css: &str) -> Result<bool> {
    Ok(!browser.client.find_all(Locator::Css(css)).await?.is_empty())
}

const NASTY: &str = "<img src=x onerror=\"document.title='hit'\">";

/// Turns the pages of 251 sessions, while others come and go.
async fn turn_pages(browser: &Browser, world: &mut World) -> Result<()> {
    browser.shows("#state .tiles", "online in all\n251").await?;
    search(browser, &[], "sessions").await?;
    let first = browser.shows("#list", "1 to 100 of 251 sessions").await?;
    ensure!(first.contains("many-u098") && !first.contains("many-u099"));
    let unreadable = browser.unreadable().await?;
    ensure!(unreadable.is_empty(), "{unreadable:#?}");
    browser.picture("sessions").await?;
    let before = world.uid("a-newcomer");
    let _newcomer = world.log_in(&before, "phone", "n2").await;
    browser.click("#next").await?;
    let second = browser.shows("#list", "101 to 200 of ").await?;
    ensure!(second.contains("many-u099") && second.contains("many-u198"));
    browser.click("#next").await?;
    let third = browser.shows("#list", "201 to 251 of ").await?;
    ensure!(third.contains("many-u199") && third.contains("many-u249"));
    let next = browser.client.find(Locator::Css("#next")).await?;
    ensure!(!next.is_enabled().await?, "the list has ended");
    browser.click("#previous").await?;
    let again = browser.shows("#list", "101 to 200 of ").await?;
    ensure!(again.contains("many-u099"), "{again}");
    Ok(())
}

/// Searches, and looks up what was found.
async fn find_sessions(browser: &Browser) -> Result<()> {
    let prefix = ("prefix", "many-u24");
    search(browser, &[prefix], "sessions").await?;
    let found = browser.shows("#list", "10 sessions").await?;
    ensure!(found.contains("many-u240") && found.contains("127.0.0.1"));
    search(browser, &[prefix, ("device", "pc")], "sessions").await?;
    browser.shows("#list", "no sessions").await?;
    search(browser, &[("device", "<b>pc</b>")], "sessions").await?;
    let found = browser.shows("#list", "1 session").await?;
    ensure!(
        found.contains(NASTY) && found.contains("<b>pc</b>"),
        "{found}"
    );
    search(browser, &[("address", "127.0.0.x")], "sessions").await?;
    let says = "address is \"127.0.0.x\": an IP address is needed";
    browser.shows("#list .trouble", says).await?;
    search(browser, &[("prefix", "many-<img")], "sessions").await?;
    browser.shows("#list", "1 session").await?;
    browser.click("#list .link").await?;
    let account = browser.shows("#answer", "1 session, 0 messages").await?;
    ensure!(account.contains(NASTY) && account.contains("<b>pc</b>"));
    for injected in ["img", "#list b", "#answer b"] {
        ensure!(!has(browser, injected).await?, "{injected}");
    }
    ensure!(browser.client.title().await? != "hit");
    Ok(())
}

/// Gives the orders about one account, and finds them in the audit log under the token's name.
async fn order_about_accounts(browser: &Browser) -> Result<()> {
    browser.click("#answer table button").await?;
    browser.client.accept_alert().await?;
    let ended = browser.shows("#answer", "1 session ended").await?;
    ensure!(ended.contains("0 sessions, 0 messages"), "{ended}");
    fill(browser, "text", "see <b>you</b>").await?;
    fill(browser, "from", "support").await?;
    browser.click("#orders [value=send]").await?;
    browser.shows("#answer", "the message is stored").await?;
    browser.click("#orders [value=look]").await?;
    browser.shows("#answer", "1 message waiting").await?;
    browser.click("#orders [value=ban]").await?;
    browser.client.accept_alert().await?;
    browser.shows("#answer", "is banned without end").await?;
    search(browser, &[("prefix", "many-<")], "bans").await?;
    let bans = browser.shows("#list", "1 ban").await?;
    ensure!(bans.contains(NASTY), "{bans}");
    search(browser, &[], "audit").await?;
    let orders = browser.shows("#list", "3 orders").await?;
    for part in [
        "anna (page) at 127.0.0.1:",
        "stored, as support",
        "session_of",
    ] {
        ensure!(orders.contains(part), "{part} is not in {orders}");
    }
    ensure!(!has(browser, "#list b").await?);
    let unreadable = browser.unreadable().await?;
    ensure!(unreadable.is_empty(), "{unreadable:#?}");
    Ok(())
}

/// Two administrators look at 251 sessions. One of them may only look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_searches_sessions_turns_pages_and_gives_no_orders_to_who_may_only_look()
-> Result<()> {
    let (looks, operates) = ("what-a-looker-shows", "what-anna-on-call-shows");
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let tokens = folder.path().join("tokens");
    let lines = format!("anna operate {operates}\nlooker read {looks}\n");
    std::fs::write(&tokens, lines)?;
    let mut world = World::new("many", &url);
    world.set("admin_token_file", &tokens.display().to_string());
    world.start("n1").await?;
    world.start("n2").await?;
    let mut clients = Vec::new();
    for number in 0..250 {
        let uid = world.uid(&format!("u{number:03}"));
        let node = ["n1", "n2"][number % 2];
        clients.push(world.log_in(&uid, "phone", node).await);
    }
    let uid = world.uid(NASTY);
    clients.push(world.log_in(&uid, "<b>pc</b>", "n2").await);

    let admin = world.node("n1").admin;
    let browser = Box::pin(Browser::start(false, 1100)).await?;
    let page = format!("http://{admin}/#token={operates}");
    browser.client.goto(&page).await?;
    browser.shows(".who", "signed in as anna (operate)").await?;
    turn_pages(&browser, &mut world).await?;
    find_sessions(&browser).await?;
    order_about_accounts(&browser).await?;
    browser.client.clone().close().await?;

    let browser = Box::pin(Browser::start(false, 400)).await?;
    let page = format!("http://{admin}/#token={looks}");
    browser.client.goto(&page).await?;
    browser.shows(".who", "signed in as looker (read)").await?;
    search(&browser, &[("prefix", "many-u24")], "sessions").await?;
    browser.shows("#list", "10 sessions").await?;
    browser.click("#list .link").await?;
    let account = browser.shows("#answer", "1 session, 0 messages").await?;
    ensure!(account.contains("many-n1"), "{account}");
    for order in ["kick", "ban", "unban", "send", "drain", "undrain"] {
        let order = format!("#orders [value={order}]");
        ensure!(!has(&browser, &order).await?, "{order}");
    }
    for order in ["#answer table button", "#phone"] {
        ensure!(!has(&browser, order).await?, "{order}");
    }
    let unreadable = browser.unreadable().await?;
    ensure!(unreadable.is_empty(), "{unreadable:#?}");
    browser.picture("read-only").await?;
    browser.client.clone().close().await?;
    Ok(())
}
