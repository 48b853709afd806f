/* One end of generated sequences of calls: does what it is told, call by call, and says what each call said.
 *
 * usage: sequences     (orders come from standard input; tests/sequences.rs gives them)
 *
 * `begin PATH SIDE OWN PEER BASE UNIT` forks a process for one sequence, whose actor says its name and process at the Unix socket PATH and
 * then takes one step a line, which it answers with one line; `end` kills it, with its threads and children. Ports are BASE and a digit:
 * 0 to 4 are listened at by side L, 5 to 9 by side R. UNIT is what everything takes its patience from, in milliseconds.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sequences_words.h"

/* What all actors of one process have in common: the sequence, and the descriptors, by the letter that steps have for them. */
static struct {
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    char side;
    char own[INET6_ADDRSTRLEN], peer[INET6_ADDRSTRLEN];
    int base, timer_ms;
} sequence;
static atomic_int slots[128];
static int controls[4];
static atomic_int control_count;

/* No process has so many. */
#define NO_DESCRIPTOR 900

static int descriptor(const char *slot)
{
    int fd = slots[*slot & 127];
    return fd >= 0 ? fd : NO_DESCRIPTOR + *slot;
}

/* A new descriptor: its number says nothing. */
static void into(struct actor *actor, const char *slot, int result)
{
    if (result < 0)
        return say_result(actor, result);
    slots[*slot & 127] = result;
    say(actor, "new");
}

static int set_number(int fd, int level, int name, int number)
{
    return setsockopt(fd, level, name, &number, sizeof number);
}

static void *room_for(size_t length)
{
    void *room = calloc(1, length ? length : 1);
    if (!room)
        _exit(1);
    return room;
}

/* ---- sockets ---- */

/* Of the sequence's port at a host; returns its length. */
static socklen_t address_at(const char *host, int digit, struct sockaddr_storage *address)
{
    memset(address, 0, sizeof *address);
    if (strchr(host, ':')) {
        struct sockaddr_in6 *six = (void *)address;
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(sequence.base + digit);
        inet_pton(AF_INET6, host, &six->sin6_addr);
        return sizeof *six;
    }
    struct sockaddr_in *four = (void *)address;
    four->sin_family = AF_INET;
    four->sin_port = htons(sequence.base + digit);
    inet_pton(AF_INET, host, &four->sin_addr);
    return sizeof *four;
}

/* The same for a socket, with a mapped address if it is of IPv6 and the host is not. */
static socklen_t address_at_host(int fd, const char *host, int digit, struct sockaddr_storage *address)
{
    int family = AF_INET;
    char mapped[INET6_ADDRSTRLEN + 8];
    socklen_t length = sizeof family;
    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
    snprintf(mapped, sizeof mapped, "%s%s", family == AF_INET6 && !strchr(host, ':') ? "::ffff:" : "", host);
    return address_at(mapped, digit, address);
}

/* Where the host is that has the port. */
static socklen_t address_for(int fd, const char *port, struct sockaddr_storage *address)
{
    int digit = atoi(port);
    return address_at_host(fd, (digit < 5) == (sequence.side == 'L') ? sequence.own : sequence.peer, digit, address);
}

