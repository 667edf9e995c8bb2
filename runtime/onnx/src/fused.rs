//! Replacement of attention that is a single node.

use super::array::{Array, Kind};
use super::change::{Builder, Change, DOMAIN, OPERATOR, Role};
use super::find::{Action, AttentionPattern, Reason, Site, Term};
use super::node::{Attribute, Node};
use super::single::{FusedNode, FusedSizes, Packing};
use super::size::{Size, shown};

/// Largest number of positions in a constant. More positions are computed by nodes.
const MANY: i64 = 1 << 12;

/// Returns the default scale of the scores.
fn default_scale(dim: &Size) -> Option<f64> {
    dim.known().filter(|&dim| dim > 0).map(|dim| 1.0 / (dim as f64).sqrt())
}

/// Refuses a causal node of ONNX Runtime if its numbers of queries and new keys differ, because ONNX Runtime then
/// aligns the last query with the last key.
fn check_diagonal(fused: &FusedNode<'_>, sizes: &FusedSizes) -> Result<(), Reason> {
    if fused.causal && fused.is_microsoft() && sizes.queries != sizes.keys {
        return Err("it is unidirectional over other numbers of queries and keys".into());
    }
    Ok(())
}

/// Describes the attention of fused node `n`, whose operands must have four axes and equal numbers of heads. The node
/// must have no other input than its operands and a mask.
///
/// # Errors
/// Returns the reason why the node is not replaced.
pub fn pattern(site: &Site<'_>, n: usize) -> Result<AttentionPattern, Reason> {
    let node = &site.graph.nodes[n];
    let fused = FusedNode::of(node).ok_or("it is no attention")?;
    fused.check()?;
    if !fused.is_plain() {
        return Err("it has more than operands and a mask".into());
    }
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| node.input(i)) else {
        return Err("queries, keys and values are in one tensor".into());
    };
    let sizes = FusedSizes::of(node, &|i| site.symbols.shape(node.input(i)?))?;
    check_diagonal(&fused, &sizes)?;
    if sizes.packing != Packing::Heads {
        return Err("its queries have no axis of heads".into());
    }
    let scale = fused.scale.or_else(|| default_scale(&sizes.dim));
    let scale = scale.ok_or("its head size is free, and so is its scale")?;
    let terms = match node.input(fused.mask) {
        Some(name) => {
            let truth = site.symbols.kind(name) == Some(Kind::BOOL);
            let fill = f64::NEG_INFINITY;
            let action = if truth { Action::Choose { keeps: true, fill } } else { Action::Add };
            vec![Term { name: name.to_owned(), reshaped: None, action, scores: None }]
        }
        None => vec![],
    };
    let mut found = AttentionPattern {
        operands: [q, k, v].map(|name| site.trace(name)),
        turned: [false; 2],
        scale,
        factors: vec![],
        softcap: Some(fused.softcap).filter(|&cap| cap != 0.0),
        causal: fused.causal,
        terms,
        walk: node.outputs.iter().take(1).cloned().collect(),
        turned_walk: vec![],
        shared: vec![],
        outputs: node.outputs.iter().take(1).map(|name| (name.clone(), n)).collect(),
    };
    site.layouts(&mut found);
    Ok(found)
}

/// The nodes of a replacement under construction, and the facts on which they depend.
struct Replacement<'a> {
    site: &'a Site<'a>,
    fused: FusedNode<'a>,
    sizes: FusedSizes,
    /// Number of keys, with the past.
    total: Size,
    b: Builder<'a>,
}

