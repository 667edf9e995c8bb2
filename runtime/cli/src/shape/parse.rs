//! Parser of shapes in the notation of the command line.

use super::form::{ALIGNMENTS, MaskForm, Shape};
use elsa_core::attention::{Window, Windows};
use std::str::FromStr;

/// Placeholder for a shape in help texts.
pub const VALUE: &str = "B,H,NQ,NK,D[,...]";

/// Help text of the parts of a shape after its five sizes.
pub const HELP: &str = "\
A shape is B,H,NQ,NK,D: sequences, heads, query and key tokens, head size. Options follow in any order:
  kv=HK           key heads, which divide H
  causal          query i attends keys j <= i; with causal=bottom-right, keys j <= i + NK - NQ
  window=L:R      query i attends keys from L before to R after its diagonal, -1 is open; the
                  diagonal is that of causal, without causal that of bottom-right
  mask=bool       [B,H,NQ,NK], four of five pairs attended; mask=true: the same, and all of them
  mask=padding    bool [B,1,1,NK]: the first keys of each sequence, fewer in each next one
  mask=float      [B,H,NQ,NK], added to the scores; mask=bias: [1,H,NQ,NK]; mask=batch: [B,1,NQ,NK];
                  mask=row: [B,1,1,NK]
  swin=HxW[:S]    the sequences are square windows of NQ = NK tokens, of pictures of H x W tokens
                  shifted by S rows and columns; a table of relative positions is added to the
                  scores
  packed=MIN      the sequences have MIN to NQ = NK tokens and are packed; without mask and swin
Examples are 1,12,197,197,64,mask=float or 1,32,512,512,128,kv=8,causal or 64,3,49,49,32,swin=56x56:3.";

/// Names of the five sizes, in their order.
const SIZES: [&str; 5] = ["B", "H", "NQ", "NK", "D"];

const PARTS: &str = "kv=HK, causal, window=L:R, mask=FORM, swin=HxW[:S], packed=MIN";

/// Formats the message that refuses a part of a shape.
fn refused(part: &str, found: &str, allowed: &str) -> String {
    format!("{part}: {found}; allowed: {allowed}")
}

/// Parses a positive integer.
fn size(part: &str, text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| *size > 0);
    size.ok_or_else(|| refused(part, &format!("'{text}'"), "a whole number from 1"))
}

/// Parses the length of the shortest packed sequence of `shape`. `found` is the text of the part, for messages.
fn packed(shape: &Shape, value: Option<&str>, found: &str) -> Result<usize, String> {
    let shortest = size("packed", value.unwrap_or_default())?;
    if shape.queries != shape.keys {
        let found = format!("{} query and {} key tokens", shape.queries, shape.keys);
        return Err(refused("packed", &found, "NQ = NK, the longest sequence"));
    }
    if shortest > shape.queries {
        let allowed = format!("at most NQ = NK = {}, the longest sequence", shape.queries);
        return Err(refused("packed", found, &allowed));
    }
    // The tokens of all sequences are on one axis, whose length must fit into 64 bits.
    if shape.batch.checked_mul(shape.queries).is_none_or(|total| i64::try_from(total).is_err()) {
        let found = format!("{} sequences", shape.batch);
        return Err(refused("packed", &found, "as many as 64 bits count the tokens of"));
    }
    let given = [("mask", shape.mask.is_some()), ("swin", shape.windows.is_some())];
    match given.iter().find(|(_, given)| *given) {
        Some((part, _)) => Err(refused("packed", &format!("given with {part}"), "one of the two")),
        None => Ok(shortest),
    }
}

