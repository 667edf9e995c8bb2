//! Machine code of Maxwell and Pascal, as `nvdisasm -c -novliw -hex` lists it.
//!
//! Every 32 bytes contain a control word and three instructions of 64 bits. The control word has 21 bits for each
//! instruction; the lowest 21 are for the first one:
//!
//! | bits | action of the scheduler |
//! |---|---|
//! | 0 to 3 | waits this number of cycles before the next instruction of the warp; zero issues both in the same cycle |
//! | 4 | zero: prefers another warp next |
//! | 5 to 7 | barrier that opens when the result is written; 7 is none |
//! | 8 to 10 | barrier that opens when the operands are read; 7 is none |
//! | 11 to 16 | barriers that must be open before the instruction issues, one bit each |
//! | 17 to 20 | operands kept for the next instruction, one bit each |

/// Size of a control word with its three instructions, in bytes.
const BUNDLE: usize = 32;
/// Number of bits for each instruction in a control word.
const CONTROL_BITS: u32 = 21;

/// Scheduling information of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Number of cycles before the next instruction of the warp.
    pub stall: u32,
    /// `true` if the scheduler prefers another warp next.
    pub yields: bool,
    /// Number of the barrier that opens when the result is written.
    pub written: Option<usize>,
    /// Number of the barrier that opens when the operands are read.
    pub read: Option<usize>,
    /// Barriers that must be open before the instruction issues, one bit each.
    pub waits: u32,
    /// Operands that are kept for the next instruction, one bit each.
    pub reuse: u32,
}

impl Control {
    /// Returns the scheduling information of instruction `place`, from 0 to 2, in a control word.
    pub fn of(word: u64, place: usize) -> Control {
        let bits = word >> (CONTROL_BITS * place as u32);
        let field = |from: u32, len: u32| (bits >> from) as u32 & ((1 << len) - 1);
        let barrier = |from| Some(field(from, 3) as usize).filter(|&barrier| barrier < 6);
        Control {
            stall: field(0, 4),
            yields: field(4, 1) == 0,
            written: barrier(5),
            read: barrier(8),
            waits: field(11, 6),
            reuse: field(17, 4),
        }
    }
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Address of the instruction, relative to the start of the kernel.
    pub at: usize,
    /// Name without modifiers, such as `FFMA`.
    pub name: String,
    /// Name with modifiers, followed by the operands.
    pub text: String,
    /// Predicate register that decides whether the instruction has an effect; a negation of the predicate is not
    /// included. `None` for an unconditional instruction.
    pub guard: Option<String>,
    /// `true` if the instruction has an effect when this predicate is false.
    pub inverted: bool,
    /// For a jump, the address to which it jumps. For an instruction that begins a divergent region, the address at
    /// which the region's threads meet again.
    pub target: Option<usize>,
    /// Scheduling information.
    pub control: Control,
}

impl Instruction {
    /// Returns whether the name has this modifier, such as `EX2` in `MUFU.EX2`.
    pub fn has(&self, modifier: &str) -> bool {
        self.text.split_whitespace().next().is_some_and(|name| name.split('.').any(|part| part == modifier))
    }

    /// Returns the operands, the destination first, without the suffix `.reuse`.
    pub fn operands(&self) -> impl Iterator<Item = &str> {
        let rest = self.text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest);
        rest.split(',').map(|operand| operand.trim().trim_end_matches(".reuse"))
    }

    /// Returns the number of a general register, from an operand such as `-R12`; `None` for other operands.
    pub fn register(operand: &str) -> Option<usize> {
        operand.trim_start_matches(['-', '|', '~']).strip_prefix('R')?.split(['.', '|']).next()?.parse().ok()
    }

    /// Returns the value of an operand that is a constant; `None` for other operands.
    pub fn constant(operand: &str) -> Option<i64> {
        if operand == "RZ" {
            return Some(0);
        }
        let (sign, digits) = operand.strip_prefix('-').map_or((1, operand), |digits| (-1, digits));
        let value = i64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
        // A value beyond `i32::MAX` represents a negative 32-bit number.
        Some(sign * if value > i64::from(i32::MAX) { value - (1 << 32) } else { value })
    }
}

