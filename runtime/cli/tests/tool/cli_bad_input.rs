//! Sends bad requests. Each request must end with the correct exit status, must print one line that names the argument
//! and the allowed values, and must not create or change an output.

use crate::common::{self, Desk, noise, npy};

const FILES: &str = "run --q @q.npy --k @k.npy --v @v.npy --out @y.npy";

/// Creates a folder with good inputs and the output of an earlier call.
fn desk() -> Desk {
    let desk = Desk::new();
    for name in ["q", "k", "v"] {
        desk.f32(&format!("{name}.npy"), &[2, 4, 5, 8], &noise(1, 320));
    }
    std::fs::write(desk.path("y.npy"), b"an earlier answer").unwrap();
    desk
}

#[test]
fn good_input_is_not_refused() {
    let desk = desk();
    desk.ok(FILES);
    assert_ne!(std::fs::read(desk.path("y.npy")).unwrap(), b"an earlier answer");
}

#[test]
fn ranks_and_shapes() {
    let desk = desk();
    desk.f32("r1.npy", &[320], &noise(1, 320));
    desk.f32("r0.npy", &[], &[1.0]);
    desk.f32("r5.npy", &[1, 2, 4, 5, 8], &noise(1, 320));
    desk.f32("d4.npy", &[2, 4, 10, 4], &noise(1, 320));
    desk.f32("n10.npy", &[2, 2, 10, 8], &noise(1, 320));
    desk.f32("b1.npy", &[1, 8, 5, 8], &noise(1, 320));
    desk.f32("h3.npy", &[2, 3, 5, 8], &noise(1, 240));
    let q = |file: &str| format!("run --q @{file} --k @k.npy --v @v.npy --out @y.npy");
    let k = |file: &str| format!("run --q @q.npy --k @{file} --v @v.npy --out @y.npy");
    let v = |file: &str| format!("run --q @q.npy --k @k.npy --v @{file} --out @y.npy");
    for file in ["r0.npy", "r1.npy", "r5.npy"] {
        desk.refuses(&q(file), &["--q", "rank", "allowed: 2, 3 or 4"]);
    }
    desk.refuses(&k("d4.npy"), &["--k", "head size 4", "allowed: 8"]);
    desk.refuses(&k("b1.npy"), &["--k", "batch 1", "allowed: 2"]);
    desk.refuses(&k("h3.npy"), &["--v: heads 4", "allowed: 3"]);
    desk.refuses("run --q @q.npy --k @h3.npy --v @h3.npy --out @y.npy", &["--k: 3 heads", "divisor of 4"]);
    desk.refuses(&v("n10.npy"), &["--v", "heads 2", "allowed: 4"]);
    desk.refuses(&format!("{FILES} --heads 3"), &["--heads: 3", "allowed: 4"]);
    desk.refuses(&format!("{FILES} --kv-heads 2"), &["--kv-heads: 2", "allowed: 4"]);
    desk.refuses(&format!("{FILES} --layout bnc --heads 4"), &["--q: rank 4", "allowed: 2 or 3"]);
    desk.f32("c.npy", &[2, 5, 32], &noise(1, 320));
    let bnc = "run --q @c.npy --k @c.npy --v @c.npy --out @y.npy --layout bnc";
    desk.refuses(bnc, &["--heads: missing", "allowed"]);
    desk.refuses(&format!("{bnc} --heads 5"), &["--q: last axis 32 with 5 heads", "allowed"]);
    desk.refuses(&format!("{bnc} --heads 0"), &["--heads", "'0'", "allowed"]);
    desk.ok(&format!("{bnc} --heads 4"));
}

#[test]
fn sizes_of_zero() {
    let desk = desk();
    let line = "run --q @zero.npy --k @zero.npy --v @zero.npy --out @y.npy";
    desk.f32("zero.npy", &[2, 4, 5, 0], &[]);
    desk.refuses(line, &["--q", "head size 0", "allowed: at least 1"]);
    // Every axis other than the head size may be empty.
    for shape in [[0, 4, 5, 8], [2, 0, 5, 8], [2, 4, 0, 8]] {
        desk.f32("zero.npy", &shape, &[]);
        for extra in ["", " --causal --lse-out @l.npy", " --host-budget 64MiB"] {
            desk.ok(&format!("{line}{extra}"));
            assert_eq!(desk.read("y.npy"), (shape.to_vec(), Vec::new()), "{shape:?}{extra}");
        }
        desk.ok("linear run --q @zero.npy --k @zero.npy --v @zero.npy --rule linear --out @y.npy");
        assert_eq!(desk.read("y.npy"), (shape.to_vec(), Vec::new()), "{shape:?}");
        let gradients = "--dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy";
        desk.ok(&format!("backward --q @zero.npy --k @zero.npy --v @zero.npy --d-out @zero.npy {gradients}"));
        assert_eq!(desk.read("dq.npy"), (shape.to_vec(), Vec::new()), "{shape:?}");
    }
}

