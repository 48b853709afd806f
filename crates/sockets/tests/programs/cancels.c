/* Threads that are cancelled in calls on sockets: prints the same over the kernel and over Overfly.
 *
 * usage: cancels OWN-ADDRESS PEER-ADDRESS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "other_end.h"

static int idle, full, listener, set, cleaned, outside[2];
static char buffer[1 << 20];

static void calls_accept(void) { accept(listener, NULL, NULL); }
static void calls_accept4(void) { accept4(listener, NULL, NULL, SOCK_CLOEXEC); }
static void calls_read(void) { read(idle, buffer, 10); }
static void calls_recv(void) { recv(idle, buffer, 10, 0); }
static void calls_recvfrom(void) { recvfrom(idle, buffer, 10, 0, NULL, NULL); }
static void calls_readv(void)
{
    struct iovec vector = {buffer, 10};
    readv(idle, &vector, 1);
}
static void calls_recvmsg(void)
{
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    recvmsg(idle, &message, 0);
}
static void calls_write(void)
{
    for (;;)
        write(full, buffer, sizeof buffer);
}
static void calls_send(void)
{
    for (;;)
        send(full, buffer, sizeof buffer, 0);
}
static void calls_poll(void)
{
    struct pollfd polled = {.fd = idle, .events = POLLIN};
    poll(&polled, 1, 20000);
}
static void calls_ppoll(void)
{
    struct pollfd polled = {.fd = idle, .events = POLLIN};
    struct timespec time = {20, 0};
    ppoll(&polled, 1, &time, NULL);
}
static void calls_poll_outside(void)
{
    struct pollfd polled = {.fd = outside[0], .events = POLLIN};
    poll(&polled, 1, 20000);
}
static void calls_read_outside(void) { read(outside[0], buffer, 10); }
static void calls_select(void)
{
    fd_set read;
    FD_ZERO(&read);
    FD_SET(idle, &read);
    struct timeval time = {20, 0};
    select(idle + 1, &read, NULL, NULL, &time);
}
static void calls_pselect(void)
{
    fd_set read;
    FD_ZERO(&read);
    FD_SET(idle, &read);
    pselect(idle + 1, &read, NULL, NULL, NULL, NULL);
}
static void calls_epoll_wait(void)
{
    struct epoll_event event;
    epoll_wait(set, &event, 1, 20000);
}
static void calls_epoll_pwait(void)
{
    struct epoll_event event;
    epoll_pwait(set, &event, 1, -1, NULL);
}
static void calls_connect(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(9)};
    inet_pton(AF_INET, peer_address, &address.sin_addr);
    /* A neighbour that is not there. */
    address.sin_addr.s_addr ^= htonl(77);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    for (int turn = 0; turn < 20; turn++)
        connect(connection, (struct sockaddr *)&address, sizeof address);
}

static struct { const char *name; void (*call)(void); } calls[] = {
#define CALL(name) {#name, calls_##name}
    CALL(accept), CALL(accept4), CALL(read), CALL(recv), CALL(recvfrom), CALL(readv), CALL(recvmsg), CALL(write),
    CALL(send), CALL(poll), CALL(ppoll), CALL(poll_outside), CALL(read_outside), CALL(select), CALL(pselect),
    CALL(epoll_wait), CALL(epoll_pwait),
};

static void cleans(void *unused) { (void)unused, cleaned++; }

static pthread_barrier_t begins;

struct way { void (*call)(void); int type, first_disabled; };

