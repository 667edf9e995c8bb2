//! Tests streams on a GPU, which move keys in chunks past resident queries. The output is correct and has the bits of
//! the run in memory with the same division, for any chunks, any number of resident queries and any location of the
//! keys.

use elsa_core::attention::{Alignment, BiasView, MaskView, Operand, Window};
use elsa_core::dtype::{DType, Elements};
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Buffers, Case, Data, MaskData, Params};
use elsa_oracle::gpu_engine;
use elsa_oracle::standin::{child, folder, is_child, said};
use elsa_oracle::strides::far_case;
use elsa_runtime::{
    Engine, Fallback, GpuStream, GpuStreamOptions, KeysFrom, PlanOptions, StreamBox, StreamCall,
    StreamDivision, StreamError, StreamKeys, StreamRows, StreamTimes, StreamTokens,
};
use std::io;

/// Copies the rows of `tokens` from any layout to `to`, without gaps; past rows, if any, come before the new ones.
fn gather(
    past: Option<(&[u8], &View)>,
    (bytes, view): (&[u8], &View),
    size: usize,
    tokens: &StreamTokens,
    to: &mut [u8],
) {
    let [_, heads, _, dim] = view.shape();
    assert_eq!(to.len(), tokens.batch.len() * heads * tokens.tokens.len() * dim * size);
    let mut rows = to.chunks_exact_mut((dim * size).max(1));
    let before = past.map_or(0, |(_, view)| view.tokens());
    for b in tokens.batch.clone() {
        for h in 0..heads {
            for t in tokens.tokens.clone() {
                let (bytes, at) = match past {
                    Some((past, view)) if t < before => (past, view.row(b, h, t)),
                    _ => (bytes, view.row(b, h, t - before)),
                };
                rows.next().unwrap().copy_from_slice(&bytes[at * size..][..dim * size]);
            }
        }
    }
}

/// Returns the bytes of element `at` of a mask.
fn mask_element(data: &MaskData, at: usize) -> Vec<u8> {
    match data {
        MaskData::Bool(x) => vec![x[at]],
        MaskData::Additive(x) => element(x, at),
    }
}

fn element(data: &Data, at: usize) -> Vec<u8> {
    match data.elements() {
        Elements::F32(x) => x[at].to_ne_bytes().to_vec(),
        Elements::F16(x) => x[at].to_ne_bytes().to_vec(),
        Elements::Bf16(x) => x[at].to_ne_bytes().to_vec(),
    }
}

/// Copies a box of a case's mask or bias to `to`, element by element.
fn fill_addends(case: &Case, part: &StreamBox, to: &mut [u8]) {
    let [batch, heads, queries, keys] = part.count;
    let [b0, h0, q0, k0] = part.first;
    let in_mask = |view: &MaskView, [b, h, q, k]: [usize; 4]| {
        assert!(h < view.shape()[1] && q < view.shape()[2] && k < view.shape()[3], "{part:?}");
        view.row(b, h, q).index(k)
    };
    let place = |at: [usize; 4]| match (part.operand, &case.spec.bias) {
        (Operand::Mask, _) => {
            mask_element(case.mask.as_ref().unwrap(), in_mask(case.spec.mask.as_ref().unwrap(), at))
        }
        (Operand::Bias, Some(BiasView::Dense(view))) => {
            element(case.bias.as_ref().unwrap(), in_mask(view, at))
        }
        (Operand::Bias, Some(BiasView::Table(table))) => {
            assert!(at[2] < table.entries && at[3] < table.heads && at[..2] == [0, 0]);
            element(case.bias.as_ref().unwrap(), at[2] * table.heads + at[3])
        }
        _ => {
            let index = case.bias_index.as_ref().unwrap();
            index[at[2] * case.problem().keys() + at[3]].to_ne_bytes().to_vec()
        }
    };
    let mut from = to;
    for i in 0..batch * heads * queries * keys {
        let (row, k) = (i / keys, i % keys);
        let (h, q) = (row / queries, row % queries);
        let bytes = place([b0 + h / heads, h0 + h % heads, q0 + q, k0 + k]);
        let (head, rest) = from.split_at_mut(bytes.len());
        head.copy_from_slice(&bytes);
        from = rest;
    }
    assert!(from.is_empty(), "{part:?}");
}

