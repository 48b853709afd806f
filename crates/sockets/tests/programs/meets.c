/* Threads that meet at the lock of their process's stack: each waits in an epoll set of its own, for nothing, again and again. A library for
   the scripts, whose own threads take turns at the interpreter. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { THREADS = 4 };

static atomic_bool over;

static void *waits(void *nothing)
{
    struct epoll_event event;
    int set = epoll_create1(EPOLL_CLOEXEC);
    while (!over)
        epoll_wait(set, &event, 1, 0);
    close(set);
    return nothing;
}

void meet(unsigned milliseconds)
{
    pthread_t threads[THREADS];
    over = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, waits, NULL);
    usleep(milliseconds * 1000);
    over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
