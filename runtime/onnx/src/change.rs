//! The nodes that replace an attention.

use super::array::{Array, Kind};
use super::find::{Action, AttentionPattern, Reason, Site, Term};
use super::forms::{Axes, AxisOrder, OperandLayout, layout};
use super::masks::{self, Piece};
use super::node::{Attribute, Node};
use super::positions::{self, Diagonal};
use super::size::Size;
use std::collections::HashSet;

/// Name of the operator that replaces attention.
pub const OPERATOR: &str = "ElsaAttention";
/// Name of the operator that replaces linear attention.
pub const LINEAR_OPERATOR: &str = "ElsaLinearAttention";
/// Name of the operator that replaces a convolution with a state.
pub const CONV_OPERATOR: &str = "ElsaConv";
/// Name of the operator that replaces a selective scan.
pub const SCAN_OPERATOR: &str = "ElsaSelectiveScan";
/// Domain of these operators.
pub const DOMAIN: &str = "ai.elsa";

/// Role of a tensor that the new nodes read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Queries, keys or values.
    Operand,
    /// A mask that is added to the scores.
    Added,
    /// A mask that is subtracted from the scores.
    Subtracted,
    /// A boolean mask. A score is kept if its mask element equals this value.
    Condition(bool),
    /// Numbers that queries are multiplied or divided by: a single one, or one for each head.
    Factor,
    /// Numbers of keys.
    Length,
}

/// Nodes that replace an attention.
#[derive(Clone, Debug)]
pub struct Change {
    /// New nodes in order. One of them is the operator.
    pub nodes: Vec<Node>,
    /// New constants that the new nodes read, by name.
    pub constants: Vec<(String, Array)>,
    /// Tensors of the graph that the new nodes read, with their roles.
    pub reads: Vec<(String, Role)>,
    /// Name of the tensor that the new nodes produce, and index of the node that produced this tensor before.
    pub output: (String, usize),
    /// Names of other outputs of that node, which the new nodes produce too.
    pub more: Vec<String>,
    /// Names of the graph's tensors on the path from the scores to `made`. The second to last axis of each of these
    /// tensors is the axis of the queries.
    pub walk: HashSet<String>,
    /// Names of the graph's tensors from the product of queries and keys to the Transpose of the scores. The last axis
    /// of each of these tensors is the axis of the queries.
    pub turned_walk: HashSet<String>,
    /// Scores with several readers, with the reason why the change is not made unless all readers go.
    pub shared: Vec<(String, Reason)>,
    /// Name of the attention's output in the graph, before the nodes that change the layout of this output.
    pub attention_output: String,
    /// The number of keys.
    pub keys: Size,
    /// `true` if attributes of the operator replace the masks that depend only on positions.
    pub by_position: bool,
    /// Description of the replaced attention, for the user.
    pub words: String,
}

impl Change {
    /// Returns the new node that is the operator.
    #[must_use]
    pub fn operator(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| node.op == OPERATOR)
    }
}

/// Creates a node of a standard ONNX operator.
fn plain(op: &str, inputs: Vec<String>, output: String) -> Node {
    Node { name: output.clone(), op: op.into(), inputs, outputs: vec![output], ..Node::default() }
}

/// Collects the nodes and constants of a change, and creates their names.
pub struct Builder<'a> {
    prefix: &'a str,
    /// Nodes in order.
    pub nodes: Vec<Node>,
    /// Constants that the nodes read, by name.
    pub constants: Vec<(String, Array)>,
    /// Tensors of the graph that the nodes read, with their roles.
    pub reads: Vec<(String, Role)>,
}

