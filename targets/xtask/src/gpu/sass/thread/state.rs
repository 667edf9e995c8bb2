//! The registers of a thread, and the effect of each instruction on them.

use super::step::{CodeOperand, Place, Step, TRUE, ZERO};
use std::cmp::Ordering;
use std::collections::HashMap;

/// A thread of a call.
pub struct Thread<'a> {
    /// Words of the parameters, by their address in constant bank 0.
    pub parameters: &'a HashMap<usize, u32>,
    /// Constants of the code, which are constant bank 2.
    pub literals: &'a [u8],
    /// Index of the block, and of the thread in the block.
    pub block: u32,
    pub thread: u32,
}

/// State of a thread.
pub struct ThreadState<'a> {
    call: &'a Thread<'a>,
    registers: [u32; ZERO + 1],
    predicates: [bool; TRUE + 1],
    /// Carry and zero flag of the condition code, and the last reduction of a barrier.
    carry: u64,
    pub zero: bool,
    reduced: bool,
    shared: HashMap<u32, u32>,
}

/// Combines two predicates by `AND`, `OR` or `XOR`.
fn combine(how: &str, a: bool, b: bool) -> bool {
    match how {
        "OR" => a || b,
        "XOR" => a != b,
        _ => a && b,
    }
}

impl<'a> ThreadState<'a> {
    pub fn new(call: &'a Thread<'a>) -> ThreadState<'a> {
        let mut predicates = [false; TRUE + 1];
        predicates[TRUE] = true;
        ThreadState {
            call,
            registers: [0; ZERO + 1],
            predicates,
            carry: 0,
            zero: false,
            reduced: false,
            shared: HashMap::new(),
        }
    }

    pub fn predicate(&self, x: &CodeOperand) -> bool {
        match x.place {
            Place::Predicate(index) => self.predicates[index] != x.inverted,
            _ => true,
        }
    }

    /// Returns the word of an operand, with an inversion but without a sign.
    fn raw(&self, x: &CodeOperand) -> u32 {
        let bits = match x.place {
            Place::Register(index) => self.registers[index],
            Place::Bits(bits) => bits,
            Place::Number(number) => (number as f32).to_bits(),
            Place::Constant(bank, index, offset) => {
                self.constant(bank, (self.registers[index] as usize).wrapping_add(offset))
            }
            _ => 0,
        };
        if x.inverted { !bits } else { bits }
    }

    fn constant(&self, bank: usize, at: usize) -> u32 {
        match bank {
            0 => self.call.parameters.get(&at).copied().unwrap_or(0),
            _ => {
                let bytes = self.call.literals.get(at..at + 4);
                bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
            }
        }
    }

    fn integer(&self, x: &CodeOperand) -> u32 {
        let bits = self.raw(x);
        let bits = if x.absolute { (bits as i32).unsigned_abs() } else { bits };
        if x.negative { bits.wrapping_neg() } else { bits }
    }

    fn sign<T: std::ops::Neg<Output = T>>(x: &CodeOperand, value: T, size: T) -> T {
        let value = if x.absolute { size } else { value };
        if x.negative { -value } else { value }
    }

    fn single(&self, x: &CodeOperand) -> f32 {
        let value = f32::from_bits(self.raw(x));
        Self::sign(x, value, value.abs())
    }

    fn double(&self, x: &CodeOperand) -> f64 {
        let pair = |low: u32, high: u32| f64::from_bits(u64::from(high) << 32 | u64::from(low));
        let value = match x.place {
            Place::Number(number) => number,
            Place::Register(index) if index < ZERO => pair(self.registers[index], self.registers[index + 1]),
            Place::Constant(bank, _, at) => pair(self.constant(bank, at), self.constant(bank, at + 4)),
            _ => 0.0,
        };
        Self::sign(x, value, value.abs())
    }

    /// Returns a half of the word of an operand.
    fn half(&self, x: &CodeOperand, signed: bool) -> i64 {
        let half = (self.raw(x) >> if x.upper { 16 } else { 0 }) as u16;
        if signed { i64::from(half as i16) } else { i64::from(half) }
    }

    fn set(&mut self, to: &CodeOperand, bits: u32) {
        if let Place::Register(index) = to.place
            && index < ZERO
        {
            self.registers[index] = bits;
        }
    }

    fn set_double(&mut self, to: &CodeOperand, value: f64) {
        if let Place::Register(index) = to.place
            && index + 1 < ZERO
        {
            (self.registers[index], self.registers[index + 1]) =
                (value.to_bits() as u32, (value.to_bits() >> 32) as u32);
        }
    }

    fn set_predicate(&mut self, to: &CodeOperand, value: bool) {
        if let Place::Predicate(index) = to.place
            && index < TRUE
        {
            self.predicates[index] = value;
        }
    }

    /// Sets the condition code to that of `result`, if the instruction writes it.
    fn note(&mut self, step: &Step, result: u32, carry: u64) {
        if step.writes_code {
            self.zero = result == 0 && (!step.has("X") || self.zero);
            self.carry = carry;
        }
    }

    /// Adds integers, some of them negative, and sets the condition code.
    fn add(&mut self, step: &Step, addends: &[&CodeOperand]) -> u32 {
        let carries =
            if step.has("X") { self.carry } else { addends.iter().filter(|x| x.negative).count() as u64 };
        let word = |x: &&CodeOperand| if x.negative { !self.raw(x) } else { self.raw(x) };
        let sum = addends.iter().map(|x| u64::from(word(x))).sum::<u64>() + carries;
        self.note(step, sum as u32, sum >> 32);
        sum as u32
    }

    /// Returns the order of two integers. With `X` they are the upper words of two, whose lower words set the condition code.
    fn order(&self, step: &Step, a: u32, b: u32) -> Ordering {
        let wide = |x: u32| if step.has("U32") { i64::from(x) } else { i64::from(x as i32) };
        let borrow = if step.has("X") { 1 - self.carry.min(1) as i64 } else { 0 };
        let difference = wide(a) - wide(b) - borrow;
        match difference {
            0 if step.has("X") && !self.zero => Ordering::Greater,
            _ => difference.cmp(&0),
        }
    }

    /// Executes an instruction that is no jump.
    ///
    /// # Errors
    /// Returns an error if the instruction is not known.
    pub fn execute(&mut self, step: &Step) -> Result<(), String> {
        let all = &step.operands;
        let missing = || "lacks an operand".to_owned();
        let of = |index: usize| all.get(index).ok_or_else(missing);
        let bools: Vec<&str> = step
            .modifiers
            .iter()
            .map(String::as_str)
            .filter(|x| matches!(*x, "AND" | "OR" | "XOR"))
            .collect();
        let last_bool = bools.last().copied().unwrap_or("AND");
        match step.name.as_str() {
            "NOP" | "SSY" | "PBK" | "DEPBAR" | "MEMBAR" | "CAL" | "ST" | "STG" => {}
            "BAR" => {
                if step.has("RED") {
                    self.reduced = self.predicate(of(1)?);
                }
            }
            "B2R" => self.set_predicate(of(1)?, self.reduced),
            "VOTE" => {
                let vote = self.predicate(of(2)?);
                self.set(of(0)?, if vote { u32::MAX } else { 0 });
                self.set_predicate(of(1)?, vote);
            }
            "SHFL" => {
                let own = self.raw(of(2)?);
                self.set(of(1)?, own);
            }
            "S2R" => {
                let which = step.special.as_str();
                let value = match which {
                    "SR_TID.X" => self.call.thread,
                    "SR_CTAID.X" => self.call.block,
                    "SR_LANEID" => self.call.thread % 32,
                    _ => 0,
                };
                self.set(of(0)?, value);
            }
            "LDG" | "LD" | "LDS" | "LDC" | "STS" => {
                let stores = step.name == "STS";
                let (data, from) = if stores { (of(1)?, of(0)?) } else { (of(0)?, of(1)?) };
                let Place::Register(first) = data.place else { return Err("moves no register".into()) };
                for word in 0..step.words() {
                    let here = CodeOperand {
                        place: Place::Register(if first == ZERO { ZERO } else { first + word }),
                        ..*data
                    };
                    match from.place {
                        Place::Memory(index, offset) if stores || step.name == "LDS" => {
                            let at = self.registers[index].wrapping_add(offset).wrapping_add(4 * word as u32);
                            if stores {
                                self.shared.insert(at, self.raw(&here));
                            } else {
                                self.set(&here, self.shared.get(&at).copied().unwrap_or(0));
                            }
                        }
                        Place::Constant(bank, index, offset) => {
                            let at = self.registers[index] as usize + offset + 4 * word;
                            let bits = self.constant(bank, at & !3) >> (8 * (at & 3));
                            let kept = if step.has("U8") {
                                0xff
                            } else if step.has("U16") {
                                0xffff
                            } else {
                                u32::MAX
                            };
                            self.set(&here, bits & kept);
                        }
                        _ => self.set(&here, 0),
                    }
                }
            }
            "MOV" | "MOV32I" => self.set(of(0)?, self.raw(of(1)?)),
            "SEL" => self.set(of(0)?, self.integer(if self.predicate(of(3)?) { of(1)? } else { of(2)? })),
            "IADD" | "IADD32I" => {
                let sum = self.add(step, &[of(1)?, of(2)?]);
                self.set(of(0)?, sum);
            }
            "IADD3" if step.has("RS") => {
                let sum = (u64::from(self.integer(of(1)?)) + u64::from(self.integer(of(2)?))) >> 16;
                self.set(of(0)?, (sum as u32).wrapping_add(self.integer(of(3)?)));
            }
            "IADD3" => {
                let sum = self.add(step, &[of(1)?, of(2)?, of(3)?]);
                self.set(of(0)?, sum);
            }
            "ISCADD" | "LEA" => {
                let by = |x: &CodeOperand| self.raw(x) & 31;
                // The upper form shifts two words; the fourth operand is the upper one.
                let (shifted, by) = if step.has("HI") {
                    let wide = u64::from(self.integer(of(3)?)) << 32 | u64::from(self.integer(of(1)?));
                    ((wide >> (32 - by(of(4)?))) as u32, 0)
                } else {
                    (self.integer(of(1)?), by(of(3)?))
                };
                let low = CodeOperand { place: Place::Bits(shifted << by), negative: false, ..*of(1)? };
                let sum = self.add(step, &[&CodeOperand { absolute: false, inverted: false, ..low }, of(2)?]);
                self.set(of(0)?, sum);
            }
            "SHL" => self.set(of(0)?, self.raw(of(1)?).checked_shl(self.raw(of(2)?)).unwrap_or(0)),
            "SHR" => {
                let (x, by) = (self.raw(of(1)?), self.raw(of(2)?));
                let signed = ((x as i32) >> by.min(31)) as u32;
                self.set(of(0)?, if step.has("U32") { x.checked_shr(by).unwrap_or(0) } else { signed });
            }
            "SHF" => {
                let wide = u64::from(self.raw(of(3)?)) << 32 | u64::from(self.raw(of(1)?));
                let by = self.raw(of(2)?).min(63);
                self.set(
                    of(0)?,
                    if step.has("L") { ((wide << by) >> 32) as u32 } else { (wide >> by) as u32 },
                );
            }
            "BFE" => {
                let (x, what) = (self.raw(of(1)?), self.raw(of(2)?));
                let (from, len) = (what & 0xff, (what >> 8 & 0xff).clamp(1, 32));
                let x = x.checked_shr(from).unwrap_or(0) << (32 - len);
                self.set(
                    of(0)?,
                    if step.has("U32") { x >> (32 - len) } else { ((x as i32) >> (32 - len)) as u32 },
                );
            }
            "BFI" => {
                let (x, what, base) = (self.raw(of(1)?), self.raw(of(2)?), self.raw(of(3)?));
                let (from, len) = (what & 0xff, what >> 8 & 0xff);
                let mask = ((1u64 << len.min(32)) - 1).checked_shl(from).unwrap_or(0) as u32;
                self.set(of(0)?, base & !mask | x.checked_shl(from).unwrap_or(0) & mask);
            }
            "LOP" | "LOP32I" | "LOP3" => {
                let skipped = usize::from(step.has("NZ"));
                let (a, b) = (self.raw(of(skipped + 1)?), self.raw(of(skipped + 2)?));
                let result = if step.name == "LOP3" {
                    let (c, table) = (self.raw(of(skipped + 3)?), self.raw(of(skipped + 4)?));
                    (0..8u32).filter(|row| table >> row & 1 == 1).fold(0, |bits, row| {
                        let pick = |x: u32, bit: u32| if row >> bit & 1 == 1 { x } else { !x };
                        bits | pick(a, 2) & pick(b, 1) & pick(c, 0)
                    })
                } else if step.has("PASS_B") {
                    b
                } else {
                    match last_bool {
                        "OR" => a | b,
                        "XOR" => a ^ b,
                        _ => a & b,
                    }
                };
                if skipped == 1 {
                    self.set_predicate(of(0)?, result != 0);
                }
                self.note(step, result, 0);
                self.set(of(skipped)?, result);
            }
            "IMNMX" => {
                let (a, b) = (self.integer(of(1)?), self.integer(of(2)?));
                let less = if step.has("U32") { a < b } else { (a as i32) < b as i32 };
                self.set(of(0)?, if less == self.predicate(of(3)?) { a } else { b });
            }
            "ICMP" => {
                let holds = step.compare(Some(self.order(step, self.integer(of(3)?), 0)))?;
                self.set(of(0)?, self.integer(if holds { of(1)? } else { of(2)? }));
            }
            "XMAD" => {
                let [signed_a, signed_b] = match step
                    .modifiers
                    .iter()
                    .filter(|x| x.starts_with(['S', 'U']))
                    .map(|x| x == "S16")
                    .collect::<Vec<_>>()[..]
                {
                    [a, b] => [a, b],
                    _ => [false; 2],
                };
                let (a, b, added) = (of(1)?, of(2)?, self.integer(of(3)?));
                let product = (self.half(a, signed_a) * self.half(b, signed_b)) as u32;
                let product = if step.has("PSL") { product << 16 } else { product };
                let lower = self.raw(b) & 0xffff;
                let added = if step.has("CBCC") {
                    added.wrapping_add(self.raw(b) << 16)
                } else if step.has("CHI") {
                    added >> 16
                } else if step.has("CLO") {
                    added & 0xffff
                } else {
                    added
                };
                let sum = product.wrapping_add(added);
                self.set(of(0)?, if step.has("MRG") { sum & 0xffff | lower << 16 } else { sum });
            }
            "ISETP" | "FSETP" | "DSETP" | "ISET" | "FSET" => {
                let sets = !step.name.ends_with('P');
                let (a, b, other) = if sets { (of(1)?, of(2)?, of(3)?) } else { (of(2)?, of(3)?, of(4)?) };
                let order = match &step.name[..1] {
                    "I" => Some(self.order(step, self.integer(a), self.integer(b))),
                    "F" => self.single(a).partial_cmp(&self.single(b)),
                    _ => self.double(a).partial_cmp(&self.double(b)),
                };
                let (found, other) = (step.compare(order)?, self.predicate(other));
                let result = combine(last_bool, found, other);
                if sets {
                    let bits = if step.has("BF") { 1f32.to_bits() } else { u32::MAX };
                    let bits = if result { bits } else { 0 };
                    self.zero = if step.writes_code { bits == 0 } else { self.zero };
                    self.set(of(0)?, bits);
                } else {
                    self.set_predicate(of(0)?, result);
                    self.set_predicate(of(1)?, combine(last_bool, !found, other));
                }
            }
            "PSETP" | "PSET" => {
                let sets = step.name == "PSET";
                let first = if sets { 1 } else { 2 };
                let [a, b, c] = [of(first)?, of(first + 1)?, of(first + 2)?].map(|x| self.predicate(x));
                let inner = combine(bools.first().copied().unwrap_or("AND"), a, b);
                let result = combine(last_bool, inner, c);
                if sets {
                    let bits = if step.has("BF") { 1f32.to_bits() } else { u32::MAX };
                    self.set(of(0)?, if result { bits } else { 0 });
                } else {
                    self.set_predicate(of(0)?, result);
                    self.set_predicate(of(1)?, combine(last_bool, !inner, c));
                }
            }
            "HADD2" => self.set(of(0)?, 0),
            "FADD" | "FADD32I" => self.set_single(of(0)?, self.single(of(1)?) + self.single(of(2)?)),
            "FMUL" | "FMUL32I" => self.set_single(of(0)?, self.single(of(1)?) * self.single(of(2)?)),
            "FFMA" | "FFMA32I" => {
                self.set_single(
                    of(0)?,
                    self.single(of(1)?).mul_add(self.single(of(2)?), self.single(of(3)?)),
                );
            }
            "FMNMX" => {
                let (a, b) = (self.single(of(1)?), self.single(of(2)?));
                self.set_single(of(0)?, if self.predicate(of(3)?) { a.min(b) } else { a.max(b) });
            }
            "MUFU" => {
                let x = self.single(of(1)?);
                let value = match step.modifiers.first().map(String::as_str) {
                    Some("RCP") => 1.0 / x,
                    Some("RSQ") => 1.0 / x.sqrt(),
                    Some("EX2") => x.exp2(),
                    Some("LG2") => x.log2(),
                    _ => return Err(format!("computes {:?}", step.modifiers)),
                };
                self.set_single(of(0)?, value);
            }
            "DADD" => self.set_double(of(0)?, self.double(of(1)?) + self.double(of(2)?)),
            "DMUL" => self.set_double(of(0)?, self.double(of(1)?) * self.double(of(2)?)),
            "DFMA" => {
                self.set_double(
                    of(0)?,
                    self.double(of(1)?).mul_add(self.double(of(2)?), self.double(of(3)?)),
                );
            }
            "I2I" => self.set(of(0)?, self.integer(of(1)?)),
            "I2F" => {
                let x = self.integer(of(1)?);
                self.set_single(of(0)?, if step.has("U32") { x as f32 } else { x as i32 as f32 });
            }
            "F2I" => {
                let x = self.single(of(1)?);
                let x = if step.has("TRUNC") { x.trunc() } else { x.round_ties_even() };
                self.set(of(0)?, if step.has("U32") { x as u32 } else { x as i32 as u32 });
            }
            "F2F" => match step.modifiers.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["F64", "F32", ..] => self.set_double(of(0)?, f64::from(self.single(of(1)?))),
                ["F32", "F64", ..] => self.set_single(of(0)?, self.double(of(1)?) as f32),
                ["F32", "F32", ..] => self.set_single(of(0)?, self.single(of(1)?).round_ties_even()),
                _ => self.set(of(0)?, 0),
            },
            _ => return Err("is not known".into()),
        }
        Ok(())
    }

    fn set_single(&mut self, to: &CodeOperand, value: f32) {
        self.set(to, value.to_bits());
    }
}
