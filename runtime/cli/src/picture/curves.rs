//! Curves: points, lines and bands. Points that are not finite are skipped.

use super::parts::{BOTTOM, COLORS, Curve, Dot, Picture, TOP};
use super::scale::{Axis, Scale};

/// A point of a curve, in the units of the axes.
#[derive(Debug)]
pub struct Point {
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis.
    pub y: f64,
    /// Low and high values on the y axis, if the point has them.
    pub band: Option<(f64, f64)>,
    /// Tooltip.
    pub tip: String,
}

impl Point {
    /// Creates a point without a band.
    #[must_use]
    pub fn new(x: f64, y: f64, tip: String) -> Point {
        Point { x, y, band: None, tip }
    }
}

/// A curve to be drawn, in the units of the axes.
#[derive(Debug)]
pub struct Raw {
    /// Name in the legend.
    pub name: String,
    /// Points in any order.
    pub points: Vec<Point>,
    /// `true` if the curve has the last colour, which is faint.
    pub faint: bool,
}

impl Raw {
    /// Creates a curve that is not faint.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = Point>) -> Raw {
        Raw { name: name.into(), points: points.into_iter().collect(), faint: false }
    }
}

/// Draws curves; `None` if all points have the same `x`. `x` and `y` are the axes. `dots` marks each point with a dot.
#[must_use]
pub fn chart(title: String, [x, y]: [Axis; 2], mut raw: Vec<Raw>, dots: bool) -> Option<Picture> {
    for curve in &mut raw {
        curve.points.retain(|point| point.x.is_finite() && point.y.is_finite());
        curve.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    raw.retain(|curve| !curve.points.is_empty());
    let first = raw.first()?.points.first()?.x;
    if raw.iter().flat_map(|curve| &curve.points).all(|point| point.x == first) {
        return None;
    }
    let points = || raw.iter().flat_map(|curve| &curve.points);
    let all =
        points().flat_map(|Point { y, band, .. }| [*y, band.map_or(*y, |b| b.0), band.map_or(*y, |b| b.1)]);
    let names = [x.name, y.name];
    let y = Scale::of(y, all, BOTTOM, TOP)?;
    let mut picture = Picture::new(title, names, y.ticks());
    let [left, _, right, _] = picture.area;
    let x = Scale::of(x, points().map(|point| point.x), left, right)?;
    let path = |places: &mut dyn Iterator<Item = (f64, f64)>| {
        let words: Vec<String> = places
            .enumerate()
            .map(|(i, (a, b))| format!("{}{} {}", if i == 0 { "M" } else { "L" }, x.at(a), y.at(b)))
            .collect();
        words.join("")
    };
    let curve = |(place, curve): (usize, &Raw)| {
        let banded = || curve.points.iter().filter_map(|point| Some((point.x, point.band?)));
        let band = if banded().count() > 1 {
            let above = banded().map(|(x, band)| (x, band.1));
            let below: Vec<_> = banded().map(|(x, band)| (x, band.0)).collect();
            path(&mut above.chain(below.into_iter().rev())) + "Z"
        } else {
            String::new()
        };
        let dot = |point: &Point| Dot { x: x.at(point.x), y: y.at(point.y), tip: point.tip.clone() };
        Curve {
            name: curve.name.clone(),
            color: if curve.faint { COLORS - 1 } else { place % (COLORS - 1) },
            line: path(&mut curve.points.iter().map(|point| (point.x, point.y))),
            band,
            dots: curve.points.iter().filter(|_| dots).map(dot).collect(),
        }
    };
    picture.curves = raw.iter().enumerate().map(curve).collect();
    picture.legend = picture.curves.iter().map(|curve| (curve.color, curve.name.clone())).collect();
    picture.x_ticks = x.ticks();
    Some(picture)
}
