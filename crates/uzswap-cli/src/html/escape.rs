//! Text of others in a page: as HTML, in a script element, as words of a shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use uzswap_sys::escape::escaped;

/// Text that shows as itself in an element or in a quoted attribute. Control characters show as
/// escapes.
pub(super) fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in escaped(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// JSON for a script element: no text in it can end the element or begin a comment.
pub(super) fn for_script(json: &str) -> String {
    // A `<` is inside of a string, where this escape means the same.
    escaped(json).replace('<', "\\u003c")
}

/// Words as a shell takes them, on one line.
pub fn shell_line(words: &[OsString]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<String>>().join(" ")
}

fn shell_word(word: &OsStr) -> String {
    const PLAIN: &[u8] = b"%+,-./:=@_^";
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || PLAIN.contains(byte);
    match word.to_str() {
        Some(text) if !bytes.is_empty() && bytes.iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(['\n', '\t']) && escaped(text) == text => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => bytes.iter().fold("$'".to_owned(), |quoted, byte| quoted + &shell_byte(*byte)) + "'",
    }
}

/// One byte between `$'` and `'`.
fn shell_byte(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn markup_is_text() {
        assert_eq!(html("<script>&\"'"), "&lt;script&gt;&amp;&quot;&#39;");
        assert!(!html("a\u{1b}[31mb").contains('\u{1b}'));
    }

    #[test]
    fn json_cannot_leave_its_element() {
        let text = "</script><!--<script>";
        let safe = for_script(&Value::from(text).to_string());
        assert!(!safe.contains('<'), "{safe}");
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
    }

    #[test]
    fn a_shell_takes_the_words_as_they_were() {
        let words: [&[u8]; 7] = [b"a b", b"it's", b"", b"--x=1", b"$(rm)\\", b"\xff\n'", b"*"];
        let words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let line = shell_line(&words);
        assert_eq!(line, r"'a b' 'it'\''s' '' --x=1 '$(rm)\' $'\xff\x0a\'' '*'");
        // Bash tells: dash has no $'...'.
        let script = format!("printf '%s\\0' {line}");
        let Ok(output) = std::process::Command::new("bash").args(["-c", &script]).output() else {
            return;
        };
        let expected: Vec<u8> =
            words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        assert_eq!(output.stdout, expected);
    }
}
