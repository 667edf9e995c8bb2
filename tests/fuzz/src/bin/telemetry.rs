//! Decodes arbitrary bytes as telemetry frames. They are decoded to records or counted as losses. A decoded record
//! stays the same when it is encoded and decoded again. A frame that follows a zero byte must be read, regardless of
//! earlier bytes.
#![no_main]

use elsa_core::telemetry::frame::{Decoder, Encoder, FRAME, Message};
use elsa_core::telemetry::record::{End, Record};
use libfuzzer_sys::fuzz_target;

/// Decodes `bytes` and returns the messages and the decoder.
fn read<const N: usize>(bytes: &[u8]) -> (Vec<Message>, Decoder<N>) {
    let mut decoder = Decoder::new();
    let messages: Vec<Message> = bytes.iter().filter_map(|&byte| decoder.push(byte)).collect();
    let (counts, zeros) = (decoder.counts(), bytes.iter().filter(|&&byte| byte == 0).count() as u64);
    assert_eq!(counts.records, messages.len() as u64);
    assert!(counts.records + counts.broken + counts.overlong + counts.foreign + counts.repeated <= zeros);
    (messages, decoder)
}

/// Encodes `record` as the first frame of a run.
fn frame(run: u32, record: &Record) -> Vec<u8> {
    Encoder::new(run).encode(record, &mut [0; FRAME]).expect("room for any record").to_vec()
}

fuzz_target!(|bytes: &[u8]| {
    let (messages, mut decoder) = read::<FRAME>(bytes);
    for message in &messages {
        let frame = frame(message.run, &message.record);
        let (again, decoder) = read::<FRAME>(&frame);
        let [same] = &again[..] else { panic!("{} messages of one frame", again.len()) };
        // Encoded frames are compared instead of records, because a NaN is not equal to itself.
        assert_eq!(self::frame(same.run, &same.record), frame);
        assert!(decoder.counts().whole());
    }
    // This zero byte may end a frame that earlier bytes began.
    let last = decoder.push(0);
    let run = last.as_ref().or(messages.last()).map_or(0, |message| message.run.wrapping_add(1));
    let end = Record::End(End { cells: 1, clean_cells: 1, seconds: 1.0 });
    let last = frame(run, &end).iter().filter_map(|&byte| decoder.push(byte)).last();
    assert_eq!(last, Some(Message { run, sequence: 0, record: end }));
    read::<64>(bytes);
});
