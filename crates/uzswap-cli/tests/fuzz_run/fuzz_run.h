/* Types of fuzz_run.c, and its ways to pin pages (pinned.c). */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512, AREAS = 16, PAGES_MAX = 1536, THREADS_MAX = 8 };
enum { NOT_COPIED = 1, WIPED = 2 };

struct area {
    pthread_mutex_t mutex;
    char *at;
    int id, pages;
    unsigned char advice[PAGES_MAX];
    char history[48]; /* its last operations, for the message */
};

struct snapshot {
    const char *kind[2]; /* of its child, and of that one's, for messages */
    uint64_t value[AREAS][PAGES_MAX];
    unsigned char lazy[AREAS][PAGES_MAX];
};

struct shared {
    int root, pages, failed, is_over, running;
    uint64_t seed, checks, forks, pins, steps[THREADS_MAX];
    uint64_t value[AREAS][PAGES_MAX];
    unsigned char lazy[AREAS][PAGES_MAX]; /* freed lazily: the value, or zeros */
    struct snapshot snapshot[THREADS_MAX * 2];
};

extern struct shared *shared;
_Noreturn void fail(int code, const char *format, ...);
uint64_t next(uint64_t below);

int open_direct(void);
int write_by_ring(char *pages, size_t bytes, char *copy);
