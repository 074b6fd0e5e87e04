/*
 * The compressed page store uzswap.
 *
 * A store keeps pages of 4096 bytes compressed, each under a key of 64 bits, within a limit in
 * bytes. Values of 1 byte to 1 MiB are kept over the pages of a store. docs/how-to/embed-from-c.md
 * has a first program.
 *
 * Memory. A function named uz_..._new or uz_..._restore, and uz_values_zswap(), makes a handle,
 * which the caller owns and gives to uz_..._free once. The library keeps no pointer of the
 * caller after a call, and the caller frees no other memory of the library. Strings end with a
 * NUL.
 *
 * Threads. Threads may call every function with one handle at the same time, except uz_..._free.
 * Before that call every other call with the handle has returned, and none follows. During a call
 * no other thread changes the memory that the call reads, or uses the memory that it writes. No
 * two arguments of a call lead to the same memory. After fork() the child uses no handle of its
 * parent. A signal handler calls no function: each may lock or allocate. Before dlclose() every
 * handle was freed.
 *
 * Errors. A function returns UZ_OK (0), UZ_NOT_FOUND (1), or a negative code. A call that fails
 * changes nothing and leaves its results as they were, unless its comment says more.
 * uz_last_error() has the message of the calling thread's last failure. UZ_ARGUMENT is the code
 * for a pointer that is NULL, unless the comment of the function allows that, or not aligned for
 * its type. It is also the code for a range that exceeds the address space. The library cannot
 * check other wrong pointers.
 */

#ifndef UZSWAP_H
#define UZSWAP_H

#include <stddef.h>
#include <stdint.h>

/* The bytes of a page. */
#define UZ_PAGE_SIZE 4096

/* The bytes of the longest value. */
#define UZ_VALUE_BYTES_MAX 1048576

/* The tenant of all pages that were stored for no other tenant. It is always there. */
#define UZ_ROOT 0

// How a call ended. Later versions may have more codes; none changes its number.
typedef enum {
    // The call did what it is for.
    UZ_OK = 0,
    // There is nothing under this key or name. No failure: uz_last_error() is as it was.
    UZ_NOT_FOUND = 1,
    // A pointer is NULL or not aligned, a length or key is too large, or a text is not UTF-8.
    UZ_ARGUMENT = -1,
    // No option or statistic has this name.
    UZ_NAME = -2,
    // The option cannot have this value, or not together with the others.
    UZ_VALUE = -3,
    // The caller's buffer is too small.
    UZ_BUFFER = -4,
    // The store is at its limit, and nothing can make room.
    UZ_LIMIT = -5,
    // The tenant, or one above it, is at its limit.
    UZ_TENANT_LIMIT = -6,
    // There is no such tenant, or it cannot be made or removed.
    UZ_TENANT = -7,
    // The page does not compress enough, and the options refuse such pages.
    UZ_INCOMPRESSIBLE = -8,
    // The compressor failed.
    UZ_COMPRESSOR = -9,
    // The machine gave no memory.
    UZ_NO_MEMORY = -10,
    // The kernel refused an operation on a file, or a thread.
    UZ_IO = -11,
    // The store is at its limit, and the file behind it has no free block.
    UZ_FILE_FULL = -12,
    // The page is damaged; its entry stays.
    UZ_CORRUPT = -13,
    // The file is no snapshot, is damaged, or needs a compressor that is not in this library.
    UZ_SNAPSHOT = -14,
    // An error that has no code of its own.
    UZ_OTHER = -15,
    // A defect of the library ended the call, which may have done a part of its work.
    UZ_PANIC = -16,
} uz_status;

// Options of a store. uz_options_new() makes them; any number of stores can be made of them.
typedef struct uz_options uz_options;

// A store. uz_zswap_new() or uz_zswap_restore() makes one; threads share it.
typedef struct uz_zswap uz_zswap;

// Values over a store of their own. uz_values_new() makes them; threads share them.
typedef struct uz_values uz_values;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the last failure of the calling thread, in English, without a line end. "" where
// no call of this thread has failed. Never NULL.
//
// The library owns the text, which is valid until the thread calls this function again or ends.
const char *uz_last_error(void);

// A few words about a code, which may be any number. The text is constant.
const char *uz_strerror(int32_t status);

// The version of the library, "0.1.0". The text is constant.
const char *uz_version(void);

// New options, with the defaults. NULL after a defect of the library.
uz_options * uz_options_new(void);

// Frees options; NULL is allowed. Stores that were made of them do not change.
void uz_options_free(uz_options * options);

