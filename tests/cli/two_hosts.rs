//! The commands of `docs/two-hosts.md`, as printed there, with their outputs. Two shells are the
//! two hosts.

use std::{
    fs::File,
    io::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use distlock_harness::{Process, eventually, servers::redis::RedisServer};

use crate::support::{Home, SOON};

const PAGE: &str = include_str!("../../docs/two-hosts.md");

const HOSTS: [&str; 2] = ["host-1", "host-2"];

/// A command of the page, and the lines that it prints, on whichever host.
struct Step {
    host: usize,
    command: String,
    output: Vec<String>,
}

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_inside = false;
    for line in PAGE.lines() {
        if line.starts_with("```") {
            is_inside = line == "```console";
        } else if is_inside {
            let prompt = line.split_once("$ ");
            let prompt = prompt.and_then(|(host, command)| {
                Some((HOSTS.iter().position(|it| *it == host)?, command))
            });
            match prompt {
                Some((host, command)) => steps.push(Step {
                    host,
                    command: command.to_owned(),
                    output: Vec::new(),
                }),
                None => steps.last_mut().unwrap().output.push(comparable(line)),
            }
        }
    }
    steps
}

/// A line without what differs from run to run: numbers with their units, the width of columns, and
/// the details of the doctor's verdicts. The numbers of hosts and exit codes stay.
fn comparable(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    if let ["pass", check, ..] = words[..] {
        return format!("pass {check}");
    }
    let line = line.split(" at redis://").next().unwrap_or(line);
    if line.starts_with("exit code") {
        return line.to_owned();
    }
    let words = line.split_whitespace().map(|word| {
        if HOSTS.contains(&word) {
            return word.to_owned();
        }
        let mut kept = String::new();
        let mut is_number = false;
        for letter in word.chars() {
            // The units of durations, and the fractions of numbers.
            let goes_on = is_number && ".msµhTZ-:".contains(letter);
            is_number = letter.is_ascii_digit() || goes_on;
            if !is_number {
                kept.push(letter);
            } else if !kept.ends_with('#') {
                kept.push('#');
            }
        }
        kept
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A shell that carries out lines, one after the other.
struct Shell {
    process: Process,
    input: File,
}

impl Shell {
    fn start(home: &Home, host: &str) -> Self {
        let pipe = home.path(host);
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let link = home.path("distlock");
        if !link.exists() {
            std::os::unix::fs::symlink(crate::PROGRAM, &link).unwrap();
        }
        let tool = home.bare([""; 0]);
        let mut bash = Command::new("bash");
        // Commands must not read the lines that follow them.
        let script = r#"while read -r line <&9; do eval "$line" 9<&-; done 9< "$0""#;
        bash.args(["-c", script]).arg(&pipe);
        bash.current_dir(tool.get_current_dir().unwrap());
        for (name, value) in tool.get_envs() {
            match value {
                Some(value) => bash.env(name, value),
                None => bash.env_remove(name),
            };
        }
        let path = std::env::var("PATH").unwrap();
        bash.env("PATH", format!("{}:{path}", home.path(".").display()));
        let process = Process::spawn(&mut bash).unwrap();
        // This waits until the shell has opened the pipe.
        let input = File::options().write(true).open(&pipe).unwrap();
        Self { process, input }
    }

    /// Carries out a line, and waits until it has ended or runs in the background.
    fn carry_out(&mut self, line: &str, number: usize) {
        let mark = format!("[step {number}]");
        let before = self.count(&mark);
        writeln!(self.input, "{line}\necho '{mark}'").unwrap();
        let ended = eventually("the command has ended", SOON * 2, || {
            self.count(&mark) > before
        });
        ended.unwrap_or_else(|error| panic!("{line}: {error}\n{}", self.process.output()));
    }

    fn count(&self, mark: &str) -> usize {
        let output = self.process.output();
        output.lines().filter(|line| *line == mark).count()
    }
}

/// Whether the command changes nothing, so that it may be repeated until it shows what is expected.
fn only_looks(command: &str) -> bool {
    ["list", "inspect", "jobs"]
        .iter()
        .any(|word| command.starts_with(&format!("distlock {word}")))
}

#[test]
fn the_commands_print_what_the_page_says() {
    let home = Home::new();
    let server = RedisServer::with(&["appendonly yes", "appendfsync everysec"]).unwrap();
    let mut shells = HOSTS.map(|host| Shell::start(&home, host));
    let steps = steps();
    assert!(steps.len() > 15, "{} steps", steps.len());
    for (number, step) in steps.iter().enumerate() {
        let command = step.command.replace("redis://host-1", &server.url());
        let before = shells.each_ref().map(|it| it.process.output().len());
        let since = Instant::now();
        loop {
            shells[step.host].carry_out(&command, number);
            let missing = || {
                let new: String = shells
                    .iter()
                    .zip(before)
                    .map(|(shell, before)| shell.process.output()[before..].to_owned() + "\n")
                    .collect();
                let new: Vec<_> = new.lines().map(comparable).collect();
                let missing = step.output.iter().find(|line| !new.contains(line));
                missing.map(|line| format!("{line:?} is not in {new:#?}"))
            };
            let patience = if only_looks(&command) {
                Duration::from_millis(100)
            } else {
                SOON
            };
            if eventually("the output", patience, || missing().is_none()).is_ok() {
                break;
            }
            let gives_up = !only_looks(&command) || since.elapsed() > SOON;
            assert!(!gives_up, "{command}: {}", missing().unwrap_or_default());
        }
    }
}
