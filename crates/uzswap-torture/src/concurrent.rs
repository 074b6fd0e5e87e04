//! Torture with several threads at once, and a shrinker.
//!
//! Each thread has keys of its own and knows what they hold. Other keys are shared: their pages
//! name their writer and time. A load must return a page that was stored and, when the load began,
//! neither replaced by its writer nor taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use super::checks::{self, Refused, Totals, check_load_error};
use super::faults::{Fault, Struck};
use super::history::caught;
use super::pages::Identity;
use super::plan::{Dice, Plan};
use super::snapshots;
use super::world::{SnapshotFile, World, lock};
use super::{Failure, Outcome, Torture};
use uzswap::index::IndexError;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::zswap::{
    LoadError, Shrinker, ShrinkerOptions, StoreError, TenantError, TenantId, TenantOptions, Zswap,
};

/// Parts of a history; at the end of each, all threads wait and the figures are checked.
const PARTS: u64 = 8;

/// One key in so many is shared.
const SHARED_EVERY: usize = 4;

/// How many shared keys most operations on such keys are about.
const HOT: usize = 3;

type Tally = BTreeMap<&'static str, u64>;

/// What the threads of a run share.
#[derive(Debug)]
struct Run {
    plan: Plan,
    world: Arc<World>,
    zswap: Mutex<Arc<Zswap>>,
    /// Held while one is replaced.
    tenants: Mutex<Vec<TenantId>>,
    /// The last one that is no more.
    removed: Mutex<Option<TenantId>>,
    shrinker: Mutex<Option<Shrinker>>,
    shrinker_options: ShrinkerOptions,
    threads: usize,
    barrier: Barrier,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
    totals: Mutex<Totals>,
    tally: Mutex<Tally>,
    /// For each shared key and writer, the last store that it began, and that it ended.
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
    taken: Mutex<BTreeSet<Identity>>,
    /// The highest limit that each tenant had.
    highest: Vec<AtomicU64>,
    operations: AtomicU64,
}

/// What one thread knows.
#[derive(Debug)]
struct Worker<'a> {
    run: &'a Run,
    number: usize,
    dice: Dice,
    /// What its own keys hold.
    own: BTreeMap<usize, Identity>,
    stores: u64,
    totals: Totals,
    tally: Tally,
}

/// The name of the tenant that a plan numbers so.
fn tenant_name(number: usize) -> String {
    format!("tenant {number}")
}

/// Runs a seed by several threads.
pub(super) fn run(torture: &Torture, seed: u64) -> Outcome {
    let plan = Plan::new(seed, torture.faults, torture.plant);
    let world = Arc::new(World::new(seed, plan.rates, true, torture.plant));
    let (zswap, tenants) = match plan.build(&world) {
        Ok(built) => built,
        Err(what) => return Outcome::failed(Failure::early(torture, seed, what)),
    };
    let writers = torture.threads * plan.keys;
    let counts = || (0..writers).map(|_| AtomicU64::new(0)).collect();
    let highest = tenants.iter().map(|_| AtomicU64::new(u64::MAX)).collect();
    let shrinker_options = ShrinkerOptions::default()
        .dynamic(seed.is_multiple_of(2))
        .compact_percent(if seed.is_multiple_of(3) { 10 } else { 100 })
        .interval(Duration::from_millis(1));
    let run = Run {
        zswap: Mutex::new(Arc::new(zswap)),
        shrinker: Mutex::new(None),
        shrinker_options,
        threads: torture.threads,
        barrier: Barrier::new(torture.threads),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
        totals: Mutex::default(),
        tally: Mutex::default(),
        begun: counts(),
        ended: counts(),
        taken: Mutex::default(),
        highest,
        operations: AtomicU64::new(0),
        plan,
        world,
        tenants: Mutex::new(tenants),
        removed: Mutex::new(None),
    };
    let start = run.zswap().memory().index_bytes as usize;
    let done = run.start_shrinker().and_then(|()| run.work(torture, seed));
    let done = done.and_then(|()| {
        let totals = *lock(&run.totals);
        run.check_end(totals, start)
    });
    Outcome {
        operations: run.operations.load(Ordering::Relaxed),
        digest: 0,
        tally: std::mem::take(&mut *lock(&run.tally)),
        fired: Fault::ALL.map(|fault| run.world.fired(fault)),
        counters: run.zswap().counters(),
        failure: done.err().map(|what| Failure {
            seed,
            what,
            replay: torture.replay(seed, torture.operations),
            plan: run.plan.summary(),
            steps: Vec::new(),
        }),
    }
}