// Sets an option by its name. The value is a text: a name, a number in decimal, "true", "false",
// or "null" for none. Bytes are plain numbers.
//
// Options of the store have the names of the fields of `ZswapOptions`; some of them:
//
//   compressor               lz4, lzo, lzo-rle, zstd, zstd:LEVEL, deflate, deflate:LEVEL, none
//   zpool                    zsmalloc, zbud, z3fold, zblock, packed
//   max_pool_bytes           the limit, on the pool and all metadata; no limit by default
//   incompressible           reject, store-as-is
//   when_full                reclaim (a store writes cold pages to the file), bypass
//   records                  false: no file, tenants and checksums, and 52 bytes a page less
//   records.lru              second-chance, frequency, plain, protected
//   unit_pages               1, 2, 4, 8 or 16: pages that uz_store_all() compresses together
//   shards                   a power of two up to 65536
//
// Options of the file behind the store, where cold pages are written:
//
//   file.path                the file or block device; it is scratch, and "" is none
//   file.bytes               the size of a new file
//   file.keep                true: the file stays there when the store ends
//   file.submission          uring, threads, sequential, or null: by the kind of file
//
// The shrinker is a thread of the store that writes cold pages ahead of need:
//
//   shrinker                 true, false
//   shrinker.dynamic         true: it also writes long before the limit, by the pressure
//   shrinker.compact_percent 0 to 100: it compacts a pool of which more is unused
//
// Errors: UZ_NAME, UZ_VALUE, UZ_ARGUMENT. uz_zswap_new() reports a number out of its range, and
// an option that it would ignore, such as `file.bytes` without `file.path`.
uz_status uz_options_set(uz_options * options, const char * name, const char * value);

// Makes an empty store and writes its handle to `*zswap`, which is NULL after a failure. The
// options may be NULL, for the defaults, and are not needed afterwards.
//
// Errors: UZ_VALUE, UZ_IO (the file, or the thread of the shrinker), UZ_NO_MEMORY, UZ_ARGUMENT.
uz_status uz_zswap_new(uz_options * options, uz_zswap ** zswap);

// Makes a store with the pages, tenants and counters of the snapshot at `path`, and writes its
// handle to `*zswap`, which is NULL after a failure. Options as for uz_zswap_new(). Pages that do
// not fit below the limit go to the file behind the store, the coldest first. The snapshot stays
// as it is.
//
// Errors: UZ_SNAPSHOT, UZ_IO, UZ_LIMIT (some pages fit nowhere), and those of uz_zswap_new().
uz_status uz_zswap_restore(uz_options * options, const char * path, uz_zswap ** zswap);

// Ends a store and frees its memory; NULL is allowed. Waits for its shrinker. The file behind the
// store is removed if the store made it, unless `file.keep` is set. Every other call with this
// handle has returned, and none follows.
void uz_zswap_free(uz_zswap * zswap);

// Keeps a copy of the UZ_PAGE_SIZE bytes at `page` under `key`, which may be any number.
// Neighbouring pages should have neighbouring keys: the index is small then. The key's earlier
// page is gone, also if the new one is refused. `page` needs no alignment.
//
// Errors: UZ_LIMIT, UZ_TENANT_LIMIT (the root's limit), UZ_INCOMPRESSIBLE, UZ_COMPRESSOR,
// UZ_NO_MEMORY, UZ_FILE_FULL, UZ_IO, UZ_ARGUMENT.
uz_status uz_store(uz_zswap * zswap, uint64_t key, const void * page);

// Keeps copies of `count` pages, one after the other from `pages` on, under the keys `first`,
// `first` + 1 and so on. Pages of one unit (the option unit_pages, aligned) are compressed
// together: they take less room, and a load of one decompresses its unit.
//
// A `count` of 0 stores nothing, with any `pages`.
//
// `statuses` is NULL or has room for `count` codes: the one that uz_store() would return for each
// page. The result is UZ_OK if all pages were stored, or else the code of the first that was not;
// the others were tried all the same.
//
// Errors: those of uz_store(). UZ_ARGUMENT also if the last key would exceed 2^64 - 1; no page was
// stored then, and no code was written.
uz_status uz_store_all(uz_zswap * zswap,
                       uint64_t first,
                       const void * pages,
                       size_t count,
                       uz_status * statuses);

// Fills the UZ_PAGE_SIZE bytes at `page` with the page of `key`, and keeps it.
//
// Returns UZ_NOT_FOUND if the key has no page; `page` is as it was, unless another thread removed
// the key's page meanwhile. After an error the content of `page` is not defined.
//
// Errors: UZ_CORRUPT, UZ_IO (the file behind the store), UZ_ARGUMENT.
uz_status uz_load(uz_zswap * zswap, uint64_t key, void * page);

