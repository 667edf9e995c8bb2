//! Values of flags. The error of a parser is what it allows.

use clap::builder::{PossibleValuesParser, Str, TypedValueParser};
use elsa_core::attention::Window;
use elsa_core::dtype::DType;

/// A parser that takes one of the names in `values` and returns its value.
pub fn one_of<N, T>(values: impl IntoIterator<Item = (N, T)>) -> impl TypedValueParser<Value = T>
where
    N: Into<Str>,
    T: Clone + Send + Sync + 'static,
{
    let values: Vec<(Str, T)> = values.into_iter().map(|(name, value)| (name.into(), value)).collect();
    let names = PossibleValuesParser::new(values.iter().map(|(name, _)| name.clone()));
    names.try_map(move |found| {
        let value = values.iter().find(|(name, _)| *name == found).map(|(_, value)| value.clone());
        value.ok_or("allowed: one of the possible values")
    })
}

/// A parser of element types.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    one_of([DType::F32, DType::F16, DType::Bf16].map(|dtype| (dtype.name(), dtype)))
}

/// A floating-point number; whether it must be finite is for the problem to check.
///
/// # Errors
/// Anything else.
pub fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "allowed: a finite number".into())
}

/// A whole number from one.
///
/// # Errors
/// Anything else.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("allowed: a whole number from 1".into()),
    }
}

/// A whole number from zero.
///
/// # Errors
/// Anything else.
pub fn ordinal(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "allowed: a whole number not below 0".into())
}

/// Bytes, in units of one, KiB, MiB or GiB.
///
/// # Errors
/// Anything else, and more than the address space.
pub fn bytes(text: &str) -> Result<usize, String> {
    let allowed = || "allowed: a whole number of bytes, KiB, MiB or GiB".to_string();
    let (number, factor) = [("KiB", 1usize << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    let number: usize = number.trim_end().parse().map_err(|_| allowed())?;
    number.checked_mul(factor).ok_or_else(allowed)
}

/// Seconds: positive, and a day at most.
///
/// # Errors
/// Anything else.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 86_400.0 => Ok(x),
        _ => Err("allowed: a positive number of seconds, at most 86400".into()),
    }
}

/// The two sides of a window, `L,R`; −1 is open.
///
/// # Errors
/// Anything else.
pub fn window(text: &str) -> Result<Window, String> {
    const ALLOWED: &str = "allowed: L,R, both whole numbers not below -1";
    let side = |text: &str| match text.trim().parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n) => usize::try_from(n).map(Some).map_err(|_| ALLOWED.to_string()),
        Err(_) => Err(ALLOWED.to_string()),
    };
    let (left, right) = text.split_once(',').ok_or(ALLOWED)?;
    Ok(Window { left: side(left)?, right: side(right)? })
}

/// Rows and columns in tokens, `HxW`.
///
/// # Errors
/// Anything else.
pub fn sides(text: &str) -> Result<[usize; 2], String> {
    let side = |text: &str| text.parse().ok().filter(|n| *n > 0);
    let sides = text.split_once('x').and_then(|(h, w)| Some([side(h)?, side(w)?]));
    sides.ok_or_else(|| "allowed: HxW, both whole numbers from 1".into())
}

/// How far windows are shifted, `A,B`.
///
/// # Errors
/// Anything else.
pub fn shift(text: &str) -> Result<[usize; 2], String> {
    let shift =
        text.split_once(',').and_then(|(a, b)| Some([a.trim().parse().ok()?, b.trim().parse().ok()?]));
    shift.ok_or_else(|| "allowed: A,B, both whole numbers not below 0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_understood() {
        assert_eq!(window("-1,0"), Ok(Window { left: None, right: Some(0) }));
        assert_eq!(window("128,-1"), Ok(Window { left: Some(128), right: None }));
        assert!(window("-2,0").is_err() && window("3").is_err() && window("a,b").is_err());
        assert_eq!((sides("7x12"), shift("3,0")), (Ok([7, 12]), Ok([3, 0])));
        assert!(["7", "7x", "0x7", "7x-1", "7,7", "7x7x7"].into_iter().all(|text| sides(text).is_err()));
        assert!(["3", "3x3", "-1,0", ",", "1,2,3"].into_iter().all(|text| shift(text).is_err()));
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("2 MiB"), Ok(2 << 20));
        assert!(bytes("-1").is_err() && bytes("99999999999GiB").is_err() && bytes("x").is_err());
        assert!(seconds("nan").is_err() && seconds("-1").is_err());
    }
}
