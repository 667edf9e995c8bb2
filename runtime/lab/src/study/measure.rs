//! Runs every schedule over the tiles of a problem, and compares the outputs with exact attention in f64.

use super::maxima::{Maxima, probabilities};
use super::places::{Place, TILE, places};
use super::settings::{Setting, settings};
use super::tokens::{Side, sides};
use elsa_cli::error::Error;
use elsa_cli::left_out::spread;
use elsa_cli::oracle::{key, value};
use elsa_cli::picture::HeatMap;
use elsa_cli::progress;
use elsa_cli::rows::for_items;
use elsa_core::attention::bound::rounding::{Component, Row};
use elsa_core::attention::bound::{Arithmetic, Score};
use elsa_core::attention::traversal::scalar::{Answer, Call, executed};
use elsa_core::attention::traversal::{Room, RowRoom, TraversalReport, scratch_len};
use elsa_core::attention::{Inputs, Problem, Sequence, reference, scalar};
use elsa_files::{Buffer, zeros};
use std::f64::consts::LN_2;

/// If all schedules together need more than this number of multiply-adds, only a sample of the tiles is run.
const WORK: u64 = 3 << 32;

/// Number of multiply-adds per tile above which a problem is refused.
const REFUSED: u64 = 16 * WORK;

/// Maximum number of keys, summed over the rows whose bounds are computed.
const BOUNDED_KEYS: usize = 1 << 19;

/// Maximum number of rows whose bounds are computed.
const BOUNDED: usize = 512;

/// Number of groups into which the tiles are divided. The groups are distributed over threads.
const GROUPS: usize = 32;

/// Errors of a schedule's outputs relative to exact attention.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Largest absolute error of a component.
    pub worst: f64,
    /// Sum, over the compared rows, of the largest error of a row.
    pub sum: f64,
    /// Number of compared rows. A row is compared only if all of its errors are finite.
    pub rows: u64,
    /// Number of rows whose bounds were computed.
    pub bounded: u64,
    /// Largest bound of a component, over the rows whose bounds were computed.
    pub bound: f64,
    /// Largest ratio of a component's error to its bound.
    pub used: f64,
    /// Number of components whose errors exceed their bounds.
    pub beyond: u64,
}

impl Errors {
    /// Returns the mean, over the compared rows, of the largest error of a row.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.sum / self.rows as f64 }
    }

    fn merge(&mut self, other: &Errors) {
        self.worst = self.worst.max(other.worst);
        self.sum += other.sum;
        self.rows += other.rows;
        self.bounded += other.bounded;
        self.bound = self.bound.max(other.bound);
        self.used = self.used.max(other.used);
        self.beyond += other.beyond;
    }
}

/// Results of one schedule.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The schedule, with its place in a table.
    pub setting: Setting,
    /// Counts of skipped blocks, rescales and recomputed rows.
    pub report: TraversalReport,
    /// Errors of the outputs.
    pub errors: Errors,
}

/// Results of a problem, as its page shows them.
#[derive(Debug)]
pub struct Study {
    /// Name of the case.
    pub name: String,
    /// Five sizes: the number of query heads of all sequences together, the number of queries and the number of keys of
    /// the longest sequence, and the head sizes of keys and of values.
    pub shape: [usize; 5],
    /// Element type.
    pub dtype: &'static str,
    /// Number of tiles that were run, and number of all tiles.
    pub tiles: [usize; 2],
    /// Number of rows that were run, and number of all rows.
    pub rows: [usize; 2],
    /// Results of each schedule.
    pub outcomes: Vec<Outcome>,
    /// Positions of the largest scores.
    pub maxima: Maxima,
    /// Similarity and norms of the queries, then of the keys.
    pub sides: [Side; 2],
    /// Probabilities of the first head.
    pub map: HeatMap,
    /// Largest difference, in any one dim, between two values that the same row may attend.
    pub spread: f64,
}

