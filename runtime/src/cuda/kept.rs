//! Keeps the lists of launches of calls on device tensors, because the same calls return: the layers of a model call an
//! operator with equal shapes over tensors at addresses that an allocator chooses.
//!
//! The caller of a call chooses its key, which contains the addresses of the tensors. A call with the key of a kept list needs
//! no check of its tensors and no new list, and neither does a call whose key differs in addresses only: the list then gets the
//! new ones. Which words of a list depend on a tensor's address is found by building the list a second time, with other
//! addresses. When all places are in use, a new list replaces the oldest one.

use super::launch::Launches;

/// Number of lists that a workspace keeps.
const PLACES: usize = 128;

/// Bytes that stand for a plan, the tensors of a call and its lengths, in parts. Addresses are whole words of eight bytes.
pub type Key<'a> = &'a [&'a [u8]];

/// Number of a place.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// A tensor of a call, whose address may be another one in the next call.
#[derive(Clone, Copy, Debug)]
pub struct Movable {
    /// Device address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: usize,
    /// `true` if the call writes the tensor.
    pub written: bool,
}

/// Position of an address in a key: its part, the first byte in that part, and the first byte in all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    part: usize,
    offset: usize,
    at: usize,
}

impl Spot {
    /// Returns the address in another key; zero if the key is shorter.
    fn of(self, key: Key<'_>) -> u64 {
        key.get(self.part).map_or(0, |part| word(part, self.offset))
    }
}

/// The parts of a key and of a list that depend on the addresses of tensors.
#[derive(Debug)]
pub struct Moves {
    /// Where the address of each tensor is in the key.
    tensors: Vec<(Spot, Movable)>,
    /// Words of the list, each with the tensor to whose address it is relative.
    words: Vec<(usize, usize)>,
}

/// A list and its key. The list of the last call is absent.
#[derive(Debug, Default)]
struct Entry {
    key: Vec<u8>,
    list: Option<Launches>,
    /// `None` if the list is only for calls with the same addresses.
    moves: Option<Moves>,
}

/// The lists that a workspace keeps.
///
/// Invariant *valid*: the addresses in every list are those of the tensors that its key stands for, and of memory of the
/// workspace that has not been freed.
#[derive(Debug, Default)]
pub struct Kept {
    /// The first word of the key of each entry whose list may get other addresses, and a hash of each other key. A search
    /// reads these numbers, and the keys of entries with an equal number.
    tags: Vec<u64>,
    entries: Vec<Entry>,
    /// The place of the oldest entry, if all places are in use.
    oldest: usize,
}

/// Alignment that the old and the new address of a tensor have in common.
const ALIGNMENT: u64 = 256;

/// Largest number of tensors of a list that may get other addresses.
const MOST_TENSORS: usize = 16;

/// Returns the word that begins at byte `at`; zero if `bytes` ends before the word does.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Returns the first word of a key.
fn first(key: Key<'_>) -> u64 {
    key.first().map_or(0, |part| word(part, 0))
}