static void do_socket(struct actor *actor, char **words)
{
    int family = strchr(words[1], '6') || strchr(sequence.own, ':') ? AF_INET6 : AF_INET;
    into(actor, words[0], socket(family, SOCK_STREAM | (*words[1] == 'n' ? SOCK_NONBLOCK : 0), 0));
    /* Nagle's and the peer's delayed acknowledgment would make any step's data come at the next one's time. */
    set_number(descriptor(words[0]), IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(descriptor(words[0]), SOL_SOCKET, SO_REUSEADDR, 1);
}

static void do_bind(struct actor *actor, char **words)
{
    struct sockaddr_storage address;
    int fd = descriptor(words[0]);
    socklen_t length = address_at_host(fd, sequence.own, atoi(words[1]), &address);
    if (strcmp(words[2], "any") == 0 && address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_any;
    else if (strcmp(words[2], "any") == 0)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = INADDR_ANY;
    say_result(actor, bind(fd, (struct sockaddr *)&address, length));
}

static void do_listen(struct actor *actor, char **words)
{
    say_result(actor, listen(descriptor(words[0]), atoi(words[1])));
}

static void do_connect(struct actor *actor, char **words)
{
    struct sockaddr_storage address;
    socklen_t length = address_for(descriptor(words[0]), words[1], &address);
    say_result(actor, connect(descriptor(words[0]), (struct sockaddr *)&address, length));
}

static void do_unconnect(struct actor *actor, char **words)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    say_result(actor, connect(descriptor(words[0]), &none, sizeof none));
}

static void do_accept(struct actor *actor, char **words)
{
    into(actor, words[1], accept4(descriptor(words[0]), NULL, NULL, *words[2] == 'n' ? SOCK_NONBLOCK : 0));
}

static void do_shutdown(struct actor *actor, char **words)
{
    say_result(actor, shutdown(descriptor(words[0]), atoi(words[1])));
}

/* The number is tried once more, before anybody else can have it. */
static void do_close(struct actor *actor, char **words)
{
    char byte;
    int fd = descriptor(words[0]);
    slots[*words[0] & 127] = -1;
    say_result(actor, close(fd));
    say(actor, ", then ");
    say_result(actor, recv(fd, &byte, 1, MSG_DONTWAIT));
}

static void do_dup(struct actor *actor, char **words)
{
    into(actor, words[1], dup(descriptor(words[0])));
}

static void do_nonblock(struct actor *actor, char **words)
{
    int fd = descriptor(words[0]), now = fcntl(fd, F_GETFL, 0);
    if (now < 0)
        return say_result(actor, now);
    say_result(actor, fcntl(fd, F_SETFL, *words[1] == '1' ? now | O_NONBLOCK : now & ~O_NONBLOCK));
}

/* ---- data ---- */

/* Every step sends bytes of its own. */
static unsigned char *data_of(const struct actor *actor, size_t length)
{
    unsigned char *data = room_for(length), first = actor->step * 37;
    for (size_t at = 0; at < length; at++)
        data[at] = first + at;
    return data;
}

static void do_send(struct actor *actor, char **words)
{
    long length = atol(words[1]);
    unsigned char *data = data_of(actor, length);
    long result = send(descriptor(words[0]), data, length, flags_of(words[2]));
    int number = errno;
    free(data);
    errno = number;
    /* Of more than any queue holds some went, or none, if it ended early: how much, is each stack's own affair. */
    if (length > 1000000 && (result < 0 ? number == EAGAIN : result > 0 && result < length))
        say(actor, "some");
    else
        say_result(actor, result);
}

/* Two vectors of one piece, and its whole length. */
static size_t halve(struct iovec vectors[2], unsigned char *data, char **lengths)
{
    size_t first = atol(lengths[0]), second = atol(lengths[1]);
    vectors[0] = (struct iovec){.iov_base = data, .iov_len = first};
    vectors[1] = (struct iovec){.iov_base = data + first, .iov_len = second};
    return first + second;
}

static void do_writev(struct actor *actor, char **words)
{
    struct iovec vectors[2];
    unsigned char *data = data_of(actor, halve(vectors, NULL, words + 1));
    halve(vectors, data, words + 1);
    say_result(actor, writev(descriptor(words[0]), vectors, 2));
    free(data);
}

static void do_sendmsg(struct actor *actor, char **words)
{
    long length = atol(words[1]);
    struct iovec vector = {.iov_base = data_of(actor, length), .iov_len = length};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    say_result(actor, sendmsg(descriptor(words[0]), &header, flags_of(words[2])));
    free(vector.iov_base);
}

static void do_recv(struct actor *actor, char **words)
{
    size_t length = atol(words[1]);
    unsigned char *data = room_for(length);
    long result = recv(descriptor(words[0]), data, length, flags_of(words[2]));
    say_result(actor, result);
    if (result >= 0 && !strchr(words[2], 't'))
        say_data(actor, data, result);
    free(data);
}

static void do_readv(struct actor *actor, char **words)
{
    struct iovec vectors[2];
    unsigned char *data = room_for(halve(vectors, NULL, words + 1));
    halve(vectors, data, words + 1);
    long result = readv(descriptor(words[0]), vectors, 2);
    say_result(actor, result);
    if (result >= 0)
        say_data(actor, data, result);
    free(data);
}

static void do_recvmsg(struct actor *actor, char **words)
{
    size_t length = atol(words[1]);
    struct iovec vector = {.iov_base = room_for(length), .iov_len = length};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    long result = recvmsg(descriptor(words[0]), &header, flags_of(words[2]));
    say_result(actor, result);
    if (result >= 0) {
        say_data(actor, vector.iov_base, result);
        say(actor, " flags 0x%x", header.msg_flags);
    }
    free(vector.iov_base);
}

static void sleep_us(long us)
{
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

/* Sends or receives without waiting until there has been nothing to do for a while, and says what came instead. That is longer than
 * the 200 ms after which a window smaller than a segment is filled, or a queue that was full has room again. */
static void until_quiet(struct actor *actor, int fd, int sends)
{
    static const unsigned char zeros[1 << 16];
    unsigned char *room = sends ? NULL : room_for(sizeof zeros);
    long look_us = sequence.timer_ms * 1000L * 1000 / 7500;
    int quiet = 0;
    for (int move = 0; move < 10000; move++) {
        long result = sends ? send(fd, zeros, sizeof zeros, MSG_DONTWAIT) : recv(fd, room, sizeof zeros, MSG_DONTWAIT);
        if (result < 0 && errno == EAGAIN && quiet < 5) {
            quiet++;
            sleep_us(look_us < 50000 ? 50000 : look_us);
        } else if (result <= 0) {
            say_result(actor, result);
            free(room);
            return;
        } else {
            quiet = 0;
        }
    }
    say(actor, "no end");
    free(room);
}

/* Until the queues of both ends are full. How much that is, is each stack's own affair. */
static void do_fill(struct actor *actor, char **words)
{
    set_number(descriptor(words[0]), SOL_SOCKET, SO_SNDBUF, 20000);
    until_quiet(actor, descriptor(words[0]), 1);
}

/* Until nothing more comes. */
static void do_drain(struct actor *actor, char **words)
{
    until_quiet(actor, descriptor(words[0]), 0);
}

/* ---- waiting ---- */

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static int time_out(const char *until)
{
    return *until == '0' ? 0 : *until == '-' ? -1 : sequence.timer_ms;
}

/* Whether a call took until a timer rang, which it does not much too early: on a busy machine a call takes long that waits for nobody. */
static void say_whether_timed(struct actor *actor, double began_ms)
{
    say(actor, now_ms() - began_ms < sequence.timer_ms * 0.95 ? " at once" : " after the timer");
}

static void do_poll(struct actor *actor, char **words)
{
    struct pollfd record = {.fd = descriptor(words[0]), .events = (short)events_of(words[1])};
    double began_ms = now_ms();
    say_result(actor, poll(&record, 1, time_out(words[2])));
    say(actor, " ");
    say_events(actor, (unsigned short)record.revents);
    if (*words[2] == '+')
        say_whether_timed(actor, began_ms);
}

static void do_epoll(struct actor *actor, char **words)
{
    into(actor, words[0], epoll_create1(0));
}

static void do_ctl(struct actor *actor, char **words)
{
    struct epoll_event record = {.events = events_of(words[3]), .data.u64 = (unsigned char)*words[2]};
    int how = *words[1] == 'a' ? EPOLL_CTL_ADD : *words[1] == 'd' ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    say_result(actor, epoll_ctl(descriptor(words[0]), how, descriptor(words[2]), &record));
}

static int by_slot(const void *one, const void *other)
{
    const struct epoll_event *first = one, *second = other;
    return first->data.u64 != second->data.u64 ? (first->data.u64 < second->data.u64 ? -1 : 1)
        : (first->events > second->events) - (first->events < second->events);
}

static void say_records(struct actor *actor, struct epoll_event *records, int count)
{
    say_result(actor, count);
    if (count > 0)
        qsort(records, count, sizeof *records, by_slot);
    for (int at = 0; at < count; at++) {
        say(actor, " %c:", (char)records[at].data.u64);
        say_events(actor, records[at].events);
    }
}

static void do_wait(struct actor *actor, char **words)
{
    struct epoll_event records[8];
    double began_ms = now_ms();
    int count = epoll_wait(descriptor(words[0]), records, 8, time_out(words[1]));
    say_records(actor, records, count);
    if (*words[1] == '+')
        say_whether_timed(actor, began_ms);
}

/* A call with a time-out of its own (SO_RCVTIMEO, SO_SNDTIMEO). */
static void do_patient(struct actor *actor, char **words)
{
    struct timeval limit = {.tv_sec = sequence.timer_ms / 1000, .tv_usec = sequence.timer_ms % 1000 * 1000}, none = {0};
    int sends = strcmp(words[0], "send") == 0, name = sends ? SO_SNDTIMEO : SO_RCVTIMEO;
    setsockopt(descriptor(words[1]), SOL_SOCKET, name, &limit, sizeof limit);
    /* What is done once for a process, at its first look at a listener, may take longer than the timer on a busy machine. */
    struct pollfd look = {.fd = descriptor(words[1]), .events = POLLIN};
    poll(&look, 1, 0);
    double began_ms = now_ms();
    if (sends)
        do_send(actor, (char *[]){words[1], words[2], "-"});
    else if (strcmp(words[0], "recv") == 0)
        do_recv(actor, (char *[]){words[1], words[2], "-"});
    else
        do_accept(actor, (char *[]){words[1], words[2], "n"});
    say_whether_timed(actor, began_ms);
    setsockopt(descriptor(words[1]), SOL_SOCKET, name, &none, sizeof none);
}

/* ---- what there is to see, and to set ---- */

static void say_option(struct actor *actor, int fd, int name)
{
    int number = -1;
    socklen_t length = sizeof number;
    int result = getsockopt(fd, SOL_SOCKET, name, &number, &length);
    if (result == 0 && name == SO_ERROR && number != 0)
        say(actor, "%s", name_of_error(number));
    else
        say_result(actor, result < 0 ? result : number);
}

static void say_state(struct actor *actor, int fd)
{
    static const char *const states[] = {"-", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE",
        "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING"};
    unsigned char record[104] = {0};
    socklen_t length = sizeof record;
    int result = getsockopt(fd, IPPROTO_TCP, TCP_INFO, record, &length);
    /* The kernel delays the acknowledgment of a FIN by 40 ms. */
    if (result == 0 && record[0] == TCP_FIN_WAIT1) {
        sleep_us(60000);
        result = getsockopt(fd, IPPROTO_TCP, TCP_INFO, record, &length);
    }
    if (result < 0)
        say_result(actor, result);
    else
        say(actor, "%s", record[0] < sizeof states / sizeof *states ? states[record[0]] : "no state");
}

static long queue_of(int fd, unsigned long request)
{
    int number = -1;
    int result = ioctl(fd, request, &number);
    return result < 0 ? result : number;
}

/* What is under way may wait for a delayed acknowledgment. */
static void say_unsent(struct actor *actor, int fd)
{
    double end_ms = now_ms() + sequence.timer_ms * 2;
    for (;;) {
        long found = queue_of(fd, SIOCOUTQ);
        int last = found == 0 || (found < 0 && (errno == EBADF || errno == EINVAL || errno == ENOTTY));
        if (last || now_ms() >= end_ms)
            return say_result(actor, found);
        sleep_us(2000);
    }
}

static void say_name(struct actor *actor, int fd, int (*ask)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_storage address = {0};
    socklen_t length = 64;
    int result = ask(fd, (struct sockaddr *)&address, &length);
    if (result < 0)
        return say_result(actor, result);
    say(actor, "%u %s", length, ((struct sockaddr_in *)&address)->sin_port ? "port" : "no port");
    struct in6_addr *v6 = &((struct sockaddr_in6 *)&address)->sin6_addr;
    if (address.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(v6))
        say(actor, " mapped");
    if (address.ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(v6) : !((struct sockaddr_in *)&address)->sin_addr.s_addr)
        say(actor, " any");
}

static int peer_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getpeername(fd, address, length);
}

static int own_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getsockname(fd, address, length);
}