/// Data from which the bounds of a row are computed.
struct Bounded {
    ln_p: Vec<f64>,
    /// Index, score and magnitude of the bias of every attended key.
    keys: Vec<(usize, Score, f64)>,
    /// Bounds of the exact schedule, by component.
    exact: Vec<f64>,
}

/// Exact results of a row, with which the outputs of the schedules are compared.
struct Known {
    lse: f64,
    y: Vec<f64>,
    bounded: Option<Bounded>,
}

/// Results of a group of tiles.
struct Group {
    maxima: Maxima,
    outcomes: Vec<(TraversalReport, Errors)>,
}

/// Runs every schedule on a problem, and computes the similarity, norms and probabilities of the problem's tensors.
///
/// # Errors
/// Returns an error if a single tile of the problem would take too long, or if the system refuses memory.
pub fn study(name: &str, problem: &Problem, inputs: Inputs<'_>) -> Result<Study, Error> {
    let settings = settings();
    let all = places(problem, &inputs);
    let chosen = choose(problem, &inputs, &all, settings.len())?;
    let rows: usize = chosen.iter().map(|place| place.rows.len()).sum();
    let bounded = (BOUNDED_KEYS / problem.keys().max(1)).clamp(1, BOUNDED);
    let step = rows.div_ceil(bounded).max(1);
    let groups: Vec<&[Place]> = chosen.chunks(chosen.len().div_ceil(GROUPS).max(1)).collect();
    let weight = multiply_adds(problem, &inputs, &chosen, settings.len());
    let seconds = weight as f64 / 1e9 / elsa_cli::machine::cores() as f64;
    let bar = progress::bar((groups.len() * (settings.len() + 1)) as u64, seconds);
    bar.set_message(format!("schedules on {name}"));
    let of_group = |places: &&[Place]| group(problem, &inputs, &settings, places, step, &|| bar.inc(1));
    let done = for_items(&groups, 1, || (), |(), places| of_group(places), |_| {});
    bar.finish_and_clear();
    let mut maxima = Maxima::default();
    let new = |setting: &Setting| {
        let (report, errors) = Default::default();
        Outcome { setting: *setting, report, errors }
    };
    let mut outcomes: Vec<Outcome> = settings.iter().map(new).collect();
    for group in done {
        let group = group?;
        maxima.merge(group.maxima);
        for (outcome, (report, errors)) in outcomes.iter_mut().zip(&group.outcomes) {
            outcome.report.add(report);
            outcome.errors.merge(errors);
        }
    }
    let spec = problem.spec();
    Ok(Study {
        name: name.to_owned(),
        shape: [
            problem.sequences() * problem.heads(),
            longest(problem, &inputs, |s| s.queries),
            longest(problem, &inputs, |s| s.keys),
            problem.head_dim(),
            problem.value_dim(),
        ],
        dtype: spec.dtype.name(),
        tiles: [chosen.len(), all.len()],
        rows: [rows, all.iter().map(|place| place.rows.len()).sum()],
        outcomes,
        maxima,
        sides: sides(problem, &inputs),
        map: probabilities(problem, &inputs),
        spread: spread(problem, &inputs),
    })
}

/// Returns the maximum over all sequences of the number that `of` returns.
fn longest(problem: &Problem, inputs: &Inputs<'_>, of: fn(&Sequence) -> usize) -> usize {
    (0..problem.sequences()).map(|s| of(&problem.sequence(&inputs.lengths, s))).max().unwrap_or(0)
}

/// Returns the number of multiply-adds that `schedules` schedules need for the given tiles.
fn multiply_adds(problem: &Problem, inputs: &Inputs<'_>, tiles: &[Place], schedules: usize) -> u64 {
    let dims = (problem.head_dim() + problem.value_dim()) as u64;
    let pairs = |place: &Place| {
        let sequence = problem.sequence(&inputs.lengths, place.sequence);
        let (any, _) = sequence.ranges(place.rows.clone());
        (place.rows.len() as u64).saturating_mul(any.len() as u64)
    };
    let pairs: u64 = tiles.iter().map(pairs).fold(0, u64::saturating_add);
    pairs.saturating_mul(dims).saturating_mul(schedules as u64)
}