/// Copies the results of a block of rows to their places in `to`.
fn scatter(case: &Case, rows: &StreamRows<'_>, to: &mut Buffers) {
    let view = case.spec.output;
    let [_, heads, tokens, dim] = view.shape();
    let mut from = 0;
    for b in rows.batch.clone() {
        for h in 0..heads {
            for t in rows.tokens.clone() {
                let row = (b * heads + h) * tokens + t;
                (to.lse[row], to.m[row], to.s[row]) = (rows.lse[from], rows.m[from], rows.s[from]);
                to.w[row * dim..][..dim].copy_from_slice(&rows.w[from * dim..][..dim]);
                for x in 0..dim {
                    let size = case.spec.dtype.size();
                    let bytes = &rows.output[(from * dim + x) * size..][..size];
                    let value = match case.spec.dtype {
                        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
                        DType::F16 => half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
                        DType::Bf16 => half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
                    };
                    to.output.set(view.row(b, h, t) + x, value);
                }
                from += 1;
            }
        }
    }
}

pub fn options(division: StreamDivision, keys: KeysFrom) -> GpuStreamOptions {
    GpuStreamOptions::new(division, keys).lse(true).states(true)
}

/// Runs a case in a stream, and checks that it delivers every block once, in order.
pub fn run(stream: &mut GpuStream, engine: &Engine, case: &Case, from: KeysFrom) -> (Buffers, StreamTimes) {
    let size = case.spec.dtype.size();
    let [q, k, v] = [&case.q, &case.k, &case.v].map(Data::bytes);
    let len = |bytes: &Vec<u8>| if from == KeysFrom::Host { bytes.len() } else { 0 };
    let mut pinned = [&k, &v].map(|bytes| engine.host_buffer::<u8>(len(bytes)).unwrap());
    for (to, from) in pinned.iter_mut().zip([&k, &v]) {
        let len = to.len();
        to.copy_from_slice(&from[..len]);
    }
    let mut buffers = case.buffers();
    let mut rows_done = 0;
    let mut results = |rows: &StreamRows<'_>| {
        rows_done += rows.batch.len() * rows.tokens.len();
        scatter(case, rows, &mut buffers);
        Ok(())
    };
    let mut queries = |tokens: &StreamTokens, to: &mut [u8]| {
        gather(None, (&q, &case.spec.query), size, tokens, to);
        Ok(())
    };
    let past = case.past.as_ref().map(|(k, v)| [k.bytes(), v.bytes()]);
    let [past_k, past_v] = [0, 1].map(|which| {
        let view = [&case.spec.past_key, &case.spec.past_value][which];
        past.as_ref().zip(view.as_ref()).map(|(bytes, view)| (&bytes[which][..], view))
    });
    let mut fill = |tokens: &StreamTokens, key: &mut [u8], value: &mut [u8]| {
        gather(past_k, (&k, &case.spec.key), size, tokens, key);
        gather(past_v, (&v, &case.spec.value), size, tokens, value);
        Ok(())
    };
    let mut added = |part: &StreamBox, to: &mut [u8]| {
        fill_addends(case, part, to);
        Ok(())
    };
    let keys = match from {
        KeysFrom::Function => StreamKeys::Function(&mut fill),
        _ => StreamKeys::Host { key: &pinned[0], value: &pinned[1] },
    };
    let (queries, results, lengths) = (&mut queries, &mut results, case.inputs().lengths);
    let call = StreamCall { lengths, queries, keys, addends: Some(&mut added), results, from: 0 };
    let times = stream.run(call).unwrap();
    assert_eq!(rows_done, case.spec.query.batch() * case.spec.query.tokens());
    (buffers, times)
}

pub fn streamed(engine: &Engine, case: &Case, division: StreamDivision, from: KeysFrom) -> Buffers {
    let mut stream = GpuStream::new(engine, &case.problem(), &options(division, from)).unwrap();
    let (buffers, _) = run(&mut stream, engine, case, from);
    stream.close().unwrap();
    buffers
}

