//! Tests of the files in /proc.

use super::*;

#[test]
fn files_of_this_process_are_read() {
    let page = PAGE_SIZE as u64;
    let files = ProcessFiles::of_thread(std::process::id()).unwrap();
    let memory = vec![1_u8; 600 * PAGE_SIZE];
    let start = (memory.as_ptr().addr() as u64).next_multiple_of(page);
    let range = start..start + 599 * page;
    let size = files.size().unwrap();
    assert!(size.anonymous >= 600 && size.mapped > size.anonymous);
    assert!(files.part_of_anonymous().unwrap() >= 600 * page);
    assert!(page_table_bytes_of(std::process::id()).unwrap() >= 4 * page);
    let [none] = files.mappings_with(["no such flag"]).unwrap();
    assert_eq!(none, RangeSet::new());
    if files.resident(range.clone()).is_err_and(|error| is_unknown_call(&error)) {
        return; // before Linux 6.7
    }
    assert!(!files.has_at_most(range.clone(), 598) && files.has_at_most(range.clone(), 599));
    // As many at once as are asked for; all in the end.
    let mut at = range.start;
    let mut found = Vec::new();
    while at < range.end {
        let (runs, walked_to) = files.resident(at..range.end).unwrap();
        let pages: u64 = runs.iter().map(|run| (run.end - run.start) / page).sum();
        assert!(pages <= FOUND_PAGES_MAX && walked_to > at);
        found.push(pages);
        at = walked_to;
    }
    assert!(found.len() > 1 && found.iter().sum::<u64>() == 599, "{found:?}");
    drop(memory);
}

fn is_unknown_call(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOTTY)
}

#[test]
fn growth_differs_from_other_calls() {
    let mremap =
        |lengths| growth(&format!("{} 0x7f00 {lengths} 0x1 0x0 0x7ffc 0x7f41\n", libc::SYS_mremap));
    assert_eq!(mremap("0x4000 0x10000"), Some(0xc000));
    assert_eq!(mremap("0x3fff 0x4001"), Some(0x1000));
    assert_eq!(mremap("0x4000 0x4000"), None);
    assert_eq!(mremap("0x4000 0x1000"), None);
    assert_eq!(mremap("0xffffffffffffffff 0x1"), None);
    assert_eq!(growth("running\n"), None);
    assert_eq!(growth("-1 0x7ffc 0x7f41\n"), None);
    assert_eq!(growth(&format!("{} 0x0 0x1000 0x2000\n", libc::SYS_mmap)), None);
    assert_eq!(growth_under_way(std::process::id()), None);
}

#[test]
fn a_thread_that_waits_shows_its_stack_pointer() {
    let stack_pointer = stack_pointer_of;
    assert_eq!(stack_pointer("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc10 0x7f41\n"), Some(0x7f_fc10));
    // A thread that waits for a page is in no system call.
    assert_eq!(stack_pointer("-1 0x7ffc10 0x7f41\n"), Some(0x7f_fc10));
    for none in ["running\n", "", "-1 0x7f41\n", "-1 x 0x7f41\n"] {
        assert_eq!(stack_pointer(none), None, "{none}");
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let local = 0_u8;
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        sender.send((thread, std::ptr::from_ref(&local).addr() as u64)).unwrap();
        std::thread::park();
    });
    let (thread, near) = receiver.recv().unwrap();
    let shown = std::iter::repeat_with(|| super::stack_pointer(thread)).find_map(|it| it);
    assert!(shown.unwrap().abs_diff(near) < 4096);
    waiting.thread().unpark();
    waiting.join().unwrap();
}

#[test]
fn a_namespace_has_numbers_of_its_own() {
    assert_eq!(last_of_several("700\t40\t3"), Some(3));
    assert_eq!(last_of_several("700"), None);
    assert_eq!(in_status(std::process::id(), "Pid:"), Some(std::process::id().to_string()));
    assert_eq!(number_in_namespace(std::process::id()), None);
}

#[test]
fn the_part_of_anonymous_memory_is_read() {
    assert_eq!(part_of_anonymous("Pss: 12 kB\nPss_Anon:        8 kB\n"), Some(8192));
}