impl<'a> Builder<'a> {
    /// Creates a builder for nodes and constants whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &'a str) -> Builder<'a> {
        Builder { prefix, nodes: vec![], constants: vec![], reads: vec![] }
    }

    /// Returns the change that replaces one node by the nodes of this builder. `output` is as in [`Change::output`]; the
    /// node has no other outputs, no scores of it are shared, and no mask depends on positions.
    #[must_use]
    pub fn change(self, output: (String, usize), words: String) -> Change {
        Change {
            nodes: self.nodes,
            constants: self.constants,
            reads: self.reads,
            more: vec![],
            walk: [output.0.clone()].into(),
            turned_walk: [].into(),
            shared: vec![],
            attention_output: output.0.clone(),
            keys: Size::from(0),
            by_position: false,
            words,
            output,
        }
    }

    /// Returns the text with which all names begin.
    #[must_use]
    pub fn prefix(&self) -> &'a str {
        self.prefix
    }

    /// Creates a name that no node or constant has.
    #[must_use]
    pub fn name(&self, what: &str) -> String {
        format!("{}_{what}{}", self.prefix, self.nodes.len() + self.constants.len())
    }

    /// Adds a node of a standard ONNX operator, and returns the name of its output.
    pub fn node(&mut self, what: &str, op: &str, inputs: &[&str]) -> String {
        let output = self.name(what);
        self.nodes.push(plain(op, inputs.iter().map(|&name| name.to_owned()).collect(), output.clone()));
        output
    }

    /// Adds a constant, and returns its name.
    pub fn constant(&mut self, what: &str, array: Array) -> String {
        let name = self.name(what);
        self.constants.push((name.clone(), array));
        name
    }

    /// Transposes a tensor.
    pub fn transposed(&mut self, name: &str, order: &[i64]) -> String {
        let turned = self.node("turned", "Transpose", &[name]);
        self.set("perm", Attribute::Ints(order.to_vec()));
        turned
    }

    /// Gives the output of the last node the name `output`.
    pub fn rename_last(&mut self, output: &str) {
        if let Some(node) = self.nodes.last_mut() {
            node.outputs = vec![output.to_owned()];
        }
    }

    /// Sets an attribute of the last node.
    pub fn set(&mut self, name: &str, value: Attribute) {
        if let Some(node) = self.nodes.last_mut() {
            node.attributes.insert(name.to_owned(), value);
        }
    }

    /// Adds a constant of integers with one axis.
    pub fn ints(&mut self, what: &str, all: impl IntoIterator<Item = i64>) -> String {
        let data: Vec<f64> = all.into_iter().map(|n| n as f64).collect();
        self.constant(what, Array::new(Kind::I64, vec![data.len()], data))
    }

    /// Adds a constant with one integer and no axis.
    pub fn integer(&mut self, x: i64) -> String {
        self.constant("integer", Array::new(Kind::I64, vec![], vec![x as f64]))
    }

    /// Removes an axis of a tensor: keeps index `i` of this axis.
    pub fn picked(&mut self, name: &str, axis: i64, i: i64) -> String {
        let i = self.integer(i);
        let part = self.node("part", "Gather", &[name, &i]);
        self.set("axis", Attribute::Int(axis));
        part
    }

    /// Keeps the indices from `from` up to `to` of an axis of a tensor.
    pub fn sliced(&mut self, name: &str, axis: i64, from: i64, to: i64) -> String {
        let [from, to, axis] = [from, to, axis].map(|n| self.ints("cut", [n]));
        self.node("part", "Slice", &[name, &from, &to, &axis])
    }

    /// Adds nodes that compute the size of an axis of a tensor, without an axis.
    pub fn size(&mut self, name: &str, axis: i64) -> String {
        let shape = self.node("shape", "Shape", &[name]);
        self.picked(&shape, 0, axis)
    }

    /// Adds nodes that compute the sizes of the axes `axes` of a tensor.
    pub fn sizes(&mut self, name: &str, axes: std::ops::Range<usize>) -> String {
        let shape = self.node("shape", "Shape", &[name]);
        let axes = self.ints("axes", axes.map(|axis| i64::try_from(axis).unwrap_or(i64::MAX)));
        self.node("sizes", "Gather", &[&shape, &axes])
    }

    /// Reshapes a tensor to the sizes in the tensors `parts`, one after another.
    pub fn reshaped(&mut self, name: &str, parts: &[&str]) -> String {
        let target = self.node("target", "Concat", parts);
        self.set("axis", Attribute::Int(0));
        self.node("reshaped", "Reshape", &[name, &target])
    }

    /// Records that the nodes read a tensor of the graph.
    pub fn read(&mut self, name: &str, role: Role) {
        if self.reads.iter().all(|(other, _)| other != name) {
            self.reads.push((name.to_owned(), role));
        }
    }
}

/// Attributes and inputs of the operator that replace the masks.
#[derive(Default)]
struct Masks {
    diagonal: Diagonal,
    by_position: bool,
    table: Option<([usize; 2], Array)>,
    shift: Option<([usize; 2], [usize; 2])>,
    mask: Option<String>,
}

