/* What interrupts a thread in a call on a socket, and what is left afterwards: prints the same over the kernel and over Overfly.
 *
 * usage: interrupts OWN-ADDRESS PEER-ADDRESS TEST...
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "other_end.h"

static void handle(int signal, void (*function)(int, siginfo_t *, void *), int flags, int also_blocked)
{
    struct sigaction action = {.sa_sigaction = function, .sa_flags = SA_SIGINFO | flags};
    if (also_blocked)
        sigaddset(&action.sa_mask, also_blocked);
    check(sigaction(signal, &action, NULL) == 0, "sigaction");
}

/* A thread that sends a signal to the main thread again and again. */
struct storm {
    pthread_t target, thread;
    int signal, pause_us, count;
    atomic_int sent, stop;
};

static void *rage(void *argument)
{
    struct storm *storm = argument;
    while (!storm->stop && storm->sent < storm->count) {
        union sigval value = {.sival_int = storm->sent};
        if (pthread_sigqueue(storm->target, storm->signal, value) == 0)
            storm->sent++;
        usleep(storm->pause_us);
    }
    return NULL;
}

static void begin(struct storm *storm)
{
    storm->target = pthread_self();
    check(pthread_create(&storm->thread, NULL, rage, storm) == 0, "pthread_create");
}

static void end(struct storm *storm)
{
    storm->stop = 1;
    pthread_join(storm->thread, NULL);
}

static int own_connection = -1;
static atomic_int handled, out_of_order, without_context, unmasked, sent_by_handlers;

static void sends(int signal, siginfo_t *details, void *context)
{
    int saved = errno;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    unmasked += !sigismember(&mask, SIGUSR2) || !sigismember(&mask, signal);
    without_context += context == NULL;
    out_of_order += details->si_value.sival_int != handled;
    handled++;
    sent_by_handlers += send(own_connection, "x", 1, MSG_DONTWAIT) == 1;
    errno = saved;
}

/* A handler, of whatever signal, may use sockets. */
static void handlers_send(int signal)
{
    own_connection = connected("while s.recv(65536): pass");
    int connection = connected("while s.recv(65536): pass");
    handled = out_of_order = without_context = unmasked = sent_by_handlers = 0;
    handle(signal, sends, SA_RESTART, SIGUSR2);
    struct storm storm = {.signal = signal, .pause_us = 50, .count = 3000};
    begin(&storm);
    char buffer[100] = "";
    while (storm.sent < storm.count)
        check(send(connection, buffer, sizeof buffer, 0) > 0, "send");
    end(&storm);
    /* Those that queue come each for itself, in order. */
    int queues = signal >= SIGRTMIN;
    printf("handlers send: %s, %d out of order, %d without context, %d unmasked, sent %d\n",
           queues ? (handled == 3000 ? "all came" : "lost some") : (handled > 0 ? "some came" : "none came"),
           queues ? out_of_order : 0, without_context, unmasked, sent_by_handlers == handled);
    close(connection);
    close(own_connection);
}

static sigjmp_buf place;
static volatile sig_atomic_t jumps_wanted, jumped;

static void jumps(int signal, siginfo_t *details, void *context)
{
    (void)signal, (void)details, (void)context;
    if (jumps_wanted) {
        jumps_wanted = 0;
        siglongjmp(place, 1);
    }
}

static void *echoes(void *argument)
{
    int connection = *(int *)argument;
    long turns = 0;
    char byte = 'x';
    for (; turns < 200; turns++)
        if (send(connection, &byte, 1, 0) != 1 || recv(connection, &byte, 1, 0) != 1)
            break;
    return (void *)turns;
}

#define ECHO "import time\nwhile d := s.recv(1):\n s.sendall(d)"

