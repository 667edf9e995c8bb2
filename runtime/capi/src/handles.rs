//! Handles: numbers that name objects. Once its object is destroyed, a handle stays invalid.
//!
//! A handle consists of the number of a slot (lower 32 bits, counted from one) and the slot's generation (upper 32
//! bits). Destroying an object raises its slot's generation, so an old handle never names the next object in the slot.
//! A slot that has used up its generations is not used again.

use crate::fault::Fault;
use crate::types::ELSA_STATUS_HANDLE;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Slot<T: ?Sized> {
    generation: u32,
    object: Option<Arc<T>>,
}

/// Live objects of one type, by handle.
#[derive(Debug)]
pub(crate) struct Table<T: ?Sized> {
    what: &'static str,
    slots: Mutex<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T: ?Sized> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T: ?Sized> Table<T> {
    pub(crate) const fn new(what: &'static str) -> Table<T> {
        Table { what, slots: Mutex::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    fn slots(&self) -> MutexGuard<'_, Slots<T>> {
        // A panic under the lock leaves no slot half changed.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stale(&self, id: u64) -> Fault {
        Fault::new(
            ELSA_STATUS_HANDLE,
            &format_args!("{}: handle {id:#x} names nothing; allowed: one that was not destroyed", self.what),
        )
    }

    /// Stores an object and returns its handle.
    pub(crate) fn insert(&self, object: Arc<T>) -> Result<u64, Fault> {
        let mut slots = self.slots();
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(slots.slots.len()).ok().filter(|&i| i < u32::MAX);
                let full = format_args!("{}: no handle is left", self.what);
                let index = index.ok_or_else(|| Fault::new(ELSA_STATUS_HANDLE, &full))?;
                slots.slots.push(Slot { generation: 1, object: None });
                index
            }
        };
        let slot = &mut slots.slots[index as usize];
        slot.object = Some(object);
        Ok(u64::from(slot.generation) << 32 | (u64::from(index) + 1))
    }

    fn place(id: u64) -> Option<(usize, u32)> {
        let index = (id & 0xffff_ffff).checked_sub(1)?;
        Some((usize::try_from(index).ok()?, (id >> 32) as u32))
    }

    /// Returns the object that a handle names. The returned reference keeps the object alive.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<T>, Fault> {
        let (index, generation) = Self::place(id).ok_or_else(|| self.stale(id))?;
        let slots = self.slots();
        let slot = slots.slots.get(index).filter(|slot| slot.generation == generation);
        slot.and_then(|slot| slot.object.clone()).ok_or_else(|| self.stale(id))
    }

    /// Destroys a handle. Calls that are using the handle's object keep the object alive.
    pub(crate) fn remove(&self, id: u64) -> Result<Arc<T>, Fault> {
        let (index, generation) = Self::place(id).ok_or_else(|| self.stale(id))?;
        let mut slots = self.slots();
        let slot = slots.slots.get_mut(index).filter(|slot| slot.generation == generation);
        let object = slot.and_then(|slot| slot.object.take()).ok_or_else(|| self.stale(id))?;
        let next = generation.wrapping_add(1);
        slots.slots[index].generation = next;
        if next != 0 {
            slots.free.push(index as u32);
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_handles_name_nothing() {
        let table = Table::new("thing");
        let a = table.insert(Arc::new(1)).unwrap();
        assert_eq!(*table.get(a).unwrap(), 1);
        table.remove(a).unwrap();
        let b = table.insert(Arc::new(2)).unwrap();
        assert_ne!(a, b);
        assert_eq!(a as u32, b as u32);
        assert_eq!(table.get(a).unwrap_err().status, ELSA_STATUS_HANDLE);
        assert_eq!(table.remove(a).unwrap_err().status, ELSA_STATUS_HANDLE);
        assert_eq!(*table.get(b).unwrap(), 2);
        for id in [0, 1, 1 << 32, u64::MAX, b + 1] {
            assert!(table.get(id).is_err(), "{id:#x}");
        }
    }

    #[test]
    fn a_slot_without_generations_is_not_taken_again() {
        let table = Table::new("thing");
        let a = table.insert(Arc::new(1)).unwrap();
        table.slots().slots[0].generation = u32::MAX;
        let last = a & 0xffff_ffff | u64::from(u32::MAX) << 32;
        table.remove(last).unwrap();
        let b = table.insert(Arc::new(2)).unwrap();
        assert_eq!(b & 0xffff_ffff, 2);
        assert!(table.get(a).is_err() && table.get(last).is_err());
    }
}
