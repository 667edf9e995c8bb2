//! Pictures of speeds and ratios against the number of tokens.

use crate::request::Failure;
use elsa_cli::picture::{Axis, Point, Raw, chart, sheet};
use std::collections::BTreeMap;
use std::path::Path;

/// The curves of all problems that differ only in their number of tokens.
#[derive(Default)]
struct Family {
    /// Name of the kernel of this library that ran, for the note below the charts.
    note: String,
    /// First the curves of the speeds, then the curves of the ratios to peers.
    charts: [Vec<Raw>; 2],
}

/// The pictures of a run: one for each family of problems.
pub struct Pictures {
    /// Labels of the y axes, first for the speeds, then for the ratios.
    axes: [&'static str; 2],
    families: BTreeMap<String, Family>,
}

impl Pictures {
    pub const fn new(axes: [&'static str; 2]) -> Pictures {
        Pictures { axes, families: BTreeMap::new() }
    }

    /// Adds the points of a problem with `tokens` tokens to its family. `charts` contains the speeds, then the ratios.
    /// Each number comes with the name of the curve that receives its point.
    pub fn add(&mut self, family: String, note: &str, tokens: usize, charts: [Vec<(String, f64)>; 2]) {
        let family = self.families.entry(family).or_default();
        note.clone_into(&mut family.note);
        for (curves, points) in family.charts.iter_mut().zip(charts) {
            for (name, y) in points {
                let point =
                    Point { x: tokens as f64, y, band: None, tip: format!("{tokens} tokens: {y:.4}") };
                match curves.iter_mut().find(|curve| curve.name == name) {
                    Some(curve) => curve.points.push(point),
                    None => curves.push(Raw { name, points: vec![point], faint: false }),
                }
            }
        }
    }

    /// Writes a file into `folder` for each family that has at least two numbers of tokens. Prints the path of each
    /// file.
    pub fn write(self, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder)?;
        let mut drawn = 0;
        for (name, Family { note, charts }) in self.families {
            let charts = charts.into_iter().zip(self.axes).filter_map(|(curves, axis)| {
                let chart = chart(name.clone(), [Axis::log("tokens"), Axis::linear(axis)], curves, true)?;
                Some((chart, vec![note.clone()]))
            });
            let charts: Vec<_> = charts.collect();
            if charts.is_empty() {
                continue;
            }
            let path = folder.join(format!("{}.svg", name.replace(", ", "-").replace([' ', '=', ':'], "-")));
            std::fs::write(&path, sheet(&name, &charts)?)?;
            println!("{}", path.display());
            drawn += 1;
        }
        if drawn == 0 {
            return Err("no two problems differ only in their tokens: nothing to draw".into());
        }
        Ok(())
    }
}