/// Builds the nodes that replace the attention `found`. The names of the new nodes begin with `prefix`. If
/// `by_position` is set, attributes of the operator replace masks that depend only on positions.
///
/// # Errors
/// Returns the reason why the attention is not replaced.
pub fn of(
    site: &Site<'_>,
    found: &AttentionPattern,
    prefix: &str,
    by_position: bool,
) -> Result<Change, Reason> {
    let layout = layout(site, found)?;
    let kinds = [0, 1, 2].map(|i| site.symbols.kind(&layout.operands[i].0));
    let kind = match kinds {
        [Some(q), Some(k), Some(v)] if q == k && q == v && (q == Kind::F32 || q == Kind::F16) => q,
        _ => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.map_or("unknown", Kind::name)).collect();
            return Err(format!(
                "its operands are {}; those of one type, f32 or f16, are replaced",
                names.join(", ")
            ));
        }
    };
    let mut b = Builder::new(prefix);
    let masks = masks(site, found, &layout, kind, by_position, &mut b)?;
    let mut inputs = Vec::new();
    for (i, (name, form)) in layout.operands.iter().enumerate() {
        b.read(name, Role::Operand);
        let reshaped = layout.axes.reshaped(i).filter(|_| layout.form == AxisOrder::Heads);
        let own = [AxisOrder::Heads, AxisOrder::Components].contains(form);
        let mut name = name.clone();
        if let Some((first, start)) = reshaped.filter(|_| own) {
            let rank = site.symbols.shape(&name).map_or(start, <[Size]>::len);
            let (first, rest) = (b.ints("first", first.iter().copied()), b.sizes(&name, start..rank));
            name = b.reshaped(&name, &[&first, &rest]);
        }
        inputs.push(match (form, layout.form) {
            (AxisOrder::Tokens, _) => b.transposed(&name, &[0, 2, 1, 3]),
            (AxisOrder::Components, AxisOrder::Rows) => b.transposed(&name, &[0, 2, 1]),
            (AxisOrder::Components, _) => b.transposed(&name, &[0, 1, 3, 2]),
            _ => name,
        });
    }
    if layout.form == AxisOrder::Packed {
        inputs[1..].iter_mut().for_each(String::clear);
    }
    for (name, divides) in &found.factors {
        let found = site.symbols.kind(name);
        if found != Some(kind) {
            return Err(format!(
                "its scale '{name}' is computed in {}, and its queries are {}",
                found.map_or("unknown", Kind::name),
                kind.name()
            ));
        }
        let rank = |name: &str| site.symbols.shape(name).map(<[Size]>::len);
        if rank(name) > rank(&layout.operands[0].0) {
            return Err(format!("its scale '{name}' has more axes than its queries"));
        }
        b.read(name, Role::Factor);
        inputs[0] = b.node("scaled", if *divides { "Div" } else { "Mul" }, &[&inputs[0].clone(), name]);
    }
    let scale = found.scale * layout.factor;
    if !(scale.is_finite() && (scale as f32).is_normal()) {
        return Err(format!("its scale is {scale}"));
    }
    let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let pair = |[a, b]: [usize; 2]| Attribute::Ints(vec![size(a), size(b)]);
    // The output has the axes of the products.
    let outer = layout.axes.outer().filter(|_| layout.form == AxisOrder::Heads);
    let output = &layout.output.0;
    let attended = if outer.is_some() { b.name("attended") } else { output.clone() };
    let mut node = plain(OPERATOR, vec![], attended.clone());
    node.name = prefix.to_owned();
    node.domain = DOMAIN.into();
    let mut set = |name: &str, value: Attribute| node.attributes.insert(name.to_owned(), value);
    let heads = &layout.axes.heads;
    // If the axis of heads is free, the operator reads the number of heads from the tensors.
    if let Some(heads) = heads.known() {
        set("num_heads", Attribute::Int(heads));
    }
    set("scale", Attribute::Float(scale as f32));
    let mut words = format!("{heads} heads of {}, scale {}", layout.axes.dim, scale as f32);
    if !found.factors.is_empty() {
        words += if site.scales_heads(found) { " times one for each head" } else { " times a computed one" };
    }
    if let Some(kv_heads) = layout.kv_heads {
        set("kv_num_heads", Attribute::Int(size(kv_heads)));
        words += &format!(", {kv_heads} KV heads");
    }
    if layout.form == AxisOrder::Packed {
        set("packed", Attribute::Int(1));
        words += ", packed";
    }
    let Diagonal { causal, last, window: [before, after] } = masks.diagonal;
    if causal {
        set("is_causal", Attribute::Int(1));
        words += ", causal";
    }
    if last {
        set("align_last", Attribute::Int(1));
        words += " from the last key";
    }
    if before.or(after).is_some() {
        set("window", Attribute::Ints(vec![before.unwrap_or(-1), after.unwrap_or(-1)]));
        before.iter().for_each(|n| words += &format!(", {n} keys before"));
        after.iter().for_each(|n| words += &format!(", {n} keys after"));
    }
    if let Some(cap) = found.softcap {
        set("softcap", Attribute::Float(cap as f32));
        words += &format!(", soft cap {cap}");
    }
    inputs.push(masks.mask.clone().unwrap_or_default());
    if masks.mask.is_some() {
        words += ", mask";
    }
    if let Some((grid, table)) = masks.table {
        set("grid", pair(grid));
        words += &format!(", table of {} x {} tokens", grid[0], grid[1]);
        inputs.push(b.constant("table", table));
    }
    if let Some((picture, shift)) = masks.shift {
        set("picture", pair(picture));
        set("shift", pair(shift));
        words += &format!(", shift {} x {} in {} x {}", shift[0], shift[1], picture[0], picture[1]);
    }
    while inputs.last().is_some_and(String::is_empty) {
        inputs.pop();
    }
    node.inputs = inputs;
    b.nodes.push(node);
    if let Some(outer) = outer {
        let mut sizes = vec![b.sizes(&attended, 2..4)];
        if outer > 0 {
            sizes.insert(0, b.sizes(&layout.operands[0].0, 0..outer));
        }
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        b.reshaped(&attended, &sizes);
        b.rename_last(output);
    }
    Ok(Change {
        nodes: b.nodes,
        constants: b.constants,
        reads: b.reads,
        output: layout.output,
        more: vec![],
        walk: found.walk.iter().cloned().collect(),
        turned_walk: found.turned_walk.iter().cloned().collect(),
        shared: found.shared.clone(),
        attention_output: found.outputs[0].0.clone(),
        keys: layout.axes.keys,
        by_position: masks.by_position,
        words,
    })
}

