//! Workloads: named sets of the shapes of attention in models.
//!
//! A workload consists of the distinct shapes of attention that occur in one call of a model. ELSA measures these
//! models but states few of their shapes. The other shapes are those of the published model, or are choices of this
//! project:
//!
//! | workload | sources of its numbers |
//! |---|---|
//! | `vit-b16-224`, `-384`, `-560` | ViT-B/16: 12 heads of 64; a token for each patch of 16 × 16 pixels, and one for the class |
//! | `clip-vit-l14` | ViT-L/14 at 224 pixels: 16 heads of 64, 16 × 16 patches and one token for the class |
//! | `swin-t` | Swin-T: stages of 3, 6, 12 and 24 heads of 32, windows of 7 × 7 tokens at 224 pixels and of 8 × 8 at 256 (ELSA table 3), shifted if a stage has several windows |
//! | `bert-sst2`, `bert-imdb` | BERT-base: 12 heads of 64. The sequences in ELSA table 7 are padded to fixed lengths, which the table does not state: 64 tokens fit nearly every sentence of SST-2, and 512 is the maximum of BERT. Eight sequences are our choice |
//! | `hsi-mae` | HSIMAE-B (ELSA table 4): 9 heads of 16; pictures of 9 × 9 pixels and 64 bands in patches of 3 × 3 × 16; batches of 256, as in the evaluation code of the model |
//! | `vggt-frame` | ELSA section G: 1,041 tokens per frame; 16 heads of 64, as in VGGT |
//! | `dpt` | DPT-Large: 16 heads of 64; 384 pixels in patches of 16, and one token. ELSA table 5 gives no size |
//! | `varlen` | ELSA section E: 8 sequences of 256 to 1,792 tokens; 8 heads of 64, as in the attention that ELSA's reference implementation measures |
//! | `decode` | One token with 4,096 cached tokens; 32 heads of 128 in groups of 4; all are our choice |

use super::form::Shape;
use std::str::FromStr;

/// A named set of shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name.
    pub name: &'static str,
    /// Shapes, in the notation of the command line.
    shapes: &'static [&'static str],
}

/// Every workload.
pub const WORKLOADS: [Workload; 12] = [
    Workload { name: "vit-b16-224", shapes: &["1,12,197,197,64"] },
    Workload { name: "vit-b16-384", shapes: &["1,12,577,577,64"] },
    Workload { name: "vit-b16-560", shapes: &["1,12,1226,1226,64"] },
    Workload { name: "clip-vit-l14", shapes: &["1,16,257,257,64"] },
    Workload {
        name: "swin-t",
        shapes: &[
            "64,3,49,49,32,swin=56x56:3",
            "16,6,49,49,32,swin=28x28:3",
            "4,12,49,49,32,swin=14x14:3",
            "1,24,49,49,32,swin=7x7",
            "64,3,64,64,32,swin=64x64:4",
            "16,6,64,64,32,swin=32x32:4",
            "4,12,64,64,32,swin=16x16:4",
            "1,24,64,64,32,swin=8x8",
        ],
    },
    Workload { name: "bert-sst2", shapes: &["8,12,64,64,64,mask=padding"] },
    Workload { name: "bert-imdb", shapes: &["8,12,512,512,64,mask=padding"] },
    Workload { name: "hsi-mae", shapes: &["256,9,36,36,16"] },
    Workload { name: "vggt-frame", shapes: &["1,16,1041,1041,64"] },
    Workload { name: "dpt", shapes: &["1,16,577,577,64"] },
    Workload { name: "varlen", shapes: &["8,8,1792,1792,64,packed=256"] },
    Workload { name: "decode", shapes: &["1,32,1,4096,128,kv=8"] },
];