static void do_get(struct actor *actor, char **words)
{
    int fd = descriptor(words[0]);
    const char *what = words[1];
    if (strcmp(what, "error") == 0)
        say_option(actor, fd, SO_ERROR);
    else if (strcmp(what, "state") == 0)
        say_state(actor, fd);
    else if (strcmp(what, "listens") == 0)
        say_option(actor, fd, SO_ACCEPTCONN);
    else if (strcmp(what, "queued") == 0)
        say_result(actor, queue_of(fd, FIONREAD));
    else if (strcmp(what, "unsent") == 0)
        say_unsent(actor, fd);
    else if (strcmp(what, "peer") == 0)
        say_name(actor, fd, peer_name);
    else if (strcmp(what, "name") == 0)
        say_name(actor, fd, own_name);
    else if (strcmp(what, "flags") == 0) {
        int found = fcntl(fd, F_GETFL, 0);
        if (found < 0)
            say_result(actor, found);
        else
            say(actor, "0o%o", found & ~0100000);
    } else
        fault(actor, what);
}

static void do_set(struct actor *actor, char **words)
{
    int fd = descriptor(words[0]), number = atoi(words[2]);
    /* Lingering for no time: close() resets. */
    /* Above 1: for so many seconds. */
    struct linger linger = {.l_onoff = number, .l_linger = number > 1 ? number : 0};
    if (strcmp(words[1], "linger") == 0)
        say_result(actor, setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    else if (strcmp(words[1], "lowat") == 0)
        say_result(actor, set_number(fd, SOL_SOCKET, SO_RCVLOWAT, number));
    else if (strcmp(words[1], "keepalive") == 0)
        say_result(actor, set_number(fd, SOL_SOCKET, SO_KEEPALIVE, number));
    else if (strcmp(words[1], "cork") == 0)
        say_result(actor, set_number(fd, IPPROTO_TCP, TCP_CORK, number));
    else if (strcmp(words[1], "inline") == 0)
        say_result(actor, set_number(fd, SOL_SOCKET, SO_OOBINLINE, number));
    else if (strcmp(words[1], "v6only") == 0)
        say_result(actor, set_number(fd, IPPROTO_IPV6, IPV6_V6ONLY, number));
    else
        fault(actor, words[1]);
}

#include "sequences_more.h"

#include "sequences_kinds.h"

/* ---- threads and processes ---- */

static void *work(void *name);

/* `M` beside `L`, `S` beside `R`. */
static void do_thread(struct actor *actor, char **words)
{
    (void)words;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, actor->name == 'L' ? "M" : "S") != 0)
        return fault(actor, "pthread_create");
    pthread_detach(thread);
    say(actor, "started");
}

