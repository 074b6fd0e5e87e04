//! Writes and checks snapshots of the store: their required pages, and the reasons for a missing
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checks::{check_load_error, passes};
use super::faults::{Fault, Struck};
use super::plan::{Dice, Plan};
use super::world::{SnapshotFile, World};
use uzswap::compressor::{Compressor, ObjectFormat};
use uzswap::index::IndexError;
use uzswap::page::{PAGE_SIZE, Page, fill_with_word};
use uzswap::zswap::snapshot::{
    PageForm, RestoreError, RestoreSummary, SnapshotError, SnapshotFault, SnapshotOptions,
    SnapshotReadError, SnapshotReader, SnapshotSummary,
};
use uzswap::zswap::{TenantError, Zswap};

/// Outcome of reading a file.
pub(super) type Told = Result<(), String>;

/// Writes a snapshot to a file.
pub(super) fn write(
    world: &Arc<World>,
    zswap: &Zswap,
    skip_corrupt: bool,
) -> (SnapshotFile, Result<SnapshotSummary, SnapshotError>) {
    let mut file = SnapshotFile::new(world, Vec::new());
    let written = zswap.snapshot_to(&mut file, SnapshotOptions { skip_corrupt });
    (file, written)
}

/// Checks why a snapshot was not written; what that is called.
pub(super) fn check_not_written(
    zswap: &Zswap,
    struck: Struck,
    file: &SnapshotFile,
    error: &SnapshotError,
) -> Result<&'static str, String> {
    let is_right = match error {
        SnapshotError::Write { at, .. } => {
            struck.by(&[Fault::FileError]) && *at <= file.bytes().len() as u64
        }
        SnapshotError::Page { source } => {
            return check_load_error(zswap, struck, source).map(|why| match why {
                "load: not read" => "snapshot: a page not read",
                _ => "snapshot: a page corrupt",
            });
        }
        _ => false,
    };
    match is_right {
        true => Ok("snapshot: not written"),
        false => Err(format!("no snapshot without a reason: {error:?}; faults: {struck}")),
    }
}

/// Reads a snapshot and gives `visit` the number of each page's key, its tenant and the page; what
/// was in it, or none where the file fails.
pub(super) fn read(
    plan: &Plan,
    world: &Arc<World>,
    file: &SnapshotFile,
    visit: &mut dyn FnMut(usize, usize, &Page) -> Told,
) -> Result<Option<SnapshotSummary>, String> {
    Struck::forget();
    let compressor = plan.compressor(world);
    let mut file = SnapshotFile::new(world, file.bytes().to_vec());
    let failed = |error: SnapshotReadError| match is_file_error(&error) {
        true => Ok(None),
        false => Err(format!("not read back: {error}")),
    };
    let mut snapshot = match SnapshotReader::new("snapshot", &mut file) {
        Ok(snapshot) => snapshot,
        Err(error) => return failed(error),
    };
    loop {
        let block = match snapshot.next_block() {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(snapshot.summary().copied()),
            Err(error) => return failed(error),
        };
        for found in block.pages() {
            let mut page = [0; PAGE_SIZE];
            match found.form {
                PageForm::Word(word) => fill_with_word(&mut page, word),
                PageForm::AsIs(bytes) => page = *bytes,
                PageForm::Object(object) => {
                    let object = compressor.decompress(object, &mut page);
                    object.map_err(|error| format!("page {} of it: {error}", found.key))?;
                }
            }
            let number = plan.number(found.key).ok_or_else(|| format!("key {}", found.key))?;
            visit(number, found.tenant, &page)?;
        }
    }
}

fn is_file_error(error: &SnapshotReadError) -> bool {
    matches!(error.fault, SnapshotFault::Io { .. }) && Struck::since().by(&[Fault::FileError])
}

/// Restores a snapshot into a new store.
pub(super) fn restore(
    plan: &Plan,
    world: &Arc<World>,
    bytes: &[u8],
) -> Result<Result<(Zswap, RestoreSummary), RestoreError>, String> {
    let fresh = plan.store(world)?;
    Struck::forget();
    let mut file = SnapshotFile::new(world, bytes.to_vec());
    Ok(SnapshotReader::new("snapshot", &mut file)
        .map_err(RestoreError::from)
        .and_then(|snapshot| fresh.restore_from(snapshot)))
}

