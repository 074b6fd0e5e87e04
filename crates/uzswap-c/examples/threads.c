/*
 * Four threads share a store with a limit and a file behind it.
 *
 *   cc -std=c11 -pthread threads.c -o threads $(pkg-config --cflags --libs uzswap)
 *   ./threads FOLDER
 *
 * Each thread stores runs of 8 KiB, two pages, under keys of its own and under keys that all
 * threads use. Then it stores values of many lengths in the same way. Every page and value that
 * comes back is checked, byte by byte. FOLDER gets a file for each store, and a snapshot; they are
 * removed in the end. The program ends with 0 if all was right.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uzswap.h>

enum {
    THREADS = 4,
    ROUNDS = 3,
    OWN_RUNS = 200,     /* of each thread */
    SHARED_RUNS = 16,   /* of all threads */
    RUN_PAGES = 2,      /* 8 KiB */
    VALUES = 60,        /* of each thread; the last of them are those of all threads */
    SHARED_VALUES = 10,
    LENGTH_MAX = 40000, /* of a value */
    LIMIT_BYTES = 1 << 20
};

typedef unsigned char page_bytes[UZ_PAGE_SIZE];

/* The keys of all threads begin here. Those of thread n begin at n * OWN_KEYS. */
static const uint64_t SHARED_KEYS = 1 << 20;
static const uint64_t OWN_KEYS = 1 << 16;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s)\n", uz_last_error());
    exit(1);
}

static void expect(uz_status expected, uz_status found, const char *call)
{
    if (found != expected)
        fail("%s: %s, not %s", call, uz_strerror(found), uz_strerror(expected));
}

/* The contents of a page: `random` bytes, by its key and version, which are in front. */
static void fill_part(page_bytes page, uint64_t key, uint64_t version, size_t random)
{
    uint64_t word = key * UINT64_C(0x9e3779b97f4a7c15) + version;
    memcpy(page, &key, 8);
    memcpy(page + 8, &version, 8);
    for (size_t at = 16; at < UZ_PAGE_SIZE; at += 8) {
        if (at < random) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
        }
        memcpy(page + at, &word, 8);
    }
}

static void fill(page_bytes page, uint64_t key, uint64_t version)
{
    fill_part(page, key, version, UZ_PAGE_SIZE / 2);
}

/* A page of a key must be one that some thread stored there, whole. */
static void check(page_bytes page, uint64_t key)
{
    page_bytes expected;
    uint64_t version;
    memcpy(&version, page + 8, 8);
    fill(expected, key, version);
    if (memcmp(page, expected, UZ_PAGE_SIZE) != 0)
        fail("key %#llx has a wrong page", (unsigned long long)key);
}

static uint64_t stat_of(uz_zswap *zswap, const char *name)
{
    uint64_t value = 0;
    expect(UZ_OK, uz_stat(zswap, name, &value), name);
    return value;
}

struct worker {
    uz_zswap *zswap;
    uz_values *values;
    uint64_t number;
    uint64_t tenant;
    pthread_t thread;
};

static void store_run(const struct worker *worker, uint64_t first, uint64_t version)
{
    page_bytes pages[RUN_PAGES];
    uz_status statuses[RUN_PAGES];
    for (uint64_t page = 0; page < RUN_PAGES; page++)
        fill(pages[page], first + page, version);
    /* Each second thread stores for a tenant, a page at a time. */
    if (worker->number % 2 == 0) {
        expect(UZ_OK, uz_store_all(worker->zswap, first, pages, RUN_PAGES, statuses), "store_all");
        for (int page = 0; page < RUN_PAGES; page++)
            expect(UZ_OK, statuses[page], "a page of store_all");
    } else {
        for (uint64_t page = 0; page < RUN_PAGES; page++)
            expect(UZ_OK, uz_store_for(worker->zswap, worker->tenant, first + page, pages[page]),
                   "store_for");
    }
}

