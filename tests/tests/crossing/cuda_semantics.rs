//! Tests GPU streams of problems with masks, biases, a past, windows of pictures and packed sequences. A stream whose data
//! arrives with each chunk of keys has the bits of the run in memory, and the output agrees with f64.

use crate::cuda_stream::{options, streamed, unit};
use elsa_core::attention::{Alignment, MaskKind, Operand, Window, Windows};
use elsa_core::dtype::DType;
use elsa_oracle::cases::{BiasParams, Case, MaskData, MaskParams, Params, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_runtime::{
    Engine, Fallback, Fitted, GpuStream, GpuStreamOptions, KeysFrom, PlanOptions, StreamBudget,
    StreamDivision, StreamError, StreamWants,
};

const F32: MaskKind = MaskKind::Additive(DType::F32);
const F16: MaskKind = MaskKind::Additive(DType::F16);

fn mask(kind: MaskKind, dims: &[usize]) -> Option<MaskParams> {
    Some(MaskParams { kind, dims: dims.to_vec(), density: 0.7 })
}

fn bias(dims: &[usize]) -> Option<BiasParams> {
    Some(BiasParams::Dense(MaskParams { kind: F32, dims: dims.to_vec(), density: 0.9 }))
}

/// Returns cases with masks and biases.
fn added() -> Vec<Case> {
    let p = Params { heads: 2, kv_heads: 1, ..Params::plain(70, 300, 32, 32) };
    let batch = Params { batch: 4, ..Params { heads: 2, kv_heads: 2, ..Params::plain(9, 193, 16, 24) } };
    let causal = Some(Alignment::BottomRight);
    let table = |entries| Some(BiasParams::Table { dtype: DType::F16, entries, density: 0.9 });
    let mut cases = vec![
        Params { mask: mask(MaskKind::Bool, &[70, 300]), ..p.clone() }.build("a boolean mask"),
        Params { mask: mask(F32, &[2, 70, 300]), causal, ..p.clone() }.build("an additive mask"),
        Params { mask: mask(F16, &[70, 130]), softcap: Some(5.0), ..p.clone() }.build("a mask of fewer keys"),
        Params { mask: mask(MaskKind::Bool, &[70, 1]), ..p.clone() }.build("whole rows"),
        Params { mask: mask(F32, &[2, 1, 1, 193]), ..batch.clone() }.build("keys of every second sequence"),
        Params { mask: mask(MaskKind::Bool, &[193]), lengths: true, ..batch.clone() }.build("keys of all"),
        Params { bias: bias(&[2, 70, 300]), mask: mask(MaskKind::Bool, &[70, 300]), ..p.clone() }
            .build("a bias beside a mask"),
        Params { bias: bias(&[2, 1, 300]), causal, ..p.clone() }.build("distances of heads"),
        Params { bias: table(Some(11)), mask: mask(F32, &[193]), ..batch.clone() }
            .build("a table with an index"),
        Params { mask: mask(F32, &[1, 257]), heads: 4, kv_heads: 1, ..Params::plain(1, 257, 64, 64) }
            .build("one query"),
    ];
    // Masked keys may contain anything, and a row may attend no key.
    if let Some(MaskData::Bool(x)) = &mut cases[0].mask {
        x[..300].fill(0);
        x.iter_mut().skip(299).step_by(300).for_each(|x| *x = 0);
    }
    cases[0].fill_key(0, 299, f32::NAN);
    cases[0].fill_value(0, 299, f32::INFINITY);
    cases
}

/// Returns cases with past keys and values.
fn past() -> Vec<Case> {
    let p = Params { heads: 2, kv_heads: 1, past: Some(100), ..Params::plain(70, 170, 32, 32) };
    let (top, bottom) = (Some(Alignment::TopLeft), Some(Alignment::BottomRight));
    vec![
        p.build("a past"),
        Params { causal: top, ..p.clone() }.build("a past, the first query at the first new key"),
        Params { causal: bottom, batch: 2, lengths: true, ..p.clone() }.build("a past, lengths"),
        Params {
            window: Window { left: Some(60), right: Some(9) },
            mask: mask(F32, &[70, 270]),
            ..p.clone()
        }
        .build("a past, a window and a mask"),
        Params { past: Some(0), causal: bottom, ..p.clone() }.build("an empty past"),
    ]
}

/// Returns cases with windows of pictures.
fn windowed() -> Vec<Case> {
    let table = |entries| Some(BiasParams::Table { dtype: DType::F32, entries, density: 1.0 });
    let swin = Windows { picture: [14, 14], size: [7, 7], shift: [3, 3] };
    let large = Windows { picture: [24, 12], size: [12, 12], shift: [6, 0] };
    let p = |windows, pictures| Params {
        heads: 2,
        kv_heads: 2,
        d: 32,
        dv: 32,
        ..Params::windowed(windows, pictures)
    };
    vec![
        Params { bias: table(None), ..p(swin, 3) }.build("shifted windows with a table"),
        Params { mask: mask(MaskKind::Bool, &[4, 1, 49, 49]), ..p(swin, 2) }.build("a mask for each window"),
        Params { mask: mask(F32, &[6, 1, 49, 1]), ..p(Windows { picture: [7, 14], ..swin }, 6) }
            .build("masks that go round over pictures"),
        Params { bias: table(Some(9)), dtype: DType::F16, ..p(swin, 2) }.build("windows with an index"),
        Params { bias: table(None), ..p(large, 2) }.build("windows of three tiles"),
    ]
}

/// Returns cases with packed sequences.
fn packed() -> Vec<Case> {
    let sequences = vec![(70, 200), (0, 9), (5, 0), (1, 130), (33, 64), (0, 0), (64, 1)];
    let p = Params { heads: 4, kv_heads: 2, packed: Some(sequences), ..Params::plain(0, 0, 32, 24) };
    let window = Window { left: Some(30), right: Some(5) };
    vec![
        p.build("packed"),
        Params { causal: Some(Alignment::BottomRight), dtype: DType::F16, ..p.clone() }
            .build("packed, causal"),
        Params { window, ..p.clone() }.build("packed, a window"),
    ]
}

/// Returns a division with splits of `split` keys; for windows, one split contains all keys.
fn divided(case: &Case, rows: usize, split: usize, splits: usize) -> StreamDivision {
    match case.spec.windows {
        Some(_) => {
            let keys = case.spec.key.tokens().next_multiple_of(64);
            StreamDivision { rows: 1 << 20, keys, splits: 1 }
        }
        None => StreamDivision { rows, keys: split * splits, splits },
    }
}

/// Compares streams with runs in memory that have the same splits. The bits must be equal for any chunks and any number
/// of resident rows, and the outputs must agree with f64.
fn check(engine: &Engine, cases: Vec<Case>) {
    for case in cases {
        let problem = case.problem();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let choice = *plan.gpu_choice().unwrap();
        let mut memory = case.buffers();
        let mut workspace = plan.workspace().unwrap();
        plan.bind(case.inputs(), memory.outputs(), &mut workspace).unwrap().run().unwrap();
        case.naive().check_all(&memory, 5000).unwrap_or_else(|e| panic!("in memory, {case:?}: {e}"));
        let split = choice.chunk;
        let want = streamed(engine, &case, divided(&case, 1 << 20, split, 1), KeysFrom::Function);
        if case.spec.windows.is_some() && choice.splits > 1 {
            // In memory, a large device splits the keys of a window. A stream never does, so its bits may differ.
            case.naive().check_all(&want, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        } else {
            assert!(want.bits() == memory.bits(), "{case:?}: splits of {split}");
        }
        if case.spec.windows.is_some() {
            let placed = streamed(engine, &case, divided(&case, 1 << 20, split, 1), KeysFrom::Host);
            assert_eq!(placed.bits(), want.bits(), "{case:?}");
            continue;
        }
        let rows = unit(engine, &case);
        let want = streamed(engine, &case, divided(&case, 1 << 20, 64, 8), KeysFrom::Function);
        case.naive().check_all(&want, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        for (i, (rows, splits)) in [(rows, 1), (2 * rows, 2)].into_iter().enumerate() {
            let past = case.spec.past_key.is_some();
            let from = if past { KeysFrom::Function } else { [KeysFrom::Function, KeysFrom::Host][i] };
            let division = divided(&case, rows, 64, splits);
            let found = streamed(engine, &case, division, from);
            assert_eq!(found.bits(), want.bits(), "{case:?}: {division:?} {from:?}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn masks_and_biases_pass_with_their_keys() {
    check(&gpu_engine(Fallback::Fail), added());
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_past_passes_before_the_new_keys() {
    check(&gpu_engine(Fallback::Fail), past());
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn pictures_and_packed_sequences_pass_one_by_one() {
    let engine = gpu_engine(Fallback::Fail);
    check(&engine, windowed());
    check(&engine, packed());
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn hard_cases_pass_in_chunks() {
    let engine = gpu_engine(Fallback::Fail);
    let small = |case: &Case| {
        let [batch, heads, queries, _] = case.spec.query.shape();
        batch * heads * queries * case.spec.key.tokens() <= 40_000
    };
    // Cases with present tensors are omitted: a separate present needs a sink, and a present in place is refused.
    let streams = |case: &Case| case.spec.present_key.is_none() && case.spec.present_value.is_none();
    let cases: Vec<Case> =
        hard_cases().into_iter().filter(|case| streams(case) && small(case)).step_by(9).collect();
    assert!(cases.len() > 20, "{}", cases.len());
    for case in &cases {
        let division = divided(case, unit(&engine, case), 64, 2);
        let found = streamed(&engine, case, division, KeysFrom::Function);
        case.naive().check_all(&found, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    }
    println!("{} cases", cases.len());
}

/// Runs the checks in a child process.
#[test]
#[ignore = "run by the other tests in a child"]
fn child_checks() {
    if !is_child() {
        return;
    }
    let engine = gpu_engine(Fallback::Fail);
    check(&engine, added().into_iter().skip(8).collect());
    check(&engine, past().into_iter().skip(3).take(1).collect());
    check(&engine, windowed().into_iter().take(1).collect());
    check(&engine, packed().into_iter().take(1).collect());
    println!("end: -");
}

/// Checks that a device with separate memory gets copies of masks, biases and tables.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_discrete_device_copies_what_is_added() {
    let test = "cuda_semantics::child_checks";
    let output = child(test, &folder(), &[("ELSA_STANDIN_DEVICE", "discrete")]);
    assert_eq!(said(&output, "end").len(), 1, "{output:?}");
}

/// Checks that streams from and to files, including present tensors, have the same bits whichever unit they start at.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn files_have_the_same_bits_from_any_unit_on() {
    let engine = gpu_engine(Fallback::Fail);
    let with_present = Params {
        past: Some(70),
        present: true,
        batch: 2,
        heads: 2,
        kv_heads: 1,
        causal: Some(Alignment::BottomRight),
        ..Params::plain(70, 100, 16, 24)
    };
    let mut cases = vec![with_present.build("a present")];
    cases.extend(added().into_iter().step_by(4));
    cases.extend(windowed().into_iter().skip(2).step_by(2));
    cases.extend(packed().into_iter().take(1));
    for case in cases {
        let division = divided(&case, unit(&engine, &case), 64, 1);
        let inputs = case.inputs();
        let mut stream =
            GpuStream::new(&engine, &case.problem(), &options(division, KeysFrom::Function)).unwrap();
        let (units, parts) = stream.count(&inputs.lengths, 0).unwrap();
        let mut run = |from: usize, fails: Option<Operand>| {
            let mut files: Vec<(Operand, Vec<u8>)> = Vec::new();
            let mut sink = Log::default();
            let mut source = |operand: Operand, offset: u64, to: &mut [u8]| {
                if fails == Some(operand) {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
                }
                if !files.iter().any(|(of, _)| *of == operand) {
                    files.push((operand, case.file(operand).unwrap()));
                }
                let (_, bytes) = files.iter().find(|(of, _)| *of == operand).unwrap();
                to.copy_from_slice(&bytes[offset as usize..offset as usize + to.len()]);
                Ok(())
            };
            let times = stream.run_between(&inputs.lengths, &mut source, &mut sink, from);
            times.map(|times| (sink, times))
        };
        let (whole, times) = run(0, None).unwrap();
        assert_eq!(whole.units, (0..units).collect::<Vec<_>>());
        assert!(parts >= units && times.written == whole.bytes(), "{case:?}: {units} {parts}");
        if case.spec.present_key.is_none() {
            let want = streamed(&engine, &case, division, KeysFrom::Function);
            let flat = |x: &[f32]| x.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            assert!(whole.of(Operand::Output) == want.output.bytes(), "{case:?}");
            assert!(whole.of(Operand::LogSumExp) == flat(&want.lse), "{case:?}");
            assert!(whole.of(Operand::StateWeighted) == flat(&want.w), "{case:?}");
        } else {
            let (k, v) = case.naive_present().unwrap();
            assert!(whole.of(Operand::PresentKey) == k.bytes() && units > 4);
            assert!(whole.of(Operand::PresentValue) == v.bytes());
            let mut memory = case.buffers();
            let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
            plan.bind(case.inputs(), memory.outputs(), &mut plan.workspace().unwrap())
                .unwrap()
                .run()
                .unwrap();
            case.naive().check_all(&memory, 5000).unwrap();
            let near = |a: &f32, b: f32| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
            let lse = whole.of(Operand::LogSumExp);
            assert!(memory.lse.iter().zip(lse.as_chunks().0).all(|(a, b)| near(a, f32::from_ne_bytes(*b))));
        }
        // The units before `from` and those of a run that resumes at `from` together give the entire output.
        for from in [1, units / 2, units] {
            let (rest, _) = run(from, None).unwrap();
            assert_eq!(rest.units, (from..units).collect::<Vec<_>>(), "{case:?}");
            let mut joined = Log { pieces: whole.until(from), ..Log::default() };
            joined.pieces.extend(rest.pieces);
            for operand in Operand::ALL {
                assert!(
                    joined.of(operand) == whole.of(operand),
                    "{case:?}: {operand:?} from {from} of {units}"
                );
            }
        }
        assert!(matches!(run(units + 1, None), Err(StreamError::Unit { .. })));
        for operand in [Operand::Mask, Operand::Bias, Operand::BiasIndex, Operand::PastValue] {
            if case.problem().memory(operand).is_some() {
                let error = run(0, Some(operand)).unwrap_err();
                let StreamError::Io { reason, .. } = &error else { panic!("{error}") };
                assert!(reason.contains(operand.argument()), "{operand:?}: {error}");
            }
        }
    }
}

/// A sink that records the pieces that it receives, with the unit of each piece.
#[derive(Debug, Default)]
struct Log {
    pieces: Vec<(usize, Operand, u64, Vec<u8>)>,
    units: Vec<usize>,
    done: usize,
}

impl Log {
    /// Assembles a tensor from its pieces; panics if a byte was written twice.
    fn of(&self, operand: Operand) -> Vec<u8> {
        let pieces = || self.pieces.iter().filter(|(_, of, ..)| *of == operand);
        let end = pieces().map(|(.., at, bytes)| *at as usize + bytes.len()).max().unwrap_or(0);
        let (mut tensor, mut seen) = (vec![0; end], vec![false; end]);
        for (.., at, bytes) in pieces() {
            let place = *at as usize..*at as usize + bytes.len();
            assert!(seen[place.clone()].iter().all(|seen| !seen), "{operand:?} twice");
            seen[place.clone()].fill(true);
            tensor[place].copy_from_slice(bytes);
        }
        tensor
    }

    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(.., bytes)| bytes.len() as u64).sum()
    }

    /// Returns the pieces of units before `unit`.
    fn until(&self, unit: usize) -> Vec<(usize, Operand, u64, Vec<u8>)> {
        self.pieces.iter().filter(|(of, ..)| *of < unit).cloned().collect()
    }
}

impl elsa_runtime::Sink<Operand> for Log {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.pieces.push((self.done, operand, offset, from.to_vec()));
        Ok(())
    }

    fn finished(&mut self, unit: usize) -> std::io::Result<()> {
        self.done = unit + 1;
        self.units.push(unit);
        Ok(())
    }
}

/// Checks that masks count towards the memory budget, that `eta` changes the chunks but not the output, and that a requested
/// division is used or refused.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn budgets_and_chunks_are_those_asked_for() {
    let engine = gpu_engine(Fallback::Fail);
    let p = Params { heads: 2, kv_heads: 1, ..Params::plain(300, 4200, 16, 16) };
    let plain = p.build("plain");
    let masked = Params { mask: mask(F32, &[2, 300, 4200]), ..p }.build("masked");
    let division = StreamDivision { rows: unit(&engine, &plain), keys: 128, splits: 2 };
    let bytes = |case: &Case| {
        let options = options(division, KeysFrom::Function);
        GpuStream::bytes_of(&engine, &case.problem(), &options).unwrap().iter().sum::<usize>()
    };
    // Each of the two buffers has a mask element for every head, resident query and key of a chunk, also on a discrete
    // device.
    let both = 2 * 2 * unit(&engine, &masked) * 128 * 4;
    assert!(bytes(&masked) >= bytes(&plain) + both, "{} {}", bytes(&masked), bytes(&plain));
    let fit = |wants: &StreamWants, budget: Option<usize>| {
        let budget = StreamBudget { device: budget, pinned: budget };
        GpuStream::fit(&engine, &masked.problem(), wants, &budget)
    };
    let stream = |fitted: Fitted| match fitted {
        Fitted::Gpu(stream, _) => *stream,
        Fitted::Cpu { reason, .. } => panic!("{reason}"),
    };
    let wants = StreamWants { lse: true, states: true, ..StreamWants::new(KeysFrom::Function) };
    let chosen = stream(fit(&wants, None).unwrap()).division();
    let split = chosen.keys / chosen.splits;
    for eta in [0.1, 0.5, 2.0, 3.0] {
        let found = stream(fit(&StreamWants { eta, ..wants }, None).unwrap()).division();
        let want = (eta * chosen.splits as f64).ceil().max(1.0) as usize;
        let most = 4200usize.div_ceil(split).next_power_of_two();
        assert_eq!(found.splits, want.next_power_of_two().min(most), "{eta}: {found:?} {chosen:?}");
        assert_eq!(found.keys / found.splits, split, "{eta}");
    }
    for eta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = fit(&StreamWants { eta, ..wants }, None).unwrap_err();
        assert!(matches!(error, StreamError::Argument(_)), "{error}");
    }
    let given = StreamWants { division: Some(division), ..wants };
    assert_eq!(stream(fit(&given, None).unwrap()).division(), division);
    let error = fit(&given, Some(bytes(&masked) / 4)).unwrap_err();
    assert!(matches!(error, StreamError::Budget { needed, .. } if needed > 0), "{error}");
    // Less memory leaves fewer rows resident with their masks, and the bits are the same.
    let narrow = stream(fit(&wants, Some(5 << 20)).unwrap());
    assert!(narrow.bytes().iter().all(|bytes| *bytes <= 5 << 20), "{:?}", narrow.bytes());
    assert!(narrow.division().rows < 300, "{:?}", narrow.division());
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_a_stream_cannot_have_is_refused_by_name() {
    let engine = gpu_engine(Fallback::Fail);
    let refused = |case: &Case, division, from| {
        let options = GpuStreamOptions::new(division, from);
        GpuStream::new(&engine, &case.problem(), &options).unwrap_err().to_string()
    };
    let good = StreamDivision { rows: 1 << 20, keys: 64, splits: 1 };
    let case = &past()[0];
    assert!(refused(case, good, KeysFrom::Host).starts_with("past_k: given"));
    let case = &windowed()[4];
    let unit = unit(&engine, case);
    assert!(refused(case, StreamDivision { rows: unit, ..good }, KeysFrom::Function).starts_with("rows:"));
    assert!(refused(case, good, KeysFrom::Function).starts_with("keys: 64"));
    // This entry of the index is beyond the table, in a chunk after the first.
    let mut case = added().swap_remove(8);
    let at = 5 * 193 + 150;
    case.bias_index.as_mut().unwrap()[at] = 11;
    let mut stream =
        GpuStream::new(&engine, &case.problem(), &GpuStreamOptions::new(good, KeysFrom::Function)).unwrap();
    let mut source = |operand: Operand, offset: u64, to: &mut [u8]| {
        to.copy_from_slice(&case.file(operand).unwrap()[offset as usize..offset as usize + to.len()]);
        Ok(())
    };
    let mut sink = |_: Operand, _: u64, _: &[u8]| -> std::io::Result<()> { panic!("handed out") };
    let error = stream.run_between(&case.inputs().lengths, &mut source, &mut sink, 0).unwrap_err();
    assert!(
        error.to_string().contains(&format!("{at}")) && error.to_string().contains("bias_index"),
        "{error}"
    );
}