/// Returns cases with various masks, types and shapes, most with enough keys for several chunks.
fn cases() -> Vec<Case> {
    let p = |queries, keys, d, dv| Params { heads: 2, kv_heads: 1, ..Params::plain(queries, keys, d, dv) };
    let (top, bottom) = (Some(Alignment::TopLeft), Some(Alignment::BottomRight));
    let window = |left, right| Window { left, right };
    let f16 = |p: Params| Params { dtype: DType::F16, layout: Layout::Bnhd, pad: 8, ..p };
    vec![
        p(70, 700, 64, 64).build("plain"),
        p(5, 900, 64, 64).build("few rows"),
        Params { causal: top, ..p(100, 330, 32, 32) }.build("top-left"),
        Params { causal: bottom, batch: 2, ..p(70, 333, 24, 40) }.build("bottom-right"),
        Params { causal: bottom, ..p(100, 60, 32, 32) }.build("rows before every key"),
        Params { window: window(Some(90), Some(20)), ..p(150, 400, 32, 32) }.build("a window around"),
        Params { causal: bottom, window: window(Some(70), None), softcap: Some(3.0), ..p(70, 400, 64, 64) }
            .build("a window behind"),
        Params { causal: bottom, lengths: true, batch: 3, ..p(40, 400, 32, 32) }.build("lengths"),
        f16(Params { heads: 4, kv_heads: 2, causal: bottom, ..p(70, 300, 64, 64) }).build("f16"),
        Params { dtype: DType::Bf16, gain: 200.0, ..p(33, 300, 48, 16) }.build("large scores"),
        Params { heads: 2, kv_heads: 2, ..p(3, 0, 16, 16) }.build("no keys"),
        Params { heads: 2, kv_heads: 2, ..p(1, 1, 16, 16) }.build("one key"),
        Params { heads: 2, kv_heads: 2, ..p(0, 70, 16, 16) }.build("no queries"),
    ]
}

/// Runs a few streams for the sanitizers, with every source of keys.
pub fn a_few_streams() {
    let engine = gpu_engine(Fallback::Fail);
    for case in cases().into_iter().skip(2).step_by(4) {
        for from in [KeysFrom::Function, KeysFrom::Host] {
            let division = StreamDivision { rows: unit(&engine, &case), keys: 64, splits: 1 };
            case.naive().check_all(&streamed(&engine, &case, division, from), 5000).unwrap();
        }
    }
}

