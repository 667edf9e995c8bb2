//! Tests of frames: streams that are intact, damaged in every bit, cut at every byte, or pure noise.

use super::{Counts, Decoder, Encoder, FRAME, Message, RECORD, Short, VERSION};
use crate::random::Random;
use crate::telemetry::record::{
    Cell, End, Grid, Phase, RailEnergy, Record, Start, String, Throttling, Trace, Vec, text,
};

extern crate std;
use std::vec::Vec as Heap;

/// Returns a text that fills a field of `N` bytes.
fn full<const N: usize>() -> String<N> {
    let mut full = String::new();
    while full.push('~').is_ok() {}
    full
}

fn full_start() -> Start {
    Start {
        version: full(),
        board: Some(full()),
        l4t: Some(full()),
        jetpack: Some(full()),
        os: full(),
        arch: full(),
        cpu: Some(full()),
        cores: u32::MAX,
        driver: Some(full()),
        nvpmodel: Some(full()),
        jetson_clocks: Some(true),
        governor: Some(full()),
        gpu: Some(full()),
        emulated: true,
        date: full(),
    }
}

/// Returns a record in which every field has its greatest length.
fn full_cell() -> Cell {
    let mut marks = Vec::new();
    while marks.push(full()).is_ok() {}
    let (x, most) = (Some(f64::NAN), u64::MAX);
    Cell {
        workload: Some(full()),
        backend: full(),
        kernel: full(),
        method: full(),
        dtype: full(),
        threads: u32::MAX,
        batch: most,
        heads: most,
        kv_heads: most,
        queries: most,
        n: most,
        d: most,
        causal: Some(full()),
        window: Some([i64::MIN; 2]),
        mask: Some(full()),
        windows: Some(Grid { picture: [most; 2], size: [most; 2], shift: [most; 2] }),
        shape: full(),
        samples: most,
        p50_ms: f64::MAX,
        p90_ms: f64::MAX,
        p99_ms: f64::MAX,
        max_ms: f64::MAX,
        cold_ms: f64::MAX,
        enqueue_p50_ms: x,
        wait_p50_ms: x,
        device_p50_ms: x,
        gflops: f64::MAX,
        tokens_per_s: f64::MAX,
        packing_ms: x,
        workspace_bytes: most,
        alloc_bytes: most,
        speedup_vs_math: x,
        speedup_vs_rows: x,
        ratio_low: x,
        ratio_high: x,
        noise: x,
        differs: Some(true),
        rel_l2: f64::MAX,
        certified: true,
        stable: true,
        clean: true,
        marks,
        emulated: true,
        power_mw: x,
        idle_power_mw: x,
        power_quantum_mw: x,
        power_readings: u32::MAX,
        energy_mj: x,
        energy_net_mj: x,
        temp_c: x,
        temp_zone: Some(full()),
        cpu_mhz: x,
        gpu_mhz: x,
        emc_mhz: x,
        throttled: Throttling::Unknown,
    }
}

/// Returns a record of a phase in which every field has its greatest length.
fn full_phase() -> Phase {
    let (mut marks, mut rails) = (Vec::new(), Vec::new());
    while marks.push(full()).is_ok() {}
    let x = Some(f64::NAN);
    let rail = RailEnergy { name: full(), power_mw: f64::MAX, energy_mj: f64::MAX, energy_net_mj: x };
    while rails.push(rail.clone()).is_ok() {}
    Phase {
        program: full(),
        phase: Some(full()),
        begin_s: f64::MAX,
        seconds: f64::MAX,
        exit_status: Some(i32::MIN),
        signal: Some(i32::MIN),
        cpu_s: x,
        user_s: x,
        system_s: x,
        peak_bytes: Some(u64::MAX),
        power_mw: x,
        idle_power_mw: x,
        power_quantum_mw: x,
        power_readings: u32::MAX,
        energy_mj: x,
        energy_net_mj: x,
        rails,
        temp_first_c: x,
        temp_last_c: x,
        temp_c: x,
        temp_zone: Some(full()),
        cpu_mhz: x,
        gpu_mhz: x,
        emc_mhz: x,
        gpu_load: x,
        throttled: Throttling::Unknown,
        throttle_events: u64::MAX,
        load: x,
        clean: true,
        marks,
        emulated: true,
    }
}

