//! Torture with one thread, and a second one that works in turn with it: one seed, one history.

mod snapshot;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use snapshot::Then;

use super::checks::{self, Refused, Totals};
use super::faults::{Fault, Struck};
use super::pages::Identity;
use super::plan::{Dice, Plan};
use super::world::{Meanwhile, Point, Turn, World, become_other, lock, tell_when_waiting};
use super::{Failure, Outcome, Torture};
use uzswap::budget::Counted;
use uzswap::index::IndexError;
use uzswap::page::{PAGE_SIZE, Page};
use uzswap::random::mix;
use uzswap::zswap::{
    ShrinkerOptions, Shrunk, StoreError, Stored, TenantError, TenantId, TenantOptions, Zswap,
};

/// Operations between two looks at the figures, and at all structures.
const LOOK_EVERY: u64 = 64;
const AUDIT_EVERY: u64 = 1024;

/// Operations that a failure can tell of.
const LOG_STEPS: usize = 1 << 14;

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Store {
        key: usize,
        kind: usize,
        tenant: usize,
    },
    Load {
        key: usize,
    },
    LoadExclusive {
        key: usize,
    },
    Invalidate {
        key: usize,
    },
    InvalidateRange {
        first: usize,
        last: usize,
    },
    Shrink {
        tenant: usize,
        pages: usize,
    },
    Compact,
    Recompress {
        key: usize,
    },
    Discard,
    Snapshot {
        skip_corrupt: bool,
        then: Then,
    },
    SetTenant {
        tenant: usize,
        max_bytes: u64,
        writeback: bool,
    },
    /// A tenant is removed, and another one takes its place.
    ReplaceTenant {
        tenant: usize,
    },
    /// The work of the shrinker's thread after a wakeup.
    ShrinkerTurn {
        dynamic: bool,
        compact_percent: u8,
    },
}

impl Operation {
    fn key(self) -> Option<usize> {
        match self {
            Operation::Store { key, .. }
            | Operation::Load { key }
            | Operation::LoadExclusive { key }
            | Operation::Recompress { key }
            | Operation::Invalidate { key } => Some(key),
            _ => None,
        }
    }

    fn is_about(self, about: Option<usize>) -> bool {
        match self {
            Operation::InvalidateRange { first, last } => {
                about.is_some_and(|key| (first..=last).contains(&key))
            }
            other => other.key() == about || other.key().is_none(),
        }
    }
}

/// One operation and its answer.
#[derive(Debug, Clone, Copy)]
struct Step {
    number: u64,
    by_other: bool,
    operation: Operation,
    answer: &'static str,
    detail: u64,
}

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    identity: Identity,
    is_word: bool,
    tenant: usize,
}

/// Pages that the store must hold, and its answers.
#[derive(Debug)]
struct Model {
    pages: Vec<Option<Kept>>,
    present: usize,
    /// The most that were there since this thread's operation began.
    present_most: usize,
    words: u64,
    /// Pages that keys held at some time since this thread's operation began.
    meanwhile: Vec<(usize, Option<Kept>)>,
    /// The limits of tenants since then, the last one now.
    limits: Vec<Vec<u64>>,
    /// What each tenant may have.
    allowed: Vec<u64>,
    highest: Vec<u64>,
    totals: Totals,
    tally: BTreeMap<&'static str, u64>,
    stores: u64,
    number: u64,
    digest: u64,
    log: VecDeque<Step>,
    /// This thread's operation.
    own: Operation,
    failure: Option<(Operation, String)>,
}

impl Model {
    fn put(&mut self, key: usize, kept: Option<Kept>, by_other: bool) {
        let before = std::mem::replace(&mut self.pages[key], kept);
        if by_other {
            self.meanwhile.push((key, kept));
        }
        self.present = self.present + usize::from(kept.is_some()) - usize::from(before.is_some());
        self.present_most = self.present_most.max(self.present);
        let word = |kept: Option<Kept>| u64::from(kept.is_some_and(|kept| kept.is_word));
        self.words = self.words + word(kept) - word(before);
    }

