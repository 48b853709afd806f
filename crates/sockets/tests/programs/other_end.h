/* Connections whose other end does what it is told: see peer.py. */
static const char *own_address, *peer_address;
static int next_port = 7500;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void begin_at(const char *own, const char *peer)
{
    own_address = own;
    peer_address = peer;
}

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, peer_address, &address.sin_addr);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    check(connection >= 0, "socket");
    check(connect(connection, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return connection;
}

/* An order to the other end, which does it as long as this is open. */
static int order(const char *verb, int port, const char *program)
{
    char text[2000];
    int length = snprintf(text, sizeof text, "%s %d\n%s\n\n", verb, port, program);
    int control = connect_to(7000);
    check(send(control, text, length, 0) == length, "order");
    return control;
}

/* A connection whose other end runs a program. */
static int connected(const char *program)
{
    char answer[3];
    int port = next_port++, control = order("listen", port, program);
    check(recv(control, answer, 3, MSG_WAITALL) == 3 && memcmp(answer, "ok\n", 3) == 0, "the other end");
    return connect_to(port);
}