/// Returns the records of a short run.
fn records() -> [Record; 5] {
    let cell = Cell {
        backend: text("neon"),
        kernel: text("attention_f32_d64_q8k4__neon_exp2_floor_p5"),
        method: text("elsa"),
        dtype: text("f32"),
        n: 196,
        p50_ms: 1.25,
        temp_c: Some(41.5),
        throttled: Throttling::NotSeen,
        ..Cell::default()
    };
    let other = Cell { method: text("math"), p50_ms: 3.5, speedup_vs_math: Some(1.0), ..cell.clone() };
    [
        Record::Start(Start {
            version: text("0.1.0"),
            cores: 6,
            date: text("2026-01-01"),
            ..Start::default()
        }),
        Record::Cell(cell),
        Record::Trace(Trace { t_s: 0.5, power_mw: Some(5123.0), ..Trace::default() }),
        Record::Cell(other),
        Record::End(End { cells: 2, clean_cells: 1, seconds: 2.5 }),
    ]
}

fn frame(encoder: &mut Encoder, record: &Record) -> Heap<u8> {
    encoder.encode(record, &mut [0; FRAME]).unwrap().to_vec()
}

/// Returns the frames of [`records`].
fn frames() -> [Heap<u8>; 5] {
    let mut encoder = Encoder::new(7);
    records().map(|record| frame(&mut encoder, &record))
}

fn stream() -> Heap<u8> {
    [&[0][..], &frames().concat()].concat()
}

/// Decodes `bytes` and returns the records and the counters.
fn decode(bytes: &[u8]) -> (Heap<Message>, Counts) {
    let mut decoder: Decoder = Decoder::new();
    let messages = bytes.iter().filter_map(|&byte| decoder.push(byte)).collect();
    (messages, decoder.counts())
}

/// Checks that `bytes` decode to records that were sent, in their order. Records that are missing before the last
/// decoded record must be counted. Returns the number of records and the counters.
fn require_true(bytes: &[u8]) -> (usize, Counts) {
    let (messages, counts) = decode(bytes);
    let sent = records();
    let mut before = None;
    for message in &messages {
        let at = message.sequence as usize;
        assert_eq!((message.run, Some(&message.record)), (7, sent.get(at)));
        assert!(before.is_none_or(|before| before < at));
        before = Some(at);
    }
    assert_eq!(counts.records, messages.len() as u64);
    assert_eq!(counts.lost + counts.records, before.map_or(0, |before| before as u64 + 1));
    (messages.len(), counts)
}

#[test]
fn a_clean_stream_is_what_was_sent() {
    let (messages, counts) = decode(&stream());
    let numbered = (0..).zip(records()).map(|(sequence, record)| Message { run: 7, sequence, record });
    assert_eq!(messages, numbered.collect::<Heap<_>>());
    assert!(counts.whole() && counts.records == 5, "{counts:?}");
}

