//! Exact outputs from the oracle, and the computed outputs of a call.

use super::build::Case;
use crate::cases::{Data, each_row};
use elsa_core::linear::Outputs;
use elsa_core::linear::bound::{self, Executed, Judgement};
use elsa_core::linear::scalar::{self, Walk};
use elsa_runtime::{Engine, LinearPlan, LinearPlanOptions, LinearWorkspace, Report};

/// Exact states and outputs from the oracle, with the allowed errors of a run. Rows are stored in the order of the
/// views, without gaps.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Exact output, `[batch, output heads, tokens, d_v]`.
    pub output: Vec<f64>,
    /// Allowed error of each element of `output`.
    pub output_error: Vec<f64>,
    /// Exact states after the last token, `[sequences, state heads, d_k, d_v]`.
    pub present: Vec<f64>,
    /// Allowed error of each element of `present`.
    pub present_error: Vec<f64>,
}

/// Computed outputs of a call.
#[derive(Clone, Debug)]
pub struct LinearOutputs {
    /// Elements of the output view.
    pub output: Data,
    /// Elements of the present states, if the problem has them.
    pub present: Option<Vec<f32>>,
}

impl Case {
    /// Computes the recurrence in f64, and the allowed errors of a run. `executed` returns the arithmetic that the run
    /// executes for a sequence with a given number of tokens.
    ///
    /// # Panics
    /// Panics if the size of a buffer overflows.
    #[must_use]
    pub fn answer(&self, executed: impl Fn(usize) -> Executed) -> Answer {
        let (p, inputs) = (&self.problem, self.all_inputs());
        let (dk, dv, states, heads) = (p.key_dim(), p.value_dim(), p.state_heads(), p.output_heads());
        let tokens = p.tokens();
        let outputs = p.spec().query.batch() * heads * tokens * dv;
        let all_states = p.sequences() * states * dk * dv;
        let mut answer = Answer {
            output: vec![0.0; outputs],
            output_error: vec![0.0; outputs],
            present: vec![0.0; all_states],
            present_error: vec![0.0; all_states],
        };
        for index in 0..p.sequences() {
            let sequence = p.sequence(inputs.cu_seqlens, index);
            let executed = executed(sequence.tokens);
            let len = bound::scratch_len(p, &executed).unwrap_or_else(|| panic!("{}", self.name));
            let mut scratch = vec![0.0; len];
            for state in 0..states {
                let (first, readers) = p.readers(state);
                let mut rows = [(); 2].map(|()| vec![0.0; readers * sequence.tokens * dv]);
                let [output, output_error] = &mut rows;
                let at = (index * states + state) * dk * dv;
                let mut judgement = Judgement {
                    output,
                    output_error,
                    present: &mut answer.present[at..at + dk * dv],
                    present_error: &mut answer.present_error[at..at + dk * dv],
                };
                bound::head(p, &inputs, &executed, index, state, &mut judgement, &mut scratch);
                let all = [&mut answer.output, &mut answer.output_error];
                for (all, rows) in all.into_iter().zip(&rows) {
                    for (reader, rows) in rows.chunks(sequence.tokens.max(1) * dv).enumerate() {
                        let head = sequence.batch * heads + first + reader;
                        let to = (head * tokens + sequence.start) * dv;
                        all[to..to + rows.len()].copy_from_slice(rows);
                    }
                }
            }
        }
        answer
    }

    /// Creates buffers for the outputs of a call, filled with NaN. If the problem replaces states in place, the buffer
    /// for the present states contains the past states.
    #[must_use]
    pub fn room(&self) -> LinearOutputs {
        let spec = self.problem.spec();
        let present = spec.present_state.map(|view| match &self.past {
            Some(past) if spec.in_place => past.clone(),
            _ => vec![f32::NAN; view.extent()],
        });
        LinearOutputs { output: Data::filled(spec.dtype, spec.output.extent(), f32::NAN), present }
    }

    /// Runs core's scalar fallback. Returns all outputs.
    ///
    /// # Panics
    /// Panics if the call is refused.
    #[must_use]
    pub fn scalar(&self, walk: &Walk) -> LinearOutputs {
        let mut found = self.room();
        let len = scalar::scratch_len(&self.problem, walk).expect("the length of the scratch");
        let (inputs, mut outputs) = (self.inputs(), found.outputs());
        scalar::run(&self.problem, walk, &inputs, &mut outputs, &mut vec![f32::NAN; len]).expect("a call");
        found
    }

