//! The text of `--help` for every command equals the recorded text, word for word.

use crate::support::Home;

const COMMANDS: [&[&str]; 45] = [
    &[],
    &["demo"],
    &["demo", "recipes"],
    &["run"],
    &["elect"],
    &["fence"],
    &["fence", "check"],
    &["fence", "reset"],
    &["acquire"],
    &["renew"],
    &["release"],
    &["inspect"],
    &["list"],
    &["force-release"],
    &["resize"],
    &["jobs"],
    &["gateway"],
    &["gateway", "run"],
    &["gateway", "token"],
    &["gateway", "lookup"],
    &["gateway", "kick"],
    &["gateway", "ban"],
    &["gateway", "drain"],
    &["gateway", "nodes"],
    &["gateway", "health"],
    &["serve"],
    &["serve", "token"],
    &["conformance"],
    &["doctor"],
    &["migrate"],
    &["quorum"],
    &["quorum", "init"],
    &["quorum", "show"],
    &["quorum", "readmit"],
    &["quorum", "reconfigure"],
    &["ring"],
    &["ring", "init"],
    &["ring", "show"],
    &["ring", "add"],
    &["ring", "remove"],
    &["ring", "reset"],
    &["ring", "watch"],
    &["completions"],
    &["man"],
    &["help"],
];

#[test]
fn the_help_of_every_command_is_the_recorded_one() {
    let home = Home::new();
    for words in COMMANDS {
        let done = home.run(if words == ["help"] {
            words.to_vec()
        } else {
            [words, &["--help"]].concat()
        });
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.stderr, "", "{done:?}");
        let name = if words.is_empty() {
            "distlock".to_owned()
        } else {
            words.join("_")
        };
        insta::assert_snapshot!(name, done.stdout);
        let wide = done.stdout.lines().find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{words:?} fits 80 columns");
        // Without a subcommand, these only list their commands.
        assert!(
            matches!(words, ["gateway" | "quorum" | "ring"]) || done.stdout.contains("Examples:"),
            "{words:?}"
        );
    }
}

#[test]
fn every_listed_command_is_tested_here() {
    let home = Home::new();
    let help = home.run(["--help"]).stdout;
    let listed = help
        .lines()
        .skip_while(|line| *line != "Locks:")
        .take_while(|line| *line != "Options:")
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap());
    for command in listed {
        assert!(
            COMMANDS.iter().any(|words| words.first() == Some(&command)),
            "{command}"
        );
    }
    assert!(!help.contains("conformance-worker"));
}