#[test]
fn no_record_is_longer_than_is_said_and_one_is_as_long() {
    let cell = Record::Cell(full_cell());
    let longest = postcard::to_slice(&cell, &mut [0; 4096]).unwrap().len();
    assert_eq!(longest, RECORD);
    let trace = Trace {
        t_s: f64::MAX,
        power_mw: Some(0.0),
        temp_c: Some(0.0),
        temp_zone: Some(full()),
        cpu_mhz: Some(0.0),
        gpu_mhz: Some(0.0),
        emc_mhz: Some(0.0),
        load: Some(0.0),
    };
    let end = End { cells: u32::MAX, clean_cells: u32::MAX, seconds: f64::MAX };
    let phase = Record::Phase(full_phase());
    for record in [cell, Record::Start(full_start()), Record::Trace(trace), Record::End(end), phase] {
        let framed = frame(&mut Encoder::new(u32::MAX), &record);
        assert!(framed.len() <= FRAME && framed.iter().position(|&b| b == 0) == Some(framed.len() - 1));
        let (messages, counts) = decode(&[&[0][..], &framed].concat());
        // The encoded bytes are compared, because NaN is not equal to itself.
        let bytes = |record: &Record| postcard::to_slice(record, &mut [0; 4096]).unwrap().to_vec();
        assert_eq!((messages.len(), bytes(&messages[0].record)), (1, bytes(&record)));
        assert!(counts.whole());
    }
}

#[test]
fn a_buffer_that_is_too_short_is_refused_and_the_number_is_taken() {
    let mut encoder = Encoder::new(7);
    let needed = frames()[0].len();
    for found in 0..needed {
        let refused = encoder.encode(&records()[0], &mut std::vec![0; found]).unwrap_err();
        assert_eq!(refused, Short { found });
    }
    let (messages, counts) = decode(&frame(&mut encoder, &records()[0]));
    assert_eq!((messages[0].sequence as usize, counts.lost as usize), (needed, needed));
    // A buffer that is one byte too short is also refused if the check ends with a zero. The stuffing byte of this zero
    // comes last.
    let [.., end] = records();
    let mut encoder = Encoder::new(7);
    let (mut buffer, mut last_zeros) = ([1; FRAME], 0);
    for _ in 0..1000 {
        let mut probe = encoder.clone();
        let framed = encoder.encode(&end, &mut buffer).unwrap();
        last_zeros += u32::from(framed[framed.len() - 2] == 1);
        let found = framed.len() - 1;
        assert_eq!(probe.encode(&end, &mut std::vec![0; found]).unwrap_err(), Short { found });
    }
    assert!(last_zeros > 0);
}

#[test]
fn no_flipped_bit_is_shown_and_all_are_counted() {
    let whole = stream();
    // A flipped bit costs one record, or two if it joins two frames.
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let (came, counts) = require_true(&bytes);
            // A flip in the first or last byte need not count as a broken frame, because the first zero ends no frame
            // and the last zero ends the last frame.
            assert!((3..5).contains(&came) || at == 0, "byte {at}, bit {bit}: {counts:?}");
            assert!(
                counts.broken > 0 || at == 0 || at + 1 == whole.len(),
                "byte {at}, bit {bit}: {counts:?}"
            );
        }
    }
}

#[test]
fn missing_bytes_cost_the_frames_that_they_are_missing_in() {
    let whole = stream();
    let ends: Heap<usize> = (0..whole.len()).filter(|&i| whole[i] == 0).collect();
    for from in 0..whole.len() {
        for n in [1, 2, 7, 100, 300] {
            let to = (from + n).min(whole.len());
            let (came, counts) = require_true(&[&whole[..from], &whole[to..]].concat());
            // Frame i is between the zeros i and i + 1.
            let touched = ends.windows(2).filter(|end| end[0] < to && from <= end[1]).count();
            assert!(came + touched >= 5, "{from}..{to}: {came} came, {touched} touched, {counts:?}");
        }
    }
}

#[test]
fn bursts_of_noise_are_never_shown() {
    let whole = stream();
    let mut numbers = Random::new(1);
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(bytes.len());
            for byte in bytes.iter_mut().skip(at).take(1 + numbers.below(40)) {
                *byte = numbers.below(256) as u8;
            }
        }
        require_true(&bytes);
        let cut = numbers.below(bytes.len());
        require_true(&bytes[cut..]);
        require_true(&bytes[..cut]);
    }
}

