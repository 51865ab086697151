//! Commands that another program has now answer with the new command.

use crate::support::Home;

#[test]
fn measuring_commands_name_the_program_that_has_them_now() {
    let home = Home::new();
    for (words, new) in [
        (&["bench"][..], "-p distlock-lab -- bench"),
        (&["bench", "--help"], "-p distlock-lab -- bench"),
        (&["bench", "--backend"], "-p distlock-lab -- bench"),
        (&["help", "compare"], "-p distlock-lab -- compare"),
        (
            &["--backend", "memory:", "bench", "--json"],
            "-p distlock-lab -- bench",
        ),
        (
            &[
                "compare",
                "--backend",
                "memory:",
                "--backend",
                "memory:",
                "--quick",
            ],
            "-p distlock-lab -- compare",
        ),
    ] {
        home.run(words).assert_failed(64, new);
    }
}