/// Builds the operator that replaces fused node `n` and reads the same tensors. Other nodes before and after the
/// operator compute the bias, the padding mask and the arrangement of packed tensors.
///
/// # Errors
/// Returns the reason why the node is not replaced.
pub fn same(site: &Site<'_>, n: usize, prefix: &str) -> Result<Change, Reason> {
    let node = &site.graph.nodes[n];
    let fused = FusedNode::of(node).ok_or("it is no attention")?;
    fused.check()?;
    let sizes = FusedSizes::of(node, &|i| site.symbols.shape(node.input(i)?))?;
    check_diagonal(&fused, &sizes)?;
    let total = sizes.total().ok_or("the number of its keys does not follow from the model")?;
    check_kinds(site, &fused)?;
    Replacement { site, fused, sizes, total, b: Builder::new(prefix) }.build(n)
}

/// Refuses queries, keys, values and a past of several types, or of another type than f32 and f16.
fn check_kinds(site: &Site<'_>, fused: &FusedNode<'_>) -> Result<(), Reason> {
    let names = [0, 1, 2, fused.past[0], fused.past[1]].into_iter().filter_map(|i| fused.node.input(i));
    let kinds: Vec<Option<Kind>> = names.map(|name| site.symbols.kind(name)).collect();
    let allowed = [Some(Kind::F32), Some(Kind::F16)].contains(&kinds[0]);
    if allowed && kinds.iter().all(|kind| *kind == kinds[0]) {
        return Ok(());
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.map_or("unknown", Kind::name)).collect();
    Err(format!("its operands are {}; those of one type, f32 or f16, are replaced", names.join(", ")))
}

