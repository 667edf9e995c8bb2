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

/// Bytes that stand for a plan, the tensors of a call and its lengths, in parts of whole words. A call is not kept if a part has
/// other bytes.
pub type Key<'a> = &'a [&'a [u8]];

/// Number of a place.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// A tensor of a call.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// Device address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: usize,
    /// `true` if the call writes the tensor.
    pub written: bool,
}

/// The words of a key and of a list that depend on the addresses of tensors.
#[derive(Debug)]
pub struct Moves {
    /// The word of the key that is the address of each tensor, and the tensor.
    tensors: Vec<(usize, Tensor)>,
    /// Words of the list, each with the tensor to whose address it is relative.
    words: Vec<(usize, usize)>,
}

/// A list and its key. The list of the last call is absent.
#[derive(Debug, Default)]
struct Entry {
    key: Vec<u64>,
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
    /// Hash of the key of each entry. A search reads these numbers, and the keys of entries with an equal hash.
    hashes: Vec<u64>,
    entries: Vec<Entry>,
    /// The place of the oldest entry, if all places are in use.
    oldest: usize,
}

/// Alignment that the addresses of a tensor have in common if the lists of calls differ in nothing else.
const ALIGNMENT: u64 = 256;

/// Largest number of words of a key; a call with a longer key is not kept.
const MOST_WORDS: usize = 192;

/// Returns `true` if the parts of a key are whole words.
fn is_whole(key: Key<'_>) -> bool {
    key.iter().all(|part| part.len().is_multiple_of(size_of::<u64>()))
}

/// Returns the words of a key.
fn words<'a>(key: Key<'a>) -> impl Iterator<Item = u64> + Clone + 'a {
    key.iter().flat_map(|part| part.as_chunks().0).map(|word| u64::from_ne_bytes(*word))
}

/// Returns `true` if a word may be a device address. No smaller number is one.
fn may_be_address(word: u64) -> bool {
    word >> 32 != 0
}