/// Returns the number of rows per block of the kernel that streams the case.
pub fn unit(engine: &Engine, case: &Case) -> usize {
    GpuStream::kernel_rows(engine, &case.problem(), false).unwrap()
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn no_division_of_the_same_splits_changes_a_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for mut case in cases() {
        if case.name == "plain" {
            // One key outweighs all others, and the values of another key are infinite.
            case.fill_key(0, 300, 50.0);
            case.fill_value(0, 699, f32::INFINITY);
        }
        let rows = unit(&engine, &case);
        let whole = StreamDivision { rows: 1 << 20, keys: 64 * 16, splits: 16 };
        let want = streamed(&engine, &case, whole, KeysFrom::Function);
        if case.name != "plain" {
            case.naive().check_all(&want, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
        let divisions = [(rows, 1), (2 * rows, 2), (1 << 20, 4), (rows, 8), (1 << 20, 1)];
        for (i, (rows, splits)) in divisions.into_iter().enumerate() {
            let division = StreamDivision { rows, keys: 64 * splits, splits };
            let from = [KeysFrom::Function, KeysFrom::Host][i % 2];
            let found = streamed(&engine, &case, division, from);
            assert_eq!(found.bits(), want.bits(), "{case:?}: {division:?} {from:?}");
        }
    }
}

/// Compares streams with calls in memory that split their keys in the same way and merge the parts in the same tree.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_stream_has_the_bits_of_the_run_in_memory() {
    let engine = gpu_engine(Fallback::Fail);
    let mut compared = 0;
    for case in cases() {
        let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
        let choice = *plan.gpu_choice().unwrap();
        if !choice.divided() {
            continue;
        }
        let mut buffers = case.buffers();
        let mut workspace = plan.workspace().unwrap();
        plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
        for splits in [1, 2] {
            let division = StreamDivision { rows: 1 << 20, keys: choice.chunk * splits, splits };
            let found = streamed(&engine, &case, division, KeysFrom::Function);
            assert_eq!(found.bits(), buffers.bits(), "{case:?}: {division:?}");
        }
        compared += 1;
    }
    assert!(compared >= 4, "{compared}");
}

/// Checks that a stream can run repeatedly, and that the bytes and times that it reports add up.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn runs_repeat_and_are_accounted_for() {
    let engine = gpu_engine(Fallback::Fail);
    let case =
        Params { heads: 2, kv_heads: 1, ..Params::plain(130, 640, 32, 32) }.build("five chunks a block");
    let rows = unit(&engine, &case);
    let division = StreamDivision { rows, keys: 128, splits: 1 };
    for from in [KeysFrom::Function, KeysFrom::Host] {
        let mut stream = GpuStream::new(&engine, &case.problem(), &options(division, from)).unwrap();
        let first = run(&mut stream, &engine, &case, from);
        let second = run(&mut stream, &engine, &case, from);
        assert_eq!(first.0.bits(), second.0.bits());
        let times = second.1;
        let blocks = 130usize.div_ceil(rows) as u64;
        assert_eq!(times.chunks, blocks * 5);
        let brought = if from == KeysFrom::Function { blocks * 640 * 64 * 4 } else { times.bytes };
        assert_eq!(times.bytes, brought);
        assert!(times.wait_ms >= 0.0 && times.compute_ms > 0.0 && times.copy_ms >= 0.0);
        let all = times.wait_ms + times.compute_ms;
        assert!((times.total_ms - all).abs() <= 1e-6 * all && (0.0..=1.0).contains(&times.overlap()));
        assert_eq!(stream.division(), division);
        assert_eq!(
            stream.bytes(),
            GpuStream::bytes_of(&engine, &case.problem(), &options(division, from)).unwrap()
        );
    }
}

/// Checks that streams from files to files have the same bits, and that padding between rows is not written.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn sources_and_sinks_have_the_same_bits() {
    let engine = gpu_engine(Fallback::Fail);
    for case in cases().into_iter().skip(2).step_by(3) {
        let division = StreamDivision { rows: unit(&engine, &case), keys: 128, splits: 2 };
        let want = streamed(&engine, &case, division, KeysFrom::Function);
        let files = [&case.q, &case.k, &case.v].map(Data::bytes);
        let mut source = |operand: Operand, offset: u64, to: &mut [u8]| {
            let file = match operand {
                Operand::Query => &files[0],
                Operand::Key => &files[1],
                _ => &files[2],
            };
            to.copy_from_slice(&file[offset as usize..offset as usize + to.len()]);
            Ok(())
        };
        let rows: [Vec<u8>; 4] = [&want.lse, &want.m, &want.s, &want.w].map(|x| vec![0xee; 4 * x.len()]);
        let outputs = std::cell::RefCell::new((vec![0xee; want.output.bytes().len()], rows));
        let mut sink = |operand: Operand, offset: u64, from: &[u8]| {
            let (output, [lse, m, s, w]) = &mut *outputs.borrow_mut();
            let file = match operand {
                Operand::Output => output,
                Operand::LogSumExp => lse,
                Operand::StateReference => m,
                Operand::StateSum => s,
                _ => w,
            };
            file[offset as usize..offset as usize + from.len()].copy_from_slice(from);
            Ok(())
        };
        let mut stream =
            GpuStream::new(&engine, &case.problem(), &options(division, KeysFrom::Function)).unwrap();
        stream.run_between(&case.inputs().lengths, &mut source, &mut sink, 0).unwrap();
        let (output, [lse, m, s, w]) = outputs.into_inner();
        let mut padded = vec![0xee; output.len()];
        let (view, size) = (case.spec.output, case.spec.dtype.size());
        let [batch, heads, tokens, dim] = view.shape();
        let bytes = want.output.bytes();
        for row in 0..batch * heads * tokens {
            let at = view.row(row / (heads * tokens), row / tokens % heads, row % tokens) * size;
            padded[at..at + dim * size].copy_from_slice(&bytes[at..at + dim * size]);
        }
        assert!(output == padded, "{case:?}");
        for (found, want) in [(lse, &want.lse), (m, &want.m), (s, &want.s), (w, &want.w)] {
            assert!(found == want.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>(), "{case:?}");
        }
        let mut fails = |operand: Operand, _: u64, _: &mut [u8]| match operand {
            Operand::Value => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ => Ok(()),
        };
        if case.spec.query.tokens() > 0 && case.spec.key.tokens() > 0 {
            let error =
                stream.run_between(&case.inputs().lengths, &mut fails, &mut sink_of_none, 0).unwrap_err();
            assert!(matches!(&error, StreamError::Io { reason, .. } if reason.starts_with("v: ")), "{error}");
        }
    }
}