// As uz_load(), and drops the page from the store. Of several threads that ask for one page, one
// gets it. After an error the page is still in the store.
uz_status uz_load_exclusive(uz_zswap * zswap, uint64_t key, void * page);

// UZ_OK if the key has a page, in memory or in the file, or UZ_NOT_FOUND. This is no use of the
// page.
uz_status uz_contains(uz_zswap * zswap, uint64_t key);

// Forgets the page of `key`, unread. Returns UZ_NOT_FOUND if there was none.
uz_status uz_invalidate(uz_zswap * zswap, uint64_t key);

// Forgets every page with a key from `first` to `last`, both included. Writes the number of pages
// to `*count`, unless that is NULL.
uz_status uz_invalidate_range(uz_zswap * zswap, uint64_t first, uint64_t last, uint64_t * count);

// As uz_store(), and takes more time so that the page takes less room. The compressor is that of
// the option `dense`, or without that option the ordinary one at its densest. A load takes the
// time of that compressor.
uz_status uz_store_dense(uz_zswap * zswap, uint64_t key, const void * page);

// Compresses the page of `key` as uz_store_dense() would, and keeps the result if that is smaller.
// Writes the bytes saved to `*bytes`, unless that is NULL: 0 if nothing was, or if the pool has no
// page of the key.
//
// Errors: UZ_CORRUPT; the page stays in the store. UZ_ARGUMENT.
uz_status uz_recompress(uz_zswap * zswap, uint64_t key, uint64_t * bytes);

// Packs the objects of the pool together and gives the pages of memory that come free back to the
// kernel. Writes their number to `*pages`, unless that is NULL.
uz_status uz_compact(uz_zswap * zswap, uint64_t * pages);

// Writes the whole store to a file at `path`, which is replaced when the new one is complete.
// Other threads may use the store meanwhile. Needs 16 bytes of memory a page and 290 KiB. A limit
// of file sizes ends the process by SIGXFSZ, unless that is ignored.
//
// Errors: UZ_IO, UZ_CORRUPT, UZ_NO_MEMORY, UZ_ARGUMENT. The snapshot that was there before stays.
uz_status uz_snapshot(uz_zswap * zswap, const char * path);

// Makes a store for values and writes its handle to `*values`, which is NULL after a failure. The
// options are as for uz_zswap_new(). Two of them suit values: `unit_pages` of 4 with zstd saves
// memory, and `incompressible` of store-as-is keeps what does not compress.
//
// Errors: those of uz_zswap_new().
uz_status uz_values_new(uz_options * options, uz_values ** values);

// Ends values and their store; NULL is allowed. As uz_zswap_free(). The store stays until its own
// handles, of uz_values_zswap(), are freed too.
void uz_values_free(uz_values * values);

// Writes a handle of the store below to `*zswap`, or NULL after a failure: for uz_stat(), tenants,
// uz_compact() and uz_shrink(). The caller gives it to uz_zswap_free(). Its pages are those of the
// values: a caller that stores or removes pages damages values. A snapshot has no table of values.
uz_status uz_values_zswap(uz_values * values, uz_zswap ** zswap);

// Keeps a copy of the `length` bytes at `value`, 1 to UZ_VALUE_BYTES_MAX, under `key`, which may
// be any number. The key's earlier value is gone, also if the new one is refused. Each value has
// pages of its own, so one of a few bytes takes the time of a page.
//
// Errors: those of uz_store(). UZ_ARGUMENT also for a length that is out of its range.
uz_status uz_values_store(uz_values * values, uint64_t key, const void * value, size_t length);

// As uz_values_store(), for a tenant of the store below. Its pages are compressed one by one.
//
// Errors: those of uz_values_store(), and UZ_TENANT.
uz_status uz_values_store_for(uz_values * values,
                              uint64_t tenant,
                              uint64_t key,
                              const void * value,
                              size_t length);

// Copies the value of `key` to the `size` bytes at `buffer`, and keeps it. Writes its length to
// `*length`, unless that is NULL.
//
// Returns UZ_NOT_FOUND if the key has no value; the buffer is as it was, unless another thread
// removed the key's value meanwhile. UZ_BUFFER is the code for a value that is longer than `size`;
// `*length` is its length then, and nothing was copied. After another error the content of the
// buffer is not defined.
//
// Errors: UZ_BUFFER, UZ_CORRUPT, UZ_IO, UZ_ARGUMENT.
uz_status uz_values_load(uz_values * values,
                         uint64_t key,
                         void * buffer,
                         size_t size,
                         size_t * length);

