//! Renumbers the registers of PTX, so that the text compresses better. The build script packs the text, and a program
//! unpacks it.
//!
//! Register names take most of the space of a compressed module, because two equal instructions with different
//! registers are different text. So packed PTX contains positions instead of register numbers. Each class of registers
//! has a list, in which the most recently named register comes first (move to front, as in Bentley et al., 1986). A
//! register's number is replaced with the register's position in this list, counted from zero. A letter alone names the
//! next new register of its class. Repeated code then becomes repeated text, within a module and across modules:
//!
//! ```text
//! shl.b32 r839,r6,1;           shl.b32 r,r4,1;
//! mul.hi.u32 r840,r484,r839;   mul.hi.u32 r,r7,r1;
//! ```
//!
//! Unpacking restores the original text except for the register numbers, which are assigned in the order of first
//! appearance. ptxas generates the same machine code from both texts.

/// Letters of the register classes in the PTX that `cargo xtask ptx` writes.
pub const CLASSES: [u8; 6] = *b"prfdgh";

/// Returns `true` if a byte is part of a word, such as an instruction, a type or a label.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Copies a text and renumbers every register.
///
/// `number` receives the index of a register's class in [`CLASSES`] and the register's number, or `None` if the letter
/// has no number. `number` returns the new number, or `None` to write the letter alone. `put` receives the pieces of
/// the new text in order. Declarations such as `f<9>` stay unchanged. Names with a number that exceeds 32 bits or has a
/// leading zero also stay unchanged, because they are not registers.
///
/// # Errors
/// Returns the first error of `number`.
pub fn rewrite<E>(
    text: &[u8],
    mut number: impl FnMut(usize, Option<u32>) -> Result<Option<u32>, E>,
    mut put: impl FnMut(&[u8]),
) -> Result<(), E> {
    // `put` has received everything before `copied`; a word begins at `at`.
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

/// Parses the digits after a register letter. Returns `Some(None)` if there are no digits, and `None` if the digits
/// cannot be the number of a register.
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
    // The longest number has ten digits.
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