static void *work(void *argument)
{
    const struct worker *worker = (const struct worker *)argument;
    page_bytes page;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t version = worker->number + THREADS * round;
        for (uint64_t run = 0; run < OWN_RUNS; run++)
            store_run(worker, (worker->number + 1) * OWN_KEYS + run * RUN_PAGES, version);
        for (uint64_t run = 0; run < SHARED_RUNS; run++) {
            store_run(worker, SHARED_KEYS + run * RUN_PAGES, version);
            /* Another thread may have taken it away. */
            uint64_t key = SHARED_KEYS + (run * 7 % SHARED_RUNS) * RUN_PAGES;
            uz_status found = run % 4 == worker->number
                                  ? uz_load_exclusive(worker->zswap, key, page)
                                  : uz_load(worker->zswap, key, page);
            if (found < 0)
                fail("a shared key: %s", uz_strerror(found));
            if (found == UZ_OK)
                check(page, key);
        }
        for (uint64_t at = 0; at < OWN_RUNS * RUN_PAGES; at++) {
            uint64_t key = (worker->number + 1) * OWN_KEYS + at;
            uint64_t version_found;
            expect(UZ_OK, uz_load(worker->zswap, key, page), "load");
            check(page, key);
            memcpy(&version_found, page + 8, 8);
            if (version_found != version)
                fail("key %#llx has an old page", (unsigned long long)key);
        }
    }
    return NULL;
}

static void set(uz_options *options, const char *name, const char *value)
{
    expect(UZ_OK, uz_options_set(options, name, value), name);
}

/* The threads, on a store that cannot hold all of their pages in memory. */
static void share(uz_zswap *zswap)
{
    struct worker workers[THREADS];
    uint64_t tenant = UZ_ROOT;
    expect(UZ_OK, uz_tenant_add(zswap, UZ_ROOT, "odd threads", UINT64_MAX, 1, &tenant), "tenant");
    for (uint64_t number = 0; number < THREADS; number++) {
        struct worker *worker = &workers[number];
        worker->zswap = zswap;
        worker->number = number;
        worker->tenant = tenant;
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            fail("no thread");
    }
    for (int number = 0; number < THREADS; number++)
        pthread_join(workers[number].thread, NULL);
    if (stat_of(zswap, "budget.peak_bytes") > LIMIT_BYTES)
        fail("the limit was exceeded");
    if (stat_of(zswap, "counters.written_back_pages") == 0)
        fail("no page was written to the file");
    if (stat_of(zswap, "tenants.1.peak_bytes") == 0)
        fail("the tenant has had no page");
    expect(UZ_OK, uz_tenant_remove(zswap, tenant), "tenant_remove");
    expect(UZ_TENANT, uz_tenant_remove(zswap, tenant), "tenant_remove again");
}

/* The bytes of a value: the key and the version that its first byte has. Its length by both. */
static size_t fill_value(unsigned char *value, uint64_t key, unsigned char version)
{
    size_t length = 1 + (key * 7919 + (size_t)version * 104729) % LENGTH_MAX;
    for (size_t at = 0; at < length; at++)
        value[at] = (unsigned char)(at == 0 ? version : key + version * (at / 64));
    return length;
}

static void check_value(const unsigned char *value, size_t length, uint64_t key)
{
    unsigned char expected[LENGTH_MAX];
    if (length == 0 || length != fill_value(expected, key, value[0]))
        fail("value %llu has %zu bytes", (unsigned long long)key, length);
    if (memcmp(value, expected, length) != 0)
        fail("value %llu is wrong", (unsigned long long)key);
}

static void *work_with_values(void *argument)
{
    const struct worker *worker = (const struct worker *)argument;
    unsigned char value[LENGTH_MAX];
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char version = (unsigned char)(worker->number + (uint64_t)(THREADS * round));
        for (uint64_t at = 0; at < VALUES; at++) {
            int is_shared = at >= VALUES - SHARED_VALUES;
            uint64_t key = is_shared ? at : (worker->number + 1) * VALUES + at;
            size_t length = fill_value(value, key, version), found_length = 0;
            expect(UZ_OK, uz_values_store(worker->values, key, value, length), "values_store");
            memset(value, 0xee, sizeof value);
            uz_status found = at % 3 == 0 ? uz_values_load_exclusive(worker->values, key, value,
                                                                     sizeof value, &found_length)
                                          : uz_values_load(worker->values, key, value,
                                                           sizeof value, &found_length);
            if (found != UZ_OK && !(is_shared && found == UZ_NOT_FOUND))
                fail("values_load: %s", uz_strerror(found));
            if (found == UZ_OK)
                check_value(value, found_length, key);
            if (!is_shared && (value[0] != version || found_length != length))
                fail("value %llu is an old one", (unsigned long long)key);
        }
    }
    return NULL;
}

