//! Reads arbitrary bytes as a `.safetensors` file with any tensor name. The result is a tensor whose number of elements
//! matches its shape, or a typed error. Writing a new tensor leaves the other tensors of the file unchanged.
#![no_main]

use elsa_files::safetensors::{self, Directory};
use elsa_files::{Format, Stored};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

fuzz_target!(|bytes: &[u8]| {
    const NAMES: [&str; 5] = ["q", "k", "m", "", "__metadata__"];
    for name in NAMES {
        elsa_fuzz::reads(bytes, Format::Safetensors, Some(name));
    }
    let Ok(directory) = Directory::read(&mut &bytes[..], bytes.len() as u64) else { return };
    let mut again = Vec::new();
    let new = ("new", Stored::U8, &[3][..], &[1, 2, 3][..]);
    safetensors::write(&mut again, Some((&directory, Cursor::new(bytes))), &[new]).expect("a file");
    let both = Directory::read(&mut &again[..], again.len() as u64).expect("a header");
    let data = |bytes: &[u8], directory: &Directory, name: &str| {
        let (header, start) = directory.find(name).ok()?;
        Some((bytes[start as usize..][..header.bytes].to_vec(), header))
    };
    for name in NAMES {
        assert_eq!(data(bytes, &directory, name), data(&again, &both, name));
    }
    assert_eq!(data(&again, &both, "new").map(|(bytes, _)| bytes), Some(vec![1, 2, 3]));
});