/// Returns the tiles to run: all of them, or an evenly spread sample.
fn choose(
    problem: &Problem,
    inputs: &Inputs<'_>,
    all: &[Place],
    schedules: usize,
) -> Result<Vec<Place>, Error> {
    let work = multiply_adds(problem, inputs, all, schedules);
    if work <= WORK {
        return Ok(all.to_vec());
    }
    let count = (u128::from(WORK) * all.len() as u128 / u128::from(work)).max(1) as usize;
    if work / all.len() as u64 > REFUSED {
        let found =
            format!("{} keys, of which one tile of {} rows takes too long", problem.keys(), TILE.rows);
        let allowed = "fewer keys, or smaller heads".to_owned();
        return Err(Error::Argument { argument: "k", found, allowed });
    }
    // The list is divided into equal parts, and the middle tile of each part is taken.
    Ok((0..count).map(|i| all[(2 * i + 1) * all.len() / (2 * count)].clone()).collect())
}

/// Runs every schedule over the given tiles. Bounds are computed for every `step`th row.
fn group(
    problem: &Problem,
    inputs: &Inputs<'_>,
    settings: &[Setting],
    tiles: &[Place],
    step: usize,
    done: &(dyn Fn() + Sync),
) -> Result<Group, Error> {
    let spec = problem.spec();
    let mut maxima = Maxima::default();
    let mut known = Vec::new();
    for place in tiles {
        let mut scores = Vec::new();
        for i in place.rows.clone() {
            let (row, of_row) = know(problem, inputs, place, i, known.len() % step == step / 2);
            scores.push(of_row);
            known.push(row);
        }
        maxima.absorb(problem, inputs, TILE.keys, place, &scores);
    }
    done();
    let mut floats = zeros("k", scratch_len(problem, TILE).unwrap_or(usize::MAX))?;
    let mut list = [RowRoom::default(); TILE.rows];
    let mut room = Room { floats: &mut floats, rows: &mut list };
    // Output of one row, in the element type of the output.
    let mut output = Buffer::zeros("v", spec.dtype, problem.value_dim())?;
    let mut outcomes = Vec::with_capacity(settings.len());
    for setting in settings {
        let arithmetic = Arithmetic::of(problem, executed(problem, &setting.schedule, TILE));
        let call = Call::new(problem, &setting.schedule, TILE, inputs, None);
        let (mut report, mut errors) = (TraversalReport::default(), Errors::default());
        let mut rows = known.as_slice();
        for place in tiles {
            let sequence = problem.sequence(&inputs.lengths, place.sequence);
            let (of_tile, rest) = rows.split_at(place.rows.len());
            rows = rest;
            let values = Values { problem, inputs, sequence: &sequence, head: place.head };
            call.tile(&sequence, place.head, place.rows.clone(), &mut room, &mut report, &mut |answer| {
                let Answer { row, mut state, share, .. } = answer;
                let m = state.m;
                state.finish();
                state.w.iter().enumerate().for_each(|(x, y)| output.elements_mut().set(x, *y));
                let found = |x: usize| f64::from(output.elements().get(x));
                let Some(row) = of_tile.get(row - place.rows.start) else { return };
                compare(&values, arithmetic, row, [m, share], found, &mut errors);
            });
        }
        outcomes.push((report, errors));
        done();
    }
    Ok(Group { maxima, outcomes })
}

/// The value vectors that a query head of a sequence attends.
struct Values<'a> {
    problem: &'a Problem,
    inputs: &'a Inputs<'a>,
    sequence: &'a Sequence,
    head: usize,
}