// As uz_values_load(), and drops the value. Of several threads that ask for one value, one gets
// it. After an error the value is still there.
uz_status uz_values_load_exclusive(uz_values * values,
                                   uint64_t key,
                                   void * buffer,
                                   size_t size,
                                   size_t * length);

// Writes the length of a value to `*length`, or returns UZ_NOT_FOUND. Another thread may change
// the value before the next call. This is no use of the value.
uz_status uz_values_length(uz_values * values, uint64_t key, size_t * length);

// Forgets the value of `key`, unread. Returns UZ_NOT_FOUND if there was none.
uz_status uz_values_invalidate(uz_values * values, uint64_t key);

// Makes a tenant below `parent`, which is UZ_ROOT or another tenant, and writes its id to
// `*tenant`. A store has at most 1024 tenants, and no id names two of them.
//
// `max_bytes` is the most compressed bytes that are kept in memory for it and the tenants below;
// UINT64_MAX is no limit. If `writeback` is 0, its pages never go to the file. The name is for
// people and for uz_tenant_find().
//
// Errors: UZ_TENANT (also if the option records is false), UZ_ARGUMENT.
uz_status uz_tenant_add(uz_zswap * zswap,
                        uint64_t parent,
                        const char * name,
                        uint64_t max_bytes,
                        int32_t writeback,
                        uint64_t * tenant);

// Changes a tenant, also UZ_ROOT. Bytes over a lower limit stay until they go by themselves.
//
// Errors: as uz_tenant_add().
uz_status uz_tenant_set(uz_zswap * zswap,
                        uint64_t tenant,
                        const char * name,
                        uint64_t max_bytes,
                        int32_t writeback);

// Removes a tenant that has none below it. Its pages are those of the tenant above from here on.
//
// Errors: UZ_TENANT, UZ_NO_MEMORY, UZ_ARGUMENT.
uz_status uz_tenant_remove(uz_zswap * zswap, uint64_t tenant);

// Writes the id of the first tenant with this name to `*tenant`, or returns UZ_NOT_FOUND. A
// restored store has the tenants of its snapshot under other ids.
uz_status uz_tenant_find(uz_zswap * zswap, const char * name, uint64_t * tenant);

// As uz_store(), for a tenant. If the tenant is removed meanwhile, the page is of the one above.
//
// Errors: those of uz_store(), and UZ_TENANT. UZ_TENANT_LIMIT is also the limit of a tenant above.
uz_status uz_store_for(uz_zswap * zswap, uint64_t tenant, uint64_t key, const void * page);

// Writes the `pages` coldest pages of a tenant and those below it to the file, or as many as can
// be written. Writes the number of pages that left the pool to `*count`, unless that is NULL: 0
// where there is no file.
//
// Errors: UZ_TENANT, UZ_ARGUMENT.
uz_status uz_shrink(uz_zswap * zswap, uint64_t tenant, size_t pages, uint64_t * count);

// Writes a number to `*value`, by its name. Each number of uz_stats_json() has one, such as
// "counters.stored_pages", "memory.pool_bytes" or "tenants.0.current_bytes". Three others are
// "budget.used_bytes", the bytes that the limit is on, their peak "budget.peak_bytes" and the
// limit "budget.max_bytes". Takes some microseconds. Exact only while no other thread changes the
// store.
//
// Errors: UZ_NAME, UZ_ARGUMENT.
uz_status uz_stat(uz_zswap * zswap, const char * name, uint64_t * value);

// Writes a number of the values to `*value`, by its name: "values", their count; "value_bytes",
// the sum of their lengths; "table_bytes", which count against the limit.
//
// Errors: UZ_NAME, UZ_ARGUMENT.
uz_status uz_values_stat(uz_values * values, const char * name, uint64_t * value);

// Writes all statistics as JSON and a NUL to the `size` bytes at `buffer`. Writes the length
// without the NUL to `*length`, unless that is NULL. A call with size 0, and any buffer, writes
// the length too and returns UZ_BUFFER. The text may be longer at the next call.
//
// Errors: UZ_BUFFER (nothing was written to the buffer), UZ_ARGUMENT.
uz_status uz_stats_json(uz_zswap * zswap, void * buffer, size_t size, size_t * length);

// As uz_stats_json(), in the text format of Prometheus.
uz_status uz_stats_prometheus(uz_zswap * zswap, void * buffer, size_t size, size_t * length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UZSWAP_H */