/// Returns a hash of words. If `moves`, words that may be addresses count only by their alignment.
fn hash(words: impl Iterator<Item = u64>, moves: bool) -> u64 {
    let word = |x: u64| if moves && may_be_address(x) { 1 << 63 | x % ALIGNMENT } else { x };
    words.fold(0, |hash: u64, x| (hash.rotate_left(5) ^ word(x)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Largest number of tensors whose distances are numbers of 64 bits.
const MOST_TENSORS: usize = 16;

/// Returns the distance by which tensor `i` moves when the words of a list are found. No sum or difference of distances is
/// another one.
fn distance(i: usize) -> u64 {
    3_u64.pow(i as u32) << 36
}

impl Moves {
    /// Finds the words of `key` and of `list` that depend on the addresses of `tensors`. `build` returns the list of the call
    /// with other addresses. Returns `None` if the address of a tensor is not one word of the key, or if a word of the list does
    /// not have a fixed distance from one address.
    pub fn of(
        key: Key<'_>,
        tensors: &[Tensor],
        list: &Launches,
        build: impl FnOnce(&[u64]) -> Option<Launches>,
    ) -> Option<Moves> {
        if tensors.len() > MOST_TENSORS {
            return None;
        }
        let mut found = Vec::new();
        for tensor in tensors {
            let mut equal = words(key).enumerate().filter(|(_, word)| *word == tensor.address);
            let (word, _) = equal.next().filter(|_| may_be_address(tensor.address))?;
            if equal.next().is_some() || found.iter().any(|(other, _)| *other == word) {
                return None;
            }
            found.push((word, *tensor));
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

    /// Returns `true` if a call may have the new addresses `at` instead: they have the same alignment, and no tensor overlaps one
    /// that the call writes.
    fn accepts(&self, key: &[u64], at: impl Fn(usize) -> u64) -> bool {
        let aligned = |(word, _): &(usize, Tensor)| {
            at(*word) != 0 && key.get(*word).is_some_and(|old| (old ^ at(*word)).is_multiple_of(ALIGNMENT))
        };
        let overlap = |(a, x): &(usize, Tensor), (b, y): &(usize, Tensor)| {
            at(*a) < at(*b).saturating_add(y.bytes as u64) && at(*b) < at(*a).saturating_add(x.bytes as u64)
        };
        self.tensors.iter().all(aligned)
            && self.tensors.iter().enumerate().all(|(i, a)| {
                self.tensors[..i].iter().all(|b| !(a.1.written || b.1.written) || !overlap(a, b))
            })
    }
}

impl Entry {
    /// Gives the entry the key `new`, and its list the addresses in it. Returns `false` if the entry does not serve this key.
    fn serve(&mut self, new: &[u64]) -> bool {
        if self.key == new {
            return self.list.is_some();
        }
        let (Some(moves), Some(list)) = (&self.moves, &mut self.list) else { return false };
        if self.key.len() != new.len() {
            return false;
        }
        let mut others = self.key.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
        let all = others.all(|(word, _)| moves.tensors.iter().any(|(moved, _)| *moved == word));
        if !all || !moves.accepts(&self.key, |word| new[word]) {
            return false;
        }
        let words = list.words_mut();
        for (tensor, word) in &moves.words {
            let (at, _) = moves.tensors[*tensor];
            words[*word] = words[*word].wrapping_add(new[at].wrapping_sub(self.key[at]));
        }
        self.key.copy_from_slice(new);
        true
    }
}

impl Kept {
    /// Takes the list of a call with this key, if one is kept.
    pub fn take(&mut self, key: Key<'_>) -> Option<(Place, Launches)> {
        if self.entries.is_empty() || !is_whole(key) {
            return None;
        }
        let mut new = [0; MOST_WORDS];
        let count = words(key).zip(&mut new).map(|(word, to)| *to = word).count();
        let new = new.get(..count).filter(|_| words(key).nth(count).is_none())?;
        let [moves, exact] = [true, false].map(|moves| hash(new.iter().copied(), moves));
        let places = self.hashes.iter().zip(&mut self.entries).enumerate();
        let mut equal = places.filter(|(_, (hash, _))| **hash == moves || **hash == exact);
        let (place, (_, entry)) =
            equal.find_map(|(place, (hash, entry))| entry.serve(new).then_some((place, (hash, entry))))?;
        Some((Place(place), entry.list.take()?))
    }

    /// Reserves a place for a list with this key. Returns `None` if memory is not available or the key has other bytes than whole
    /// words; the list is then not kept.
    pub fn reserve(&mut self, key: Key<'_>, moves: Option<Moves>) -> Option<Place> {
        let count = words(key).count();
        if !is_whole(key) || count > MOST_WORDS {
            return None;
        }
        let hash = hash(words(key), moves.is_some());
        let same = |(kept, entry): (&u64, &Entry)| *kept == hash && entry.key.iter().copied().eq(words(key));
        let equal = self.hashes.iter().zip(&self.entries).position(same);
        let place =
            equal.unwrap_or(if self.entries.len() < PLACES { self.entries.len() } else { self.oldest });
        if place == self.entries.len() {
            self.entries.try_reserve(1).ok()?;
            self.hashes.try_reserve(1).ok()?;
            self.entries.push(Entry::default());
            self.hashes.push(hash);
        } else if equal.is_none() {
            self.oldest = (place + 1) % PLACES;
        }
        let entry = self.entries.get_mut(place)?;
        entry.list = None;
        entry.key.clear();
        entry.moves = moves;
        *self.hashes.get_mut(place)? = hash;
        entry.key.try_reserve(count).ok()?;
        entry.key.extend(words(key));
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
            let tensor = |(i, address)| Tensor { address, bytes: 1024, written: i == 2 };
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
        for x in [[a, b, a + 768], [a, b, b], [a + 4, b, c], [a, b + 128, c], [0, b, c], [a, b, 256]] {
            assert!(!is_served(x), "{x:x?}");
        }
        // Another number that may be an address, and a number that is none.
        for numbers in [[7, (1 << 40) + 256], [8, 1 << 40]] {
            let key: Vec<u8> = [&numbers[..], &first].concat().iter().flat_map(|x| x.to_ne_bytes()).collect();
            assert!(kept.take(&[&key]).is_none());
        }
        // Tensors at one address, an address that is not in the key, and words that depend on two addresses.
        assert!(call([a, a, c]).1.is_none());
        let tensors = first.map(|address| Tensor { address, bytes: 8, written: false });
        let list = built(parameter, &first);
        assert!(Moves::of(&[&key(&first[..2])], &tensors, &list, |x| Some(built(parameter, x))).is_none());
        let both = |x: &[u64]| PresentArgs { past: at(x[0].wrapping_sub(x[1])), ..PresentArgs::default() };
        let list = built(both, &first);
        assert!(Moves::of(&[&key(&first)], &tensors, &list, |x| Some(built(both, x))).is_none());
    }
}
