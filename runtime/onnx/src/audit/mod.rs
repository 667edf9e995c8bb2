//! The audit of a model: where half precision breaks.
//!
//! ```text
//! nodes -> site (groups) -> graph (more outputs) -> measure -> graph (switches) -> harm (keep in f32)
//! ```
//!
//! The user's ONNX Runtime runs the model in f32. First it reports the shape of every tensor, so that the tensors can
//! be divided into slices that fit in memory. Then it runs once for each slice, with the slice's tensors as outputs,
//! whose magnitudes and sums are measured. Finally it runs a model in which each tensor may be rounded to f16: with all
//! sites in f16, with each site alone, and with different numbers of sites in f32, until few of them suffice.

mod error;
mod given;
mod graph;
mod harm;
mod measure;
mod site;

use super::Attention;
use super::array::{Array, Kind};
use super::model::{self, External, Model, ModelError};
use super::node::Node;
use super::ops::Limits;
use super::symbols::Symbols;
use elsa_onnxruntime::{Data, HostTensor, RuntimeError, Session};
use given::Given;
use graph::Extension;
use harm::{Harms, Suspects, SwitchedModel};
use measure::{Magnitudes, Sums};
use serde::{Serialize, Serializer};
use site::{Connections, NodeGroup};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

pub use error::AuditError;
pub use given::inputs;
pub use measure::{LEAST, MOST};
pub use site::SiteKind;

/// Maximum number of elements of a constant that is read to compute sums of products.
const CONSTANT: usize = 1 << 24;
/// Bytes that an element of a tensor takes: one copy belongs to the runtime, the other to the audit.
const BYTES: u64 = 8;
/// Oldest operator set with the operator `Where`.
const OPSET: i64 = 9;
/// Operators whose outputs are not tensors.
const NO_TENSORS: [&str; 8] = [
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceInsert",
    "SequenceErase",
    "SequenceMap",
    "SplitToSequence",
    "Optional",
    "ZipMap",
];

/// Operators of a softmax that is written out, whose outputs are not scores.
const SUMS: [&str; 4] = ["Exp", "ReduceMax", "ReduceSum", "Reciprocal"];

/// Function that opens a session for the bytes of a model. External weights are in the folder of the audited model.
pub type OpenSession<'a, 'r> = &'a dyn Fn(&[u8]) -> Result<Session<'r>, RuntimeError>;

/// Options of an audit.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// Tensors for inputs of the model, by the names of the inputs. Other inputs are random.
    pub given: Vec<(String, HostTensor)>,
    /// Memory for the tensors of one slice, in bytes.
    pub budget: u64,
    /// Time for the runs in f16.
    pub time: Duration,
    /// Largest error of the outputs, relative to their norm, that does not count as broken.
    pub tolerance: f64,
}

/// Relative error, which is infinite where f16 overflows. It serializes as a number, or as the text `inf`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Loss(pub f64);

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { to.serialize_f64(self.0) } else { to.serialize_str("inf") }
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_finite() { write!(f, "{:.1e}", self.0) } else { f.write_str("inf") }
    }
}

/// An input of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInput {
    /// Name.
    pub name: String,
    /// Number that ONNX assigns to the element type.
    pub element: i64,
}

/// Results of one site: an attention, a normalisation, a softmax, a product, or another node.
#[derive(Clone, Debug, Serialize)]
pub struct AuditedSite {
    /// Name of the main node, or of its output if the node has no name.
    pub node: String,
    /// Operator of the main node.
    pub operator: String,
    /// The computation.
    pub kind: SiteKind,
    /// Names of all nodes, in the order of the file.
    pub nodes: Vec<String>,
    /// Largest magnitude of the scores of an attention or a softmax, without masks.
    pub scores: Option<f64>,
    /// Largest sum that a node computes: of squares in a normalisation, of exponentials in a softmax, of products in a
    /// product.
    pub sum: Option<f64>,
    /// Largest magnitude of the outputs of all nodes.
    pub output: f64,
    /// Smallest magnitude above zero of these outputs.
    pub smallest: Option<f64>,
    /// Share of the elements that f16 turns into zero.
    pub flushed: f64,
    /// Error of these outputs if they are stored in f16.
    pub stored: Loss,
    /// Error of the sums if they are computed in f16.
    pub accumulated: Option<Loss>,
    /// Error of the model's outputs if only this site is stored in f16.
    pub harm: Option<Loss>,
    /// Estimate of the error of the model's outputs if only this site computes its sums in f16: `accumulated`, in
    /// proportion to `harm` and `stored`.
    pub harm_accumulated: Option<Loss>,
    /// `true` if the site is to be kept in f32.
    pub keep: bool,
    /// `true` if `elsa onnx rewrite` replaces the attention by an operator that computes in f32.
    pub replaceable: bool,
}