    fn note(&mut self, operation: Operation, by_other: bool, answer: &'static str, detail: u64) {
        *self.tally.entry(answer).or_default() += 1;
        let name = answer.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
        self.digest = mix(self.digest ^ name ^ detail.rotate_left(32) ^ u64::from(by_other));
        if self.log.len() == LOG_STEPS {
            self.log.pop_front();
        }
        let number = self.number;
        self.log.push_back(Step { number, by_other, operation, answer, detail });
    }
}

/// All of one seed.
#[derive(Debug)]
struct Stage {
    plan: Plan,
    world: Arc<World>,
    /// The one that is in use now.
    zswap: Mutex<Arc<Zswap>>,
    tenants: Mutex<Vec<TenantId>>,
    model: Mutex<Model>,
}

/// How much of what is asked for, in one part of a history.
#[derive(Debug, Clone, Copy)]
struct Mood {
    stores: usize,
    loads: usize,
    removals: usize,
    upkeep: usize,
    /// Most operations are about so many keys.
    favourites: usize,
}

impl Mood {
    fn new(dice: &mut Dice, keys: usize) -> Mood {
        Mood {
            stores: dice.of(&[10, 30, 60, 90]),
            loads: dice.of(&[10, 40, 80]),
            removals: dice.of(&[1, 3, 10, 40]),
            upkeep: dice.of(&[0, 2, 10]),
            favourites: dice.of(&[keys, keys / 4 + 1, 4]),
        }
    }
}

/// Runs a seed by one thread.
pub(super) fn run(torture: &Torture, seed: u64) -> Outcome {
    let plan = Plan::new(seed, torture.faults, torture.plant);
    let world = Arc::new(World::new(seed, plan.rates, false, torture.plant));
    let (zswap, tenants) = match plan.build(&world) {
        Ok(built) => built,
        Err(what) => return Outcome::failed(Failure::early(torture, seed, what)),
    };
    let model = Model {
        pages: vec![None; plan.keys],
        present: 0,
        present_most: 0,
        words: 0,
        meanwhile: Vec::new(),
        limits: vec![vec![u64::MAX]; tenants.len()],
        allowed: vec![u64::MAX; tenants.len()],
        highest: vec![u64::MAX; tenants.len()],
        totals: Totals { replaced: Some(0), ..Totals::default() },
        tally: BTreeMap::new(),
        stores: 0,
        number: 0,
        digest: seed,
        log: VecDeque::new(),
        own: Operation::Compact,
        failure: None,
    };
    let stage = Arc::new(Stage {
        plan,
        world: Arc::clone(&world),
        zswap: Mutex::new(Arc::new(zswap)),
        tenants: Mutex::new(tenants),
        model: Mutex::new(model),
    });
    let (jobs, to_do) = sync_channel(1);
    let (say, turns) = sync_channel(2);
    world.connect(Some(Meanwhile { jobs, turns }));
    let other = {
        let stage = Arc::clone(&stage);
        std::thread::spawn(move || {
            become_other();
            let mut dice = Dice::new(seed ^ 0x6f74_6865_7221);
            for point in to_do {
                tell_when_waiting((point == Point::Pinned).then(|| say.clone()));
                let count = match point {
                    Point::Pinned => 1,
                    Point::Free | Point::Writing => dice.of(&[1, 1, 2, 4, 12]),
                };
                (0..count).for_each(|_| stage.take_turn(&mut dice, point));
                tell_when_waiting(None);
                if say.send(Turn::Over).is_err() {
                    break;
                }
            }
        })
    };
    let ended = stage.drive(torture, seed);
    world.connect(None);
    let joined = other.join();
    let mut state = lock(&stage.model);
    let log = std::mem::take(&mut state.log);
    let ended = ended.and(match joined {
        Ok(()) => Ok(()),
        Err(_) => Err((Operation::Compact, "the other thread panicked".to_owned())),
    });
    Outcome {
        operations: state.number,
        digest: state.digest,
        tally: std::mem::take(&mut state.tally),
        fired: Fault::ALL.map(|fault| world.fired(fault)),
        counters: stage.zswap().counters(),
        failure: ended.err().map(|(operation, what)| Failure {
            seed,
            what,
            replay: torture.replay(seed, state.number),
            plan: stage.plan.summary(),
            steps: last_steps(&log, operation),
        }),
    }
}

