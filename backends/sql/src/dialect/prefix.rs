//! The range of texts that start with a prefix.

/// The smallest text that sorts after every text that starts with `prefix`; `None` when no text
/// does.
pub(crate) fn above_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            // The next code point would be a surrogate.
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_is_in_the_range_exactly_if_it_starts_with_the_prefix(
            prefix in any::<String>(),
            text in any::<String>(),
            tail in any::<String>(),
        ) {
            let above = above_prefix(&prefix);
            let within = |text: &str| {
                text >= prefix.as_str() && above.as_deref().is_none_or(|above| text < above)
            };
            let longer = format!("{prefix}{tail}");
            prop_assert!(within(&longer));
            prop_assert_eq!(within(&text), text.starts_with(&prefix));
        }
    }

    #[test]
    fn a_last_code_point_is_dropped_and_the_one_before_it_is_raised() {
        assert_eq!(above_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(above_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(above_prefix("\u{10ffff}"), None);
        assert_eq!(above_prefix(""), None);
    }
}