impl Replacement<'_> {
    fn build(mut self, n: usize) -> Result<Change, Reason> {
        let node = self.fused.node;
        let output = node.outputs.first().ok_or("it has no output")?;
        let operands = self.operands()?;
        let mask = self.mask()?;
        let past = self.past();
        let lengths = node.input(self.fused.lengths).unwrap_or_default().to_owned();
        if !lengths.is_empty() {
            self.b.read(&lengths, Role::Length);
        }
        let packed = operands[1].is_empty();
        let mut words = String::new();
        for (is, what) in [
            (packed, "packed"),
            (self.fused.causal, "causal"),
            (node.input(self.fused.bias).is_some(), "bias"),
            (node.input(self.fused.padding).is_some(), "padding"),
            (!past[0].is_empty(), "past"),
            (!lengths.is_empty(), "lengths"),
        ] {
            if is {
                words += &format!(", {what}");
            }
        }
        let mut new = Node { op: OPERATOR.into(), domain: DOMAIN.into(), ..Node::default() };
        new.name = self.b.prefix().to_owned();
        new.inputs = operands.into_iter().chain([mask, String::new()]).chain(past).chain([lengths]).collect();
        while new.inputs.last().is_some_and(String::is_empty) {
            new.inputs.pop();
        }
        let FusedSizes { heads, kv_heads, dim, .. } = &self.sizes;
        let mut set = |name: &str, value: Attribute| new.attributes.insert(name.to_owned(), value);
        if let Some(heads) = heads.known() {
            set("num_heads", Attribute::Int(heads));
        }
        if let Some(kv_heads) = kv_heads.known().filter(|_| kv_heads != heads) {
            set("kv_num_heads", Attribute::Int(kv_heads));
        }
        // If the head size is free, the operator computes the same default scale at run time.
        let scale = self.fused.scale.or_else(|| default_scale(dim));
        if let Some(scale) = scale {
            set("scale", Attribute::Float(scale as f32));
        }
        if packed {
            set("packed", Attribute::Int(1));
        }
        if self.fused.causal {
            set("is_causal", Attribute::Int(1));
        }
        if self.fused.softcap != 0.0 {
            set("softcap", Attribute::Float(self.fused.softcap as f32));
        }
        let scale = scale.map_or_else(|| "of the head size".into(), |scale| (scale as f32).to_string());
        let words = format!("{heads} heads of {dim}, scale {scale}{words}");
        self.outputs(new, output);
        if self.b.nodes.len() > 1 && self.site.opset < 11 {
            return Err("its model has an operator set before 11, without the nodes that it needs".into());
        }
        let more = self.fused.presents().iter().filter(|name| !name.is_empty()).cloned().collect();
        Ok(Change { more, keys: self.total, ..self.b.change((output.clone(), n), words) })
    }

    /// Returns the operator's queries, keys and values. Keys and values have empty names if the first tensor is packed.
    fn operands(&mut self) -> Result<[String; 3], Reason> {
        let node = self.fused.node;
        let name = |i: usize| node.input(i).unwrap_or_default().to_owned();
        for i in 0..3 {
            if let Some(name) = node.input(i) {
                self.b.read(name, Role::Operand);
            }
        }
        let FusedSizes { packing, heads, kv_heads, dim, value_dim, .. } = &self.sizes;
        let widths = [(heads, dim), (kv_heads, dim), (kv_heads, value_dim)];
        let widths: Option<Vec<i64>> = widths.iter().map(|(heads, dim)| heads.times(dim)?.known()).collect();
        let b = &mut self.b;
        let mut all = match packing {
            Packing::Heads | Packing::Rows | Packing::HeadsOfKeys => [name(0), name(1), name(2)],
            Packing::PackedKeys => [name(0), rows_of(b, &name(1), 0), rows_of(b, &name(1), 1)],
            Packing::Packed => [0, 1, 2].map(|i| rows_of(b, &name(0), i)),
            Packing::Projected => {
                let alone = node.input(self.fused.past[0]).is_none() && self.fused.presents().is_empty();
                if alone && dim == value_dim {
                    return Ok([name(0), String::new(), String::new()]);
                }
                let widths =
                    widths.as_ref().ok_or("the widths of its operands do not follow from the model")?;
                let mut from = 0;
                let mut parts = <[String; 3]>::default();
                for (part, &width) in parts.iter_mut().zip(widths) {
                    let to = i64::saturating_add(from, width);
                    *part = b.sliced(&name(0), 2, from, to);
                    from = to;
                }
                parts
            }
        };
        if let Some(bias) = node.input(self.fused.bias) {
            let widths = widths.as_ref().ok_or("the widths of its operands do not follow from the model")?;
            b.read(bias, Role::Operand);
            let mut from = 0;
            for (operand, &width) in all.iter_mut().zip(widths).take(packing.biased()) {
                let to = i64::saturating_add(from, width);
                let part = b.sliced(bias, 0, from, to);
                *operand = b.node("biased", "Add", &[operand.as_str(), &part]);
                from = to;
            }
        }
        if *packing == Packing::HeadsOfKeys {
            let heads = heads.known().ok_or("it does not say its heads")?;
            let target = b.ints("heads", [0, 0, heads, -1]);
            let split = b.node("split", "Reshape", &[all[0].as_str(), &target]);
            all[0] = b.transposed(&split, &[0, 2, 1, 3]);
        }
        Ok(all)
    }

    /// Returns the operator's past keys and values; their names are empty if the node has no past.
    fn past(&mut self) -> [String; 2] {
        let node = self.fused.node;
        let past = self.fused.past.map(|i| node.input(i));
        past.into_iter().flatten().for_each(|name| self.b.read(name, Role::Operand));
        match past {
            [Some(keys), Some(values)] => [keys.to_owned(), values.to_owned()],
            [Some(both), None] => [0, 1].map(|i| self.b.picked(both, 0, i)),
            _ => [String::new(), String::new()],
        }
    }

    /// Returns the operator's mask: the sum of the node's mask and its padding mask. The name is empty if the node has
    /// neither.
    fn mask(&mut self) -> Result<String, Reason> {
        let node = self.fused.node;
        let padding = match node.input(self.fused.padding) {
            Some(name) => self.padding(name)?,
            None => String::new(),
        };
        let Some(mask) = node.input(self.fused.mask) else { return Ok(padding) };
        let kind = self.site.symbols.kind(mask);
        self.b.read(mask, if kind == Some(Kind::BOOL) { Role::Condition(true) } else { Role::Added });
        if padding.is_empty() {
            return Ok(mask.to_owned());
        }
        let mut wide = mask.to_owned();
        if kind != Some(Kind::F32) {
            wide = self.b.node("wide", "Cast", &[mask]);
            self.b.set("to", Attribute::Int(Kind::F32.0));
        }
        Ok(self.b.node("masks", "Add", &[&wide, &padding]))
    }

    /// Builds the mask that is added for the padding mask `name`. The result is empty if the padding mask has no
    /// effect.
    fn padding(&mut self, name: &str) -> Result<String, Reason> {
        let shape = self.site.symbols.shape(name);
        let shape = shape.ok_or("the shape of its padding mask does not follow from the model")?;
        let FusedSizes { batch, queries, .. } = &self.sizes;
        let times = |n: i64, more: i64| batch.times(&Size::from(n))?.plus(&Size::from(more));
        let counts = [(1, 0), (2, 0), (3, 2)].map(|(n, more)| times(n, more));
        let is_numbers = shape.len() == 1 && counts.iter().any(|n| n.as_ref() == shape.first());
        let (starts, whole) = (shape.first() == counts[1].as_ref(), shape.first() == Some(batch));
        let keeps = match shape {
            [_] if is_numbers => {
                self.b.read(name, Role::Length);
                self.between(name, starts, whole)
            }
            // One element for all keys changes no weight.
            [_, one] if one.is(1) => {
                self.b.read(name, Role::Condition(true));
                return Ok(String::new());
            }
            [rows, keys] if rows == batch && *keys == self.total => {
                self.b.read(name, Role::Condition(true));
                let attended = self.positive(name);
                let target = self.b.ints("target", [0, 1, 1, -1]);
                self.b.node("padding", "Reshape", &[&attended, &target])
            }
            [first, rows, keys] if first == batch && rows == queries && *keys == self.total => {
                self.b.read(name, Role::Condition(true));
                let attended = self.positive(name);
                let (first, rest) = (self.b.sizes(&attended, 0..1), self.b.sizes(&attended, 1..3));
                let one = self.b.ints("one", [1]);
                self.b.reshaped(&attended, &[&first, &one, &rest])
            }
            [_, _, _, _] => return Err("its mask_index of 4 axes is a part of a larger mask".into()),
            _ => {
                return Err(format!(
                    "its padding mask is of {}; allowed: [{batch}], [2*{batch}], [3*{batch} + 2], [{batch}, {}] or \
                     [{batch}, {queries}, {}]",
                    shown(shape),
                    self.total,
                    self.total
                ));
            }
        };
        let scalar = |x: f64| Array::new(Kind::F32, vec![], vec![x]);
        let (zero, fill) =
            (self.b.constant("zero", scalar(0.0)), self.b.constant("fill", scalar(self.fused.fill)));
        Ok(self.b.node("padding", "Where", &[&keeps, &zero, &fill]))
    }

    /// Adds nodes that test whether integers are positive.
    fn positive(&mut self, name: &str) -> String {
        let wide = self.b.node("wide", "Cast", &[name]);
        self.b.set("to", Attribute::Int(Kind::I64.0));
        let zero = self.b.integer(0);
        self.b.node("attended", "Greater", &[&wide, &zero])
    }

    /// Adds nodes that test, for each sequence and each key, whether the key is before the end of the sequence and not
    /// before its start. If `whole` is set, `name` contains the ends alone. If `starts` is set, starts follow the ends.
    /// Otherwise, other numbers follow the ends.
    fn between(&mut self, name: &str, starts: bool, whole: bool) -> String {
        let keys = self.positions();
        let b = &mut self.b;
        let wide = b.node("wide", "Cast", &[name]);
        b.set("to", Attribute::Int(Kind::I64.0));
        let column = b.ints("column", [-1, 1, 1, 1]);
        let mut ends = wide.clone();
        let mut begins = None;
        if starts && !whole {
            let pairs = b.ints("pairs", [2, -1]);
            let pairs = b.node("pairs", "Reshape", &[&wide, &pairs]);
            ends = b.picked(&pairs, 0, 0);
            begins = Some(b.picked(&pairs, 0, 1));
        } else if !whole {
            let zero = b.ints("from", [0]);
            let batch = b.sizes(self.fused.node.input(0).unwrap_or_default(), 0..1);
            ends = b.node("ends", "Slice", &[&wide, &zero, &batch, &zero]);
        }
        let ends = b.node("ends", "Reshape", &[&ends, &column]);
        let before = b.node("before", "Less", &[&keys, &ends]);
        let Some(begins) = begins else { return before };
        let begins = b.node("begins", "Reshape", &[&begins, &column]);
        let outside = b.node("outside", "Less", &[&keys, &begins]);
        let inside = b.node("inside", "Not", &[&outside]);
        b.node("between", "And", &[&before, &inside])
    }

    /// Returns the tensor of the positions of all keys, with the past.
    fn positions(&mut self) -> String {
        if let Some(total) = self.total.known().filter(|&total| total <= MANY) {
            return self.b.ints("positions", 0..total);
        }
        let node = self.fused.node;
        let (tensor, axis) = match self.sizes.packing {
            Packing::Heads | Packing::HeadsOfKeys => (1, 2),
            Packing::Rows | Packing::PackedKeys => (1, 1),
            Packing::Packed | Packing::Projected => (0, 1),
        };
        let mut total = self.b.size(node.input(tensor).unwrap_or_default(), axis);
        if let Some(past) = node.input(self.fused.past[0]) {
            let axis = if self.sizes.packing == Packing::Projected { 3 } else { 2 };
            let past = self.b.size(past, axis);
            total = self.b.node("total", "Add", &[&past, &total]);
        }
        let (zero, one) = (self.b.integer(0), self.b.integer(1));
        self.b.node("positions", "Range", &[&zero, &total, &one])
    }

    /// Adds the operator `new` and the nodes after it, which arrange its outputs as those of the fused node.
    fn outputs(&mut self, mut new: Node, output: &str) {
        let presents = self.fused.presents();
        let turns = self.sizes.packing == Packing::HeadsOfKeys;
        let joins = self.sizes.packing == Packing::Projected && !presents.is_empty();
        let answer = if turns { self.b.name("answer") } else { output.to_owned() };
        let own = if joins {
            vec![self.b.name("present_key"), self.b.name("present_value")]
        } else {
            presents.to_vec()
        };
        new.outputs = [vec![answer.clone()], own.clone()].concat();
        while new.outputs.last().is_some_and(String::is_empty) {
            new.outputs.pop();
        }
        self.b.nodes.push(new);
        if turns {
            let rows = self.b.transposed(&answer, &[0, 2, 1, 3]);
            let target = self.b.ints("target", [0, 0, -1]);
            self.b.node("rows", "Reshape", &[&rows, &target]);
            self.b.rename_last(output);
        }
        if let (true, [keys, values]) = (joins, &own[..]) {
            let both = self.b.node("both", "Concat", &[keys, values]);
            self.b.set("axis", Attribute::Int(0));
            let first = self.b.ints("first", [2, -1]);
            let rest = self.b.sizes(&both, 1..4);
            self.b.reshaped(&both, &[&first, &rest]);
            self.b.rename_last(&presents[0]);
        }
    }
}

/// Adds nodes that turn part `i` of a tensor `[batch, tokens, heads, parts, dim]` into rows.
fn rows_of(b: &mut Builder<'_>, name: &str, i: i64) -> String {
    let part = b.picked(name, 3, i);
    let target = b.ints("target", [0, 0, -1]);
    b.node("rows", "Reshape", &[&part, &target])
}