impl AuditedSite {
    /// Returns `true` if a tensor or a sum of the site overflows f16.
    #[must_use]
    pub fn overflows(&self) -> bool {
        !self.stored.0.is_finite() || self.accumulated.is_some_and(|error| !error.0.is_finite())
    }
}

/// Results of an audit.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    /// Sizes of the dynamic axes; empty if no axis is dynamic.
    pub sizes: String,
    /// Names of the inputs that were random.
    pub random: Vec<String>,
    /// All sites, in the order of the file.
    pub sites: Vec<AuditedSite>,
    /// Error of the model's outputs if every site is in f16, with sums in f32.
    pub all: Option<Loss>,
    /// Indices of the sites to keep in f32, the most harmful one first.
    pub keep: Vec<usize>,
    /// Error of the model's outputs if only these sites are kept in f32.
    pub kept: Option<Loss>,
    /// `true` if the error `all` exceeds the tolerance, or if a sum overflows f16.
    pub breaks: bool,
    /// Facts that limit the audit.
    pub notes: Vec<String>,
}

/// Audits a model.
///
/// # Errors
/// Returns an error if a given tensor does not fit the model, or if the runtime cannot run the model.
pub fn audit(
    model: &Model<'_>,
    external: External<'_>,
    attentions: &[Attention],
    open: OpenSession<'_, '_>,
    options: &AuditOptions,
) -> Result<Audit, AuditError> {
    if model.opset < OPSET {
        return Err(AuditError::Unable(format!("opset {}; allowed: opset {OPSET} or newer", model.opset)));
    }
    let nodes: Vec<Node> = model.file_nodes()?.into_iter().map(|(node, _)| node).collect();
    let connections = Connections::new(&nodes);
    let groups = connections.groups(model);
    let symbols = Symbols::new(model, external, Limits::WHOLE);
    let prefix = super::prefix(&model.graph);
    let outputs: Vec<&str> = model.graph.outputs.iter().map(|output| output.name.as_str()).collect();
    let given = Given::of(model, &open(model.file).map_err(unable)?, &outputs, &options.given)?;
    let run = Runner { model, external, open, given: &given, prefix: &prefix };
    let measured = run.measure(&connections, &groups, &symbols, options.budget)?;
    if measured.f32_names.is_empty() {
        return Err(AuditError::Unable(
            "no node of the model makes an f32 tensor; allowed: a model in f32".to_owned(),
        ));
    }
    let mut notes = Vec::new();
    if nodes.iter().any(|node| !node.inner.is_empty() || !node.captured.is_empty()) {
        notes.push("nodes inside If, Loop and Scan are not audited".to_owned());
    }
    let is_f32 = |name: &str| measured.f32_names.contains(name) || symbols.kind(name) == Some(Kind::F32);
    let suspects = suspects(&nodes, &groups, &measured);
    let (extension, switches) = harm::switched(model, &connections, &prefix, &is_f32);
    let bytes = extension.bytes(model).map_err(ModelError::from)?;
    let session = open(&bytes).map_err(unable)?;
    let tensors = given.named();
    let end = Instant::now() + options.time;
    let switched = SwitchedModel {
        session: &session,
        switches: &switches,
        given: &tensors,
        outputs: &outputs,
        groups: &groups,
        end,
    };
    let harms = switched.search(&suspects, options.tolerance).map_err(unable)?;
    if harms.as_ref().is_none_or(|harms| !harms.complete) {
        notes.push(
            "the time did not suffice: some sites were not measured alone, or the list is too long"
                .to_owned(),
        );
    }
    let harms = harms.unwrap_or_else(|| Harms {
        all: f64::NAN,
        single: vec![None; groups.len()],
        keep: (0..groups.len())
            .filter(|&at| !measured.sites[at].stored().is_finite() || suspects.kept.contains(&at))
            .collect(),
        ..Harms::default()
    });
    let kept = harms.keep.iter().flat_map(|&at| &groups[at].members);
    let unnamed = kept.filter(|&&n| nodes[n].name.is_empty()).count();
    if unnamed > 0 {
        notes.push(format!(
            "{unnamed} of the nodes to keep have no name, so that lists of names cannot contain them"
        ));
    }
    let all = Some(harms.all).filter(|all| !all.is_nan());
    let breaks = all.is_some_and(|all| all > options.tolerance) || !suspects.kept.is_empty();
    let replaced: HashSet<&str> = attentions
        .iter()
        .filter(|attention| attention.replaced)
        .map(|attention| attention.node.as_str())
        .collect();
    let sites = (groups.iter().enumerate())
        .map(|(at, group)| {
            audited(&nodes, group, &measured.sites[at], harms.single[at], harms.keep.contains(&at), &replaced)
        })
        .collect();
    Ok(Audit {
        sizes: given.sizes.clone(),
        random: given.random.clone(),
        sites,
        all: all.map(Loss),
        keep: harms.keep,
        kept: harms.kept.map(Loss),
        breaks,
        notes,
    })
}