#[test]
fn masks_that_do_not_broadcast() {
    let desk = desk();
    for (shape, words) in [
        (&[6][..], ["--mask: keys 6", "allowed: 1 or 5"]),
        (&[4][..], ["--mask: keys 4", "allowed: 1 or 5"]),
        (&[4, 5], ["--mask: queries 4", "allowed: 1 or 5"]),
        (&[3, 5, 5], ["--mask: heads 3", "allowed: 1 or 4"]),
        (&[3, 1, 5, 5], ["--mask: batch 3", "allowed: a divisor of 2"]),
        (&[1, 1, 1, 5, 5], ["--mask: rank 5", "allowed: 1 to 4"]),
    ] {
        desk.bool("mask.npy", shape, &vec![true; shape.iter().product()]);
        desk.refuses(&format!("{FILES} --mask @mask.npy"), &words);
    }
    desk.npy("mask.npy", "<u2", &[5], &[0; 10]);
    desk.refuses(&format!("{FILES} --mask @mask.npy"), &["--mask", "allowed: bool, u8, i32, i64"]);
}

#[test]
fn lengths_and_bounds() {
    let desk = desk();
    let lens = format!("{FILES} --kv-lens @lens.npy");
    for (list, words) in [
        (&[5i64, -1][..], ["--kv-lens: entry 1 is -1", "allowed: 0 to 5"]),
        (&[6, 5], ["--kv-lens: entry 0 is 6", "allowed: 0 to 5"]),
        (&[5], ["--kv-lens: entries 1", "allowed: 2"]),
    ] {
        desk.i64("lens.npy", list);
        desk.refuses(&lens, &words);
    }
    desk.f32("lens.npy", &[2], &[5.0, 5.0]);
    desk.refuses(&lens, &["--kv-lens", "type f32", "allowed: i64"]);
    desk.npy("lens.npy", "<i8", &[2, 1], &[0; 16]);
    desk.refuses(&lens, &["--kv-lens", "rank 2", "allowed: 1"]);

    desk.f32("t.npy", &[10, 4, 8], &noise(1, 320));
    desk.i64("good.npy", &[0, 4, 10]);
    let packed = "run --q @t.npy --k @t.npy --v @t.npy --out @y.npy";
    let bounds = format!("{packed} --cu-seqlens-q @cu.npy --cu-seqlens-k @good.npy");
    for (list, words) in [
        (&[0i64, 7, 5, 10][..], ["--cu-seqlens-q: entry 2 is 5", "allowed: 7 to 10"]),
        (&[1, 4, 10], ["--cu-seqlens-q: entry 0 is 1", "allowed: 0 to 0"]),
        (&[0, 4, 9], ["--cu-seqlens-q: entry 2 is 9", "allowed: 10 to 10"]),
        (&[0, -4, 10], ["--cu-seqlens-q: entry 1 is -4", "allowed"]),
        (&[], ["--cu-seqlens-q", "allowed: at least 1"]),
        (&[0], ["--cu-seqlens-q", "allowed: at least 1"]),
    ] {
        desk.i64("cu.npy", list);
        desk.refuses(&bounds, &words);
    }
    desk.i64("cu.npy", &[0, 10]);
    desk.refuses(&bounds, &["--cu-seqlens-k: entries 3", "allowed: 2"]);
    desk.refuses(
        &format!("{packed} --cu-seqlens-q @good.npy"),
        &["--cu-seqlens-q", "cu-seqlens-k", "allowed"],
    );
    let good = "--cu-seqlens-q @good.npy --cu-seqlens-k @good.npy";
    desk.refuses(&format!("{FILES} {good}"), &["--q: rank 4", "allowed: 3"]);
    desk.bool("mask.npy", &[10], &[true; 10]);
    desk.refuses(&format!("{packed} {good} --mask @mask.npy"), &["--mask", "cu-seqlens-q", "allowed"]);
    desk.ok(&format!("{packed} {good}"));
}

#[test]
fn past_without_its_other_half() {
    let desk = desk();
    desk.refuses(&format!("{FILES} --past-k @k.npy"), &["--past-k", "past-v", "allowed"]);
    desk.refuses(&format!("{FILES} --past-v @v.npy"), &["--past-v", "past-k", "allowed"]);
    desk.f32("p.npy", &[2, 2, 5, 8], &noise(1, 160));
    desk.refuses(&format!("{FILES} --past-k @p.npy --past-v @p.npy"), &["--past-k: heads 2", "allowed: 4"]);
}

