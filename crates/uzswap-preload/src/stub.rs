//! A library for programs of 32 bits that does nothing. The loader of such a program complains of
//! one of 64 bits, and of one that is not there.

const fn half(value: u16, at: usize, into: &mut [u8; BYTES]) {
    let [low, high] = value.to_le_bytes();
    (into[at], into[at + 1]) = (low, high);
}

const fn words<const N: usize>(values: [u32; N], mut at: usize, into: &mut [u8; BYTES]) {
    let mut word = 0;
    while word < N {
        let [a, b, c, d] = values[word].to_le_bytes();
        (into[at], into[at + 1], into[at + 2], into[at + 3]) = (a, b, c, d);
        at += 4;
        word += 1;
    }
}

// Places in the file, which is mapped as it is.
const PROGRAM_HEADERS: u32 = 52;
const HASH: u32 = PROGRAM_HEADERS + 3 * 32;
const SYMBOLS: u32 = HASH + 16;
const STRINGS: u32 = SYMBOLS + 16;
const DYNAMIC: u32 = STRINGS + 4;
const DYNAMIC_BYTES: u32 = 6 * 8;
const BYTES: usize = (DYNAMIC + DYNAMIC_BYTES) as usize;

/// A shared object for i386 without a symbol.
pub static STUB_32: [u8; BYTES] = stub();

const fn stub() -> [u8; BYTES] {
    const READ_WRITE: u32 = 6;
    const BYTES_U32: u32 = BYTES as u32;
    let mut all = [0; BYTES];
    // ELF, 32 bits, little endian.
    words([0x464c_457f, 0x0001_0101], 0, &mut all);
    half(3, 16, &mut all); // ET_DYN
    half(3, 18, &mut all); // EM_386
    words([1, 0, PROGRAM_HEADERS, 0, 0], 20, &mut all);
    half(52, 40, &mut all);
    half(32, 42, &mut all);
    half(3, 44, &mut all);
    half(40, 46, &mut all);
    // PT_LOAD, which the loader writes to; PT_DYNAMIC; PT_GNU_STACK: none that is executable.
    let load = [1, 0, 0, 0, BYTES_U32, BYTES_U32, READ_WRITE, 0x1000];
    let dynamic = [2, DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC_BYTES, DYNAMIC_BYTES, READ_WRITE, 4];
    let stack = [0x6474_e551, 0, 0, 0, 0, 0, READ_WRITE, 16];
    words(load, PROGRAM_HEADERS as usize, &mut all);
    words(dynamic, PROGRAM_HEADERS as usize + 32, &mut all);
    words(stack, PROGRAM_HEADERS as usize + 64, &mut all);
    // One bucket, and the symbol that each table begins with.
    words([1, 1, 0, 0], HASH as usize, &mut all);
    // DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    let entries = [4, HASH, 5, STRINGS, 6, SYMBOLS, 10, 1, 11, 16, 0, 0];
    words(entries, DYNAMIC as usize, &mut all);
    all
}