#[test]
fn noise_alone_is_no_record_and_what_follows_is_read() {
    let mut numbers = Random::new(2);
    for length in 0..400 {
        let mut bytes: Heap<u8> = (0..length * 8).map(|_| numbers.below(256) as u8).collect();
        bytes.push(0);
        assert_eq!(decode(&bytes).0, []);
        bytes.extend(stream());
        let (messages, counts) = decode(&bytes);
        assert_eq!((messages.len(), counts.lost), (5, 0));
    }
}

#[test]
fn the_rest_of_a_frame_at_the_beginning_is_no_damage() {
    let frames = frames();
    for from in 1..frames[0].len() {
        let (messages, counts) = decode(&[&frames[0][from..], &frames[1]].concat());
        assert_eq!((messages.len(), counts.broken, counts.lost), (1, 0, 1));
    }
    // After a cut, the rest of a frame is not counted as damage either. Without the cut, it is.
    for (cut, broken) in [(true, 0), (false, 1)] {
        let mut decoder: Decoder = Decoder::new();
        let push =
            |decoder: &mut Decoder, bytes: &[u8]| bytes.iter().filter_map(|&byte| decoder.push(byte)).count();
        assert_eq!(push(&mut decoder, &frames[0]) + push(&mut decoder, &frames[1][..9]), 1);
        if cut {
            decoder.cut();
        }
        assert_eq!(push(&mut decoder, &frames[1][20..]) + push(&mut decoder, &frames[2]), 1);
        assert_eq!((decoder.counts().broken, decoder.counts().lost), (broken, 1));
    }
}

#[test]
fn runs_are_told_apart_and_nothing_is_shown_twice() {
    let [start, cell, ..] = records();
    let mut other = Encoder::new(8);
    let again = frame(&mut other, &start);
    let beyond = frame(&mut other, &cell);
    other.skip(2);
    let later = frame(&mut other, &cell);
    // The first run arrives completely. The start and two later records of the second run are missing.
    let (messages, counts) = decode(&[stream(), beyond.clone(), later, beyond, again].concat());
    assert_eq!(messages[5..].iter().map(|m| (m.run, m.sequence)).collect::<Heap<_>>(), [(8, 1), (8, 4)]);
    assert_eq!((counts.lost, counts.repeated, counts.broken), (1 + 2, 2, 0));
    assert!(!counts.whole());
}

#[test]
fn numbers_wrap_around() {
    let [start, ..] = records();
    let (mut encoder, mut decoder) = (Encoder::new(7), Decoder::<FRAME>::new());
    let skipped = (1 << 30) - 1;
    for step in 1..=5u64 {
        let came = frame(&mut encoder, &start).iter().filter_map(|&byte| decoder.push(byte)).count();
        let Counts { records, lost, repeated, .. } = decoder.counts();
        assert_eq!((came, records, lost, repeated), (1, step, (step - 1) * u64::from(skipped), 0));
        encoder.skip(skipped);
    }
}

/// Returns a frame that contains `message` and a valid check. A zero precedes the frame, and a zero ends it.
fn forged(message: &[u8]) -> Heap<u8> {
    let mut message = message.to_vec();
    message.extend(crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&message).to_le_bytes());
    let mut frame = std::vec![0; cobs::max_encoding_length(message.len()) + 1];
    let n = cobs::encode(&message, &mut frame);
    frame.truncate(n + 1);
    [&[0][..], &frame].concat()
}

#[test]
fn the_check_value_is_that_of_the_polynomial() {
    assert_eq!(crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(b"123456789"), 0xe306_9283);
}

