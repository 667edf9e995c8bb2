//! TEMPORARY stand-in for the runtime, with its signatures: naive f32. Replaced by the real one at merge.
#![allow(missing_docs, clippy::unwrap_used)]
use elsa_core::problem::{Inputs, Outputs, Problem, ProblemError};
use elsa_core::profile::DeviceProfile;
pub mod cpu;
pub use cpu::mapped::MappedFile;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Scalar,
    Neon,
    Avx2,
    Avx512,
    Cuda,
}
impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Scalar => "scalar",
            Backend::Neon => "neon",
            Backend::Avx2 => "avx2",
            Backend::Avx512 => "avx512",
            Backend::Cuda => "cuda",
        })
    }
}
impl FromStr for Backend {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "scalar" => Backend::Scalar,
            "neon" => Backend::Neon,
            "avx2" => Backend::Avx2,
            "avx512" => Backend::Avx512,
            "cuda" => Backend::Cuda,
            _ => return Err("allowed: scalar, neon, avx2, avx512, cuda".into()),
        })
    }
}
pub fn backends() -> Vec<(Backend, bool)> {
    vec![
        (Backend::Scalar, true),
        (Backend::Neon, false),
        (Backend::Avx2, false),
        (Backend::Avx512, false),
        (Backend::Cuda, false),
    ]
}
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub backend: Option<Backend>,
    pub threads: Option<usize>,
}
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("backend: {found} is absent; allowed: scalar")]
    BackendAbsent { found: String },
    #[error("threads: {found}; allowed: 1 to 256")]
    Threads { found: usize },
}
pub struct Engine {
    threads: usize,
    profile: DeviceProfile,
}
impl Engine {
    pub fn new(o: &EngineOptions) -> Result<Engine, EngineError> {
        let backend = match o.backend {
            Some(b) => Some(b),
            None => match std::env::var("ELSA_BACKEND") {
                Ok(s) if s != "auto" => {
                    Some(s.parse().map_err(|_| EngineError::BackendAbsent { found: s.clone() })?)
                }
                _ => None,
            },
        };
        if let Some(b) = backend
            && b != Backend::Scalar
        {
            return Err(EngineError::BackendAbsent { found: b.to_string() });
        }
        let threads = o.threads.unwrap_or(2);
        if threads == 0 || threads > 256 {
            return Err(EngineError::Threads { found: threads });
        }
        Ok(Engine { threads, profile: DeviceProfile })
    }
    pub fn backend(&self) -> Backend {
        Backend::Scalar
    }
    pub fn threads(&self) -> usize {
        self.threads
    }
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }
    pub fn plan(&self, problem: &Problem, o: &PlanOptions) -> Result<Plan, PlanError> {
        let needed = (problem.keys() + 64) * 4;
        if let Some(budget) = o.budget
            && budget < needed
        {
            return Err(PlanError::Budget { needed, budget });
        }
        Ok(Plan { problem: *problem, needed })
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Elsa,
    Math,
}
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    pub method: Method,
    pub block: usize,
    pub budget: Option<usize>,
}
impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions { method: Method::Elsa, block: 64, budget: None }
    }
}
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    #[error("budget: {budget} bytes; allowed: at least {needed}")]
    Budget { needed: usize, budget: usize },
    #[error("out of memory")]
    Memory,
}
#[derive(Clone, Debug)]
pub struct Plan {
    problem: Problem,
    needed: usize,
}
pub struct Workspace {
    scores: Vec<f32>,
}
#[derive(Clone, Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    Problem(#[from] ProblemError),
}
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {}
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub backend: Backend,
}
pub struct Bound<'a> {
    plan: &'a Plan,
    inputs: Inputs<'a>,
    outputs: Outputs<'a>,
    ws: &'a mut Workspace,
}
impl Plan {
    pub fn workspace_bytes(&self) -> usize {
        self.needed
    }
    pub fn kernel(&self) -> &'static str {
        "stand_in"
    }
    pub fn workspace(&self) -> Result<Workspace, PlanError> {
        Ok(Workspace { scores: vec![0.0; self.problem.keys()] })
    }
    pub fn bind<'a>(
        &'a self,
        inputs: Inputs<'a>,
        outputs: Outputs<'a>,
        ws: &'a mut Workspace,
    ) -> Result<Bound<'a>, BindError> {
        inputs.check(&self.problem)?;
        outputs.check(&self.problem)?;
        Ok(Bound { plan: self, inputs, outputs, ws })
    }
}
impl Bound<'_> {
    pub fn run(&mut self) -> Result<Report, RunError> {
        let p = &self.plan.problem;
        let s = *p.spec();
        let (past, dv, d) = (p.past(), p.value_dim(), p.head_dim());
        let total_q = s.query.tokens();
        for seq in 0..p.sequences() {
            let g = p.sequence(&self.inputs, seq);
            for h in 0..p.heads() {
                let kh = p.kv_head(h);
                for i in 0..g.queries {
                    let qr = s.query.row(g.batch, h, g.query0 + i);
                    let (a, e) = g.range(i);
                    let mut m = f32::NEG_INFINITY;
                    for j in a..e {
                        let mut dot = 0f32;
                        for c in 0..d {
                            let k = if j < past {
                                self.inputs.past_key.unwrap().get(s.past_key.unwrap().row(g.batch, kh, j) + c)
                            } else {
                                self.inputs.key.get(s.key.row(g.batch, kh, g.key0 + j - past) + c)
                            };
                            dot += self.inputs.query.get(qr + c) * k;
                        }
                        let mut x = dot * p.scale();
                        if let Some(cap) = s.softcap {
                            x = cap * (x / cap).tanh();
                        }
                        if let Some(mv) = &s.mask {
                            let b = self.inputs.mask.unwrap().bias(mv.row(seq, h, i).index(j));
                            x = if b == f32::NEG_INFINITY { b } else { x + b };
                        }
                        self.ws.scores[j] = x;
                        if x > m {
                            m = x;
                        }
                    }
                    let mut sum = 0f32;
                    for j in a..e {
                        let w = if self.ws.scores[j] == f32::NEG_INFINITY {
                            0.0
                        } else {
                            (self.ws.scores[j] - m).exp()
                        };
                        self.ws.scores[j] = w;
                        sum += w;
                    }
                    let or = s.output.row(g.batch, h, g.query0 + i);
                    let n = (g.batch * p.heads() + h) * total_q + g.query0 + i;
                    for c in 0..dv {
                        let mut acc = 0f32;
                        for j in a..e {
                            let w = self.ws.scores[j];
                            if w != 0.0 {
                                let v = if j < past {
                                    self.inputs
                                        .past_value
                                        .unwrap()
                                        .get(s.past_value.unwrap().row(g.batch, kh, j) + c)
                                } else {
                                    self.inputs.value.get(s.value.row(g.batch, kh, g.key0 + j - past) + c)
                                };
                                acc += w * v;
                            }
                        }
                        self.outputs.output.set(or + c, if sum == 0.0 { 0.0 } else { acc / sum });
                        if let Some(st) = &mut self.outputs.state {
                            st.w[n * dv + c] = acc;
                        }
                    }
                    if let Some(l) = &mut self.outputs.lse {
                        l[n] = m + sum.ln();
                    }
                    if let Some(st) = &mut self.outputs.state {
                        st.m[n] = m;
                        st.s[n] = sum;
                    }
                }
            }
        }
        for (view, out, pv, pd, nv, nd) in [
            (
                s.present_key,
                &mut self.outputs.present_key,
                s.past_key,
                self.inputs.past_key,
                s.key,
                self.inputs.key,
            ),
            (
                s.present_value,
                &mut self.outputs.present_value,
                s.past_value,
                self.inputs.past_value,
                s.value,
                self.inputs.value,
            ),
        ] {
            let (Some(view), Some(out)) = (view, out) else { continue };
            let [b, h, n, d] = view.shape();
            for b in 0..b {
                for h in 0..h {
                    for t in 0..n {
                        for c in 0..d {
                            let x = if t < past {
                                pd.unwrap().get(pv.unwrap().row(b, h, t) + c)
                            } else {
                                nd.get(nv.row(b, h, t - past) + c)
                            };
                            out.set(view.row(b, h, t) + c, x);
                        }
                    }
                }
            }
        }
        Ok(Report { backend: Backend::Scalar })
    }
}
