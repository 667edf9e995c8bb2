//! Text for C: in a buffer of fixed size, or in memory that is never freed.

use std::ffi::{CStr, CString, c_char};
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Text in `N` bytes, truncated if too long, with a terminating zero byte.
#[derive(Debug)]
pub(crate) struct Text<const N: usize> {
    chars: [c_char; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Text<N> {
        Text { chars: [0; N], len: 0 }
    }

    pub(crate) fn of(what: &dyn fmt::Display) -> Text<N> {
        let mut text = Text::new();
        // `write_str` below never fails. If the `Display` implementation fails, its partial text stays.
        let _ = write!(text, "{what}");
        text
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.chars.as_ptr()
    }

    pub(crate) fn chars(&self) -> [c_char; N] {
        self.chars
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            let c = if c == '\0' { ' ' } else { c };
            // The last byte stays zero.
            if self.len + c.len_utf8() >= N {
                return Ok(());
            }
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                self.chars[self.len] = byte as c_char;
                self.len += 1;
            }
        }
        Ok(())
    }
}

/// Returns the name as a C string in memory that is never freed. Each name is converted once.
pub(crate) fn name(name: &'static str) -> *const c_char {
    static NAMES: Mutex<Vec<(&'static str, &'static CStr)>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, text)) = names.iter().find(|(known, _)| *known == name) {
        return text.as_ptr();
    }
    match CString::new(name) {
        Ok(text) => {
            let text: &'static CStr = Box::leak(text.into_boxed_c_str());
            names.push((name, text));
            text.as_ptr()
        }
        Err(_) => c"".as_ptr(),
    }
}
