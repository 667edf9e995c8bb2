use super::super::code::Control;
use super::*;
use std::collections::HashMap;

/// Runs instructions, each with its predicate (may be empty) and the index to which it jumps. Returns the indices of the
/// instructions that the thread executes.
fn run(lines: &[(&str, &str, usize)], parameters: &[(usize, u32)]) -> Result<Vec<usize>, String> {
    let make = |(place, (guard, text, to)): (usize, &(&str, &str, usize))| Instruction {
        at: place * 8,
        name: text.split(['.', ' ']).next().unwrap().to_owned(),
        text: (*text).to_owned(),
        guard: (!guard.is_empty()).then(|| guard.trim_start_matches('!').to_owned()),
        inverted: guard.starts_with('!'),
        target: (*to > 0).then_some(to * 8),
        control: Control::of(0x7f1, 0),
    };
    let code: Vec<Instruction> = lines.iter().enumerate().map(make).collect();
    let parameters: HashMap<usize, u32> = parameters.iter().copied().collect();
    Program::new(&code).run(&Thread { parameters: &parameters, literals: &[], block: 3, thread: 5 })
}

/// Returns whether the instructions leave `wanted` in R0: the thread then skips an instruction.
fn leaves(lines: &[&str], parameters: &[(usize, u32)], wanted: u32) -> bool {
    let test = format!("ISETP.EQ.AND P0, PT, R0, {wanted:#x}, PT");
    let mut code: Vec<(&str, &str, usize)> = lines.iter().map(|line| ("", *line, 0)).collect();
    let end = code.len() + 3;
    code.extend([("", &*test, 0), ("P0", "BRA `(.L_x_0)", end), ("", "NOP", 0), ("", "EXIT", 0)]);
    !run(&code, parameters).unwrap().contains(&(end - 1))
}

#[test]
fn a_thread_takes_its_way_through_loops_and_predicates() {
    let code = [
        ("", "MOV R1, c[0x0][0x140]", 0),
        ("", "IADD32I R1, R1, -0x1", 0),
        ("", "ISETP.NE.AND P0, PT, R1, RZ, PT", 0),
        ("P0", "BRA `(.L_x_0)", 1),
        ("!P0", "EXIT", 0),
    ];
    let way = run(&code, &[(0x140, 4)]).unwrap();
    assert_eq!([1, 3, 4].map(|at| way.iter().filter(|x| **x == at).count()), [4, 4, 1]);
    // An end that needs the code "not equal": the comparison of the condition code is true, so the code is not zero.
    let ends = |a: &str| {
        let set = format!("ISET.EQ.AND RZ.CC, R1, {a}, PT");
        run(&[("", &set, 0), ("", "EXIT CC.NEU", 0), ("", "EXIT", 0)], &[]).unwrap().len()
    };
    assert_eq!([ends("RZ"), ends("0x1")], [2, 3]);
    assert!(run(&[("", "QUX R1, R2", 0)], &[]).unwrap_err().contains("QUX"));
    assert!(run(&[("", "NOP", 0)], &[]).is_err());
    assert!(run(&[("", "NOP", 0), ("", "BRA `(.L_x_0)", 1)], &[]).is_err());
}

#[test]
fn integers_are_computed_as_the_gpu_does() {
    for (a, b) in [(7, 9), (70_000, 65_537), (0xffff_fff0, 3), (0x8000_0001, 0x7fff_ffff)] {
        let of = [(0x140, a), (0x144, b)];
        let product = [
            "MOV R1, c[0x0][0x140]",
            "MOV R2, c[0x0][0x144]",
            "XMAD R3, R1, R2, RZ",
            "XMAD.MRG R4, R1, R2.H1, RZ",
            "XMAD.PSL.CBCC R0, R1.H1, R4.H1, R3",
        ];
        assert!(leaves(&product, &of, a.wrapping_mul(b)), "{a} {b}");
        let high = [
            "IADD RZ.CC, R0, R0",
            "MOV R1, c[0x0][0x140]",
            "IADD R2.CC, R1, c[0x0][0x144]",
            "IADD.X R0, RZ, RZ",
        ];
        assert!(leaves(&high, &of, u32::from(a.checked_add(b).is_none())), "{a} + {b}");
        let borrow = ["MOV R1, c[0x0][0x140]", "IADD R2.CC, R1, -c[0x0][0x144]", "IADD.X R0, RZ, -RZ"];
        assert!(leaves(&borrow, &of, if a < b { u32::MAX } else { 0 }), "{a} - {b}");
    }
    let of = [(0x140, 0xdead_beef), (0x144, 0)];
    for (line, wanted) in [
        ("BFE.U32 R0, c[0x0][0x140], 0x808", 0xbe),
        ("SHR R0, c[0x0][0x140], 0x10", 0xffff_dead),
        ("SHR.U32 R0, c[0x0][0x140], 0x10", 0xdead),
        ("LOP3.LUT R0, c[0x0][0x140], 0xff, RZ, 0xc0", 0xef),
        ("LEA.HI R0, c[0x0][0x140], 0x1, RZ, 0x8", 0xdf),
        ("S2R R0, SR_CTAID.X", 3),
        ("S2R R0, SR_TID.X", 5),
        ("LDC.U8 R0, c[0x0][0x141]", 0xbe),
        ("ICMP.EQ R0, 0x2, RZ, c[0x0][0x144]", 2),
        ("IMNMX R0, RZ, c[0x0][0x140], PT", 0xdead_beef),
        ("IMNMX.U32 R0, RZ, c[0x0][0x140], PT", 0),
    ] {
        assert!(leaves(&[line], &of, wanted), "{line}");
    }
    // An address of two words is null only if both are zero.
    for (low, high, wanted) in [(0, 0, 0), (8, 0, 1), (0, 8, 1)] {
        let test = [
            "IADD RZ.CC, -RZ, c[0x0][0x140]",
            "ISETP.NE.X.AND P1, PT, RZ, c[0x0][0x144], PT",
            "SEL R0, 0x1, RZ, P1",
        ];
        assert!(leaves(&test, &[(0x140, low), (0x144, high)], wanted), "{low} {high}");
    }
    let shared =
        ["MOV32I R1, 0x7", "MOV32I R2, 0x40", "STS [R2+0x8], R1", "LDS.U.64 R4, [0x48]", "IADD R0, R4, R5"];
    assert!(leaves(&shared, &[], 7));
}

#[test]
fn numbers_are_computed_as_the_gpu_does() {
    let quotient = [
        "I2F.F32.U32.RP R1, c[0x0][0x140]",
        "MUFU.RCP R1, R1",
        "MOV32I R2, 0x42c80000",
        "FFMA R1, R1, R2, 0.5",
        "F2I.FTZ.U32.F32.TRUNC R0, R1",
    ];
    assert!(leaves(&quotient, &[(0x140, 7)], 14));
    let double = [
        "MOV32I R1, 0x40490fdb",
        "F2F.F64.F32 R2, R1",
        "DMUL R2, R2, 2",
        "DADD R2, R2, -R2",
        "F2F.F32.F64 R0, R2",
    ];
    assert!(leaves(&double, &[], 0));
    for (compare, wanted) in
        [("FSETP.LT.AND", 0), ("FSETP.NEU.AND", 1), ("FSETP.NAN.AND", 1), ("FSETP.GEU.OR", 1)]
    {
        let test = format!("{compare} P1, PT, R1, +INF , PT");
        let code = ["MOV32I R1, 0x7fc00000", &test, "SEL R0, 0x1, RZ, P1"];
        assert!(leaves(&code, &[], wanted), "{compare}");
    }
}
