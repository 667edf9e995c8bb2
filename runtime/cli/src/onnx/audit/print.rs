//! The printed report of an audit: a table, and the nodes to keep in f32.

use crate::error::one_line;
use crate::foreign::Shown;
use crate::verdict::{BAD, GOOD};
use elsa_onnx::{Audit, AuditedSite, Loss, SiteKind};
use serde::Serialize;
use std::io::{self, Write};

/// Column titles of the table.
pub const COLUMNS: [&str; 9] =
    ["scores", "sum", "output", "least", "stored", "summed", "harm", "and summed", "keep"];

/// Results of an audit, as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct AuditReport<'a> {
    /// Kind of the record: `onnx audit`.
    pub what: &'static str,
    /// Path of the model.
    pub model: String,
    /// Version of ONNX Runtime.
    pub runtime: &'a str,
    /// Largest error of the outputs that does not count as broken.
    pub tolerance: f64,
    /// The results.
    #[serde(flatten)]
    pub audit: &'a Audit,
    /// Names of the nodes to keep in f32, those of the most harmful site first: `node_block_list` of the float16
    /// converter.
    pub node_block_list: Vec<&'a str>,
    /// Command line of trtexec that keeps these nodes in f32; empty without such nodes.
    pub trtexec: String,
    /// Names of the attentions among these nodes that `elsa onnx rewrite` replaces.
    pub replace: Vec<&'a str>,
}

impl<'a> AuditReport<'a> {
    /// Creates the report of an audit.
    #[must_use]
    pub fn new(model: String, runtime: &'a str, tolerance: f64, audit: &'a Audit) -> AuditReport<'a> {
        let kept = || audit.keep.iter().map(|&at| &audit.sites[at]);
        let node_block_list: Vec<&str> = kept().flat_map(|site| &site.nodes).map(String::as_str).collect();
        let replace = kept().filter(|site| site.replaceable).map(|site| site.node.as_str()).collect();
        let trtexec = trtexec(&model, &node_block_list);
        AuditReport {
            what: "onnx audit",
            model,
            runtime,
            tolerance,
            audit,
            node_block_list,
            trtexec,
            replace,
        }
    }

    /// Returns the sites of the table: sites that are kept or overflow, and all sites of a kind other than `Other`.
    pub fn rows(&self) -> impl Iterator<Item = &'a AuditedSite> {
        let listed = |site: &&AuditedSite| site.kind != SiteKind::Other || site.keep || site.overflows();
        self.audit.sites.iter().filter(listed)
    }

    /// Describes how half precision breaks the model; `None` if it does not.
    #[must_use]
    pub fn verdict(&self) -> Option<String> {
        self.audit.breaks.then(|| {
            let first = self.audit.keep.first().map(|&at| &self.audit.sites[at]);
            let first = first.map_or_else(String::new, |site| format!(", first {}", site.node));
            format!(
                "half precision breaks IN: {}; keep {} in f32{first}",
                self.summary(),
                sites(self.audit.keep.len())
            )
        })
    }

    /// Returns the error of the outputs in f16, in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let all = self.audit.all.map_or_else(|| "not measured".to_owned(), |all| all.to_string());
        let overflow = self.audit.sites.iter().filter(|site| site.keep && site.overflows()).count();
        let overflow =
            if overflow > 0 { format!(", overflows in {}", sites(overflow)) } else { String::new() };
        format!(
            "error of the outputs with everything in f16: {all}, allowed {:.1e}{overflow}",
            self.tolerance
        )
    }
}

/// Formats a number of sites.
fn sites(count: usize) -> String {
    crate::report::count(count as u64, "site")
}

/// Returns the command line of trtexec that keeps `names` in f32.
fn trtexec(model: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    // Within a list, commas and colons separate.
    let name = |name: &&str| {
        if name.contains([',', ':']) { format!("\"{name}\":fp32") } else { format!("{name}:fp32") }
    };
    let list = names.iter().map(name).collect::<Vec<_>>().join(",");
    let quoted = |text: String| format!("'{}'", text.replace('\'', "'\\''"));
    let words = [
        format!("--onnx={model}"),
        format!("--layerPrecisions={list}"),
        format!("--layerOutputTypes={list}"),
    ];
    let [onnx, precisions, types] = words.map(quoted);
    format!("trtexec {onnx} --fp16 --precisionConstraints=obey {precisions} {types}")
}

/// Formats the numbers of a site for the columns of the table, each with `true` if it overflows f16.
#[must_use]
pub fn cells(site: &AuditedSite) -> [(String, bool); 9] {
    let size = |x: Option<f64>| match x {
        Some(x) if x > 0.0 => (format!("{x:.1e}"), x > elsa_onnx::MOST),
        _ => ("-".to_owned(), false),
    };
    let loss = |x: Option<Loss>| match x {
        Some(x) => (x.to_string(), !x.0.is_finite()),
        None => ("-".to_owned(), false),
    };
    let least = site.smallest.map_or_else(|| "-".to_owned(), |x| format!("{x:.1e}"));
    [
        size(site.scores),
        size(site.sum),
        size(Some(site.output)),
        (least, site.smallest.is_some_and(|x| x < elsa_onnx::LEAST)),
        loss(Some(site.stored)),
        loss(site.accumulated),
        loss(site.harm),
        loss(site.harm_accumulated),
        (if site.keep { "f32" } else { "" }.to_owned(), false),
    ]
}

