//! Files of tasks merge to the bits of a merge in memory, for every element type, layout, budget and order of the files.

use super::*;
use crate::task::{Description, Kind, Whole};
use crate::{Accept, Buffer, Data, Output, Reads, Tensor, TensorPath, Writer};
use elsa_core::attention::{Lengths, Spec};
use elsa_core::dtype::DType;
use elsa_core::quorum::{Division, Task};
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};
use elsa_runtime::{RowStates, TaskMerge};
use std::path::{Path, PathBuf};

const SIZES: [usize; 4] = [2, 3, 8, 5];
const TASKS: usize = 7;

/// Writes files with random states of all tasks to `folder`. Returns their paths, and the states merged in memory.
fn files(folder: &Path, dtype: DType, run: &str) -> (Vec<PathBuf>, RowStates) {
    let [batch, heads, tokens, dim] = SIZES;
    let view = View::bhnd("q", SIZES).unwrap();
    let problem = Spec::new(dtype, view, view, view, view).check().unwrap();
    let division = Division::new(&[TASKS]).unwrap();
    let whole = Whole::of(&division, &problem, [tokens; 2], &Lengths::default(), Some(run));
    let mut random = Random::new(5);
    let mut merge = TaskMerge::new(batch * heads, tokens, dim, TASKS).unwrap();
    let paths = (0..TASKS as u64).map(|number| {
        let path = division.path(number).unwrap();
        let task = Task::new(&division, &path, tokens, tokens).unwrap();
        let mut states = RowStates::empty(batch * heads * task.query_tokens(), dim).unwrap();
        let mut number = || random.below(2001) as f32 / 100.0 - 10.0;
        states.m.iter_mut().for_each(|m| *m = number());
        states.s.iter_mut().for_each(|s| *s = number().abs() + 1.0);
        states.w.iter_mut().for_each(|w| *w = number());
        merge.push(task.queries(), &states).unwrap();
        let file = folder.join(format!("task{path}.npz"));
        let mut writer = Writer::new(Reads::new(false));
        writer.add_archive("path", &file).unwrap();
        let description = Description { kind: Kind::States, whole: whole.clone(), path };
        let arrays = description.states_to_arrays(&task, Default::default(), states);
        writer.commit(&[Output::Archive(arrays)]).unwrap();
        file
    });
    (paths.collect(), merge.finish())
}

fn merged(paths: &[PathBuf], sought: &Sought<'_>, bytes: Option<usize>) -> Result<Merged, MergeError> {
    let budget = Budget { argument: "host_budget", bytes, fixed: 1000 };
    Answer::merge("paths", paths, ("run", Some("r")), sought, budget)
}

/// Reads the elements of a `.npy` file, which must have the shape `shape`.
fn read(path: &Path, shape: &[usize]) -> Vec<u8> {
    let source: TensorPath = path.to_str().unwrap().parse().unwrap();
    assert_eq!(Tensor::shape_at("out", &source).unwrap(), shape);
    let bytes = std::fs::read(path).unwrap();
    let contents = crate::read(
        &mut std::io::Cursor::new(&bytes),
        bytes.len() as u64,
        crate::Format::Npy,
        None,
        Accept::Float,
    );
    match contents.unwrap().data {
        Data::Float(data) => data.bytes().to_vec(),
        _ => panic!("{}: not floating-point", path.display()),
    }
}

#[test]
fn files_merge_to_the_bits_of_a_merge_in_memory() {
    let [batch, heads, tokens, dim] = SIZES;
    for (dtype, layout) in
        [(DType::F32, Layout::Bhnd), (DType::F16, Layout::Bnc), (DType::Bf16, Layout::Bnhd)]
    {
        let folder = tempfile::tempdir().unwrap();
        let (mut paths, states) = files(folder.path(), dtype, "r");
        let (out, lse) = (folder.path().join("y.npy"), folder.path().join("l.npy"));
        let shape = shape(layout, SIZES);
        let view = View::dense("out", layout, &shape, Some(heads)).unwrap();
        let mut data = Buffer::zeros("out", dtype, view.extent()).unwrap();
        states.output(&view, &mut data.elements_mut());
        let want = match &data {
            Buffer::Bf16(x) => x.iter().flat_map(|x| x.to_f32().to_le_bytes()).collect(),
            data => data.bytes().to_vec(),
        };
        let want_lse: Vec<u8> = states.log_sum_exp().flat_map(f32::to_le_bytes).collect();
        let sought = Sought { layout, out: Some(&out), lse: Some(&lse) };
        let Err(MergeError::Budget { least, .. }) = merged(&paths, &sought, Some(0)) else {
            panic!("a budget of nothing is refused");
        };
        let token = least - 1000;
        for (bytes, windows) in [
            (None, 1),
            (Some(least + token), tokens.div_ceil(2)),
            (Some(least + 3 * token), tokens.div_ceil(4)),
        ] {
            paths.rotate_left(3);
            let done = merged(&paths, &sought, bytes).unwrap();
            assert_eq!(done.windows, windows);
            assert_eq!(read(&out, &shape), want, "{dtype:?} {layout:?} {windows}");
            assert_eq!(read(&lse, &[batch, heads, tokens]), want_lse, "{dtype:?} {layout:?} {windows}");
            assert!(done.bytes >= 4 * batch * heads * tokens * (dim + 2));
        }
    }
}

#[test]
fn refusals_are_typed_and_write_nothing() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let paths = files(own.path(), DType::F32, "r").0;
    let out = own.path().join("y.npy");
    let sought = Sought { layout: Layout::Bhnd, out: Some(&out), lse: None };
    let refused = |paths: &[PathBuf]| merged(paths, &sought, None).err().unwrap();
    assert!(matches!(refused(&[]), MergeError::Empty));
    let missing = refused(&paths[1..]);
    assert!(matches!(missing, MergeError::Missing { number: Some(0), tasks: 7, .. }), "{missing}");
    let mut mixed = paths.clone();
    mixed[5] = paths[2].clone();
    assert!(matches!(refused(&mixed), MergeError::Twice { paths, .. } if paths.len() == 2));
    mixed[5] = paths[5].clone();
    mixed[2] = files(other.path(), DType::F32, "s").0.swap_remove(2);
    assert!(matches!(refused(&mixed), MergeError::Problem { name: "run_id", .. }));
    mixed[2] = files(other.path(), DType::F16, "r").0.swap_remove(2);
    assert!(matches!(refused(&mixed), MergeError::Problem { name: "rules", .. }));
    mixed[2] = own.path().join("absent.npz");
    assert!(matches!(refused(&mixed), MergeError::File(_)));
    assert!(matches!(refused(&files(other.path(), DType::F32, "s").0), MergeError::Run { .. }));
    let inside = Sought { out: Some(&paths[3]), ..sought.clone() };
    assert!(matches!(merged(&paths, &inside, None), Err(MergeError::File(_))));
    assert!(!out.exists());
    assert!(merged(&paths, &sought, None).is_ok() && out.exists());
}
