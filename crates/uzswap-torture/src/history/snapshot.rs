//! Snapshots in the middle of a history: written, read back, damaged, restored.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Kept, Operation, Stage, is_page, wrong_page};
use crate::checks::Totals;
use crate::faults::{Fault, Struck};
use crate::snapshots;
use crate::world::{SnapshotFile, lock};
use uzswap::page::PAGE_SIZE;
use uzswap::zswap::snapshot::{RestoreSummary, SnapshotSummary};
use uzswap::zswap::{Counters, TenantId, Zswap};

/// What is done with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The snapshot must have all pages.
    ReadBack,
    /// The file is changed somewhere, and must be refused.
    Damage { seed: u64 },
    /// A store of other options must have the same pages, unless they do not fit.
    Elsewhere { seed: u64 },
    /// A new store goes on from it, unless that cannot be made; nothing fails meanwhile if `calm`.
    GoOn { calm: bool },
}

/// Pages at the start of a snapshot.
struct Before {
    pages: Vec<Option<Kept>>,
    totals: Totals,
    counters: Counters,
}

impl Stage {
    pub(super) fn snapshot(
        &self,
        operation: Operation,
        by_other: bool,
        skip_corrupt: bool,
        then: Then,
    ) -> Result<(), String> {
        let zswap = self.zswap();
        let before = {
            let model = lock(&self.model);
            let (pages, totals) = (model.pages.clone(), model.totals);
            Before { pages, totals, counters: zswap.counters() }
        };
        let write = || snapshots::write(&self.world, &zswap, skip_corrupt);
        let (file, written) = match then {
            // Figures are of the beginning, and so those of its pages only if nothing happens.
            Then::GoOn { .. } | Then::Elsewhere { .. } => self.world.alone(write),
            _ => write(),
        };
        let struck = Struck::since();
        let left_out = written.as_ref().ok().map(|summary| summary.skipped_pages);
        self.count_unreadable(&before, &zswap, struck, left_out)?;
        let answer = match written {
            Err(error) => {
                if !by_other {
                    zswap.audit().map_err(|what| format!("after {error}: {what}"))?;
                }
                snapshots::check_not_written(&zswap, struck, &file, &error)?
            }
            Ok(summary) if summary.skipped_pages > 0 && !skip_corrupt => {
                return Err(format!("pages left out that were not to be: {summary:?}"));
            }
            Ok(summary) => {
                let read = || self.read_back(&before, by_other, &file, &summary);
                match then {
                    Then::ReadBack => self.world.alone(read)?.0,
                    Then::Damage { seed } => {
                        self.world.alone(|| self.world.calmly(read))?;
                        snapshots::check_damaged(&self.plan, &self.world, file.bytes(), seed)?;
                        "snapshot: damaged, refused"
                    }
                    Then::Elsewhere { seed } => {
                        self.world.alone(|| self.world.calmly(read))?;
                        let elsewhere = || self.elsewhere(&file, &summary, seed);
                        self.world.alone(|| self.world.calmly(elsewhere))?
                    }
                    Then::GoOn { calm } => {
                        let (_, missing) = self.world.alone(|| self.world.calmly(read))?;
                        self.go_on(&before, &file, &summary, &missing, calm)?
                    }
                }
            }
        };
        lock(&self.model).note(operation, by_other, answer, left_out.unwrap_or(0));
        Ok(())
    }

    /// Counts the pages that could not be read: `left_out` of them, or, where there is no snapshot,
    /// some.
    fn count_unreadable(
        &self,
        before: &Before,
        zswap: &Zswap,
        struck: Struck,
        left_out: Option<u64>,
    ) -> Result<(), String> {
        let totals = &mut lock(&self.model).totals;
        let counters = zswap.counters();
        // The other thread may have counted some in its turns; this one, some of its own operation.
        let counted = totals.not_read - before.totals.not_read;
        let unread = counters.backing_read_fail - before.counters.backing_read_fail - counted;
        let corrupt = match left_out {
            Some(left_out) => left_out.checked_sub(unread).ok_or("more were not read")?,
            None => {
                let counted = totals.corrupt + self.world.fired(Fault::ObjectRot);
                let by_this = counters.decompress_fail - before.counters.decompress_fail;
                counters.decompress_fail.saturating_sub(counted).min(by_this)
            }
        };
        let is_right = (unread == 0 || struck.by(&[Fault::ReadError, Fault::Outage]))
            && (corrupt == 0 || struck.by(&[Fault::ObjectRot]) || struck.by_lie());
        if !is_right {
            return Err(format!(
                "{unread} pages not read and {corrupt} corrupt without a reason; faults: {struck}"
            ));
        }
        totals.not_read += unread;
        totals.corrupt += corrupt;
        Ok(())
    }

