//! Writes the parts of a snapshot, a block of pages at a time.

use std::collections::TryReserveError;
use std::io::Write;

use super::format::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, BLOCK_PREFIX_BYTES, BLOCK_TAG, HEADER_BYTES_MAX, MAGIC,
    TRAILER_BYTES, VERSION, kind_of, trailer,
};
use super::{PageForm, SnapshotError, SnapshotHeader, SnapshotPage, SnapshotSummary};
use crate::sealed::{self, CHECKSUM_BYTES, checksum, next_in_chain};

/// Parts in their order: header, pages, end.
pub(super) struct SnapshotWriter<W> {
    out: W,
    /// A block: its prefix and the records so far. It never grows.
    block: Vec<u8>,
    records: u32,
    chain: u64,
    summary: SnapshotSummary,
}

impl<W: Write> SnapshotWriter<W> {
    /// Writes the header.
    pub(super) fn new(out: W, header: &SnapshotHeader) -> Result<SnapshotWriter<W>, SnapshotError> {
        let json = serde_json::to_vec(header).expect("strings and numbers");
        if json.len() > HEADER_BYTES_MAX {
            return Err(SnapshotError::HeaderTooLong { bytes: json.len() });
        }
        let (start, chain) = sealed::header(MAGIC, VERSION, &json);
        let mut writer = SnapshotWriter {
            out,
            block: empty_block()?,
            records: 0,
            chain,
            summary: SnapshotSummary::default(),
        };
        writer.write(&start)?;
        Ok(writer)
    }

    /// Adds a page.
    pub(super) fn push(&mut self, page: &SnapshotPage<'_>) -> Result<(), SnapshotError> {
        let SnapshotPage { key, tenant, uses, form, in_backing } = *page;
        let word;
        let data = match form {
            PageForm::Word(value) => {
                word = value.to_le_bytes();
                &word[..]
            }
            PageForm::Object(object) => object,
            PageForm::AsIs(page) => &page[..],
        };
        self.block.extend_from_slice(&key.0.to_le_bytes());
        self.block.extend_from_slice(&(tenant as u16).to_le_bytes()); // < TENANTS_MAX
        self.block.extend_from_slice(&[kind_of(form, in_backing), uses]);
        self.block.extend_from_slice(&(data.len() as u16).to_le_bytes()); // <= 4096
        self.block.extend_from_slice(data);
        self.records += 1;
        self.summary.count(form, in_backing);
        if self.block.len() < BLOCK_PREFIX_BYTES + BLOCK_BYTES { Ok(()) } else { self.flush() }
    }

    /// Counts a page that is left out.
    pub(super) fn skip(&mut self) {
        self.summary.skipped_pages += 1;
    }

    /// Writes what is left, and the end.
    pub(super) fn finish(mut self) -> Result<SnapshotSummary, SnapshotError> {
        if self.records > 0 {
            self.flush()?;
        }
        let file_bytes = self.summary.file_bytes + TRAILER_BYTES as u64;
        let end = trailer(&SnapshotSummary { file_bytes, ..self.summary }, self.chain);
        self.write(&end)?;
        let at = self.summary.file_bytes;
        self.out.flush().map_err(|source| SnapshotError::Write { at, source })?;
        Ok(self.summary)
    }

    fn flush(&mut self) -> Result<(), SnapshotError> {
        let bytes = (self.block.len() - BLOCK_PREFIX_BYTES) as u32; // <= BLOCK_BYTES_MAX
        self.block[..4].copy_from_slice(BLOCK_TAG);
        self.block[4..8].copy_from_slice(&self.records.to_le_bytes());
        self.block[8..12].copy_from_slice(&bytes.to_le_bytes());
        let sum = checksum(self.chain, &self.block);
        self.chain = next_in_chain(self.chain, sum);
        self.block.extend_from_slice(&sum.to_le_bytes());
        let mut block = std::mem::take(&mut self.block);
        let written = self.write(&block);
        block.truncate(BLOCK_PREFIX_BYTES);
        (self.block, self.records) = (block, 0);
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let at = self.summary.file_bytes;
        self.out.write_all(bytes).map_err(|source| SnapshotError::Write { at, source })?;
        self.summary.file_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Room for the largest block, and its prefix.
fn empty_block() -> Result<Vec<u8>, TryReserveError> {
    let mut block = Vec::new();
    block.try_reserve_exact(BLOCK_PREFIX_BYTES + BLOCK_BYTES_MAX + CHECKSUM_BYTES)?;
    block.resize(BLOCK_PREFIX_BYTES, 0);
    Ok(block)
}
