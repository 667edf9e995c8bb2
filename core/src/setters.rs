//! Setters for options and for descriptions of problems.

/// Defines, for each field, a method that sets it and returns the struct. The method of an `optional` field accepts
/// either a value or an `Option` that contains a value.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    (
        $name:ident:
        $($field:ident: $type:ty),* $(,)?;
        optional $($option:ident: $inner:ty),* $(,)?
    ) => {
        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
            $(
                #[doc = concat!("Sets [`", stringify!($option), "`](field@Self::", stringify!($option), ").")]
                #[must_use]
                pub fn $option(mut self, $option: impl Into<Option<$inner>>) -> Self {
                    self.$option = $option.into();
                    self
                }
            )*
        }
    };
}