/// The last steps about the key of an operation, and the last of all.
fn last_steps(log: &VecDeque<Step>, operation: Operation) -> Vec<String> {
    let about = operation.key();
    let mut steps: Vec<&Step> =
        log.iter().rev().filter(|step| step.operation.is_about(about)).take(16).collect();
    steps.reverse();
    let tell = |step: &&Step| {
        let Step { number, by_other, operation, answer, detail } = step;
        let by = if *by_other { " (meanwhile)" } else { "" };
        format!("{number}{by}: {operation:?} -> {answer} ({detail})")
    };
    steps.iter().map(tell).collect()
}

type Told = (Operation, String);

impl Stage {
    fn drive(&self, torture: &Torture, seed: u64) -> Result<(), Told> {
        let about = |what: String| (Operation::Compact, what);
        let mut dice = Dice::new(seed ^ 0x6d61_696e);
        let start = self.zswap().memory().index_bytes as usize;
        let mut mood = Mood::new(&mut dice, self.plan.keys);
        for number in 1..=torture.operations {
            if dice.one_in(500) {
                mood = Mood::new(&mut dice, self.plan.keys);
            }
            let operation = self.choose(&mut dice, mood);
            {
                let mut model = lock(&self.model);
                model.number = number;
                model.own = operation;
                model.present_most = model.present;
                model.meanwhile.clear();
                model.limits.iter_mut().for_each(|limits| {
                    let now = limits.pop();
                    limits.clear();
                    limits.extend(now);
                });
            }
            let done = caught(|| self.perform(operation, false));
            self.world.settle();
            done.map_err(|what| (operation, what))?;
            if let Some(failure) = lock(&self.model).failure.take() {
                return Err(failure);
            }
            if let Some(what) = self.world.take_violation() {
                return Err((operation, what));
            }
            if number % LOOK_EVERY == 0 {
                self.look().map_err(about)?;
            }
            if number % AUDIT_EVERY == 0 {
                self.audit().map_err(about)?;
            }
        }
        self.world.calm_down();
        for key in 0..self.plan.keys {
            let operation = Operation::Load { key };
            lock(&self.model).meanwhile.clear();
            self.perform(operation, false).map_err(|what| (operation, what))?;
        }
        self.look().and_then(|()| self.audit()).map_err(about)?;
        let all = Operation::InvalidateRange { first: 0, last: self.plan.keys - 1 };
        self.perform(all, false).map_err(about)?;
        self.look().map_err(about)?;
        let tenants = self.tenant_count();
        checks::check_empty(&self.plan, &self.zswap(), start, tenants).map_err(about)?;
        self.world.take_violation().map_or(Ok(()), |what| Err(about(what)))
    }

    fn zswap(&self) -> Arc<Zswap> {
        Arc::clone(&lock(&self.zswap))
    }

    fn tenant(&self, number: usize) -> TenantId {
        lock(&self.tenants)[number]
    }

    fn tenant_count(&self) -> usize {
        self.plan.parents.len() + 1
    }

    fn audit(&self) -> Result<(), String> {
        caught(|| self.zswap().audit().map_err(String::from))
    }

