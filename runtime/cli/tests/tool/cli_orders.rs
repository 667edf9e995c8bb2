//! Tests files that other programs write: Fortran order, headers of Python 2, and tensors of unsupported types next to
//! supported ones.

use crate::common::{Desk, noise, npy};

/// Reorders the elements of a tensor `[1, heads, tokens, dim]` to Fortran order, in which the index of the first axis
/// varies fastest.
fn turned(x: &[f32], [h, n, d]: [usize; 3]) -> Vec<f32> {
    let mut to = Vec::new();
    for c in 0..d {
        for t in 0..n {
            to.extend((0..h).map(|head| x[(head * n + t) * d + c]));
        }
    }
    to
}

#[test]
fn fortran_order_gives_the_bits_of_c_order() {
    let desk = Desk::new();
    let sizes = |name: &str| match name {
        "q" => [4, 70, 16],
        "k" => [2, 900, 16],
        _ => [2, 900, 8],
    };
    for (seed, name) in [(1, "q"), (2, "k"), (3, "v")] {
        let [h, n, d] = sizes(name);
        let (shape, x) = ([1, h, n, d], noise(seed, h * n * d));
        desk.f32(&format!("{name}.npy"), &shape, &x);
        let file = npy("<f4", "True", &shape, bytemuck::cast_slice(&turned(&x, [h, n, d])));
        std::fs::write(desk.path(&format!("{name}f.npy")), file).unwrap();
        let wide = |x: &[f32]| x.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect::<Vec<u8>>();
        std::fs::write(
            desk.path(&format!("{name}w.npy")),
            npy("<f8", "True", &shape, &wide(&turned(&x, [h, n, d]))),
        )
        .unwrap();
    }
    // The mask has one byte for each pair of a query and a key.
    let mask: Vec<u8> = noise(4, 70 * 900).iter().map(|x| u8::from(*x > -0.5)).collect();
    desk.npy("m.npy", "|u1", &[70, 900], &mask);
    let columns: Vec<u8> = (0..70 * 900).map(|i| mask[i % 70 * 900 + i / 70]).collect();
    std::fs::write(desk.path("mf.npy"), npy("|u1", "True", &[70, 900], &columns)).unwrap();
    for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
        let name = if method == zip::CompressionMethod::Stored { "stored.npz" } else { "deflated.npz" };
        let arrays =
            ["q", "k", "v"].map(|name| (name, std::fs::read(desk.path(&format!("{name}f.npy"))).unwrap()));
        desk.npz(name, &arrays, method);
    }
    let line = |[q, k, v, m]: [&str; 4], more: &str, out: &str| {
        format!("run --q @{q} --k @{k} --v @{v} --mask @{m} --causal --threads 2 {more} --out @{out}")
    };
    let plain = ["q.npy", "k.npy", "v.npy", "m.npy"];
    let states = |out: &str| format!("--quorum 3 --task 1/3 --state-out @{out}");
    desk.ok(&line(plain, "", "want.npy"));
    let task = |files| line(files, "", "").split(" --out").next().unwrap().to_owned();
    desk.ok(&format!("{} {}", task(plain), states("want.npz")));
    for files in [
        ["qf.npy", "kf.npy", "vf.npy", "mf.npy"],
        ["q.npy", "kf.npy", "v.npy", "mf.npy"],
        ["qw.npy", "kw.npy", "vw.npy", "m.npy"],
        ["stored.npz#q", "stored.npz#k", "stored.npz#v", "m.npy"],
        ["deflated.npz#q", "deflated.npz#k", "deflated.npz#v", "mf.npy"],
    ] {
        for more in ["", "--host-budget 256MiB --eta 0.1"] {
            desk.ok(&line(files, more, "y.npy"));
            let bytes = |name: &str| std::fs::read(desk.path(name)).unwrap();
            assert!(bytes("y.npy") == bytes("want.npy"), "{files:?} {more}");
        }
        // A task reads its tokens from these files without reading the other tokens.
        desk.ok(&format!("{} {}", task(files), states("s.npz")));
        assert!(
            std::fs::read(desk.path("s.npz")).unwrap() == std::fs::read(desk.path("want.npz")).unwrap(),
            "{files:?}"
        );
    }
    assert!(!desk.list().iter().any(|name| name.contains("elsa")));
}

#[test]
fn headers_of_python_2_are_read() {
    let desk = Desk::new();
    for (seed, name) in [(1, "q"), (2, "k"), (3, "v")] {
        desk.f32(&format!("{name}.npy"), &[1, 1, 5, 4], &noise(seed, 20));
    }
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @want.npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 1L, 5L, 4L), }\n";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(noise(1, 20).iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(desk.path("q.npy"), file).unwrap();
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy");
    assert_eq!(desk.read("y.npy"), desk.read("want.npy"));
}

#[test]
fn a_type_that_nothing_reads_leaves_the_others_readable() {
    let desk = Desk::new();
    for (seed, name) in [(2, "k"), (3, "v")] {
        desk.f32(&format!("{name}.npy"), &[1, 1, 5, 4], &noise(seed, 20));
    }
    desk.f32("q.npy", &[1, 1, 5, 4], &noise(1, 20));
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @want.npy");
    let q: Vec<u8> = noise(1, 20).iter().flat_map(|x| x.to_le_bytes()).collect();
    for kind in ["F8_E4M3FNUZ", "F8_E5M2FNUZ", "F2_OF_2031"] {
        let header = format!(
            r#"{{"s":{{"dtype":"{kind}","shape":[7],"data_offsets":[0,7]}},"q":{{"dtype":"F32","shape":[1,1,5,4],"data_offsets":[7,87]}}}}"#
        );
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[1, 2, 3, 4, 5, 6, 7], &q]
            .concat();
        std::fs::write(desk.path("in.safetensors"), file).unwrap();
        for more in ["", "--host-budget 256MiB"] {
            desk.ok(&format!("run --q @in.safetensors#q --k @k.npy --v @v.npy --out @y.npy {more}"));
            assert_eq!(desk.read("y.npy"), desk.read("want.npy"));
        }
        // When an output is added to the file, the tensor of an unsupported type is kept.
        desk.ok("run --q @in.safetensors#q --k @k.npy --v @v.npy --out @in.safetensors#y");
        let bytes = std::fs::read(desk.path("in.safetensors")).unwrap();
        let at = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..at]).unwrap();
        assert_eq!(header["s"]["dtype"], kind);
        let from = at + header["s"]["data_offsets"][0].as_u64().unwrap() as usize;
        assert_eq!(bytes[from..from + 7], [1, 2, 3, 4, 5, 6, 7]);
        let output = desk.call("run --q @in.safetensors#s --k @k.npy --v @v.npy --out @z.npy");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && text.contains(kind) && text.contains("allowed: f32"),
            "{text}"
        );
    }
}
