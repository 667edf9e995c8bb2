//! Interest sets: the chunks that a task contains.

use super::singer::{self, MAX_MEMBERS};
use crate::plan::ChooseError;
use heapless::Vec;

/// Largest number of chunks for which an interest set is available.
pub(crate) const MAX_CHUNKS: usize = MAX_MEMBERS * (MAX_MEMBERS - 1) + 1;

/// Orders of the available sets: 0 and 1, which are trivial, and the prime powers up to 32. A set has one member more
/// than its order.
const ORDERS: [usize; 20] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32];

/// The sets in table 3 of the paper that are difference sets, with their numbers of chunks; the set printed there for
/// 133 chunks is not a difference set.
const PRINTED: [(usize, &[usize]); 7] = [
    (7, &[0, 1, 3]),
    (13, &[0, 1, 3, 9]),
    (21, &[0, 1, 4, 14, 16]),
    (31, &[0, 1, 3, 8, 12, 18]),
    (57, &[0, 1, 3, 13, 32, 36, 43, 52]),
    (73, &[0, 1, 3, 7, 15, 31, 36, 54, 63]),
    (91, &[0, 1, 3, 9, 27, 49, 56, 61, 77, 81]),
];

/// A `(c, l, 1)` difference set: `l` offsets modulo `c = l (l − 1) + 1`, including 0. Every nonzero value occurs
/// exactly once among the differences of the offsets. Every set is verified when it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterestSet {
    chunks: usize,
    members: Vec<u16, MAX_MEMBERS>,
}

impl InterestSet {
    /// Returns the set for `chunks` chunks: the set in table 3 of the paper if that set is valid, otherwise a set
    /// constructed by Singer's method.
    ///
    /// # Errors
    /// Returns [`ChooseError::NoSet`] unless `chunks` is 1, 3, or `q² + q + 1` for a prime power `q` of at most 32. The
    /// error contains the nearest numbers that have a set. No set exists for 43 and 111 chunks, because there is no
    /// projective plane of order 6 or 10.
    pub fn of(chunks: usize) -> Result<InterestSet, ChooseError> {
        if let Some((_, members)) = PRINTED.iter().find(|(c, _)| *c == chunks) {
            return InterestSet::from_members(chunks, members);
        }
        let none = || ChooseError::NoSet {
            found: chunks,
            below: InterestSet::sizes().filter(|c| *c < chunks).last(),
            above: InterestSet::sizes().find(|c| *c > chunks),
        };
        match chunks {
            1 => InterestSet::from_members(1, &[0]),
            3 => InterestSet::from_members(3, &[0, 1]),
            _ => {
                let order = ORDERS.into_iter().find(|q| q * q + q + 1 == chunks).ok_or_else(none)?;
                InterestSet::by_singer(order).ok_or_else(none)
            }
        }
    }

    /// Returns the set of `order + 1` members that Singer's method constructs; `None` if the order is not a prime power
    /// of at most 32.
    fn by_singer(order: usize) -> Option<InterestSet> {
        let chunks = order * order + order + 1;
        singer::members(order).find_map(|members| InterestSet::from_members(chunks, &members).ok())
    }

