//! Operators whose definition a newer opset has changed, in their older form.
//!
//! Most changes add an attribute or turn an attribute into an input. A node that does not use the new features keeps its
//! meaning in the older form. New element types are not examined: the older runtime refuses a tensor of such a type.

use super::facts::{Facts, input, output};
use super::older::{END, OlderNodes};
use super::raw::Edit;
use crate::array::{Array, Kind};
use crate::find::Reason;
use crate::node::{Attribute, Node};
use crate::value::place;

/// The form of a node in the opset for which a model is lowered.
#[derive(Clone, Debug)]
pub enum OlderForm {
    /// The node as it is.
    Same,
    /// The node with other inputs or attributes.
    Edited(Edit),
    /// Other nodes.
    Replaced,
}

/// Returns the form of a node of the opset `from` in the opset `to`, for an operator that both opsets include. Adds the
/// nodes and constants of this form to `o`.
///
/// # Errors
/// Returns the reason why the node has no form in the opset `to`.
pub fn form(
    node: &Node,
    facts: &Facts<'_>,
    from: i64,
    to: i64,
    o: &mut OlderNodes<'_>,
) -> Result<OlderForm, Reason> {
    let crosses = |version: i64| from >= version && to < version;
    match node.op.as_str() {
        "ReduceMax" | "ReduceMean" | "ReduceMin" | "ReduceL1" | "ReduceL2" | "ReduceLogSum"
        | "ReduceLogSumExp" | "ReduceProd" | "ReduceSumSquare"
            if crosses(18) =>
        {
            reduced(node, facts)
        }
        "Split" if crosses(18) => split(node, facts, o),
        "Pad" if crosses(18) => pad(node, facts, o),
        "Resize" if crosses(18) => resize(node, facts, o),
        "Reshape" if crosses(14) => {
            let keeps_zeros = node.int("allowzero").unwrap_or(0) != 0;
            if keeps_zeros && facts.ints(node, 1)?.contains(&0) {
                return Err("it makes an axis of size 0".to_owned());
            }
            Ok(without(node, &["allowzero"]))
        }
        "Shape" if crosses(15) => shape(node, o),
        "BatchNormalization" if crosses(14) => unless(node, "training_mode", 0),
        "GRU" | "LSTM" | "RNN" if crosses(14) => unless(node, "layout", 0),
        "Cast" if crosses(19) => match node.int("to") {
            Some(to) if to > BFLOAT16 => {
                Err("it converts to a type that the target does not have".to_owned())
            }
            _ => Ok(without(node, &["saturate", "round_mode"])),
        },
        "CastLike" if crosses(19) => Ok(without(node, &["saturate", "round_mode"])),
        "ScatterElements" | "ScatterND" if crosses(16) || crosses(18) => {
            let reduction = node.text("reduction").unwrap_or("none");
            let has_old = crosses(18) && !crosses(16) && ["add", "mul"].contains(&reduction);
            match reduction {
                "none" => Ok(without(node, &["reduction"])),
                _ if has_old => Ok(OlderForm::Same),
                other => Err(format!("its reduction is '{other}'")),
            }
        }
        "GridSample" if crosses(20) => {
            let rank = facts.rank(input(node, 0)?)?;
            let mode = match node.text("mode").unwrap_or("linear") {
                _ if rank != 4 => return Err(format!("its input has {rank} axes; 4 are lowered")),
                "linear" => "bilinear",
                "cubic" => "bicubic",
                other => other,
            };
            let mode = Attribute::Text(mode.into());
            Ok(OlderForm::Edited(Edit { with: vec![("mode", mode)], ..Edit::default() }))
        }
        "AveragePool" if crosses(19) => undilated(node, &["dilations"]),
        "LpPool" if crosses(18) => {
            unless(node, "ceil_mode", 0)?;
            undilated(node, &["dilations", "ceil_mode"])
        }
        "QuantizeLinear" | "DequantizeLinear" if crosses(19) || crosses(21) => quantized(node, facts),
        "Range" if crosses(27) => unless(node, "stash_type", 1),
        "SpaceToDepth" if crosses(28) => match node.text("mode") {
            Some(mode) if mode != "DCR" => Err(format!("its mode is '{mode}'")),
            _ => Ok(without(node, &["mode"])),
        },
        "RoiAlign" if crosses(16) => match node.text("coordinate_transformation_mode") {
            Some("output_half_pixel") => Ok(without(node, &["coordinate_transformation_mode"])),
            _ => Err("its coordinates are shifted by half a pixel".to_owned()),
        },
        _ => Ok(OlderForm::Same),
    }
}