/* `C` of `L`, `D` of `R`, or who it is said to be: what is open it has as well. */
static void do_fork(struct actor *actor, char **words)
{
    char name[2] = {*words[0] ? *words[0] : actor->name == 'L' ? 'C' : 'D'};
    pid_t process = fork();
    if (process < 0)
        return fault(actor, "fork");
    if (process == 0) {
        /* Who hangs up there has gone. */
        while (control_count > 0)
            close(controls[--control_count]);
        work(name);
    }
    say(actor, "forked");
}

static void do_exit(struct actor *actor, char **words)
{
    (void)actor, (void)words;
    _exit(0);
}

static const struct {
    const char *word;
    int least;
    void (*take)(struct actor *, char **);
} steps[] = {
    {"socket", 2, do_socket}, {"bind", 2, do_bind}, {"listen", 2, do_listen}, {"connect", 2, do_connect}, {"unconnect", 1, do_unconnect},
    {"accept", 3, do_accept}, {"shutdown", 2, do_shutdown}, {"close", 1, do_close}, {"dup", 2, do_dup}, {"nonblock", 2, do_nonblock},
    {"send", 3, do_send}, {"writev", 3, do_writev}, {"sendmsg", 3, do_sendmsg}, {"recv", 3, do_recv}, {"readv", 3, do_readv},
    {"recvmsg", 3, do_recvmsg}, {"fill", 1, do_fill}, {"drain", 1, do_drain}, {"poll", 3, do_poll}, {"epoll", 1, do_epoll},
    {"ctl", 4, do_ctl}, {"wait", 2, do_wait}, {"patient", 3, do_patient}, {"get", 2, do_get}, {"set", 3, do_set},
    {"thread", 0, do_thread}, {"fork", 0, do_fork}, {"exit", 0, do_exit}, {"poll2", 4, do_poll2}, {"select", 3, do_select},
    {"sendfile", 2, do_sendfile}, {"splice", 3, do_splice}, {"sendpipe", 2, do_sendpipe}, {"sendmmsg", 3, do_sendmmsg},
    {"recvmmsg", 3, do_recvmmsg}, {"kick", 2, do_kick}, {"give", 1, do_give}, {"take", 1, do_take}, {"exec", 0, do_exec},
    {"dgram", 2, do_dgram}, {"sendto", 4, do_sendto}, {"recvfrom", 3, do_recvfrom}, {"dup2", 2, do_dup2}, {"dup3", 2, do_dup3},
    {"file", 1, do_file}, {"hear", 0, do_hear}, {"mask", 1, do_mask}, {"ppoll", 4, do_ppoll}, {"pselect", 4, do_pselect},
    {"pwait", 3, do_pwait}, {"leave", 1, do_leave}, {"mark", 1, do_mark},
};