fn unable(error: RuntimeError) -> AuditError {
    AuditError::Unable(format!("ONNX Runtime does not run the model: {error}"))
}

/// Returns the name of a node, or that of its output if it has none.
fn name(node: &Node) -> String {
    let made = node.outputs.first().cloned().unwrap_or_default();
    if node.name.is_empty() { made } else { node.name.clone() }
}

/// Measurements of one site.
#[derive(Clone, Default)]
struct Measured {
    outputs: Magnitudes,
    /// Magnitudes of the scores that a softmax reads.
    scores: Magnitudes,
    sums: Option<Sums>,
}

impl Measured {
    fn stored(&self) -> f64 {
        self.outputs.and(self.scores).stored()
    }
}

/// Measurements of all sites.
struct MeasuredSites {
    sites: Vec<Measured>,
    /// Names of the tensors that were found to be f32.
    f32_names: HashSet<String>,
}

/// Runs models in the user's runtime.
struct Runner<'a, 'r> {
    model: &'a Model<'a>,
    external: External<'a>,
    open: OpenSession<'a, 'r>,
    given: &'a Given<'a>,
    prefix: &'a str,
}

impl Runner<'_, '_> {
    fn run(&self, extension: &Extension, outputs: &[&str]) -> Result<Vec<HostTensor>, AuditError> {
        let bytes = extension.bytes(self.model).map_err(ModelError::from)?;
        let session = (self.open)(&bytes).map_err(unable)?;
        session.run(&self.given.named(), outputs, None).map_err(unable)
    }