    /// Checks the pages of a snapshot. Name of the outcome, and the keys whose pages were omitted.
    fn read_back(
        &self,
        before: &Before,
        by_other: bool,
        file: &SnapshotFile,
        summary: &SnapshotSummary,
    ) -> Result<(&'static str, BTreeSet<usize>), String> {
        let mut was: Vec<Vec<Option<Kept>>> = before.pages.iter().map(|&kept| vec![kept]).collect();
        let mut is_quiet = true;
        if !by_other {
            let model = lock(&self.model);
            is_quiet = model.meanwhile.is_empty();
            model.meanwhile.iter().for_each(|&(number, kept)| was[number].push(kept));
        }
        let mut found = BTreeSet::new();
        let read = snapshots::read(&self.plan, &self.world, file, &mut |number, tenant, page| {
            if !found.insert(number) {
                return Err(format!("key {number} is in it twice"));
            }
            let right = |kept: &&Kept| is_page(page, kept) && kept.tenant == tenant;
            match was[number].iter().flatten().find(right) {
                Some(_) => Ok(()),
                None => {
                    let last = was[number].last().copied().flatten();
                    Err(format!("a page of tenant {tenant}, {last:?}: {}", wrong_page(page, last)))
                }
            }
        })?;
        let Some(read) = read else { return Ok(("snapshot: not read back", BTreeSet::new())) };
        if read != *summary || summary.file_bytes != file.bytes().len() as u64 {
            return Err(format!("wrote {summary:?}, read {read:?}"));
        }
        let missing: BTreeSet<usize> = (0..was.len())
            .filter(|number| !found.contains(number) && !was[*number].contains(&None))
            .collect();
        let count = missing.len() as u64;
        if count > summary.skipped_pages || is_quiet && count != summary.skipped_pages {
            let keys: Vec<&usize> = missing.iter().take(4).collect();
            return Err(format!("{count} pages are not in it, of keys {keys:?}...: {summary:?}"));
        }
        let name = if count > 0 { "snapshot: pages left out" } else { "snapshot: read back" };
        Ok((name, missing))
    }