/* Splits at blanks; the rest of the words is empty. Returns how many there are. */
static int split(char *line, char *words[], int room)
{
    static char nothing[] = "";
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line, " \n", &rest); word && count < room; word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    for (int at = count; at < room; at++)
        words[at] = nothing;
    return count;
}

/* A line is a step's number, its word, and what belongs to it. */
static void take(struct actor *actor, char *line)
{
    char *words[8];
    int count = split(line, words, 8);
    actor->step = atoi(words[0]);
    actor->said[0] = 0;
    for (size_t at = 0; at < sizeof steps / sizeof *steps; at++)
        if (count > 1 && strcmp(steps[at].word, words[1]) == 0) {
            if (count - 2 < steps[at].least)
                return fault(actor, "too few words");
            return steps[at].take(actor, words + 2);
        }
    fault(actor, words[1]);
}

static void tell(int control, const char *line, size_t length)
{
    if (send(control, line, length, 0) != (ssize_t)length)
        _exit(0);
}

static void answer(struct actor *actor)
{
    char line[sizeof actor->said + 1];
    tell(actor->control, line, snprintf(line, sizeof line, "%s\n", actor->said));
}

/* Takes steps until there are no more: who gives them has gone then, maybe with an answer unread. */
static void *go_on(struct actor *actor)
{
    char line[sizeof actor->said + 1];
    size_t held = 0;
    threads[actor->name & 127] = pthread_self();
    for (;;) {
        ssize_t got = recv(actor->control, line + held, sizeof line - 1 - held, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            _exit(0);
        held += got;
        line[held] = 0;
        if (line[held - 1] != '\n')
            continue;
        /* The next one comes only after the answer. */
        take(actor, line);
        say_whether_broken(actor);
        held = 0;
        answer(actor);
    }
}

static void *work(void *name)
{
    struct actor actor = {.name = *(char *)name};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, sequence.path, sizeof address.sun_path);
    actor.control = socket(AF_UNIX, SOCK_STREAM, 0);
    if (actor.control < 0 || connect(actor.control, (struct sockaddr *)&address, sizeof address) != 0)
        _exit(0);
    controls[control_count++] = actor.control;
    char line[40];
    tell(actor.control, line, snprintf(line, sizeof line, "%c %d\n", actor.name, getpid()));
    return go_on(&actor);
}

