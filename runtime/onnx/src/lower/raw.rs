//! Nodes as the file stores them, and copies of them with other names, inputs or attributes. A copy keeps all fields
//! that the rewriter does not read.

use crate::array::text;
use crate::model::{self, Model, ModelError};
use crate::node::{Attribute, Node};
use crate::wire::{self, Field, WireError, Writer};
use crate::write;
use std::collections::HashMap;
use std::ops::Range;

/// Returns the nodes of the main graph with the ranges of their messages in the file. The index of a node is its place.
///
/// # Errors
/// Returns no error for a model that [`Model::read`] has read.
pub fn nodes(model: &Model<'_>) -> Result<Vec<(Node, Range<usize>)>, ModelError> {
    let fields = wire::fields(model.file, model.graph.range.clone())?;
    let ranges = fields.into_iter().filter(|field| field.number == 1).map(|field| field.bytes());
    ranges.map(|range| range.map_err(ModelError::from).and_then(|range| read(model.file, range))).collect()
}

fn read(file: &[u8], range: Range<usize>) -> Result<(Node, Range<usize>), ModelError> {
    Ok((model::node(file, range.clone(), 0)?, range))
}

/// Changes of a node that keeps its operator.
#[derive(Clone, Debug, Default)]
pub struct Edit {
    /// New inputs, if they change.
    pub inputs: Option<Vec<String>>,
    /// Attributes to remove.
    pub without: Vec<&'static str>,
    /// Attributes to set, after attributes of the same names are removed.
    pub with: Vec<(&'static str, Attribute)>,
}

impl Edit {
    /// Returns the message of the node in `range` of `file` with these changes.
    ///
    /// # Errors
    /// Returns no error for a node that has been read.
    pub fn apply(&self, file: &[u8], range: Range<usize>) -> Result<Vec<u8>, WireError> {
        let mut w = Writer::default();
        for name in self.inputs.iter().flatten() {
            w.bytes(1, name.as_bytes());
        }
        for field in wire::fields(file, range)? {
            let goes = match field.number {
                1 => self.inputs.is_some(),
                5 => {
                    let name = attribute_name(file, &field)?;
                    self.without
                        .iter()
                        .chain(self.with.iter().map(|(name, _)| name))
                        .any(|gone| *gone == name)
                }
                _ => false,
            };
            if !goes {
                w.0.extend(&file[field.span]);
            }
        }
        let attributes = self.with.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        // A node without a name or an operator has only its attributes.
        let rest = write::message(&Node { attributes, ..Node::default() });
        for field in wire::fields(&rest, 0..rest.len())?.into_iter().filter(|field| field.number == 5) {
            w.0.extend(&rest[field.span]);
        }
        Ok(w.0)
    }
}

/// Returns the name of the attribute in `field` of a node.
fn attribute_name(file: &[u8], field: &Field) -> Result<String, WireError> {
    let name = wire::fields(file, field.bytes()?)?.into_iter().find(|field| field.number == 1);
    name.map_or(Ok(String::new()), |field| text(file, field.bytes()?))
}

/// Returns the range of the graph in the attribute `name` of the node in `range` of `file`.
///
/// # Errors
/// Returns no error for a node that has been read.
pub fn subgraph(file: &[u8], range: Range<usize>, name: &str) -> Result<Option<Range<usize>>, WireError> {
    for field in wire::fields(file, range)?.into_iter().filter(|field| field.number == 5) {
        if attribute_name(file, &field)? == name {
            let graph = wire::fields(file, field.bytes()?)?.into_iter().find(|field| field.number == 6);
            return graph.map(|graph| graph.bytes()).transpose();
        }
    }
    Ok(None)
}

/// Names of tensors, with the names that replace them.
pub type Renames = HashMap<String, String>;

/// Returns the message in `range` of `file` with new names of tensors in the fields whose numbers are in `named`. `inner`
/// returns new bytes for the message in a field, from the number of the field and the range of the message.
fn copied(
    file: &[u8],
    range: Range<usize>,
    names: &Renames,
    named: &[u32],
    inner: &dyn Fn(u32, Range<usize>) -> Result<Option<Vec<u8>>, WireError>,
) -> Result<Vec<u8>, WireError> {
    let mut w = Writer::default();
    for field in wire::fields(file, range)? {
        if named.contains(&field.number) {
            let name = text(file, field.bytes()?)?;
            w.bytes(field.number, names.get(&name).unwrap_or(&name).as_bytes());
            continue;
        }
        let message = field.bytes().ok().map(|range| inner(field.number, range)).transpose()?.flatten();
        match message {
            Some(message) => w.bytes(field.number, &message),
            None => w.0.extend(&file[field.span]),
        }
    }
    Ok(w.0)
}

/// Returns the message of the node in `range` of `file` with new names of tensors, also in the graphs in its attributes.
///
/// # Errors
/// Returns no error for a node that has been read.
pub fn renamed_node(file: &[u8], range: Range<usize>, names: &Renames) -> Result<Vec<u8>, WireError> {
    let graph = |number: u32, range: Range<usize>| match number {
        // Nodes, and declarations of outputs.
        1 => renamed_node(file, range, names).map(Some),
        12 => copied(file, range, names, &[1], &|_, _| Ok(None)).map(Some),
        _ => Ok(None),
    };
    let attribute = |number: u32, range: Range<usize>| match number {
        6 | 11 => copied(file, range, names, &[], &graph).map(Some),
        _ => Ok(None),
    };
    copied(file, range, names, &[1, 2], &|number, range| match number {
        5 => copied(file, range, &Renames::new(), &[], &attribute).map(Some),
        _ => Ok(None),
    })
}

/// Returns the message of the constant in `range` of `file` with a new name.
///
/// # Errors
/// Returns no error for a constant that has been read.
pub fn renamed_constant(file: &[u8], range: Range<usize>, names: &Renames) -> Result<Vec<u8>, WireError> {
    copied(file, range, names, &[8], &|_, _| Ok(None))
}