impl Workload {
    /// Returns the shapes.
    ///
    /// # Errors
    /// Never fails in practice: a test parses every shape.
    pub fn shapes(self) -> Result<Vec<Shape>, String> {
        self.shapes.iter().map(|shape| shape.parse()).collect()
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Workload, String> {
        let found = WORKLOADS.into_iter().find(|workload| workload.name == name);
        found.ok_or_else(|| {
            let near = near(name).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("allowed: {}{near}", WORKLOADS.map(|workload| workload.name).join(", "))
        })
    }
}

/// Returns the name of the workload that shares the longest prefix with `name`, if the prefix has at least three
/// characters. Case does not matter, and an underscore counts as a dash.
fn near(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let shared = |other: &str| name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    // In reversed order, `max_by_key` chooses the first of several equally near workloads, which is the smallest.
    let nearest = WORKLOADS.iter().rev().max_by_key(|workload| shared(workload.name))?;
    (shared(nearest.name) >= 3).then_some(nearest.name)
}

/// The shapes that one argument names: all shapes of a workload, or a single shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Name of the workload; `None` for a single shape.
    pub workload: Option<&'static str>,
    /// Shapes.
    pub shapes: Vec<Shape>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        // A name starts with a letter and has no commas; a shape starts with a number.
        if text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.contains(',') {
            let workload: Workload = text.parse()?;
            return Ok(Named { workload: Some(workload.name), shapes: workload.shapes()? });
        }
        Ok(Named { workload: None, shapes: vec![text.parse()?] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::dtype::DType;

    #[test]
    fn workloads_have_the_shapes_of_their_models() {
        let tokens = |pixels: usize, patch: usize| (pixels / patch).pow(2) + 1;
        let one = |name: &str| {
            let named: Named = name.parse().unwrap();
            assert_eq!((named.workload, named.shapes.len()), (Some(name), 1));
            named.shapes[0]
        };
        for (name, heads, n) in [
            ("vit-b16-224", 12, tokens(224, 16)),
            ("vit-b16-384", 12, tokens(384, 16)),
            ("vit-b16-560", 12, tokens(560, 16)),
            ("clip-vit-l14", 16, tokens(224, 14)),
            ("dpt", 16, tokens(384, 16)),
            // 28 x 37 patches, one token for the camera and four registers.
            ("vggt-frame", 16, 28 * 37 + 5),
        ] {
            assert_eq!(one(name), Shape::plain(1, heads, n, n, 64), "{name}");
        }
        assert_eq!(one("hsi-mae"), Shape::plain(256, 144 / 16, (9 / 3) * (9 / 3) * (64 / 16), 36, 16));
        let varlen = one("varlen").bounds().unwrap();
        let lengths: Vec<i64> = varlen.windows(2).map(|ends| ends[1] - ends[0]).collect();
        assert_eq!((lengths.len(), lengths.iter().min(), lengths.iter().max()), (8, Some(&256), Some(&1792)));
        for workload in WORKLOADS {
            for shape in workload.shapes().unwrap() {
                assert!(shape.problem(DType::F16).is_ok(), "{}: {shape}", workload.name);
            }
        }
        let swin = "swin-t".parse::<Workload>().unwrap().shapes().unwrap();
        assert_eq!(
            swin.iter().map(|shape| shape.queries).collect::<Vec<_>>(),
            [49, 49, 49, 49, 64, 64, 64, 64]
        );
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_all_names() {
        let refused = "vit-b16".parse::<Named>().expect_err("no workload");
        assert!(refused.starts_with("allowed: vit-b16-224, vit-b16-384"), "{refused}");
        assert!("1,2,3".parse::<Named>().expect_err("short").starts_with("NK: missing"));
        assert_eq!("1,2,3,4,5".parse::<Named>().map(|named| named.workload), Ok(None));
    }

    #[test]
    fn a_name_that_is_nearly_one_suggests_it() {
        for (name, meant) in [
            ("vit-b16", Some("vit-b16-224")),
            ("ViT_B16_384", Some("vit-b16-384")),
            ("swin", Some("swin-t")),
            ("bert-imbd", Some("bert-imdb")),
            ("gpt", None),
            ("", None),
        ] {
            assert_eq!(near(name), meant, "{name}");
        }
        let refused = "vit-b16".parse::<Workload>().expect_err("no workload");
        assert!(refused.ends_with("; did you mean vit-b16-224?"), "{refused}");
    }
}