    /// Checks the figures.
    fn look(&self) -> Result<(), String> {
        let mut model = lock(&self.model);
        let held = (model.present as u64, model.words);
        let rotten = self.world.fired(Fault::ObjectRot);
        checks::check_figures(&self.plan, &self.zswap(), &model.totals, Some(held), rotten)?;
        if self.plan.options.records.is_none() {
            return Ok(());
        }
        for (number, tenant) in self.zswap().tenants().iter().enumerate() {
            let limit = tenant.options.max_bytes;
            let most = model.allowed[number];
            let now = tenant.current_bytes;
            if now > most || tenant.peak_bytes > model.highest[number] {
                return Err(format!("tenant {number} has {now} bytes of {most}: {tenant:?}"));
            }
            model.allowed[number] = limit.max(now);
        }
        Ok(())
    }

    fn some_key(&self, dice: &mut Dice, mood: Mood) -> usize {
        let most = if dice.one_in(8) { self.plan.keys } else { mood.favourites };
        dice.below(most.min(self.plan.keys))
    }

    fn choose(&self, dice: &mut Dice, mood: Mood) -> Operation {
        let key = self.some_key(dice, mood);
        let Mood { stores, loads, removals, upkeep, .. } = mood;
        let drawn = dice.below(stores + loads + removals + upkeep);
        if drawn < stores {
            return self.some_store(dice, key);
        }
        if drawn < stores + loads {
            return match dice.below(10) {
                0..2 => Operation::LoadExclusive { key },
                2 => Operation::Recompress { key },
                _ => Operation::Load { key },
            };
        }
        if drawn < stores + loads + removals {
            return match dice.one_in(24) {
                true => self.some_range(dice, key),
                false => Operation::Invalidate { key },
            };
        }
        match dice.below(64) {
            0..7 => Operation::Compact,
            7..11 => Operation::Discard,
            11..17 => {
                let then = match dice.below(5) {
                    0 => Then::ReadBack,
                    1 => Then::Damage { seed: dice.below(1 << 32) as u64 },
                    2 => Then::Elsewhere { seed: dice.below(1 << 32) as u64 },
                    _ => Then::GoOn { calm: dice.one_in(2) },
                };
                Operation::Snapshot { skip_corrupt: !dice.one_in(3), then }
            }
            17..26 => self.some_tenant(dice),
            26..32 => match self.some_leaf(dice) {
                Some(tenant) => Operation::ReplaceTenant { tenant },
                None => self.some_tenant(dice),
            },
            32..38 => Operation::ShrinkerTurn {
                dynamic: dice.one_in(2),
                compact_percent: dice.of(&[100, 10, 0]),
            },
            _ => {
                let tenant = dice.below(self.tenant_count());
                Operation::Shrink { tenant, pages: dice.of(&[1, 3, 16, 64, 200]) }
            }
        }
    }

    fn some_store(&self, dice: &mut Dice, key: usize) -> Operation {
        let tenant = if dice.one_in(4) { 0 } else { dice.below(self.tenant_count()) };
        Operation::Store { key, kind: dice.below(8), tenant }
    }

    fn some_range(&self, dice: &mut Dice, key: usize) -> Operation {
        let length = dice.of(&[1, 5, 40, self.plan.keys]);
        Operation::InvalidateRange { first: key, last: (key + length).min(self.plan.keys - 1) }
    }

    /// A tenant with none below it, and not the root.
    fn some_leaf(&self, dice: &mut Dice) -> Option<usize> {
        let tenant = dice.below(self.tenant_count());
        (tenant > 0 && !self.plan.parents.contains(&tenant)).then_some(tenant)
    }

    fn some_tenant(&self, dice: &mut Dice) -> Operation {
        let tenant = dice.below(self.tenant_count());
        let pages = self.plan.keys as u64;
        let page = PAGE_SIZE as u64;
        let some = [u64::MAX, u64::MAX, pages * page / 8, pages * page / 2, 3 * page, 0];
        Operation::SetTenant { tenant, max_bytes: dice.of(&some), writeback: !dice.one_in(4) }
    }

