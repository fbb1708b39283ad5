/* Writers in a guest whose calls happen one before the other, for tests/lab/inside/causal.py.
 *
 *   causal DIR
 *
 * Three processes take turns: whoever gets the token by a pipe appends the number of the turn to a file of
 * its own, renames DIR/turn-N to DIR/turn-N+1, and passes the token on. So all their calls are in one order,
 * across processes, files and directories. Two more processes append to seven files each, on their own.
 *
 * For each byte on standard input a line says how many calls each of the three (the ring counts as one) has
 * begun and how many have returned. At the end of the input all of them end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING 3
#define ALONE 2
#define FILES 7

struct progress {
    _Atomic uint64_t begun, returned;
};

static struct progress *progress;

static void check(int failed, const char *what)
{
    if (failed) {
        fprintf(stderr, "causal: %s: %s\n", what, strerror(errno));
        _exit(1);
    }
}

static void append(const char *dir, int file, uint64_t number)
{
    char name[64];
    int fd;

    snprintf(name, sizeof name, "%s/%d", dir, file);
    fd = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    check(fd < 0, name);
    check(write(fd, &number, sizeof number) != sizeof number, name);
    if (number % 31 == 0)
        check(fsync(fd) != 0, name);
    check(close(fd) != 0, name);
}

static void alone(int writer)
{
    struct progress *mine = progress + 1 + writer;
    char dir[16];

    snprintf(dir, sizeof dir, "alone-%d", writer);
    for (uint64_t number = 0;; number++) {
        atomic_store(&mine->begun, number + 1);
        append(dir, number % FILES, number);
        atomic_store(&mine->returned, number + 1);
    }
}

static void in_turn(int place, int from, int to)
{
    char before[32], after[32];
    uint64_t number;

    while (read(from, &number, sizeof number) == sizeof number) {
        atomic_store(&progress->begun, number + 1);
        append("ring", place, number);
        atomic_store(&progress->returned, number + 1);
        snprintf(before, sizeof before, "turn-%llu", (unsigned long long)number);
        snprintf(after, sizeof after, "turn-%llu", (unsigned long long)number + 1);
        check(rename(before, after) != 0, after);
        number++;
        check(write(to, &number, sizeof number) != sizeof number, "the token");
    }
}

/* Starts a process that ends with this one. Returns 1 in it. */
static int start(void)
{
    pid_t parent = getpid(), pid = fork();

    check(pid < 0, "fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(0);
    }
    return pid == 0;
}

int main(int argc, char **argv)
{
    int pipes[RING][2];
    uint64_t number = 0;
    char byte;

    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return puts("causal, compiled and run") < 0;
    check(argc != 2, "which directory?");
    check(mkdir(argv[1], 0755) != 0 || chdir(argv[1]) != 0, argv[1]);
    check(mkdir("ring", 0755) != 0 || mkdir("alone-0", 0755) != 0 || mkdir("alone-1", 0755) != 0, "mkdir");
    close(open("turn-0", O_WRONLY | O_CREAT, 0644));
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(progress == MAP_FAILED, "mmap");
    for (int place = 0; place < RING; place++)
        check(pipe(pipes[place]) != 0, "pipe");
    for (int place = 0; place < RING; place++)
        if (start()) {
            in_turn(place, pipes[place][0], pipes[(place + 1) % RING][1]);
            _exit(0);
        }
    for (int writer = 0; writer < ALONE; writer++)
        if (start()) {
            alone(writer);
            _exit(0);
        }
    check(write(pipes[0][1], &number, sizeof number) != sizeof number, "the token");
    while (read(0, &byte, 1) == 1) {
        for (int one = 0; one < 1 + ALONE; one++)
            printf("%llu %llu ", (unsigned long long)atomic_load(&progress[one].begun),
                   (unsigned long long)atomic_load(&progress[one].returned));
        printf("\n");
        fflush(stdout);
        if (waitpid(-1, NULL, WNOHANG) != 0)
            return 1;
    }
    return 0;
}
