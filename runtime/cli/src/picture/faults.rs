//! Texts that overlap another text of their picture, or that leave it. Tests check every picture with this module.

use super::text::{ABOVE, BELOW, width};

/// Distance by which texts may overlap, for rounding.
const SLACK: f64 = 0.01;

/// A text, with the edges of the rectangle that it fills.
struct Placed {
    text: String,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Describes each text in the SVG pictures of `page` that overlaps another text of its picture or leaves the picture.
/// `page` is an SVG file of this module, or a page with pictures of this module. A page without a picture has one
/// fault.
#[must_use]
pub fn faults(page: &str) -> Vec<String> {
    let pictures: Vec<&str> =
        page.split("<svg").skip(1).filter_map(|rest| rest.split("</svg>").next()).collect();
    if pictures.is_empty() {
        return vec!["there is no picture".to_owned()];
    }
    pictures.into_iter().flat_map(|picture| of_picture(picture).unwrap_or_else(|why| vec![why])).collect()
}

/// Describes the faults of one picture: its text after `<svg`.
///
/// # Errors
/// Returns an error if the picture is not one of this module.
fn of_picture(picture: &str) -> Result<Vec<String>, String> {
    let (head, _) = picture.split_once('>').ok_or("an svg without an end")?;
    let size = numbers(attribute(head, "viewBox").unwrap_or_default());
    let [_, _, wide, high] = size[..] else { return Err(format!("a viewBox without four numbers: {head}")) };
    let texts = texts(picture)?;
    let mut faults = Vec::new();
    for (place, a) in texts.iter().enumerate() {
        let inside =
            a.left >= -SLACK && a.top >= -SLACK && a.right <= wide + SLACK && a.bottom <= high + SLACK;
        if !inside {
            faults.push(format!("'{}' leaves a picture of {wide} by {high}", a.text));
        }
        for b in &texts[place + 1..] {
            let across = a.right.min(b.right) - a.left.max(b.left);
            let down = a.bottom.min(b.bottom) - a.top.max(b.top);
            if across > SLACK && down > SLACK {
                faults.push(format!("'{}' and '{}' overlap", a.text, b.text));
            }
        }
    }
    Ok(faults)
}

/// Finds the texts of a picture, and adds the translations of their groups to their places.
///
/// # Errors
/// Returns an error for a text without a place.
fn texts(picture: &str) -> Result<Vec<Placed>, String> {
    let mut texts = Vec::new();
    let mut origins = vec![(0.0, 0.0)];
    for tag in picture.split('<').skip(1) {
        let (x, y) = origins.last().copied().unwrap_or_default();
        let (head, content) = tag.split_once('>').unwrap_or((tag, ""));
        match head.split_whitespace().next() {
            Some("g") => {
                let moved = attribute(head, "transform").and_then(|text| text.strip_prefix("translate("));
                let moved = numbers(moved.map_or("0 0", |text| text.trim_end_matches(')')));
                let [right, down] = moved[..] else {
                    return Err(format!("a group that is not translated: {head}"));
                };
                origins.push((x + right, y + down));
            }
            Some("/g") => {
                origins.pop();
            }
            Some("text") => {
                let number = |name| attribute(head, name).and_then(|text| text.parse::<f64>().ok());
                let (Some(left), Some(base)) = (number("x"), number("y")) else {
                    return Err(format!("a text without a place: {tag}"));
                };
                let text = unescaped(content);
                let wide = width(&text, attribute(head, "class") == Some("title"));
                let left = match attribute(head, "text-anchor") {
                    Some("middle") => x + left - wide / 2.0,
                    Some("end") => x + left - wide,
                    _ => x + left,
                };
                let (top, bottom) = (y + base - ABOVE, y + base + BELOW);
                texts.push(Placed { text, left, top, right: left + wide, bottom });
            }
            _ => {}
        }
    }
    Ok(texts)
}

/// Returns the value of an attribute of a tag.
fn attribute<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = head.split_once(&format!(" {name}=\""))?;
    rest.split('"').next()
}

/// Parses numbers that spaces separate.
fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Replaces character references such as `&#60;` by their characters.
fn unescaped(text: &str) -> String {
    let mut parts = text.split("&#");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(';').unwrap_or((part, ""));
        shown.extend(number.parse().ok().and_then(char::from_u32));
        shown.push_str(rest);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(texts: &str) -> String {
        format!("<p>words</p><svg viewBox=\"0 0 100 50\" role=\"img\"><g class=\"k0\"></g>{texts}</svg>")
    }

    #[test]
    fn texts_that_overlap_or_leave_are_found() {
        let good = picture(
            "<text x=\"2\" y=\"12\">a&#60;b</text><g transform=\"translate(0 20)\"><text x=\"2\" y=\"12\">a</text></g>",
        );
        assert_eq!(faults(&good), [""; 0]);
        let over = picture(
            "<text x=\"2\" y=\"12\">above</text><text x=\"45\" y=\"20\" text-anchor=\"end\">below</text>",
        );
        assert_eq!(faults(&over), ["'above' and 'below' overlap"]);
        for out in [
            "<text x=\"90\" y=\"12\">1e10</text>",
            "<text x=\"99\" y=\"12\" text-anchor=\"middle\">10</text>",
            "<text x=\"9\" y=\"12\" text-anchor=\"end\">10</text>",
            "<text x=\"9\" y=\"49\">1</text>",
            "<text x=\"9\" y=\"9\">1</text>",
            "<text x=\"9\" y=\"30\" class=\"title\">fourteen words</text>",
            "<g transform=\"translate(90 0)\"><text x=\"2\" y=\"12\">10</text></g>",
        ] {
            let faults = faults(&picture(out));
            assert!(faults.len() == 1 && faults[0].contains("leaves"), "{out}: {faults:?}");
        }
        assert_eq!(faults("<p>words</p>").len(), 1);
        assert_eq!(faults(&picture("<text x=\"2\">a</text>")).len(), 1);
    }
}
