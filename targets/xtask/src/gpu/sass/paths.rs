//! Finds the path of a warp through a kernel for a problem without masks or biases. Also finds the number of trips that
//! the warp makes through each loop.
//!
//! The walk follows the machine code in the order of addresses. A backward jump closes a loop. For a forward jump,
//! there are two cases:
//!
//! - A jump without a predicate is taken.
//! - A predicated jump is taken only in two cases. Either it leads to an alternative with more multiply-adds, or the
//!   code that it skips is rare. Code is rare if it stores to global memory or makes a call within a tile (for a row
//!   whose reference moved, or for a division). Code that contains a loop without a multiply-add (for masks and biases)
//!   is rare too.
//!
//! The trips of a loop follow from its counter: a register that the loop compares with a constant and changes by a
//! constant. A loop has two trips if the predicate that ends it was copied from another predicate. If a trip count
//! remains unknown, it follows from the number of multiply-adds that a tile of keys requires.

use super::code::Instruction;

/// Range of instructions. The fields are indices into the code, and both instructions belong to the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Index of the first instruction.
    pub first: usize,
    /// Index of the backward jump that closes the loop.
    pub last: usize,
}

impl Loop {
    fn holds(&self, other: &Loop) -> bool {
        self.first <= other.first && other.last <= self.last && self != other
    }
}

/// Returns `true` for a floating-point multiply-add instruction.
pub fn is_fma(x: &Instruction) -> bool {
    matches!(x.name.as_str(), "FFMA" | "FFMA32I" | "HFMA2")
}

/// Returns `true` for an instruction that computes an exponential. Every score needs an exponential.
pub fn is_exp(x: &Instruction) -> bool {
    x.name == "MUFU" && x.has("EX2")
}

/// Returns the loops of the code. An inner loop precedes the loops around it.
pub fn loops(code: &[Instruction]) -> Vec<Loop> {
    let at = |address| code.binary_search_by_key(&address, |x| x.at).ok();
    let back = |(last, x): (usize, &Instruction)| {
        let first = at(x.target.filter(|_| x.name == "BRA")?)?;
        (first < last).then_some(Loop { first, last })
    };
    let mut loops: Vec<Loop> = code.iter().enumerate().filter_map(back).collect();
    loops.sort_by_key(|x| x.last - x.first);
    loops
}

/// Code that [`walk`] treats as rare and jumps over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rare {
    /// Code within a tile that stores to global memory, makes a call, or contains a loop without a multiply-add.
    Stores,
    /// Code outside the tiles that makes a call, or contains a loop without a multiply-add.
    Calls,
}

/// Returns the indices of the instructions that a warp executes from `first` to `last`. Each loop body is included
/// once, and `rare` code is left out.
pub fn walk(code: &[Instruction], first: usize, last: usize, rare: Rare) -> Vec<usize> {
    let loops = loops(code);
    let mut way = Vec::new();
    let mut at = first;
    while at <= last {
        let x = &code[at];
        way.push(at);
        at += 1;
        if matches!(x.name.as_str(), "EXIT" | "RET") && x.guard.is_none() {
            break;
        }
        let jumps = matches!(x.name.as_str(), "BRA" | "SYNC" | "BRK");
        let Some(to) =
            x.target.filter(|_| jumps).and_then(|to| code.binary_search_by_key(&to, |x| x.at).ok())
        else {
            continue;
        };
        if to < at || to > last + 1 {
            continue;
        }
        let part = &code[at..to];
        let useless = |x: &Loop| {
            at <= x.first && x.last < to && !code[x.first..=x.last].iter().any(|x| is_fma(x) || is_exp(x))
        };
        let stores = rare == Rare::Stores && part.iter().any(|x| matches!(x.name.as_str(), "STG" | "ST"));
        let calls = part.iter().any(|x| x.name == "CAL");
        // Code that computes exponentials of weights contains no call; the soft cap calls a division.
        let exps = !calls && part.iter().any(is_exp);
        // The addition of sums to memory also has a loop that adds the sums of short rows.
        let adds = part.iter().filter(|x| x.name == "FADD").count() >= ADDS && rare == Rare::Calls;
        let needed = exps || (adds && !calls) || part.iter().filter(|x| is_fma(x)).count() >= NEEDED;
        let is_rare = stores || calls || loops.iter().any(useless);
        // Takes the alternative with more multiply-adds, because the other alternative checks each value.
        let other =
            part.last().filter(|x| matches!(x.name.as_str(), "BRA" | "BRK" | "SYNC") && x.guard.is_none());
        let join = other.and_then(|x| x.target).filter(|&join| code.get(to).is_some_and(|x| join > x.at));
        let join = join.and_then(|join| code.binary_search_by_key(&join, |x| x.at).ok());
        // Multiply-adds of the largest loop, if any, and of all the code. If both alternatives have a loop, only these
        // loops are compared, because they repeat.
        let fmas = |from: usize, to: usize| {
            let count = |from: usize, to: usize| code[from..to].iter().filter(|x| is_fma(x)).count();
            let inner = loops.iter().filter(|x| from <= x.first && x.last < to);
            (inner.map(|x| count(x.first, x.last)).max().filter(|&most| most > 0), count(from, to))
        };
        let slower = join.is_some_and(|join| match (fmas(at, to), fmas(to, join)) {
            ((Some(here), _), (Some(there), _)) => there > here,
            ((_, here), (_, there)) => there > here,
        });
        if x.guard.is_none() || (is_rare && !needed) || slower {
            at = to;
        }
    }
    way
}

