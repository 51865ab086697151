//! Scenarios over a lock server that keeps the locks in its memory, and the records in a file.

use distlock_harness::{Process, Signal, free_port};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    scenarios, steps,
    world::{SOON, World},
};

/// A running lock server with its files.
struct Server {
    process: Process,
    folder: TempDir,
    listen: String,
    url: String,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listen = format!("127.0.0.1:{}", free_port().unwrap());
        let process = spawn(&folder, &listen, &["--init"]);
        let url = format!("distlock://{listen}");
        Self {
            process,
            folder,
            listen,
            url,
        }
    }

    /// Stops the server in order, and starts it again.
    fn restart(&mut self) {
        self.process.signal(Signal::TERM).unwrap();
        let status = self.process.wait(SOON).unwrap();
        assert!(status.success(), "{}", self.process.output());
        self.process = spawn(&self.folder, &self.listen, &[]);
    }

    fn world(&self, name: &str) -> World {
        World::new(name, &self.url)
    }
}

/// Starts a server, and waits until it serves.
pub(crate) fn spawn(folder: &TempDir, listen: &str, args: &[&str]) -> Process {
    let mut serve = World::new("server", "memory:").tool("memory:");
    serve.current_dir(folder.path()).env("HOME", folder.path());
    serve.args(["serve", "--listen", listen]).args(args);
    serve.arg("--state").arg(folder.path().join("server.state"));
    let process = Process::spawn(&mut serve).unwrap();
    let line = process.wait_for_line(SOON, |line| line.contains(r#""event":"ready""#));
    let ready: Value = serde_json::from_str(&line.unwrap()).unwrap();
    assert_eq!(ready["listen"], listen);
    process
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_move_between_nodes_on_a_lock_server() {
    let mut server = tokio::task::block_in_place(Server::start);
    Box::pin(scenarios::takeovers(server.world("takeovers"))).await;
    Box::pin(scenarios::killed_node(server.world("killed"))).await;
    tokio::task::block_in_place(|| server.restart());
    Box::pin(scenarios::ping_pong(server.world("pingpong"))).await;
    Box::pin(steps::each_step_once(server.world("steps"))).await;
}