#[test]
fn numbers_and_words() {
    let desk = desk();
    for (flag, words) in [
        ("--scale nan", ["--scale: NaN", "allowed: a finite number"]),
        ("--scale inf", ["--scale: inf", "allowed: a finite number"]),
        ("--scale x", ["--scale", "allowed: a finite number"]),
        ("--softcap -1", ["--softcap: -1;", "allowed: 0 (off) or a finite number of at least 2^-126"]),
        ("--softcap 1e-40", ["--softcap: 1e-40;", "allowed: 0 (off) or a finite number of at least 2^-126"]),
        ("--scale 3e38", ["--scale: 3", "allowed: 0, or a number that"]),
        ("--scale 1e-40", ["--scale: 1e-40;", "allowed: 0, or a number that"]),
        ("--softcap 3e38", ["--softcap: 3", "allowed: 0 (off) or X with"]),
        ("--softcap 1.2e-38 --scale 1000", ["--softcap: 1.2e-38;", "allowed: 0 (off) or X with"]),
        ("--softcap nan", ["--softcap: NaN", "allowed"]),
        ("--window 3", ["--window", "allowed: L,R"]),
        ("--window -2,0", ["--window", "allowed: L,R"]),
        ("--causal=left", ["--causal", "allowed: top-left, bottom-right"]),
        ("--layout nbhd", ["--layout", "allowed: bhnd, bnhd, bnc"]),
        ("--block 100", ["--block", "allowed: 64, 128, 256"]),
        ("--threads 0", ["--threads", "allowed"]),
        ("--threads 100000000", ["--threads", "allowed: 1 to"]),
        ("--budget 10", ["--budget: 10 bytes", "allowed: at least"]),
        ("--budget 10MB", ["--budget", "allowed"]),
        ("--backend fast", ["--backend", "allowed: auto, scalar, neon, avx2, avx512, cuda"]),
        ("--fallback never", ["--fallback", "allowed: cpu, fail"]),
        ("--device -1", ["--device", "allowed: a whole number"]),
        ("--nonsense", ["--nonsense: unexpected argument", "allowed: what elsa run --help lists"]),
    ] {
        desk.refuses(&format!("{FILES} {flag}"), &words);
    }
    let absent = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    desk.refuses(&format!("{FILES} --backend {absent}"), &["--backend", absent, "allowed: auto", "scalar"]);
    desk.refuses("run --q @q.npy --k @k.npy --v @v.npy", &["--out"]);
    desk.refuses("run --q @q.npy --k @k.npy --out @y.npy", &["--v: missing", "allowed"]);
}