#[test]
fn frames_of_other_versions_are_told_from_damage() {
    let mut message = std::vec![VERSION, 7, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(postcard::to_slice(&records()[4], &mut [0; 64]).unwrap());
    let count = |message: &[u8]| {
        let (messages, counts) = decode(&forged(message));
        (messages.len(), counts.broken, counts.foreign)
    };
    assert_eq!(count(&message), (1, 0, 0));
    for version in (0..=255).filter(|&version| version != VERSION) {
        message[0] = version;
        assert_eq!(count(&message), (0, 0, 1));
    }
    assert_eq!(count(&[VERSION + 1]), (0, 0, 1));
    message[0] = VERSION;
    // These messages have a valid check, but contain more than one record, only part of a record, or no record.
    assert_eq!(count(&[&message[..], &[0]].concat()), (0, 1, 0));
    for len in 0..message.len() {
        assert_eq!(count(&message[..len]), (0, 1, 0), "{len}");
    }
    message[9] = 5;
    assert_eq!(count(&message), (0, 1, 0));
}

#[test]
fn texts_that_are_too_long_or_no_text_are_no_record() {
    // Returns a message with a trace whose only text is its zone.
    let body = |zone: &[u8]| {
        let mut message = std::vec![VERSION, 7, 0, 0, 0, 0, 0, 0, 0, 2];
        message.extend([0; 8 + 2]);
        message.extend([1, zone.len() as u8]);
        message.extend(zone);
        message.extend([0; 4]);
        message
    };
    for (zone, came) in
        [(&b"GPU-therm"[..], 1), (&[b'x'; 24][..], 1), (&[b'x'; 25][..], 0), (&[0xff, 0xfe][..], 0)]
    {
        let (messages, counts) = decode(&forged(&body(zone)));
        assert_eq!((messages.len(), counts.broken), (came, 1 - came as u64), "{zone:?}");
    }
}

#[test]
fn frames_that_are_too_long_are_counted_and_skipped() {
    let mut decoder: Decoder<64> = Decoder::new();
    let frames = frames();
    let long: Heap<bool> = frames.iter().map(|frame| frame.len() - 1 > 64).collect();
    assert_eq!(long, [false, true, false, true, false]);
    let came: Heap<u32> = [&[0][..], &frames.concat()]
        .concat()
        .iter()
        .filter_map(|&b| decoder.push(b))
        .map(|m| m.sequence)
        .collect();
    assert_eq!(came, [0, 2, 4]);
    let expected = Counts { records: 3, lost: 2, overlong: 2, ..Counts::default() };
    assert_eq!(decoder.counts(), expected);
    // A sequence of 5000 bytes without a zero counts as one overlong frame, and its excess bytes as noise.
    let mut none: Decoder<0> = Decoder::new();
    assert!((0..5000).all(|_| none.push(1).is_none()) && none.push(0).is_none());
    assert!(stream().iter().all(|&byte| none.push(byte).is_none()));
    let noise = 5000 - (FRAME as u64 - 1);
    assert_eq!(none.counts(), Counts { overlong: 5, noise, ..Counts::default() });
}

/// Checks that bytes beyond the length of the longest frame count as noise when they arrive. If no record arrived, all
/// bytes count as noise at the end of the stream.
#[test]
fn noise_is_counted() {
    let noise = |decoder: &mut Decoder, bytes: usize| assert!((0..bytes).all(|_| decoder.push(1).is_none()));
    let long = 3 << 20;
    for bytes in [0, 1, FRAME - 1, FRAME, long] {
        let mut decoder: Decoder = Decoder::new();
        noise(&mut decoder, bytes);
        let beyond = bytes.saturating_sub(FRAME - 1) as u64;
        assert_eq!(decoder.counts(), Counts { noise: beyond, ..Counts::default() });
        assert_eq!((decoder.end().noise, decoder.end().whole()), (bytes as u64, bytes == 0));
        decoder.cut();
        noise(&mut decoder, 7);
        assert_eq!(decoder.end().noise, bytes as u64 + 7);
        // Once a record has arrived, the bytes before it may be the end of a frame, and only excess bytes are noise.
        let came = [&[0][..], &stream()].concat().iter().filter_map(|&byte| decoder.push(byte)).count();
        assert_eq!((came, decoder.end().noise, decoder.end().broken), (5, beyond, 0));
        // After the record, the next bytes may belong to a frame in progress.
        noise(&mut decoder, bytes);
        assert_eq!(decoder.end().noise, 2 * beyond);
    }
}
