//! Compares the table of GPU kernels with the modules and the manifest that `cargo xtask ptx` writes.

use elsa_core::attention::plan::{ARRIVALS, Summation};
use elsa_kernels::cuda::group::{Header, PARAMETERS, checksum, window};
use elsa_kernels::cuda::tensor::Divisor;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, HAS_TENSOR_CORES, Role, registers};
use lzma_rust2::LzmaReader;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx")
}

/// Returns the name of the oldest GPU that loads a kernel's module, and the version of the module's PTX ISA.
fn target(kernel: &GpuKernel) -> (&'static str, &'static str) {
    match kernel.ptx.target.capability {
        (5, 3) => ("sm_53", "6.5"),
        (8, 0) => ("sm_80", "7.4"),
        other => panic!("{}: {other:?}", kernel.name),
    }
}

/// Returns the PTX of a kernel as `cargo xtask ptx` wrote it.
fn generated(kernel: &GpuKernel) -> String {
    std::fs::read_to_string(folder().join(target(kernel).0).join(kernel.name).with_extension("ptx")).unwrap()
}

#[test]
fn every_module_is_in_the_table_once() {
    let folders = if HAS_TENSOR_CORES { &["sm_53", "sm_80"][..] } else { &["sm_53"] };
    let files: BTreeSet<String> = folders
        .iter()
        .flat_map(|target| std::fs::read_dir(folder().join(target)).unwrap())
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            assert_eq!(path.extension().unwrap(), "ptx", "{}", path.display());
            path.file_stem().unwrap().to_string_lossy().into_owned()
        })
        .collect();
    let table: BTreeSet<String> = GPU_KERNELS.iter().map(|kernel| kernel.name.to_owned()).collect();
    assert_eq!(table.len(), GPU_KERNELS.len(), "a name twice");
    assert_eq!(table, files);
}

#[test]
fn the_table_agrees_with_the_manifest() {
    let manifest = std::fs::read_to_string(folder().join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    for kernel in GPU_KERNELS {
        let takes = &manifest["kernels"][kernel.name];
        let ours = kernel.resources();
        // The shared memory of these kernels is that of the launch.
        let shared = if matches!(kernel.role, Role::AttentionSplit(_)) { 0 } else { ours.shared };
        for (what, ours) in [
            ("registers", ours.registers),
            ("shared", shared),
            ("threads", ours.threads),
            ("bytes", generated(kernel).len()),
        ] {
            assert_eq!(takes[what].as_u64(), Some(ours as u64), "{}: {what}", kernel.name);
        }
    }
}

/// Returns the template that the source of a kernel instantiates, and the template's arguments.
fn instance(kernel: &GpuKernel) -> (String, Vec<String>) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/attention").join(format!("{}.cu", kernel.name));
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with("ATTEN")).expect("an instance");
    let (name, arguments) = line.strip_suffix(')').and_then(|line| line.split_once('(')).unwrap();
    (name.into(), arguments.split(", ").map(String::from).collect())
}

