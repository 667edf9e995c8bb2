//! Tests of tuned files.

use super::*;
use elsa_core::attention::Spec;
use elsa_core::profile::GpuProfile;
use elsa_core::view::{Layout, View};

fn device() -> DeviceInfo {
    let profile = GpuProfile { capability: (6, 2), sms: 2, ..GpuProfile::default() };
    DeviceInfo { name: "a \"GPU\" \\ with\ta tab".into(), driver: (10, 2), memory: 1 << 30, profile }
}

fn problem(batch: usize, queries: usize, dtype: DType) -> Problem {
    let view = |n| View::dense("x", Layout::Bhnd, &[batch, 2, n, 64], None).unwrap();
    Spec::new(dtype, view(queries), view(300), view(300), view(queries)).check().unwrap()
}

fn shape(queries: usize, dtype: DType, splits: usize) -> TunedShape {
    let class = ShapeClass::of(&problem(1, queries, dtype), false).unwrap();
    let fits = |spec: &&GpuKernelSpec| class.check(spec, 1).is_ok();
    let kernel = candidates().find(fits).unwrap().name.to_owned();
    TunedShape { class, kernel, splits, cpu: None }
}

fn tuned() -> Tuned {
    Tuned::new(&device(), vec![shape(70, DType::F32, 3), shape(70, DType::F16, 1), shape(9, DType::F32, 5)])
        .unwrap()
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let tuned = tuned();
    let text = tuned.text();
    assert_eq!(Tuned::parse(&text), Ok(tuned.clone()));
    let folder = env::temp_dir().join(format!("elsa-tuned-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("tuned.toml");
    fs::write(&path, &text).unwrap();
    assert_eq!(Tuned::load(&path, &device()), Ok(tuned.clone()));
    // The batch does not change the class of a problem; every other difference does.
    for batch in [1, 5] {
        let splits = |problem: &Problem| tuned.division(problem, false).map(|division| division.splits);
        assert_eq!(splits(&problem(batch, 70, DType::F32)), Some(3));
        assert_eq!(splits(&problem(batch, 9, DType::F32)), Some(5));
        assert_eq!(splits(&problem(batch, 71, DType::F32)), None);
        assert_eq!(splits(&problem(batch, 70, DType::Bf16)), None);
        assert_eq!(tuned.division(&problem(batch, 70, DType::F32), true), None);
    }
    for (found, fact) in [
        (DeviceInfo { name: "another".into(), ..device() }, "device"),
        (DeviceInfo { driver: (11, 0), ..device() }, "driver"),
        (DeviceInfo { profile: GpuProfile { sms: 3, ..device().profile }, ..device() }, "a number of SMs of"),
        (
            DeviceInfo { profile: GpuProfile { capability: (5, 3), ..device().profile }, ..device() },
            "compute capability",
        ),
    ] {
        let refused = Tuned::load(&path, &found);
        assert!(matches!(&refused, Err(PlanError::TunedOther { what, .. }) if *what == fact), "{refused:?}");
    }
    let old = text.replace(&format!("library = \"{VERSION}\""), "library = \"0.0.1\"");
    fs::write(&path, old).unwrap();
    let refused = Tuned::load(&path, &device());
    assert!(matches!(refused, Err(PlanError::TunedOther { what: "library", .. })), "{refused:?}");
    fs::write(&path, vec![b'#'; LARGEST as usize + 1]).unwrap();
    assert!(matches!(Tuned::load(&path, &device()), Err(PlanError::TunedFormat(_))));
    for unreadable in [folder.as_path(), &folder.join("none"), Path::new("/dev/null")] {
        assert!(matches!(Tuned::load(unreadable, &device()), Err(PlanError::TunedRead(_))));
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(matches!(Tuned::load(&path, &device()), Err(PlanError::TunedRead(_))));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn no_part_of_a_file_is_taken_for_the_whole() {
    let text = tuned().text();
    let whole = text.trim_end().len();
    for end in (0..whole).filter(|end| text.is_char_boundary(*end)) {
        assert!(Tuned::parse(&text[..end]).is_err(), "{:?}", &text[..end]);
    }
    assert!(Tuned::parse(&text[..whole]).is_ok());
}

#[test]
fn impossible_values_are_refused() {
    let text = tuned().text();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let e = Tuned::parse(&text.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(e.contains("allowed: ") && !e.contains(char::is_control), "{e}");
        e
    };
    for (from, to) in [
        ("splits = 3", "splits = 0"),
        ("splits = 3", "splits = 4"),
        ("splits = 3", "splits = 99999999999"),
        ("splits = 3", "splits = -1"),
        ("splits = 3", "splits = 2.0"),
        ("heads = 2", "heads = 3"),
        ("queries = 70", "queries = 0"),
        ("head_dim = 64", "head_dim = 512"),
        ("dtype = \"f32\"", "dtype = \"f16\""),
        ("dtype = \"f32\"", "dtype = \"f\\u000A\""),
        ("changes = []", "changes = [\"batch\"]"),
        ("changes = []", "changes = \"causal\""),
        ("kernel = \"", "kernel = \"un\\nknown_"),
        ("format = 1", "format = 2"),
        ("format = 1", "format = 1\nmore = 1"),
        ("splits = 3", "splits = 3\nmo\\u000Are = 1"),
        ("splits = 3", "splits = 3\n\"mo\\u000Are\" = 1"),
        ("shapes = 3", "shapes = 2"),
        // The last shape becomes a duplicate of the first one.
        ("queries = 9\n", "queries = 70\n"),
        ("[end]", ""),
    ] {
        refused(from, to);
    }
    assert!(refused("splits = 3", "splits = 4").contains("shape 1: "));
    assert!(refused("format = 1", "format = one").contains("line 2: "));
    let shapes = vec![TunedShape { splits: 4, ..shape(70, DType::F32, 1) }];
    assert!(matches!(Tuned::new(&device(), shapes), Err(PlanError::TunedEntry { number: 1, splits: 4, .. })));
    let mut order = tuned().text();
    order = order.replace("sms = 2\n", "");
    assert!(matches!(Tuned::parse(&order), Err(PlanError::TunedFormat(_))));
}

/// The processor on which the CPU's file of the tests was measured.
#[cfg(not(elsa_without = "scalar"))]
const CACHES: DeviceProfile = DeviceProfile { l2: 1 << 21, ..DeviceProfile::modest() };

#[cfg(not(elsa_without = "scalar"))]
fn on_cpu() -> Tuned {
    let kernel = registry::attention_of(InstructionSet::Scalar).next().unwrap().spec.name;
    let shape = |queries, block| TunedShape {
        kernel: kernel.to_owned(),
        splits: 1,
        cpu: Some(CpuDivision { block, group: 3, workers: 2 }),
        ..shape(queries, DType::F32, 1)
    };
    Tuned::on_cpu(InstructionSet::Scalar, &CACHES, vec![shape(70, 128), shape(9, 256)]).unwrap()
}

#[test]
#[cfg(not(elsa_without = "scalar"))]
fn a_file_of_a_cpu_is_read_as_it_was_written() {
    let tuned = on_cpu();
    let text = tuned.text();
    assert_eq!(Tuned::parse(&text), Ok(tuned.clone()));
    assert!(text.contains("[cpu]\nset = \"scalar\"\n") && !text.contains("splits"), "{text}");
    for batch in [1, 5] {
        let block = |queries| {
            let problem = problem(batch, queries, DType::F32);
            assert_eq!(tuned.division(&problem, false), None);
            tuned.cpu_division(&problem).map(|division| division.block)
        };
        assert_eq!([block(70), block(9), block(71)], [Some(128), Some(256), None]);
    }
    let own = Measured::cpu(InstructionSet::Scalar, &CACHES);
    assert_eq!(tuned.measured.check(&own), Ok(()));
    for (other, fact) in [
        (Measured::cpu(InstructionSet::Neon, &CACHES), "instruction set"),
        (Measured::cpu(InstructionSet::Scalar, &DeviceProfile { l2: 7, ..CACHES }), "caches of"),
        (Measured::gpu(&device()), "a kind of device:"),
    ] {
        let refused = tuned.measured.check(&other);
        assert!(matches!(&refused, Err(PlanError::TunedOther { what, .. }) if *what == fact), "{refused:?}");
    }
}

#[test]
#[cfg(not(elsa_without = "scalar"))]
fn impossible_values_of_a_cpu_are_refused() {
    let text = on_cpu().text();
    for (from, to) in [
        ("block = 128", "block = 65"),
        ("group = 3", "group = 0"),
        ("workers = 2", "workers = 0"),
        ("workers = 2", "workers = 2\nsplits = 1"),
        ("workers = 2\n", ""),
        ("kernel = \"", "kernel = \"un"),
        ("set = \"scalar\"", "set = \"mmx\""),
        ("queries = 9\n", "queries = 70\n"),
        ("[cpu]", "[device]"),
    ] {
        assert!(text.contains(from), "{from}");
        let e = Tuned::parse(&text.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(e.contains("allowed: "), "{e}");
    }
    let both = text.replace("[cpu]", "[device]\nname = \"a\"\n[cpu]");
    assert!(Tuned::parse(&both).is_err());
}