    /// Operation of the other thread at a point of this one's operation.
    fn take_turn(&self, dice: &mut Dice, point: Point) {
        let own = lock(&self.model).own;
        let mood = Mood::new(dice, self.plan.keys);
        let key = match own.key() {
            Some(key) if dice.one_in(2) => key,
            _ => self.some_key(dice, mood),
        };
        let word = |dice: &mut Dice| {
            let check = self.plan.options.same_filled;
            match check.word(&[0; PAGE_SIZE]) {
                Some(_) => {
                    Operation::Store { key, kind: 1, tenant: dice.below(self.tenant_count()) }
                }
                None => Operation::Invalidate { key },
            }
        };
        // Where the index is in the budget, a word may have to wait for the batch that is written.
        let never_waits = self.plan.options.counted == Counted::Pool;
        let operation = match (point, dice.below(8)) {
            (Point::Pinned, 0..5) if never_waits => word(dice),
            (Point::Pinned, _) => Operation::Invalidate { key },
            (Point::Writing, 0 | 1) if never_waits => word(dice),
            (Point::Writing, 0..4) => Operation::LoadExclusive { key },
            (Point::Writing, 4) => self.some_tenant(dice),
            (Point::Writing, 5) => self.some_range(dice, key),
            (Point::Writing, 6) if dice.one_in(8) => {
                Operation::Snapshot { skip_corrupt: true, then: Then::ReadBack }
            }
            (Point::Writing, 6) => Operation::Compact,
            (Point::Writing, _) => Operation::Invalidate { key },
            (Point::Free, 0) => Operation::Shrink { tenant: 0, pages: dice.of(&[1, 16, 64]) },
            (Point::Free, 1) => self.some_store(dice, key),
            (Point::Free, 2) => Operation::Load { key },
            (Point::Free, _) => match self.choose(dice, mood) {
                // Only between operations does a store give way to another one.
                Operation::Snapshot { skip_corrupt, .. } => {
                    Operation::Snapshot { skip_corrupt, then: Then::ReadBack }
                }
                // And only there is nobody in the middle of something for a tenant.
                Operation::ReplaceTenant { tenant } => Operation::Shrink { tenant, pages: 3 },
                other => other,
            },
        };
        // A store may have removed what was there already.
        let is_own_store = matches!(own, Operation::Store { .. }) && point != Point::Free;
        if is_own_store && operation.is_about(own.key()) && !matches!(operation, Operation::Compact)
        {
            return;
        }
        if let Err(what) = caught(|| self.perform(operation, true)) {
            lock(&self.model).failure.get_or_insert((operation, format!("meanwhile: {what}")));
        }
    }

