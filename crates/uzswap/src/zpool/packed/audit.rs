//! Checks H1 to H4 of a log.

use std::collections::HashSet;

use super::holes::LISTED_BYTES_MIN;
use super::item::Item;
use super::log::Log;
use super::regions::RegionId;
use super::victim::Victim;
use super::{Place, offset_of};
use crate::AuditError;

/// The findings of the walk through a log.
#[derive(Default)]
struct Found {
    /// Bytes of all regions, and those of objects.
    bytes: usize,
    object_bytes: usize,
    objects: usize,
    /// Holes that say that they are listed.
    listed: HashSet<Place>,
}

impl Log {
    /// The first broken invariant.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        self.handles.audit()?;
        let mut found = Found::default();
        for id in (0..self.regions.id_end()).filter(|&id| self.regions.region_bytes(id) > 0) {
            self.audit_region(id, &mut found)?;
        }
        let free_bytes = self.regions.free_bytes();
        if (self.regions.bytes(), free_bytes) != (found.bytes, found.bytes - found.object_bytes) {
            return Err(format!(
                "H2: {} bytes, {free_bytes} free are counted; {} bytes, {} of objects are there",
                self.regions.bytes(),
                found.bytes,
                found.object_bytes
            )
            .into());
        }
        let mut listed = found.listed;
        self.holes
            .audit(&self.regions, |hole| match listed.remove(&hole) {
                true => Ok(()),
                false => Err(format!("no listed hole at {hole:#x}")),
            })
            .map_err(|error| format!("H3: {error}"))?;
        if let Some(hole) = listed.iter().next() {
            return Err(format!("H3: the hole at {hole:#x} is on no list").into());
        }
        // As many cells as objects, and each object's cell leads back to it.
        if found.objects != self.handles.used() {
            let handles = self.handles.used();
            return Err(format!("H4: {} objects, {handles} handles", found.objects).into());
        }
        Ok(())
    }

    fn audit_region(&self, id: RegionId, found: &mut Found) -> Result<(), AuditError> {
        let bytes = self.regions.region_bytes(id);
        let victim = self.collector.victim.filter(|victim| victim.region == id);
        if let Some(Victim { read, write, .. }) = victim
            && !(write <= read && read <= bytes)
        {
            return Err(format!("H1: the gap {write}..{read} of region {id}").into());
        }
        let (mut offset, mut object_bytes, mut gap_bytes) = (0, 0, 0);
        while let Some((at, item)) = self.item_from(id, offset, bytes) {
            gap_bytes += offset_of(at) - offset;
            offset = offset_of(at) + item.bytes();
            if item.bytes() == 0 || offset > bytes {
                return Err(format!("H1: {item:?} at {} of region {id}", offset_of(at)).into());
            }
            match item {
                Item::Object { bytes, cell } => {
                    if self.handles.location_of_cell(cell) != Some(at) {
                        return Err(format!("H4: cell {cell} does not lead to {at:#x}").into());
                    }
                    object_bytes += bytes;
                    found.objects += 1;
                }
                Item::Hole { is_listed: true, .. } => drop(found.listed.insert(at)),
                free if free.bytes() >= LISTED_BYTES_MIN && !self.collector.has_ahead(at) => {
                    return Err(format!("H3: the hole at {at:#x} is not listed").into());
                }
                _ => {}
            }
        }
        // The gap may be at the end.
        gap_bytes += self.collector.over_gap(id, offset) - offset;
        let whole_gap = victim.map_or(0, |Victim { read, write, .. }| read - write);
        if self.collector.over_gap(id, offset) != bytes || gap_bytes != whole_gap {
            return Err(format!("H1: the items of region {id} miss its gap or its end").into());
        }
        let free_bytes = self.regions.region_free_bytes(id);
        if free_bytes != bytes - object_bytes || object_bytes == 0 {
            return Err(format!(
                "H2: region {id} counts {free_bytes} free bytes of {bytes}, {object_bytes} are of \
                 objects"
            )
            .into());
        }
        found.bytes += bytes;
        found.object_bytes += object_bytes;
        Ok(())
    }
}
