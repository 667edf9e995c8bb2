//! The registers in packed PTX, which the build script writes and a program reads back.
//!
//! The names of registers are most of what a compressed module would take: the same instructions with other registers
//! are other text. In packed PTX the number of a register is therefore its place in a list of the registers of its
//! class, the one that was named last first (move to front, as in Bentley et al., 1986), counted from zero; a letter
//! alone names the next register of its class for the first time. Code that repeats is then text that repeats, in the
//! same module and in others:
//!
//! ```text
//! shl.b32 r839,r6,1;           shl.b32 r,r4,1;
//! mul.hi.u32 r840,r484,r839;   mul.hi.u32 r,r7,r1;
//! ```
//!
//! Reading gives back the same text but for the numbers of registers, which are those of their first appearance.
//! ptxas makes the same machine code of both.

/// The letters of the classes of registers, as `cargo xtask ptx` names them.
pub const CLASSES: [u8; 6] = *b"prfdgh";

/// Whether a byte is part of a word, such as an instruction, a type or a label.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Copies a text, and gives every register another number.
///
/// `number` gets the place of a register's class in [`CLASSES`] and its number, `None` for a letter alone, and returns the
/// number that is written, `None` for a letter alone. `put` gets the pieces of the new text in order. Declarations, such as
/// `f<9>`, stay as they are, and so do numbers beyond 32 bits or with a leading zero, which no register has.
///
/// # Errors
/// Ends with the first error that `number` returns.
pub fn rewrite<E>(
    text: &[u8],
    mut number: impl FnMut(usize, Option<u32>) -> Result<Option<u32>, E>,
    mut put: impl FnMut(&[u8]),
) -> Result<(), E> {
    // What stands before `copied` was put; a word begins at `at`.
    let (mut copied, mut at) = (0, 0);
    while let Some(&letter) = text.get(at) {
        let rest = &text[at..];
        let length = rest.iter().take_while(|byte| is_word(**byte)).count();
        let (word, after) = (&rest[..length], rest.get(length));
        at += length.max(1);
        let Some(class) = CLASSES.iter().position(|class| *class == letter) else { continue };
        let Some(old) = word.get(1..).and_then(decimal).filter(|_| after != Some(&b'<')) else { continue };
        put(&text[copied..at - length + 1]);
        copied = at;
        if let Some(new) = number(class, old)? {
            put_decimal(new, &mut put);
        }
    }
    put(&text[copied..]);
    Ok(())
}

/// The number that digits write, `Some(None)` for no digits; `None` for what no register has behind its letter.
fn decimal(digits: &[u8]) -> Option<Option<u32>> {
    match digits {
        [] => Some(None),
        [b'0', _, ..] => None,
        _ => digits
            .iter()
            .try_fold(0u32, |number, digit| {
                let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
                number.checked_mul(10)?.checked_add(digit)
            })
            .map(Some),
    }
}

fn put_decimal(mut number: u32, put: &mut impl FnMut(&[u8])) {
    // The longest has ten digits.
    let mut digits = [b'0'; 10];
    let mut first = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
        first -= 1;
        if number == 0 {
            break;
        }
    }
    put(&digits[first..]);
}