    /// Creates a set from the given members, in any order.
    ///
    /// # Errors
    /// Returns an error if the members are not an interest set: a member is out of range or given twice, 0 is missing,
    /// or differences are missing or doubled. The error contains the numbers of missing and of doubled differences.
    pub fn from_members(chunks: usize, members: &[usize]) -> Result<InterestSet, ChooseError> {
        if chunks == 0 || chunks > MAX_CHUNKS {
            let (first, last) = (InterestSet::sizes().next(), InterestSet::sizes().last());
            return Err(ChooseError::NoSet {
                found: chunks,
                below: last.filter(|c| *c < chunks),
                above: first.filter(|c| *c > chunks),
            });
        }
        let mut is_member = [false; MAX_CHUNKS];
        for &found in members {
            match is_member[..chunks].get_mut(found) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(ChooseError::Member { found, chunks }),
            }
        }
        if !is_member[0] {
            return Err(ChooseError::NoOwner);
        }
        let (mut missing, mut doubled) = (0, 0);
        for difference in 1..chunks {
            let from = |member: &&usize| is_member[(**member + difference) % chunks];
            match members.iter().filter(from).count() {
                0 => missing += 1,
                1 => {}
                _ => doubled += 1,
            }
        }
        if missing + doubled > 0 {
            return Err(ChooseError::Differences { chunks, missing, doubled });
        }
        // Each of the `chunks − 1` nonzero values occurs once as a difference. This limits the number of members, so
        // the list has room for all of them.
        let members = (0..chunks).filter(|x| is_member[*x]).map(|x| x as u16).collect();
        Ok(InterestSet { chunks, members })
    }

    /// Iterates over the numbers of chunks for which there is a set, in order.
    pub fn sizes() -> impl Iterator<Item = usize> {
        ORDERS.into_iter().map(|q| q * q + q + 1)
    }

    /// Returns the number of chunks `c`.
    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.chunks
    }

    /// Iterates over the members, in order; the first is 0.
    pub fn members(&self) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        self.members.iter().map(|x| usize::from(*x))
    }

    /// Iterates over the chunks of task `task`: `(task + o) mod c` for each member `o`, in order.
    pub(crate) fn chunks_of(&self, task: usize) -> impl Iterator<Item = usize> + '_ {
        let task = task % self.chunks;
        self.members().map(move |member| (task + member) % self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks, without computing differences, that every pair of chunks is together in exactly one task.
    fn covers(set: &InterestSet) -> bool {
        let c = set.chunks();
        (0..c).all(|a| {
            (0..c).filter(|b| *b != a).all(|b| {
                let meets = |task: &usize| {
                    let mut both = (false, false);
                    for chunk in set.chunks_of(*task) {
                        both = (both.0 | (chunk == a), both.1 | (chunk == b));
                    }
                    both == (true, true)
                };
                (0..c).filter(meets).count() == 1
            })
        })
    }

    #[test]
    fn every_size_has_a_set_of_which_two_chunks_meet_once() {
        // Miri interprets the code and is slow, so it checks fewer sizes.
        for chunks in InterestSet::sizes().filter(|c| *c <= if cfg!(miri) { 133 } else { MAX_CHUNKS }) {
            let set = InterestSet::of(chunks).unwrap();
            let l = set.members().len();
            assert_eq!((set.chunks(), l * (l - 1) + 1), (chunks, chunks));
            if chunks <= if cfg!(miri) { 13 } else { 133 } {
                assert!(covers(&set), "{set:?}");
            }
            let members: Vec<usize, MAX_MEMBERS> = set.members().collect();
            assert_eq!(InterestSet::from_members(chunks, &members).as_ref(), Ok(&set));
        }
        assert_eq!(InterestSet::sizes().last(), Some(MAX_CHUNKS));
    }

    #[test]
    fn printed_sets_are_kept() {
        let members = |c| -> Vec<usize, MAX_MEMBERS> { InterestSet::of(c).unwrap().members().collect() };
        assert_eq!(members(7), [0, 1, 3]);
        assert_eq!(members(91), [0, 1, 3, 9, 27, 49, 56, 61, 77, 81]);
    }

    #[test]
    fn singers_sets_stand_beside_the_printed_ones() {
        for (chunks, members) in PRINTED {
            let set = InterestSet::by_singer(members.len() - 1).unwrap();
            assert!(set.chunks() == chunks && (cfg!(miri) || covers(&set)), "{set:?}");
        }
    }

    /// Checks that the set in table 3 for 133 chunks, which lacks 40 differences, is rejected and that Singer's set
    /// replaces it.
    #[test]
    fn the_set_printed_for_133_chunks_is_refused() {
        let printed = [0, 1, 4, 12, 21, 26, 45, 68, 84, 96, 98, 126];
        let Err(ChooseError::Differences { chunks: 133, missing, doubled }) =
            InterestSet::from_members(133, &printed)
        else {
            panic!("accepted");
        };
        assert!(missing == 40 && doubled > 0, "{missing} {doubled}");
        assert!(cfg!(miri) || covers(&InterestSet::of(133).unwrap()));
    }

    #[test]
    fn sizes_without_a_set_name_their_neighbours() {
        let of = |found, below, above| {
            let want = ChooseError::NoSet { found, below, above };
            assert_eq!(InterestSet::of(found), Err(want));
        };
        of(43, Some(31), Some(57));
        of(111, Some(91), Some(133));
        of(0, None, Some(1));
        of(2, Some(1), Some(3));
        of(8, Some(7), Some(13));
        of(1058, Some(1057), None);
        of(usize::MAX, Some(1057), None);
        assert!(InterestSet::from_members(usize::MAX, &[0]).is_err());
        assert!(InterestSet::from_members(0, &[]).is_err());
    }

    #[test]
    fn changed_members_are_refused() {
        use ChooseError as E;
        for i in 1..3 {
            for member in (0..7).filter(|m| ![0, 1, 3].contains(m)) {
                let mut members = [0, 1, 3];
                members[i] = member;
                let valid = [[0, 1, 5], [0, 2, 3], [0, 4, 5], [0, 2, 6], [0, 4, 6]].map(|mut x| {
                    x.sort_unstable();
                    x
                });
                members.sort_unstable();
                let made = InterestSet::from_members(7, &members);
                assert_eq!(made.is_ok(), valid.contains(&members), "{members:?}");
            }
        }
        let of = |members: &[usize]| InterestSet::from_members(7, members).unwrap_err();
        assert_eq!(of(&[0, 1, 7]), E::Member { found: 7, chunks: 7 });
        assert_eq!(of(&[0, 1, 1]), E::Member { found: 1, chunks: 7 });
        assert_eq!(of(&[1, 2, 4]), E::NoOwner);
        assert_eq!(of(&[]), E::NoOwner);
        assert_eq!(of(&[0, 1, 2]), E::Differences { chunks: 7, missing: 2, doubled: 2 });
        assert_eq!(of(&[0, 1]), E::Differences { chunks: 7, missing: 4, doubled: 0 });
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6]), E::Differences { chunks: 7, missing: 0, doubled: 6 });
    }
}
