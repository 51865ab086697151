//! What to do about a part that this build does not have: one sentence for every store.
//!
//! Nothing is published, so the sentence names what works in a checkout: the line of `Cargo.toml`
//! and the command that the README prints. `tests/readme.rs` keeps the two texts equal.

/// The sentence for a `what` that the `features` of the library bring, separated by commas
/// (`redis,tls`). The tool has every backend, so it is named for its own features only.
#[must_use]
pub fn not_compiled_in(what: &str, features: &str) -> String {
    let listed: Vec<_> = features
        .split(',')
        .map(|name| format!("{name:?}"))
        .collect();
    let mut text = format!(
        "{what} is not compiled in: in Cargo.toml, write `distlock = {{ path = \"../distlock\", \
         features = [{}] }}`",
        listed.join(", ")
    );
    let of_the_tool = features
        .split(',')
        .find(|name| TOOL_FEATURES.contains(name));
    if let Some(feature) = of_the_tool {
        text += &format!(
            "; for the command, run `cargo install --locked --path cli --features {feature}` in \
             the checkout"
        );
    }
    text
}

/// The features of the library that the package of the tool has as well.
const TOOL_FEATURES: [&str; 2] = ["sasl", "tls"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_line_and_the_command_that_work() {
        assert_eq!(
            not_compiled_in("the sqlite backend", "sqlite"),
            "the sqlite backend is not compiled in: in Cargo.toml, write `distlock = { path = \
             \"../distlock\", features = [\"sqlite\"] }`"
        );
        assert_eq!(
            not_compiled_in("TLS", "redis,tls"),
            "TLS is not compiled in: in Cargo.toml, write `distlock = { path = \"../distlock\", \
             features = [\"redis\", \"tls\"] }`; for the command, run `cargo install --locked \
             --path cli --features tls` in the checkout"
        );
    }
}