    fn perform(&self, operation: Operation, by_other: bool) -> Result<(), String> {
        let key = |number: usize| self.plan.key(number);
        Struck::forget();
        match operation {
            Operation::Store { key: number, kind, tenant } => {
                self.store(operation, by_other, number, kind, tenant)
            }
            Operation::Load { key: number } => self.load(operation, by_other, number),
            Operation::LoadExclusive { key: number } => {
                self.load_exclusive(operation, by_other, number)
            }
            Operation::Invalidate { key: number } => {
                let removed = self.zswap().invalidate(key(number));
                let model = &mut *lock(&self.model);
                if removed != model.pages[number].is_some() {
                    return Err(format!("expected {:?}, found {removed}", model.pages[number]));
                }
                model.put(number, None, by_other);
                model.totals.invalidated += u64::from(removed);
                let answer = if removed { "invalidated" } else { "invalidated: nothing" };
                model.note(operation, by_other, answer, 0);
                Ok(())
            }
            Operation::InvalidateRange { first, last } => {
                let removed = self.zswap().invalidate_range(key(first)..=key(last));
                let model = &mut *lock(&self.model);
                let expected = model.pages[first..=last].iter().flatten().count();
                if removed != expected {
                    return Err(format!("expected {expected} pages, found {removed}"));
                }
                (first..=last).for_each(|number| model.put(number, None, by_other));
                model.totals.invalidated += removed as u64;
                model.note(operation, by_other, "invalidated: a range", removed as u64);
                Ok(())
            }
            Operation::Shrink { tenant, pages } => {
                let shrunk = self.zswap().shrink(self.tenant(tenant), pages);
                let struck = Struck::since();
                let model = &mut *lock(&self.model);
                let can = self.plan.blocks.is_some();
                let why = struck.by(&checks::WRITES)
                    || checks::may_be_full(&self.plan, model.present_most);
                if shrunk.pages() > pages || !can && shrunk.pages() + shrunk.failed > 0 {
                    return Err(format!("{shrunk:?} of {pages} pages"));
                }
                if shrunk.failed > 0 && !why {
                    return Err(format!("failed without a reason: {shrunk:?}; faults: {struck}"));
                }
                let detail = shrunk.written_back << 40
                    | shrunk.dropped_clean << 24
                    | shrunk.failed << 8
                    | shrunk.kept;
                let answer = match (shrunk.pages(), shrunk.failed) {
                    (0, 0) => "shrunk: nothing",
                    (0, _) => "shrunk: failed",
                    _ => "shrunk",
                };
                model.note(operation, by_other, answer, detail as u64);
                Ok(())
            }
            Operation::Compact => {
                let freed = self.zswap().compact();
                lock(&self.model).note(operation, by_other, "compacted", freed as u64);
                Ok(())
            }
            Operation::Recompress { key: number } => {
                let unit = self.plan.unit(number);
                let before = lock(&self.model).pages[unit.clone()].to_vec();
                let recompressed = self.zswap().recompress_unit(key(number));
                let struck = Struck::since();
                let model = &mut *lock(&self.model);
                let since = model.meanwhile.iter().filter(|(key, _)| unit.contains(key));
                let had_any = before
                    .iter()
                    .chain(&model.pages[unit.clone()])
                    .chain(since.map(|(_, kept)| kept))
                    .any(Option::is_some);
                let (answer, saved) = match recompressed {
                    Ok(0) => ("recompressed: nothing", 0),
                    Ok(_) if !had_any => return Err("there was no page".to_owned()),
                    Ok(saved) => ("recompressed", saved),
                    Err(error) => (
                        model.totals.note_failed_load(&self.zswap(), had_any, struck, &error)?,
                        0,
                    ),
                };
                model.note(operation, by_other, answer, saved as u64);
                Ok(())
            }
            Operation::Discard => {
                let blocks = self.zswap().discard();
                if blocks > 0 && self.plan.blocks.is_none() {
                    return Err(format!("{blocks} blocks of no backing were discarded"));
                }
                let answer = if blocks > 0 { "discarded" } else { "discarded: nothing" };
                lock(&self.model).note(operation, by_other, answer, blocks as u64);
                Ok(())
            }
            Operation::Snapshot { skip_corrupt, then } => {
                self.snapshot(operation, by_other, skip_corrupt, then)
            }
            Operation::SetTenant { tenant, max_bytes, writeback } => {
                self.set_tenant(operation, by_other, tenant, max_bytes, writeback)
            }
            Operation::ReplaceTenant { tenant } => self.replace_tenant(operation, tenant),
            Operation::ShrinkerTurn { dynamic, compact_percent } => {
                let options =
                    ShrinkerOptions::default().dynamic(dynamic).compact_percent(compact_percent);
                self.zswap().shrinker_turn(options, &AtomicBool::new(false));
                lock(&self.model).note(operation, by_other, "shrinker's turn", 0);
                Ok(())
            }
        }
    }

