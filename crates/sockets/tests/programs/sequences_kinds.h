/* What the actors of sequences.c do in sequences of some kind: datagrams, numbers that are in use, SIGPIPE, signal masks, urgent data.
 * It is a part of sequences.c, as a file of its own. */

/* ---- datagrams ---- */

static void do_dgram(struct actor *actor, char **words)
{
    int family = strchr(words[1], '6') || strchr(sequence.own, ':') ? AF_INET6 : AF_INET;
    into(actor, words[0], socket(family, SOCK_DGRAM | (*words[1] == 'n' ? SOCK_NONBLOCK : 0), 0));
}

static void do_sendto(struct actor *actor, char **words)
{
    struct sockaddr_storage address;
    long length = atol(words[2]);
    unsigned char *data = data_of(actor, length);
    socklen_t size = address_for(descriptor(words[0]), words[1], &address);
    say_result(actor, sendto(descriptor(words[0]), data, length, flags_of(words[3]), (struct sockaddr *)&address, size));
    free(data);
}

static void do_recvfrom(struct actor *actor, char **words)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    long length = atol(words[1]);
    unsigned char *data = room_for(length);
    long result = recvfrom(descriptor(words[0]), data, length, flags_of(words[2]), (struct sockaddr *)&address, &size);
    say_result(actor, result);
    if (result >= 0) {
        int digit = ntohs(((struct sockaddr_in *)&address)->sin_port) - sequence.base;
        say_data(actor, data, result < length ? result : length);
        say(actor, " from %u", size);
        if (size)
            say(actor, digit >= 0 && digit < 10 ? " %d" : " elsewhere", digit);
    }
    free(data);
}

/* ---- descriptors ---- */

/* Over one that is in use, or not. */
static void do_dup2(struct actor *actor, char **words)
{
    int result = dup2(descriptor(words[0]), descriptor(words[1]));
    say_result(actor, result < 0 ? result : 0);
    if (result >= 0)
        slots[*words[1] & 127] = result;
}

static void do_dup3(struct actor *actor, char **words)
{
    int result = dup3(descriptor(words[0]), descriptor(words[1]), O_CLOEXEC);
    say_result(actor, result < 0 ? result : 0);
    if (result >= 0)
        slots[*words[1] & 127] = result;
}

static void do_file(struct actor *actor, char **words)
{
    into(actor, words[0], open("/dev/null", O_RDWR));
}

/* ---- signals ---- */

static _Thread_local volatile sig_atomic_t pipes_broken;

static void count_pipe(int number)
{
    (void)number;
    pipes_broken++;
}

/* Each answer tells of SIGPIPE from now on. */
static void do_hear(struct actor *actor, char **words)
{
    (void)words;
    struct sigaction action = {.sa_handler = count_pipe, .sa_flags = SA_RESTART};
    say_result(actor, sigaction(SIGPIPE, &action, NULL));
}

static void say_whether_broken(struct actor *actor)
{
    if (pipes_broken)
        say(actor, " SIGPIPE%s", pipes_broken > 1 ? "s" : "");
    pipes_broken = 0;
}

static sigset_t *mask_of(const char *letter, sigset_t *mask)
{
    sigemptyset(mask);
    if (*letter == 'b') {
        sigaddset(mask, SIGUSR1);
        sigaddset(mask, SIGUSR2);
    }
    return *letter == '-' ? NULL : mask;
}

/* This thread does not hear them, or does. */
static void do_mask(struct actor *actor, char **words)
{
    sigset_t mask;
    int number = pthread_sigmask(SIG_SETMASK, mask_of(words[0], &mask), NULL);
    say(actor, "%d", number);
}

static void say_how_it_went(struct actor *actor, double began_ms, int heard, const char *until)
{
    if (signals_heard != heard)
        say(actor, " heard");
    if (*until == '+')
        say_whether_timed(actor, began_ms);
}

static struct timespec *limit_of(const char *until, struct timespec *limit)
{
    int limit_ms = time_out(until);
    *limit = (struct timespec){.tv_sec = limit_ms / 1000, .tv_nsec = limit_ms % 1000 * 1000000L};
    return limit_ms < 0 ? NULL : limit;
}

static void do_ppoll(struct actor *actor, char **words)
{
    sigset_t mask;
    struct timespec limit;
    struct pollfd record = {.fd = descriptor(words[0]), .events = (short)events_of(words[1])};
    double began_ms = now_ms();
    int heard = signals_heard;
    say_result(actor, ppoll(&record, 1, limit_of(words[3], &limit), mask_of(words[2], &mask)));
    say(actor, " ");
    say_events(actor, (unsigned short)record.revents);
    say_how_it_went(actor, began_ms, heard, words[3]);
}

static void do_pselect(struct actor *actor, char **words)
{
    sigset_t mask;
    struct timespec limit;
    fd_set sets[3];
    int fd = put_into_sets(words[0], words[1], sets);
    double began_ms = now_ms();
    int heard = signals_heard;
    int count = pselect(fd + 1, &sets[0], &sets[1], &sets[2], limit_of(words[3], &limit), mask_of(words[2], &mask));
    say_result(actor, count);
    for (int at = 0; at < 3 && count > 0; at++)
        if (FD_ISSET(fd, &sets[at]))
            say(actor, " %c", "rwe"[at]);
    say_how_it_went(actor, began_ms, heard, words[3]);
}

static void do_pwait(struct actor *actor, char **words)
{
    sigset_t mask;
    struct epoll_event records[8];
    double began_ms = now_ms();
    int heard = signals_heard;
    int count = epoll_pwait(descriptor(words[0]), records, 8, time_out(words[2]), mask_of(words[1], &mask));
    say_records(actor, records, count);
    say_how_it_went(actor, began_ms, heard, words[2]);
}

/* ---- lingering, urgent data ---- */

/* close() that waits until everything has arrived, or for so many seconds: a sequence does not last half a minute. */
static void do_leave(struct actor *actor, char **words)
{
    int fd = descriptor(words[0]);
    struct linger linger = {.l_onoff = 1, .l_linger = *words[1] ? atoi(words[1]) : 30};
    int result = setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    if (result < 0)
        return say_result(actor, result);
    slots[*words[0] & 127] = -1;
    say_result(actor, close(fd));
}

/* SIOCATMARK */
static void do_mark(struct actor *actor, char **words)
{
    say_result(actor, queue_of(descriptor(words[0]), SIOCATMARK));
}