/// Prints the table and the lists.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn print<W: Write>(out: &mut Shown<W>, report: &AuditReport<'_>) -> io::Result<()> {
    let audit = report.audit;
    let titles: String = COLUMNS.iter().map(|title| format!("{title:>11}")).collect();
    writeln!(out, "{:13}{titles}  node", "site")?;
    for site in report.rows() {
        write!(out, "{:13}", site.kind.name())?;
        for (text, bad) in cells(site) {
            let text = format!("{text:>11}");
            if bad { out.paint(BAD, &text)? } else { write!(out, "{text}")? }
        }
        writeln!(out, "  {} {}", one_line(&site.operator), one_line(&site.node))?;
    }
    if !audit.sizes.is_empty() {
        writeln!(out, "sizes: {}", one_line(&audit.sizes))?;
    }
    for note in &audit.notes {
        writeln!(out, "note: {note}")?;
    }
    out.paint(if audit.breaks { BAD } else { GOOD }, if audit.breaks { "breaks" } else { "holds" })?;
    writeln!(out, ": {}", report.summary())?;
    if audit.keep.is_empty() {
        return Ok(());
    }
    let kept = audit.kept.map_or_else(|| "not measured".to_owned(), |kept| kept.to_string());
    writeln!(out, "keep in f32, the most harmful first; the error of the outputs is then {kept}:")?;
    for (place, &at) in audit.keep.iter().enumerate() {
        let site = &audit.sites[at];
        writeln!(out, "{:4} {} {}", place + 1, site.kind.name(), one_line(&site.nodes.join(", ")))?;
    }
    writeln!(out, "{}", one_line(&report.trtexec))?;
    let names = serde_json::to_string(&report.node_block_list).map_err(io::Error::other)?;
    writeln!(out, "node_block_list={names}")?;
    if !report.replace.is_empty() {
        let names = one_line(&report.replace.join(", "));
        writeln!(
            out,
            "elsa onnx rewrite replaces these attentions by ElsaAttention, which computes in f32: {names}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns an audit with an attention whose scores overflow, and a product.
    pub fn audit() -> Audit {
        let site = |node: &str, kind, scores, keep| AuditedSite {
            node: node.into(),
            operator: "Softmax".into(),
            kind,
            nodes: vec![format!("{node}'s product"), node.into()],
            scores,
            sum: Some(3.0),
            output: 2.0,
            smallest: Some(1e-9),
            flushed: 0.25,
            stored: Loss(if keep { f64::INFINITY } else { 2e-4 }),
            accumulated: Some(Loss(1e-3)),
            harm: Some(Loss(if keep { f64::INFINITY } else { 1e-4 })),
            harm_accumulated: None,
            keep,
            replaceable: keep,
        };
        Audit {
            sizes: "batch = 2".into(),
            random: vec!["x".into()],
            sites: vec![
                site("a:b", SiteKind::Attention, Some(1e5), true),
                site("p", SiteKind::Product, None, false),
                site("o", SiteKind::Other, None, false),
            ],
            all: Some(Loss(f64::INFINITY)),
            keep: vec![0],
            kept: Some(Loss(3e-4)),
            breaks: true,
            notes: vec!["a note".into()],
        }
    }

    #[test]
    fn the_report_names_what_to_keep() {
        let audit = audit();
        let report = AuditReport::new("m.onnx".into(), "1.20", 0.01, &audit);
        let mut out = Shown::new(Vec::new(), false);
        print(&mut out, &report).unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["all"], &json["kept"]), (&"inf".into(), &3e-4.into()));
        assert_eq!(json["node_block_list"], serde_json::json!(["a:b's product", "a:b"]));
        assert_eq!((&json["sites"][0]["kind"], &json["replace"][0]), (&"attention".into(), &"a:b".into()));
        assert_eq!(report.rows().count(), 2);
        assert!(
            report.trtexec.contains(r#"'--layerPrecisions="a:b'\''s product":fp32,"a:b":fp32'"#),
            "{}",
            report.trtexec
        );
        let verdict = report.verdict().unwrap();
        assert!(
            verdict.contains("keep 1 site in f32, first a:b") && verdict.contains("inf, allowed 1.0e-2"),
            "{verdict}"
        );
        let quiet = Audit { breaks: false, keep: vec![], ..audit.clone() };
        let quiet = AuditReport::new(String::new(), "", 0.01, &quiet);
        assert!(quiet.verdict().is_none() && quiet.trtexec.is_empty());
    }

    #[test]
    fn numbers_that_overflow_are_marked() {
        let cells = cells(&audit().sites[0]);
        let bad: Vec<&str> = cells.iter().filter(|(_, bad)| *bad).map(|(text, _)| text.as_str()).collect();
        assert_eq!(bad, ["1.0e5", "1.0e-9", "inf", "inf"]);
    }
}
