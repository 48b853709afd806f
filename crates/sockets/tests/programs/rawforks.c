/* Forks that no handler of libc's hears of: prints the same over the kernel and over Overfly.
 *
 * usage: rawforks OWN-ADDRESS PEER-ADDRESS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "other_end.h"

static pid_t by__Fork(void) { return _Fork(); }
static pid_t by_clone_syscall(void) { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
static pid_t by_clone3_syscall(void)
{
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &arguments, sizeof arguments);
}
#ifdef SYS_fork
static pid_t by_fork_syscall(void) { return syscall(SYS_fork); }
#endif
static pid_t by_fork(void) { return fork(); }

static struct { const char *name; pid_t (*fork)(void); } ways[] = {
    {"fork", by_fork}, {"_Fork", by__Fork}, {"clone syscall", by_clone_syscall}, {"clone3 syscall", by_clone3_syscall},
#ifdef SYS_fork
    {"fork syscall", by_fork_syscall},
#endif
};

static int connection;

/* The child uses the connection, and makes one of its own. */
static int use(void *unused)
{
    (void)unused;
    char byte;
    int own = connected("while d := s.recv(1):\n s.sendall(d)");
    if (send(connection, "c", 1, 0) != 1 || recv(connection, &byte, 1, 0) != 1 || byte != 'c')
        return 1;
    if (send(own, "o", 1, 0) != 1 || recv(own, &byte, 1, 0) != 1 || byte != 'o')
        return 2;
    return 0;
}

int main(int count, char **arguments)
{
    (void)count;
    char byte;
    int status;
    static char stack[1 << 20] __attribute__((aligned(16)));
    setvbuf(stdout, NULL, _IONBF, 0);
    begin_at(arguments[1], arguments[2]);
    for (size_t way = 0; way <= sizeof ways / sizeof *ways; way++) {
        int last = way == sizeof ways / sizeof *ways;
        connection = connected("while d := s.recv(1):\n s.sendall(d)");
        next_port += 10;
        pid_t child = last ? clone(use, stack + sizeof stack, SIGCHLD, NULL) : ways[way].fork();
        if (child == 0)
            _exit(use(NULL));
        next_port += 10;
        check(child > 0 && waitpid(child, &status, 0) == child, "child");
        int back = send(connection, "p", 1, 0) == 1 && recv(connection, &byte, 1, 0) == 1 && byte == 'p';
        printf("%s: the child ends with %x, the parent goes on: %d\n", last ? "clone" : ways[way].name, status, back);
        close(connection);
    }
    /* The child of a sandbox, in a network namespace of its own (vsftpd): it has used nothing that is its parent's alone. */
    pid_t child = syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(7);
    check(child > 0 && waitpid(child, &status, 0) == child, "child");
    printf("the child in another network namespace ends with %x\n", status);
    printf("done\n");
}