#[test]
fn sums_are_those_of_the_sources() {
    for kernel in GPU_KERNELS {
        let (Role::Attention(spec) | Role::AttentionRefused(spec) | Role::AttentionSplit(spec)) =
            &kernel.role
        else {
            continue;
        };
        let (template, arguments) = instance(kernel);
        let number = |i: usize| arguments[i].parse::<usize>().unwrap();
        if template == "ATTENTION_SPLIT" {
            // Arguments: name, blocks of an SM, D, keys, warps, products of 16 rows of a warp, ..
            let (d, keys, warps, products) = (number(2), number(3), number(4), number(5));
            let parts = if arguments.len() > 12 { number(12) } else { 1 };
            let rows = 16 * warps / parts * products;
            assert_eq!([spec.head_dim, spec.keys, spec.rows], [d, keys, rows], "{}", kernel.name);
            assert_eq!(
                spec.summation,
                Summation::Tiles { columns: keys / 4, flush: keys },
                "{}",
                kernel.name
            );
            // .., 16 keys computed together, queries in shared memory, own sums for small products, stages, changed,
            // elements of 16 bits, groups of warps, one product. Operands have one plane or two.
            let is = |i: usize| arguments.get(i).is_some_and(|argument| argument == "true");
            let size = if is(11) || is(13) { 2 } else { 4 };
            assert_eq!([spec.sixteen_bit, spec.one_product], [is(11), is(13)], "{}", kernel.name);
            let (tile, queries) = (2 * size * keys * d, size * 16 * warps * products * d);
            let tiles = number(9) * parts * tile;
            let beside = if is(7) { queries } else { 0 };
            let addends = if is(10) { rows * 4 * (keys + 8) } else { 0 };
            let before = if is(7) { tiles } else { number(9) * parts * tile / 2 };
            let results = rows * 4 * (d + if parts > 1 { 8 } else { 0 });
            let shared = (tiles + beside + addends).max(before + queries).max(results);
            assert_eq!(spec.resources.shared, shared, "{}", kernel.name);
            continue;
        }
        let summation = match &*template {
            // Arguments: name, elements, D, warps, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, ..; a lane has TN
            // columns.
            "ATTENTION" | "ATTENTION_MERGED" | "ATTENTION_SERIAL" | "ATTENTION_REFUSED" => {
                Summation::Tiles { columns: number(5), flush: number(11) * spec.keys }
            }
            // Arguments: name, 16-bit elements, D, ..; a row uses one lane for four dims, at most 32 of the 128 lanes.
            "ATTEND_ROWS" | "ATTEND_ROWS_MERGED" => {
                Summation::Groups { groups: 128 / (number(2) / 4).min(32), flush: 256 }
            }
            _ => panic!("{}: {template}", kernel.name),
        };
        assert_eq!((spec.head_dim, spec.summation), (number(2), summation), "{}", kernel.name);
        assert_eq!(spec.serial, template == "ATTENTION_SERIAL", "{}", kernel.name);
        let merges = if template.ends_with("_MERGED") { 8 } else { 0 };
        assert_eq!(spec.merges, merges, "{}", kernel.name);
    }
    let has = |header: &str, line: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/attention");
        std::fs::read_to_string(folder.join(header)).unwrap().contains(line)
    };
    assert!(has("rows.cuh", "FLUSH = 256 / KEYS,"), "rows.cuh flushes after another number of keys");
    assert!(has("arrival.cuh", "MERGED = 8;"), "arrival.cuh merges another number of splits");
    // A kernel would otherwise count outside the region that a workspace has for it.
    assert!(has("call.cuh", &format!("ARRIVALS = {ARRIVALS} }}")), "call.cuh has another number of counters");
}

/// Returns the text of a group.
fn inflated(group: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let (header, stream) = Header::split(group).unwrap();
    assert_eq!(Header::BYTES + stream.len(), group.len());
    let ([lc, lp, pb], window) = (PARAMETERS, window(dictionary.len(), header.text as usize));
    let reader =
        LzmaReader::new(stream, u64::from(header.text), lc, lp, pb, window, Some(dictionary)).unwrap();
    let mut text = Vec::new();
    reader.take(u64::from(header.text)).read_to_end(&mut text).unwrap();
    assert_eq!((text.len(), checksum(&text)), (header.text as usize, header.checksum));
    text
}

#[test]
fn modules_are_what_an_old_driver_loads() {
    let mut groups: BTreeMap<*const u8, (Vec<u8>, usize)> = BTreeMap::new();
    for kernel in GPU_KERNELS {
        let ptx = &kernel.ptx;
        let (group, taken) = groups.entry(ptx.group.as_ptr()).or_insert_with(|| {
            let dictionary =
                if ptx.dictionary.is_empty() { Vec::new() } else { inflated(ptx.dictionary, &[]) };
            (inflated(ptx.group, &dictionary), 0)
        });
        *taken += ptx.packed;
        let packed = std::str::from_utf8(&group[ptx.start..][..ptx.packed]).unwrap();
        let packed = packed.strip_suffix('\0').expect("a terminating zero");
        let (target, isa) = target(kernel);
        assert_eq!(ptx.isa, isa, "{}", kernel.name);
        assert!(!packed.contains('\0'), "{}", kernel.name);
        assert!(packed.starts_with(&format!(".version {isa}\n.target {target}\n")), "{}", kernel.name);
        assert!(packed.contains(&format!(".entry {}(", kernel.name)), "{}", kernel.name);
        // The texts are compared without the numbers of their registers.
        let generated = generated(kernel);
        let bare = |text: &str| {
            let mut bare = Vec::new();
            let numberless = |_, _| Ok::<_, ()>(None);
            registers::rewrite(text.as_bytes(), numberless, |piece| bare.extend_from_slice(piece)).unwrap();
            String::from_utf8(bare).unwrap()
        };
        assert_eq!(bare(packed), bare(&generated), "{}", kernel.name);
        assert!(bare(packed).len() < packed.len() && packed.len() < generated.len(), "{}", kernel.name);
    }
    for (texts, taken) in groups.values() {
        assert_eq!(texts.len(), *taken, "a group holds its modules and nothing else");
    }
    let stored: usize = GPU_KERNELS
        .iter()
        .map(|kernel| kernel.ptx.group)
        .filter(|group| groups.remove(&group.as_ptr()).is_some())
        .map(<[u8]>::len)
        .sum();
    let text: usize = GPU_KERNELS.iter().map(|kernel| kernel.ptx.bytes).sum();
    // Debug builds compress fewer modules together.
    let share = if cfg!(debug_assertions) { 11 } else { 18 };
    assert!(stored * share < text, "{text} bytes of PTX take {stored}; allowed: one part in {share}");
}

