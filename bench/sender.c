/*
 * SPDX-License-Identifier: Apache-2.0
 */

/* Sends prepared queries to a server on loopback, at a rate or as many as it answers, and times the replies.

   sender PORT udp|tcp RATE WINDOW WARM WARMUP SECONDS FIRST QUERIES RESULTS

   The gaps between queries are exponential, as those of many independent clients are, and each socket in turn sends its
   next query. If RATE is inf, each socket keeps WINDOW queries outstanding instead. QUERIES holds the number of sockets;
   for each its IPv4 address in network order, the number of its queries, and each query as TCP carries it, with its
   length in front. Numbers have 32 bits in this machine's order. A query's id is its position; FIRST is sent first.
   Prints "begin" after WARMUP seconds and WARM replies, and "end" after SECONDS more. RESULTS then holds three numbers
   of 64 bits for the queries between the two: how many were sent, how many have a reply, and how many latencies follow,
   32 bits of tenths of a microsecond each; then samples of the replies: socket, length in 16 bits each, reply. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define BURST 16                  /* queries sent at a rate before replies are looked at */
#define BATCH 64                  /* datagrams for each system call */
#define LITTLE 64                 /* replies in a turn at full load; after fewer the sender rests */
#define REST 50000                /* nanoseconds; a read that waits would cost the server a wake-up for each reply */
#define SAMPLE_EVERY 10000000     /* nanoseconds */
#define SAMPLES (4 << 20)         /* octets */
#define LATE 1000000000ULL        /* nanoseconds: a reply that takes longer counts as lost */
#define MOST_WARMUP (90 * LATE)   /* until WARM replies must have come */
#define DATAGRAM 4096             /* octets: room for a reply over UDP */
#define STREAM (1 << 18)          /* octets: room for four of the longest replies over TCP */

struct client {
    int fd;
    uint32_t queries, next, outstanding;
    uint8_t **query;      /* length in two octets, message */
    uint64_t sent[65536]; /* when, by id; 0 if the reply has come */
    uint8_t *unsent, *received; /* over TCP: the rest of queries that were begun, and replies up to the last, begun one */
    size_t unsent_size, received_size;
};

static int tcp;
static uint64_t begin = UINT64_MAX, replied, replies, latencies, room, sampled_at;
static uint32_t *latency;
static uint8_t sample[SAMPLES], *sample_at = sample;

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * LATE + at.tv_nsec;
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
    return at[0] << 8 | at[1];
}

/* Whether a call that failed may succeed later. */
static int later(void) {
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ECONNREFUSED;
}

/* Write queries to a connection, or keep what it does not take; return how many, or -1. */
static int write_stream(struct client *client, struct iovec *parts, int count) {
    if (client->unsent_size) {
        ssize_t written = send(client->fd, client->unsent, client->unsent_size, 0);
        if (written < 0) return -1;
        memmove(client->unsent, client->unsent + written, client->unsent_size -= written);
        if (client->unsent_size) return 0;
    }
    ssize_t written = count ? writev(client->fd, parts, count) : 0;
    if (written < 0) return -1;
    for (int i = 0; i < count; i++) {
        size_t size = parts[i].iov_len, whole = (size_t)written < size ? (size_t)written : size;
        memcpy(client->unsent + client->unsent_size, (uint8_t *)parts[i].iov_base + whole, size - whole);
        client->unsent_size += size - whole;
        written -= whole;
    }
    return count;
}

/* Send up to COUNT of a client's next queries; return how many. */
static int send_next(struct client *client, int count) {
    static struct mmsghdr headers[BATCH];
    static struct iovec parts[BATCH];
    if (count > BATCH) count = BATCH;
    for (int i = 0; i < count; i++) {
        uint8_t *query = client->query[(client->next + i) % client->queries];
        parts[i] = (struct iovec){tcp ? query : query + 2, length(query) + (tcp ? 2 : 0)};
        headers[i].msg_hdr.msg_iov = parts + i;
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    uint64_t at = now();
    int sent = tcp ? write_stream(client, parts, count) : sendmmsg(client->fd, headers, count, 0);
    if (sent < 0 && !later()) fail("send");
    for (int i = 0; i < sent; i++) {
        uint64_t *asked = client->sent + client->next;
        client->outstanding += !*asked; /* else the query before with this id was lost */
        *asked = at;
        client->next = (client->next + 1) % client->queries;
    }
    return sent < 0 ? 0 : sent;
}

static void take(struct client *client, uint16_t socket, const uint8_t *reply, uint16_t size, uint64_t arrived) {
    if (size < 2) return;
    uint64_t *asked = client->sent + length(reply);
    if (*asked) {
        client->outstanding--, replied++;
        if (*asked >= begin && arrived - *asked < LATE) {
            replies++;
            if (latencies < room) latency[latencies++] = (arrived - *asked) / 100;
        }
        *asked = 0;
    }
    if (arrived >= begin && arrived >= sampled_at && sample_at + size + 4 < sample + SAMPLES) {
        memcpy(sample_at, (uint16_t[]){socket, size}, 4);
        memcpy(sample_at + 4, reply, size);
        sample_at += 4 + size;
        sampled_at = arrived + SAMPLE_EVERY;
    }
}

/* Take the replies that a client has, as many as one call yields; return how many. */
static int receive(struct client *client, uint16_t socket) {
    static struct mmsghdr headers[BATCH];
    static struct iovec parts[BATCH];
    static uint8_t datagrams[BATCH][DATAGRAM];
    if (tcp) {
        size_t held = client->received_size, at = 0;
        ssize_t got = recv(client->fd, client->received + held, STREAM - held, 0);
        if (!got) errno = ECONNRESET;
        if (got <= 0) return got < 0 && later() ? 0 : (fail("recv"), 0);
        int count = 0;
        uint64_t arrived = now();
        for (held += got; held - at >= 2; count++) {
            uint8_t *reply = client->received + at;
            if (held - at < 2U + length(reply)) break;
            take(client, socket, reply + 2, length(reply), arrived);
            at += 2 + length(reply);
        }
        memmove(client->received, client->received + at, client->received_size = held - at);
        return count;
    }
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){datagrams[i], DATAGRAM};
        headers[i].msg_hdr.msg_iov = parts + i;
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    int got = recvmmsg(client->fd, headers, BATCH, MSG_DONTWAIT, NULL);
    if (got < 0) return later() ? 0 : (fail("recv"), 0);
    uint64_t arrived = now();
    for (int i = 0; i < got; i++) take(client, socket, datagrams[i], headers[i].msg_len, arrived);
    return got;
}