/// Decides, for each mask of the attention, which attribute or input of the operator replaces the mask.
fn masks(
    site: &Site<'_>,
    found: &AttentionPattern,
    layout: &OperandLayout,
    kind: Kind,
    by_position: bool,
    b: &mut Builder<'_>,
) -> Result<Masks, Reason> {
    let (axes, terms) = (&layout.axes, &found.terms);
    let kept: Vec<_> =
        terms.iter().map(|term| positions::mask_band(site, term, axes).filter(|_| by_position)).collect();
    let (diagonal, used) = positions::diagonal(&kept, found.causal, axes);
    let by_position = used.contains(&true);
    let mut all = Masks { diagonal, by_position, ..Masks::default() };
    let mut rest: Vec<(&Term, Option<Piece>)> = Vec::new();
    for (term, _) in terms.iter().zip(&used).filter(|(_, used)| !**used) {
        let Some(piece) = masks::piece(site, term, axes) else {
            rest.push((term, None));
            continue;
        };
        if masks::is_nothing(&piece, axes) {
            continue;
        }
        // A bias table has the positions of a picture, so it excludes a diagonal.
        if all.table.is_none()
            && all.diagonal == Diagonal::default()
            && let Some((grid, table)) = masks::table(&piece, axes)
            && let Some(heads) = axes.heads.known().and_then(|n| usize::try_from(n).ok())
        {
            let shape = vec![table.len() / heads, heads];
            all.table = Some((grid, Array::new(kind, shape, table)));
            continue;
        }
        rest.push((term, Some(piece)));
    }
    if let Some((grid, _)) = all.table {
        rest.retain(|(_, piece)| {
            let shift = piece.as_ref().filter(|_| all.shift.is_none());
            match shift.and_then(|piece| masks::shift(piece, axes, grid)) {
                Some(shift) => {
                    all.shift = Some(shift);
                    false
                }
                None => true,
            }
        });
    }
    let only = rest.len() == 1;
    for (term, piece) in rest {
        let mut name = mask(site, term, piece, axes, only, b)?;
        // Several masks are added to each other, so all must have one type.
        let half = site.symbols.kind(&term.name) == Some(Kind::F16);
        if !only && half && !matches!(term.action, Action::Choose { .. }) {
            name = b.node("wide", "Cast", &[&name]);
            b.set("to", Attribute::Int(Kind::F32.0));
        }
        all.mask = Some(match all.mask.take() {
            None => name,
            Some(other) => b.node("masks", "Add", &[&other, &name]),
        });
    }
    if let Some(name) = &all.mask {
        let made = |name: &str| {
            b.constants.iter().any(|(other, _)| other == name)
                || b.nodes.iter().any(|node| node.outputs[0] == name)
        };
        let found = if made(name) { Some(Kind::F32) } else { site.symbols.kind(name) };
        if !found.is_some_and(|found| found == kind || found == Kind::F32 || found == Kind::BOOL) {
            return Err(format!(
                "its mask is {}; allowed: bool, f32 or {}",
                found.map_or("unknown", Kind::name),
                kind.name()
            ));
        }
    }
    Ok(all)
}

