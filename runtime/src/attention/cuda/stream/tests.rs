//! Checks that keys used in place in device memory lead to the same bits as transferred keys, and that invalid
//! addresses are rejected.

use super::{DeviceKeys, GpuStream, GpuStreamOptions, KeysFrom, StreamCall, StreamDivision};
use super::{StreamKeys, StreamRows, StreamTokens};
use crate::attention::stream::error::StreamError;
use crate::cuda::driver::{DeviceBuffer, Stream};
use crate::testing::gpu_engine;
use elsa_core::attention::{Alignment, Lengths, Problem, Spec};
use elsa_core::dtype::DType;
use elsa_core::random;
use elsa_core::view::{Layout, View};

const HEADS: usize = 2;
const QUERIES: usize = 70;
const KEYS: usize = 400;
const D: usize = 16;

fn problem() -> Problem {
    let view = |n| View::dense("x", Layout::Bhnd, &[HEADS, n, D], None).unwrap();
    let spec = Spec::new(DType::F32, view(QUERIES), view(KEYS), view(KEYS), view(QUERIES));
    spec.causal(Alignment::BottomRight).check().unwrap()
}

fn noise(seed: u64, n: usize) -> Vec<u8> {
    random::noise(seed, n).flat_map(f32::to_ne_bytes).collect()
}

/// Runs the stream and returns the outputs of all blocks, one after another.
fn run(stream: &mut GpuStream, query: &[u8], keys: StreamKeys<'_>) -> Result<Vec<u8>, StreamError> {
    let mut output = Vec::new();
    let mut results = |rows: &StreamRows<'_>| {
        output.extend_from_slice(rows.output);
        Ok(())
    };
    let mut queries = |StreamTokens { tokens, .. }: &StreamTokens, to: &mut [u8]| {
        let row = D * 4;
        for (h, to) in to.chunks_exact_mut(tokens.len() * row).enumerate() {
            to.copy_from_slice(&query[(h * QUERIES + tokens.start) * row..][..tokens.len() * row]);
        }
        Ok(())
    };
    let lengths = Lengths::default();
    let (queries, results) = (&mut queries, &mut results);
    stream.run(StreamCall { lengths, queries, keys, addends: None, results, from: 0 })?;
    Ok(output)
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn keys_in_device_memory_are_used_in_place() {
    let (engine, problem) = (gpu_engine(), problem());
    let context = engine.gpu().unwrap().context().unwrap();
    let query = noise(1, HEADS * QUERIES * D);
    let host = [noise(2, HEADS * KEYS * D), noise(3, HEADS * KEYS * D)];
    let stream = Stream::new(&context).unwrap();
    let upload = |bytes: &Vec<u8>| {
        let buffer = DeviceBuffer::new(&context, bytes.len()).unwrap();
        let entered = context.enter().unwrap();
        // SAFETY: *room*: source and destination have the bytes. *alive*: the copy is waited for.
        unsafe { stream.raw().copy_in(&entered, buffer.address(), bytes.as_ptr(), bytes.len()).unwrap() };
        stream.raw().synchronize(&entered).unwrap();
        drop(entered);
        buffer
    };
    let [key, value] = [upload(&host[0]), upload(&host[1])];
    let rows = GpuStream::kernel_rows(&engine, &problem, false).unwrap();
    let division = StreamDivision { rows, keys: 64, splits: 1 };
    let of = |keys| GpuStream::new(&engine, &problem, &GpuStreamOptions::new(division, keys)).unwrap();
    let (mut brought, mut placed) = (of(KeysFrom::Function), of(KeysFrom::Device));
    let mut fill = |StreamTokens { tokens, .. }: &StreamTokens, k: &mut [u8], v: &mut [u8]| {
        let row = D * 4;
        for (to, from) in [(k, &host[0]), (v, &host[1])] {
            for (h, to) in to.chunks_exact_mut(tokens.len() * row).enumerate() {
                to.copy_from_slice(&from[(h * KEYS + tokens.start) * row..][..tokens.len() * row]);
            }
        }
        Ok(())
    };
    let want = run(&mut brought, &query, StreamKeys::Function(&mut fill)).unwrap();
    // SAFETY: the buffers live until the end of the test, and nothing writes them.
    let at = |key, value| StreamKeys::Device(unsafe { DeviceKeys::new(key, value) });
    let found = run(&mut placed, &query, at(key.address(), value.address())).unwrap();
    assert!(found == want && want.len() == query.len());
    // The stream has no memory for copies of the chunks.
    assert!(placed.bytes()[0] + placed.bytes()[1] + 4 * 64 * HEADS * D * 4 <= brought.bytes().iter().sum());
    for (key, value) in [
        (key.address() + 2, value.address()),
        (key.address(), value.address() + 4),
        (0, value.address()),
        (key.address(), host[1].as_ptr().expose_provenance() as u64),
    ] {
        let error = run(&mut placed, &query, at(key, value)).unwrap_err();
        assert!(matches!(error, StreamError::Keys { .. }), "{error}");
    }
    placed.close().unwrap();
}
