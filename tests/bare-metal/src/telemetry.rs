//! Encodes, damages and decodes a stream of telemetry records, without an allocator.

use elsa_core::telemetry::frame::{Counts, Decoder, Encoder, FRAME, Message};
use elsa_core::telemetry::record::{Cell, End, Grid, Record, Start, Throttling, Trace, text};

/// The run number.
const RUN: u32 = 0x0102_0304;

/// Number of records.
const RECORDS: usize = 6;

/// Capacity of the buffer for the damaged stream, in bytes.
const STREAM: usize = RECORDS * FRAME;

/// Creates a record from its number.
fn record(n: usize) -> Record {
    let cell = Cell {
        workload: Some(text("vit-b16-224")),
        backend: text("cuda"),
        kernel: text("attention_f32_d64_q64k64__sm53_exp2_approx"),
        method: text("elsa"),
        dtype: text("f32"),
        shape: text("1,12,196,196,64"),
        n: 196,
        window: Some([-1, 0]),
        windows: Some(Grid { picture: [56, 56], size: [7, 7], shift: [3, 3] }),
        p50_ms: 1.25 + n as f64 / 3.0,
        rel_l2: f64::NAN,
        differs: Some(true),
        energy_mj: Some(f64::MIN_POSITIVE),
        throttled: Throttling::Seen,
        ..Cell::default()
    };
    match n {
        0 => Record::Start(Start {
            board: Some(text("NVIDIA Jetson TX2")),
            arch: text("aarch64"),
            cores: 6,
            ..Start::default()
        }),
        4 => Record::Trace(Trace { t_s: 0.5, temp_zone: Some(text("GPU-therm")), ..Trace::default() }),
        5 => Record::End(End { cells: 3, clean_cells: 2, seconds: 61.5 }),
        _ => Record::Cell(cell),
    }
}

/// Encodes a stream, damages it and decodes it. Calls `row` with three kinds of rows. `sent` rows contain the bytes of
/// each frame. `heard` rows contain the run, the number and the bytes of each decoded record. The `counts` row contains
/// the counts of the decoder. A stream with unexpected counts adds a row called `refused`.
pub fn run(mut row: impl FnMut(&str, &str, &[u32])) {
    let mut encoder = Encoder::new(RUN);
    let mut frame = [0; FRAME];
    let mut stream = [0; STREAM];
    // The stream begins with a zero byte, like the stream of every sender.
    let mut len = 1;
    for n in 0..RECORDS {
        let Ok(bytes) = encoder.encode(&record(n), &mut frame) else {
            return row("telemetry", "refused", &[]);
        };
        words(bytes, |words| row("telemetry", "sent", words));
        for (i, &byte) in bytes.iter().enumerate() {
            // Flips a bit of the second frame, and omits a byte of the fourth.
            let damage = u8::from(n == 1 && i == 20) << 6;
            if n != 3 || i != 30 {
                stream[len] = byte ^ damage;
                len += 1;
            }
        }
    }
    let mut decoder: Decoder = Decoder::new();
    for &byte in &stream[..len] {
        let Some(Message { run, sequence, record }) = decoder.push(byte) else { continue };
        row("telemetry", "heard", &[run, sequence]);
        let Ok(bytes) = Encoder::new(run).encode(&record, &mut frame) else {
            return row("telemetry", "refused", &[]);
        };
        words(bytes, |words| row("telemetry", "heard", words));
    }
    let counts = decoder.counts();
    let Counts { records, lost, broken, overlong, foreign, repeated, noise } = counts;
    let counted = [records, lost, broken, overlong, foreign, repeated, noise];
    row("telemetry", "counts", &counted.map(|count| count as u32));
    if counted != [4, 2, 2, 0, 0, 0, 0] {
        row("telemetry", "refused", &[]);
    }
}

/// Calls `row` with `bytes` as little-endian words, at most 16 at a time. The last word is padded with zeros.
fn words(bytes: &[u8], mut row: impl FnMut(&[u32])) {
    for line in bytes.chunks(64) {
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(line.chunks(4)) {
            *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        }
        row(&words[..line.len().div_ceil(4)]);
    }
}
