//! Widths of texts, and texts divided into lines.
//!
//! Each reader's system has a different font for `system-ui`. The widths here are those of DejaVu Sans or Liberation
//! Sans, whichever is wider. DejaVu Sans is one of the widest fonts, so the width of a text is an upper bound for most
//! readers.

/// Size of the font of all texts, in SVG units.
const FONT: f64 = 12.0;
/// Distance between the baselines of two lines.
pub const LINE: f64 = 15.0;
/// Extent of a text above its baseline.
pub const ABOVE: f64 = 0.8 * FONT;
/// Extent of a text below its baseline.
pub const BELOW: f64 = 0.25 * FONT;

/// Advance widths of the characters from the space to `~`, in hundredths of the font's size.
const WIDTHS: [u8; 95] = [
    32, 41, 46, 84, 64, 96, 78, 28, 40, 40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    34, 34, 84, 84, 84, 56, 102, 69, 69, 73, 78, 67, 62, 78, 76, 30, 50, 67, 56, 87, 75, 79, 67, 79, 73, 67,
    62, 74, 69, 99, 69, 67, 69, 40, 34, 40, 84, 56, 50, 62, 64, 55, 64, 62, 36, 64, 64, 28, 28, 58, 28, 98,
    64, 62, 64, 64, 42, 53, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84,
];
/// Width of any other character, in hundredths of the font's size.
const OTHER: u8 = 100;
/// Largest ratio of the widths of a bold text and a regular one.
const BOLD: f64 = 1.2;

/// Returns an upper bound for the width of `text`, in SVG units.
#[must_use]
pub fn width(text: &str, bold: bool) -> f64 {
    let of = |c: char| {
        let place = (c as usize).checked_sub(usize::from(b' '));
        f64::from(place.and_then(|place| WIDTHS.get(place)).copied().unwrap_or(OTHER))
    };
    let regular = text.chars().map(of).sum::<f64>() * FONT / 100.0;
    if bold { regular * BOLD } else { regular }
}

/// Divides `text` into lines that are at most `room` wide. Lines end between words. Only a word that is wider than
/// `room` is itself divided.
#[must_use]
pub fn wrap(text: &str, bold: bool, room: f64) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if width(&longer, bold) <= room {
            line = longer;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for c in word.chars() {
            if !line.is_empty() && width(&format!("{line}{c}"), bold) > room {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_all_words_and_fit() {
        let text = "gated-delta per head, forward, f32, batch 1, heads 8, d 128, neon with 4 threads";
        for room in [90.0, 200.0, 344.0, 1e4] {
            let lines = wrap(text, true, room);
            assert!(lines.iter().all(|line| width(line, true) <= room), "{lines:?}");
            assert_eq!(lines.join(" "), text);
        }
        assert_eq!(wrap(text, true, 1e4).len(), 1);
        assert!(wrap(text, true, 344.0).len() > 1);
        // A word without spaces is divided, and an empty text has no line.
        let word = "m".repeat(50);
        let lines = wrap(&word, false, 100.0);
        assert!(lines.len() == 7 && lines.concat() == word, "{lines:?}");
        assert_eq!(wrap("", false, 100.0), [""; 0]);
        assert!(width("WWW", false) > width("iii", false) && width("Σ", false) == FONT);
    }
}
