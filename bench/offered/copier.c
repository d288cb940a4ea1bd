/*
 * SPDX-License-Identifier: Apache-2.0
 */

/* Sends every datagram back as it came: what the kernel alone costs a server. recvmmsg and sendmmsg, 64 at a time. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>

#define BATCH 64
#define SIZE 1500

int main(void) {
    static char data[BATCH][SIZE];
    static struct sockaddr_in from[BATCH];
    static struct iovec parts[BATCH];
    static struct mmsghdr headers[BATCH];
    int fd = socket(AF_INET, SOCK_DGRAM, 0), buffer = 4 << 20;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (bind(fd, (struct sockaddr *)&address, length) || getsockname(fd, (struct sockaddr *)&address, &length)) return 1;
    printf("listening udp 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        for (int i = 0; i < BATCH; i++) {
            parts[i] = (struct iovec){data[i], SIZE};
            headers[i].msg_hdr = (struct msghdr){from + i, sizeof from[i], parts + i, 1, NULL, 0, 0};
        }
        int count = recvmmsg(fd, headers, BATCH, MSG_WAITFORONE, NULL);
        for (int i = 0; i < count; i++) parts[i].iov_len = headers[i].msg_len;
        if (count > 0) sendmmsg(fd, headers, count, 0);
    }
}
