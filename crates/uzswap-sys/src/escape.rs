//! Escapes text of other users for a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes control characters (C0 but newline and tab, DEL, C1) and invisible format characters
/// (bidirectional ones, zero-width ones, tags). The notation is that of JSON, `\u001b`, so a JSON
/// document stays the same document.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// The same for a text that is a part of a line, as the name of a process: newlines and tabs too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) || c.is_control())
}

fn escape(text: &str, is_unsafe: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_unsafe(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(escaped, "\\u{unit:04x}"); // into a string
            }),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn is_unsafe(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    is_format || c.is_control() && c != '\n' && c != '\t'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_formats_are_escaped() {
        for (text, expected) in [
            ("", ""),
            ("a\nb\tc", "a\nb\tc"),
            ("\u{e4}\u{65e5}\u{1f600}", "\u{e4}\u{65e5}\u{1f600}"),
            ("a\x1b[31mb\r\x7f\0", r"a\u001b[31mb\u000d\u007f\u0000"),
            ("\u{80}\u{9b}\u{9f}\u{a0}", "\\u0080\\u009b\\u009f\u{a0}"),
            ("\u{202e}\u{2066}\u{200f}\u{feff}", r"\u202e\u2066\u200f\ufeff"),
            ("\u{e0041}", r"\udb40\udc41"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn a_part_of_a_line_ends_no_line() {
        assert_eq!(
            one_line("it's\t\u{e4}\nuzswap: \x1b[m"),
            "it's\\u0009\u{e4}\\u000auzswap: \\u001b[m"
        );
    }
}
