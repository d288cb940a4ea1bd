/*
 * SPDX-License-Identifier: Apache-2.0
 */

/* Offers queries to a server at a rate, over connected UDP sockets, and measures how long each reply takes.

   sender PORT RATE WARMUP SECONDS FIRST QUERIES RESULTS

   The gaps between queries are exponential, as those of many independent clients are. QUERIES holds, in the order of
   this machine's bytes: the number of sockets; for each its IPv4 address in network order, the number of its queries,
   and each query as its length in two octets and its message. A query's id is its position. Each socket in turn sends
   its next query, beginning with its FIRSTth.
   Prints "begin" after WARMUP seconds and "end" after SECONDS more. RESULTS then holds three numbers of 64 bits for the
   queries between the two: how many were sent, how many have a reply, and how many samples there are; then the latency
   of each reply, 32 bits of tenths of a microsecond; then the samples: socket, length in 16 bits each, reply. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BURST 16                  /* queries sent before replies are looked at */
#define SAMPLE_EVERY 10000000     /* nanoseconds */
#define LATE 1000000000ULL        /* nanoseconds: a reply that takes longer counts as lost */
#define SAMPLES 65536
#define REPLY 65536

struct client {
    int fd;
    uint32_t queries, next;
    uint8_t **query; /* length in two octets, message */
    uint64_t sent[65536]; /* when, by id; 0 if the reply has come */
};

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000ULL + at.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t number(uint8_t **at) {
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

static uint16_t length(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

int main(int count, char **arguments) {
    if (count != 8) return 2;
    int port = atoi(arguments[1]);
    double gap = 1e9 / atof(arguments[2]);
    uint64_t warmup = atof(arguments[3]) * 1e9, seconds = atof(arguments[4]) * 1e9;
    prctl(PR_SET_TIMERSLACK, 1);
    srand48(atoi(arguments[5]));

    FILE *file = fopen(arguments[6], "rb");
    if (!file) fail(arguments[6]);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *at = malloc(size);
    if (fread(at, 1, size, file) != (size_t)size) fail(arguments[6]);
    fclose(file);

    uint32_t sockets = number(&at);
    struct client *clients = calloc(sockets, sizeof *clients);
    struct pollfd *polled = calloc(sockets, sizeof *polled);
    for (uint32_t i = 0; i < sockets; i++) {
        struct client *client = clients + i;
        struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(port)};
        from.sin_addr.s_addr = number(&at);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        client->queries = number(&at);
        client->query = malloc(client->queries * sizeof *client->query);
        for (uint32_t j = 0; j < client->queries; j++) {
            client->query[j] = at;
            at += 2 + length(at);
        }
        client->next = atoi(arguments[5]) % client->queries;
        client->fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        int buffer = 4 << 20;
        setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
        if (bind(client->fd, (struct sockaddr *)&from, sizeof from)) fail("bind");
        if (connect(client->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        polled[i].fd = client->fd;
        polled[i].events = POLLIN;
    }

    uint64_t room = 1024 + (uint64_t)(2 * seconds / gap), replies = 0, sent = 0, samples = 0, sampled_at = 0;
    uint32_t *latencies = malloc(room * sizeof *latencies);
    uint8_t *sample = malloc(2 * SAMPLES * 64), *sample_end = sample + 2 * SAMPLES * 64, *sample_at = sample;
    uint8_t reply[REPLY];
    uint64_t begin = now() + warmup, end = begin + seconds, stop = end + LATE;
    double due = now();
    uint32_t turn = 0;
    int begun = 0, ended = 0;
    for (;;) {
        uint64_t clock = now();
        if (!begun && clock >= begin) begun = 1, puts("begin"), fflush(stdout);
        if (!ended && clock >= end) ended = 1, puts("end"), fflush(stdout);
        if (clock >= stop || (ended && replies == sent)) break;
        for (int i = 0; i < BURST && !ended && due <= clock; i++) {
            struct client *client = clients + turn++ % sockets;
            uint32_t id = client->next++;
            if (client->next == client->queries) client->next = 0;
            uint64_t at = now();
            if (send(client->fd, client->query[id] + 2, length(client->query[id]), 0) < 0) {
                if (errno != EAGAIN) fail("send");
            } else {
                client->sent[id] = at;
            }
            sent += begun;
            due -= gap * log(1 - drand48());
        }
        clock = now();
        uint64_t until = ended ? stop : due < end ? (uint64_t)due : end;
        if (!begun && until > begin) until = begin;
        uint64_t wait = until > clock ? until - clock : 0;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        if (ppoll(polled, sockets, &timeout, NULL) <= 0) continue;
        for (uint32_t i = 0; i < sockets; i++) {
            if (!(polled[i].revents & POLLIN)) continue;
            ssize_t got;
            while ((got = recv(polled[i].fd, reply, sizeof reply, 0)) > 1) {
                uint64_t arrived = now(), *asked = clients[i].sent + (reply[0] << 8 | reply[1]);
                if (*asked >= begin && arrived - *asked < LATE && replies < room)
                    latencies[replies++] = (arrived - *asked) / 100;
                *asked = 0;
                if (begun && arrived >= sampled_at && sample_at + got + 4 < sample_end) {
                    uint16_t head[] = {i, got};
                    memcpy(sample_at, head, 4);
                    memcpy(sample_at + 4, reply, got);
                    sample_at += 4 + got;
                    samples++;
                    sampled_at = arrived + SAMPLE_EVERY;
                }
            }
            if (got < 0 && errno != EAGAIN) fail("recv");
        }
    }
    file = fopen(arguments[7], "wb");
    if (!file) fail(arguments[7]);
    uint64_t counts[] = {sent, replies, samples};
    fwrite(counts, sizeof counts, 1, file);
    fwrite(latencies, sizeof *latencies, replies, file);
    fwrite(sample, 1, sample_at - sample, file);
    return fclose(file) ? 1 : 0;
}
