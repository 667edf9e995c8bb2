//! Tests the network: its scores follow its formulas, and files that do not contain such a network are rejected.

use crate::common::{self, Network, TOLERANCE, pictures, yuyv};
use elsa_robot::frame::{Frame, Geometry, PixelFormat, Size};
use elsa_robot::model::{Model, ModelError};
use elsa_runtime::{EngineOptions, backends};

fn options() -> EngineOptions {
    EngineOptions::default().threads(1)
}

fn frame(data: &[u8], side: usize, format: PixelFormat) -> Frame<'_> {
    Frame::new(Geometry::dense(Size { width: side, height: side }, format), data).unwrap()
}

#[test]
fn scores_are_those_of_the_formulas_on_every_back_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut checked = 0;
    for seed in 0..3 {
        let network = Network::random(seed);
        network.write(&path);
        for present in backends().iter().filter(|p| p.present) {
            let options = options().backend(present.backend);
            let mut model = Model::open(&path, &options).unwrap();
            for picture in pictures(10) {
                let class = model.classify(&frame(&picture, 8, PixelFormat::Grey)).unwrap();
                let wanted = network.scores(&picture);
                let largest = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
                for (score, wanted) in model.scores().iter().zip(&wanted) {
                    let error = (f64::from(*score) - wanted).abs() / largest;
                    assert!(error < TOLERANCE, "{}: {score} {wanted}", present.backend);
                    checked += 1;
                }
                let (_, probability, _) = common::best(&wanted);
                assert!((f64::from(class.score) - probability).abs() < 20.0 * TOLERANCE);
                assert_eq!(class.backend, present.backend);
            }
        }
    }
    assert!(checked >= 300);
}

#[test]
fn a_large_frame_in_colour_has_the_scores_of_the_small_grey_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    Network::random(1).write(&path);
    let mut model = Model::open(&path, &options()).unwrap();
    for picture in pictures(3) {
        model.classify(&frame(&picture, 8, PixelFormat::Grey)).unwrap();
        let wanted = model.scores().to_vec();
        model.classify(&frame(&yuyv(&picture, 6), 48, PixelFormat::Yuyv)).unwrap();
        assert_eq!(model.scores(), wanted);
    }
}

#[test]
fn files_that_are_no_such_network_are_refused_with_the_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let refused = |network: &Network, text: &str| {
        network.write(&path);
        let error = Model::open(&path, &options()).err().unwrap();
        assert!(error.is_request() && error.to_string().contains(text), "{error}");
    };
    let network = Network::random(1);
    for name in
        ["patch.weight", "cls", "blocks.1.qkv.bias", "blocks.0.fc1.weight", "norm.weight", "head.bias"]
    {
        let mut bad = network.clone();
        bad.0.remove(name);
        refused(&bad, &format!("tensor {name}: absent; allowed: "));
    }
    let mut bad = network.clone();
    bad.0.get_mut("pos").unwrap().0 = vec![1, 16, 17];
    refused(&bad, "tensor pos: F32 [1, 16, 17]; allowed: finite f32 [17, 16]");
    let mut bad = network.clone();
    bad.0.get_mut("head.weight").unwrap().1[3] = f32::NAN;
    refused(&bad, "tensor head.weight: NaN");
    for heads in ["3", "0", "x"] {
        let mut bad = network.clone();
        bad.1.insert("heads".to_owned(), heads.to_owned());
        refused(&bad, "metadata heads");
    }
    for bytes in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x02\0\0\0\0\0\0\0{}"] {
        std::fs::write(&path, bytes).unwrap();
        assert!(Model::open(&path, &options()).err().unwrap().is_request());
    }
    let error = Model::open(&dir.path().join("none"), &options()).err().unwrap();
    assert!(matches!(error, ModelError::Read { .. }) && error.is_request());
}