fn sink_of_none(_: Operand, _: u64, _: &[u8]) -> io::Result<()> {
    Ok(())
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_is_not_supported_is_refused_by_name() {
    let engine = gpu_engine(Fallback::Fail);
    let case = Params { heads: 2, kv_heads: 1, ..Params::plain(200, 300, 32, 32) }.build("refused");
    let problem = case.problem();
    let good = StreamDivision { rows: unit(&engine, &case), keys: 128, splits: 2 };
    let refused = |options: &GpuStreamOptions| GpuStream::new(&engine, &problem, options).unwrap_err();
    for (division, name) in [
        (StreamDivision { rows: 0, ..good }, "rows"),
        (StreamDivision { rows: good.rows + 1, ..good }, "rows"),
        (StreamDivision { keys: 0, ..good }, "keys"),
        (StreamDivision { keys: 129, ..good }, "keys"),
        (StreamDivision { keys: 1 << 31, ..good }, "keys"),
        (StreamDivision { splits: 0, ..good }, "splits"),
        (StreamDivision { splits: 3, keys: 192, ..good }, "splits"),
        (StreamDivision { splits: 512, keys: 1 << 15, ..good }, "splits"),
    ] {
        let error = refused(&options(division, KeysFrom::Function));
        assert!(matches!(error, StreamError::Division { argument, .. } if argument == name), "{error}");
    }
    let nothing = GpuStreamOptions::new(good, KeysFrom::Function).output(false);
    assert!(matches!(refused(&nothing), StreamError::NoOutput));
    // Runs fail if keys have the wrong kind, if there are too few, or if a function fails. A failed block has no
    // result.
    let mut stream = GpuStream::new(&engine, &problem, &options(good, KeysFrom::Host)).unwrap();
    let key = engine.host_buffer::<u8>(300 * 32 * 4).unwrap();
    let mut none = |_: &StreamRows<'_>| -> io::Result<()> { panic!("handed out") };
    let mut queries = |_: &StreamTokens, _: &mut [u8]| Ok(());
    let mut fill = |_: &StreamTokens, _: &mut [u8], _: &mut [u8]| Ok(());
    let lengths = case.inputs().lengths;
    let keys = StreamKeys::Function(&mut fill);
    let call =
        StreamCall { lengths, queries: &mut queries, keys, addends: None, results: &mut none, from: 0 };
    assert!(matches!(stream.run(call), Err(StreamError::Keys { found: "a function", .. })));
    let short = StreamKeys::Host { key: &key, value: &key[..key.len() - 1] };
    let call = StreamCall {
        lengths,
        queries: &mut queries,
        keys: short,
        addends: None,
        results: &mut none,
        from: 0,
    };
    assert!(matches!(stream.run(call), Err(StreamError::Argument(_))));

    let mut stream = GpuStream::new(&engine, &problem, &options(good, KeysFrom::Function)).unwrap();
    for fails_at in 0..3 {
        let mut calls = 0;
        let mut fill = |_: &StreamTokens, _: &mut [u8], _: &mut [u8]| {
            calls += 1;
            if calls > fails_at { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
        };
        let keys = StreamKeys::Function(&mut fill);
        let call =
            StreamCall { lengths, queries: &mut queries, keys, addends: None, results: &mut none, from: 0 };
        let error = stream.run(call).unwrap_err();
        assert_eq!(error.to_string(), "keys: the disk is gone");
    }
    let mut queries = |_: &StreamTokens, _: &mut [u8]| Err(io::Error::other("none"));
    let keys = StreamKeys::Function(&mut fill);
    let call =
        StreamCall { lengths, queries: &mut queries, keys, addends: None, results: &mut none, from: 0 };
    assert_eq!(stream.run(call).unwrap_err().to_string(), "queries: none");
    // The stream stays usable.
    let (found, _) = run(&mut stream, &engine, &case, KeysFrom::Function);
    case.naive().check_all(&found, 5000).unwrap();
}

/// Runs streams in a child process. Prints `right` with the bytes copied or, if memory is refused, `error`.
#[test]
#[ignore = "run by the other tests in a child"]
fn child_streams() {
    if !is_child() {
        return;
    }
    let engine = gpu_engine(Fallback::Fail);
    for case in cases().into_iter().skip(1).step_by(4) {
        for from in [KeysFrom::Function, KeysFrom::Host] {
            let division = StreamDivision { rows: unit(&engine, &case), keys: 64, splits: 1 };
            let stream = GpuStream::new(&engine, &case.problem(), &options(division, from));
            let mut stream = match stream {
                Ok(stream) => stream,
                Err(e) => {
                    println!("error: {}", e.is_memory());
                    continue;
                }
            };
            let (found, times) = run(&mut stream, &engine, &case, from);
            case.naive().check_all(&found, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            println!("right: {}", times.bytes);
        }
    }
    println!("end: -");
}

/// Checks that, on a device with separate memory, the copy stream copies the keys and the products wait for the copies.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn a_discrete_device_copies() {
    let test = "cuda_stream::child_streams";
    let output = child(test, &folder(), &[("ELSA_STANDIN_DEVICE", "discrete")]);
    let right = said(&output, "right");
    assert!(right.len() >= 6 && said(&output, "end").len() == 1, "{output:?}");
    assert!(right.iter().all(|bytes| bytes != "0"), "{right:?}");
}

/// Refuses each allocation once. Creating the stream must then fail, and the next stream must be correct.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn memory_that_is_refused_is_an_error() {
    let test = "cuda_stream::child_streams";
    for device in ["discrete", ""] {
        // The test itself makes the third and the fourth page-locked allocation.
        for (call, indices) in [
            ("cuMemAlloc_v2", &[1, 2, 3][..]),
            ("cuMemHostAlloc", &[1, 2, 5]),
            ("cuStreamCreate", &[1, 2, 3, 4]),
            ("cuEventCreate", &[1, 2, 9, 18, 19]),
        ] {
            for index in indices {
                let fault = format!("{call}:{index}:2");
                let variables = [("ELSA_STANDIN_FAIL", &*fault), ("ELSA_STANDIN_DEVICE", device)];
                let output = child(test, &folder(), &variables);
                assert_eq!(said(&output, "end").len(), 1, "{fault}: {output:?}");
                let errors = said(&output, "error");
                assert!(errors.iter().all(|memory| memory == "true"), "{fault}: {errors:?}");
                assert_eq!(errors.len(), 1, "{fault}: {output:?}");
            }
        }
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn strides_of_single_elements_do_not_matter() {
    let engine = gpu_engine(Fallback::Fail);
    for (turn, [queries, keys]) in [[1, 1], [1, 130], [70, 1]].into_iter().enumerate() {
        let params = Params { heads: 2, kv_heads: 1, ..Params::plain(queries, keys, 16, 16) };
        let case = params.build("single elements");
        let division = StreamDivision { rows: unit(&engine, &case), keys: 64, splits: 1 };
        for from in [KeysFrom::Function, KeysFrom::Host] {
            let [found, want] =
                [&far_case(&case, turn), &case].map(|case| streamed(&engine, case, division, from).bits());
            assert_eq!(found, want, "{case:?} {from:?}");
        }
    }
}
