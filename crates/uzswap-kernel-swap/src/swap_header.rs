//! The header of a swap area: what mkswap(8) writes.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const PAGE: u64 = 4096;

// Of `union swap_header` of linux/swap.h.
const HEADER_VERSION_AT: usize = 1024;
const HEADER_UUID_AT: usize = HEADER_VERSION_AT + 12;
const HEADER_NAME_AT: usize = HEADER_UUID_AT + 16;
const SIGNATURE: &[u8] = b"SWAPSPACE2";

/// The first page of a swap area.
fn header(pages: u64, uuid: [u8; 16]) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    let last_page = u32::try_from(pages - 1).expect("the size was checked");
    let numbers = [1, last_page, 0].map(u32::to_ne_bytes); // version, last page, bad pages
    page[HEADER_VERSION_AT..HEADER_UUID_AT].copy_from_slice(numbers.as_flattened());
    page[HEADER_UUID_AT..HEADER_NAME_AT].copy_from_slice(&uuid);
    page[HEADER_NAME_AT..][..6].copy_from_slice(b"uzswap");
    let at = page.len() - SIGNATURE.len();
    page[at..].copy_from_slice(SIGNATURE);
    page
}

pub(super) fn write_header(path: &Path, pages: u64, uuid: [u8; 16]) -> io::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    file.write_all(&header(pages, uuid))?;
    file.sync_all()
}

/// The UUID in the header of a swap area, in hexadecimal; `None` where there is no header.
pub(super) fn uuid_of(path: &Path) -> io::Result<Option<String>> {
    let mut page = [0; PAGE as usize];
    File::open(path)?.read_exact_at(&mut page, 0)?;
    let is_swap = page.ends_with(SIGNATURE);
    Ok(is_swap.then(|| hexadecimal(&page[HEADER_UUID_AT..HEADER_NAME_AT])))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_others_take_for_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(40 * PAGE).unwrap();
        assert_eq!(uuid_of(file.path()).unwrap(), None);
        write_header(file.path(), 40, [0xab; 16]).unwrap();
        assert_eq!(uuid_of(file.path()).unwrap(), Some("ab".repeat(16)));
        // blkid(8) is in util-linux, as mkswap(8) is.
        let Ok(told) = std::process::Command::new("blkid").arg("-p").arg(file.path()).output()
        else {
            return;
        };
        let told = String::from_utf8(told.stdout).unwrap();
        assert!(told.contains("TYPE=\"swap\"") && told.contains("LABEL=\"uzswap\""), "{told}");
    }
}