static uint32_t read_clients(const char *path, int port, uint64_t first, struct client **clients) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *at = malloc(size);
    if (fread(at, 1, size, file) != (size_t)size) fail(path);
    fclose(file);
    uint32_t sockets = number(&at);
    *clients = calloc(sockets, sizeof **clients);
    for (struct client *client = *clients; client < *clients + sockets; client++) {
        struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(port)};
        from.sin_addr.s_addr = number(&at);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        client->queries = number(&at);
        client->query = malloc(client->queries * sizeof *client->query);
        for (uint32_t i = 0; i < client->queries; i++, at += 2 + length(at)) client->query[i] = at;
        client->next = first % client->queries;
        client->fd = socket(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM, 0);
        int buffer = 4 << 20, yes = 1;
        if (tcp) setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        else setsockopt(client->fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
        if (bind(client->fd, (struct sockaddr *)&from, sizeof from)) fail("bind");
        if (connect(client->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        int flags = 1;
        if (ioctl(client->fd, FIONBIO, &flags)) fail("ioctl");
        if (tcp) client->unsent = malloc(STREAM), client->received = malloc(STREAM);
    }
    return sockets;
}

int main(int count, char **arguments) {
    if (count != 11) return 2;
    tcp = !strcmp(arguments[2], "tcp");
    double gap = 1e9 / atof(arguments[3]); /* 0 at full load */
    int window = atoi(arguments[4]);
    uint64_t warm = atoll(arguments[5]), warmup = atof(arguments[6]) * 1e9, seconds = atof(arguments[7]) * 1e9;
    prctl(PR_SET_TIMERSLACK, 1);
    srand48(atoi(arguments[8]));
    struct client *clients;
    uint32_t sockets = read_clients(arguments[9], atoi(arguments[1]), atoll(arguments[8]), &clients), turn = 0;
    struct pollfd *polled = calloc(sockets, sizeof *polled);
    for (uint32_t i = 0; i < sockets; i++) polled[i] = (struct pollfd){clients[i].fd, POLLIN, 0};
    room = gap ? 1024 + (uint64_t)(2 * seconds / gap) : 1024;
    latency = malloc(room * sizeof *latency);

    uint64_t started = now(), end = UINT64_MAX, last_reply = started, sent = 0;
    double due = started;
    int begun = 0, ended = 0;
    for (;;) {
        uint64_t clock = now();
        if (!begun && clock >= started + warmup && replied >= warm) {
            begun = 1, begin = clock, end = clock + seconds;
            puts("begin"), fflush(stdout);
        } else if (!begun && clock >= started + warmup + MOST_WARMUP) {
            fprintf(stderr, "%lu replies of %lu within %d s\n", replied, warm, (int)(MOST_WARMUP / LATE));
            return 3;
        }
        if (!ended && clock >= end) ended = 1, puts("end"), fflush(stdout);
        if (ended && (clock >= end + LATE || replies == sent)) break;
        int got = 0;
        if (gap) {
            for (int i = 0; i < BURST && !ended && due <= clock; i++) {
                send_next(clients + turn++ % sockets, 1);
                sent += begun; /* also one that the kernel did not take: nobody answers it */
                due -= gap * log(1 - drand48());
            }
            clock = now();
            uint64_t until = ended ? end + LATE : due < end ? (uint64_t)due : end;
            if (!begun && until > started + warmup) until = started + warmup;
            uint64_t wait = until > clock ? until - clock : 0;
            struct timespec timeout = {wait / LATE, wait % LATE};
            if (ppoll(polled, sockets, &timeout, NULL) <= 0) continue;
            for (uint32_t i = 0; i < sockets; i++)
                if (polled[i].revents) while (receive(clients + i, i) == BATCH);
            continue;
        }
        for (uint32_t i = 0; i < sockets; i++) {
            struct client *client = clients + i;
            got += receive(client, i);
            int more = ended ? 0 : window - (int)client->outstanding;
            if (more > 0 || client->unsent_size) sent += begun * send_next(client, more > 0 ? more : 0);
        }
        int stalled = !got && clock > last_reply + LATE; /* then all that is outstanding was lost */
        for (uint32_t i = 0; stalled && i < sockets; i++) {
            clients[i].outstanding = 0;
            memset(clients[i].sent, 0, sizeof clients[i].sent);
        }
        if (got || stalled) last_reply = clock;
        if (got < LITTLE) nanosleep(&(struct timespec){0, REST}, NULL);
    }
    FILE *file = fopen(arguments[10], "wb");
    if (!file) fail(arguments[10]);
    fwrite((uint64_t[]){sent, replies, latencies}, sizeof sent, 3, file);
    fwrite(latency, sizeof *latency, latencies, file);
    fwrite(sample, 1, sample_at - sample, file);
    return fclose(file) ? 1 : 0;
}
