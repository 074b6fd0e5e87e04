/* Becomes a command, beside which a process goes on that keeps memory in use: under a limit of as
   much, the pages of the command leave, too.
   neighbour MIB COMMAND... The process is no child of the command, and ends with it. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
/* Touches between two looks at the command. */
#define BATCH 64

static uint64_t state = 88172645463325252u;

static uint64_t number(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Half of each page is random: a page shrinks to half. */
static void fill(char *memory, size_t pages) {
    for (size_t page = 0; page < pages; page++)
        for (size_t at = 0; at < PAGE / 2; at += 8)
            *(uint64_t *)(memory + page * PAGE + at) = number();
}

static void keep(int command, size_t pages, int ready) {
    const int rights = PROT_READ | PROT_WRITE;
    char *memory = mmap(0, pages * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(3);
    fill(memory, pages);
    if (write(ready, "", 1) != 1) _exit(3);
    close(ready);
    struct pollfd end = {.fd = command, .events = POLLIN};
    while (poll(&end, 1, 5) == 0)
        for (int touch = 0; touch < BATCH; touch++) memory[number() % pages * PAGE]++;
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    size_t pages = strtoul(argv[1], 0, 10) * 256;
    int ready[2], command = syscall(SYS_pidfd_open, getpid(), 0);
    if (command < 0 || pipe(ready)) return 3;
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0) {
            close(ready[0]);
            /* The output of the command must not stay open. */
            if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(3);
            keep(command, pages, ready[1]);
        }
        _exit(0);
    }
    close(ready[1]);
    char byte;
    if (waitpid(between, 0, 0) != between || read(ready[0], &byte, 1) != 1) return 3;
    close(ready[0]);
    close(command);
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
