//! Escapes untrusted text for a terminal, a log or a report. Names of files, devices, processes and rows can have any
//! content.
//!
//! Such a text may contain escape sequences that clear a screen, line ends that forge a line, and characters that have
//! no width or reverse the order of other characters. Each of these characters is written as a JSON escape, such as
//! `\n` or `\u202e`, so that it is visible and a JSON object keeps its meaning. [`one_line`] also escapes line ends,
//! for text that belongs within a line. In all other text, the line ends come from the tool and are kept: [`Shown`]
//! escapes this text on standard output ([`stdout`]), and [`page`] escapes it in reports.

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use std::fmt::Write as _;
use std::io::{self, Stdout, Write};

/// Returns `true` if a character is invisible, changes the terminal, or changes the display of its neighbours.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Appends the escape of a character.
fn escape(c: char, to: &mut String) {
    match c {
        '\n' => to.push_str("\\n"),
        '\r' => to.push_str("\\r"),
        '\t' => to.push_str("\\t"),
        _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
            // Writing to a string cannot fail.
            let _ = write!(to, "\\u{unit:04x}");
        }),
    }
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) && !stays(c) { escape(c, &mut shown) } else { shown.push(c) }
    }
    shown
}

/// Escapes `text` so that it prints literally and on one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

/// Escapes `text` so that it prints literally, but keeps its line ends.
#[must_use]
pub fn page(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

/// Returns standard output that escapes hidden characters and keeps line ends. It is coloured if it is a terminal,
/// unless the environment refuses colours, for instance by `NO_COLOR`.
#[must_use]
pub fn stdout() -> Shown<Stdout> {
    let to = io::stdout();
    let colored = AutoStream::choice(&to) != ColorChoice::Never;
    Shown::new(to, colored)
}

/// A writer that escapes hidden characters and keeps line ends.
#[derive(Debug)]
pub struct Shown<W: Write> {
    to: W,
    /// First bytes of an incomplete UTF-8 character, kept until its other bytes are written.
    begun: Vec<u8>,
    /// `true` if the reader is a terminal that shows colours.
    colored: bool,
}

impl<W: Write> Shown<W> {
    /// Creates a writer that has written nothing yet. Without `colored`, styles are not written.
    #[must_use]
    pub fn new(to: W, colored: bool) -> Shown<W> {
        Shown { to, begun: Vec::new(), colored }
    }

    /// Writes `text` in `style`, and without a style if the reader shows no colours. Hidden characters of the text are
    /// escaped as in any other text.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn paint(&mut self, style: Style, text: &str) -> io::Result<()> {
        if !self.colored {
            return self.write_all(text.as_bytes());
        }
        write!(self.to, "{style}")?;
        self.write_all(text.as_bytes())?;
        write!(self.to, "{style:#}")
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let all = [&self.begun[..], bytes].concat();
        self.begun.clear();
        let mut shown = String::with_capacity(all.len());
        for chunk in all.utf8_chunks() {
            shown.push_str(&page(chunk.valid()));
            let broken = chunk.invalid();
            // Only invalid bytes at the end of the text can be the first part of a character.
            if all.ends_with(broken) && std::str::from_utf8(broken).is_err_and(|e| e.error_len().is_none()) {
                self.begun.extend_from_slice(broken);
            } else if !broken.is_empty() {
                shown.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.to.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\r\n\u{7f}\u{9b}31m\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}é€𝄞";
    const SHOWN: &str =
        "a\\u001b[2J\\r\\n\\u007f\\u009b31m\\u202e\\u2066\\u200b\\ufeff\\u2028\\udb40\\udc41é€𝄞";

    #[test]
    fn what_is_hidden_is_shown_and_nothing_else_changes() {
        assert_eq!(one_line(HOSTILE), SHOWN);
        assert_eq!(one_line(SHOWN), SHOWN);
        assert_eq!(page(HOSTILE), SHOWN.replace("\\n", "\n"));
        let json = serde_json::to_string(HOSTILE).unwrap();
        assert_eq!(serde_json::from_str::<String>(&page(&json)).unwrap(), HOSTILE);
    }

    #[test]
    fn characters_may_be_written_in_pieces() {
        for size in 1..=HOSTILE.len() {
            let mut shown = Shown::new(Vec::new(), false);
            HOSTILE.as_bytes().chunks(size).for_each(|piece| shown.write_all(piece).unwrap());
            assert_eq!(String::from_utf8(shown.to).unwrap(), page(HOSTILE), "{size}");
        }
        let mut shown = Shown::new(Vec::new(), false);
        shown.write_all(b"a\x9bb\xffc\xe2\x80d").unwrap();
        assert_eq!(String::from_utf8(shown.to).unwrap(), "a\u{fffd}b\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn only_a_terminal_gets_colours_and_no_text_makes_its_own() {
        for (colored, wanted) in [(false, "\\u001b[1m"), (true, "\u{1b}[2m\\u001b[1m\u{1b}[0m")] {
            let mut shown = Shown::new(Vec::new(), colored);
            shown.paint(Style::new().dimmed(), "\u{1b}[1m").unwrap();
            assert_eq!(String::from_utf8(shown.to).unwrap(), wanted);
        }
    }
}
