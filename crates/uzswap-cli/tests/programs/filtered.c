/* Sets a seccomp filter that refuses all but a few calls, and uses memory before and after it.
 * filtered THREADS(alone|all) MIB THEN(exit|exec|wait) */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static uint64_t *heap;
static size_t words;
static int ready[2], go[2];

static uint64_t word(size_t at) { return at / 16 * 2654435761u; }

static void fill(size_t from, size_t to)
{
    for (size_t at = from; at < to; at++)
        heap[at] = word(at);
}

static long wrong(void)
{
    long count = 0;
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < words; at++)
            count += heap[at] != word(at);
    return count;
}

/* Whether the filter refuses a call to this thread. */
static long is_filtered(void) { return syscall(SYS_getppid) == -1 && errno == EPERM; }

static void *other(void *unused)
{
    char byte;
    if (write(ready[1], "", 1) != 1 || read(go[0], &byte, 1) != 1)
        return (void *)-1;
    return (void *)(is_filtered() + 2 * wrong());
}

int main(int count, char **arguments)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group),
        ALLOW(SYS_mmap), ALLOW(SYS_futex), ALLOW(SYS_execve),
        /* A thread that ends, and a program that is started. */
        ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_madvise), ALLOW(SYS_munmap),
        ALLOW(SYS_openat), ALLOW(SYS_close), ALLOW(SYS_brk), ALLOW(SYS_mprotect),
        ALLOW(SYS_newfstatat), ALLOW(SYS_fstat), ALLOW(SYS_pread64), ALLOW(SYS_arch_prctl),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = { sizeof steps / sizeof *steps, steps };
    int all = count > 3 && !strcmp(arguments[1], "all");
    pthread_t thread;
    void *seen;
    char text[80];

    if (count < 4 || pipe(ready) || pipe(go))
        return 4;
    words = (size_t)atoi(arguments[2]) * (1 << 20) / 8;
    heap = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED)
        return 4;
    /* Some of it is evicted before there is a filter. */
    fill(0, words / 4 * 3);
    pthread_create(&thread, NULL, other, NULL);
    if (read(ready[0], text, 1) != 1)
        return 4;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long set = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                       all ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program);
    if (set) {
        printf("the filter is refused: %ld, %s\n", set, strerror(errno));
        return 2;
    }
    fill(words / 4 * 3, words);
    long own = is_filtered() + 2 * wrong();
    if (write(go[1], "", 1) != 1)
        return 4;
    pthread_join(thread, &seen);
    int length = snprintf(text, sizeof text, "own %ld, other %ld\n", own, (long)seen);
    if (write(1, text, length) != length)
        return 4;
    if (!strcmp(arguments[3], "exec"))
        execl("/bin/echo", "echo", "another", (char *)NULL);
    if (!strcmp(arguments[3], "wait"))
        return read(0, text, 1) == 1 ? 3 : 4;
    return 7;
}