    /// Returns the number of elements of each tensor that a node makes, except tensors that are known not to be f32.
    fn counts<'n>(&self, nodes: &'n [Node], symbols: &Symbols) -> Result<HashMap<&'n str, u64>, AuditError> {
        let tensors =
            nodes.iter().filter(|node| !node.is("Constant") && !NO_TENSORS.iter().any(|op| node.op == *op));
        let is_f32 =
            |name: &&str| !name.is_empty() && symbols.kind(name).is_none_or(|kind| kind == Kind::F32);
        let names: Vec<&str> =
            tensors.flat_map(|node| &node.outputs).map(String::as_str).filter(is_f32).collect();
        let mut extension = Extension::default();
        for (i, name) in names.iter().enumerate() {
            let output = format!("{}_shape{i}", self.prefix);
            extension.outputs.push(output.clone());
            extension.last.push(Node {
                name: format!("{output}_node"),
                op: "Shape".to_owned(),
                inputs: vec![(*name).to_owned()],
                outputs: vec![output],
                ..Node::default()
            });
        }
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let outputs: Vec<&str> = extension.outputs.iter().map(String::as_str).collect();
        let shapes = self.run(&extension, &outputs)?;
        let count =
            |shape: &HostTensor| (0..shape.data.len()).map(|i| shape.data.get(i)).product::<f64>() as u64;
        Ok(names.into_iter().zip(shapes.iter().map(count)).collect())
    }

    /// Measures all sites, in slices whose tensors take at most `budget` bytes.
    fn measure(
        &self,
        nodes: &Connections<'_>,
        groups: &[NodeGroup],
        symbols: &Symbols,
        budget: u64,
    ) -> Result<MeasuredSites, AuditError> {
        let counts = self.counts(nodes.nodes, symbols)?;
        let mut all =
            MeasuredSites { sites: vec![Measured::default(); groups.len()], f32_names: HashSet::new() };
        let mut at = 0;
        while at < groups.len() {
            let (start, mut taps) = (at, Vec::<&str>::new());
            let (mut seen, mut bytes) = (HashSet::new(), 0u64);
            while at < groups.len() {
                let names = around(nodes.nodes, &groups[at]).filter(|name| counts.contains_key(name));
                let new: HashSet<&str> = names.filter(|name| !seen.contains(name)).collect();
                let more: u64 = new.iter().map(|name| counts[name].saturating_mul(BYTES)).sum();
                if at > start && bytes.saturating_add(more) > budget {
                    break;
                }
                bytes = bytes.saturating_add(more);
                taps.extend(&new);
                seen.extend(new);
                at += 1;
            }
            let made = self.tap(&taps)?;
            let is_f32 = |(_, tensor): &(&&str, &HostTensor)| matches!(tensor.data, Data::F32(_));
            all.f32_names.extend(taps.iter().zip(&made).filter(is_f32).map(|(name, _)| (*name).to_owned()));
            let made: HashMap<&str, HostTensor> = taps.into_iter().zip(made).collect();
            for site in start..at {
                all.sites[site] = self.site(nodes.nodes, &groups[site], &made);
            }
        }
        Ok(all)
    }

    /// Returns the tensors `taps` of one run.
    fn tap(&self, taps: &[&str]) -> Result<Vec<HostTensor>, AuditError> {
        if taps.is_empty() {
            return Ok(Vec::new());
        }
        let new = taps.iter().filter(|name| !self.model.graph.is_output(name));
        let extension =
            Extension { outputs: new.map(|&name| name.to_owned()).collect(), ..Extension::default() };
        self.run(&extension, taps)
    }

    /// Measures a site. `made` contains the tensors that its nodes read and make.
    fn site(&self, nodes: &[Node], group: &NodeGroup, made: &HashMap<&str, HostTensor>) -> Measured {
        let mut measured = Measured::default();
        for &n in &group.members {
            let node = &nodes[n];
            for name in &node.outputs {
                if let Some(Data::F32(x)) = made.get(name.as_str()).map(|tensor| &tensor.data) {
                    let of = Magnitudes::of(x);
                    let scores = group.kind == SiteKind::Attention
                        && n < group.main
                        && !SUMS.contains(&node.op.as_str());
                    let into = if scores { &mut measured.scores } else { &mut measured.outputs };
                    *into = into.and(of);
                }
            }
            let constants: HashMap<&str, HostTensor> = node
                .inputs
                .iter()
                .take(2)
                .filter_map(|name| Some((name.as_str(), self.constant(name)?)))
                .collect();
            let tensor = |name: &str| {
                let given =
                    || self.given.tensors.iter().find(|(of, _)| *of == name).map(|(_, tensor)| tensor);
                made.get(name).or_else(given).or_else(|| constants.get(name))
            };
            if group.kind == SiteKind::Softmax
                && n == group.main
                && let Some(Data::F32(x)) = node.input(0).and_then(tensor).map(|tensor| &tensor.data)
            {
                measured.scores = measured.scores.and(Magnitudes::of(x));
            }
            if let Some(scores) = measure::fused_scores(node, &tensor) {
                measured.scores = measured.scores.and(scores);
            }
            if let Some(sums) = measure::sums(node, self.model.opset, &tensor) {
                let before = measured.sums.unwrap_or(Sums { most: 0.0, error: 0.0 });
                measured.sums =
                    Some(Sums { most: before.most.max(sums.most), error: before.error.max(sums.error) });
            }
        }
        measured
    }

    /// Returns a constant of the model, if its elements are f32 and not too many.
    fn constant(&self, name: &str) -> Option<HostTensor> {
        let (stored, _) = self.model.graph.initializers.get(name)?;
        (stored.kind == Kind::F32).then_some(())?;
        tensor(&model::stored(self.model, self.external, stored, CONSTANT)?)
    }
}

