/* Reads and writes its own memory through /proc/self/mem, as compilers do for read-only code.
 * own_memory MIB(of data) PAGES(of code)
 * Prints how many accesses failed, and how many found something else. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define RUN 4 /* pages of one long access */

static uint64_t *code, *data;
static size_t pages, words;

static uint64_t word(size_t at) { return at / 16 * 2654435761u; }

/* Reads all data some times: the code becomes cold. */
static long read_data(void)
{
    long wrong = 0;
    for (int round = 0; round < 4; round++)
        for (size_t at = 0; at < words; at += WORDS / 2)
            wrong += data[at] != word(at);
    return wrong;
}

/* Whether an access did not read or write all. */
static long failed(ssize_t done, size_t wanted, const char *name)
{
    if (done == (ssize_t)wanted)
        return 0;
    fprintf(stderr, "%s: %zd of %zu: %s\n", name, done, wanted, strerror(errno));
    return 1;
}

/* Reads a few words and long runs, writes a few words and long runs. */
static int use(void)
{
    long errors = 0, wrong = read_data();
    int file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    uint64_t *buffer = malloc(RUN * PAGE);
    for (size_t page = 0; page + RUN <= pages; page += RUN) {
        size_t at = page * WORDS;
        off_t here = (off_t)(uintptr_t)(code + at + 8);
        struct iovec parts[2] = {{buffer, PAGE}, {buffer + WORDS, PAGE}};
        switch (page / RUN % 6) {
        case 0:
            errors += failed(pread(file, buffer, 8, here), 8, "pread");
            wrong += buffer[0] != word(at + 8);
            break;
        case 1:
            buffer[0] = ~word(at + 8);
            errors += failed(pwrite(file, buffer, 8, here), 8, "pwrite");
            wrong += code[at + 8] != ~word(at + 8);
            break;
        case 2:
            errors += failed(pread(file, buffer, 3 * PAGE, here), 3 * PAGE, "long pread");
            for (size_t i = 0; i < 3 * WORDS; i++)
                wrong += buffer[i] != word(at + 8 + i);
            break;
        case 3:
            for (size_t i = 0; i < 3 * WORDS; i++)
                buffer[i] = ~word(at + 8 + i);
            errors += failed(pwrite(file, buffer, 3 * PAGE, here), 3 * PAGE, "long pwrite");
            for (size_t i = 0; i < 3 * WORDS; i++)
                wrong += code[at + 8 + i] != ~word(at + 8 + i);
            break;
        case 4:
            errors += failed(preadv(file, parts, 2, here), 2 * PAGE, "preadv");
            for (size_t i = 0; i < 2 * WORDS; i++)
                wrong += buffer[i] != word(at + 8 + i);
            break;
        default:
            for (size_t i = 0; i < 2 * WORDS; i++)
                buffer[i] = ~word(at + 8 + i);
            errors += failed(pwritev(file, parts, 2, here), 2 * PAGE, "pwritev");
            for (size_t i = 0; i < 2 * WORDS; i++)
                wrong += code[at + 8 + i] != ~word(at + 8 + i);
        }
    }
    /* No memory is there: the errors stay. */
    if (pread(file, buffer, 8, 64) != -1 || errno != EIO)
        wrong++;
    printf("%ld failed, %ld wrong\n", errors, wrong);
    return errors || wrong;
}

int main(int count, char **arguments)
{
    words = strtoul(arguments[1], NULL, 10) << 17;
    pages = strtoul(arguments[2], NULL, 10);
    int rights = PROT_READ | PROT_WRITE;
    code = mmap(NULL, pages * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data = mmap(NULL, words * 8, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < pages * WORDS; at++)
        code[at] = word(at);
    mprotect(code, pages * PAGE, PROT_READ | PROT_EXEC);
    for (size_t at = 0; at < words; at++)
        data[at] = word(at);
    return use();
}
