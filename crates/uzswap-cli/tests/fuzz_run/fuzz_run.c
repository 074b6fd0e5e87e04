/* A program that does with its memory whatever the kernel offers, from a seed, and knows each page.
 *
 *   fuzz_run SEED SECONDS THREADS MIB
 *
 * Memory: AREAS of private mappings. A page has a value, which gives all of its words; value 0 is a
 * page of zeros. The values are in shared memory, so that no loss of a private page changes them.
 * Each thread takes an area, does one operation with it, and leaves it. A fork takes as many areas
 * as it gets; its child checks them against the values of that moment.
 * Exit code: 0 all pages right, 99 a wrong page, 98 no progress for a minute, 97 an unexpected
 * answer of the kernel, 96 a child was ended by a signal. */
#define _GNU_SOURCE
#include "fuzz_run.h"

struct shared *shared;
static struct area areas[AREAS]; /* private: a child has the addresses of its fork */
static __thread uint64_t state;

_Noreturn void fail(int code, const char *format, ...) {
    char text[700];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text - 1, format, list);
    va_end(list);
    text[length++] = '\n';
    if (write(2, text, length) < 0) code = code;
    shared->failed = code;
    kill(shared->root, SIGTERM);
    _exit(code);
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
uint64_t next(uint64_t below) { return mix(state++) % below; }
static int once_in(uint64_t n) { return next(n) == 0; }

/* Same-filled, sparse, short and incompressible pages in turn. */
static uint64_t word_of(uint64_t value, int i) {
    switch (value & 3) {
    case 0: return value;
    case 1: return i % 16 ? 0 : mix(value + i);
    case 2: return i < 200 ? mix(value + i) : value;
    default: return mix(value + i);
    }
}

static void write_page(struct area *area, int page) {
    uint64_t value = mix(state++) | 1ull << 40;
    uint64_t *words = (uint64_t *)(area->at + (size_t)page * PAGE);
    for (int i = 0; i < WORDS; i++) words[i] = word_of(value, i);
    shared->value[area->id][page] = value;
    shared->lazy[area->id][page] = 0;
}

/* Whether the page holds its value: 1; or zeros where the kernel may drop it at any moment: 2. */
static int check_words(const uint64_t *words, uint64_t value, int may_be_zero, int *at) {
    for (*at = 0; *at < WORDS; (*at)++)
        if (words[*at] != (value ? word_of(value, *at) : 0)) break;
    if (*at == WORDS) return 1;
    for (int i = 0; i < WORDS; i++)
        if (words[i] || !may_be_zero) return 0;
    return 2;
}

/* Flags of the mapping at an address, as /proc/self/smaps has them. */
static const char *flags_at(const void *address) {
    static char line[512];
    FILE *smaps = fopen("/proc/self/smaps", "r");
    unsigned long start, end, at = (unsigned long)address;
    int is_it = 0;
    while (smaps && fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) is_it = start <= at && at < end;
        if (is_it && !strncmp(line, "VmFlags:", 8)) return strtok(line + 8, "\n");
    }
    return " unknown";
}

/* The first word of the page in the parent, which may have gone on. */
static uint64_t word_in_parent(const void *address) {
    uint64_t word = 0;
    struct iovec to = {&word, sizeof word}, from = {(void *)address, sizeof word};
    return process_vm_readv(getppid(), &to, 1, &from, 1, 0) == sizeof word ? word : 0;
}

static void wrong(const char *where, int id, int page, uint64_t value, const uint64_t *words,
                  int at) {
    int zeros = 0;
    for (int i = 0; i < WORDS; i++) zeros += words[i] == 0;
    int other = -1, other_page = -1;
    for (int a = 0; a < AREAS && other < 0; a++)
        for (int p = 0; p < PAGES_MAX; p++) {
            int ignored;
            uint64_t v = shared->value[a][p];
            if (v && check_words(words, v, 0, &ignored)) { other = a, other_page = p; break; }
        }
    fail(99, "wrong page (%s): area %d page %d at %p word %d is %#lx, due %#lx; %d words are zero; "
             "holds the page of area %d page %d (-1: of none); history %s; flags%s; the parent "
             "has %#lx",
         where, id, page, (void *)words, at, (long)words[at],
         (long)(value ? word_of(value, at) : 0), zeros, other, other_page, areas[id].history,
         flags_at(words), (long)word_in_parent(words));
}

