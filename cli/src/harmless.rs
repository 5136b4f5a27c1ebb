//! Makes foreign text harmless before people see it.
//!
//! **Invariant:** nothing in such a text is obeyed by a terminal, is shown in another order than it
//! is written, or begins a line that looks like one of ours.

/// Is this a character that a terminal obeys, or that changes the order of a text?
fn is_harmful(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}');
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    (c.is_control() && c != '\t') || turns || breaks
}

/// The text on one line, with harmful characters escaped.
pub(crate) fn harmless(text: &str) -> String {
    without(text, is_harmful)
}

/// Like [`harmless`], but keeps line ends: for lines that we made ourselves, as a last check.
pub(crate) fn harmless_lines(text: &str) -> String {
    without(text, |c| is_harmful(c) && c != '\n')
}

fn without(text: &str, harmful: impl Fn(char) -> bool) -> String {
    let mut harmless = String::with_capacity(text.len());
    for c in text.chars() {
        match harmful(c) {
            true => harmless.extend(c.escape_default()),
            false => harmless.push(c),
        }
    }
    harmless
}

/// An equivalent JSON document with harmful characters escaped. In JSON they can only occur in
/// strings.
pub(crate) fn harmless_json(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) && c != '\n' {
            true => harmless.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => harmless.push(c),
        }
    }
    harmless
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_obeyed_and_everything_can_be_read() {
        let text =
            "a\x1b[31mb\u{9b}2Jc\u{202e}d\u{2066}e\u{200f}f\ng\rh\u{7f}i\u{2028}j\tk ä 日本 👩‍🚀";
        let shown = harmless(text);
        assert_eq!(
            shown,
            "a\\u{1b}[31mb\\u{9b}2Jc\\u{202e}d\\u{2066}e\\u{200f}f\\ng\\rh\\u{7f}i\\u{2028}j\tk ä 日本 👩‍🚀"
        );
        assert!(harmless_lines("a\nb\x1b").starts_with("a\nb\\u"));
        let document = serde_json::json!({ "text": text }).to_string();
        let safe = harmless_json(&document);
        assert!(!safe.chars().any(is_harmful), "{safe}");
        let back: serde_json::Value = serde_json::from_str(&safe).expect("JSON");
        assert_eq!(back["text"], text);
    }
}