/// Computes the exact results of row `i`, and the row's score for each key. If `with_bounds` is set, also computes the
/// data for the row's bounds.
fn know(
    problem: &Problem,
    inputs: &Inputs<'_>,
    place: &Place,
    i: usize,
    with_bounds: bool,
) -> (Known, Vec<f64>) {
    let (s, head) = (place.sequence, place.head);
    let sequence = problem.sequence(&inputs.lengths, s);
    let mut y = vec![0.0; problem.value_dim()];
    let row = reference::row(problem, inputs, s, head, i, &mut y);
    let mut ln_p = Vec::new();
    reference::log_probabilities(problem, inputs, s, head, i, &row, |_, x| {
        ln_p.push(x.unwrap_or(f64::NEG_INFINITY));
    });
    let scores = ln_p.iter().map(|x| x + row.lse).collect();
    let bounded = with_bounds.then(|| {
        let exact = Arithmetic::of(problem, scalar::executed(problem));
        let q0 = problem.spec().query.row(sequence.batch, head, sequence.query0 + i);
        let q: Vec<f32> = (0..problem.head_dim()).map(|x| inputs.query.get(q0 + x)).collect();
        let attended = (0..ln_p.len()).filter(|j| ln_p[*j] != f64::NEG_INFINITY);
        let keys: Vec<(usize, Score, f64)> = attended
            .map(|j| {
                let (elements, at) = key(problem, inputs, &sequence, problem.kv_head(head), j);
                let score = exact.score(&q, |x| elements.get(at + x));
                (j, score, reference::bias_magnitude(problem, inputs, s, head, i, j))
            })
            .collect();
        let values = Values { problem, inputs, sequence: &sequence, head };
        let bounds = values.bounds(Row::new(exact, &ln_p), &exact, &y, &keys, 0.0);
        (keys, bounds)
    });
    let bounded = bounded.map(|(keys, exact)| Bounded { ln_p, keys, exact });
    (Known { lse: row.lse, y, bounded }, scores)
}

impl Values<'_> {
    /// Returns the error bound of each component of a row. `share` is the share of the row's weights that the schedule
    /// left out.
    fn bounds(
        &self,
        mut row: Row<'_>,
        arithmetic: &Arithmetic,
        y: &[f64],
        keys: &[(usize, Score, f64)],
        share: f64,
    ) -> Vec<f64> {
        let mut components: Vec<Component> = y.iter().map(|y| Component::new(arithmetic, *y)).collect();
        for (j, score, bias) in keys {
            let absorbed = row.absorb(*j, score, *bias);
            let kv_head = self.problem.kv_head(self.head);
            let (elements, at) = value(self.problem, self.inputs, self.sequence, kv_head, *j);
            for (x, component) in components.iter_mut().enumerate() {
                component.absorb(&absorbed, f64::from(elements.get(at + x)));
            }
        }
        let worst = |component: &Component| match share {
            0.0 => row.bounds(component).worst,
            share => row.bounds_left_out(component, share).worst,
        };
        components.iter().map(worst).collect()
    }
}

