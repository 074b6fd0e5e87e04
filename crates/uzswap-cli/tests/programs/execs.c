// Starts itself by each function that starts a program, with an empty environment, and reports
// whether what was started has a helper.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *empty[] = {NULL};
static char *self;

// The helper, which has this memory, maps what it shares with the supervisor.
static int has_helper(void)
{
    int is_there = 0;
    char line[8192];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        is_there |= strstr(line, "/memfd:uzswap-control") != NULL;
    if (maps)
        fclose(maps);
    return is_there;
}

// What was started: its way, its arguments, and its environment but for that of the run.
static int report(int argc, char **argv)
{
    for (int wait = 0; wait < 100 && !has_helper(); wait++)
        usleep(10000);
    printf("%s %d arguments: %s", argv[2], argc, has_helper() ? "managed" : "unmanaged");
    for (char **each = environ; each && *each; each++)
        if (!strncmp(*each, "LD_PRELOAD=", 11)) {
            char *others = strchr(*each, ':');
            if (others)
                printf(" LD_PRELOAD=%s", others);
        } else if (strncmp(*each, "UZSWAP_SOCKET=", 14) && strncmp(*each, "PWD=", 4)
                   && strncmp(*each, "SHLVL=", 6) && strncmp(*each, "OLDPWD=", 7)
                   && strncmp(*each, "_=", 2)) {
            printf(" %s", *each);
        }
    printf("\n");
    return 0;
}

static void start(const char *way, char **with)
{
    char *argv[] = {self, "report", (char *) way, NULL};
    char command[500];
    snprintf(command, sizeof command, "%s report %s", self, way);
    int is(const char *name) { return !strcmp(way, name); }
    if (is("execve")) execve(self, argv, with);
    if (is("execvpe")) execvpe(self, argv, with);
    if (is("fexecve")) fexecve(open(self, O_RDONLY | O_CLOEXEC), argv, with);
    if (is("execveat")) execveat(AT_FDCWD, self, argv, with, 0);
    if (is("syscall")) syscall(SYS_execve, self, argv, with);
    if (is("syscall_at")) syscall(SYS_execveat, AT_FDCWD, self, argv, with, 0);
    if (is("execle")) execle(self, self, "report", way, NULL, with);
    if (is("execle_of_ten"))
        execle(self, self, "report", way, "4", "5", "6", "7", "8", "9", "10", NULL, with);
    pid_t pid = 0;
    if (is("posix_spawn")) errno = posix_spawn(&pid, self, NULL, NULL, argv, with);
    if (is("posix_spawnp")) errno = posix_spawnp(&pid, self, NULL, NULL, argv, with);
    if (pid) {
        int status;
        waitpid(pid, &status, 0);
        _exit(0);
    }
    if (with) environ = with;
    else clearenv();
    if (is("execv")) execv(self, argv);
    if (is("execvp")) execvp(self, argv);
    if (is("execl")) execl(self, self, "report", way, NULL);
    if (is("execl_of_ten"))
        execl(self, self, "report", way, "4", "5", "6", "7", "8", "9", "10", NULL);
    if (is("execlp")) execlp(self, self, "report", way, NULL);
    if (is("system")) _exit(system(command));
    if (is("popen")) {
        FILE *pipe = popen(command, "r");
        for (int byte; (byte = fgetc(pipe)) != EOF; )
            putchar(byte);
        fflush(stdout);
        _exit(pclose(pipe));
    }
    printf("%s: %s\n", way, strerror(errno));
    fflush(stdout);
    _exit(0);
}

static void try(const char *way, char **with)
{
    fflush(stdout);
    int status;
    pid_t pid = fork();
    if (!pid)
        start(way, with);
    waitpid(pid, &status, 0);
    if (status)
        printf("%s ends: %d\n", way, status);
}

static const char *ways[] = {
    "execve", "execvpe", "fexecve", "execveat", "syscall", "syscall_at", "execle",
    "execle_of_ten", "posix_spawn", "posix_spawnp", "execv", "execvp", "execl",
    "execl_of_ten", "execlp", "system", "popen", NULL};