    /// A tenant goes: its pages are of the one above. Another one comes, which has none.
    fn replace_tenant(&self, operation: Operation, tenant: usize) -> Result<(), String> {
        let zswap = self.zswap();
        let (before, above) = (self.tenant(tenant), self.plan.parents[tenant - 1]);
        let removed = zswap.remove_tenant(before);
        let model = &mut *lock(&self.model);
        match removed {
            Ok(()) => {}
            Err(TenantError::NoMemory { source: IndexError::OverBudget(over), .. })
                if checks::passes(&self.plan, &over) =>
            {
                model.note(operation, false, "tenant not removed", 0);
                return Ok(());
            }
            Err(error) => return Err(format!("tenant {tenant} is not removed: {error:?}")),
        }
        for kept in model.pages.iter_mut().flatten().filter(|kept| kept.tenant == tenant) {
            kept.tenant = above;
        }
        let shrunk = zswap.shrink(before, 8);
        let is_gone = shrunk == Shrunk::default()
            && zswap.set_tenant(before, TenantOptions::default()).is_err();
        if !is_gone {
            return Err(format!("tenant {tenant} is there still: {shrunk:?}"));
        }
        let options = TenantOptions::default().name(format!("tenant {tenant}"));
        let added = zswap.add_tenant(self.tenant(above), options).map_err(|e| e.to_string())?;
        if added == before || added.number() != before.number() {
            return Err(format!("tenant {added:?} in the place of {before:?}"));
        }
        let fresh = zswap.tenants().into_iter().find(|one| one.number == added.number());
        if fresh.is_none_or(|fresh| fresh.current_bytes + fresh.peak_bytes > 0) {
            return Err(format!("tenant {added:?} is new, and has pages"));
        }
        lock(&self.tenants)[tenant] = added;
        model.limits[tenant].push(u64::MAX);
        model.allowed[tenant] = u64::MAX;
        model.note(operation, false, "tenant replaced", 0);
        Ok(())
    }

    fn set_tenant(
        &self,
        operation: Operation,
        by_other: bool,
        tenant: usize,
        max_bytes: u64,
        writeback: bool,
    ) -> Result<(), String> {
        let options = TenantOptions::default()
            .name(format!("tenant {tenant}"))
            .max_bytes(max_bytes)
            .writeback(writeback);
        let set = self.zswap().set_tenant(self.tenant(tenant), options);
        let model = &mut *lock(&self.model);
        if set.is_err() != self.plan.options.records.is_none() {
            return Err(format!("{set:?}"));
        }
        model.limits[tenant].push(max_bytes);
        // An earlier page may stay; a store on its way may have been accepted before.
        if set.is_ok() {
            let now = self.zswap().tenants()[tenant].current_bytes;
            let before = if by_other { model.allowed[tenant] } else { 0 };
            model.allowed[tenant] = max_bytes.max(now).max(before);
        }
        model.note(operation, by_other, "tenant changed", 0);
        Ok(())
    }

    fn store(
        &self,
        operation: Operation,
        by_other: bool,
        number: usize,
        kind: usize,
        tenant: usize,
    ) -> Result<(), String> {
        let identity = {
            let mut model = lock(&self.model);
            model.stores += 1;
            Identity::new(number, 0, model.stores, kind)
        };
        let mut page = [0; PAGE_SIZE];
        identity.fill(&mut page);
        let is_word = self.plan.options.same_filled.word(&page).is_some();
        let stored = self.zswap().store_for(self.tenant(tenant), self.plan.key(number), &page);
        let struck = Struck::since();
        let model = &mut *lock(&self.model);
        let refused = Refused {
            plan: &self.plan,
            zswap: &self.zswap(),
            kind: identity.kind(),
            tenant,
            struck,
            limits: Some(&model.limits),
            present: model.present_most,
            tenants_change: false,
        };
        let (answer, kept, detail) = match &stored {
            Ok(stored) => {
                let answer = refused.check_kept(*stored, is_word)?;
                let bytes = match stored {
                    Stored::Compressed { bytes } => *bytes as u64,
                    _ => 0,
                };
                (answer, Some(Kept { identity, is_word, tenant }), bytes)
            }
            Err(error) => (refused.check(error)?, None, 0),
        };
        let was_there = model.pages[number].is_some();
        let totals = &mut model.totals;
        totals.replaced = totals.replaced.map(|count| count + u64::from(was_there));
        match stored {
            Ok(stored) => {
                totals.note_stored(&self.plan, stored);
            }
            Err(StoreError::IndexFull { .. }) => totals.no_index += 1,
            Err(_) => totals.refused += 1,
        }
        model.put(number, kept, by_other);
        model.note(operation, by_other, answer, detail);
        Ok(())
    }

