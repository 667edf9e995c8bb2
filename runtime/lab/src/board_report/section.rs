//! A part of the report.

use askama::Template;
use elsa_cli::error::Error;
use elsa_cli::picture::Picture;
use std::io::{self, Write};

/// A part of the report: sentences, charts, a table, and text that is copied as it is.
#[derive(Debug, Default)]
pub struct Section {
    /// Title.
    pub title: &'static str,
    /// Sentences.
    pub words: Vec<String>,
    /// Charts, which only the page contains.
    pub charts: Vec<Picture>,
    /// Names of the table's columns.
    pub head: Vec<&'static str>,
    /// Rows of the table.
    pub rows: Vec<Vec<String>>,
    /// Text with line ends, such as a patch.
    pub block: String,
}

impl Section {
    /// Creates an empty section.
    pub fn new(title: &'static str) -> Section {
        Section { title, ..Section::default() }
    }

    /// Returns whether the section says nothing.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.rows.is_empty() && self.charts.is_empty() && self.block.is_empty()
    }

    /// Writes the section as text. All columns of the table are aligned.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n== {}", self.title)?;
        self.words.iter().try_for_each(|words| writeln!(out, "{words}"))?;
        let head = || self.head.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let table: Vec<Vec<String>> =
            if self.rows.is_empty() { Vec::new() } else { [vec![head()], self.rows.clone()].concat() };
        let width = |column: usize| {
            table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for row in &table {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        write!(out, "{}", self.block)
    }
}

/// Variables of the page's template.
#[derive(Template)]
#[template(path = "board.html")]
struct Page<'a> {
    version: &'static str,
    title: &'a str,
    emulated: bool,
    sections: &'a [Section],
}

/// Renders the page.
///
/// # Errors
/// Returns an error if the template fails. The page is rendered in memory, so no I/O can fail.
pub fn page(title: &str, emulated: bool, sections: &[Section]) -> Result<String, Error> {
    let page = Page { version: env!("CARGO_PKG_VERSION"), title, emulated, sections };
    page.render().map_err(|e| Error::Print(io::Error::other(e)))
}