    /// Runs a plan of the case in `workspace`. Returns all outputs and the report.
    ///
    /// # Panics
    /// Panics if the call or its run is refused.
    pub fn run(&self, plan: &LinearPlan, workspace: &mut LinearWorkspace) -> (LinearOutputs, Report) {
        let mut found = self.room();
        let bound = plan.bind(self.inputs(), found.outputs(), workspace);
        let report = bound.expect("a call of the plan").run().expect("a run of the plan");
        (found, report)
    }

    /// Plans and runs the case with `engine`. Returns all outputs.
    ///
    /// # Panics
    /// Panics if the plan, the call or its run is refused, or if the run used a back end other than the plan's.
    #[must_use]
    pub fn run_on(&self, engine: &Engine, options: &LinearPlanOptions) -> LinearOutputs {
        let plan = engine.linear_plan(&self.problem, options).expect("a plan of the case");
        let (found, report) = self.run(&plan, &mut plan.workspace().expect("a workspace"));
        assert_eq!(report.backend, plan.backend(), "{}", self.name);
        found
    }

    /// Runs the case like [`Case::run_on`], and asserts that its outputs are within the bound of the executed plan. Returns
    /// the outputs, together with the exact outputs.
    ///
    /// # Panics
    /// Panics as [`Case::run_on`] and [`LinearOutputs::check`] do.
    pub fn check_on(&self, engine: &Engine, options: &LinearPlanOptions) -> (LinearOutputs, Answer) {
        let plan = engine.linear_plan(&self.problem, options).expect("a plan of the case");
        let answer = self.answer(|tokens| plan.executed_of(plan.backend(), tokens));
        let found = self.run_on(engine, options);
        found.check(self, &answer);
        (found, answer)
    }
}

impl LinearOutputs {
    /// Borrows all outputs.
    pub fn outputs(&mut self) -> Outputs<'_> {
        Outputs { output: Some(self.output.elements_mut()), present_state: self.present.as_deref_mut() }
    }

    /// Returns the bits of every element, including those in gaps between rows.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        let output = (0..self.output.len()).map(|i| self.output.get(i).to_bits());
        output.chain(self.present.iter().flatten().map(|x| x.to_bits())).collect()
    }

    /// Returns the elements of the output, row by row.
    #[must_use]
    pub fn rows(&self, case: &Case) -> Vec<f64> {
        let view = case.problem.spec().output;
        let mut rows = Vec::new();
        each_row(&view, |row| rows.extend((0..view.dim()).map(|x| f64::from(self.output.get(row + x)))));
        rows
    }

    /// Returns the elements of the present states, row by row; empty without present states.
    #[must_use]
    pub fn states(&self, case: &Case) -> Vec<f64> {
        let (Some(view), Some(present)) = (case.problem.spec().present_state, &self.present) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        each_row(&view, |row| rows.extend(present[row..row + view.dim()].iter().map(|x| f64::from(*x))));
        rows
    }

    /// Asserts that every error is allowed, and that no element between rows was written.
    ///
    /// # Panics
    /// Panics if an error exceeds its limit, or if an element between rows was written.
    pub fn check(&self, case: &Case, answer: &Answer) {
        let spec = case.problem.spec();
        let (rows, states) = (self.rows(case), self.states(case));
        let given = if states.is_empty() { 0 } else { answer.present.len() };
        for (what, found, exact, allowed) in [
            ("output", &rows, &answer.output[..], &answer.output_error[..]),
            ("present", &states, &answer.present[..given], &answer.present_error[..given]),
        ] {
            assert_eq!(found.len(), exact.len(), "{what} of {}", case.name);
            for (i, (found, (exact, allowed))) in found.iter().zip(exact.iter().zip(allowed)).enumerate() {
                let error = (found - exact).abs();
                let bounded = error <= *allowed || !allowed.is_finite() && !exact.is_finite();
                assert!(bounded, "{what} {i}: {found}, not {exact}: {error:e} > {allowed:e}; {}", case.name);
            }
        }
        let between = |view: &elsa_core::view::View, nan: &dyn Fn(usize) -> bool| {
            let mut inside = vec![false; view.extent()];
            each_row(view, |row| inside[row..row + view.dim()].fill(true));
            for (i, inside) in inside.iter().enumerate() {
                assert!(*inside || nan(i), "element {i} between rows was written; {}", case.name);
            }
        };
        between(&spec.output, &|i| self.output.get(i).is_nan());
        if let (Some(view), Some(present)) = (&spec.present_state, &self.present) {
            between(view, &|i| present[i].is_nan());
        }
    }
}