/// Parses the instructions of `kernel` in a listing.
///
/// # Errors
/// Returns an error if the listing does not contain the kernel, if addresses have gaps, or if a jump has no target.
pub fn parse(listing: &str, kernel: &str) -> Result<Vec<Instruction>, String> {
    let fault = |what: &str, line: &str| format!("{kernel}: {what}: {}", line.trim());
    let begin = format!(".text.{kernel}:");
    let mut lines = listing.lines().skip_while(|line| line.trim() != begin).skip(1);
    let mut code: Vec<Instruction> = Vec::new();
    let mut labels: Vec<(&str, usize)> = Vec::new();
    let mut names: Vec<(usize, &str)> = Vec::new();
    let (mut next, mut word) = (0, None);
    for line in lines.by_ref() {
        let trimmed = line.trim();
        if trimmed.starts_with("//") || trimmed.starts_with(".section") {
            break;
        }
        if let Some(label) = trimmed.strip_suffix(':') {
            labels.push((label, next + if next % BUNDLE == 0 { 8 } else { 0 }));
            continue;
        }
        let Some(encoding) = encoded(line) else { continue };
        let Some((at, text)) = addressed(trimmed) else {
            (word, next) = (Some(encoding), next + 8);
            continue;
        };
        let Some(word) = word.filter(|_| at == next && at % BUNDLE != 0) else {
            return Err(fault("an instruction out of place", line));
        };
        let inverted = text.starts_with("@!");
        let (guard, text) = match text.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace))
        {
            Some((guard, text)) => (Some(guard.trim_start_matches('!').to_owned()), text.trim()),
            None => (None, text),
        };
        let name = text.split(['.', ' ']).next().unwrap_or_default().to_owned();
        if let Some(label) = text.split_once("`(").and_then(|(_, rest)| rest.split_once(')')) {
            names.push((code.len(), label.0));
        }
        let control = Control::of(word, at % BUNDLE / 8 - 1);
        code.push(Instruction { at, name, text: text.to_owned(), guard, inverted, target: None, control });
        next = at + 8;
    }
    if code.is_empty() {
        return Err(format!("{kernel}: the listing has no code of it"));
    }
    for (index, label) in names {
        let found = labels.iter().find(|(name, _)| *name == label).map(|(_, at)| *at);
        // Only a call may lack a target, because the function may be defined after the kernel's own code.
        if found.is_none() && code[index].name != "CAL" {
            return Err(fault("a jump without a target", &code[index].text));
        }
        code[index].target = found;
    }
    meet(&mut code);
    Ok(code)
}

/// Sets the target of each `SYNC` and `BRK`. The target is the end of the innermost region that contains the
/// instruction and begins with an `SSY` or a `PBK`.
fn meet(code: &mut [Instruction]) {
    let begun = |name: &str| -> Vec<(usize, usize)> {
        let begins = code.iter().filter(|x| x.name == name);
        begins.filter_map(|x| x.target.map(|target| (x.at, target))).collect()
    };
    let (syncs, breaks) = (begun("SSY"), begun("PBK"));
    for x in code {
        let begun = match x.name.as_str() {
            "SYNC" => &syncs,
            "BRK" => &breaks,
            _ => continue,
        };
        x.target = begun.iter().filter(|(from, to)| *from < x.at && x.at < *to).map(|(_, to)| *to).min();
    }
}

/// Returns the 64-bit encoding at the end of a line.
fn encoded(line: &str) -> Option<u64> {
    let (_, rest) = line.trim_end().strip_suffix("*/")?.rsplit_once("/*")?;
    let digits = rest.trim().strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16)
}

