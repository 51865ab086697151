//! `distlock run` on a terminal: the command can read the keyboard, and the shell gets its terminal
//! back.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

use distlock::backend::sync::Mutex;
use distlock_harness::eventually;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{Home, SOON, read_whole_lines, state_of};

/// A program that runs on a pseudo-terminal of this test.
struct Screen {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    child: Child,
}

impl Screen {
    /// Runs a shell script with `$TOOL` as `distlock`, in a session of its own.
    fn start(home: &Home, script: &str) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new())
            .unwrap()
            .into_string()
            .unwrap();
        let side = || {
            let file = File::options().read(true).write(true).open(&name).unwrap();
            Stdio::from(OwnedFd::from(file))
        };
        let template = home.distlock(["--version"]);
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait", "sh", "-c", script])
            .env("TOOL", env!("CARGO_BIN_EXE_distlock"))
            // On a terminal that says it is dumb, the tool writes no colours.
            .env("TERM", "xterm")
            .envs(
                template
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .current_dir(home.path("."))
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .process_group(0);
        let child = command.spawn().unwrap();
        let keyboard = File::from(terminal);
        let mut screen = keyboard.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let text = Arc::clone(&shown);
        thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                text.lock()
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self {
            keyboard,
            shown,
            child,
        }
    }

    /// Types on the keyboard.
    fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this text.
    #[track_caller]
    fn wait_for(&self, text: &str) {
        let seen = eventually(text, SOON, || self.shown.lock().contains(text));
        assert!(
            seen.is_ok(),
            "{text:?} is not on the screen: {:?}",
            self.shown.lock()
        );
    }

    /// Waits until the script ends, and checks its code.
    #[track_caller]
    fn wait_for_end(&mut self, code: i32) {
        let mut status = None;
        let ended = eventually("the script ends", SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended.is_ok(), "{:?}", self.shown.lock());
        assert_eq!(
            status.unwrap().code(),
            Some(code),
            "{:?}",
            self.shown.lock()
        );
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The programs of the session end when their terminal is closed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_command_reads_the_keyboard_and_the_script_does_afterwards() {
    let home = Home::new();
    let mut screen = Screen::start(
        &home,
        "\"$TOOL\" run job -- sh -c 'echo ask; read line; echo got $line'; read line; echo then \
        $line",
    );
    screen.wait_for("ask");
    screen.type_text("first\n");
    screen.wait_for("got first");
    screen.type_text("second\n");
    screen.wait_for("then second");
    screen.wait_for_end(0);
}

/// The notice appears at the first use of the store, and a person at a terminal has seen it then.
#[test]
fn a_terminal_shows_once_that_no_store_is_named() {
    let home = Home::new();
    let mut screen = Screen::start(
        &home,
        "unset DISTLOCK_BACKEND; \"$TOOL\" run job -- echo one; \"$TOOL\" run job -- echo two",
    );
    screen.wait_for_end(0);
    screen.wait_for("two");
    let shown = screen.shown.lock();
    assert_eq!(shown.matches("no store is named").count(), 1, "{shown:?}");
}

#[test]
fn control_c_reaches_the_command() {
    let home = Home::new();
    // There are two cases: the command has the terminal, or the command does not have it.
    for ask in ["", "read line;"] {
        // The shell of the script is in the foreground too, and would end with the signal.
        let script = format!(
            "trap : INT; \"$TOOL\" run job -- sh -c 'trap \"exit 9\" INT; echo on; {ask} sleep 60 \
            & wait'; exit $?"
        );
        let mut screen = Screen::start(&home, &script);
        screen.wait_for("on");
        if !ask.is_empty() {
            screen.type_text("line\n");
        }
        screen.type_text("\x03");
        screen.wait_for_end(9);
    }
}

#[test]
fn control_z_pauses_both_and_fg_continues_both() {
    let home = Home::new();
    // This is a shell with job control, as in interactive use.
    let mut screen = Screen::start(
        &home,
        "set -m; \"$TOOL\" run job -- sh -c 'echo on; read line; echo got $line; read more; echo \
        and $more'; \
         echo back; fg; echo end $?",
    );
    screen.wait_for("on");
    screen.type_text("first\n");
    screen.wait_for("got first");
    screen.type_text("\x1a");
    screen.wait_for("back");
    screen.type_text("second\n");
    screen.wait_for("and second");
    screen.wait_for("end 0");
    screen.wait_for_end(0);
}

/// A pager opens the terminal in this way, and so does a program that asks for a password.
#[test]
fn a_command_that_opens_the_terminal_gets_it_even_if_its_input_is_a_pipe() {
    let home = Home::new();
    let asks = "read first; stty -echo < /dev/tty; echo ask $first; read line < /dev/tty; \
                stty echo < /dev/tty; echo got $line";
    let script =
        format!("echo piped | \"$TOOL\" run job -- sh -c '{asks}'; read line; echo then $line");
    let mut screen = Screen::start(&home, &script);
    screen.wait_for("ask piped");
    screen.type_text("secret\n");
    screen.wait_for("got secret");
    screen.type_text("second\n");
    screen.wait_for("then second");
    screen.wait_for_end(0);
}

/// At `fg` a shell sends no signal to a job that it believes to be running. This tool keeps running
/// in order to renew the lock.
#[test]
fn a_background_command_that_waits_for_the_keyboard_gets_it_by_fg() {
    let home = Home::new();
    let command = "echo $$ > pid; read line; echo got $line";
    let script = format!(
        "exec bash -c 'set -m; \"$TOOL\" run job -- sh -c \"$1\" & \
         until [ -e go ]; do sleep 0.05; done; fg; echo end $?' bash '{command}'"
    );
    let mut screen = Screen::start(&home, &script);
    let pid = read_whole_lines(&home.path("pid")).trim().parse().unwrap();
    eventually("the command is stopped", SOON, || {
        state_of(pid) == Some('T')
    })
    .unwrap();
    home.write("go", "");
    screen.type_text("first\n");
    screen.wait_for("got first");
    screen.wait_for("end 0");
    screen.wait_for_end(0);
}

#[test]
fn tables_and_help_fit_a_terminal_of_80_columns_and_help_is_in_colour() {
    let home = Home::new();
    let long = "a-name-that-is-rather-long:".repeat(4);
    let holder = "somebody@a-host-with-a-long-name.example";
    let ticket = home.run(["acquire", &long, "--ttl", "1h", "--holder", holder]);
    assert_eq!(ticket.code, 0, "{ticket:?}");
    let script = "stty cols 80; for it in list doctor 'gateway kick --help' --help; do \"$TOOL\" \
    $it; done; \
                  NO_COLOR=1 \"$TOOL\" --help; echo the end";
    let mut screen = Screen::start(&home, script);
    screen.wait_for("the end");
    screen.wait_for_end(0);
    let shown = screen.shown.lock().clone();
    let (coloured, plain) = shown.rsplit_once("One distributed lock").unwrap();
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let heading = coloured.lines().find(|line| line.contains("Locks:"));
    assert!(
        heading.is_some_and(|line| line.starts_with("\x1b[")),
        "{heading:?}"
    );
    for line in shown.lines() {
        let mut visible = line.to_owned();
        while let Some(start) = visible.find('\x1b') {
            let end = visible[start..]
                .find('m')
                .map_or(visible.len(), |end| start + end + 1);
            visible.replace_range(start..end, "");
        }
        assert!(
            visible.trim_end().chars().count() <= 80,
            "{visible:?} in {shown}"
        );
    }
}
