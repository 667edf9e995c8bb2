//! Reports the kernels that a run of the stages did not execute. Tests iterate over the back ends of the machine, so
//! an absent back end does not count as passed: the summary names it.

use serde_json::Value;

/// Returns a line for each back end that no stage executed. `stages` are the stages that passed; `info` is the output
/// of `elsa info --json` on this machine. `fast` is `true` for a fast run, in which the stage `host` does not use the
/// stand-in driver.
///
/// # Errors
/// Returns an error for text that does not list the back ends.
pub fn not_run(info: &str, stages: &[&str], fast: bool) -> Result<Vec<String>, String> {
    let info: Value = serde_json::from_str(info).map_err(|error| format!("elsa info --json: {error}"))?;
    let listed = info["backends"].as_array().filter(|listed| !listed.is_empty());
    let listed = listed.ok_or("elsa info --json: no back ends")?;
    let mut lines = Vec::new();
    for backend in listed {
        let (Some(name), Some(present)) = (backend["name"].as_str(), backend["present"].as_bool()) else {
            return Err(format!("elsa info --json: {backend}: no name, or not known to be present"));
        };
        // The stage that executes the back end in an emulator or on the stand-in, not on this machine's hardware.
        let elsewhere = match name {
            "neon" => Some("arm"),
            "cuda" if !fast => Some("host"),
            _ => None,
        };
        let emulated = elsewhere.is_some_and(|stage| stages.contains(&stage));
        if present && stages.contains(&"host") || name != "cuda" && emulated {
            continue;
        }
        let why = match (backend["absence"].as_str(), elsewhere) {
            _ if present => "the stage host did not pass".to_owned(),
            (Some(absence), _) if emulated => format!("{}; the stage host ran a stand-in", reason(absence)),
            (Some(absence), _) => reason(absence).to_owned(),
            (None, Some(stage)) => format!("another architecture; the stage {stage} emulates it"),
            (None, None) => "this processor does not have it".to_owned(),
        };
        lines.push(format!("not run: {name} ({why})"));
    }
    Ok(lines)
}

/// Returns the part of the message `absence` that precedes the allowed values.
fn reason(absence: &str) -> &str {
    absence.split("; allowed").next().unwrap_or(absence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(backends: &[(&str, bool, Option<&str>)]) -> String {
        let listed: Vec<Value> = backends
            .iter()
            .map(|(name, present, absence)| {
                serde_json::json!({"name": name, "present": present, "absence": absence})
            })
            .collect();
        serde_json::json!({ "backends": listed }).to_string()
    }

    #[test]
    fn what_a_machine_lacks_is_named() {
        let lacks = Some("libcuda: not found; allowed: the library of an NVIDIA driver");
        let machine = info(&[
            ("cuda", false, lacks),
            ("avx512", false, None),
            ("neon", false, None),
            ("scalar", true, None),
        ]);
        assert_eq!(
            not_run(&machine, &["host"], true).unwrap(),
            [
                "not run: cuda (libcuda: not found)",
                "not run: avx512 (this processor does not have it)",
                "not run: neon (another architecture; the stage arm emulates it)",
            ]
        );
        // A stand-in does not count as a GPU. An emulated processor counts, because it executes the kernels.
        assert_eq!(
            not_run(&machine, &["host", "arm"], false).unwrap(),
            [
                "not run: cuda (libcuda: not found; the stage host ran a stand-in)",
                "not run: avx512 (this processor does not have it)",
            ]
        );
        assert_eq!(
            not_run(&info(&[("avx512", true, None), ("scalar", true, None)]), &["host"], false).unwrap(),
            [""; 0]
        );
        assert_eq!(
            not_run(&info(&[("scalar", true, None)]), &[], false).unwrap(),
            ["not run: scalar (the stage host did not pass)"]
        );
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for text in ["", "{}", r#"{"backends":[]}"#, r#"{"backends":[{"name":"scalar"}]}"#] {
            assert!(not_run(text, &["host"], false).is_err(), "{text}");
        }
    }
}
