//! The JavaScript client in Node and in Chromium: where its sessions run, and the tests.
//!
//! A session is run by `clients/js/tests/driver.js`, which prints what happens to it: a process of
//! Node, or a tab of a browser. The tests fail without Node 22 with npm and TypeScript
//! (`scripts/get-server node`), and without Chromium.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use distlock_harness::{Process, Signal, eventually_async, servers::cache_folder};
use distlock_kickout::Uid;
use fantoccini::wd::WindowHandle;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex};

use crate::{
    browser::Browser,
    javascript_scenarios as scenarios,
    world::{SOON, World, login_token},
};

/// The sources of the client.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/js");

/// The program of this name beside Node 22: `node`, `npm` or `tsc`.
fn program(name: &str) -> Result<Command> {
    let node = env::var_os("DISTLOCK_NODE")
        .map_or_else(|| cache_folder().join("node/node"), PathBuf::from);
    let program = node.with_file_name(name);
    ensure!(
        program.exists(),
        "{name} of Node 22: run scripts/get-server node, or set DISTLOCK_NODE to a node of \
         version 22 or later, with npm and tsc beside it"
    );
    // npm starts with the node that it finds first.
    let folder = node.parent().context("a folder")?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()]
        .into_iter()
        .chain(env::split_paths(&path));
    let mut command = Command::new(program);
    command.env("PATH", env::join_paths(folders)?);
    Ok(command)
}

/// Runs a command, and returns its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = [&*output.stdout, &*output.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
    Ok(said)
}

/// What runs sessions.
pub(crate) enum Place {
    Node,
    Chromium(Box<Chromium>),
}

/// A browser, and the address of the client's sources.
pub(crate) struct Chromium {
    browser: Browser,
    files: String,
    /// The browser shows one tab at a time.
    shown: Mutex<()>,
}

impl Chromium {
    pub(crate) async fn start() -> Result<Self> {
        let browser = Box::pin(Browser::start(false, 800)).await?;
        let files = serve_files(Vec::new()).await?;
        Ok(Self {
            browser,
            files,
            shown: Mutex::new(()),
        })
    }
}

/// A session, and all that it has printed.
pub(crate) enum Device<'a> {
    Process(Process),
    Tab(&'a Chromium, WindowHandle),
}

impl Place {
    /// Starts a session of an account. `options` are those of the client.
    pub(crate) async fn start(
        &self,
        uid: &Uid,
        device: &str,
        addresses: &[String],
        options: Value,
    ) -> Result<Device<'_>> {
        let mut config = json!({
            "options": {"addresses": addresses, "device": device},
            "token": login_token(uid),
        });
        for (key, value) in options.as_object().context("options")? {
            config["options"][key] = value.clone();
        }
        match self {
            Self::Node => {
                let mut node = program("node")?;
                node.arg(Path::new(SOURCES).join("tests/driver.js"));
                Ok(Device::Process(Process::spawn(
                    node.arg(config.to_string()),
                )?))
            }
            Self::Chromium(chromium) => {
                let _shown = chromium.shown.lock().await;
                let client = &chromium.browser.client;
                let tab = client.new_window(true).await?.handle;
                client.switch_to_window(tab.clone()).await?;
                client.goto(&chromium.files).await?;
                let script = "window.events = []; \
                    import('/tests/driver.js').then(({ play }) => \
                    play(arguments[0], (line) => events.push(structuredClone(line))));";
                client.execute(script, vec![config]).await?;
                Ok(Device::Tab(chromium, tab))
            }
        }
    }

    /// Stops every session of a place, as a laptop that sleeps, or wakes them.
    pub(crate) fn signal(&self, devices: &[&Device<'_>], which: Signal) -> Result<()> {
        if let Self::Chromium(chromium) = self {
            return chromium.browser.signal(which);
        }
        for device in devices {
            if let Device::Process(process) = device {
                process.signal_group(which)?;
            }
        }
        Ok(())
    }
}

