//! A picture, and the places of its texts.

use super::text::{BELOW, width};

/// Width of every picture in SVG units. On a small screen, a unit is a pixel.
pub const WIDTH: f64 = 344.0;
/// Top edge of the area that the curves or bars of a picture with axes fill.
pub const TOP: f64 = 20.0;
/// Bottom edge of this area.
pub const BOTTOM: f64 = 206.0;
/// Distance of this area from the right edge of the picture.
const RIGHT: f64 = 18.0;
/// Distance between a label of the y axis and the area.
const SPACE: f64 = 6.0;
/// Distance of texts from the left edge of the picture.
const MARGIN: f64 = 2.0;
/// Distance from the bottom edge of the area to the baseline of the first line below it.
const FIRST: f64 = 18.0;
/// Distance between the lines below the area.
const NEXT: f64 = 16.0;
/// Number of curve colours. The last colour is faint.
pub const COLORS: usize = 8;

/// A mark of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Position along the axis, in SVG units.
    pub at: f64,
    /// Text at the mark.
    pub label: String,
}

/// A measured point.
#[derive(Debug, PartialEq)]
pub struct Dot {
    /// Distance from the left edge of the picture.
    pub x: f64,
    /// Distance from the top edge of the picture.
    pub y: f64,
    /// Tooltip.
    pub tip: String,
}

/// A curve.
#[derive(Debug, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Index of the colour.
    pub color: usize,
    /// SVG path of the line.
    pub line: String,
    /// SVG path of the area between low and high values; empty if the points have no low and high values.
    pub band: String,
    /// Marked points of the curve.
    pub dots: Vec<Dot>,
}

/// A bar.
#[derive(Debug, PartialEq)]
pub struct Bar {
    /// Distance from the left edge of the picture.
    pub x: f64,
    /// Distance from the top edge of the picture.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// Index of the colour.
    pub color: usize,
    /// Tooltip.
    pub tip: String,
}

/// Cells of a map that have the same shade.
#[derive(Debug, PartialEq)]
pub struct Shade {
    /// Opacity of the colour, from 0 to 1.
    pub share: f64,
    /// SVG path that draws the cells.
    pub path: String,
}

/// A text at its place.
#[derive(Debug, PartialEq)]
pub struct Label {
    /// Distance of the anchor from the left edge.
    pub x: f64,
    /// Distance of the baseline from the top edge.
    pub y: f64,
    /// Part of the text that is at `x`: `start`, `middle` or `end`.
    pub anchor: &'static str,
    /// The text.
    pub text: String,
}

/// A picture. Its title and its legend are outside the drawing.
#[derive(Debug, Default, PartialEq)]
pub struct Picture {
    /// Title.
    pub title: String,
    /// Name of the x axis.
    pub x_name: String,
    /// Name of the y axis.
    pub y_name: String,
    /// Marks of the x axis.
    pub x_ticks: Vec<Tick>,
    /// Names of groups of these marks, each at the middle of its group.
    pub x_groups: Vec<Tick>,
    /// Marks of the y axis.
    pub y_ticks: Vec<Tick>,
    /// Cells of a map, grouped by shade.
    pub shades: Vec<Shade>,
    /// Bars, which are drawn as separate rectangles.
    pub bars: Vec<Bar>,
    /// Curves.
    pub curves: Vec<Curve>,
    /// Entries of the legend: the index of a colour, and the name that belongs to the colour.
    pub legend: Vec<(usize, String)>,
    /// Left, top, right and bottom edges of the area that curves, bars and cells fill.
    pub area: [f64; 4],
}

impl Picture {
    /// Creates a picture with nothing but its axes. The area leaves room for the labels of `y_ticks`.
    #[must_use]
    pub fn new(title: String, [x_name, y_name]: [&str; 2], y_ticks: Vec<Tick>) -> Picture {
        let widest = y_ticks.iter().map(|tick| width(&tick.label, false)).fold(0.0, f64::max);
        let area = [(MARGIN + widest + SPACE).ceil(), TOP, WIDTH - RIGHT, BOTTOM];
        Picture {
            title,
            x_name: x_name.to_owned(),
            y_name: y_name.to_owned(),
            y_ticks,
            area,
            ..Picture::default()
        }
    }

    /// Returns the baseline of a line below the area.
    fn below(&self, line: usize) -> f64 {
        self.area[3] + FIRST + NEXT * line as f64
    }

    /// Returns the number of lines with labels of the x axis.
    fn label_lines(&self) -> usize {
        usize::from(!self.x_ticks.is_empty()) + usize::from(!self.x_groups.is_empty())
    }

    /// Returns the height of the picture in SVG units.
    #[must_use]
    pub fn height(&self) -> f64 {
        let lines = self.label_lines() + usize::from(!self.x_name.is_empty());
        let last = lines.checked_sub(1).map_or(self.area[3], |last| self.below(last) + BELOW);
        (last + MARGIN).ceil()
    }

    /// Returns the view box of the picture's SVG element.
    #[must_use]
    pub fn view_box(&self) -> String {
        format!("0 0 {WIDTH} {}", self.height())
    }

    /// Returns the lines of the grid, each as x and y of its begin and x and y of its end.
    #[must_use]
    pub fn grid(&self) -> Vec<[f64; 4]> {
        let [left, top, right, bottom] = self.area;
        let across = self.y_ticks.iter().map(|tick| [left, tick.at, right, tick.at]);
        let down = self.x_ticks.iter().map(|tick| [tick.at, top, tick.at, bottom]);
        across.chain(down).collect()
    }

    /// Returns the texts of both axes.
    #[must_use]
    pub fn labels(&self) -> Vec<Label> {
        let [left, _, right, _] = self.area;
        let label = |x: f64, y: f64, anchor, text: &str| Label { x, y, anchor, text: text.to_owned() };
        let mut labels = Vec::new();
        if !self.y_name.is_empty() {
            labels.push(label(MARGIN, TOP - SPACE - BELOW, "start", &self.y_name));
        }
        if !self.x_name.is_empty() {
            labels.push(label(right, self.below(self.label_lines()), "end", &self.x_name));
        }
        labels.extend(self.y_ticks.iter().map(|tick| label(left - SPACE, tick.at + 4.0, "end", &tick.label)));
        for (line, ticks) in [&self.x_ticks, &self.x_groups].into_iter().enumerate() {
            labels.extend(ticks.iter().map(|tick| label(tick.at, self.below(line), "middle", &tick.label)));
        }
        labels
    }
}