/// Returns the name of a tensor that becomes the operator's mask or a part of this mask.
fn mask(
    site: &Site<'_>,
    term: &Term,
    piece: Option<Piece>,
    axes: &Axes,
    only: bool,
    b: &mut Builder<'_>,
) -> Result<String, Reason> {
    let Some(shape) = site.symbols.shape(&term.name) else {
        return Err(format!("the shape of its mask '{}' does not follow from the model", term.name));
    };
    let wanted = masks::axes(shape, masks::scores(site, term)?, axes)?;
    let mut padded = vec![Size::from(1); 4usize.saturating_sub(shape.len())];
    padded.extend_from_slice(shape);
    let direct = padded == wanted && term.reshaped.is_none();
    if !direct && !wanted[0].is(1) && wanted[0] != axes.batch {
        return Err(format!(
            "its mask is one of {} windows and cannot be broadcast to a batch of {}",
            wanted[0], axes.batch
        ));
    }
    let choose = matches!(term.action, Action::Choose { .. });
    if let Some(piece) = piece.filter(|_| choose || !direct) {
        return Ok(b.constant("mask", Array { kind: Kind::F32, ..piece }));
    }
    let mut name = term.reshaped.clone().unwrap_or_else(|| term.name.clone());
    b.read(&name, role(term.action));
    if !direct {
        let free = |sizes: &[Size]| sizes.iter().filter(|size| size.known().is_none()).count();
        if free(&wanted[..2]) > 1 {
            return Err("its mask has several free axes and cannot be broadcast as it is".into());
        }
        let number = |size: &Size| size.known().unwrap_or(-1);
        name = if free(&wanted) <= 1 {
            let target = b.ints("shape", wanted.iter().map(number));
            b.node("mask", "Reshape", &[&name, &target])
        } else if term.reshaped.is_some() {
            return Err("its mask has several free axes and cannot be broadcast as it is".into());
        } else {
            // The mask's last two axes stay as they are.
            let first = b.ints("first", wanted[..2].iter().map(number));
            let rest = b.sizes(&name, shape.len().saturating_sub(2)..shape.len());
            b.reshaped(&name, &[&first, &rest])
        };
    }
    match term.action {
        Action::Add => Ok(name),
        Action::Subtract => Ok(b.node("mask", "Neg", &[&name])),
        Action::Choose { keeps: true, fill: f64::NEG_INFINITY } if only => Ok(name),
        Action::Choose { keeps: false, fill: f64::NEG_INFINITY } if only => {
            Ok(b.node("mask", "Not", &[&name]))
        }
        Action::Choose { keeps, fill } => {
            let scalar = |x: f64| Array::new(Kind::F32, vec![], vec![x]);
            let (zero, low) =
                (b.constant("zero", scalar(0.0)), b.constant("low", scalar(masks::lowest(fill))));
            let (a, c) = if keeps { (&zero, &low) } else { (&low, &zero) };
            Ok(b.node("mask", "Where", &[&name, a, c]))
        }
    }
}

fn role(action: Action) -> Role {
    match action {
        Action::Add => Role::Added,
        Action::Subtract => Role::Subtracted,
        Action::Choose { keeps, .. } => Role::Condition(keeps),
    }
}