/* ---- the processes of sequences ---- */

static pid_t play(char *words[])
{
    pid_t process = fork();
    if (process == 0) {
        setpgid(0, 0);
        snprintf(sequence.path, sizeof sequence.path, "%s", words[1]);
        sequence.side = *words[2];
        snprintf(sequence.own, sizeof sequence.own, "%s", words[3]);
        snprintf(sequence.peer, sizeof sequence.peer, "%s", words[4]);
        sequence.base = atoi(words[5]);
        sequence.timer_ms = atoi(words[6]) * 15;
        for (size_t at = 0; at < sizeof slots / sizeof *slots; at++)
            slots[at] = -1;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, passage) != 0)
            _exit(1);
        work(&sequence.side);
    }
    /* Unless it has done so itself. */
    setpgid(process, process);
    return process;
}

/* Kills the process, and its children with it. */
static void stop(pid_t process)
{
    kill(-process, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
}

int main(int count, char **arguments)
{
    char line[400], *words[8];
    pid_t playing = 0;
    signal(SIGPIPE, SIG_IGN);
    expect_signals();
    if (count > 12 && strcmp(arguments[1], "resume") == 0) {
        struct actor actor = resume(arguments + 2);
        say(&actor, "executed");
        answer(&actor);
        go_on(&actor);
    }
    /* Children of a process that was killed are ours to reap. */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    while (fgets(line, sizeof line, stdin)) {
        split(line, words, 8);
        if (strcmp(words[0], "begin") == 0) {
            playing = play(words);
        } else {
            stop(playing);
            playing = 0;
            if (puts("ended") < 0 || fflush(stdout) != 0)
                _exit(0);
        }
    }
    if (playing)
        stop(playing);
    return 0;
}
