//! Harm of each site: the error of the model's outputs if the site is in f16.
//!
//! A tensor is in f32 only if the node that makes it and all nodes that read it are kept in f32; every other tensor is
//! rounded by its switch. Within a node, the runtime computes in f32.

use super::super::array::Kind;
use super::super::model::Model;
use super::graph::Extension;
use super::site::{Connections, NodeGroup, is_converted};
use elsa_onnxruntime::{Data, HostTensor, RuntimeError, Session};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Maximum number of kept sites from which the search tries to remove each one.
const FEW: usize = 32;

/// A switch of a model: the tensor's flag, and the nodes that make or read the tensor.
pub struct Switch {
    flag: String,
    nodes: Vec<usize>,
}

/// Builds the model in which every f32 tensor has a switch. `is_f32` decides which tensors these are.
#[must_use]
pub fn switched(
    model: &Model<'_>,
    nodes: &Connections<'_>,
    prefix: &str,
    is_f32: &dyn Fn(&str) -> bool,
) -> (Extension, Vec<Switch>) {
    let graph = &model.graph;
    let converted = |n: &usize| is_converted(&nodes.nodes[*n]);
    let mut extension = Extension::default();
    extension.add_constants(prefix);
    let mut switches: Vec<Switch> = Vec::new();
    let mut add = |readers: Vec<usize>| {
        let flag = format!("{prefix}_flag{}", switches.len());
        switches.push(Switch { flag: flag.clone(), nodes: readers });
        flag
    };
    // New names of the inputs and constants, which the nodes read instead.
    let mut sources: HashMap<&str, String> = HashMap::new();
    let inputs = graph.inputs.iter().filter(|input| input.kind == Kind::F32).map(|input| input.name.as_str());
    let constants = graph.initializers.iter().filter(|(_, (stored, _))| stored.kind == Kind::F32);
    let names: HashSet<&str> = inputs.chain(constants.map(|(name, _)| name.as_str())).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    for name in names {
        let Some(readers) = nodes.readers.get(name).filter(|readers| readers.iter().all(converted)) else {
            continue;
        };
        let flag = add(readers.clone());
        let to = format!("{flag}_x");
        extension.first.extend(Extension::switch(prefix, name, &to, &flag));
        sources.insert(name, to);
    }
    for (n, node) in nodes.nodes.iter().enumerate() {
        let mut outputs = node.outputs.clone();
        for name in outputs.iter_mut().filter(|name| !name.is_empty() && is_f32(name)) {
            let mut around = nodes.readers.get(name.as_str()).cloned().unwrap_or_default();
            if node.is("Constant") && !around.iter().all(converted) {
                continue;
            }
            around.push(n);
            around.retain(converted);
            let flag = add(around);
            let raw = format!("{flag}_raw");
            let after = Extension::switch(prefix, &raw, name, &flag);
            extension.after.entry(n).or_default().extend(after);
            *name = raw;
        }
        let named = |name: &String| sources.get(name.as_str()).unwrap_or(name).clone();
        let inputs: Vec<String> = node.inputs.iter().map(named).collect();
        if inputs != node.inputs || outputs != node.outputs {
            extension.names.insert(n, [inputs, outputs]);
        }
    }
    extension.flags = switches.iter().map(|switch| switch.flag.clone()).collect();
    (extension, switches)
}

/// A session of a model with switches.
pub struct SwitchedModel<'a, 'r> {
    /// The session.
    pub session: &'a Session<'r>,
    /// Switches of the model.
    pub switches: &'a [Switch],
    /// Inputs of the original model.
    pub given: &'a [(&'a str, &'a HostTensor)],
    /// Names of the outputs.
    pub outputs: &'a [&'a str],
    /// Groups of nodes.
    pub groups: &'a [NodeGroup],
    /// End of the time for all runs.
    pub end: Instant,
}

/// Result of the search for the sites to keep in f32.
#[derive(Debug, Default)]
pub struct Harms {
    /// Error of the outputs if every site is in f16.
    pub all: f64,
    /// For each site, the error of the outputs if only this site is in f16; `None` if it was not measured.
    pub single: Vec<Option<f64>>,
    /// Indices of the sites to keep in f32, the most harmful one first.
    pub keep: Vec<usize>,
    /// Error of the outputs if only the sites in `keep` are in f32; `None` if it was not measured.
    pub kept: Option<f64>,
    /// `true` if the time sufficed for the complete search.
    pub complete: bool,
}

/// Sites that the search treats in a particular way, by index.
pub struct Suspects {
    /// Sites to measure alone, in this order while time remains.
    pub measured: Vec<usize>,
    /// Sites that are kept in any case.
    pub kept: HashSet<usize>,
    /// Estimates of the harm of sites that are not measured.
    pub estimates: Vec<f64>,
}