// Of that environment that is no array of strings.
static void errors(void)
{
    char *at_end = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at_end + 4096, 4096, PROT_NONE);
    char *bad_string[] = {"A=1", (char *) 16, NULL};
    char *cut_string[] = {"A=1", memcpy(at_end + 4096 - 8, "LD_PRELO", 8), NULL};
    char **cut_array = (char **) (at_end + 4096 - 24);
    cut_array[0] = cut_array[1] = "A=1";
    char **bad_arrays[] = {(char **) 8, (char **) -8, (char **) (1L << 62), bad_string, cut_array,
                           cut_string, (char **) (at_end + 4096)};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 8; j++)
            try(ways[j], bad_arrays[i]);
}

static char **many(int count, const char *text)
{
    char **array = calloc(count + 1, sizeof *array);
    for (int i = 0; i < count; i++)
        array[i] = (char *) text;
    return array;
}

// Near the kernel's limit: what it takes alone is taken, whatever is added.
static void too_long(void)
{
    struct rlimit stack = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_STACK, &stack);
    char text[101];
    memset(text, 'x', 100);
    text[100] = 0;
    int taken = 0, refused = 4000;
    while (refused - taken > 1) {
        int count = (taken + refused) / 2, status;
        pid_t pid = fork();
        if (!pid) {
            execle(self, self, "nothing", NULL, many(count, text));
            _exit(errno == E2BIG ? 1 : 2);
        }
        waitpid(pid, &status, 0);
        if (WEXITSTATUS(status) == 2)
            printf("another error\n");
        if (status)
            refused = count;
        else
            taken = count;
    }
    printf("%d variables\n", taken);
}

// A mount hides the folder of the run.
static void hidden(const char *folder)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)
        || mount("none", folder, "tmpfs", 0, NULL))
        perror("mount");
    try("execve", empty);
}

static int pages(FILE *statm)
{
    int count;
    rewind(statm);
    fscanf(statm, "%d", &count);
    return count;
}

// The child of a vfork has its parent's memory, and its stack. The helper maps some, too, at first.
static void after_vfork(void)
{
    FILE *statm = fopen("/proc/self/statm", "r");
    setvbuf(statm, NULL, _IONBF, 0);
    for (int round = 0; round < 20; round++) {
        int before = pages(statm);
        for (int i = 0; i < 20; i++) {
            int status;
            pid_t pid = vfork();
            if (!pid) {
                execle(self, self, round + i ? "nothing" : "report", "vfork", NULL, empty);
                _exit(1);
            }
            waitpid(pid, &status, 0);
            if (status)
                printf("vfork ends: %d\n", status);
        }
        if (pages(statm) == before)
            return;
    }
    printf("each round takes more memory\n");
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (!strcmp(argv[1], "report")) return report(argc, argv);
    if (!strcmp(argv[1], "nothing")) return 0;
    if (!strcmp(argv[1], "each")) for (int i = 0; ways[i]; i++) try(ways[i], empty);
    if (!strcmp(argv[1], "null")) for (int i = 0; ways[i]; i++) try(ways[i], NULL);
    if (!strcmp(argv[1], "errors")) errors();
    if (!strcmp(argv[1], "too_long")) too_long();
    if (!strcmp(argv[1], "vfork")) after_vfork();
    if (!strcmp(argv[1], "hidden")) hidden(argv[2]);
    if (!strcmp(argv[1], "own")) {
        char *own[] = {"A=1", "LD_PRELOAD=libm.so.6", "B=2", NULL};
        for (int i = 0; ways[i]; i++) try(ways[i], own);
        char *none[] = {"LD_PRELOAD=", NULL};
        try("execve", none);
        char *refuses[] = {"UZSWAP_SOCKET=", NULL};
        try("execve", refuses);
        try("execve", many(255, "C="));
        try("execve", many(256, "C="));
        try("execve", many(4095, "C="));
    }
    return 0;
}