impl Device<'_> {
    /// Everything that the session has printed.
    pub(crate) async fn events(&self) -> Result<Vec<Value>> {
        match self {
            Self::Process(process) => {
                let output = process.output();
                output
                    .lines()
                    .map(|line| serde_json::from_str(line).with_context(|| output.clone()))
                    .collect()
            }
            Self::Tab(chromium, tab) => {
                let _shown = chromium.shown.lock().await;
                let client = &chromium.browser.client;
                client.switch_to_window(tab.clone()).await?;
                let events = client.execute("return window.events", Vec::new()).await?;
                Ok(serde_json::from_value(events)?)
            }
        }
    }

    /// The events of a kind, so far.
    pub(crate) async fn all(&self, event: &str) -> Result<Vec<Value>> {
        let mut events = self.events().await?;
        events.retain(|it| it["event"] == event);
        Ok(events)
    }

    /// The frames of a type that came (`in`) or were sent (`out`).
    pub(crate) async fn frames(&self, way: &str, kind: &str) -> Result<Vec<Value>> {
        let events = self.all(way).await?;
        let frames = events.into_iter().map(|mut it| it["frame"].take());
        Ok(frames.filter(|it| it["type"] == kind).collect())
    }

    /// Waits for the event of a kind that has this number, from 1.
    pub(crate) async fn nth(&self, event: &str, number: usize) -> Result<Value> {
        let waited = eventually_async(event, SOON, || async {
            self.all(event).await.ok()?.into_iter().nth(number - 1)
        });
        match waited.await {
            Ok(found) => Ok(found),
            Err(error) => {
                let events = self.events().await?.into_iter();
                let events: Vec<_> = events.map(|it| it.to_string()).collect();
                bail!("{error}: {number} times; {}", events.join("\n"))
            }
        }
    }

    /// Waits until the session has ended for good, and returns why. A process then ends by itself,
    /// because no timer is left.
    pub(crate) async fn ended(&mut self) -> Result<Value> {
        let end = self.nth("ended", 1).await?;
        ensure!(end["state"] == "ended", "{end}");
        if let Self::Process(process) = self {
            let status = tokio::task::block_in_place(|| process.wait(SOON))?;
            ensure!(status.success(), "{}", process.output());
        }
        Ok(end)
    }
}