/* Threads share values: keys of 64 bits to any bytes. */
static void share_values(const char *file)
{
    struct worker workers[THREADS];
    unsigned char value[LENGTH_MAX], small[8];
    size_t length = 0, found = 0;
    uint64_t count = 0;
    uz_options *options = uz_options_new();
    uz_values *values = NULL;
    uz_zswap *zswap = NULL;
    set(options, "max_pool_bytes", "1048576");
    set(options, "compressor", "zstd:1");
    set(options, "unit_pages", "4");
    set(options, "file.path", file);
    set(options, "file.bytes", "33554432");
    expect(UZ_OK, uz_values_new(options, &values), "values_new");
    uz_options_free(options);
    for (uint64_t number = 0; number < THREADS; number++) {
        workers[number].values = values;
        workers[number].number = number;
        if (pthread_create(&workers[number].thread, NULL, work_with_values, &workers[number]) != 0)
            fail("no thread");
    }
    for (int number = 0; number < THREADS; number++)
        pthread_join(workers[number].thread, NULL);

    length = fill_value(value, 5, 9);
    expect(UZ_OK, uz_values_zswap(values, &zswap), "values_zswap");
    expect(UZ_OK, uz_values_store_for(values, UZ_ROOT, 5, value, length), "values_store_for");
    expect(UZ_OK, uz_values_length(values, 5, &found), "values_length");
    if (found != length)
        fail("the length of a value is %zu, not %zu", found, length);
    found = 0;
    expect(UZ_BUFFER, uz_values_load(values, 5, small, sizeof small, &found), "a small buffer");
    if (found != length)
        fail("a small buffer does not report the length");
    expect(UZ_OK, uz_values_invalidate(values, 5), "values_invalidate");
    expect(UZ_NOT_FOUND, uz_values_invalidate(values, 5), "values_invalidate again");
    expect(UZ_NOT_FOUND, uz_values_length(values, 5, &found), "the length of no value");
    expect(UZ_NOT_FOUND, uz_values_load(values, 5, small, 0, NULL), "a load of no value");
    expect(UZ_ARGUMENT, uz_values_store(values, 5, value, 0), "no bytes");
    expect(UZ_ARGUMENT, uz_values_store(values, 5, NULL, 1), "no value");
    expect(UZ_ARGUMENT, uz_values_store(NULL, 5, value, 1), "no values");
    expect(UZ_TENANT, uz_values_store_for(values, 3, 5, value, 1), "no tenant");
    expect(UZ_OK, uz_values_stat(values, "values", &count), "values_stat");
    /* Each third of a thread's own values was taken away. */
    uint64_t own = (VALUES - SHARED_VALUES) * 2 / 3;
    if (count < THREADS * own || count > THREADS * own + SHARED_VALUES)
        fail("%llu values are left", (unsigned long long)count);
    uz_values_free(values); /* the other handle still has the store */
    if (stat_of(zswap, "budget.peak_bytes") > LIMIT_BYTES)
        fail("values exceeded the limit");
    if (stat_of(zswap, "counters.stored_units") == 0)
        fail("no unit was stored");
    uz_zswap_free(zswap);
}

/* A snapshot has all of it, and what was removed before is not there. */
static void restore(uz_zswap *zswap, const char *path)
{
    uz_zswap *restored = NULL;
    uint64_t first = OWN_KEYS, count = 0;
    page_bytes page;
    expect(UZ_OK, uz_invalidate_range(zswap, first, first + 9, &count), "invalidate_range");
    if (count != 10)
        fail("%llu pages were invalidated, not 10", (unsigned long long)count);
    expect(UZ_OK, uz_invalidate(zswap, first + 10), "invalidate");
    expect(UZ_NOT_FOUND, uz_invalidate(zswap, first + 10), "invalidate again");
    expect(UZ_OK, uz_snapshot(zswap, path), "snapshot");
    expect(UZ_OK, uz_zswap_restore(NULL, path, &restored), "restore");
    for (uint64_t at = 0; at < OWN_RUNS * RUN_PAGES; at++) {
        expect(at <= 10 ? UZ_NOT_FOUND : UZ_OK, uz_load(restored, first + at, page), "restored");
        if (at > 10)
            check(page, first + at);
    }
    uz_zswap_free(restored);
    remove(path);
}

