//! A sample: one pass over all programs, which measures each and finds memory to register.

use std::time::Instant;

use crate::account::sample::Sample;
use crate::address_space::{count_copies, process_size};
use crate::fork::pss_survey::UsageTotal;
use crate::monitor::registrar::Due;
use crate::policy::victim::Batches;
use crate::{PAGE_SIZE, Pager, SpaceHandle, lock};

/// One pass over all programs.
struct Pass {
    now: Instant,
    /// Headroom for COW copies before the pass, in bytes.
    headroom_for_copies: u64,
    sample: Sample,
    /// Usage where each shared page counts once.
    total: UsageTotal,
    managed: Vec<u32>,
    due: Due,
    has_lost_helper: bool,
}

impl Pager {
    /// Measures all programs and the store. Returns the bytes in use.
    pub(crate) fn sample(&self) -> u64 {
        let mut sampling = self.account.begin_sample();
        let mut pass = Pass::new(self);
        pass.add_outsiders(self);
        self.spaces().iter().for_each(|space| pass.add(space));
        let Pass { total, managed, due, has_lost_helper, mut sample, .. } = pass;
        if has_lost_helper {
            self.wakers.report_lost_helper();
        }
        // The last scan of the tree may have met a process before its helper came.
        self.account.unmanaged().forget(&managed);
        sample.once = total.once();
        let store = self.store.usage();
        let pages_in_pool = || self.store.pages_in_pool(&store);
        let sampled = sampling.fold(Instant::now(), &sample, &store, pages_in_pool);
        if sampled.is_near_goal {
            self.to_scan.add(due);
        }
        sampled.used
    }
}

impl Pass {
    fn new(pager: &Pager) -> Pass {
        let account = &pager.account;
        let tables = pager.store.slot_bytes();
        Pass {
            now: Instant::now(),
            headroom_for_copies: account.headroom_for_copies(),
            sample: Sample { tables, ..Sample::default() },
            total: UsageTotal::default(),
            managed: Vec::new(),
            due: Due::new(account.unobserved_bytes()),
            has_lost_helper: false,
        }
    }

    /// Adds unmanaged processes that share pages with managed ones; drops those that have ended.
    fn add_outsiders(&mut self, pager: &Pager) {
        let outsiders = pager.outsiders.all();
        if outsiders.iter().any(|outsider| outsider.resident_bytes().is_none()) {
            pager.drop_outsiders(|outsider| outsider.resident_bytes().is_none());
        }
        for outsider in outsiders {
            if let Some(bytes) = outsider.resident_bytes() {
                self.total.add_outsider(&outsider, bytes);
                self.sample.outside_apart += bytes;
            }
        }
        self.sample.shares |= self.sample.outside_apart > 0;
    }

    /// Adds a managed process, and checks its forks.
    fn add(&mut self, shared: &SpaceHandle) {
        let size = process_size(shared);
        let lives = size.filter(|size| size.mapped > 0);
        if let Some(size) = lives {
            count_copies(shared, size, self.now);
        }
        let Pass { sample, total, .. } = self;
        let mut space = lock(shared);
        self.managed.extend(space.process.pid());
        space.check_forks();
        self.has_lost_helper |= space.process.has_lost_helper(size);
        let bytes = space.bytes_of(size);
        sample.managed_apart += bytes;
        match lives.is_none() && space.process.files().is_some() {
            true => total.add_ended(&mut space, bytes),
            false => total.add(&mut space, bytes),
        }
        sample.tables += space.bytes() as u64;
        sample.staging += space.staging_bytes();
        sample.shares |= space.charge.group().is_some();
        sample.largest_batch = sample.largest_batch.max(Batches::of(bytes).bytes());
        space.have_forks_reported(bytes, self.headroom_for_copies);
        if let Some(size) = lives {
            sample.unobserved += space.charge.take_unobserved_growth(size);
            sample.others += size.others * PAGE_SIZE as u64;
            self.due.see(shared, &mut space, size);
        }
    }
}
