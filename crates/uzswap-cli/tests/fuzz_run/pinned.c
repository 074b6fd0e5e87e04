/* Pages that the kernel holds for input and output: O_DIRECT, and buffers of an io_uring. */
#define _GNU_SOURCE
#include "fuzz_run.h"
#include <fcntl.h>
#include <linux/io_uring.h>

static int open_temporary(int flags) {
    const char *folder = getenv("TMPDIR");
    return open(folder ? folder : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
}

/* -1 where the file system has no direct input and output. */
int open_direct(void) { return open_temporary(O_DIRECT); }

/* Submits one request and returns its result. */
static int do_one(int fd, struct io_uring_params *p, char *rings, struct io_uring_sqe *entries,
                  struct io_uring_sqe request) {
    unsigned *tail = (unsigned *)(rings + p->sq_off.tail);
    unsigned mask = *(unsigned *)(rings + p->sq_off.ring_mask);
    unsigned *array = (unsigned *)(rings + p->sq_off.array);
    entries[*tail & mask] = request;
    array[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    long done;
    do done = syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0);
    while (done < 0 && errno == EINTR);
    if (done != 1) fail(97, "io_uring_enter: errno %d", errno);
    unsigned *head = (unsigned *)(rings + p->cq_off.head);
    unsigned completed = *(unsigned *)(rings + p->cq_off.ring_mask);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(rings + p->cq_off.cqes);
    int result = cqes[*head & completed].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

/* Registers `pages` as a fixed buffer, writes it to a file, changes it and reads it back, and gives
 * `copy` what the file holds. 0 where the kernel has no io_uring, or refuses to pin. */
int write_by_ring(char *pages, size_t bytes, char *copy) {
    struct io_uring_params p = {0};
    int fd = syscall(SYS_io_uring_setup, 2, &p), file = open_temporary(0), done = 0;
    if (fd < 0 || file < 0 || !(p.features & IORING_FEAT_SINGLE_MMAP)) goto out;
    size_t length = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    size_t of_entries = p.sq_entries * sizeof(struct io_uring_sqe);
    if (length < p.sq_off.array + p.sq_entries * 4) length = p.sq_off.array + p.sq_entries * 4;
    int rights = PROT_READ | PROT_WRITE;
    char *rings = mmap(0, length, rights, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(0, of_entries, rights, MAP_SHARED, fd, IORING_OFF_SQES);
    struct iovec buffer = {pages, bytes};
    if (rings == MAP_FAILED || entries == MAP_FAILED)
        fail(97, "mmap of an io_uring: errno %d", errno);
    if (!syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, &buffer, 1)) {
        struct io_uring_sqe request = {.opcode = IORING_OP_WRITE_FIXED, .fd = file};
        request.addr = (uintptr_t)pages, request.len = bytes;
        if (next(2)) usleep(next(5000)); /* the evictor meets pinned pages */
        int n = do_one(fd, &p, rings, entries, request);
        if (n != (int)bytes) fail(97, "write of %zu bytes by io_uring: %d", bytes, n);
        if (pread(file, copy, bytes, 0) != (ssize_t)bytes) fail(97, "pread: errno %d", errno);
        for (size_t i = 0; i < bytes; i += PAGE) pages[i] ^= 0x55; /* the read has to mend it */
        request.opcode = IORING_OP_READ_FIXED;
        n = do_one(fd, &p, rings, entries, request);
        if (n != (int)bytes) fail(97, "read of %zu bytes by io_uring: %d", bytes, n);
        done = 1;
    }
    munmap(rings, length);
    munmap(entries, of_entries);
out:
    if (fd >= 0) close(fd);
    if (file >= 0) close(file);
    return done;
}
