//! Pictures as SVG: curves, bars, and maps of queries and keys. Every command and the laboratory draw with this module.
//!
//! | module | content |
//! |---|---|
//! | `parts` | a picture: bars, cells, curves, marks of the axes, and the places of its texts |
//! | `scale` | axes: positions of numbers, marks at round numbers, and labels with units |
//! | `curves`, `heat` | the pictures that several commands draw |
//! | `sheet` | an SVG file of several pictures, each with its title, legend and notes |
//! | `text` | widths of texts, and texts divided into lines |
//! | `faults` | texts that overlap or leave their picture, for tests |
//!
//! Titles and legends of a page are HTML, and `templates/parts.html` draws everything else. Colours are those of the
//! style sheet, so they follow the reader's choice of light or dark.

mod curves;
mod faults;
mod heat;
mod parts;
mod scale;
mod sheet;
#[cfg(test)]
mod tests;
mod text;

pub use curves::{Point, Raw, chart};
pub use faults::faults;
pub use heat::HeatMap;
pub use parts::{BOTTOM, Bar, COLORS, Curve, Dot, Label, Picture, Shade, TOP, Tick, WIDTH};
pub use scale::{Axis, Quantity, Scale};
pub use sheet::sheet;
