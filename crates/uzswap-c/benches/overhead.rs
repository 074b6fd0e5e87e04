//! Cost of a store and a load from C over those from Rust, in nanoseconds a page.
//!
//! A loop in C calls the static library, which is in this program, and the shared one. A loop in
//! Rust calls the store. A second one does the same with another store: the difference of the two
//! is the noise. All take turns, round after round, in one thread. In its turn each one works
//! twice, and the second time counts: at the first time the caches hold the code of another one. A
//! difference is the median of the rounds' differences, with their quartiles.
//!
//! Pages of one word take the least time, so that the cost of a call shows best. The other pages
//! compress to about half.
//!
//! `cargo bench -p uzswap-c` measures, UZSWAP_ROUNDS=N more rounds. Without `--bench` it runs once
//! over few pages, to see that it works.
#![allow(unsafe_code, reason = "it calls C, and is called as C calls")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;
use uzswap::page::{PAGE_SIZE, Page, PageKey};
use uzswap::random::SplitMix64;
use uzswap::zswap::{Zswap, ZswapOptions};
use uzswap_c as _; // its functions, by their names for C

type Handle = *mut c_void;
type New = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
type Store = unsafe extern "C" fn(Handle, u64, *const c_void) -> c_int;
type Load = unsafe extern "C" fn(Handle, u64, *mut c_void) -> c_int;

unsafe extern "C" {
    fn uz_zswap_new(options: Handle, zswap: *mut Handle) -> c_int;
    fn uz_store(zswap: Handle, key: u64, page: *const c_void) -> c_int;
    fn uz_load(zswap: Handle, key: u64, page: *mut c_void) -> c_int;
}

/// A shared library, which stays loaded.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path ends with a NUL, and the library has no constructor that could fail.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{path:?} is not loaded");
        Library(library)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is loaded, and the name ends with a NUL.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "no {name:?}");
        symbol
    }
}

type Stores = unsafe extern "C" fn(Store, Handle, *const Page, usize) -> u64;
type Loads = unsafe extern "C" fn(Load, Handle, *mut Page, usize) -> u64;

/// The loops of `calls.c`.
#[derive(Clone, Copy)]
struct Loops {
    stores: Stores,
    loads: Loads,
}

impl Loops {
    fn compile() -> Loops {
        let folder = TempDir::new().unwrap();
        let library = folder.path().join("libcalls.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/calls.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]);
        assert!(cc.arg(&library).arg(source).status().unwrap().success());
        let library = Library::open(&library);
        let (stores, loads) = (library.symbol(c"time_stores"), library.symbol(c"time_loads"));
        Loops {
            // SAFETY: calls.c has this function with these arguments.
            stores: unsafe { std::mem::transmute::<*mut c_void, Stores>(stores) },
            // SAFETY: as the other one.
            loads: unsafe { std::mem::transmute::<*mut c_void, Loads>(loads) },
        }
    }
}

/// A store and the way to it.
enum Contender {
    Rust(Box<Zswap>),
    C { loops: Loops, store: Store, load: Load, zswap: Handle },
}

impl Contender {
    fn rust() -> Contender {
        Contender::Rust(Box::new(Zswap::new(ZswapOptions::default()).unwrap()))
    }

    fn c(loops: Loops, new: New, store: Store, load: Load) -> Contender {
        let mut zswap = std::ptr::null_mut();
        // SAFETY: NULL is allowed as options, and there is a place for the handle.
        assert_eq!(unsafe { new(std::ptr::null_mut(), &mut zswap) }, 0);
        Contender::C { loops, store, load, zswap }
    }

    fn shared(loops: Loops) -> Contender {
        let program = std::env::current_exe().unwrap();
        let library = Library::open(&program.with_file_name("libuzswap_c.so"));
        let new = library.symbol(c"uz_zswap_new");
        let (store, load) = (library.symbol(c"uz_store"), library.symbol(c"uz_load"));
        // SAFETY: the header declares it with these arguments.
        let new = unsafe { std::mem::transmute::<*mut c_void, New>(new) };
        // SAFETY: as the one before.
        let store = unsafe { std::mem::transmute::<*mut c_void, Store>(store) };
        // SAFETY: as the one before.
        let load = unsafe { std::mem::transmute::<*mut c_void, Load>(load) };
        Contender::c(loops, new, store, load)
    }

    /// Nanoseconds a page, of stores and of loads. The last page is right then.
    fn run(&self, pages: &[Page]) -> [f64; 2] {
        let mut back = [0; PAGE_SIZE];
        let ns = match self {
            Contender::Rust(zswap) => [
                time(|| {
                    for (page, key) in pages.iter().zip(0..) {
                        zswap.store(PageKey(key), page).unwrap();
                    }
                }),
                time(|| {
                    for key in 0..pages.len() as u64 {
                        assert!(zswap.load(PageKey(key), &mut back).unwrap());
                    }
                }),
            ],
            Contender::C { loops, store, load, zswap } => {
                // SAFETY: the handle is one of this library, and there are so many pages.
                let stores = unsafe { (loops.stores)(*store, *zswap, pages.as_ptr(), pages.len()) };
                // SAFETY: the same, and there is room for a page.
                let loads = unsafe { (loops.loads)(*load, *zswap, &mut back, pages.len()) };
                [stores, loads]
            }
        };
        assert!(ns.iter().all(|&ns| ns > 0) && back == *pages.last().unwrap());
        ns.map(|ns| ns as f64 / pages.len() as f64)
    }
}

fn time(work: impl FnOnce()) -> u64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as u64
}

/// The values at a quarter, a half and three quarters.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn measure(title: &str, pages: &[Page], rounds: usize) {
    let loops = Loops::compile();
    let contenders = [
        ("Rust", Contender::rust()),
        ("Rust again", Contender::rust()),
        ("C, static", Contender::c(loops, uz_zswap_new, uz_store, uz_load)),
        ("C, shared", Contender::shared(loops)),
    ];
    let mut runs: Vec<Vec<[f64; 2]>> = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            contenders[at].1.run(pages); // its code and data are in the caches then
            runs[at].push(contenders[at].1.run(pages));
        }
    }
    for (place, verb) in ["store", "load"].into_iter().enumerate() {
        println!("{verb}, {title}: ns a page, and more than Rust (quartiles)");
        for ((name, _), run) in contenders.iter().zip(&runs) {
            let [_, median, _] = quartiles(run.iter().map(|ns| ns[place]).collect());
            let more = run.iter().zip(&runs[0]).map(|(ns, base)| ns[place] - base[place]);
            let [low, middle, high] = quartiles(more.collect());
            println!("  {name:10} {median:8.1} {middle:+8.1} ({low:+.1} to {high:+.1})");
        }
    }
}

fn main() {
    let is_full_run = std::env::args().any(|arg| arg == "--bench");
    let default = if is_full_run { 101 } else { 1 };
    let rounds =
        std::env::var("UZSWAP_ROUNDS").map_or(default, |text| text.parse().expect("a number"));
    let count = if is_full_run { 4096 } else { 64 };
    let mut random = SplitMix64::new(1);
    let mut half = vec![[7; PAGE_SIZE]; count];
    for word in half.iter_mut().flat_map(|page| &mut page.as_chunks_mut().0[..PAGE_SIZE / 16]) {
        *word = random.next_word().to_ne_bytes();
    }
    measure("pages of one word", &vec![[7; PAGE_SIZE]; count], rounds);
    measure("pages that compress to half", &half, rounds);
}
