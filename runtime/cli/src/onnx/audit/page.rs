//! Renders an audit as one self-contained page, without external scripts, fonts or images.

use super::print::{AuditReport, COLUMNS, cells};
use crate::error::Error;
use crate::picture::{Axis, BOTTOM, Bar, Curve, Picture, Scale, TOP, Tick};
use askama::Template;
use elsa_onnx::{AuditedSite, MOST};

/// Maximum number of sites in a picture.
const BARS: usize = 32;
/// Distance between the labels of bars, in bars.
const STEP: usize = 4;
/// Value of an infinite error in a picture.
const INFINITE: f64 = 1e3;

/// A row of the table.
struct Row {
    kind: &'static str,
    node: String,
    cells: [(String, bool); 9],
}

/// Values that the template shows on the page.
#[derive(Template)]
#[template(path = "audit.html")]
struct Page<'a> {
    report: &'a AuditReport<'a>,
    summary: String,
    kept: Option<String>,
    keep: Vec<(&'static str, String)>,
    version: &'static str,
    columns: [&'static str; 9],
    pictures: Vec<Picture>,
    rows: Vec<Row>,
}

/// Renders the page.
///
/// # Errors
/// Returns [`Error::Print`] if the template cannot be rendered. The page is written to memory, so no I/O can fail.
pub fn page(report: &AuditReport<'_>) -> Result<String, Error> {
    let row = |site: &AuditedSite| Row {
        kind: site.kind.name(),
        node: format!("{} {}", site.operator, site.node),
        cells: cells(site),
    };
    let sites: Vec<&AuditedSite> = report.rows().collect();
    let page = Page {
        report,
        summary: report.summary(),
        kept: report.audit.kept.map(|kept| kept.to_string()),
        keep: (report.audit.keep.iter())
            .map(|&at| &report.audit.sites[at])
            .map(|site| (site.kind.name(), site.nodes.join(", ")))
            .collect(),
        version: env!("CARGO_PKG_VERSION"),
        columns: COLUMNS,
        pictures: [magnitudes(&sites), harms(&sites, report.tolerance)].into_iter().flatten().collect(),
        rows: sites.iter().map(|site| row(site)).collect(),
    };
    page.render().map_err(|e| Error::Print(std::io::Error::other(e)))
}

/// Returns the largest magnitude of a site.
fn most(site: &AuditedSite) -> f64 {
    site.output.max(site.scores.unwrap_or(0.0)).max(site.sum.unwrap_or(0.0))
}

/// Draws the largest magnitude of each site, and the end of f16.
fn magnitudes(sites: &[&AuditedSite]) -> Option<Picture> {
    let title = "Largest magnitude: of scores, sums and outputs".to_owned();
    let legend = ["fits in f16", "beyond f16", "65504, where f16 ends"];
    bars(title, sites, &|site| Some(most(site)), &|x| format!("{x:.1e}"), MOST, legend)
}

/// Draws the error of the outputs with each site alone in f16, and the tolerance.
fn harms(sites: &[&AuditedSite], tolerance: f64) -> Option<Picture> {
    let title = "Error of the outputs with one site in f16".to_owned();
    let tip = |x: f64| if x < INFINITE { format!("{x:.1e}") } else { "not finite".to_owned() };
    let harm = |site: &AuditedSite| site.harm.map(|harm| harm.0.min(INFINITE));
    let legend = ["within the tolerance", "beyond it, or not finite", "the tolerance"];
    bars(title, sites, &harm, &tip, tolerance, legend)
}

/// Draws a bar for each site with a positive number. If there are too many, those with the largest numbers are drawn.
/// Bars beyond `limit` have the second colour, and a line marks the limit. The labels are row numbers of the table.
fn bars(
    title: String,
    sites: &[&AuditedSite],
    number: &dyn Fn(&AuditedSite) -> Option<f64>,
    tip: &dyn Fn(f64) -> String,
    limit: f64,
    legend: [&str; 3],
) -> Option<Picture> {
    let numbers = sites.iter().enumerate().filter_map(|(at, site)| Some((at, number(site)?)));
    let mut shown: Vec<(usize, f64)> = numbers.filter(|(_, x)| *x > 0.0 && x.is_finite()).collect();
    shown.sort_by(|a, b| b.1.total_cmp(&a.1));
    shown.truncate(BARS);
    shown.sort_by_key(|(at, _)| *at);
    (!shown.is_empty()).then_some(())?;
    // Bars begin below the smallest number, so that every bar is visible.
    let least = shown.iter().map(|(_, x)| *x).fold(limit, f64::min) / 4.0;
    let y = Scale::of(Axis::log(""), shown.iter().map(|(_, x)| *x).chain([limit, least]), BOTTOM, TOP)?;
    let mut picture = Picture::new(title, ["row of the table", ""], y.ticks());
    let [left, _, right, bottom] = picture.area;
    let step = (right - left) / shown.len() as f64;
    for (place, &(at, x)) in shown.iter().enumerate() {
        let (from, top) = (left + step * place as f64, y.at(x));
        let site = sites[at];
        picture.bars.push(Bar {
            x: from + step * 0.1,
            y: top,
            width: step * 0.8,
            height: bottom - top,
            color: usize::from(x > limit),
            tip: format!("{}: {} {}: {}", at + 1, site.kind.name(), site.node, tip(x)),
        });
        if place % STEP == 0 {
            picture.x_ticks.push(Tick { at: from + step / 2.0, label: (at + 1).to_string() });
        }
    }
    let name = legend[2].to_owned();
    let line = format!("M{left} {0}H{right}", y.at(limit));
    picture.curves.push(Curve { name, color: 2, line, band: String::new(), dots: Vec::new() });
    picture.legend = legend.iter().enumerate().map(|(color, name)| (color, (*name).to_owned())).collect();
    Some(picture)
}

#[cfg(test)]
mod tests {
    use super::super::print::tests::audit;
    use super::*;
    use crate::picture::faults;
    use elsa_onnx::Audit;

    #[test]
    fn a_page_has_its_verdict_and_fetches_nothing() {
        let mut audit = audit();
        audit.sites[0].node = "<script>alert('x')</script>".into();
        let report = AuditReport::new("m.onnx".into(), "1.20", 0.01, &audit);
        let page = page(&report).unwrap();
        assert!(!page.contains("<script"), "{page}");
        for fetch in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            assert!(!page.contains(fetch), "{fetch}");
        }
        assert_eq!(faults(&page), [""; 0]);
        for words in ["breaks", "<svg", "<rect", "attention", "trtexec", "a note", "inf"] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }

    #[test]
    fn bars_are_few_and_beyond_the_limit_in_another_colour() {
        let one = audit().sites[0].clone();
        let sites: Vec<AuditedSite> =
            (0..100).map(|i| AuditedSite { scores: Some(f64::from(i) * 1e3), ..one.clone() }).collect();
        let all = Audit { sites, ..audit() };
        let sites: Vec<&AuditedSite> = all.sites.iter().collect();
        let picture = magnitudes(&sites).unwrap();
        assert_eq!(picture.bars.len(), BARS);
        let beyond = picture.bars.iter().filter(|bar| bar.color == 1).count();
        // The scores of the sites from 66 on are beyond 65504, and the 32 largest are drawn.
        assert_eq!(beyond, BARS);
        let picture = magnitudes(&sites[50..80]).unwrap();
        assert_eq!(picture.bars.iter().filter(|bar| bar.color == 1).count(), 14);
        let [left, top, right, bottom] = picture.area;
        for bar in &picture.bars {
            assert!(
                bar.x >= left && bar.x + bar.width <= right && bar.y >= top && bar.height > 0.0,
                "{bar:?}"
            );
            assert!((bar.y + bar.height - bottom).abs() < 1e-9, "{bar:?}");
        }
        assert!(magnitudes(&[]).is_none());
    }
}
