//! Rewrites the registers of PTX: the build script packs them, and a program unpacks them.
//!
//! Register names make up most of a compressed module, because the same instructions with other registers are different
//! text. Packed PTX therefore replaces a register's number by its position, counted from zero, in a list of the
//! registers of its class with the most recently named first (move to front, as in Bentley et al., 1986). A letter
//! alone names the next new register of its class. Repeated code then becomes repeated text, within a module and across
//! modules:
//!
//! ```text
//! shl.b32 r839,r6,1;           shl.b32 r,r4,1;
//! mul.hi.u32 r840,r484,r839;   mul.hi.u32 r,r7,r1;
//! ```
//!
//! Decoding restores the same text except for the register numbers, which count first appearances. ptxas makes the same
//! machine code of both.

/// Letters of the register classes, as `cargo xtask ptx` names them.
pub const CLASSES: [u8; 6] = *b"prfdgh";

/// Returns `true` if a byte is part of a word, such as an instruction, a type or a label.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Copies a text and renumbers every register.
///
/// `number` gets the index of a register's class in [`CLASSES`] and its number, `None` for a letter alone; it returns
/// the new number, `None` for a letter alone. `put` gets the pieces of the new text in order. Declarations such as
/// `f<9>` stay as they are, as do numbers beyond 32 bits or with a leading zero, which are no registers.
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

/// Parses the digits after a register letter: `Some(None)` without digits, `None` if no register is written like this.
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