/// Code with at least this many multiply-adds counts as part of every tile, never as rare.
const NEEDED: usize = 32;
/// Code with at least this many additions counts as the addition of a lane's sums to memory.
const ADDS: usize = 16;

/// Returns the comparison that ends a loop, the register that counts its trips, and the limit of this counter if known.
fn counter<'a>(code: &'a [Instruction], inner: &Loop) -> Option<(&'a Instruction, &'a str, Option<i64>)> {
    let body = &code[inner.first..=inner.last];
    let guard = body.last()?.guard.as_deref()?;
    let sets = |x: &&Instruction| x.name.ends_with("SETP") && x.operands().next() == Some(guard);
    let set = body.iter().rev().find(sets)?;
    let mut operands = set.operands().skip(2);
    let (first, second) = (operands.next()?, operands.next());
    // The operands of an inequality comparison may be in either order.
    let swapped = second.filter(|&x| {
        set.has("NE") && change(code, inner, first).is_none() && change(code, inner, x).is_some()
    });
    Some(match swapped {
        Some(second) => (set, second, limit(code, inner.first, first)),
        None => (set, first, second.and_then(|x| limit(code, inner.first, x))),
    })
}

/// Returns the value of an operand that a loop does not change. If the operand is the minimum of a constant and a value
/// that depends on the call, returns the constant. The head size is thus assumed to be the largest that the kernel
/// supports.
fn limit(code: &[Instruction], before: usize, operand: &str) -> Option<i64> {
    let constant = |operand: Option<&str>| operand.and_then(Instruction::constant);
    if let Some(value) = constant(Some(operand)) {
        return Some(value);
    }
    let made = code[..before].iter().rposition(|x| x.operands().next() == Some(operand))?;
    let mut operands = code[made].operands().skip(1);
    let (first, second) = (operands.next()?, constant(operands.next())?);
    match code[made].name.as_str() {
        "IMNMX" => Some(second).filter(|_| operands.next() == Some("PT")),
        "SHL" => limit(code, made, first)?.checked_shl(u32::try_from(second).ok()?),
        _ => None,
    }
}

/// Returns the change of a loop's counter per trip.
pub fn step(code: &[Instruction], inner: &Loop) -> Option<usize> {
    let (_, counter, _) = counter(code, inner)?;
    usize::try_from(change(code, inner, counter)?.1).ok()
}

/// Finds the instruction that changes the counter of a loop by a constant. Returns the address of this instruction, and
/// the constant.
fn change(code: &[Instruction], inner: &Loop, counter: &str) -> Option<(usize, i64)> {
    let changes = |x: &Instruction| {
        let mut operands = x.operands();
        let adds = matches!(x.name.as_str(), "IADD32I" | "IADD") && operands.next() == Some(counter);
        let by = operands.nth(1).filter(|_| adds).and_then(Instruction::constant)?;
        Some((x.at, by))
    };
    code[inner.first..=inner.last].iter().rev().find_map(changes)
}

/// Returns the number of trips of `inner`; `None` if the loop's counter does not determine this number.
pub fn trips(code: &[Instruction], inner: &Loop) -> Option<usize> {
    let (set, counter, limit) = counter(code, inner)?;
    if set.name == "PSETP" {
        return Some(2);
    }
    let (place, step) = change(code, inner, counter).filter(|&(_, step)| step != 0)?;
    // Finds the last value before the loop. If another register contained the counter before the loop, the counter is
    // assumed to begin at zero, because all such counters count up.
    let begins = |x: &&Instruction| x.operands().next() == Some(counter);
    let start = code[..inner.first].iter().rev().find(begins);
    let start = start.filter(|x| matches!(x.name.as_str(), "MOV" | "MOV32I"));
    let start = start.and_then(|x| Instruction::constant(x.operands().nth(1)?)).unwrap_or(0);
    let distance = limit? - start;
    let trips = match (set.has("NE"), set.has("GE")) {
        (true, _) => distance / step,
        // If the counter is compared before it changes, it reaches its limit one trip later.
        (_, true) => distance / step + i64::from(distance % step != 0) + i64::from(set.at < place),
        _ => return None,
    };
    usize::try_from(trips).ok().filter(|&trips| (1..=MOST_TRIPS).contains(&trips))
}