/// The number of the type bf16 in ONNX. Types with larger numbers are newer.
const BFLOAT16: i64 = 16;

/// Returns the node without the attributes `names`.
fn without(node: &Node, names: &[&'static str]) -> OlderForm {
    let without: Vec<&str> =
        names.iter().copied().filter(|name| node.attributes.contains_key(*name)).collect();
    if without.is_empty() { OlderForm::Same } else { OlderForm::Edited(Edit { without, ..Edit::default() }) }
}

/// Returns the node without the attribute `name`, if its value is `value`.
fn unless(node: &Node, name: &'static str, value: i64) -> Result<OlderForm, Reason> {
    match node.int(name) {
        Some(found) if found != value => Err(format!("its {name} is {found}")),
        _ => Ok(without(node, &[name])),
    }
}

/// Returns a pooling without the attributes `names`, if it has no dilations.
fn undilated(node: &Node, names: &[&'static str]) -> Result<OlderForm, Reason> {
    if node.ints("dilations").unwrap_or_default().iter().any(|&n| n != 1) {
        return Err("it has dilations".to_owned());
    }
    Ok(without(node, names))
}

/// Returns a reduction whose axes are an attribute.
fn reduced(node: &Node, facts: &Facts<'_>) -> Result<OlderForm, Reason> {
    let name = input(node, 0)?;
    if facts.kind(name) == Some(Kind::BOOL) {
        return Err("it reduces booleans".to_owned());
    }
    let axes = if node.input(1).is_some() { facts.ints(node, 1)? } else { Vec::new() };
    if axes.is_empty() && node.int("noop_with_empty_axes").unwrap_or(0) != 0 {
        return Err("it reduces no axis".to_owned());
    }
    let with = if axes.is_empty() { Vec::new() } else { vec![("axes", Attribute::Ints(axes))] };
    Ok(OlderForm::Edited(Edit {
        inputs: Some(vec![name.to_owned()]),
        without: vec!["noop_with_empty_axes"],
        with,
    }))
}

/// Returns a split whose sizes are an input.
fn split(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    if node.input(1).is_some() {
        return Ok(without(node, &["num_outputs"]));
    }
    let name = input(node, 0)?;
    let parts = node.int("num_outputs").or(i64::try_from(node.outputs.len()).ok()).filter(|&n| n > 0);
    let parts = parts.ok_or("it has no outputs")?;
    let size = facts.size(name, node.int("axis").unwrap_or(0));
    let size = size.ok_or("the sizes of its parts depend on a free axis")?;
    // Only the last part may be smaller.
    let each = (size + parts - 1) / parts;
    let sizes = (0..parts).map(|i| (size - i * each).min(each).max(0));
    let sizes = o.builder.ints("sizes", sizes);
    Ok(OlderForm::Edited(Edit {
        inputs: Some(vec![name.to_owned(), sizes]),
        without: vec!["num_outputs"],
        ..Edit::default()
    }))
}

/// Returns the indices of the axes in `axes`, which count from the front or from the back.
fn places(axes: &[i64], rank: usize) -> Result<Vec<usize>, Reason> {
    let all: Option<Vec<usize>> = axes.iter().map(|&axis| place(axis, rank)).collect();
    all.ok_or_else(|| format!("its axes are {axes:?}, and its input has {rank}"))
}

/// Returns a padding of all axes.
fn pad(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    if node.text("mode") == Some("wrap") {
        return Err("its mode is 'wrap'".to_owned());
    }
    if node.input(3).is_none() {
        return Ok(OlderForm::Same);
    }
    let name = input(node, 0)?;
    let rank = facts.rank(name)?;
    let (pads, axes) = (facts.ints(node, 1)?, places(&facts.ints(node, 3)?, rank)?);
    if pads.len() != 2 * axes.len() {
        return Err(format!("it has {} pads for {} axes", pads.len(), axes.len()));
    }
    let mut all = vec![0; 2 * rank];
    for (i, &axis) in axes.iter().enumerate() {
        all[axis] = pads[i];
        all[rank + axis] = pads[axes.len() + i];
    }
    let mut inputs = vec![name.to_owned(), o.builder.ints("pads", all)];
    inputs.extend(node.input(2).map(str::to_owned));
    Ok(OlderForm::Edited(Edit { inputs: Some(inputs), ..Edit::default() }))
}

/// Returns a resize of all axes.
fn resize(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    let policy = node.text("keep_aspect_ratio_policy").unwrap_or("stretch");
    let mode = node.text("coordinate_transformation_mode").unwrap_or("half_pixel");
    if node.int("antialias").unwrap_or(0) != 0 {
        return Err("it filters against aliasing".to_owned());
    }
    if policy != "stretch" {
        return Err(format!("its keep_aspect_ratio_policy is '{policy}'"));
    }
    if mode == "half_pixel_symmetric" {
        return Err(format!("its coordinate_transformation_mode is '{mode}'"));
    }
    let names = ["antialias", "axes", "keep_aspect_ratio_policy"];
    let Some(axes) = node.ints("axes") else { return Ok(without(node, &names)) };
    if mode == "tf_crop_and_resize" {
        return Err("it resizes a region of some axes".to_owned());
    }
    let name = input(node, 0)?;
    let rank = facts.rank(name)?;
    let axes = places(axes, rank)?;
    let mut inputs = vec![name.to_owned(), String::new()];
    if node.input(3).is_some() {
        let shape = o.node("Shape", &[name]);
        let mut parts = Vec::new();
        for axis in 0..rank {
            let given = axes.iter().position(|&other| other == axis);
            let (from, at) = given.map_or((shape.as_str(), axis), |at| (node.inputs[3].as_str(), at));
            let at = i64::try_from(at).unwrap_or(i64::MAX);
            parts.push(o.builder.sliced(from, 0, at, at.saturating_add(1)));
        }
        let sizes = o.node("Concat", &parts.iter().map(String::as_str).collect::<Vec<_>>());
        o.builder.set("axis", Attribute::Int(0));
        inputs.extend([String::new(), sizes]);
    } else {
        let given = facts.symbols.numbers(input(node, 2)?).filter(|given| given.len() == axes.len());
        let given = given.ok_or("its scales are not constant")?;
        let mut scales = vec![1.0; rank];
        axes.iter().zip(given).for_each(|(&axis, &scale)| scales[axis] = scale);
        inputs.push(o.builder.constant("scales", Array::new(Kind::F32, vec![rank], scales)));
    }
    let without = names.into_iter().filter(|name| node.attributes.contains_key(*name)).collect();
    Ok(OlderForm::Edited(Edit { inputs: Some(inputs), without, ..Edit::default() }))
}

/// Returns a part of a shape as a slice of the shape.
fn shape(node: &Node, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    let (start, end) = (node.int("start").unwrap_or(0), node.int("end").unwrap_or(END));
    if (start, end) == (0, END) {
        return Ok(without(node, &["start", "end"]));
    }
    let whole = o.node("Shape", &[input(node, 0)?]);
    o.builder.sliced(&whole, 0, start, end);
    o.builder.rename_last(output(node)?);
    Ok(OlderForm::Replaced)
}

/// Returns a quantization whose zero point has eight bits and whose scale is f32.
fn quantized(node: &Node, facts: &Facts<'_>) -> Result<OlderForm, Reason> {
    let quantizes = node.op == "QuantizeLinear";
    if facts.kind(input(node, 1)?).is_some_and(|kind| kind != Kind::F32) {
        return Err("its scale is not f32".to_owned());
    }
    if node.int("block_size").unwrap_or(0) != 0 {
        return Err("it has a scale for each block".to_owned());
    }
    let stored = if quantizes { node.input(2) } else { node.input(0) };
    let given = node.int("output_dtype").filter(|&kind| kind != 0).map(Kind);
    let kind = stored.and_then(|name| facts.kind(name)).or(given.filter(|_| quantizes));
    let eight = |kind: Kind| kind == Kind::U8 || kind.name() == "i8";
    match kind {
        Some(kind) if !eight(kind) && (quantizes || kind != Kind::I32) => {
            return Err(format!("its integers are {}", kind.name()));
        }
        // The older operator returns u8 if it has no zero point.
        Some(kind) if quantizes && stored.is_none() && kind != Kind::U8 => {
            return Err(format!("it has no zero point, and returns {}", kind.name()));
        }
        _ => {}
    }
    if !quantizes && given.is_some_and(|kind| kind != Kind::F32) {
        return Err("it does not return f32".to_owned());
    }
    Ok(without(node, &["saturate", "block_size", "output_dtype", "precision"]))
}
