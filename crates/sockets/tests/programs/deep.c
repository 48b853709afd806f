/* A program, a library that it loads, and another one that that loads from its own folder with RTLD_DEEPBIND, which connects.
 *
 * usage: deep FOLDER PEER PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int connects(const char *peer, const char *port);

#if defined(INNER)
int connects_from(const char *peer, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    char byte = 'x';
    inet_pton(AF_INET, peer, &address.sin_addr);
    if (connect(descriptor, (struct sockaddr *)&address, sizeof address) || send(descriptor, &byte, 1, 0) != 1 ||
        recv(descriptor, &byte, 1, 0) != 1)
        return 1;
    return close(descriptor);
}
#elif defined(OUTER)
int connects_from(const char *peer, const char *port) {
    /* By DT_RUNPATH: only this file has it. */
    void *inner = dlopen("libinner.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!inner) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return ((connects *)dlsym(inner, "connects_from"))(peer, port);
}
#else
int main(int count, char **words) {
    char path[4096];
    if (count != 4)
        return 2;
    snprintf(path, sizeof path, "%s/libouter.so", words[1]);
    void *outer = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!outer) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return ((connects *)dlsym(outer, "connects_from"))(words[2], words[3]);
}
#endif