/// Largest plausible trip count. If a trip count is larger, the counter was misread.
const MOST_TRIPS: usize = 256;

/// Returns the path `way` with the body of every loop repeated. `counts` contains the number of repetitions for each
/// loop.
pub fn repeated(way: &[usize], counts: &[(Loop, usize)]) -> Vec<usize> {
    let mut all = Vec::new();
    for &at in way {
        all.push(at);
        // Copies all instructions since the loop's head. Inner loops among them are already repeated.
        for (inner, count) in counts.iter().filter(|(inner, _)| inner.last == at) {
            let Some(from) = all.iter().rposition(|&at| at == inner.first) else { continue };
            let from = first_entry(&all, from, inner);
            let body = all[from..].to_vec();
            for _ in 1..*count {
                all.extend_from_slice(&body);
            }
        }
    }
    all
}

/// Returns the index in `all` at which the path last entered the loop `inner`. The index is at most `from`.
fn first_entry(all: &[usize], from: usize, inner: &Loop) -> usize {
    let outside = |at: &usize| *at < inner.first || *at > inner.last;
    all[..from].iter().rposition(outside).map_or(0, |last| last + 1)
}

/// Returns the trip counts of all loops on a path through a tile. `wanted` contains the numbers of multiply-adds of two
/// products. The first product is the scores, before the first exponential. The second is the weighted values, after
/// it. An unknown trip count is chosen such that the product in its loop has the wanted number.
///
/// # Errors
/// Returns an error if several loops of one product lack a known trip count, or if the multiply-adds of a product do
/// not match `wanted`.
pub fn counted(
    code: &[Instruction],
    way: &[usize],
    within: &Loop,
    wanted: [usize; 2],
) -> Result<Vec<(Loop, usize)>, String> {
    let inner: Vec<Loop> = loops(code)
        .into_iter()
        .filter(|x| within.holds(x) && way.contains(&x.first) && way[..way.len() - 1].contains(&x.last))
        .collect();
    let exp = way.iter().position(|&at| is_exp(&code[at])).map_or(usize::MAX, |place| way[place]);
    let mut counts: Vec<(Loop, Option<usize>)> = inner.iter().map(|x| (*x, trips(code, x))).collect();
    let total = |counts: &[(Loop, Option<usize>)], values: bool| -> usize {
        let known: Vec<_> = counts.iter().map(|(x, n)| (*x, n.unwrap_or(1))).collect();
        let all = repeated(way, &known);
        all.into_iter().filter(|&at| (at > exp) == values && is_fma(&code[at])).count()
    };
    for (values, wanted) in [(false, wanted[0]), (true, wanted[1])] {
        let has_fma = |x: &Loop| code[x.first..=x.last].iter().filter(|x| is_fma(x)).count() >= NEEDED;
        let mut unknown = counts
            .clone()
            .into_iter()
            .filter(|(x, n)| n.is_none() && (x.first > exp) == values && has_fma(x));
        if unknown.next().is_some() {
            if unknown.next().is_some() {
                return Err("two loops of a product without a counter".into());
            }
            let place = counts
                .iter()
                .position(|(x, _)| (x.first > exp) == values && has_fma(x) && trips(code, x).is_none());
            if let Some(place) = place {
                let once = total(&counts, values);
                counts[place].1 = Some(2);
                let each = (total(&counts, values) - once).max(1);
                counts[place].1 = Some(1 + (wanted.saturating_sub(once) + each / 2) / each);
            }
        }
        let found = total(&counts, values);
        // Rescaling, rounding and widening add some multiply-adds to those of the products.
        if found < wanted || found > wanted + wanted / 4 + 64 {
            return Err(format!(
                "{found} multiply-adds of {} in a tile; expected {wanted}",
                ["scores", "values"][usize::from(values)]
            ));
        }
    }
    Ok(counts.into_iter().map(|(x, n)| (x, n.unwrap_or(1))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes instructions of eight bytes each. Each entry of `lines` contains a predicate (may be empty), the text of
    /// the instruction, and the index of the instruction to which the instruction jumps.
    fn code(lines: &[(&str, &str, usize)]) -> Vec<Instruction> {
        let make = |(place, (guard, text, to)): (usize, &(&str, &str, usize))| Instruction {
            at: place * 8,
            name: text.split(['.', ' ']).next().unwrap().to_owned(),
            text: (*text).to_owned(),
            guard: (!guard.is_empty()).then(|| (*guard).to_owned()),
            inverted: false,
            target: (*to > 0 || text.starts_with("BRA")).then_some(to * 8),
            control: super::super::code::Control::of(0x7f1, 0),
        };
        lines.iter().enumerate().map(make).collect()
    }

    fn counter(start: &str, step: &str, test: &str, limit: &str) -> Option<usize> {
        counted_by(start, step, &format!("ISETP.{test}.AND P0, PT, R1, {limit}, PT"), false)
    }

    /// Returns the number of trips of a loop whose counter is R1. The comparison `test` comes before or after the
    /// change of the counter. The comparison uses the limit R5, which is at most 8 · 0x100.
    fn counted_by(start: &str, step: &str, test: &str, before: bool) -> Option<usize> {
        let (start, step) = (format!("MOV32I R1, {start}"), format!("IADD32I R1, R1, {step}"));
        let (first, second) = if before { (test, &*step) } else { (&*step, test) };
        let code = code(&[
            ("", &start, 0),
            ("", "IMNMX.U32 R5, R6, 0x8, PT", 0),
            ("", "SHL R5, R5, 0x8", 0),
            ("", "IMNMX R7, R6, 0x8, !PT", 0),
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", first, 0),
            ("", second, 0),
            ("P0", "BRA `(.L_x_0)", 4),
        ]);
        assert_eq!(loops(&code), [Loop { first: 4, last: 7 }]);
        trips(&code, &Loop { first: 4, last: 7 })
    }

    #[test]
    fn counters_tell_the_trips() {
        assert_eq!(counter("RZ", "0x800", "NE", "0x4000"), Some(8));
        assert_eq!(counter("0x10", "0x10", "NE", "0x40"), Some(3));
        assert_eq!(counter("0x8", "-0x1", "NE", "RZ"), Some(8));
        assert_eq!(counter("0xfffffff8", "0x8", "GE", "0x18"), Some(4));
        assert_eq!(counter("RZ", "0x8", "GE", "0x18"), Some(3));
        assert_eq!(counter("RZ", "0x8", "GE", "0x19"), Some(4));
        assert_eq!(counted_by("RZ", "0x8", "ISETP.GE.AND P0, PT, R1, 0x18, PT", true), Some(4));
        // The limit is the minimum of a constant and a value that depends on the call; the two may be in either order.
        // A maximum of the two gives no limit.
        assert_eq!(counter("RZ", "0x100", "NE", "R5"), Some(8));
        assert_eq!(counted_by("RZ", "0x80", "ISETP.NE.AND P0, PT, R5, R1, PT", false), Some(16));
        assert_eq!(counter("RZ", "0x8", "NE", "R7"), None);
        assert_eq!(counter("RZ", "0x0", "NE", "0x8"), None);
        assert_eq!(counter("RZ", "0x1", "NE", "0x7000"), None);
    }

    #[test]
    fn a_walk_leaves_out_what_is_rare() {
        let part = |inside: &'static str| {
            let code = code(&[
                ("P0", "BRA `(.L_x_0)", 3),
                ("", inside, 0),
                ("", "MOV R1, R2", 0),
                ("", "BRA `(.L_x_1)", 5),
                ("", "MOV R3, R4", 0),
                ("", "EXIT", 0),
                ("", "NOP", 0),
            ]);
            walk(&code, 0, 6, Rare::Stores)
        };
        // No warp executes code that an unconditional jump skips, or code after the end.
        assert_eq!(part("LDG.E R1, [R2]"), [0, 1, 2, 3, 5]);
        assert_eq!(part("STG.E [R2], R1"), [0, 3, 5]);
        assert_eq!(part("CAL `(f)"), [0, 3, 5]);
    }

    #[test]
    fn flags_and_alternatives_are_understood() {
        let twice = code(&[
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", "PSETP.AND.AND P1, PT, P0, PT, PT", 0),
            ("P1", "BRA `(.L_x_0)", 1),
        ]);
        assert_eq!(trips(&twice, &Loop { first: 1, last: 3 }), Some(2));
        // The alternative that follows has more multiply-adds.
        let either = code(&[
            ("P0", "BRA `(.L_x_0)", 3),
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", "BRA `(.L_x_1)", 5),
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", "FFMA R2, R3, R4, R2", 0),
            ("", "EXIT", 0),
        ]);
        assert_eq!(walk(&either, 0, 5, Rare::Stores), [0, 3, 4, 5]);
    }

    #[test]
    fn loops_in_loops_multiply() {
        let way: Vec<usize> = (0..6).collect();
        let (inner, outer) = (Loop { first: 2, last: 3 }, Loop { first: 1, last: 4 });
        let all = repeated(&way, &[(inner, 3), (outer, 2)]);
        let of = |which: usize| all.iter().filter(|&&at| at == which).count();
        assert_eq!([of(0), of(1), of(2), of(3), of(4), of(5)], [1, 2, 6, 6, 2, 1]);
        assert_eq!(all[..8], [0, 1, 2, 3, 2, 3, 2, 3]);
    }
}
