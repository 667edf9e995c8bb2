//! Keeps the lists of launches of calls on device tensors, because the same calls return: models call an operator over
//! memory that an allocator reuses, so their tensors are at few different addresses.
//!
//! The caller of a call chooses its key. A call with the key of a kept list needs no check of its tensors and no new
//! list. When all places are in use, a new list replaces the oldest one.

use super::launch::Launches;

/// Number of lists that a workspace keeps.
const PLACES: usize = 128;

/// Bytes that stand for a plan, the tensors of a call and its lengths, in parts.
pub type Key<'a> = &'a [&'a [u8]];

/// Number of a place.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// A list and its key. The list of the last call is absent.
#[derive(Debug, Default)]
struct Entry {
    key: Vec<u8>,
    list: Option<Launches>,
}

/// The lists that a workspace keeps.
///
/// Invariant *valid*: the addresses in every list are those of the tensors that its key stands for, and of memory of the
/// workspace that has not been freed.
#[derive(Debug, Default)]
pub struct Kept {
    /// Hash of the key of each entry. A search reads these numbers, and the key of one entry.
    hashes: Vec<u64>,
    entries: Vec<Entry>,
    /// The place of the oldest entry, if all places are in use.
    oldest: usize,
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
}

impl Kept {
    /// Takes the list with this key, if it is kept.
    pub fn take(&mut self, key: Key<'_>) -> Option<(Place, Launches)> {
        if self.entries.is_empty() {
            return None;
        }
        let hash = hash(key);
        let place = self.hashes.iter().position(|kept| *kept == hash)?;
        let entry = self.entries.get_mut(place).filter(|entry| entry.has(key))?;
        Some((Place(place), entry.list.take()?))
    }

    /// Reserves a place for a list with this key. Returns `None` if memory is not available; the list is then not kept.
    pub fn reserve(&mut self, key: Key<'_>) -> Option<Place> {
        let hash = hash(key);
        let equal = self.hashes.iter().position(|kept| *kept == hash);
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
        *self.hashes.get_mut(place)? = hash;
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
            let place = kept.reserve(&[b"a plan..", number]).unwrap();
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
}