static void check_page(struct area *area, int page) {
    int at;
    const uint64_t *words = (uint64_t *)(area->at + (size_t)page * PAGE);
    uint64_t value = shared->value[area->id][page];
    int is_lazy = shared->lazy[area->id][page];
    switch (check_words(words, value, is_lazy, &at)) {
    case 0: wrong("parent", area->id, page, value, words, at); break;
    case 2: shared->value[area->id][page] = 0, shared->lazy[area->id][page] = 0;
    }
    __atomic_add_fetch(&shared->checks, 1, __ATOMIC_RELAXED);
}

static void note(struct area *area, char what) {
    memmove(area->history, area->history + 1, sizeof area->history - 2);
    area->history[sizeof area->history - 2] = what;
}

struct range { int first, count; };
static struct range some_pages(struct area *area) {
    int count = 1 + next(once_in(3) ? area->pages : area->pages / 8 + 1);
    return (struct range){next(area->pages - count + 1), count};
}
static char *address(struct area *area, struct range r) {
    return area->at + (size_t)r.first * PAGE;
}
static size_t length(struct range r) { return (size_t)r.count * PAGE; }

static void forget(struct area *area, int first, int count) {
    for (int page = first; page < first + count; page++)
        shared->value[area->id][page] = 0, shared->lazy[area->id][page] = 0;
}

static void expect(int is_right, const char *call) {
    if (!is_right) fail(97, "%s: errno %d (%s)", call, errno, strerror(errno));
}

static char *map(int pages) {
    char *at = mmap(0, (size_t)pages * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | (once_in(12) ? MAP_POPULATE : 0), -1, 0);
    expect(at != MAP_FAILED, "mmap");
    return at;
}

static void renew(struct area *area) {
    note(area, 'n');
    expect(!munmap(area->at, (size_t)area->pages * PAGE), "munmap");
    area->pages = shared->pages / 2 + next(shared->pages / 2);
    area->at = map(area->pages);
    memset(area->advice, 0, sizeof area->advice);
    forget(area, 0, PAGES_MAX);
}

/* One mapping again, as mremap wants it. */
static void make_one(struct area *area) {
    size_t bytes = (size_t)area->pages * PAGE;
    expect(!madvise(area->at, bytes, MADV_DOFORK), "MADV_DOFORK");
    expect(!madvise(area->at, bytes, MADV_KEEPONFORK), "MADV_KEEPONFORK");
    expect(!mprotect(area->at, bytes, PROT_READ | PROT_WRITE), "mprotect");
    munlock(area->at, bytes);
    memset(area->advice, 0, sizeof area->advice);
}

static void move(struct area *area) {
    size_t bytes = (size_t)area->pages * PAGE;
    make_one(area);
    int leave = once_in(3);
    note(area, leave ? 'L' : 'm');
    char *to = map(area->pages), *from = area->at;
    for (int page = 0; page < area->pages; page += 1 + next(64)) to[(size_t)page * PAGE] = 1;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (leave ? MREMAP_DONTUNMAP : 0);
    char *at = mremap(from, bytes, bytes, flags, to);
    if (at == MAP_FAILED && errno == EFAULT) { /* several mappings: refused, wholly or in part */
        renew(area);
        return;
    }
    expect(at == to, "mremap");
    area->at = at;
    if (!leave) return;
    for (int page = 0; page < area->pages; page++) {
        int ignored;
        const uint64_t *words = (uint64_t *)(from + (size_t)page * PAGE);
        if (!check_words(words, 0, 0, &ignored))
            wrong("left behind", area->id, page, 0, words, ignored);
    }
    expect(!munmap(from, bytes), "munmap");
}

static void resize(struct area *area) {
    int pages = shared->pages / 2 + next(shared->pages / 2);
    note(area, 'r');
    make_one(area);
    char *at = mremap(area->at, (size_t)area->pages * PAGE, (size_t)pages * PAGE, MREMAP_MAYMOVE);
    if (at == MAP_FAILED && errno == EFAULT) return; /* several mappings still */
    expect(at != MAP_FAILED, "mremap");
    area->at = at, area->pages = pages;
    forget(area, pages, PAGES_MAX - pages);
}

