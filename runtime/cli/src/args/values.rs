//! Parsers of the values of flags. The error of a parser describes the allowed form.

use clap::builder::{PossibleValuesParser, Str, TypedValueParser};
use elsa_core::attention::Window;
use elsa_core::dtype::DType;
use std::str::FromStr;
use std::time::Duration;

/// Returns a parser that accepts the names in `values` and returns the value of the given name.
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

/// Value of a flag. `None` means `auto`: the program chooses the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<T>(pub Option<T>);

/// The value of a flag that leaves the choice to the program.
pub const AUTO: &str = "auto";

/// Returns a parser that accepts [`AUTO`] and the names in `values`.
pub fn auto_or<T: Clone + Send + Sync + 'static>(
    values: impl IntoIterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = Choice<T>> {
    let named = values.into_iter().map(|(name, value)| (name, Choice(Some(value))));
    one_of([(AUTO, Choice(None))].into_iter().chain(named))
}

/// Returns a parser of element types.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    one_of([DType::F32, DType::F16, DType::Bf16].map(|dtype| (dtype.name(), dtype)))
}

/// Parses a floating-point number. Infinite numbers and NaN are accepted here; the checks of the problem reject them
/// where a number must be finite.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| "allowed: a finite number".into())
}

/// Parses a whole number that is at least one.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("allowed: a whole number from 1".into()),
    }
}

/// Parses a whole number that is at least zero.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn ordinal<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "allowed: a whole number not below 0".into())
}

/// Numbers of GPUs, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(pub Vec<usize>);

/// Parses numbers of GPUs, separated by commas.
///
/// # Errors
/// Returns the allowed values if `text` has another form, names no GPU, or names one twice.
pub fn devices(text: &str) -> Result<Devices, String> {
    let numbers: Option<Vec<usize>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let once = |numbers: &Vec<usize>| (1..numbers.len()).all(|at| !numbers[..at].contains(&numbers[at]));
    let numbers = numbers.filter(once).map(Devices);
    numbers.ok_or_else(|| "allowed: different numbers of GPUs, such as 0,1".into())
}

/// Parses a number of bytes. The number may have the unit KiB, MiB or GiB.
///
/// # Errors
/// Returns the allowed values if `text` has another form or exceeds the address space.
pub fn bytes(text: &str) -> Result<usize, String> {
    let allowed = || "allowed: a whole number of bytes, KiB, MiB or GiB".to_string();
    let (number, factor) = [("KiB", 1usize << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    let number: usize = number.trim_end().parse().map_err(|_| allowed())?;
    number.checked_mul(factor).ok_or_else(allowed)
}

/// Parses a positive number of seconds, at most a day.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 86_400.0 => Ok(x),
        _ => Err("allowed: a positive number of seconds, at most 86400".into()),
    }
}

/// Parses a time in milliseconds, a day at most.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.0..=86_400e3).contains(&x) => Ok(Duration::from_secs_f64(x / 1e3)),
        _ => Err("allowed: milliseconds from 0 to 86400000".into()),
    }
}

/// Parses a time in seconds, minutes or hours, such as `90s`, `10m` or `2h`. The maximum is a month.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let parsed = units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor).filter(|seconds| *seconds > 0.0 && *seconds <= 31.0 * 86_400.0)
    });
    parsed
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "allowed: a time such as 90s, 10m or 2h, up to 744h".into())
}

/// Parses a rate in calls per second.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (1e-3..=1e6).contains(&x) => Ok(x),
        _ => Err("allowed: calls per second, from 0.001 to 1000000".into()),
    }
}

/// Parses the two sides of a window, `L,R`. A side of −1 is unlimited.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
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

/// Parses rows and columns in tokens, `HxW`.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
pub fn sides(text: &str) -> Result<[usize; 2], String> {
    let side = |text: &str| text.parse().ok().filter(|n| *n > 0);
    let sides = text.split_once('x').and_then(|(h, w)| Some([side(h)?, side(w)?]));
    sides.ok_or_else(|| "allowed: HxW, both whole numbers from 1".into())
}

/// Parses a shift of windows, `A,B`.
///
/// # Errors
/// Returns the allowed values if `text` has another form.
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
        assert_eq!((devices("1"), devices("2, 0")), (Ok(Devices(vec![1])), Ok(Devices(vec![2, 0]))));
        assert!(["", "0,", "0,0", "-1", "x", "0;1"].into_iter().all(|text| devices(text).is_err()));
        assert_eq!(bytes("4KiB"), Ok(4096));
        assert_eq!(bytes("2 MiB"), Ok(2 << 20));
        assert!(bytes("-1").is_err() && bytes("99999999999GiB").is_err() && bytes("x").is_err());
        assert!(seconds("nan").is_err() && seconds("-1").is_err());
        assert_eq!(
            (milliseconds("200"), milliseconds("0")),
            (Ok(Duration::from_millis(200)), Ok(Duration::ZERO))
        );
        assert!(["-1", "nan", "1e9", "2s"].into_iter().all(|text| milliseconds(text).is_err()));
        assert_eq!(
            (duration("90s"), duration("10m")),
            (Ok(Duration::from_secs(90)), Ok(Duration::from_secs(600)))
        );
        assert_eq!((duration("0.5h"), duration("2ms").is_err()), (Ok(Duration::from_secs(1800)), true));
        assert!(
            ["", "s", "10", "-1s", "0s", "nans", "infh", "1e9h"]
                .into_iter()
                .all(|text| duration(text).is_err())
        );
        assert_eq!((rate("30"), rate("0").is_err(), rate("nan").is_err()), (Ok(30.0), true, true));
    }
}