/* Without a file a store refuses pages at its limit, and keeps those that it has. */
static void reach_limit(void)
{
    uz_options *options = uz_options_new();
    uz_zswap *zswap = NULL;
    page_bytes page;
    uint64_t stored = 0;
    uz_status status;
    set(options, "max_pool_bytes", "262144");
    expect(UZ_OK, uz_zswap_new(options, &zswap), "zswap_new");
    uz_options_free(options);
    for (;; stored++) {
        fill(page, stored, 1);
        status = uz_store(zswap, stored, page);
        if (status != UZ_OK)
            break;
    }
    expect(UZ_LIMIT, status, "store at the limit");
    if (strstr(uz_last_error(), "headroom") == NULL)
        fail("an unexpected message");
    if (stored < 50)
        fail("only %llu pages were stored", (unsigned long long)stored);
    for (uint64_t key = 0; key < stored; key++) {
        expect(UZ_OK, uz_load(zswap, key, page), "load at the limit");
        check(page, key);
    }
    expect(UZ_NOT_FOUND, uz_contains(zswap, stored), "contains");
    uz_zswap_free(zswap);
}

/* A cold page is compressed again, and another one is stored so from the start. */
static void compress_densely(void)
{
    uz_options *options = uz_options_new();
    uz_zswap *zswap = NULL;
    page_bytes pages[2], page;
    uint64_t saved = 0, again = 1;
    set(options, "dense", "zstd:19");
    expect(UZ_OK, uz_zswap_new(options, &zswap), "zswap_new");
    uz_options_free(options);
    for (uint64_t key = 0; key < 2; key++) {
        fill_part(pages[key], key, 1, UZ_PAGE_SIZE);
        for (size_t at = 0; at < UZ_PAGE_SIZE; at++)
            pages[key][at] = "acgt"[pages[key][at] % 4];
    }
    expect(UZ_OK, uz_store(zswap, 0, pages[0]), "store");
    expect(UZ_OK, uz_recompress(zswap, 0, &saved), "recompress");
    if (saved < UZ_PAGE_SIZE / 8)
        fail("%llu bytes were saved", (unsigned long long)saved);
    expect(UZ_OK, uz_store_dense(zswap, 1, pages[1]), "store_dense");
    expect(UZ_OK, uz_recompress(zswap, 2, NULL), "recompress no page");
    for (uint64_t key = 0; key < 2; key++) {
        expect(UZ_OK, uz_recompress(zswap, key, &again), "recompress again");
        if (again != 0)
            fail("a dense page was compressed again");
        expect(UZ_OK, uz_load(zswap, key, page), "load");
        if (memcmp(page, pages[key], UZ_PAGE_SIZE) != 0)
            fail("a dense page is wrong");
    }
    uz_zswap_free(zswap);
}

/* A page that does not compress is refused. The others of its batch are stored. */
static void refuse_random_page(void)
{
    uz_zswap *zswap = NULL;
    page_bytes pages[3];
    uz_status statuses[3];
    expect(UZ_OK, uz_zswap_new(NULL, &zswap), "zswap_new");
    for (uint64_t key = 0; key < 3; key++)
        fill_part(pages[key], key, 1, key == 0 ? UZ_PAGE_SIZE : 99);
    expect(UZ_INCOMPRESSIBLE, uz_store_all(zswap, 0, pages, 3, statuses), "a random page");
    expect(UZ_INCOMPRESSIBLE, statuses[0], "its code");
    expect(UZ_OK, statuses[1], "the page after it");
    expect(UZ_OK, statuses[2], "the last page");
    expect(UZ_INCOMPRESSIBLE, uz_store_all(zswap, 0, pages, 3, NULL), "no place for codes");
    expect(UZ_NOT_FOUND, uz_load(zswap, 0, pages[0]), "the random page");
    expect(UZ_OK, uz_load_exclusive(zswap, 2, pages[2]), "load_exclusive");
    if (memcmp(pages[1], pages[2], 8) == 0)
        fail("two pages are the same");
    uz_zswap_free(zswap);
}