impl SwitchedModel<'_, '_> {
    /// Runs the model with the sites for which `is_half` returns `true` in f16. Returns `None` if the time is over.
    fn run(&self, is_half: &dyn Fn(usize) -> bool) -> Result<Option<Vec<HostTensor>>, RuntimeError> {
        let half: HashSet<usize> = (self.groups.iter().enumerate())
            .filter(|(at, _)| is_half(*at))
            .flat_map(|(_, group)| group.members.iter().copied())
            .collect();
        let left = self.end.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Ok(None);
        }
        let [off, on] = [0, 1].map(|x| HostTensor { dims: vec![], data: Data::Bool(vec![x]) });
        let flag = |switch: &Switch| if switch.nodes.iter().any(|n| half.contains(n)) { &on } else { &off };
        let flags = self.switches.iter().map(|switch| (switch.flag.as_str(), flag(switch)));
        let inputs: Vec<(&str, &HostTensor)> = self.given.iter().copied().chain(flags).collect();
        match self.session.run(&inputs, self.outputs, Some(left)) {
            Ok(made) => Ok(Some(made)),
            Err(RuntimeError::Late(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Measures the harm of sites, and searches for few sites whose exemption from f16 limits the error of the outputs
    /// to `tolerance`. Returns `None` if the time does not suffice for two runs.
    ///
    /// # Errors
    /// Returns an error if the runtime fails.
    pub fn search(&self, suspects: &Suspects, tolerance: f64) -> Result<Option<Harms>, RuntimeError> {
        let count = self.groups.len();
        let start = Instant::now();
        let Some(wanted) = self.run(&|_| false)? else { return Ok(None) };
        let error = |is_half: &dyn Fn(usize) -> bool| -> Result<Option<f64>, RuntimeError> {
            Ok(self.run(is_half)?.map(|found| loss(&wanted, &found)))
        };
        let Some(all) = error(&|_| true)? else { return Ok(None) };
        let mut harms = Harms { all, single: vec![None; count], complete: true, ..Harms::default() };
        // A half of the time is left for the search.
        let middle = start + self.end.saturating_duration_since(start) / 2;
        for &at in &suspects.measured {
            if Instant::now() > middle {
                harms.complete = false;
                break;
            }
            harms.single[at] = error(&|other| other == at)?;
        }
        let harm = |at: usize| harms.single[at].unwrap_or(suspects.estimates[at]);
        let mut ranked: Vec<usize> = (0..count).collect();
        ranked.sort_by(|&a, &b| harm(b).total_cmp(&harm(a)));
        let exempt = |kept: &HashSet<usize>| error(&|at| !kept.contains(&at) && !suspects.kept.contains(&at));
        let first = |m: usize| ranked.iter().take(m).copied().collect::<HashSet<usize>>();
        let fits = |found: Option<f64>| found.map(|found| found <= tolerance);
        // The first `bad` sites do not suffice, the first `good` do.
        let (mut bad, mut good) = (0, 0);
        let mut late = false;
        loop {
            match fits(exempt(&first(good))?) {
                Some(true) => break,
                Some(false) if good < count => (bad, good) = (good, (good * 2).clamp(1, count)),
                Some(false) => break,
                None => {
                    late = true;
                    break;
                }
            }
        }
        while !late && bad + 1 < good {
            let middle = usize::midpoint(bad, good);
            match fits(exempt(&first(middle))?) {
                Some(true) => good = middle,
                Some(false) => bad = middle,
                None => late = true,
            }
        }
        let mut kept = first(good);
        if kept.len() <= FEW {
            for &at in ranked.iter().take(good).rev() {
                kept.remove(&at);
                if late || fits(exempt(&kept)?) != Some(true) {
                    kept.insert(at);
                }
            }
        }
        let is_kept = |at: &usize| kept.contains(at) || suspects.kept.contains(at);
        let keep: Vec<usize> = ranked.iter().copied().filter(is_kept).collect();
        let last = if keep.is_empty() { Some(all) } else { exempt(&kept)? };
        harms.complete &= !late && last.is_some();
        (harms.keep, harms.kept) = (keep, last);
        Ok(Some(harms))
    }
}

/// Returns the largest error of an output: the norm of the differences relative to the norm of the output, or the share
/// of different elements if they are not floating-point numbers. The error is infinite if a finite element is no longer
/// finite.
fn loss(wanted: &[HostTensor], found: &[HostTensor]) -> f64 {
    let of = |(wanted, found): (&HostTensor, &HostTensor)| {
        if wanted.dims != found.dims || wanted.data.element() != found.data.element() {
            return f64::INFINITY;
        }
        let pairs = || (0..wanted.data.len()).map(|i| (wanted.data.get(i), found.data.get(i)));
        if !wanted.data.is_float() {
            let different = pairs().filter(|(a, b)| a != b).count();
            return different as f64 / wanted.data.len().max(1) as f64;
        }
        let (mut lost, mut square) = (0.0f64, 0.0f64);
        for (a, b) in pairs().filter(|(a, _)| a.is_finite()) {
            lost += (a - b) * (a - b);
            square += a * a;
        }
        if lost == 0.0 {
            0.0
        } else if lost.is_finite() && square > 0.0 {
            (lost / square).sqrt()
        } else {
            f64::INFINITY
        }
    };
    wanted.iter().zip(found).map(of).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_relative_and_name_what_is_no_longer_finite() {
        let tensor = |data| [HostTensor { dims: vec![2], data }];
        let float = |x: [f32; 2]| tensor(Data::F32(x.to_vec()));
        assert_eq!(loss(&float([3.0, 4.0]), &float([3.0, 4.0])), 0.0);
        assert!((loss(&float([3.0, 4.0]), &float([3.0, 4.5])) - 0.1).abs() < 1e-12);
        for wrong in [f32::NAN, f32::INFINITY] {
            assert_eq!(loss(&float([3.0, 4.0]), &float([wrong, 4.0])), f64::INFINITY);
        }
        // Elements that are not finite in f32 are not compared.
        assert_eq!(loss(&float([f32::NAN, 4.0]), &float([0.0, 4.0])), 0.0);
        assert_eq!(loss(&float([0.0, 0.0]), &float([0.0, 1e-9])), f64::INFINITY);
        let whole = |x: [i64; 2]| tensor(Data::I64(x.to_vec()));
        assert_eq!(loss(&whole([7, 9]), &whole([7, 8])), 0.5);
    }
}
