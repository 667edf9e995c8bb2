//! The table of GPU kernels against the modules and the manifest that `cargo xtask ptx` writes.

#![allow(clippy::unwrap_used)]

use elsa_core::attention::plan::Summation;
use elsa_kernels::cuda::tensor::Divisor;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use lzma_rust2::LzipReader;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx")
}

#[test]
fn every_module_is_in_the_table_once() {
    let files: BTreeSet<String> = std::fs::read_dir(folder().join("sm_53"))
        .unwrap()
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
        for (what, ours) in [
            ("registers", ours.registers),
            ("shared", ours.shared),
            ("threads", ours.threads),
            ("bytes", kernel.ptx.bytes - 1),
        ] {
            assert_eq!(takes[what].as_u64(), Some(ours as u64), "{}: {what}", kernel.name);
        }
    }
}

/// The arguments by which the source of a kernel instantiates its template.
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
        let Some(spec) = kernel.attention() else { continue };
        let (template, arguments) = instance(kernel);
        let number = |i: usize| arguments[i].parse::<usize>().unwrap();
        let summation = match &*template {
            // name, elements, D, warps, TM, TN, KD, VK, PC, STRAIGHT, BODY, FLUSH, ..: a lane has TN columns.
            "ATTENTION" => Summation::Tiles { columns: number(5), flush: number(11) * spec.keys },
            // name, 16-bit elements, D, ..: a row takes a lane for four dims, at most 32 of the 128 lanes.
            "ATTEND_ROWS" => Summation::Groups { groups: 128 / (number(2) / 4).min(32), flush: 256 },
            _ => panic!("{}: {template}", kernel.name),
        };
        assert_eq!((spec.head_dim, spec.summation), (number(2), summation), "{}", kernel.name);
    }
    let rows = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/attention/rows.cuh"));
    assert!(rows.unwrap().contains("FLUSH = 256 / KEYS,"), "rows.cuh flushes after another number of keys");
}

#[test]
fn modules_are_what_an_old_driver_loads() {
    for kernel in GPU_KERNELS {
        let mut text = Vec::new();
        LzipReader::new(kernel.ptx.lzip).read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), kernel.ptx.bytes, "{}", kernel.name);
        let text = String::from_utf8(text).unwrap();
        let text = text.strip_suffix('\0').expect("a terminating zero");
        let file = folder().join("sm_53").join(kernel.name).with_extension("ptx");
        assert_eq!(text, std::fs::read_to_string(file).unwrap(), "{}", kernel.name);
        assert_eq!(kernel.ptx.isa, "6.5", "{}", kernel.name);
        assert!(!text.contains('\0'), "{}", kernel.name);
        assert!(text.contains(".version 6.5\n") && text.contains(".target sm_53\n"), "{}", kernel.name);
        assert!(text.contains(&format!(".entry {}(", kernel.name)), "{}", kernel.name);
    }
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