static void *run(void *argument)
{
    struct way *way = argument;
    int before;
    pthread_cleanup_push(cleans, NULL);
    pthread_setcanceltype(way->type, &before);
    if (way->first_disabled) {
        /* Nothing happens before it is allowed. */
        struct pollfd polled = {.fd = idle, .events = POLLIN};
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        pthread_barrier_wait(&begins);
        int outcome = poll(&polled, 1, 300);
        printf("(disabled: %d) ", outcome);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    } else
        pthread_barrier_wait(&begins);
    way->call();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(const char *name, struct way way, int pause_ms)
{
    pthread_t thread;
    void *result;
    struct timespec end;
    cleaned = 0;
    pthread_barrier_init(&begins, NULL, 2);
    check(pthread_create(&thread, NULL, run, &way) == 0, "pthread_create");
    pthread_barrier_wait(&begins);
    usleep(pause_ms * 1000);
    pthread_cancel(thread);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    int joined = pthread_timedjoin_np(thread, &result, &end);
    printf("%s%s: %s, cleaned %d\n", name, way.type == PTHREAD_CANCEL_ASYNCHRONOUS ? " at any time" : "",
           joined ? "does not end" : result == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned);
    if (joined)
        exit(1);
}

/* Cancelled before it calls, with something to read: at the beginning of the call. */
static void *reads_late(void *argument)
{
    (void)argument;
    pthread_barrier_wait(&begins);
    pthread_barrier_wait(&begins);
    char bytes[2];
    ssize_t outcome = recv(full, bytes, 2, 0);
    printf("came back with %zd ", outcome);
    return NULL;
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

int main(int count, char **arguments)
{
    (void)count;
    setvbuf(stdout, NULL, _IONBF, 0);
    begin_at(arguments[1], arguments[2]);
    check(pipe(outside) == 0, "pipe");
    idle = connected("hold()");
    full = connected("hold()");
    int echo = connected("while d := s.recv(1):\n s.sendall(d)");
    listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7400)};
    inet_pton(AF_INET, own_address, &address.sin_addr);
    int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 10) == 0, "listen");
    set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    check(epoll_ctl(set, EPOLL_CTL_ADD, idle, &event) == 0, "epoll_ctl");
    for (size_t call = 0; call < sizeof calls / sizeof *calls; call++) {
        struct way way = {.call = calls[call].call};
        cancelled(calls[call].name, way, 100);
        cancelled(calls[call].name, way, 0);
        way.type = PTHREAD_CANCEL_ASYNCHRONOUS;
        cancelled(calls[call].name, way, 20);
    }
    cancelled("connect", (struct way){.call = calls_connect}, 100);
    cancelled("recv", (struct way){.call = calls_recv, .first_disabled = 1}, 50);
    cancelled("read_outside", (struct way){.call = calls_read_outside, .first_disabled = 1}, 50);

    pthread_t thread;
    void *result;
    close(full);
    full = connected("s.sendall(b'xy'); hold()");
    usleep(100000);
    check(pthread_create(&thread, NULL, reads_late, NULL) == 0, "pthread_create");
    pthread_barrier_wait(&begins);
    pthread_cancel(thread);
    pthread_barrier_wait(&begins);
    pthread_join(thread, &result);
    printf("at the beginning: %s\n", result == PTHREAD_CANCELED ? "cancelled" : "returned");
    printf("nothing is lost: %zd\n", recv(full, buffer, 2, MSG_WAITALL));

    /* At random moments of a busy thread; another one, and this, go on. */
    srand(1);
    int ended = 0;
    for (int turn = 0; turn < 100; turn++) {
        pthread_t other;
        check(pthread_create(&thread, NULL, echoes, &echo) == 0, "pthread_create");
        usleep(rand() % 3000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        ended++;
        /* What was on its way when the thread ended. */
        usleep(3000);
        while (recv(echo, buffer, sizeof buffer, MSG_DONTWAIT) > 0)
            ;
        if (turn % 10 == 0) {
            check(pthread_create(&other, NULL, echoes, &echo) == 0, "pthread_create");
            pthread_join(other, &result);
            if ((long)result != 200)
                printf("%ld turns\n", (long)result);
        }
    }
    printf("%d ended, %ld turns\n", ended, (long)echoes(&echo));
    printf("done\n");
}