/* One in the middle of a call jumps away: other threads, and the same one, go on. */
static void handlers_jump(int signal)
{
    int busy = connected("while s.recv(65536): pass"), echo = connected(ECHO), idle = connected("hold()");
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    check(epoll_ctl(set, EPOLL_CTL_ADD, idle, &event) == 0, "epoll_ctl");
    handle(signal, jumps, 0, 0);
    jumped = 0;
    struct storm storm = {.signal = signal, .pause_us = 100, .count = 1 << 30};
    begin(&storm);
    for (int turn = 0; turn < 3000; turn++) {
        if (sigsetjmp(place, 1)) {
            jumped++;
            continue;
        }
        jumps_wanted = 1;
        char buffer[3000] = "";
        struct pollfd polled = {.fd = idle, .events = POLLIN};
        switch (turn % 4) {
        case 0:
            for (;;)
                send(busy, buffer, sizeof buffer, 0);
        case 1:
            for (;;)
                recv(idle, buffer, sizeof buffer, 0);
        case 2:
            for (;;)
                poll(&polled, 1, -1);
        case 3:
            for (;;)
                epoll_wait(set, &event, 1, -1);
        }
    }
    end(&storm);
    pthread_t thread;
    void *turns;
    check(pthread_create(&thread, NULL, echoes, &echo) == 0, "pthread_create");
    pthread_join(thread, &turns);
    printf("handlers jump: %d times, then another thread has %ld turns, ", jumped, (long)turns);
    printf("and this one %ld\n", (long)echoes(&echo));
    close(set), close(busy), close(echo), close(idle);
}

static atomic_int broken_here, broken_code, broken_from;
static pthread_t breaker;

static void broken(int signal, siginfo_t *details, void *context)
{
    (void)signal, (void)context;
    broken_here += pthread_equal(pthread_self(), breaker) != 0;
    broken_code = details->si_code;
    broken_from = details->si_pid == getpid();
}

static void *pauses(void *argument)
{
    while (!*(atomic_int *)argument)
        usleep(1000);
    return NULL;
}

/* SIGPIPE is for the thread that writes. */
static void pipes_break(int unused)
{
    (void)unused;
    atomic_int stop = 0;
    pthread_t other;
    sigset_t mask, pending;
    check(pthread_create(&other, NULL, pauses, &stop) == 0, "pthread_create");
    breaker = pthread_self();
    int connection = connected("hold()");
    shutdown(connection, SHUT_WR);
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    ssize_t result = send(connection, "x", 1, 0);
    usleep(10000);
    sigpending(&pending);
    printf("a thread that blocks SIGPIPE keeps it: %zd %d %d\n", result, errno, sigismember(&pending, SIGPIPE));
    handle(SIGPIPE, broken, 0, 0);
    pthread_sigmask(SIG_UNBLOCK, &mask, NULL);
    printf("its handler runs in it: %d, code %d, its own %d\n", broken_here, broken_code, broken_from);
    result = write(connection, "x", 1);
    printf("and of the next: %zd %d %d\n", result, errno, broken_here);
    result = send(connection, "x", 1, MSG_NOSIGNAL);
    printf("none with MSG_NOSIGNAL: %zd %d %d\n", result, errno, broken_here);
    signal(SIGPIPE, SIG_IGN);
    result = send(connection, "x", 1, 0);
    printf("none if it is ignored: %zd %d %d\n", result, errno, broken_here);
    stop = 1;
    pthread_join(other, NULL);
    close(connection);
}

static volatile sig_atomic_t first;

static void once(int signal, siginfo_t *details, void *context)
{
    (void)details, (void)context;
    struct sigaction now;
    sigaction(signal, NULL, &now);
    first += now.sa_handler == SIG_DFL;
}

/* SA_RESETHAND, wherever it comes. */
static void handlers_go(int signal)
{
    int connection = connected("while s.recv(65536): pass");
    int resets = 0;
    for (int turn = 0; turn < 200; turn++) {
        first = 0;
        handle(signal, once, SA_RESETHAND, 0);
        struct storm storm = {.signal = signal, .pause_us = 0, .count = 1};
        begin(&storm);
        while (!first)
            check(send(connection, "x", 1, 0) == 1, "send");
        end(&storm);
        resets += first;
    }
    printf("handlers go: %d\n", resets);
    close(connection);
}

/* Sends a signal, and at the moment at which its record is free gives that to a signal that nobody takes. */
struct hogs {
    pthread_t target, thread;
    int signal, filler, count;
    atomic_int done;
};