/// Serves the files of the client, and pages that are given as path and text. Returns the address
/// of an empty page.
pub(crate) async fn serve_files(pages: Vec<(&'static str, String)>) -> Result<String> {
    async fn serve(State(pages): State<Vec<(&'static str, String)>>, uri: Uri) -> Response {
        let path = uri.path();
        let kind = match path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript",
            _ => "text/html; charset=utf-8",
        };
        let page = pages.iter().find(|(name, _)| *name == path);
        let text = match page {
            Some((_, text)) => Ok(text.clone()),
            None if path == "/" => Ok("<!doctype html>".to_owned()),
            None => std::fs::read_to_string(format!("{SOURCES}{path}")),
        };
        match text {
            Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
            Err(_) => StatusCode::NOT_FOUND.into_response(),
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}/", listener.local_addr()?);
    let router = Router::new().fallback(serve).with_state(pages);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// Plays a scenario over nodes of its own.
macro_rules! play {
    ($place:expr, $scenario:ident) => {{
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        let world = World::new(concat!("js-", stringify!($scenario)), &url);
        let played = Box::pin(scenarios::$scenario($place, world)).await;
        played.context(stringify!($scenario))?;
    }};
}

macro_rules! in_node {
    ($($test:ident => $scenario:ident;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() -> Result<()> {
                play!(&Place::Node, $scenario);
                Ok(())
            }
        )+

        /// One after the other, because a browser takes as long to start as a scenario lasts.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn each_scenario_of_node_passes_in_chromium() -> Result<()> {
            let place = Place::Chromium(Box::new(Chromium::start().await?));
            $(
                eprintln!("in Chromium: {}", stringify!($test));
                play!(&place, $scenario);
            )+
            let Place::Chromium(chromium) = place else { unreachable!() };
            chromium.browser.client.close().await?;
            Ok(())
        }
    };
}

in_node! {
    a_session_that_another_ended_never_comes_back => takeovers;
    a_drained_session_goes_to_the_other_node => drained;
    a_session_of_a_killed_node_goes_to_the_other_node => killed;
    a_short_gap_of_the_network_is_not_noticed_and_a_long_one_is => gaps;
    a_client_that_slept_does_not_take_itself_for_logged_in => slept;
    a_message_whose_acknowledgement_was_lost_is_shown_once => lost_acknowledgement;
    a_message_whose_callback_failed_comes_again => failed_callbacks;
}

/// Each step of a session, with a clock that the tests move.
#[test]
fn every_step_of_a_session_is_right() -> Result<()> {
    let tests = Path::new(SOURCES).join("tests/machine.js");
    run(program("node")?.arg("--test").arg(tests)).map(drop)
}

/// The package holds what a program needs, and its types fit both a program and the client.
#[test]
fn the_package_can_be_installed_and_its_types_fit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let npm = || -> Result<Command> {
        let mut npm = program("npm")?;
        npm.current_dir(folder)
            .env("npm_config_cache", folder.join("cache"))
            .env("npm_config_update_notifier", "false");
        Ok(npm)
    };
    run(npm()?.args(["pack", SOURCES]))?;
    let archive = folder.join("distlock-gateway-0.1.0.tgz");
    run(npm()?.args(["install", "--offline"]).arg(archive))?;
    std::fs::copy(
        Path::new(SOURCES).join("tests/program.ts"),
        folder.join("program.mts"),
    )?;
    run(program("tsc")?
        .current_dir(folder)
        .args(["--strict", "--target", "es2022", "--module", "nodenext"])
        .arg("program.mts"))?;
    let said = run(program("node")?.current_dir(folder).arg("program.mjs"))?;
    ensure!(said.trim() == "ended null", "{said}");
    Ok(())
}

/// The page of the README's block that begins with this line.
fn page_of_readme(after: &str, end: &str, world: &World) -> Result<String> {
    let readme = std::fs::read_to_string(Path::new(SOURCES).join("README.md"))?;
    let (_, rest) = readme.split_once(after).context("the page begins")?;
    let (page, _) = rest.split_once(end).context("the page ends")?;
    let port = |node| format!(":{}/ws", world.node(node).listen.port());
    Ok(page
        .replace(":7430/ws", &port("n1"))
        .replace(":7440/ws", &port("n2")))
}

/// The first page of the README is ended by another tab, on the other node. Two tabs of its second
/// page do not end each other, and a tab that another device has ended leaves it alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_of_the_readme_keep_what_it_says() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let mut world = World::new("readme", &url);
    world.start("n1").await?;
    world.start("n2").await?;
    let anna = world.uid("anna");
    let first = page_of_readme("page/index.html <<'END'\n", "\nEND\n", &world)?;
    ensure!(first.lines().count() <= 31, "the README says 30 lines");
    let pages = vec![
        ("/index.html", first),
        ("/tabs.html", page_of_readme("```html\n", "```", &world)?),
        ("/token", login_token(&anna) + "\n"),
    ];
    let site = serve_files(pages).await?;
    let browser = Box::pin(Browser::start(false, 800)).await?;
    let client = &browser.client;
    let open = async |path: &str| -> Result<WindowHandle> {
        let tab = client.new_window(true).await?.handle;
        client.switch_to_window(tab.clone()).await?;
        client.goto(&format!("{site}{path}")).await?;
        Ok(tab)
    };

    let phone = open("index.html?device=phone").await?;
    browser.shows("h1", "logged in on readme-n1").await?;
    let pc = open("index.html?device=pc&second").await?;
    browser.shows("h1", "logged in on readme-n2").await?;
    client.switch_to_window(phone).await?;
    browser
        .shows("h1", "logged out: another device logged in (pc)")
        .await?;

    let one = open("tabs.html").await?;
    browser.shows("h1", "logged in on readme-n1").await?;
    client.switch_to_window(pc.clone()).await?;
    browser.shows("h1", "logged out: another device").await?;
    let other = open("tabs.html").await?;
    browser.shows("h1", "open in another tab").await?;
    browser.click("button").await?;
    browser.shows("h1", "logged in on readme-n1").await?;
    client.switch_to_window(one.clone()).await?;
    browser.shows("h1", "logged out").await?;

    // The user comes back to the other device. Neither tab logs in by itself afterwards.
    client.switch_to_window(pc.clone()).await?;
    browser.click("button").await?;
    browser.shows("h1", "logged in on readme-n2").await?;
    for (tab, shows) in [
        (&other, "logged out: another device logged in"),
        (&one, "logged out"),
        (&pc, "logged in on readme-n2"),
    ] {
        client.switch_to_window(tab.clone()).await?;
        browser.shows("h1", shows).await?;
    }
    // A tab that is closed does not make another one log in.
    client.switch_to_window(other).await?;
    client.close_window().await?;
    for (tab, shows) in [(one, "logged out"), (pc, "logged in on readme-n2")] {
        client.switch_to_window(tab).await?;
        browser.shows("h1", shows).await?;
    }
    browser.client.clone().close().await?;
    world.check_nodes().await?;
    Ok(())
}