/// Compares the output of a row with exact attention, and the errors with the row's bounds. `m` is the reference of the
/// row's state in base-2 units, and `share` is the share of the weights that the schedule left out.
fn compare(
    values: &Values<'_>,
    arithmetic: Arithmetic,
    row: &Known,
    [m, share]: [f32; 2],
    found: impl Fn(usize) -> f64,
    errors: &mut Errors,
) {
    let off: Vec<f64> = row.y.iter().enumerate().map(|(x, y)| (found(x) - y).abs()).collect();
    if !off.iter().all(|off| off.is_finite()) {
        return;
    }
    let most = off.iter().copied().fold(0.0, f64::max);
    errors.worst = errors.worst.max(most);
    errors.sum += most;
    errors.rows += 1;
    let Some(Bounded { ln_p, keys, exact }) = &row.bounded else { return };
    errors.bounded += 1;
    let ln_s = if row.lse.is_finite() { row.lse - f64::from(m) * LN_2 } else { 0.0 };
    let frozen = Row::frozen(arithmetic, ln_p, ln_s);
    let bounds = values.bounds(frozen, &arithmetic, &row.y, keys, share.into());
    for ((off, frozen), exact) in off.into_iter().zip(bounds).zip(exact) {
        // A row that did not pass the guard has the output of the exact schedule.
        let bound = frozen.max(*exact);
        errors.bound = errors.bound.max(bound);
        // If the error or the bound is NaN, the component counts as beyond its bound.
        let within = off <= bound;
        errors.beyond += u64::from(!within);
        if off > 0.0 {
            errors.used = errors.used.max(off / bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Table;
    use super::*;
    use elsa_cli::scenario::Scenario;
    use elsa_cli::shape::Shape;
    use elsa_core::dtype::{DType, Elements};

    #[test]
    fn answers_are_within_their_bounds_and_counts_add_up() {
        let mut random = elsa_cli::random::Random::new(3);
        let problem = Shape::plain(1, 2, 130, 130, 8).problem(DType::F32).unwrap();
        let mut tensor = |scale| random.normals("q", DType::F32, 2 * 130 * 8, scale).unwrap();
        let (q, k, v) = (tensor(6.0), tensor(1.0), tensor(1.0));
        let study = study("given", &problem, Inputs::new(q.elements(), k.elements(), v.elements())).unwrap();
        assert_eq!((study.tiles, study.rows, study.shape), ([6, 6], [260, 260], [2, 130, 130, 8, 8]));
        assert_eq!(study.maxima.rows(), 260);
        let mut skipped = 0;
        for Outcome { setting, report, errors } in &study.outcomes {
            assert_eq!(report.accepted + report.recomputed, 260, "{setting:?}");
            // Three blocks of keys for each of six tiles.
            assert_eq!((report.blocks, report.row_blocks), (18, 780), "{setting:?}");
            assert_eq!((errors.rows, errors.beyond), (260, 0), "{setting:?} {errors:?}");
            assert!(
                errors.bounded > 200 && errors.used > 0.0 && errors.used <= 1.0,
                "{setting:?} {errors:?}"
            );
            assert!(errors.mean() <= errors.worst && errors.worst <= errors.bound, "{setting:?} {errors:?}");
            skipped += report.skipped_row_blocks;
            if setting.table == Table::Third {
                assert_eq!(report.skipped_row_blocks, 0);
            }
        }
        assert!(skipped > 0);
    }

    #[test]
    fn what_is_huge_is_sampled_or_refused() {
        let zeros = vec![0.0f32; 16];
        let tensor = Elements::F32(&zeros);
        let inputs = Inputs::new(tensor, tensor, tensor);
        let of = |tokens| {
            let problem = Shape::plain(1, 4, tokens, tokens, 64).problem(DType::F32).unwrap();
            let all = places(&problem, &inputs);
            let chosen = choose(&problem, &inputs, &all, 37).map(|chosen| {
                assert!(chosen.windows(2).all(|x| x[0] != x[1]));
                assert!(multiply_adds(&problem, &inputs, &chosen, 37) <= WORK);
                chosen.len()
            });
            (chosen, all.len())
        };
        assert!(matches!(of(512), (Ok(32), 32)));
        let (chosen, all) = of(8192);
        assert!(chosen.as_ref().is_ok_and(|n| (2..all).contains(n)), "{chosen:?} {all}");
        let refused = of(1 << 20).0.unwrap_err();
        assert!(refused.status() == 2 && refused.to_string().starts_with("--k: 1048576 keys"), "{refused}");
    }

    #[test]
    fn the_sink_scenario_has_a_sink_and_locals() {
        let cases = Scenario::Sink.cases().unwrap();
        let case = &cases[0];
        let map = probabilities(&case.problem, &case.inputs());
        let cells = &map.cells;
        let n = cells.len();
        // The first column and the diagonal outweigh the cells between them.
        let (row, middle) = (&cells[n - 4], n / 2);
        assert!(row[0] > 10.0 * row[middle] && row[n - 4] > 10.0 * row[middle], "{row:?}");
    }
}