/// Parses the two sides of a window, `L:R`; −1 means an open side.
fn window(text: &str) -> Option<Window> {
    let side = |text: &str| match text {
        "-1" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let (left, right) = text.split_once(':')?;
    let window = Window { left: side(left)?, right: side(right)? };
    (window != Window::default()).then_some(window)
}

/// Parses `HxW[:S]`: the size of the picture whose square windows are the sequences of `shape`, and the shift. `found`
/// is the text of the part, for messages.
fn windows(shape: &Shape, value: Option<&str>, found: &str) -> Result<Windows, String> {
    let refused = |found: String, allowed: String| Err(refused("swin", &found, &allowed));
    let sizes = |text: &str| {
        let (picture, shift) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let (h, w) = picture.split_once('x')?;
        let shift: usize = shift.map_or(Some(0), |shift| shift.parse().ok())?;
        Some(([h.parse().ok()?, w.parse().ok()?], shift)).filter(|([h, w], _)| *h > 0 && *w > 0)
    };
    let Some((picture, shift)) = value.and_then(sizes) else {
        return refused(found.to_owned(), "HxW or HxW:S, whole numbers, H and W from 1".to_owned());
    };
    let [h, w]: [usize; 2] = picture;
    let side = shape.queries.isqrt();
    if side * side != shape.queries || shape.keys != shape.queries {
        let found = format!("windows of {} query and {} key tokens", shape.queries, shape.keys);
        return refused(found, "NQ = NK, a square number".to_owned());
    }
    if !h.is_multiple_of(side) || !w.is_multiple_of(side) {
        return refused(format!("a picture of {h}x{w}"), format!("multiples of the windows' side, {side}"));
    }
    if shift >= side {
        return refused(format!("a shift of {shift}"), format!("less than the windows' side, {side}"));
    }
    let windows = Windows { picture, size: [side; 2], shift: [shift; 2] };
    let count = (h / side).saturating_mul(w / side);
    if !shape.batch.is_multiple_of(count) {
        return refused(
            format!("{} sequences", shape.batch),
            format!("a multiple of the {count} windows of a picture"),
        );
    }
    let given = [("causal", shape.causal.is_some()), ("window", shape.window != Window::default())];
    match given.iter().find(|(_, given)| *given) {
        Some((part, _)) => refused(format!("given with {part}"), "one of the two".to_owned()),
        None => Ok(windows),
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let mut words = text.split(',');
        let mut sizes = [0; 5];
        for (name, slot) in SIZES.into_iter().zip(&mut sizes) {
            let word =
                words.next().ok_or_else(|| refused(name, "missing", "B,H,NQ,NK,D, whole numbers from 1"))?;
            *slot = size(name, word)?;
        }
        let [batch, heads, queries, keys, dim] = sizes;
        let mut shape = Shape::plain(batch, heads, queries, keys, dim);
        let mut given: Vec<&str> = Vec::new();
        let (mut swin, mut short) = (None, None);
        for word in words {
            let (part, value) =
                word.split_once('=').map_or((word, None), |(part, value)| (part, Some(value)));
            if given.contains(&part) {
                return Err(refused(part, "given twice", "once"));
            }
            given.push(part);
            let found = value.map_or_else(|| "no value".to_owned(), |value| format!("'{value}'"));
            match (part, value) {
                ("kv", value) => {
                    shape.kv_heads = size(part, value.unwrap_or_default())?;
                    if !heads.is_multiple_of(shape.kv_heads) {
                        return Err(refused(part, &found, &format!("a divisor of the {heads} heads")));
                    }
                }
                ("causal", None) => shape.causal = Some(ALIGNMENTS[0].1),
                ("causal", Some(value)) => {
                    let alignment = ALIGNMENTS.iter().find(|(name, _)| *name == value);
                    let names = ALIGNMENTS.map(|(name, _)| name).join(", ");
                    shape.causal = Some(alignment.ok_or_else(|| refused(part, &found, &names))?.1);
                }
                ("window", value) => {
                    const ALLOWED: &str = "L:R, whole numbers not below -1, one of them above";
                    let window = value.and_then(window);
                    shape.window = window.ok_or_else(|| refused(part, &found, ALLOWED))?;
                }
                ("mask", value) => {
                    let mask = MaskForm::ALL.into_iter().find(|(name, _)| Some(*name) == value);
                    let names = MaskForm::ALL.map(|(name, _)| name).join(", ");
                    shape.mask = Some(mask.ok_or_else(|| refused(part, &found, &names))?.1);
                }
                ("swin", value) => swin = Some((value, found)),
                ("packed", value) => short = Some((value, found)),
                _ => return Err(refused("part", &format!("'{word}'"), PARTS)),
            }
        }
        // These parts are checked last, because they exclude other parts.
        shape.windows = swin.map(|(value, found)| windows(&shape, value, &found)).transpose()?;
        shape.packed = short.map(|(value, found)| packed(&shape, value, &found)).transpose()?;
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::Alignment;

    #[test]
    fn shapes_are_written_as_they_are_read() {
        let plain = Shape::plain(1, 2, 3, 4, 5);
        assert_eq!("1,2,3,4,5".parse(), Ok(plain));
        let whole = Shape {
            kv_heads: 4,
            causal: Some(Alignment::BottomRight),
            window: Window { left: Some(128), right: None },
            mask: Some(MaskForm::Padding),
            ..Shape::plain(2, 8, 3, 4, 5)
        };
        let text = "2,8,3,4,5,kv=4,causal=bottom-right,window=128:-1,mask=padding";
        assert_eq!((text.parse(), whole.to_string()), (Ok(whole), text.to_owned()));
        let turned = "2,8,3,4,5,mask=padding,window=128:-1,causal=bottom-right,kv=4";
        assert_eq!(turned.parse(), Ok(whole));
        let causal = Shape { causal: Some(Alignment::TopLeft), ..plain };
        for text in ["1,2,3,4,5,causal", "1,2,3,4,5,causal=top-left", "1,2,3,4,5,causal,kv=2"] {
            assert_eq!(text.parse(), Ok(causal), "{text}");
        }
        assert_eq!(causal.to_string(), "1,2,3,4,5,causal");
        for (_, mask) in MaskForm::ALL {
            let shape = Shape { mask: Some(mask), ..plain };
            assert_eq!(shape.to_string().parse(), Ok(shape));
            assert!(HELP.contains(&format!("mask={}", mask.name())), "{mask:?}");
        }
        for (text, shift) in [("128,3,49,49,32,swin=56x56:3", 3), ("64,3,49,49,32,mask=bias,swin=56x56", 0)] {
            let shape: Shape = text.parse().unwrap();
            let windows = Windows { picture: [56; 2], size: [7; 2], shift: [shift; 2] };
            assert_eq!((shape.windows, shape.to_string()), (Some(windows), text.to_owned()));
        }
        assert_eq!(
            "8,1,16,16,8,swin=16x8:0".parse().map(|shape: Shape| shape.to_string()),
            Ok("8,1,16,16,8,swin=16x8".to_owned())
        );
        assert_eq!(format!("{plain:>11}|{plain:<11}|"), "  1,2,3,4,5|1,2,3,4,5  |");
    }

    #[test]
    fn every_refusal_names_the_part() {
        for (text, message) in [
            ("", "B: ''; allowed: a whole number from 1"),
            ("1,2,3,4", "D: missing; allowed: B,H,NQ,NK,D, whole numbers from 1"),
            ("1,0,3,4,5", "H: '0'; allowed: a whole number from 1"),
            ("1,2,x,4,5", "NQ: 'x'; allowed: a whole number from 1"),
            ("1,2,3,-4,5", "NK: '-4'; allowed: a whole number from 1"),
            ("1,2,3,4,99999999999999999999", "D: '99999999999999999999'; allowed: a whole number from 1"),
            (
                "1,2,3,4,5,6",
                "part: '6'; allowed: kv=HK, causal, window=L:R, mask=FORM, swin=HxW[:S], packed=MIN",
            ),
            ("1,2,3,4,5,", "part: ''; allowed: kv=HK, causal, "),
            ("1,2,3,4,5,masks=bool", "part: 'masks=bool'; allowed: kv=HK, causal, "),
            ("1,2,3,4,5,kv", "kv: ''; allowed: a whole number from 1"),
            ("1,2,3,4,5,kv=0", "kv: '0'; allowed: a whole number from 1"),
            ("1,12,3,4,5,kv=5", "kv: '5'; allowed: a divisor of the 12 heads"),
            ("1,12,3,4,5,kv=24", "kv: '24'; allowed: a divisor of the 12 heads"),
            ("1,2,3,4,5,causal=left", "causal: 'left'; allowed: top-left, bottom-right"),
            ("1,2,3,4,5,causal,causal=top-left", "causal: given twice; allowed: once"),
            ("1,2,3,4,5,window", "window: no value; allowed: L:R, whole numbers not below -1"),
            ("1,2,3,4,5,window=3", "window: '3'; allowed: L:R"),
            ("1,2,3,4,5,window=-2:0", "window: '-2:0'; allowed: L:R"),
            ("1,2,3,4,5,window=-1:-1", "window: '-1:-1'; allowed: L:R"),
            ("1,2,3,4,5,mask", "mask: no value; allowed: bool, true, padding, float, bias, batch, row"),
            ("1,2,3,4,5,mask=flot", "mask: 'flot'; allowed: bool, true, padding"),
            ("4,1,16,16,8,swin", "swin: no value; allowed: HxW or HxW:S, whole numbers, H and W from 1"),
            ("4,1,16,16,8,swin=8", "swin: '8'; allowed: HxW or HxW:S"),
            ("4,1,16,16,8,swin=8x0", "swin: '8x0'; allowed: HxW or HxW:S"),
            ("4,1,16,16,8,swin=8x8:-1", "swin: '8x8:-1'; allowed: HxW or HxW:S"),
            (
                "4,1,15,15,8,swin=8x8",
                "swin: windows of 15 query and 15 key tokens; allowed: NQ = NK, a square number",
            ),
            ("4,1,16,25,8,swin=8x8", "swin: windows of 16 query and 25 key tokens; allowed: NQ = NK"),
            ("4,1,16,16,8,swin=8x10", "swin: a picture of 8x10; allowed: multiples of the windows' side, 4"),
            ("4,1,16,16,8,swin=8x8:4", "swin: a shift of 4; allowed: less than the windows' side, 4"),
            ("6,1,16,16,8,swin=8x8", "swin: 6 sequences; allowed: a multiple of the 4 windows of a picture"),
            ("4,1,16,16,8,swin=8x8,causal", "swin: given with causal; allowed: one of the two"),
            ("4,1,16,16,8,window=1:1,swin=8x8", "swin: given with window; allowed: one of the two"),
            ("1,2,3,4,5,mask=bool,mask=bool", "mask: given twice; allowed: once"),
            ("4,2,9,9,5,packed", "packed: ''; allowed: a whole number from 1"),
            ("4,2,9,9,5,packed=10", "packed: '10'; allowed: at most NQ = NK = 9"),
            ("4,2,9,8,5,packed=3", "packed: 9 query and 8 key tokens; allowed: NQ = NK"),
            ("4,2,9,9,5,mask=row,packed=3", "packed: given with mask; allowed: one of the two"),
            (
                "9223372036854775807,1,2,2,1,packed=1",
                "packed: 9223372036854775807 sequences; allowed: as many as 64 bits count",
            ),
        ] {
            let refused = text.parse::<Shape>().expect_err(text);
            assert!(refused.starts_with(message), "{text}: {refused}");
        }
    }
}