/// Restores a snapshot of so many pages into a new store of another plan, and audits it. Where
/// there is none, the name of the reason.
pub(super) fn restore_elsewhere(
    plan: &Plan,
    world: &Arc<World>,
    file: &SnapshotFile,
    pages: u64,
) -> Result<Result<Zswap, &'static str>, String> {
    let told = |what: String| elsewhere(plan, &what);
    let (fresh, went) = match restore(plan, world, file.bytes())? {
        Ok(restored) => restored,
        Err(error) => return check_not_restored(plan, pages, &error).map(Err).map_err(told),
    };
    fresh.audit().map_err(String::from).map_err(told)?;
    match went.memory_pages + went.backing_pages == pages {
        true => Ok(Ok(fresh)),
        false => Err(told(format!("{pages} pages as {went:?}"))),
    }
}

/// The fault of a store of another plan that was made from a snapshot.
pub(super) fn elsewhere(plan: &Plan, what: &str) -> String {
    format!("restored elsewhere: {what}; {:?}", plan.summary())
}

/// Checks why a whole snapshot of so many pages was not restored; what that is called.
pub(super) fn check_not_restored(
    plan: &Plan,
    pages: u64,
    error: &RestoreError,
) -> Result<&'static str, String> {
    let struck = Struck::since();
    let (name, is_right) = match error {
        RestoreError::Read(error) => ("not restored: file not read", is_file_error(error)),
        RestoreError::DoesNotFit { pages: missing, of_pages, .. } => {
            // Pages as they are may be too large for the pool, and their tenants not write back.
            let is_full = plan.options.max_pool_bytes < u64::MAX
                || struck.by(&[Fault::NoPages, Fault::NoTables])
                || !plan.pool_takes_pages();
            let are_some = (1..=pages).contains(missing) && *of_pages == pages;
            ("not restored: does not fit", is_full && are_some)
        }
        RestoreError::Index { source, .. } => match source {
            IndexError::NoMemory => ("not restored: no index", struck.by(&[Fault::NoIndex])),
            IndexError::OverBudget(over) => {
                ("not restored: index is over the budget", passes(plan, over))
            }
            IndexError::KeyTooLarge { .. } => {
                ("not restored: key too large", plan.is_narrow() && plan.is_wide())
            }
            _ => ("not restored: by the index", false),
        },
        // Lengths that differ are no format that others know.
        RestoreError::Compressor { format, .. } => {
            ("not restored: another compressor", matches!(format, ObjectFormat::Other(_)))
        }
        RestoreError::Tenants(TenantError::NoRecords) => {
            let are_some = plan.options.records.is_none() && !plan.parents.is_empty();
            ("not restored: tenants without records", are_some)
        }
        _ => ("not restored", false),
    };
    match is_right {
        true => Ok(name),
        false => Err(format!("not restored without a reason: {error:?}; faults: {struck}")),
    }
}

/// Changes a snapshot somewhere and sees that it is refused.
pub(super) fn check_damaged(plan: &Plan, world: &Arc<World>, whole: &[u8], seed: u64) -> Told {
    let dice = &mut Dice::new(seed);
    let mut bytes = whole.to_vec();
    // Lengths of headers differ, for times are in them: counted from the end, what is restored
    // before the damage is found is the same each time.
    let header = 16 + u32::from_le_bytes(whole[12..16].try_into().expect("4 bytes")) as usize + 8;
    let some = |dice: &mut Dice| match dice.below(3) {
        0 => dice.below(header),
        _ => whole.len() - 1 - dice.below(whole.len() - header),
    };
    let what = match dice.below(8) {
        0 => {
            bytes.push(dice.below(256) as u8);
            "longer by a byte".to_owned()
        }
        1..4 => {
            let at = some(dice);
            bytes.truncate(at);
            format!("cut at byte {at}")
        }
        _ => {
            let (at, bit) = (some(dice), dice.below(8));
            bytes[at] ^= 1 << bit;
            format!("with bit {bit} of byte {at} changed")
        }
    };
    let restored = world.alone(|| world.calmly(|| restore(plan, world, &bytes)))?;
    let is_found = match &restored {
        Err(RestoreError::Read(SnapshotReadError { fault, .. })) => {
            fault.is_damage()
                || matches!(fault, SnapshotFault::Magic { .. } | SnapshotFault::Version { .. })
        }
        _ => false,
    };
    match is_found {
        true => Ok(()),
        false => Err(format!("a snapshot {what}: {:?}", restored.map(|(_, summary)| summary))),
    }
}

/// Owner and count of uses of each page of a store that can be read.
pub(super) fn uses_of(
    plan: &Plan,
    bytes: &[u8],
) -> Result<BTreeMap<usize, (usize, u8)>, SnapshotReadError> {
    let mut snapshot = SnapshotReader::new("snapshot", bytes)?;
    let mut uses = BTreeMap::new();
    while let Some(block) = snapshot.next_block()? {
        uses.extend(
            block
                .pages()
                .filter_map(|page| Some((plan.number(page.key)?, (page.tenant, page.uses)))),
        );
    }
    Ok(uses)
}
