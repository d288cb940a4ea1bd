/*
 * SPDX-License-Identifier: Apache-2.0
 */

/* Prints what getaddrinfo() gives for each name: a line for each address, then "= NAME STATUS". */

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

static void print_address(const struct sockaddr *where) {
    char text[INET6_ADDRSTRLEN];
    const void *address = where->sa_family == AF_INET
        ? (const void *) &((const struct sockaddr_in *) where)->sin_addr
        : (const void *) &((const struct sockaddr_in6 *) where)->sin6_addr;
    puts(inet_ntop(where->sa_family, address, text, sizeof text));
}

int main(int count, char **arguments) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    for (int number = 1; number < count; number++) {
        struct addrinfo *first = NULL;
        int status = getaddrinfo(arguments[number], NULL, &hints, &first);
        for (struct addrinfo *each = status ? NULL : first; each; each = each->ai_next)
            print_address(each->ai_addr);
        printf("= %s %d\n", arguments[number], status);
        if (status == 0)
            freeaddrinfo(first);
    }
    return 0;
}