static void advise_fork(struct area *area) {
    static const int kinds[] = {MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK};
    int kind = next(4);
    struct range r = some_pages(area);
    note(area, "dowk"[kind]);
    expect(!madvise(address(area, r), length(r), kinds[kind]), "madvise about forks");
    for (int page = r.first; page < r.first + r.count; page++) {
        unsigned char *advice = &area->advice[page];
        *advice = kind < 2 ? (*advice & ~NOT_COPIED) | (kind == 0 ? NOT_COPIED : 0)
                           : (*advice & ~WIPED) | (kind == 2 ? WIPED : 0);
    }
}

static void give_back(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'g');
    /* Locked pages are refused. */
    if (!madvise(address(area, r), length(r), MADV_DONTNEED)) forget(area, r.first, r.count);
}

static void free_lazily(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'f');
    if (madvise(address(area, r), length(r), MADV_FREE)) return;
    for (int page = r.first; page < r.first + r.count; page++)
        if (shared->value[area->id][page]) shared->lazy[area->id][page] = 1;
}

static void protect(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'p');
    expect(!mprotect(address(area, r), length(r), once_in(2) ? PROT_READ : PROT_NONE), "mprotect");
    if (once_in(2)) usleep(next(3000));
    expect(!mprotect(address(area, r), length(r), PROT_READ | PROT_WRITE), "mprotect");
}

static void lock(struct area *area) {
    struct range r = some_pages(area);
    if (r.count > 16) r.count = 16;
    note(area, 'l');
    if (mlock(address(area, r), length(r))) return;
    for (int page = r.first; page < r.first + r.count; page++) check_page(area, page);
    expect(!munlock(address(area, r), length(r)), "munlock");
}

/* Compares what the kernel read for us with what is due. */
static void check_copy(struct area *area, struct range r, const char *copy, const char *where) {
    for (int i = 0; i < r.count; i++) {
        int page = r.first + i, at;
        uint64_t value = shared->value[area->id][page];
        const uint64_t *words = (const uint64_t *)(copy + (size_t)i * PAGE);
        if (!check_words(words, value, shared->lazy[area->id][page], &at))
            wrong(where, area->id, page, value, words, at);
    }
}

static void read_by_kernel(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'v');
    char *copy = map(r.count);
    struct iovec to = {copy, length(r)}, from = {address(area, r), length(r)};
    ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    expect(n == (ssize_t)length(r), "process_vm_readv");
    check_copy(area, r, copy, "process_vm_readv");
    expect(!munmap(copy, length(r)), "munmap");
    __atomic_add_fetch(&shared->pins, 1, __ATOMIC_RELAXED);
}

static void write_directly(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'D');
    int fd = open_direct();
    if (fd < 0) return;
    ssize_t n = pwrite(fd, address(area, r), length(r), 0);
    expect(n == (ssize_t)length(r), "pwrite, O_DIRECT");
    char *copy = map(r.count);
    expect(pread(fd, copy, length(r), 0) == n, "pread, O_DIRECT");
    check_copy(area, r, copy, "O_DIRECT");
    /* And back into the area, as it is. */
    expect(pread(fd, address(area, r), length(r), 0) == n, "pread, O_DIRECT");
    for (int i = 0; i < r.count; i++) {
        int page = r.first + i;
        if (shared->lazy[area->id][page]) {
            /* Written again: it is what was read. */
            const uint64_t *words = (uint64_t *)(copy + (size_t)i * PAGE);
            int at;
            if (check_words(words, shared->value[area->id][page], 1, &at) == 2)
                shared->value[area->id][page] = 0;
            shared->lazy[area->id][page] = 0;
        }
        check_page(area, page);
    }
    munmap(copy, length(r));
    close(fd);
    __atomic_add_fetch(&shared->pins, 1, __ATOMIC_RELAXED);
}

static void ring(struct area *area) {
    struct range r = some_pages(area);
    note(area, 'R');
    for (int page = r.first; page < r.first + r.count; page++) /* a buffer is used, not freed */
        if (shared->lazy[area->id][page]) write_page(area, page);
    char *copy = map(r.count);
    if (write_by_ring(address(area, r), length(r), copy)) {
        check_copy(area, r, copy, "io_uring");
        __atomic_add_fetch(&shared->pins, 1, __ATOMIC_RELAXED);
    }
    munmap(copy, length(r));
}

