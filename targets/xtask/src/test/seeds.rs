//! Generates the initial inputs of the fuzzer from integer seeds. They are generated again in every run.

use elsa_core::random::Random;
use elsa_core::telemetry::frame::{Encoder, FRAME};
use elsa_core::telemetry::record::{Cell, End, Phase, Record, Start, Trace, text};
use std::io::{Cursor, Seek, Write};
use zip::result::ZipResult;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Returns the seeds of a target: valid, truncated and damaged files if the target reads a format, otherwise random bytes.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "npy" => cut(npy()),
        "npz" => cut(npz()),
        "safetensors" => cut(safetensors()),
        "states" => cut(states()),
        "telemetry" => cut(telemetry()),
        "onnx" => cut(onnx()),
        "journal" => cut(journal()),
        "table" => cut(table()),
        _ => (0..24).map(|i| bytes(i, 16 << (i % 6))).collect(),
    }
}

/// Returns `n` random bytes.
fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.below(256) as u8).collect()
}

/// Returns the files, and two truncated copies of each: the first half, and all bytes except the last.
fn cut(files: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut all = files.clone();
    for file in files {
        all.push(file[..file.len() / 2].to_vec());
        all.push(file[..file.len().saturating_sub(1)].to_vec());
    }
    all
}

/// Builds an `.npy` file with the given element type, order, shape, data and format version.
fn npy_file((kind, order, shape): (&str, &str, &str), data: &[u8], version: u8) -> Vec<u8> {
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}");
    // The field for the header's length has two bytes in version 1, and four bytes in later versions.
    let prefix = if version == 1 { 10 } else { 12 };
    while (prefix + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    let length = (header.len() as u32).to_le_bytes();
    file.extend(&length[..prefix - 8]);
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

fn npy() -> Vec<Vec<u8>> {
    let kinds = [
        ("<f4", "False", "(2, 3, 4, 2)", 192),
        ("<f2", "False", "(5, 8)", 80),
        ("<f8", "False", "(3,)", 24),
        ("<i8", "False", "(4,)", 32),
        ("|b1", "False", "(2, 1, 3, 3)", 18),
        (">f4", "False", "(2, 2)", 16),
        ("<f4", "True", "(2, 3)", 24),
        ("<f4", "False", "()", 4),
        ("<f4", "False", "(0, 7)", 0),
        ("<f4", "False", "(1000000, 1000000)", 16),
        ("<f4", "False", "(18446744073709551615, 2)", 16),
    ];
    let file = |(kind, order, shape, data): (&str, &str, &str, usize), version: u8| {
        npy_file((kind, order, shape), &bytes(data as u64, data), version)
    };
    let mut files: Vec<Vec<u8>> = kinds.map(|kind| file(kind, 1)).into();
    files.extend([file(kinds[0], 2), file(kinds[0], 3), file(kinds[0], 9)]);
    files
}

/// Builds a zip archive of uncompressed members. Their lengths are in the directory and, if `streamed`, after the data.
fn archive(members: &[(&str, &[u8])], streamed: bool) -> Vec<u8> {
    fn fill<W: Write + Seek>(mut zip: ZipWriter<W>, members: &[(&str, &[u8])]) -> ZipResult<W> {
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        for (name, data) in members {
            zip.start_file(*name, stored)?;
            zip.write_all(data)?;
        }
        zip.finish()
    }
    let file = match streamed {
        true => fill(ZipWriter::new_stream(Vec::new()), members).map(|to| to.into_inner()),
        false => fill(ZipWriter::new(Cursor::new(Vec::new())), members).map(Cursor::into_inner),
    };
    // Writing an archive to memory does not fail.
    file.unwrap_or_default()
}

/// Builds archives of one and of two uncompressed members.
fn npz() -> Vec<Vec<u8>> {
    let members = npy();
    let mut files = Vec::new();
    for streamed in [false, true] {
        files.extend(members.iter().map(|data| archive(&[("q.npy", &data[..])], streamed)));
        files.push(archive(&[("k.npy", &members[1]), ("q", &members[0])], streamed));
    }
    files
}

/// Builds files of quorum tasks for a problem with two tokens in three chunks: intact files, and for each array a file
/// in which this array is changed.
fn states() -> Vec<Vec<u8>> {
    let list = |data: &[i64]| {
        let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        npy_file(("<i8", "False", &format!("({},)", data.len())), &bytes, 1)
    };
    let file = |task: i64, runs: &[i64], lengths: &[i64], shares: bool| {
        let rules = [0, 2, 1, -1, 0, i64::from(!lengths.is_empty())];
        let (shape, factors) = ([1, 2, 1, 2, 2, 1, 1], [1.0f32, 0.0]);
        let bits = factors.map(|x| i64::from(x.to_bits()));
        let words = [&[3][..], &shape, &rules, &bits, lengths];
        let words =
            words.into_iter().flat_map(|list| [list.len() as i64].into_iter().chain(list.iter().copied()));
        let fingerprint = words.flat_map(i64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let rows: i64 = runs.chunks(2).map(|run| run[1]).sum();
        let float = |shape: &str, data: &[f32]| {
            let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
            npy_file(("<f4", "False", shape), &bytes, 1)
        };
        let row = vec![1.5; 2 * rows as usize];
        let places: Vec<u8> = runs.iter().flat_map(|x| x.to_le_bytes()).collect();
        let places = || npy_file(("<i8", "False", &format!("({}, 2)", runs.len() / 2)), &places, 1);
        let mut arrays = vec![
            ("version.npy", list(&[2])),
            ("kind.npy", list(&[i64::from(shares)])),
            ("quorum.npy", list(&[3])),
            ("path.npy", list(&[task])),
            ("shape.npy", list(&shape)),
            ("rules.npy", list(&rules)),
            ("factors.npy", float("(2,)", &factors)),
            ("kv_lens.npy", list(lengths)),
            ("run_id.npy", list(&[])),
            ("fingerprint.npy", list(&[fingerprint as i64])),
            ("query_sums.npy", list(&vec![1; rows as usize])),
            ("key_sums.npy", list(&vec![1; rows as usize])),
            ("runs.npy", places()),
        ];
        // There are as many keys as queries. There is one key head.
        let each = || float(&format!("(1, 2, {rows}, 1)"), &row);
        let of_keys = || float(&format!("(1, 1, {rows}, 1)"), &row[rows as usize..]);
        match shares {
            true => arrays.extend([
                ("key_runs.npy", places()),
                ("d_out_sums.npy", list(&vec![1; rows as usize])),
                ("dq.npy", each()),
                ("dk.npy", of_keys()),
                ("dv.npy", of_keys()),
            ]),
            false => arrays.extend([
                ("m.npy", float(&format!("(1, 2, {rows})"), &row)),
                ("S.npy", float(&format!("(1, 2, {rows})"), &row)),
                ("W.npy", each()),
            ]),
        }
        arrays
    };
    let packed = |members: &[(&str, Vec<u8>)]| {
        let members: Vec<(&str, &[u8])> = members.iter().map(|(name, data)| (*name, &data[..])).collect();
        archive(&members, false)
    };
    let members = file(0, &[0, 1, 1, 1], &[], false);
    let mut files = vec![
        packed(&members),
        packed(&file(1, &[1, 1], &[2], false)),
        packed(&file(2, &[0, 1], &[0], false)),
        packed(&file(0, &[0, 1, 1, 1], &[], true)),
        packed(&file(1, &[1, 1], &[2], true)),
    ];
    for at in 0..members.len() {
        let mut bent = members.clone();
        if let Some(byte) = bent[at].1.last_mut() {
            *byte ^= 0x41;
        }
        files.push(packed(&bent));
    }
    files
}

fn safetensors() -> Vec<Vec<u8>> {
    let headers = [
        (r#"{"q":{"dtype":"F32","shape":[1,2,3,4],"data_offsets":[0,96]}}"#, 96),
        (r#"{"__metadata__":{"format":"pt"},"q":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#, 12),
        (
            r#"{"q":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"k":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}"#,
            16,
        ),
        (r#"{"m":{"dtype":"BOOL","shape":[2,2],"data_offsets":[0,4]}}"#, 4),
        (r#"{"q":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,16]}}"#, 16),
        (r#"{"q":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8),
        (r#"{"q":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}}"#, 0),
        ("{}", 0),
    ];
    let file = |(header, data): (&str, usize)| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(bytes(data as u64, data));
        file
    };
    let mut files: Vec<Vec<u8>> = headers.map(file).into();
    files.push([&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    files
}

/// Builds telemetry streams: one for each kind of record, one with a complete run, and one with two runs. In the last stream,
/// the second run lost its first record.
fn telemetry() -> Vec<Vec<u8>> {
    let records = [
        Record::Start(Start {
            version: text("0.1.0"),
            cores: 6,
            gpu: Some(text("GP10B")),
            ..Start::default()
        }),
        Record::Cell(Cell { kernel: text("k"), window: Some([-1, 3]), noise: Some(0.5), ..Cell::default() }),
        Record::Trace(Trace { t_s: 0.5, power_mw: Some(5000.0), ..Trace::default() }),
        Record::Phase(Phase { phase: Some(text("warm")), cpu_s: Some(0.25), ..Phase::default() }),
        Record::End(End { cells: 2, clean_cells: 1, seconds: 1.5 }),
    ];
    let stream = |run: u32, skipped: u32, records: &[Record]| {
        let (mut encoder, mut stream) = (Encoder::new(run), vec![0]);
        encoder.skip(skipped);
        for record in records {
            // A buffer of `FRAME` bytes has room for any record.
            stream.extend(encoder.encode(record, &mut [0; FRAME]).unwrap_or_default());
        }
        stream
    };
    let mut streams: Vec<Vec<u8>> =
        records.iter().map(|record| stream(1, 0, std::slice::from_ref(record))).collect();
    streams.push(stream(2, 0, &records));
    streams.push([stream(3, 0, &records), stream(4, 1, &records[1..])].concat());
    streams
}

/// Builds models that each contain one attention. The models differ in three respects: an additive mask or none, a fixed or a
/// free batch size, and attention as several nodes or as one node.
fn onnx() -> Vec<Vec<u8>> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        // Lengths of up to 14 bits.
        let length = [bytes.len() as u8 & 127 | 128, (bytes.len() >> 7) as u8];
        [&[number << 3 | 2], &length[..], bytes].concat()
    }
    let node = |op: &str, inputs: &[&str], output: &str, more: &[u8]| {
        let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
        let named = [field(2, output.as_bytes()), field(4, op.as_bytes())].concat();
        field(1, &[&inputs, &named[..], more].concat())
    };
    let info = |number: u8, name: &str, axes: &[u8]| {
        let dims: Vec<u8> = (axes.iter())
            .flat_map(|&n| field(1, &if n == 0 { field(2, b"n") } else { vec![1 << 3, n] }))
            .collect();
        let tensor = [vec![1 << 3, 1], field(2, &dims)].concat();
        field(number, &[field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat())
    };
    let perm: Vec<u8> = [
        field(1, b"perm"),
        [0, 1, 3, 2].into_iter().flat_map(|axis| [8 << 3, axis]).collect(),
        vec![0xa0, 1, 7],
    ]
    .concat();
    let (perm, axis) =
        (field(5, &perm), field(5, &[field(1, b"axis"), vec![3 << 3, 3, 0xa0, 1, 2]].concat()));
    let model = |batch: u8, masked: bool, fused: bool| {
        let scores = if masked { "m" } else { "s" };
        let nodes = if fused {
            node("Attention", &["q", "k", "v"], "y", &[])
        } else {
            let add = if masked { node("Add", &["s", "mask"], "m", &[]) } else { vec![] };
            let first =
                [node("Transpose", &["k"], "t", &perm), node("MatMul", &["q", "t"], "s", &[]), add].concat();
            [first, node("Softmax", &[scores], "w", &axis), node("MatMul", &["w", "v"], "y", &[])].concat()
        };
        let inputs: Vec<u8> =
            ["q", "k", "v"].iter().flat_map(|name| info(11, name, &[batch, 2, 5, 4])).collect();
        let mask = if masked { info(11, "mask", &[batch, 1, 1, 5]) } else { vec![] };
        let graph = [nodes, field(2, b"main"), inputs, mask, info(12, "y", &[batch, 2, 5, 4])].concat();
        let import = field(8, &[field(1, b""), vec![2 << 3, 23]].concat());
        [vec![1 << 3, 10], field(7, &graph), import].concat()
    };
    vec![model(2, false, false), model(0, true, false), model(0, false, true), model(1, true, false)]
}

/// Builds journals of elsa run --resume.
fn journal() -> Vec<Vec<u8>> {
    let head = r#"{"sizes":[1,4,9,3,512],"run":["q 64769:131 4194432 1700000000.000000000","k"]}"#;
    let units = |n: usize| (0..n).map(|unit| format!("unit {unit}\n")).collect::<String>();
    let of = |n, end: &str| format!("elsa journal 1\n{head}\n{}{end}", units(n)).into_bytes();
    vec![of(0, ""), of(3, ""), of(12, "commit [\"1:2 3\",\"\"]\n"), of(2, "unit 1\n"), of(1, "commit 3\n")]
}

/// Builds tables of elsa bench: single tables, and a pair of tables separated by a zero byte.
fn table() -> Vec<Vec<u8>> {
    let names = "workload,shape,dtype,method,backend,kernel,threads,samples,p50_ms,noise,clean\n";
    let row = |shape: &str, ms: &str| {
        format!("swin,\"{shape}\",f32,elsa,avx2,\"k, \"\"q\"\"\",2,9,{ms},0.01,true\n")
    };
    let of = |ms: &str| format!("{names}{}{}", row("1,1,64,64,64", ms), row("2,1,9,9,8,swin=7x7:3", "0.5"));
    let (one, other) = (of("1.5"), of("1e308"));
    let both = format!("{one}\0{other}");
    [one, other, both, of(""), of("NaN"), names.to_owned()].map(String::into_bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_the_same_every_time_and_differ_among_themselves() {
        for target in
            ["problem", "npy", "npz", "safetensors", "states", "telemetry", "onnx", "journal", "table"]
        {
            let seeds = of(target);
            assert_eq!(seeds, of(target));
            let distinct: std::collections::BTreeSet<&Vec<u8>> = seeds.iter().collect();
            assert!(distinct.len() * 10 > seeds.len() * 8, "{target}");
        }
    }

    #[test]
    fn headers_are_aligned_and_lengths_true() {
        let seed = &npy()[0];
        assert_eq!(seed[6], 1);
        let length = usize::from(u16::from_le_bytes([seed[8], seed[9]]));
        assert_eq!((10 + length) % 64, 0);
        assert_eq!(seed.len() - 10 - length, 192);
        let seed = &safetensors()[0];
        assert_eq!(seed[8], b'{');
        assert_eq!(seed[8 + usize::from(seed[0]) - 1], b'}');
    }
}
