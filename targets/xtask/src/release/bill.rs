//! Bills of materials: lists of the packages that each product contains, in the format CycloneDX, by cargo-cyclonedx.

use crate::boards::build::{self, SHIPPED};
use crate::files::{self, at};
use crate::setup;
use crate::shell::{Run, Tree};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes the bills of the products into the folder `to`, with `version` in their names. Each package that is linked for one
/// of the targets `triples` must be in a bill. Two bills of one commit have the same bytes: `seconds` is the time of the
/// commit.
pub fn write(tree: &Tree, triples: &[&str], version: &str, seconds: &str, to: &Path) -> Result<(), String> {
    let program = setup::cyclonedx(tree)?;
    // The program writes next to each Cargo.toml, so it reads a copy of the commit.
    let work = tree.target.join("release-work");
    let copy = work.join("tree");
    files::empty(&copy)?;
    let archive = work.join("tree.tar");
    Run::new(tree, "git archive --format=tar HEAD -o").arg(&archive).quiet().run().text("git archive")?;
    Run::new(tree, "tar -xf").arg(&archive).arg("-C").arg(&copy).quiet().run().text("tar")?;
    let run =
        Run::new(tree, "").arg(program).args("cyclonedx --quiet --format json --no-build-deps --target all");
    let run = run.args("--override-filename bom --manifest-path").arg(copy.join("Cargo.toml")).dir(&copy);
    run.env("SOURCE_DATE_EPOCH", seconds).run().text("cargo-cyclonedx")?;
    let mut listed = BTreeSet::new();
    for product in SHIPPED {
        let path = bill(&copy, product)?;
        let text = files::text(&path)?;
        listed.extend(components(&text).map_err(|fault| format!("{}: {fault}", path.display()))?);
        files::write(&to.join(format!("{product}-{version}.cdx.json")), text)?;
    }
    for triple in triples {
        let linked = build::linked(tree, triple)?;
        let absent: Vec<String> = linked.iter().map(named).filter(|name| !listed.contains(name)).collect();
        if !absent.is_empty() {
            return Err(format!(
                "bills of materials: {} are linked for {triple}, but not listed",
                absent.join(", ")
            ));
        }
    }
    Ok(())
}

/// Returns the bill that cargo-cyclonedx has written next to the Cargo.toml of a package of the copied tree.
fn bill(copy: &Path, package: &str) -> Result<PathBuf, String> {
    let manifests = files::below(copy, &["toml"])?;
    let wanted = format!("name = \"{package}\"\n");
    let is_wanted = |path: &&PathBuf| {
        path.ends_with("Cargo.toml") && fs::read_to_string(path).is_ok_and(|text| text.contains(&wanted))
    };
    let dir = manifests.iter().find(is_wanted).and_then(|path| path.parent());
    let dir = dir.ok_or_else(|| format!("{package}: no Cargo.toml has this name"))?;
    let mut entries = fs::read_dir(dir).map_err(at(dir))?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_bill = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("bom") && name.ends_with(".json")
    };
    entries.find(is_bill).ok_or_else(|| format!("{}: no bill of materials", dir.display()))
}

/// Returns the name of a package or component with its version, such as `half 2.7.1`.
fn named(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    format!("{} {}", text("name"), text("version"))
}

/// Returns the components of a bill. Each must have a licence.
fn components(text: &str) -> Result<Vec<String>, String> {
    let bill: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if bill["bomFormat"] != "CycloneDX" {
        return Err(format!("bomFormat: {}; allowed: CycloneDX", bill["bomFormat"]));
    }
    let components = bill["components"].as_array().filter(|list| !list.is_empty());
    let components = components.ok_or("components: none; allowed: at least one")?;
    let unlicensed = components.iter().find(|each| each["licenses"].as_array().is_none_or(Vec::is_empty));
    match unlicensed {
        Some(each) => Err(format!("component {}: no licence; allowed: at least one", named(each))),
        None => Ok(components.iter().map(named).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bill_lists_components_with_licences() {
        let whole = json!({
            "bomFormat": "CycloneDX",
            "components": [
                { "name": "half", "version": "2.7.1", "licenses": [{ "expression": "MIT OR Apache-2.0" }] },
                { "name": "libm", "version": "0.2.15", "licenses": [{ "expression": "MIT" }] },
            ],
        });
        assert_eq!(
            components(&whole.to_string()),
            Ok(vec!["half 2.7.1".to_owned(), "libm 0.2.15".to_owned()])
        );
        for (pointer, value, names) in [
            ("/bomFormat", json!("SPDX"), "bomFormat"),
            ("/components", json!([]), "components: none"),
            ("/components/1/licenses", json!([]), "libm 0.2.15: no licence"),
        ] {
            let mut bill = whole.clone();
            *bill.pointer_mut(pointer).unwrap() = value;
            let fault = components(&bill.to_string()).unwrap_err();
            assert!(fault.contains(names), "{fault}");
        }
        assert!(components("{").is_err());
    }
}