/* The areas that a fork's child may check, and the values of their pages at the fork. */
struct held { int count; struct area *area[AREAS]; };

/* Of a fork by system call alone the pages stay once they are there: it checks fewer. */
static void check_in_child(struct snapshot *snapshot, struct held *held, int deeper, int is_raw) {
    int most = is_raw ? 33 : deeper ? 2 : 6;
    for (int i = 0; i < held->count; i++) {
        struct area *area = held->area[i];
        for (int page = next(3); page < area->pages; page += 1 + next(most)) {
            char *at = area->at + (size_t)page * PAGE;
            if (area->advice[page] & NOT_COPIED) continue; /* there may be something else by now */
            int wiped = area->advice[page] & WIPED, word;
            uint64_t value = wiped ? 0 : snapshot->value[area->id][page];
            if (!check_words((uint64_t *)at, value, snapshot->lazy[area->id][page], &word))
                wrong(snapshot->kind[!deeper], area->id, page, value, (uint64_t *)at, word);
            __atomic_add_fetch(&shared->checks, 1, __ATOMIC_RELAXED);
        }
    }
}

/* By system call alone, no function of the C library learns of the fork: nor may the child's. */
static int fork_by(int is_raw) {
    int pid = is_raw ? (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    expect(pid >= 0, "fork");
    return pid;
}

static _Noreturn void child(struct snapshot *snapshot, struct held *held, int is_raw) {
    state = mix(state ^ 0xc1d);
    if (once_in(3)) usleep(next(20000));
    if (!is_raw && once_in(3) && held->count) { /* it advises before it looks at the data */
        struct area *area = held->area[0];
        for (int page = 0; page < area->pages; page++)
            if (area->advice[page] & NOT_COPIED) goto look;
        size_t bytes = (size_t)area->pages * PAGE;
        expect(!madvise(area->at, bytes, MADV_KEEPONFORK), "madvise in a child");
    }
look:
    check_in_child(snapshot, held, 1, is_raw);
    if (once_in(4)) {
        /* A wiped page stays wiped for the child's child, unless the child said otherwise: it has
         * zeros in each case. */
        int pid = fork_by(is_raw);
        if (!pid) {
            check_in_child(snapshot, held, 0, is_raw);
            _exit(0);
        }
        int status;
        expect(waitpid(pid, &status, 0) == pid, "waitpid");
        if (WIFSIGNALED(status) && !(is_raw && WTERMSIG(status) == SIGBUS))
            fail(96, "a child's child was ended by signal %d", WTERMSIG(status));
    }
    _exit(0);
}

/* Each thread has a few children at a time, and a snapshot for each. */
struct children { int pid[2], is_raw[2]; };

static void reap(struct children *children, int i) {
    int status;
    expect(waitpid(children->pid[i], &status, 0) == children->pid[i], "waitpid");
    children->pid[i] = 0;
    /* Of a fork by system call alone, the supervisor may know too little: SIGBUS, and a message. */
    if (WIFSIGNALED(status) && !(children->is_raw[i] && WTERMSIG(status) == SIGBUS))
        fail(96, "a child was ended by signal %d", WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status)) _exit(WEXITSTATUS(status));
    __atomic_add_fetch(&shared->forks, 1, __ATOMIC_RELAXED);
}

static void forks(int thread, struct children *children) {
    int slot = next(2);
    struct held held = {0};
    if (children->pid[slot]) reap(children, slot);
    for (int i = 0; i < AREAS; i++)
        if (!pthread_mutex_trylock(&areas[i].mutex)) held.area[held.count++] = &areas[i];
    struct snapshot *snapshot = &shared->snapshot[thread * 2 + slot];
    int is_raw = once_in(8);
    snapshot->kind[0] = is_raw ? "child by clone" : "child";
    snapshot->kind[1] = is_raw ? "child's child by clone" : "child's child";
    for (int i = 0; i < held.count; i++) {
        int id = held.area[i]->id;
        note(held.area[i], 'F');
        memcpy(snapshot->value[id], shared->value[id], sizeof snapshot->value[id]);
        memcpy(snapshot->lazy[id], shared->lazy[id], sizeof snapshot->lazy[id]);
    }
    /* The supervisor cannot know when the child of a system call alone has run. The advice about
     * its areas stays as it is until it has ended. */
    int pid = fork_by(is_raw);
    if (!pid) child(snapshot, &held, is_raw);
    children->pid[slot] = pid, children->is_raw[slot] = is_raw;
    /* Then a failure tells whether the parent has the page. */
    if (is_raw || once_in(3)) reap(children, slot);
    for (int i = 0; i < held.count; i++) {
        if (!is_raw && once_in(4)) advise_fork(held.area[i]);
        pthread_mutex_unlock(&held.area[i]->mutex);
    }
}

