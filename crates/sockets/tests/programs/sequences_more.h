/* What the actors of sequences.c do now and then: other ways to wait and to move data, signals, descriptors that are passed on, exec.
 * It is a part of sequences.c, as a file of its own. */

/* ---- waiting ---- */

static void do_poll2(struct actor *actor, char **words)
{
    struct pollfd records[2];
    for (int at = 0; at < 2; at++)
        records[at] = (struct pollfd){.fd = descriptor(words[at]), .events = (short)events_of(words[2])};
    double began_ms = now_ms();
    say_result(actor, poll(records, 2, time_out(words[3])));
    for (int at = 0; at < 2; at++) {
        say(actor, " ");
        say_events(actor, (unsigned short)records[at].revents);
    }
    if (*words[3] == '+')
        say_whether_timed(actor, began_ms);
}

/* A descriptor in the sets of select() that the letters of `kinds` stand for. Returns it. */
static int put_into_sets(const char *word, const char *kinds, fd_set sets[3])
{
    int fd = descriptor(word);
    /* Numbers beyond the table of the process the kernel does not look at, and how large that is, is each process's own affair. */
    fd = fd < NO_DESCRIPTOR ? fd : 60;
    for (int at = 0; at < 3; at++) {
        FD_ZERO(&sets[at]);
        if (strchr(kinds, "rwe"[at]))
            FD_SET(fd, &sets[at]);
    }
    return fd;
}

static void do_select(struct actor *actor, char **words)
{
    fd_set sets[3];
    int fd = put_into_sets(words[0], words[1], sets), limit_ms = time_out(words[2]);
    struct timeval limit = {.tv_sec = limit_ms / 1000, .tv_usec = limit_ms % 1000 * 1000};
    double began_ms = now_ms();
    int count = select(fd + 1, &sets[0], &sets[1], &sets[2], limit_ms < 0 ? NULL : &limit);
    say_result(actor, count);
    for (int at = 0; at < 3 && count > 0; at++)
        if (FD_ISSET(fd, &sets[at]))
            say(actor, " %c", "rwe"[at]);
    if (*words[2] == '+')
        say_whether_timed(actor, began_ms);
}

/* ---- data ---- */

static void do_sendfile(struct actor *actor, char **words)
{
    long length = atol(words[1]);
    unsigned char *data = data_of(actor, length);
    int file = memfd_create("sequences", 0);
    if (file < 0 || pwrite(file, data, length, 0) != length)
        _exit(1);
    free(data);
    say_result(actor, sendfile(descriptor(words[0]), file, NULL, length));
    close(file);
}

static void open_pipe(int ends[2])
{
    if (pipe(ends) != 0)
        _exit(1);
}

/* Out of a connection, by a pipe. */
static void do_splice(struct actor *actor, char **words)
{
    size_t length = atol(words[1]);
    unsigned char *data = room_for(length);
    int ends[2];
    open_pipe(ends);
    long result = splice(descriptor(words[0]), NULL, ends[1], NULL, length, *words[2] == 'd' ? SPLICE_F_NONBLOCK : 0);
    say_result(actor, result);
    if (result > 0 && read(ends[0], data, result) == result)
        say_data(actor, data, result);
    free(data);
    close(ends[0]);
    close(ends[1]);
}

/* Into a connection. */
static void do_sendpipe(struct actor *actor, char **words)
{
    long length = atol(words[1]);
    unsigned char *data = data_of(actor, length);
    int ends[2];
    open_pipe(ends);
    if (write(ends[1], data, length) != length)
        _exit(1);
    free(data);
    say_result(actor, splice(ends[0], NULL, descriptor(words[0]), NULL, length, 0));
    close(ends[0]);
    close(ends[1]);
}

/* Two messages of as much each. */
static void of_messages(struct mmsghdr messages[2], struct iovec vectors[2], unsigned char *data, size_t length)
{
    memset(messages, 0, 2 * sizeof messages[0]);
    for (int at = 0; at < 2; at++) {
        vectors[at] = (struct iovec){.iov_base = data + at * length, .iov_len = length};
        messages[at].msg_hdr = (struct msghdr){.msg_iov = &vectors[at], .msg_iovlen = 1};
    }
}

static void do_sendmmsg(struct actor *actor, char **words)
{
    struct mmsghdr messages[2];
    struct iovec vectors[2];
    size_t length = atol(words[1]);
    unsigned char *data = data_of(actor, length * 2);
    of_messages(messages, vectors, data, length);
    int count = sendmmsg(descriptor(words[0]), messages, 2, flags_of(words[2]));
    say_result(actor, count);
    for (int at = 0; at < count; at++)
        say(actor, " %u", messages[at].msg_len);
    free(data);
}