/// Converts a constant to a tensor of f32 elements.
fn tensor(array: &Array) -> Option<HostTensor> {
    let dims = array.shape.iter().map(|&n| i64::try_from(n)).collect::<Result<_, _>>().ok()?;
    Some(HostTensor { dims, data: Data::F32(array.data.iter().map(|&x| x as f32).collect()) })
}

/// Returns the names of the tensors that the nodes of a group read and make.
fn around<'n>(nodes: &'n [Node], group: &NodeGroup) -> impl Iterator<Item = &'n str> {
    let members: Vec<&Node> = group.members.iter().map(|&n| &nodes[n]).collect();
    members.into_iter().flat_map(|node| node.inputs.iter().chain(&node.outputs)).map(String::as_str)
}

/// Chooses the sites that are measured alone: those that overflow first, then attentions, normalisations, softmaxes and
/// products, then other nodes that compute, each in the order of the errors of their storage.
fn suspects(nodes: &[Node], groups: &[NodeGroup], measured: &MeasuredSites) -> Suspects {
    let estimates: Vec<f64> = measured.sites.iter().map(Measured::stored).collect();
    // A sum or a score within a node that overflows breaks a site even if its outputs fit in f16. If outputs overflow,
    // the search finds out whether they matter.
    let overflows = |at: usize| {
        let site = &measured.sites[at];
        let within = groups[at].kind == SiteKind::Attention && !site.scores.stored().is_finite();
        within || site.sums.is_some_and(|sums| !sums.error.is_finite())
    };
    let kept = (0..groups.len()).filter(|&at| overflows(at) && groups[at].kind != SiteKind::Other).collect();
    let computes = |at: &usize| {
        let is_move = |n: &usize| site::is_move(&nodes[*n]);
        !estimates[*at].is_finite() || !groups[*at].members.iter().all(is_move)
    };
    let mut order: Vec<usize> = (0..groups.len()).filter(computes).collect();
    let rank = |at: usize| (estimates[at].is_finite(), groups[at].kind == SiteKind::Other);
    order.sort_by(|&a, &b| rank(a).cmp(&rank(b)).then(estimates[b].total_cmp(&estimates[a])));
    Suspects { measured: order, kept, estimates }
}

/// Describes a site.
fn audited(
    nodes: &[Node],
    group: &NodeGroup,
    measured: &Measured,
    harm: Option<f64>,
    keep: bool,
    replaced: &HashSet<&str>,
) -> AuditedSite {
    let main = &nodes[group.main];
    let whole = measured.outputs.and(measured.scores);
    let stored = measured.stored();
    let accumulated = measured.sums.map(|sums| sums.error);
    // The error of the storage is infinite if a tensor overflows, and then says nothing about sums.
    let harm_accumulated = accumulated
        .zip(harm)
        .filter(|_| stored.is_finite())
        .map(|(error, harm)| if error == 0.0 || stored == 0.0 { 0.0 } else { error * harm / stored });
    // An infinite error of the sums says nothing about outputs that do not depend on the site.
    let harm_accumulated = harm_accumulated.filter(|harm| !harm.is_nan());
    let name = name(main);
    AuditedSite {
        operator: main.op.clone(),
        kind: group.kind,
        nodes: group.members.iter().map(|&n| self::name(&nodes[n])).collect(),
        scores: Some(measured.scores.most).filter(|most| *most > 0.0),
        sum: measured.sums.map(|sums| sums.most),
        output: measured.outputs.most,
        smallest: Some(whole.least).filter(|least| least.is_finite()),
        flushed: whole.flushed as f64 / whole.count.max(1) as f64,
        stored: Loss(stored),
        accumulated: accumulated.map(Loss),
        harm: harm.map(Loss),
        harm_accumulated: harm_accumulated.map(Loss),
        keep,
        replaceable: group.kind == SiteKind::Attention && replaced.contains(name.as_str()),
        node: name,
    }
}