/// Returns a hash of the whole words of a key's parts.
fn hash(key: Key<'_>) -> u64 {
    let mut hash = 0_u64;
    for part in key {
        for word in part.as_chunks().0 {
            hash = (hash.rotate_left(5) ^ u64::from_ne_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    hash
}

/// Returns the only position of a word in a key; `None` if the key does not have the word or has it twice.
fn only(key: Key<'_>, wanted: u64) -> Option<Spot> {
    let (mut found, mut begin) = (None, 0);
    for (part, bytes) in key.iter().enumerate() {
        for offset in (0..bytes.len() / 8 * 8).step_by(8).filter(|offset| word(bytes, *offset) == wanted) {
            if found.replace(Spot { part, offset, at: begin + offset }).is_some() {
                return None;
            }
        }
        begin += bytes.len();
    }
    found
}

/// Returns the distance by which tensor `i` moves when the words of a list are found. No sum or difference of distances is
/// another one.
fn distance(i: usize) -> u64 {
    3_u64.pow(i as u32) << 36
}

impl Moves {
    /// Finds the parts of `key` and of `list` that depend on the addresses of `tensors`. `build` returns the list of the call
    /// with other addresses. Returns `None` if the address of a tensor is not one word of the key, or if a word of the list does
    /// not have a fixed distance from one address.
    pub fn of(
        key: Key<'_>,
        tensors: &[Movable],
        list: &Launches,
        build: impl FnOnce(&[u64]) -> Option<Launches>,
    ) -> Option<Moves> {
        if tensors.len() > MOST_TENSORS {
            return None;
        }
        let spots = tensors.iter().map(|tensor| Some((only(key, tensor.address)?, *tensor)));
        let found = spots.collect::<Option<Vec<_>>>()?;
        // The first word finds the entry, and two tensors at one address are one word.
        let twice = |i: usize| found[..i].iter().any(|(spot, _)| *spot == found[i].0);
        if (0..found.len()).any(|i| twice(i) || found[i].0.at == 0) {
            return None;
        }
        let distances: Vec<u64> = (0..found.len()).map(distance).collect();
        let moved = tensors.iter().zip(&distances).map(|(tensor, by)| tensor.address.wrapping_add(*by));
        let other = build(&moved.collect::<Vec<_>>())?;
        if !list.is_like(&other) {
            return None;
        }
        let mut words = Vec::new();
        for (word, (a, b)) in list.words().iter().zip(other.words()).enumerate() {
            if a != b {
                let by = b.wrapping_sub(*a);
                words.push((distances.iter().position(|distance| *distance == by)?, word));
            }
        }
        Some(Moves { tensors: found, words })
    }

    /// Returns `true` if a call with the addresses `old` may have the addresses `new` instead: they have the same alignment, and
    /// no tensor overlaps one that the call writes.
    fn accepts(&self, old: &[u64], new: &[u64]) -> bool {
        let end = |i: usize| new[i].saturating_add(self.tensors[i].1.bytes as u64);
        let apart = |a: usize, b: usize| {
            !(self.tensors[a].1.written || self.tensors[b].1.written) || end(a) <= new[b] || end(b) <= new[a]
        };
        let aligned = |(old, new): (&u64, &u64)| *new != 0 && (old ^ new).is_multiple_of(ALIGNMENT);
        old.iter().zip(new).all(aligned) && (0..new.len()).all(|a| (0..a).all(|b| apart(a, b)))
    }
}

impl Entry {
    /// Returns `true` if the entry has this key.
    fn has(&self, key: Key<'_>) -> bool {
        let mut rest = self.key.as_slice();
        let begins = key.iter().all(|part| match rest.strip_prefix(*part) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        });
        begins && rest.is_empty()
    }

    /// Gives the entry the key `key`, and its list the addresses in it. Returns `false` if the entry cannot serve this key.
    fn serve(&mut self, key: Key<'_>) -> bool {
        if self.list.is_none() || self.has(key) {
            return self.list.is_some();
        }
        let Some(moves) = self.moves.take() else { return false };
        let [mut old, mut new] = [[0; MOST_TENSORS]; 2];
        let count = moves.tensors.len();
        for (((spot, _), old), new) in moves.tensors.iter().zip(&mut old).zip(&mut new) {
            (*old, *new) = (word(&self.key, spot.at), spot.of(key));
        }
        let (old, new) = (&old[..count], &new[..count]);
        self.set(&moves, new);
        let serves = self.has(key) && moves.accepts(old, new);
        if !serves {
            self.set(&moves, old);
        } else if let Some(list) = &mut self.list {
            let words = list.words_mut();
            for (tensor, word) in &moves.words {
                words[*word] = words[*word].wrapping_add(new[*tensor].wrapping_sub(old[*tensor]));
            }
        }
        self.moves = Some(moves);
        serves
    }

    /// Sets the addresses in the key.
    fn set(&mut self, moves: &Moves, addresses: &[u64]) {
        for ((spot, _), address) in moves.tensors.iter().zip(addresses) {
            self.key[spot.at..spot.at + 8].copy_from_slice(&address.to_ne_bytes());
        }
    }
}

impl Kept {
    /// Takes the list of a call with this key, if one is kept.
    pub fn take(&mut self, key: Key<'_>) -> Option<(Place, Launches)> {
        if self.entries.is_empty() {
            return None;
        }
        let mut of = |tag: u64| {
            let mut equal =
                self.tags.iter().zip(&mut self.entries).enumerate().filter(|(_, (kept, _))| **kept == tag);
            equal.find_map(
                |(place, (_, entry))| {
                    if entry.serve(key) { Some((Place(place), entry.list.take()?)) } else { None }
                },
            )
        };
        of(first(key)).or_else(|| of(hash(key)))
    }

    /// Reserves a place for a list with this key. Returns `None` if memory is not available; the list is then not kept.
    pub fn reserve(&mut self, key: Key<'_>, moves: Option<Moves>) -> Option<Place> {
        let tag = if moves.is_some() { first(key) } else { hash(key) };
        let mut tags = self.tags.iter().zip(&self.entries);
        let equal = tags.position(|(kept, entry)| *kept == tag && entry.has(key));
        let place =
            equal.unwrap_or(if self.entries.len() < PLACES { self.entries.len() } else { self.oldest });
        if place == self.entries.len() {
            self.entries.try_reserve(1).ok()?;
            self.tags.try_reserve(1).ok()?;
            self.entries.push(Entry::default());
            self.tags.push(tag);
        } else if equal.is_none() {
            self.oldest = (place + 1) % PLACES;
        }
        let entry = self.entries.get_mut(place)?;
        entry.list = None;
        entry.key.clear();
        entry.moves = moves;
        *self.tags.get_mut(place)? = tag;
        entry.key.try_reserve(key.iter().map(|part| part.len()).sum()).ok()?;
        key.iter().for_each(|part| entry.key.extend_from_slice(part));
        Some(Place(place))
    }

    /// Puts a list into its place.
    pub fn put(&mut self, Place(place): Place, list: Launches) {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.list = Some(list);
        }
    }

    /// Drops all lists. A workspace calls this function before it frees memory that lists may use.
    pub fn clear(&mut self) {
        *self = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_kernels::cuda::attention::PresentArgs;
    use elsa_kernels::cuda::tensor::DeviceTensor;

    /// Returns a list that shares its work among `blocks` blocks.
    fn list(blocks: usize) -> Launches {
        let mut list = Launches::default();
        list.shared_by(blocks);
        list
    }

    #[test]
    fn a_key_finds_its_own_list_only() {
        let mut kept = Kept::default();
        let numbers: Vec<[u8; 8]> = (0..3 * PLACES as u64 + 5).map(u64::to_ne_bytes).collect();
        assert!(kept.take(&[&numbers[0]]).is_none());
        for (n, number) in numbers.iter().enumerate() {
            let place = kept.reserve(&[b"a plan..", number], None).unwrap();
            // Another call with this key finds nothing before the first one has put its list back.
            assert!(kept.take(&[b"a plan..", number]).is_none());
            kept.put(place, list(n));
            let (place, found) = kept.take(&[b"a plan..", number]).unwrap();
            assert_eq!(found.blocks(), n);
            kept.put(place, found);
        }
        // The oldest lists were replaced.
        let first_kept = numbers.len() - PLACES;
        for (n, number) in numbers.iter().enumerate() {
            let key: Key<'_> = &[b"a plan..", number];
            let found = kept.take(key);
            assert_eq!(found.as_ref().map(|(_, list)| list.blocks()), (n >= first_kept).then_some(n));
            found.into_iter().for_each(|(place, list)| kept.put(place, list));
            for other in
                [&[b"b plan..".as_slice(), number] as Key<'_>, &[number], &[b"a plan..", number, number]]
            {
                assert!(kept.take(other).is_none());
            }
        }
        kept.clear();
        assert!(numbers.iter().all(|number| kept.take(&[b"a plan..", number]).is_none()));
    }

    /// Returns the list of a call with the parameter `parameter(addresses)`.
    fn built(parameter: impl Fn(&[u64]) -> PresentArgs, addresses: &[u64]) -> Launches {
        let mut list = list(1);
        list.store(&parameter(addresses)).unwrap();
        list
    }

    /// Returns a key: two numbers and addresses.
    fn key(addresses: &[u64]) -> Vec<u8> {
        [&[7, 1 << 40], addresses].concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_list_gets_the_addresses_of_a_call_that_differs_in_nothing_else() {
        const BASE: u64 = 0x7f00_0000_0000;
        let at = |data| DeviceTensor { data, token: 3, ..DeviceTensor::default() };
        // The last field holds an address before the second tensor.
        let parameter = |x: &[u64]| {
            let present = PresentArgs {
                past: at(x[0]),
                fresh: at(x[1] - 4096),
                present: at(x[2]),
                ..PresentArgs::default()
            };
            PresentArgs { dim: 5, ..present }
        };
        let call = |x: [u64; 3]| {
            let tensor = |(i, address)| Movable { address, bytes: 1024, written: i == 2 };
            let tensors: Vec<_> = (0..).zip(x).map(tensor).collect();
            let list = built(parameter, &x);
            let moves = Moves::of(&[&key(&x)], &tensors, &list, |other| Some(built(parameter, other)));
            (list, moves)
        };
        let first = [BASE, BASE + 0x1_0000, BASE + 0x2_0000];
        let (list, moves) = call(first);
        assert!(moves.is_some());
        let mut kept = Kept::default();
        let place = kept.reserve(&[&key(&first)], moves).unwrap();
        kept.put(place, list);
        let mut is_served = |x: [u64; 3]| {
            let key = key(&x);
            let Some((place, list)) = kept.take(&[&key]) else { return false };
            assert_eq!(list.words(), built(parameter, &x).words());
            kept.put(place, list);
            true
        };
        // Other addresses, and tensors that change places or are the same.
        let [a, b, c] = first;
        for x in [first, [a + 256, b + 512, c + 1024], [c, a, b], [b, b, c], [a, a + 512, a + 2048], first] {
            assert!(is_served(x), "{x:x?}");
        }
        // An output that overlaps an input, other alignments, and addresses that are null.
        for x in [[a, b, a + 768], [a, b, b], [a + 4, b, c], [a, b + 128, c], [0, b, c]] {
            assert!(!is_served(x), "{x:x?}");
        }
        // Another number that may be an address, and a number that is none.
        for numbers in [[7, (1 << 40) + 256], [8, 1 << 40]] {
            let key: Vec<u8> = [&numbers[..], &first].concat().iter().flat_map(|x| x.to_ne_bytes()).collect();
            assert!(kept.take(&[&key]).is_none());
        }
        // Tensors at one address, an address that is not in the key, and words that depend on two addresses.
        assert!(call([a, a, c]).1.is_none());
        let tensors = first.map(|address| Movable { address, bytes: 8, written: false });
        let list = built(parameter, &first);
        assert!(Moves::of(&[&key(&first[..2])], &tensors, &list, |x| Some(built(parameter, x))).is_none());
        let both = |x: &[u64]| PresentArgs { past: at(x[0].wrapping_sub(x[1])), ..PresentArgs::default() };
        let list = built(both, &first);
        assert!(Moves::of(&[&key(&first)], &tensors, &list, |x| Some(built(both, x))).is_none());
    }
}