#[test]
fn registers_are_told_from_other_words() {
    let rewritten = |text: &str| {
        let mut seen = Vec::new();
        let mut new = Vec::new();
        let number = |class, number| {
            seen.push((char::from(registers::CLASSES[class]), number));
            Ok::<_, ()>(Some(7))
        };
        registers::rewrite(text.as_bytes(), number, |piece| new.extend_from_slice(piece)).unwrap();
        (String::from_utf8(new).unwrap(), seen)
    };
    let kept = [
        "",
        "\0",
        ".reg .f32 f<9>;\n.reg .pred p<2>;",
        "fma.rn.f32 mov.b64 .f16 %r1 $f1 _d0 0f3F800000 0dBFF0000000000000 L2: P S[8] sm_53 r0x r01 f4294967296 r1.x",
        "attention_f32_d64_q64k64 {x} [y+8] é",
    ];
    for text in kept {
        assert_eq!(rewritten(text), (text.to_owned(), vec![]));
    }
    let (new, seen) = rewritten("@!p0 ld.f32 {f12,r},[d4294967295+8];h3\ng2");
    assert_eq!(new, "@!p7 ld.f32 {f7,r7},[d7+8];h7\ng7");
    let numbers = [Some(0), Some(12), None, Some(u32::MAX), Some(3), Some(2)];
    assert_eq!(seen, "pfrdhg".chars().zip(numbers).collect::<Vec<_>>());
    for number in [0, 9, 10, 109, u32::MAX] {
        let mut new = String::new();
        let put = |piece: &[u8]| new += std::str::from_utf8(piece).unwrap();
        registers::rewrite(b"-r-", |_, _| Ok::<_, ()>(Some(number)), put).unwrap();
        assert_eq!(new, format!("-r{number}-"));
    }
    assert_eq!(registers::rewrite(b"r1 r2", |_, number| Err::<_, Option<u32>>(number), |_| ()), Err(Some(1)));
}

#[test]
fn both_widths_and_any_number_of_queries_have_kernels() {
    for case in 0..8 {
        let [wide, few, plain] = [1, 2, 4].map(|bit| case & bit != 0);
        let largest = GPU_KERNELS
            .iter()
            .filter_map(GpuKernel::attention)
            .filter(|spec| !spec.half_scores() && spec.sixteen_bit == wide)
            .filter(|spec| (if plain { spec.most_plain } else { spec.most_queries } == usize::MAX) != few)
            .map(|spec| spec.head_dim)
            .max();
        assert_eq!(largest, Some(256), "16-bit {wide}, few queries {few}, plain {plain}");
    }
    let count = |is: fn(&Role) -> bool| GPU_KERNELS.iter().filter(|kernel| is(&kernel.role)).count();
    assert_eq!(count(|role| matches!(role, Role::AttentionPresent { .. })), 1);
    assert!(count(|role| matches!(role, Role::AttentionMerge { .. })) >= 1);
    assert_eq!(count(|role| matches!(role, Role::AttentionStream { .. })), 1);
}

#[test]
fn cubins_are_those_that_the_build_was_given() {
    let folder = option_env!("ELSA_CUBIN_DIR").filter(|folder| !folder.is_empty()).map(Path::new);
    for kernel in GPU_KERNELS {
        let given =
            folder.and_then(|folder| std::fs::read(folder.join(format!("{}.cubin", kernel.name))).ok());
        assert_eq!(kernel.cubin, given.as_deref(), "{}", kernel.name);
    }
}

#[test]
fn divisors_divide() {
    let most = i32::MAX as u32;
    let last = if cfg!(miri) { 8 } else { 1000 };
    for d in (1..=last).chain([4095, 4096, 4097, 1 << 30, (1 << 30) + 1, i32::MAX]) {
        let Divisor { multiplier, shift } = Divisor::new(d);
        let d = d as u32;
        for n in
            (0..200).chain([most, most - 1]).chain((1..200).map(|k| most / d * d / 199 * k)).flat_map(|n| {
                let near = n / d * d;
                [n, near, near.saturating_sub(1), (near + (d - 1)).min(most)]
            })
        {
            let product = u64::from(2 * n) * u64::from(multiplier);
            assert_eq!(((product >> 32) as u32) >> shift, n / d, "{n} / {d}");
        }
    }
    assert_eq!(Divisor::new(0), Divisor::new(1));
}
