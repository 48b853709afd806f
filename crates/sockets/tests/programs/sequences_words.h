/* What the actors of sequences.c hear and say: calls' letters and numbers, results, errors, events, data. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* What carries out steps one after the other: a thread, or a process's first one. */
struct actor {
    char name;
    /* Where orders come from. */
    int control;
    unsigned step;
    char said[400];
};

static void say(struct actor *actor, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds to what is said. */
static void say(struct actor *actor, const char *format, ...)
{
    size_t length = strlen(actor->said);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(actor->said + length, sizeof actor->said - length, format, arguments);
    va_end(arguments);
}

/* The name of an error. */
static const char *name_of_error(int number)
{
    const char *name = strerrorname_np(number);
    return name ? name : "an unknown error";
}

/* The call's result, or its error's name. */
static void say_result(struct actor *actor, long result)
{
    if (result < 0)
        say(actor, "%s", name_of_error(errno));
    else
        say(actor, "%ld", result);
}

/* Of this program's own. */
static void fault(struct actor *actor, const char *what)
{
    actor->said[0] = 0;
    say(actor, "FAULT %s", what);
}

static int flags_of(const char *letters)
{
    int flags = 0;
    for (; *letters; letters++)
        flags |= *letters == 'd' ? MSG_DONTWAIT : *letters == 'p' ? MSG_PEEK : *letters == 'w' ? MSG_WAITALL
            : *letters == 't' ? MSG_TRUNC : *letters == 'm' ? MSG_MORE : *letters == 'o' ? MSG_OOB : *letters == 'n' ? MSG_NOSIGNAL : 0;
    return flags;
}

static uint32_t crc32(const unsigned char *data, size_t length)
{
    uint32_t crc = ~0u;
    for (size_t at = 0; at < length; at++) {
        crc ^= data[at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* Short ones as they are, which tells the step that sent them. */
static void say_data(struct actor *actor, const unsigned char *data, size_t length)
{
    if (length > 8) {
        say(actor, " %02x%02x..%02x%02x %08x", data[0], data[1], data[length - 2], data[length - 1], crc32(data, length));
        return;
    }
    say(actor, " ");
    for (size_t at = 0; at < length; at++)
        say(actor, "%02x", data[at]);
}

static uint32_t events_of(const char *letters)
{
    uint32_t events = 0;
    for (; *letters; letters++)
        switch (*letters) {
        case 'I': events |= EPOLLIN; break;
        case 'P': events |= EPOLLPRI; break;
        case 'O': events |= EPOLLOUT; break;
        case 'R': events |= EPOLLRDHUP; break;
        case 'E': events |= EPOLLET; break;
        case '1': events |= EPOLLONESHOT; break;
        case 'X': events |= EPOLLEXCLUSIVE; break;
        }
    return events;
}

static void say_events(struct actor *actor, uint32_t events)
{
    static const struct { uint32_t bit; const char *name; } shown[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"}, {POLLRDHUP, "RDHUP"},
    };
    const char *before = "";
    for (size_t at = 0; at < sizeof shown / sizeof *shown; at++)
        if (events & shown[at].bit) {
            say(actor, "%s%s", before, shown[at].name);
            before = "+";
        }
    if (!*before)
        say(actor, "-");
}