/* Wrong arguments give codes. */
static void refuse(uz_zswap *zswap)
{
    uz_options *options = uz_options_new();
    uz_zswap *none = zswap;
    uz_values *no_values = NULL;
    page_bytes page = {0};
    char text[64];
    size_t length = 0;
    uint64_t value = 7;
    expect(UZ_NAME, uz_options_set(options, "compresor", "lz4"), "an unknown option");
    expect(UZ_VALUE, uz_options_set(options, "compressor", "lz5"), "an unknown compressor");
    expect(UZ_ARGUMENT, uz_options_set(options, NULL, "lz4"), "no name");
    expect(UZ_ARGUMENT, uz_options_set(options, "compressor", "\xff"), "no UTF-8");
    expect(UZ_OK, uz_options_set(options, "shards", "3"), "shards");
    expect(UZ_VALUE, uz_zswap_new(options, &none), "3 shards");
    if (none != NULL || strcmp(uz_last_error(), "shards must be a power of two, got 3") != 0)
        fail("the handle or the message of a refused store");
    expect(UZ_VALUE, uz_options_set(options, "shards", "many"), "a word for a number");
    if (strcmp(uz_last_error(), "option 'shards' cannot be 'many': it takes a power of two, at most "
                                "65536") != 0)
        fail("the message of a refused value: %s", uz_last_error());
    expect(UZ_OK, uz_options_set(options, "shards", "4"), "shards");
    expect(UZ_OK, uz_options_set(options, "file.bytes", "8192"), "file.bytes");
    expect(UZ_VALUE, uz_zswap_new(options, &none), "file.bytes without file.path");
    expect(UZ_VALUE, uz_values_new(options, &no_values), "file.bytes without file.path");
    expect(UZ_ARGUMENT, uz_zswap_new(NULL, NULL), "no place");
    expect(UZ_IO, uz_zswap_restore(NULL, "/nowhere/snapshot", &none), "no snapshot");
    expect(UZ_ARGUMENT, uz_store(NULL, 1, page), "no store");
    expect(UZ_ARGUMENT, uz_store(zswap, 1, NULL), "no page");
    expect(UZ_ARGUMENT, uz_load(zswap, 1, NULL), "no room");
    expect(UZ_ARGUMENT, uz_store_all(zswap, UINT64_MAX, page, 2, NULL), "a key of 65 bits");
    expect(UZ_ARGUMENT, uz_store_all(zswap, 0, page, SIZE_MAX, NULL), "too many pages");
    expect(UZ_TENANT, uz_store_for(zswap, 77, 1, page), "no tenant");
    expect(UZ_NAME, uz_stat(zswap, "counters.x", &value), "no statistic");
    if (value != 7)
        fail("a refused call wrote a result");
    expect(UZ_NOT_FOUND, uz_tenant_find(zswap, "nobody", &value), "no such name");
    expect(UZ_BUFFER, uz_stats_json(zswap, NULL, 0, &length), "the length of a text");
    expect(UZ_BUFFER, uz_stats_json(zswap, text, sizeof text, NULL), "a small buffer");
    if (length < sizeof text)
        fail("the statistics have %zu bytes", length);
    uz_options_free(options);
    uz_options_free(NULL);
    uz_zswap_free(NULL);
}

int main(int count, char **arguments)
{
    char file[4096], snapshot[4096];
    uz_options *options = uz_options_new();
    uz_zswap *zswap = NULL;
    if (count != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
        return 2;
    }
    snprintf(file, sizeof file, "%s/threads.pages", arguments[1]);
    snprintf(snapshot, sizeof snapshot, "%s/threads.snapshot", arguments[1]);
    set(options, "max_pool_bytes", "1048576"); /* LIMIT_BYTES */
    set(options, "file.path", file);
    set(options, "file.bytes", "33554432");
    set(options, "shrinker", "true");
    expect(UZ_OK, uz_zswap_new(options, &zswap), "zswap_new");
    uz_options_free(options);
    share(zswap);
    restore(zswap, snapshot);
    snprintf(file, sizeof file, "%s/values.pages", arguments[1]);
    share_values(file);
    refuse(zswap);
    reach_limit();
    refuse_random_page();
    compress_densely();
    uz_zswap_free(zswap);
    printf("uzswap %s: all pages were right\n", uz_version());
    return 0;
}