/// Returns the address and the text of an instruction, from a line such as `/*0008*/ MOV R1, R2 ; /* 0x… */`.
fn addressed(line: &str) -> Option<(usize, &str)> {
    let (at, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let text = rest.split_once(';')?.0.trim();
    Some((usize::from_str_radix(at, 16).ok()?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
.text.k:
                                                             /* 0x001c4400fe0007f6 */
        /*0008*/                   MOV R1, c[0x0][0x20] ;    /* 0x4c98078000870001 */
        /*0010*/                   IADD RZ.CC, -RZ, R2 ;     /* 0x4c12800005c7ffff */
        /*0018*/                   S2R R92, SR_CTAID.X ;     /* 0xf0c800000257005c */
                                                             /* 0x001fc400fc2007f1 */
        /*0028*/                   SSY `(.L_x_1) ;           /* 0x4c9807800617000c */
.L_x_0:
        /*0030*/              @!P0 SYNC                      (*\"BRANCH_TARGETS .L_x_1\"*) ; /* 0x4c9807800637000d */
        /*0038*/               @P1 BRA `(.L_x_0) ;           /* 0x4c9807800657000e */
.L_x_1:
                                                             /* 0x081fc44000a007f4 */
        /*0048*/                   FFMA R0, R3.reuse, -R4, R0 ; /* 0x59800000000700ff */
        /*0050*/                   EXIT ;                    /* 0xe30000000007000f */
        /*0058*/                   NOP ;                     /* 0x50b0000000070f00 */
";

    #[test]
    fn a_control_word_says_what_the_scheduler_does() {
        let of = |place| Control::of(0x001c_4400_fe00_07f6, place);
        let none = Control { stall: 0, yields: false, written: None, read: None, waits: 0, reuse: 0 };
        assert_eq!(of(0), Control { stall: 6, ..none });
        // A stall of zero means that this instruction and the next one issue in the same cycle.
        assert_eq!(of(1), Control { stall: 0, ..none });
        // S2R opens barrier 0 when its result is available.
        assert_eq!(of(2), Control { stall: 1, written: Some(0), ..none });
        // Every field has a different value. The instruction keeps operands 0 and 3 and waits for barriers 1 and 5. It
        // opens barrier 2 when it has read, and barrier 4 when it has written. It prefers another warp and waits 11
        // cycles.
        let bits: u64 = 9 << 17 | 0b10_0010 << 11 | 2 << 8 | 4 << 5 | 11;
        for place in 0..3 {
            let all = Control::of(bits << (21 * place), place);
            let want = Control {
                stall: 11,
                yields: true,
                written: Some(4),
                read: Some(2),
                waits: 0b100010,
                reuse: 9,
            };
            assert_eq!(all, want, "{place}");
        }
    }

    #[test]
    fn a_listing_becomes_instructions() {
        let code = parse(LISTING, "k").unwrap();
        let names: Vec<_> =
            code.iter().map(|x| (x.at, x.name.as_str(), x.guard.is_some(), x.target)).collect();
        let want = [
            (0x08, "MOV", false, None),
            (0x10, "IADD", false, None),
            (0x18, "S2R", false, None),
            (0x28, "SSY", false, Some(0x48)),
            (0x30, "SYNC", true, Some(0x48)),
            (0x38, "BRA", true, Some(0x30)),
            (0x48, "FFMA", false, None),
            (0x50, "EXIT", false, None),
            (0x58, "NOP", false, None),
        ];
        assert_eq!(names, want);
        assert_eq!(code[0].control.stall, 6);
        let registers: Vec<_> = code[6].operands().map(Instruction::register).collect();
        assert_eq!(registers, [Some(0), Some(3), Some(4), Some(0)]);
        for (operand, value) in
            [("RZ", Some(0)), ("0x18", Some(24)), ("-0x1", Some(-1)), ("0xfffffff8", Some(-8)), ("R2", None)]
        {
            assert_eq!(Instruction::constant(operand), value, "{operand}");
        }
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        assert!(parse(LISTING, "other").is_err() && parse("", "k").is_err());
        for (from, to) in [("/*0010*/", "/*0018*/"), ("`(.L_x_0)", "`(.L_x_7)"), (".L_x_1:\n", "")] {
            assert!(parse(&LISTING.replace(from, to), "k").is_err(), "{from}");
        }
    }
}