impl Run {
    fn is_shared(&self, key: usize) -> bool {
        key.is_multiple_of(SHARED_EVERY)
    }

    fn zswap(&self) -> Arc<Zswap> {
        Arc::clone(&lock(&self.zswap))
    }

    fn tenant(&self, number: usize) -> TenantId {
        lock(&self.tenants)[number]
    }

    fn start_shrinker(&self) -> Result<(), String> {
        let started = Shrinker::start(self.zswap(), self.shrinker_options);
        let shrinker = started.map_err(|error| format!("no thread for a shrinker: {error}"))?;
        *lock(&self.shrinker) = Some(shrinker);
        Ok(())
    }

    /// While no thread does anything: a new store is made from a snapshot, and takes the place of
    /// the one there is. What that is called.
    fn go_on(&self) -> Result<&'static str, String> {
        let shrinker = lock(&self.shrinker).take();
        drop(shrinker); // it ends
        let restored = self.world.calmly(|| self.restore());
        self.start_shrinker().and(restored)
    }

    fn restore(&self) -> Result<&'static str, String> {
        Struck::forget();
        let old = self.zswap();
        let (file, written) = snapshots::write(&self.world, &old, false);
        let summary = match written {
            Ok(summary) => summary,
            Err(error) => {
                let why = snapshots::check_not_written(&old, Struck::since(), &file, &error)?;
                lock(&self.totals).corrupt += u64::from(why == "snapshot: a page corrupt");
                return Ok(why);
            }
        };
        let (fresh, went) = match snapshots::restore(&self.plan, &self.world, file.bytes())? {
            Ok(restored) => restored,
            Err(error) => {
                return snapshots::check_not_restored(&self.plan, summary.pages(), &error);
            }
        };
        fresh.audit().map_err(|what| format!("restored: {what}"))?;
        if went.snapshot != summary || went.memory_pages + went.backing_pages != summary.pages() {
            return Err(format!("{summary:?} restored as {went:?}"));
        }
        let stats = fresh.tenants();
        let id = |number: usize| {
            let name = tenant_name(number);
            let one = stats.iter().find(|one| one.options.name == name);
            let id = one.and_then(|one| fresh.tenant_id(one.number));
            id.ok_or_else(|| format!("{name} is not restored: {stats:?}"))
        };
        let mut tenants = lock(&self.tenants);
        for (number, tenant) in tenants.iter_mut().enumerate().skip(1) {
            *tenant = id(number)?;
        }
        *lock(&self.removed) = None; // in the new store it could be one that is there
        lock(&self.totals).to_backing += went.backing_pages;
        *lock(&self.zswap) = Arc::new(fresh);
        Ok("restored")
    }

    fn work(&self, torture: &Torture, seed: u64) -> Result<(), String> {
        std::thread::scope(|scope| {
            for number in 0..self.threads {
                scope.spawn(move || {
                    let mut worker = Worker {
                        run: self,
                        number,
                        dice: Dice::new(seed ^ (number as u64 + 1) << 32),
                        own: BTreeMap::new(),
                        stores: 0,
                        totals: Totals::default(),
                        tally: Tally::new(),
                    };
                    worker.work(torture.operations);
                });
            }
        });
        let shrinker = lock(&self.shrinker).take();
        drop(shrinker); // a discard that it began ends here
        lock(&self.failure).take().map_or(Ok(()), Err)
    }

    fn fail(&self, what: String) {
        lock(&self.failure).get_or_insert(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Checks the limits, which hold at every instant.
    fn look(&self) -> Result<(), String> {
        let max_bytes = self.plan.options.max_pool_bytes;
        let memory = self.zswap().memory();
        if memory.pool_bytes > max_bytes || memory.pool_peak_bytes > max_bytes {
            return Err(format!("the pool is over its limit of {max_bytes} bytes: {memory:?}"));
        }
        for (tenant, highest) in self.zswap().tenants().iter().zip(&self.highest) {
            let highest = highest.load(Ordering::Relaxed);
            if tenant.current_bytes > highest || tenant.peak_bytes > highest {
                return Err(format!("over {highest} bytes: {tenant:?}"));
            }
        }
        Ok(())
    }

    /// Everything is taken out, by several keys at a time, and must leave nothing.
    fn check_end(&self, mut totals: Totals, start: usize) -> Result<(), String> {
        caught(|| {
            self.zswap().audit()?;
            let rotten = self.world.fired(Fault::ObjectRot);
            checks::check_figures(&self.plan, &self.zswap(), &totals, None, rotten)?;
            let all = self.plan.key(0)..=self.plan.key(self.plan.keys - 1);
            totals.invalidated += self.zswap().invalidate_range(all) as u64;
            checks::check_figures(&self.plan, &self.zswap(), &totals, Some((0, 0)), rotten)?;
            // A tenant that comes while others end has a new number.
            let tenants = self.plan.parents.len() + 1 + self.threads;
            checks::check_empty(&self.plan, &self.zswap(), start, tenants)
        })?;
        self.world.take_violation().map_or(Ok(()), Err)
    }
}

impl Worker<'_> {
    fn work(&mut self, operations: u64) {
        for part in 0..PARTS {
            let count = operations * (part + 1) / PARTS - operations * part / PARTS;
            for number in 0..count {
                if self.run.stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(what) = caught(|| self.step(number)) {
                    self.run.fail(format!("thread {}: {what}", self.number));
                }
            }
            self.run.operations.fetch_add(count, Ordering::Relaxed);
            self.report();
            if self.run.barrier.wait().is_leader() {
                self.check_part();
            }
            self.run.barrier.wait();
        }
        self.run.world.calm_down();
        let own: Vec<usize> = self.own.keys().copied().collect();
        for key in own {
            if let Err(what) = self.load(key, false) {
                self.run.fail(format!("thread {}: {what}", self.number));
            }
        }
        self.report();
    }

    /// Adds what this thread did to what all did.
    fn report(&mut self) {
        lock(&self.run.totals).add(&std::mem::take(&mut self.totals));
        let mut tally = lock(&self.run.tally);
        for (answer, count) in std::mem::take(&mut self.tally) {
            *tally.entry(answer).or_default() += count;
        }
    }

    /// All others wait; the shrinker does not.
    fn check_part(&self) {
        let run = self.run;
        let (totals, counters) = (*lock(&run.totals), run.zswap().counters());
        let equal = [
            ("zswpout", counters.zswpout, totals.stored),
            ("exclusive_loads", counters.exclusive_loads, totals.exclusive),
            ("invalidated_pages", counters.invalidated_pages, totals.invalidated),
            ("reject_kmemcache_fail", counters.reject_kmemcache_fail, totals.no_index),
            ("backing_read_fail", counters.backing_read_fail, totals.not_read),
        ];
        if let Some((name, found, expected)) = equal.iter().find(|(_, a, b)| a != b) {
            run.fail(format!("{name}: expected {expected}, found {found}"));
        }
        if let Some(what) = run.world.take_violation() {
            run.fail(what);
        }
        if run.stop.load(Ordering::Relaxed) {
            return;
        }
        match caught(|| run.go_on()) {
            Ok(answer) => *lock(&run.tally).entry(answer).or_default() += 1,
            Err(what) => run.fail(what),
        }
    }

    fn note(&mut self, answer: &'static str) {
        *self.tally.entry(answer).or_default() += 1;
    }

    fn own_key(&mut self) -> usize {
        let members = self.run.threads * SHARED_EVERY;
        let slots = (self.run.plan.keys / members).max(1);
        let slot = self.dice.below(slots);
        let in_slot = 1 + self.dice.below(SHARED_EVERY - 1);
        (slot * self.run.threads + self.number) * SHARED_EVERY + in_slot
    }

    fn shared_key(&mut self) -> usize {
        let slots = self.run.plan.keys.div_ceil(SHARED_EVERY);
        let most = if self.dice.one_in(4) { slots } else { HOT.min(slots) };
        self.dice.below(most) * SHARED_EVERY
    }

    fn step(&mut self, number: u64) -> Result<(), String> {
        Struck::forget();
        let run = self.run;
        let key = if self.dice.one_in(3) { self.shared_key() } else { self.own_key() };
        if key >= run.plan.keys {
            return Ok(());
        }
        match self.dice.below(100) {
            0..42 => self.store(key),
            42..69 => self.load(key, false),
            72..84 => self.load(key, true),
            84..93 => self.invalidate(key),
            93 => self.invalidate_range(),
            94..97 => {
                let tenant = self.dice.below(run.highest.len());
                let pages = self.dice.of(&[1, 8, 64]);
                run.zswap().shrink(run.tenant(tenant), pages);
                self.note("shrunk");
                Ok(())
            }
            97 if number.is_multiple_of(8) => {
                run.zswap().compact();
                self.note("compacted");
                Ok(())
            }
            69..72 => {
                Struck::forget();
                let answer = match run.zswap().recompress_unit(run.plan.key(key)) {
                    Ok(0) => "recompressed: nothing",
                    Ok(_) => "recompressed",
                    Err(error) => self.failed_load(&error, true)?,
                };
                self.note(answer);
                Ok(())
            }
            97 if number % 8 == 1 => {
                let blocks = run.zswap().discard();
                self.note(if blocks > 0 { "discarded" } else { "discarded: nothing" });
                Ok(())
            }
            97 if number % 16 == 2 => self.snapshot(),
            98 if number.is_multiple_of(4) => self.replace_tenant(),
            98 => self.set_tenant(),
            _ => run.look(),
        }
    }

    fn set_tenant(&mut self) -> Result<(), String> {
        let run = self.run;
        let tenant = self.dice.below(run.highest.len());
        let bytes = (run.plan.keys * PAGE_SIZE) as u64;
        let max_bytes = self.dice.of(&[u64::MAX, u64::MAX, bytes / 4, bytes / 32, 0]);
        let options = TenantOptions::default()
            .name(tenant_name(tenant))
            .max_bytes(max_bytes)
            .writeback(!self.dice.one_in(4));
        let set = run.zswap().set_tenant(run.tenant(tenant), options);
        let answer = match set {
            // Another thread replaced it just now.
            Err(TenantError::Unknown(_)) if tenant > 0 => "tenant unknown",
            set if set.is_err() != run.plan.options.records.is_none() => {
                return Err(format!("{set:?}"));
            }
            _ => "tenant changed",
        };
        self.note(answer);
        Ok(())
    }

    /// A tenant goes, and another one comes in its place, while others store for it.
    fn replace_tenant(&mut self) -> Result<(), String> {
        let run = self.run;
        let tenant = self.dice.below(run.highest.len());
        if tenant == 0 || run.plan.parents.contains(&tenant) {
            return Ok(()); // the root, or there are some below it
        }
        let zswap = run.zswap();
        let mut tenants = lock(&run.tenants);
        let answer = match zswap.remove_tenant(tenants[tenant]) {
            Ok(()) => {
                let above = tenants[run.plan.parents[tenant - 1]];
                let options = TenantOptions::default().name(tenant_name(tenant));
                let added = zswap.add_tenant(above, options);
                let added = added.map_err(|error| format!("no new tenant: {error}"))?;
                *lock(&run.removed) = Some(std::mem::replace(&mut tenants[tenant], added));
                "tenant replaced"
            }
            Err(TenantError::NoMemory { source: IndexError::OverBudget(over), .. })
                if checks::passes(&run.plan, &over) =>
            {
                "tenant not removed"
            }
            Err(error) => return Err(format!("tenant {tenant} is not removed: {error:?}")),
        };
        drop(tenants);
        self.note(answer);
        Ok(())
    }

    /// The place of a shared key and a writer.
    fn place(&self, key: usize, writer: usize) -> usize {
        key * self.run.threads + writer
    }

    fn store(&mut self, key: usize) -> Result<(), String> {
        let run = self.run;
        let shared = run.is_shared(key);
        self.stores += 1;
        // A page of zeros tells nothing.
        let kind = match self.dice.below(8) {
            1 if shared => 0,
            kind => kind,
        };
        let identity = Identity::new(key, self.number as u8, self.stores, kind);
        let place = self.place(key, self.number);
        run.begun[place].store(self.stores, Ordering::SeqCst);
        let mut page = [0; PAGE_SIZE];
        identity.fill(&mut page);
        let tenant = self.dice.below(run.highest.len());
        let zswap = run.zswap();
        let removed = if self.dice.one_in(64) { *lock(&run.removed) } else { None };
        let id = removed.unwrap_or_else(|| run.tenant(tenant));
        let stored = zswap.store_for(id, run.plan.key(key), &page);
        run.ended[place].store(self.stores, Ordering::SeqCst);
        let refused = Refused {
            plan: &run.plan,
            zswap: &zswap,
            kind: identity.kind(),
            tenant,
            struck: Struck::since(),
            limits: None,
            present: run.plan.keys + 2 * run.threads, // some are just being replaced
            tenants_change: tenant > 0 || removed.is_some(),
        };
        if removed.is_some() && !matches!(stored, Err(StoreError::NoTenant { .. })) {
            return Err(format!("stored for {id:?}, which was removed: {stored:?}"));
        }
        let answer = match &stored {
            Ok(stored) => {
                let is_word = run.plan.options.same_filled.word(&page).is_some();
                refused.check_kept(*stored, is_word)?
            }
            Err(error) => refused.check(error)?,
        };
        self.note(answer);
        self.own.remove(&key);
        match stored {
            Ok(stored) => {
                if !shared {
                    self.own.insert(key, identity);
                }
                self.totals.note_stored(&run.plan, stored);
            }
            Err(StoreError::IndexFull { .. }) => self.totals.no_index += 1,
            Err(StoreError::NoTenant { .. }) => {} // not counted
            Err(_) => self.totals.refused += 1,
        }
        Ok(())
    }

    /// For each writer of a shared key, the last store that had ended.
    fn ended(&self, key: usize) -> Vec<u64> {
        let ended = |writer| self.run.ended[self.place(key, writer)].load(Ordering::SeqCst);
        (0..self.run.threads).map(ended).collect()
    }

    /// Checks a page of a shared key; `ended` is of when the load began.
    fn check_shared(&self, key: usize, page: &Page, ended: &[u64]) -> Result<Identity, String> {
        let identity = Identity::of(page).ok_or("a shared page does not say whose it is")?;
        let writer = usize::from(identity.writer);
        if usize::from(identity.key) != key || writer >= self.run.threads {
            return Err(format!("expected a page of key {key}, found {identity}"));
        }
        identity.check(page)?;
        let begun = self.run.begun[self.place(key, writer)].load(Ordering::SeqCst);
        if identity.count() > begun {
            return Err(format!("{identity} was not stored yet: {begun}"));
        }
        if identity.count() < ended[writer] {
            return Err(format!("{identity} was replaced before by page {}", ended[writer]));
        }
        Ok(identity)
    }

    /// Loads a page, or takes it: loads it and removes it.
    fn load(&mut self, key: usize, takes: bool) -> Result<(), String> {
        let run = self.run;
        let mut page = [0xa5; PAGE_SIZE];
        let shared = run.is_shared(key);
        let ended = if shared { self.ended(key) } else { Vec::new() };
        let taken = (shared && !takes).then(|| lock(&run.taken).len());
        let before: BTreeSet<Identity> = match taken {
            Some(1..256) => lock(&run.taken).clone(),
            _ => BTreeSet::new(),
        };
        Struck::forget();
        let loaded = match takes {
            false => run.zswap().load(run.plan.key(key), &mut page),
            true => run.zswap().load_exclusive(run.plan.key(key), &mut page),
        };
        let expected = self.own.get(&key).copied();
        let answer = match loaded {
            Ok(true) => {
                if shared {
                    let found = self.check_shared(key, &page, &ended)?;
                    if before.contains(&found) {
                        return Err(format!("{found} was taken before"));
                    }
                    if takes && !lock(&run.taken).insert(found) {
                        return Err(format!("{found} was taken twice"));
                    }
                } else {
                    let expected = expected.ok_or_else(|| {
                        format!("expected no page, found {:?}", Identity::of(&page))
                    })?;
                    expected.check(&page)?;
                }
                match takes {
                    false => self.totals.loads += 1,
                    true => {
                        self.own.remove(&key);
                        self.totals.exclusive += 1;
                    }
                }
                if takes { "taken" } else { "loaded" }
            }
            Ok(false) => match expected {
                Some(lost) => return Err(format!("expected {lost}, found none")),
                None if takes => "take: nothing",
                None => "load: nothing",
            },
            Err(error) => self.failed_load(&error, shared || expected.is_some())?,
        };
        let is_counted = !takes && answer == "load: corrupt in the pool";
        self.totals.corrupt_in_pool += u64::from(is_counted);
        self.note(answer);
        Ok(())
    }

    fn failed_load(&mut self, error: &LoadError, was_there: bool) -> Result<&'static str, String> {
        self.totals.note_failed_load(&self.run.zswap(), was_there, Struck::since(), error)
    }

    fn invalidate(&mut self, key: usize) -> Result<(), String> {
        let run = self.run;
        let removed = run.zswap().invalidate(run.plan.key(key));
        let was_there = self.own.remove(&key).is_some();
        if !run.is_shared(key) && removed != was_there {
            return Err(format!("key {key}: expected {was_there}, found {removed}"));
        }
        self.totals.invalidated += u64::from(removed);
        self.note(if removed { "invalidated" } else { "invalidated: nothing" });
        Ok(())
    }

    /// Of this thread's keys beside each other, and so no one else's.
    fn invalidate_range(&mut self) -> Result<(), String> {
        let run = self.run;
        let first = self.own_key() / SHARED_EVERY * SHARED_EVERY + 1;
        let last = first + SHARED_EVERY - 2;
        if last >= run.plan.keys {
            return Ok(());
        }
        let keys = run.plan.key(first)..=run.plan.key(last);
        let removed = run.zswap().invalidate_range(keys);
        let expected = (first..=last).filter(|key| self.own.remove(key).is_some()).count();
        if removed != expected {
            return Err(format!("expected {expected} pages of a range, found {removed}"));
        }
        self.totals.invalidated += removed as u64;
        self.note("invalidated: a range");
        Ok(())
    }

    /// While the other threads continue: the snapshot must have this thread's own keys, and each
    /// page of others in it must be right.
    fn snapshot(&mut self) -> Result<(), String> {
        let run = self.run;
        let ended: Vec<Vec<u64>> =
            (0..run.plan.keys).step_by(SHARED_EVERY).map(|key| self.ended(key)).collect();
        let taken = lock(&run.taken).clone();
        let (file, written) = snapshots::write(&run.world, &run.zswap(), false);
        let summary = match written {
            Ok(summary) => summary,
            Err(error) => {
                let struck = Struck::since();
                let why = snapshots::check_not_written(&run.zswap(), struck, &file, &error)?;
                match why {
                    "snapshot: a page not read" => self.totals.not_read += 1,
                    "snapshot: a page corrupt" => self.totals.corrupt += 1,
                    _ => {}
                }
                self.note(why);
                return Ok(());
            }
        };
        let mut found = BTreeSet::new();
        let read = snapshots::read(&run.plan, &run.world, &file, &mut |key, _, page| {
            if !found.insert(key) {
                return Err(format!("key {key} is in it twice"));
            }
            if run.is_shared(key) {
                let identity = self.check_shared(key, page, &ended[key / SHARED_EVERY])?;
                return match taken.contains(&identity) {
                    true => Err(format!("{identity} was taken before")),
                    false => Ok(()),
                };
            }
            if key / SHARED_EVERY % run.threads == self.number {
                let expected = self.own.get(&key);
                return expected.ok_or_else(|| format!("key {key} has no page"))?.check(page);
            }
            match Identity::of(page) {
                _ if page == &[0; PAGE_SIZE] => Ok(()), // it tells nothing
                Some(identity) if usize::from(identity.key) == key => identity.check(page),
                other => Err(format!("key {key} of another thread has {other:?}")),
            }
        })?;
        let answer = match read {
            None => "snapshot: not read back",
            Some(read) if read != summary || summary.skipped_pages > 0 => {
                return Err(format!("wrote {summary:?}, read {read:?}"));
            }
            Some(_) => {
                if let Some((key, lost)) = self.own.iter().find(|(key, _)| !found.contains(key)) {
                    return Err(format!("{lost} is not in the snapshot: key {key}"));
                }
                self.note("snapshot: read back");
                self.restore_elsewhere(&file, summary.pages())?
            }
        };
        self.note(answer);
        Ok(())
    }

    /// While the others go on, and all fails: a store of another plan is made from a snapshot. Each
    /// page in it is that of the snapshot, or an error whose cause the world knows.
    fn restore_elsewhere(
        &mut self,
        file: &SnapshotFile,
        pages: u64,
    ) -> Result<&'static str, String> {
        let run = self.run;
        let mut plan = run.plan.clone();
        plan.change_store(self.dice.below(1 << 32) as u64);
        plan.check_as(&run.plan);
        let told = |what: String| snapshots::elsewhere(&plan, &what);
        let fresh = match snapshots::restore_elsewhere(&plan, &run.world, file, pages)? {
            Ok(fresh) => fresh,
            Err(why) => return Ok(why),
        };
        let read = snapshots::read(&run.plan, &run.world, file, &mut |number, _, expected| {
            let mut page = [0; PAGE_SIZE];
            Struck::forget();
            match fresh.load(plan.key(number), &mut page) {
                Ok(true) if page == *expected => Ok(()),
                Err(error) => check_load_error(&fresh, Struck::since(), &error).map(drop),
                other => Err(told(format!("key {number}: {other:?}"))),
            }
        });
        read.map(|_| "restored elsewhere")
    }
}