static void (*const operations[])(struct area *) = {
    renew, move, move, resize, advise_fork, give_back, free_lazily, protect, lock, read_by_kernel,
    write_directly, ring,
};

static void *check_all_of(void *area) {
    for (int page = 0; page < ((struct area *)area)->pages; page++) check_page(area, page);
    return 0;
}

static void step(int thread, struct children *children) {
    if (once_in(60)) { forks(thread, children); return; }
    struct area *area = &areas[next(AREAS)];
    if (pthread_mutex_trylock(&area->mutex)) return;
    struct range r = some_pages(area);
    uint64_t kind = next(24);
    if (kind < 8) {
        for (int page = r.first; page < r.first + r.count; page++) write_page(area, page);
    } else if (kind < 15) {
        for (int page = r.first; page < r.first + r.count; page++) check_page(area, page);
    } else if (kind == 15) { /* a thread that begins and ends */
        pthread_t other;
        expect(!(errno = pthread_create(&other, 0, check_all_of, area)), "pthread_create");
        pthread_join(other, 0);
    } else {
        operations[next(sizeof operations / sizeof *operations)](area);
    }
    pthread_mutex_unlock(&area->mutex);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    struct children children = {0};
    state = mix(shared->seed * 64 + thread) << 20;
    while (!shared->is_over) {
        step(thread, &children);
        __atomic_add_fetch(&shared->steps[thread], 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < 2; i++)
        if (children.pid[i]) reap(&children, i);
    __atomic_sub_fetch(&shared->running, 1, __ATOMIC_RELAXED);
    return 0;
}

static void ended(int signal) { (void)signal; _exit(shared->failed ? shared->failed : 95); }

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return perror("mmap"), 97;
    shared->root = getpid(), shared->seed = strtoull(argv[1], 0, 10);
    signal(SIGTERM, ended);
    int seconds = atoi(argv[2]), threads = atoi(argv[3]);
    shared->pages = atol(argv[4]) * 256 / AREAS * 4 / 3; /* areas have 3/4 of it on average */
    if (threads > THREADS_MAX || shared->pages > PAGES_MAX) return 2;
    for (int i = 0; i < AREAS; i++) {
        areas[i].id = i, areas[i].pages = shared->pages * 3 / 4, areas[i].at = map(areas[i].pages);
        for (int page = 0; page < areas[i].pages; page++) write_page(&areas[i], page);
        memset(areas[i].history, '.', sizeof areas[i].history - 1);
        pthread_mutex_init(&areas[i].mutex, 0);
    }
    pthread_t handles[THREADS_MAX];
    shared->running = threads;
    for (int i = 0; i < threads; i++)
        expect(!(errno = pthread_create(&handles[i], 0, work, (void *)(intptr_t)i)), "a thread");
    uint64_t last[THREADS_MAX] = {0};
    int quiet[THREADS_MAX] = {0};
    for (int second = 0; shared->running; second++) {
        sleep(1);
        shared->is_over = second + 1 >= seconds;
        for (int i = 0; i < threads; i++) {
            quiet[i] = last[i] == shared->steps[i] ? quiet[i] + 1 : 0;
            last[i] = shared->steps[i];
            if (quiet[i] == 60 && !shared->is_over)
                fail(98, "thread %d does nothing for a minute", i);
        }
        if (second == seconds + 60) fail(98, "%d threads do not end", shared->running);
    }
    for (int i = 0; i < threads; i++) pthread_join(handles[i], 0);
    for (int i = 0; i < AREAS; i++) check_all_of(&areas[i]);
    printf("%lu pages checked, %lu forks, %lu pins\n", (long)shared->checks,
           (long)shared->forks, (long)shared->pins);
    return 0;
}
