//! The section of a release in `CHANGELOG.md`.

use super::version::Semver;

/// The file that lists the changes.
pub const FILE: &str = "CHANGELOG.md";

/// Returns the section of `version` in the text of the list, without its heading. The section must be the first one. It must
/// have the date of the release, and at least one change.
pub fn section(text: &str, version: Semver) -> Result<String, String> {
    let wanted = format!("{FILE}: the first section is");
    let allowed = format!("allowed: '{version} (YEAR-MONTH-DAY)'");
    let (_, first) = text.split_once("\n## ").ok_or_else(|| format!("{FILE}: no section; {allowed}"))?;
    let (heading, body) = first.split_once('\n').unwrap_or((first, ""));
    let date = heading.strip_prefix(&format!("{version} (")).and_then(|rest| rest.strip_suffix(')'));
    if !date.is_some_and(is_date) {
        return Err(format!("{wanted} '{heading}'; {allowed}"));
    }
    let body = body.split("\n## ").next().unwrap_or_default().trim();
    if body.lines().any(|line| line.starts_with("- ")) {
        Ok(format!("{body}\n"))
    } else {
        Err(format!(
            "{wanted} '{heading}', without a change; allowed: at least one line that begins with '- '"
        ))
    }
}

/// Returns `true` for a day such as 2026-11-28.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let digits = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| b.is_ascii_digit());
    let within = |part: &str, most: u32| part.parse().is_ok_and(|n: u32| (1..=most).contains(&n));
    match parts[..] {
        [year, month, day] => {
            digits(year, 4) && digits(month, 2) && digits(day, 2) && within(month, 12) && within(day, 31)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_a_date_and_a_change() {
        let version: Semver = "1.2.3".parse().unwrap();
        let text = |heading: &str, body: &str| format!("# Changelog\n\nWords.\n\n## {heading}\n{body}");
        let found =
            section(&text("1.2.3 (2026-11-28)", "\n### Part\n\n- One.\n\n## 1.2.2\n\n- Old.\n"), version);
        assert_eq!(found, Ok("### Part\n\n- One.\n".to_owned()));
        for heading in [
            "1.2.3",
            "1.2.3 (unreleased)",
            "1.2.4 (2026-11-28)",
            "1.2.30 (2026-11-28)",
            "1.2.3 (2026-13-28)",
            "1.2.3 (2026-1-28)",
            "1.2.3 (2026-11-00)",
            "1.2.3 (2026-11)",
        ] {
            let fault = section(&text(heading, "\n- One.\n"), version).unwrap_err();
            assert!(fault.contains(heading) && fault.contains("'1.2.3 (YEAR-MONTH-DAY)'"), "{fault}");
        }
        let older = "\n## 1.2.2 (2026-11-01)\n\n- Old.\n";
        let fault = section(&text("1.2.3 (2026-11-28)", older), version).unwrap_err();
        assert!(fault.contains("without a change"), "{fault}");
        assert!(section("# Changelog\n", version).unwrap_err().contains("no section"));
    }
}
