//! Suggestions for mistyped words.

/// The known word that the user probably meant; `None` if no known word is similar enough.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&given, word), word))
        .filter(|(distance, word)| *distance <= (word.len().max(given.len()) / 3).max(1))
        .min()
        .map(|(_, word)| word)
}

/// The end of a message about an unknown word: the known word that the user probably meant, or all
/// known words.
#[must_use]
pub fn hint(given: &str, known: &[&str]) -> String {
    if let Some(word) = nearest(given, known.iter().copied()) {
        format!("did you mean `{word}`?")
    } else if known.is_empty() {
        "there are none".into()
    } else {
        format!("known are {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_word_is_suggested() {
        let known = ["connect_timeout", "reap_after", "url"];
        assert_eq!(nearest("conect_timeout", known), Some("connect_timeout"));
        assert_eq!(nearest("reapafter", known), Some("reap_after"));
        assert_eq!(nearest("URL", known), Some("url"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(
            hint("banana", &known),
            "known are connect_timeout, reap_after, url"
        );
    }
}
