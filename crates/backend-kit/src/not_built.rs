//! The sentence of the error about a part that this build does not have, the same for every store.
//!
//! The crates are not published, so the sentence names the steps that work in a checkout: the line
//! for `Cargo.toml` and the command, as in the README. `tests/readme.rs` keeps the two texts equal.

/// The sentence for the part `what`, which these `features` of the library add. The features are
/// separated by commas (`redis,tls`). The command-line tool always has every backend, so the
/// sentence mentions the tool only for features that the tool also has.
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

/// The features of the library that the package of the command-line tool also has.
const TOOL_FEATURES: [&str; 2] = ["sasl", "tls"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_line_of_cargo_toml_and_the_command() {
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
