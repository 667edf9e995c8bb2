//! Instructions with their operands, decoded once.

use super::super::code::Instruction;
use std::cmp::Ordering;

/// Index of the register that reads as zero, and of the predicate that is always true.
pub const ZERO: usize = 255;
pub const TRUE: usize = 7;

/// The place to which an operand refers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Register(usize),
    Predicate(usize),
    Bits(u32),
    Number(f64),
    /// Bank, index register and offset.
    Constant(usize, usize, usize),
    /// Address register and offset.
    Memory(usize, u32),
    Other,
}

/// An operand with its modifiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodeOperand {
    pub place: Place,
    pub negative: bool,
    pub absolute: bool,
    pub inverted: bool,
    /// `true` for the upper half of a register.
    pub upper: bool,
}

impl CodeOperand {
    pub fn parse(text: &str) -> CodeOperand {
        let upper = text.contains(".H1");
        let text = text.trim().trim_end_matches(".reuse");
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let inverted = text.starts_with(['~', '!']);
        let text = text.trim_start_matches(['~', '!']);
        let absolute = text.starts_with('|');
        let text = text.trim_matches('|').trim();
        let register = |text: &str| match text.split('.').next().unwrap_or_default() {
            "RZ" => Some(ZERO),
            name => name.strip_prefix('R')?.parse().ok(),
        };
        let hex = |text: &str| u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
        // A register and an offset; either may be absent.
        let sum = |text: &str| {
            let pieces = || text.trim_matches(['[', ']', ' ']).split('+');
            let offset = |piece: &str| match piece.strip_prefix('-') {
                Some(rest) => hex(rest).map(u32::wrapping_neg),
                None => hex(piece),
            };
            (pieces().find_map(register).unwrap_or(ZERO), pieces().find_map(offset).unwrap_or(0))
        };
        let constant = |rest: &str| {
            let (bank, at) = rest.strip_prefix('[')?.split_once(']')?;
            let (index, offset) = sum(at.split(']').next()?.trim());
            Some(Place::Constant(hex(bank)? as usize, index, offset as usize))
        };
        let predicate = || match text {
            "PT" => Some(TRUE),
            _ => text.strip_prefix('P')?.parse().ok(),
        };
        let mut negative = negative;
        let place = if let Some(rest) = text.strip_prefix('c') {
            constant(rest).unwrap_or(Place::Other)
        } else if text.starts_with('[') {
            let (index, offset) = sum(text);
            Place::Memory(index, offset)
        } else if let Some(index) = register(text) {
            Place::Register(index)
        } else if let Some(index) = predicate() {
            Place::Predicate(index)
        } else if let Some(bits) = hex(text) {
            // A negative constant is stored as such, so a carry counts it as one addend.
            let sign = std::mem::take(&mut negative);
            Place::Bits(if sign { bits.wrapping_neg() } else { bits })
        } else {
            let number = match text.trim_start_matches('+') {
                "INF" => Some(f64::INFINITY),
                "QNAN" => Some(f64::NAN),
                text => text.parse().ok(),
            };
            number.map_or(Place::Other, Place::Number)
        };
        CodeOperand { place, negative, absolute, inverted, upper }
    }
}

/// An instruction, decoded once.
pub struct Step {
    pub name: String,
    pub modifiers: Vec<String>,
    pub operands: Vec<CodeOperand>,
    pub guard: CodeOperand,
    /// Index of the instruction to which a jump leads.
    pub target: Option<usize>,
    /// Name of the special register that the instruction reads.
    pub special: String,
    /// `true` if the instruction writes the condition code, and if a jump or an end needs the code "not equal".
    pub writes_code: bool,
    pub if_not_equal: bool,
}

impl Step {
    /// Decodes an instruction of `code`.
    pub fn of(x: &Instruction, code: &[Instruction]) -> Step {
        let full = x.text.split_whitespace().next().unwrap_or_default();
        let guard = x
            .guard
            .as_deref()
            .map_or("PT".to_owned(), |name| format!("{}{name}", if x.inverted { "!" } else { "" }));
        let target = x.target.and_then(|to| code.binary_search_by_key(&to, |x| x.at).ok());
        Step {
            name: x.name.clone(),
            modifiers: full.split('.').skip(1).map(str::to_owned).collect(),
            operands: x.operands().map(CodeOperand::parse).collect(),
            guard: CodeOperand::parse(&guard),
            target,
            special: x.operands().nth(1).unwrap_or_default().to_owned(),
            writes_code: x.operands().next().is_some_and(|first| first.ends_with(".CC")),
            if_not_equal: x.text.contains("CC.NEU"),
        }
    }

    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|x| x == modifier)
    }

    /// Returns the result of the comparison that the modifiers name, for the order of two numbers; `None` if one is NaN.
    pub fn compare(&self, order: Option<Ordering>) -> Result<bool, String> {
        for modifier in &self.modifiers {
            let unordered = modifier.len() == 3 && modifier.ends_with('U');
            let found = match (modifier.as_str(), order) {
                ("NAN", order) => order.is_none(),
                ("EQ" | "NE" | "LT" | "LE" | "GT" | "GE", None) => false,
                ("NEU" | "EQU" | "LTU" | "LEU" | "GTU" | "GEU", None) => unordered,
                ("EQ" | "EQU", Some(order)) => order.is_eq(),
                ("NE" | "NEU", Some(order)) => order.is_ne(),
                ("LT" | "LTU", Some(order)) => order.is_lt(),
                ("LE" | "LEU", Some(order)) => order.is_le(),
                ("GT" | "GTU", Some(order)) => order.is_gt(),
                ("GE" | "GEU", Some(order)) => order.is_ge(),
                _ => continue,
            };
            return Ok(found);
        }
        Err(format!("compares by {:?}", self.modifiers))
    }

    /// Returns the number of registers that a load or store moves.
    pub fn words(&self) -> usize {
        if self.has("128") {
            4
        } else if self.has("64") {
            2
        } else {
            1
        }
    }
}