static void do_recvmmsg(struct actor *actor, char **words)
{
    struct mmsghdr messages[2];
    struct iovec vectors[2];
    size_t length = atol(words[1]);
    unsigned char *data = room_for(length * 2);
    of_messages(messages, vectors, data, length);
    int count = recvmmsg(descriptor(words[0]), messages, 2, flags_of(words[2]) | MSG_WAITFORONE, NULL);
    say_result(actor, count);
    for (int at = 0; at < count; at++) {
        say(actor, " %u", messages[at].msg_len);
        say_data(actor, data + at * length, messages[at].msg_len);
    }
    free(data);
}

/* ---- signals ---- */

static pthread_t threads[128];

static _Thread_local volatile sig_atomic_t signals_heard;

static void take_signal(int number)
{
    (void)number;
    signals_heard++;
}

/* SIGUSR1 restarts calls, SIGUSR2 ends them. */
static void expect_signals(void)
{
    struct sigaction action = {.sa_handler = take_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
}

/* Another thread of this process hears a signal. */
static void do_kick(struct actor *actor, char **words)
{
    pthread_t thread = threads[*words[0] & 127];
    say(actor, thread && pthread_kill(thread, *words[1] == 'r' ? SIGUSR1 : SIGUSR2) == 0 ? "kicked" : "nobody there");
}

/* ---- descriptors that are passed on ---- */

/* What one process gives, it or a child of it takes. */
static int passage[2];

static void do_give(struct actor *actor, char **words)
{
    int fd = descriptor(words[0]);
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *message = CMSG_FIRSTHDR(&header);
    *message = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(message), &fd, sizeof fd);
    say_result(actor, sendmsg(passage[0], &header, MSG_DONTWAIT));
}

static void do_take(struct actor *actor, char **words)
{
    int fd = -1;
    char byte, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(passage[1], &header, MSG_DONTWAIT) < 0)
        return say_result(actor, -1);
    struct cmsghdr *message = CMSG_FIRSTHDR(&header);
    if (message)
        memcpy(&fd, CMSG_DATA(message), sizeof fd);
    into(actor, words[0], fd);
}

/* ---- exec ---- */

static void hang_up_at_exec(int control)
{
    for (int at = 0; at < control_count; at++)
        if (controls[at] != control)
            fcntl(controls[at], F_SETFD, FD_CLOEXEC);
}

/* The same actor goes on in a new image, with the same descriptors. */
static void do_exec(struct actor *actor, char **words)
{
    (void)words;
    char numbers[5][16], name[2] = {actor->name}, side[2] = {sequence.side}, open[400] = "";
    int values[5] = {sequence.base, sequence.timer_ms, actor->control, passage[0], passage[1]};
    for (int at = 0; at < 5; at++)
        snprintf(numbers[at], sizeof numbers[at], "%d", values[at]);
    for (size_t slot = 0; slot < sizeof slots / sizeof *slots; slot++)
        if (slots[slot] >= 0)
            snprintf(open + strlen(open), sizeof open - strlen(open), "%c%d ", (char)slot, slots[slot]);
    hang_up_at_exec(actor->control);
    execl("/proc/self/exe", "sequences", "resume", sequence.path, name, side, sequence.own, sequence.peer, numbers[0], numbers[1], numbers[2],
        numbers[3], numbers[4], open, NULL);
    say_result(actor, -1);
}

/* In the new image; `words` are those of do_exec(). */
static struct actor resume(char **words)
{
    snprintf(sequence.path, sizeof sequence.path, "%s", words[0]);
    sequence.side = *words[2];
    snprintf(sequence.own, sizeof sequence.own, "%s", words[3]);
    snprintf(sequence.peer, sizeof sequence.peer, "%s", words[4]);
    sequence.base = atoi(words[5]);
    sequence.timer_ms = atoi(words[6]);
    struct actor actor = {.name = *words[1], .control = atoi(words[7])};
    passage[0] = atoi(words[8]);
    passage[1] = atoi(words[9]);
    for (size_t at = 0; at < sizeof slots / sizeof *slots; at++)
        slots[at] = -1;
    char *rest = NULL;
    for (char *word = strtok_r(words[10], " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        slots[*word & 127] = atoi(word + 1);
    controls[control_count++] = actor.control;
    return actor;
}
