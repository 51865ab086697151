//! `distlock run` and `elect` as services of systemd: what they tell it, and what their command
//! gets from it.

use std::{
    fs,
    io::Read as _,
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::Command,
};

use distlock_harness::{Process, Signal, free_port};

use crate::support::{Home, NotifySocket, SOON, finish, run_through};

/// A script that ends when the file `go` is there.
const UNTIL_GO: &str = "while ! [ -e go ]; do sleep 0.01; done";

fn start(home: &Home, told: &NotifySocket, line: &[&str]) -> Process {
    Process::spawn(home.distlock(line).env("NOTIFY_SOCKET", &told.path)).unwrap()
}

/// The next message that is not about a wait.
fn after_the_wait(told: &NotifySocket) -> String {
    loop {
        let message = told.next();
        if !message.starts_with("STATUS=waiting for ") {
            return message;
        }
    }
}

#[test]
fn systemd_is_told_who_is_waited_for_and_when_the_lock_is_held() {
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let _holder = home.hold("job", &["--holder", "alice"], UNTIL_GO);
    let script = "echo token $DISTLOCK_TOKEN; systemd-notify --no-block --status=working";
    let line = ["run", "job", "--", "sh", "-c", script];
    let mut waiter = start(&home, &told, &line);
    assert_eq!(told.next(), "STATUS=waiting for \"job\"\n");
    let status = told.next();
    let held = "STATUS=waiting for \"job\": held by alice since ";
    assert!(status.starts_with(held), "{status}");
    home.write("go", "");
    let token = waiter.wait_for_line(SOON, |line| line.starts_with("token "));
    let ready = format!("READY=1\nSTATUS=holds \"job\", {}\n", token.unwrap());
    assert_eq!(after_the_wait(&told), ready);
    // The command's own message.
    assert_eq!(told.next().trim_end(), "STATUS=working");
    assert_eq!(told.next(), "STOPPING=1\n");
    assert_eq!(waiter.wait(SOON).unwrap().code(), Some(0));
}

#[test]
fn a_service_is_ready_when_it_waits_or_when_its_command_says_so() {
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let _holder = home.hold("job", &[], UNTIL_GO);
    let line = ["run", "job", "--ready", "waiting", "--", "true"];
    let mut waiter = start(&home, &told, &line);
    assert_eq!(told.next(), "READY=1\nSTATUS=waiting for \"job\"\n");
    home.write("go", "");
    let held = after_the_wait(&told);
    assert!(held.starts_with("STATUS=holds "), "{held}");
    assert_eq!(told.next(), "STOPPING=1\n");
    assert_eq!(waiter.wait(SOON).unwrap().code(), Some(0));

    let script = "systemd-notify --no-block --ready";
    let line = ["run", "job", "--ready", "command", "--", "sh", "-c", script];
    let mut run = start(&home, &told, &line);
    let held = after_the_wait(&told);
    assert!(held.starts_with("STATUS=holds "), "{held}");
    assert_eq!(told.next().trim_end(), "READY=1");
    assert_eq!(told.next(), "STOPPING=1\n");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0));
}

#[test]
fn systemd_is_told_when_a_candidate_leads() {
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let line = ["elect", "x", "--", "sh", "-c", "echo leads; exec sleep 60"];
    let mut first = home.start([&line[..2], &["--holder", "alice"], &line[2..]].concat());
    first.wait_for_line(SOON, |line| line == "leads").unwrap();
    let mut second = start(&home, &told, &line);
    assert_eq!(told.next(), "STATUS=waiting for \"election/x\"\n");
    let status = told.next();
    let held = "STATUS=waiting for \"election/x\": held by alice since ";
    assert!(status.starts_with(held), "{status}");
    first.signal(Signal::TERM).unwrap();
    assert_eq!(first.wait(SOON).unwrap().code(), Some(143));
    let ready = after_the_wait(&told);
    let held = "READY=1\nSTATUS=holds \"election/x\", token ";
    assert!(ready.starts_with(held), "{ready}");
    second.wait_for_line(SOON, |line| line == "leads").unwrap();
    second.signal(Signal::TERM).unwrap();
    assert_eq!(told.next(), "STOPPING=1\n");
    assert_eq!(second.wait(SOON).unwrap().code(), Some(143));
}

/// A service manager that hangs takes no messages, and must not cost the lock.
#[test]
fn a_full_socket_does_not_hold_up_the_command() {
    let home = Home::new();
    let told = NotifySocket::new(&home);
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"X_OTHER=1", &told.path).is_ok() {}
    let mut run = start(&home, &told, &["run", "job", "--", "echo", "done"]);
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0));
    assert!(run.output().contains("done"), "{}", run.output());
}

#[test]
fn the_command_serves_the_socket_of_systemd() {
    const SERVER: &str = "\
import os, socket
assert os.environ['LISTEN_PID'] == str(os.getpid())
client, _ = socket.socket(fileno=3).accept()
client.sendall(os.environ['DISTLOCK_NAME'].encode())
";
    let home = Home::new();
    let at = format!("127.0.0.1:{}", free_port().unwrap());
    let url = format!("sqlite:{}", home.store().display());
    let mut activate = Command::new("systemd-socket-activate");
    activate.args(["--listen", &at, crate::PROGRAM, "--backend", &url]);
    activate.args(["run", "a job", "--", "python3", "-c", SERVER]);
    let mut run = Process::spawn(activate.current_dir(home.path("."))).unwrap();
    run.wait_for_line(SOON, |line| line.contains("Listening"))
        .unwrap();
    let mut client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let mut served = String::new();
    client.read_to_string(&mut served).unwrap();
    assert_eq!(served, "a job", "{}", run.output());
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0), "{}", run.output());
}

#[test]
fn only_what_systemd_means_for_the_tool_is_passed_on_to_the_command() {
    let home = Home::new();
    // The shell's process becomes the tool.
    let by_systemd = |command: &[&str]| {
        let tool = home.distlock([&["run", "job", "--"], command].concat());
        let script = "LISTEN_PID=1 WATCHDOG_PID=$$; export LISTEN_PID WATCHDOG_PID; exec \"$@\"";
        let mut shell = run_through("sh", ["-c", script, "sh"], &tool);
        finish(shell.current_dir(home.path(".")), "")
    };
    let script = "test $LISTEN_PID = 1 && test $WATCHDOG_PID = $$ && echo \"$1\"; exit 7";
    let done = by_systemd(&["sh", "-c", script, "sh", "a  b"]);
    assert_eq!((done.code, done.stdout.as_str()), (7, "a  b\n"), "{done:?}");
    by_systemd(&["no-such-program"]).assert_failed(127, "cannot run no-such-program");
    // A script without an interpreter line.
    let script = home.write("script", "test $WATCHDOG_PID = $$ && echo \"$1\"");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    let done = by_systemd(&["./script", "b"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "b\n"), "{done:?}");
    home.write("data", "no program");
    by_systemd(&["./data"]).assert_failed(126, "cannot run ./data");
}
