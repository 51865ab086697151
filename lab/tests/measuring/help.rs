//! The text of `--help` of the measuring commands equals the recorded text, word for word.

use crate::home::Home;

#[test]
fn the_help_of_every_measuring_command_is_the_recorded_one() {
    let home = Home::new();
    for command in ["bench", "compare", "peers"] {
        let done = home.run([command, "--help"]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.stderr, "", "{done:?}");
        insta::assert_snapshot!(command, done.stdout);
        let wide = done.stdout.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{command} fits 80 columns");
        assert!(done.stdout.contains("Examples:"), "{command}");
    }
}

#[test]
fn a_mistake_in_the_command_line_is_bad_usage_and_shows_no_password() {
    let home = Home::new();
    let done = home.run(["compare", "redis://bob:hunter2@127.0.0.1"]);
    done.assert_failed(64, "redis://bob:***@127.0.0.1");
    home.run(["bensh"]).assert_failed(64, "bench");
}
