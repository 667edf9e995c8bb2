//! Types, shapes and constant elements of the tensors of a model.

use crate::array::Kind;
use crate::find::Reason;
use crate::model::Model;
use crate::node::Node;
use crate::size::Size;
use crate::symbols::Symbols;
use crate::value::place;

/// Facts about the tensors of a model.
pub struct Facts<'a> {
    /// The model.
    pub model: &'a Model<'a>,
    /// Facts that hold for all sizes of the free axes.
    pub symbols: Symbols,
}

impl Facts<'_> {
    /// Returns the type of a tensor, from the nodes before it or from its declaration.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<Kind> {
        let graph = &self.model.graph;
        let mut declared = graph.infos.iter().chain(&graph.outputs).chain(&graph.inputs);
        let found = || declared.find(|declared| declared.name == name).map(|declared| declared.kind);
        self.symbols.kind(name).or_else(found).filter(|kind| kind.0 != 0)
    }

    /// Returns the type of a tensor of floating-point numbers.
    ///
    /// # Errors
    /// Returns the reason why a node that reads the tensor is not lowered.
    pub fn float(&self, name: &str) -> Result<Kind, Reason> {
        match self.kind(name) {
            Some(kind) if kind.is_float() => Ok(kind),
            Some(kind) => Err(format!("its input '{name}' is {}", kind.name())),
            None => Err(format!("the type of its input '{name}' does not follow from the model")),
        }
    }

    /// Returns the number of axes of a tensor.
    ///
    /// # Errors
    /// Returns the reason why a node that reads the tensor is not lowered.
    pub fn rank(&self, name: &str) -> Result<usize, Reason> {
        let graph = &self.model.graph;
        let mut declared = graph.infos.iter().chain(&graph.outputs);
        let told = || declared.find(|declared| declared.name == name)?.shape.as_ref().map(Vec::len);
        let found = self.symbols.shape(name).map(<[Size]>::len).or_else(told);
        found.ok_or_else(|| format!("the number of axes of '{name}' does not follow from the model"))
    }

    /// Returns the size of an axis of a tensor, if the axis is not free.
    #[must_use]
    pub fn size(&self, name: &str, axis: i64) -> Option<i64> {
        let shape = self.symbols.shape(name)?;
        shape.get(place(axis, shape.len())?)?.known()
    }

    /// Returns the elements of input `i` of a node, which is a constant of integers.
    ///
    /// # Errors
    /// Returns the reason why the node is not lowered.
    pub fn ints(&self, node: &Node, i: usize) -> Result<Vec<i64>, Reason> {
        let name = input(node, i)?;
        let found = self.symbols.numbers(name).map(|all| all.iter().map(|&x| x as i64).collect());
        found.ok_or_else(|| format!("its input '{name}' is not constant"))
    }
}

/// Returns the name of input `i` of a node.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn input(node: &Node, i: usize) -> Result<&str, Reason> {
    node.input(i).ok_or_else(|| format!("its input {i} is absent"))
}

/// Returns the name of the first output of a node.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn output(node: &Node) -> Result<&str, Reason> {
    let name = node.outputs.first().filter(|name| !name.is_empty());
    name.map(String::as_str).ok_or_else(|| "its first output is absent".to_owned())
}