#[test]
fn files_that_are_not_what_they_say() {
    let desk = desk();
    let good = npy("<f4", "False", &[2, 4, 5, 8], &[0; 1280]);
    let write = |bytes: &[u8]| std::fs::write(desk.path("bad.npy"), bytes).unwrap();
    let bad = "run --q @bad.npy --k @k.npy --v @v.npy --out @y.npy";
    let case = |bytes: &[u8], words: [&str; 2]| {
        write(bytes);
        desk.refuses(bad, &["--q", "bad.npy", "allowed", words[0], words[1]]);
    };
    let tensor =
        |descr, fortran, shape: &[usize], length: usize| npy(descr, fortran, shape, &vec![0; length]);
    case(&tensor(">f4", "False", &[2, 4, 5, 8], 1280), ["big-endian", "little-endian"]);
    case(&tensor("<i2", "False", &[2, 4, 5, 8], 640), ["<i2", "allowed: f32, f16"]);
    case(&tensor("|u1", "False", &[2, 4, 5, 8], 320), ["type u8", "allowed: f32, f16"]);
    case(&tensor("<c8", "False", &[2, 4, 5, 8], 2560), ["<c8", "allowed: f32, f16"]);
    case(&tensor("<i8", "False", &[2, 4, 5, 8], 2560), ["type i64", "f32, f16"]);
    case(&tensor("<f4", "False", &[2, 4, 5, 8], 1279), ["1279 bytes", "1280"]);
    case(&tensor("<f4", "False", &[2, 4, 5, 8], 1281), ["1281 bytes", "1280"]);
    case(&tensor("<f4", "False", &[2, 4, 5, 9], 1280), ["1280 bytes", "1440"]);
    case(&tensor("<f4", "False", &[usize::MAX, 4, 5, 8], 1280), ["shape", "address space"]);
    case(&tensor("<f4", "False", &[1 << 62, 4, 0, 8], 0), ["shape", "address space"]);
    case(&good[..40], ["truncated", "header"]);
    case(b"", ["too short", "NUMPY"]);
    case(b"PK\x03\x04 a zip archive", ["no magic number", "NUMPY"]);
    case(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f", ["header of 2147483647 bytes", "10000"]);
    write(&good);
    desk.ok(&bad.replace("@y.npy", "@other.npy"));

    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 4, 5, 8], &good[..1280]);
    let file = safetensors::serialize([("q", view.unwrap())], None).unwrap();
    let soft = "run --q @s.safetensors#q --k @k.npy --v @v.npy --out @y.npy";
    let write = |bytes: &[u8]| std::fs::write(desk.path("s.safetensors"), bytes).unwrap();
    write(&file);
    desk.ok(&soft.replace("@y.npy", "@other.npy"));
    desk.refuses(&soft.replace("#q", "#nope"), &["--q", "'nope'", "allowed: q"]);
    desk.refuses(&soft.replace("#q", ""), &["--q", "no tensor name", "allowed"]);
    desk.refuses(&soft.replace("#q", "#__metadata__"), &["--q", "__metadata__", "allowed: another name"]);
    write(&file[..file.len() - 1]);
    desk.refuses(soft, &["--q", "s.safetensors", "another length", "allowed"]);
    let text = String::from_utf8_lossy(&file[8..]).into_owned();
    let header = text[..text.find("}}").unwrap() + 2].to_string();
    for (from, to) in
        [("[2,4,5,8]", "[2,4,5,9]"), ("[0,1280]", "[0,9999]"), ("[0,1280]", "[0,1279]"), ("{", "<")]
    {
        let changed = header.replacen(from, to, 1);
        assert_ne!(changed, header);
        let mut lie = (changed.len() as u64).to_le_bytes().to_vec();
        lie.extend(changed.as_bytes());
        lie.extend(&good[..1280]);
        write(&lie);
        desk.refuses(soft, &["--q", "s.safetensors", "allowed"]);
    }
    desk.refuses(&FILES.replace("@k.npy", "@none.npy"), &["--k", "none.npy", "allowed: a readable file"]);
    std::fs::create_dir(desk.path("folder")).unwrap();
    desk.refuses(&FILES.replace("@k.npy", "@folder"), &["--k", "not a regular file", "allowed"]);
    desk.npy("h.npy", "<f2", &[2, 4, 5, 8], &[0; 640]);
    desk.refuses(&FILES.replace("@k.npy", "@h.npy"), &["--k: type f16", "allowed: f32"]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let desk = desk();
    let to = |out: &str| format!("run --q @q.npy --k @k.npy --v @v.npy --out {out}");
    desk.refuses(&to("@none/y.npy"), &["--out", "none/y.npy", "cannot be written", "allowed"]);
    std::fs::create_dir(desk.path("folder.npy")).unwrap();
    desk.refuses(&to("@folder.npy"), &["--out", "a folder", "allowed"]);
    desk.refuses(&to("@y.txt"), &["--out", "y.txt", "allowed: path.npy"]);
    desk.refuses(&to("@y.safetensors"), &["--out", "no tensor name", "allowed"]);
    desk.refuses(&format!("{FILES} --lse-out @y.npy"), &["--lse-out", "--out writes the same", "allowed"]);
    desk.refuses(&format!("{FILES} --state-out @s.npy"), &["--state-out", "allowed: path.npz"]);
    // The first output is valid but the second is not, so neither is written.
    let second = to("@new.npy") + " --lse-out @none/l.npy";
    desk.refuses(&second, &["--lse-out", "none/l.npy", "allowed"]);
    std::fs::write(desk.path("w.safetensors"), b"neither tensors nor empty").unwrap();
    desk.refuses(
        &to("@w.safetensors#y"),
        &["--out", "w.safetensors", "cannot be kept", "remove it", "allowed"],
    );
    desk.refuses(&to("@z.safetensors#__metadata__"), &["--out", "__metadata__", "allowed: another name"]);
    desk.refuses(&to("@z.npz#y"), &["--out", "z.npz#y", "allowed: path.npy or path.safetensors#name"]);
    let twice = format!("{} --lse-out @z.safetensors#y", to("@z.safetensors#y"));
    desk.refuses(&twice, &["--lse-out", "--out writes the same", "allowed"]);
    let mut permissions = std::fs::metadata(desk.path("y.npy")).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(desk.path("y.npy"), permissions).unwrap();
    desk.refuses(&to("@y.npy"), &["--out", "read-only", "allowed"]);
}

#[test]
fn a_name_with_a_line_break_stays_on_one_line() {
    let desk = desk();
    let output = common::elsa(&["run", "--q", "a\nb.npy", "--k", "c", "--v", "d", "--out", "e.npy"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("--q") && text.contains("a\\nb.npy"));
    drop(desk);
}