static atomic_int came, came_wrong;

static void counts(int signal, siginfo_t *details, void *context)
{
    (void)signal, (void)context;
    came_wrong += details->si_value.sival_int != came || details->si_code != SI_QUEUE || details->si_pid != getpid();
    came++;
}

static void *hog(void *argument)
{
    struct hogs *hogs = argument;
    union sigval value = {.sival_int = 0};
    sigset_t filler;
    sigemptyset(&filler);
    sigaddset(&filler, hogs->filler);
    for (; value.sival_int < hogs->count; value.sival_int++) {
        while (pthread_sigqueue(hogs->target, hogs->signal, value) != 0)
            ;
        while (pthread_sigqueue(pthread_self(), hogs->filler, value) != 0)
            ;
        /* Long enough for the handler, wherever the signal came. */
        for (int turn = 0; turn < 200 && came <= value.sival_int; turn++)
            usleep(100);
        check(sigwaitinfo(&filler, NULL) == hogs->filler, "sigwaitinfo");
        for (int turn = 0; turn < 2000 && came <= value.sival_int; turn++)
            usleep(100);
    }
    hogs->done = 1;
    return NULL;
}

/* A signal with its value, and no room in the kernel to put it back (RLIMIT_SIGPENDING). */
static void queue_is_full(int signal)
{
    int connection = connected("while s.recv(65536): pass");
    struct rlimit before, limit;
    check(getrlimit(RLIMIT_SIGPENDING, &before) == 0, "getrlimit");
    came = came_wrong = 0;
    handle(signal, counts, SA_RESTART, 0);
    struct hogs hogs = {.target = pthread_self(), .signal = signal, .filler = SIGRTMIN + 7, .count = 50};
    /* Room for one, beside those of the user's other programs. */
    sigset_t filler;
    sigemptyset(&filler);
    sigaddset(&filler, hogs.filler);
    pthread_sigmask(SIG_BLOCK, &filler, NULL);
    limit = before;
    for (limit.rlim_cur = 0;; limit.rlim_cur++) {
        check(setrlimit(RLIMIT_SIGPENDING, &limit) == 0, "setrlimit");
        if (pthread_sigqueue(pthread_self(), hogs.filler, (union sigval){0}) == 0)
            break;
    }
    check(sigwaitinfo(&filler, NULL) == hogs.filler, "sigwaitinfo");
    check(pthread_create(&hogs.thread, NULL, hog, &hogs) == 0, "pthread_create");
    char buffer[100] = "";
    while (!hogs.done)
        check(send(connection, buffer, sizeof buffer, 0) > 0, "send");
    pthread_join(hogs.thread, NULL);
    check(setrlimit(RLIMIT_SIGPENDING, &before) == 0, "setrlimit");
    printf("the queue is full: %d came, %d of them not as they were sent\n", came, came_wrong);
    close(connection);
}

int main(int count, char **arguments)
{
    struct { const char *name; void (*run)(int); int argument; } tests[] = {
        {"standard_handlers_send", handlers_send, SIGUSR1}, {"realtime_handlers_send", handlers_send, SIGRTMIN + 3},
        {"last_handlers_send", handlers_send, SIGRTMAX},    {"standard_handlers_jump", handlers_jump, SIGUSR1},
        {"realtime_handlers_jump", handlers_jump, SIGRTMIN + 3}, {"pipes_break", pipes_break, 0},
        {"standard_handlers_go", handlers_go, SIGUSR1},     {"realtime_handlers_go", handlers_go, SIGRTMIN + 3},
        {"realtime_queue_is_full", queue_is_full, SIGRTMIN + 3},
    };
    setvbuf(stdout, NULL, _IONBF, 0);
    begin_at(arguments[1], arguments[2]);
    for (size_t test = 0; test < sizeof tests / sizeof *tests; test++)
        /* With its own limit it is a test of its own. */
        if (count < 4 ? tests[test].run != queue_is_full : strcmp(arguments[3], tests[test].name) == 0) {
            printf("%s\n", tests[test].name);
            tests[test].run(tests[test].argument);
        }
    printf("done\n");
}