    fn load(&self, operation: Operation, by_other: bool, number: usize) -> Result<(), String> {
        let before = lock(&self.model).pages[number];
        let mut page = [0xa5; PAGE_SIZE];
        let loaded = self.zswap().load(self.plan.key(number), &mut page);
        let struck = Struck::since();
        let model = &mut *lock(&self.model);
        let now = model.pages[number];
        let was: Vec<Option<Kept>> = match by_other {
            true => vec![now],
            false => {
                let since = model.meanwhile.iter().filter(|(key, _)| *key == number);
                [before].into_iter().chain(since.map(|(_, kept)| *kept)).collect()
            }
        };
        let answer = match loaded {
            Ok(true) => {
                let right = |kept: &Kept| is_page(&page, kept);
                if !was.iter().flatten().any(right) {
                    return Err(wrong_page(&page, now));
                }
                model.totals.loads += 1;
                "loaded"
            }
            Ok(false) if !was.contains(&None) => return Err(lost(now)),
            Ok(false) if was == [None] && page != [0xa5; PAGE_SIZE] => {
                return Err("the buffer was changed where there is no page".to_owned());
            }
            Ok(false) => "load: nothing",
            Err(error) => model.totals.note_failed_load(
                &self.zswap(),
                was.iter().any(Option::is_some),
                struck,
                &error,
            )?,
        };
        if answer == "load: corrupt in the pool" {
            model.totals.corrupt_in_pool += 1;
        }
        model.note(operation, by_other, answer, 0);
        Ok(())
    }

    fn load_exclusive(
        &self,
        operation: Operation,
        by_other: bool,
        number: usize,
    ) -> Result<(), String> {
        let mut page: Page = [0xa5; PAGE_SIZE];
        let loaded = self.zswap().load_exclusive(self.plan.key(number), &mut page);
        let struck = Struck::since();
        let model = &mut *lock(&self.model);
        let now = model.pages[number];
        let was_there = !by_other && model.meanwhile.iter().any(|(key, _)| *key == number);
        let answer = match (loaded, now) {
            (Ok(true), Some(kept)) if is_page(&page, &kept) => {
                model.put(number, None, by_other);
                model.totals.exclusive += 1;
                "taken"
            }
            (Ok(true), _) => return Err(wrong_page(&page, now)),
            (Ok(false), None) => "take: nothing",
            (Ok(false), Some(_)) => return Err(lost(now)),
            (Err(error), _) => model.totals.note_failed_load(
                &self.zswap(),
                now.is_some() || was_there,
                struck,
                &error,
            )?,
        };
        model.note(operation, by_other, answer, 0);
        Ok(())
    }
}

fn is_page(page: &Page, kept: &Kept) -> bool {
    kept.identity.check(page).is_ok()
}

fn wrong_page(page: &Page, now: Option<Kept>) -> String {
    match now {
        Some(kept) => kept.identity.check(page).err().unwrap_or_default(),
        None => format!("expected no page, found {:?}", Identity::of(page)),
    }
}

fn lost(now: Option<Kept>) -> String {
    match now {
        Some(kept) => format!("expected {}, found none", kept.identity),
        None => "expected none, found none".to_owned(),
    }
}

/// The result of the work, a panic included.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("of another kind")))
    })
}