    /// Restores a snapshot; the new store takes the place of the old one.
    fn go_on(
        &self,
        before: &Before,
        file: &SnapshotFile,
        summary: &SnapshotSummary,
        missing: &BTreeSet<usize>,
        calm: bool,
    ) -> Result<&'static str, String> {
        let (plan, world) = (&self.plan, &self.world);
        let old = self.zswap();
        let restore = || snapshots::restore(plan, world, file.bytes());
        let restored = world.alone(|| if calm { world.calmly(restore) } else { restore() })?;
        let (fresh, went) = match restored {
            Ok(restored) => restored,
            Err(error) => {
                return snapshots::check_not_restored(plan, summary.pages(), &error);
            }
        };
        fresh.audit().map_err(|what| format!("restored: {what}"))?;
        self.check_tenants(&old, &fresh)?;
        let kept = self.check_kept(&old, &fresh, &went, summary, Struck::since())?;
        // Checks the pages of the new store again.
        let (copy, copied) = world.alone(|| world.calmly(|| snapshots::write(world, &fresh, true)));
        let copied = copied.map_err(|error| format!("of the restored store: {error:?}"))?;
        let read = |bytes| snapshots::uses_of(plan, bytes).map_err(|error| error.to_string());
        let (then, now) = (read(file.bytes())?, read(copy.bytes())?);
        if now.len() as u64 + copied.skipped_pages != then.len() as u64 {
            return Err(format!("{} pages restored as {}", then.len(), now.len()));
        }
        for (number, (tenant, uses)) in now {
            let (tenant_then, uses_then) = then[&number];
            if tenant != tenant_then || kept && uses != uses_then {
                return Err(format!(
                    "key {number}: tenant {tenant_then}, {uses_then} uses; restored as {tenant}, \
                     {uses}"
                ));
            }
        }
        let model = &mut *lock(&self.model);
        missing.iter().for_each(|&number| model.put(number, None, false));
        model.totals = before.totals;
        model.totals.corrupt += copied.skipped_pages;
        model.totals.left_out += summary.skipped_pages;
        model.totals.to_backing += went.backing_pages;
        for (allowed, tenant) in model.allowed.iter_mut().zip(fresh.tenants()) {
            *allowed = (*allowed).max(tenant.current_bytes);
        }
        self.replace(fresh)?;
        Ok(if summary.skipped_pages > 0 { "restored: pages left out" } else { "restored" })
    }

    /// Restores a snapshot into a store of another plan, and compares all pages.
    fn elsewhere(
        &self,
        file: &SnapshotFile,
        summary: &SnapshotSummary,
        seed: u64,
    ) -> Result<&'static str, String> {
        let mut plan = self.plan.clone();
        plan.change_store(seed);
        let told = |what: String| snapshots::elsewhere(&plan, &what);
        let pages = summary.pages();
        let fresh = match snapshots::restore_elsewhere(&plan, &self.world, file, pages)? {
            Ok(fresh) => fresh,
            Err(why) => return Ok(why),
        };
        self.check_tenants(&self.zswap(), &fresh).map_err(told)?;
        snapshots::read(&self.plan, &self.world, file, &mut |number, _, expected| {
            let mut page = [0; PAGE_SIZE];
            match fresh.load(plan.key(number), &mut page) {
                Ok(true) if page == *expected => Ok(()),
                other => Err(told(format!("key {number}: {other:?}"))),
            }
        })?;
        let all = plan.key(0)..=plan.key(plan.keys - 1);
        let removed = fresh.invalidate_range(all) as u64;
        if removed != pages {
            return Err(told(format!("{removed} pages of {summary:?}")));
        }
        fresh.audit().map_err(String::from).map_err(told)?;
        Ok("restored elsewhere")
    }

    fn check_tenants(&self, old: &Zswap, fresh: &Zswap) -> Result<(), String> {
        let (old, fresh) = (old.tenants(), fresh.tenants());
        if old.is_empty() || fresh.is_empty() {
            return Ok(()); // one of them keeps no records
        }
        let is_same = old.len() == fresh.len()
            && old.iter().zip(&fresh).all(|(a, b)| {
                (a.number, a.parent, &a.options) == (b.number, b.parent, &b.options)
                    && b.peak_bytes >= a.peak_bytes
            });
        if is_same { Ok(()) } else { Err(format!("tenants {old:?} restored as {fresh:?}")) }
    }

    /// Checks where pages went. Whether all are where they were, and none was written back for
    /// others.
    fn check_kept(
        &self,
        old: &Zswap,
        fresh: &Zswap,
        went: &RestoreSummary,
        summary: &SnapshotSummary,
        struck: Struck,
    ) -> Result<bool, String> {
        if went.snapshot != *summary || went.memory_pages + went.backing_pages != summary.pages() {
            return Err(format!("{summary:?} restored as {went:?}"));
        }
        let stays = went.backing_pages == summary.backing_pages()
            && fresh.counters().written_back_pages == old.counters().written_back_pages
            && !struck.by(&Fault::ALL);
        let (then, now) = (old.memory().compressed_bytes, fresh.memory().compressed_bytes);
        // A page of a unit is alone in a snapshot.
        let has_units = old.counters().unit_pages > 0;
        if stays && summary.skipped_pages == 0 && then != now && !has_units {
            return Err(format!("{then} compressed bytes restored as {now}"));
        }
        Ok(stays)
    }

    /// Goes on with another store, and its tenants.
    fn replace(&self, fresh: Zswap) -> Result<(), String> {
        let id = |number: usize| match number {
            0 => Ok(TenantId::ROOT),
            _ => fresh.tenant_id(number).ok_or_else(|| format!("tenant {number} is not restored")),
        };
        *lock(&self.tenants) = (0..self.tenant_count()).map(id).collect::<Result<_, String>>()?;
        *lock(&self.zswap) = Arc::new(fresh);
        Ok(())
    }
}
